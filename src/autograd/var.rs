//! A value in a formula.

use super::Tape;
use crate::tensor::{DType, Shape, Tensor};

/// A value on a tape: two words and `Copy`, so that a formula reads `f * c + i * g`.
///
/// The operators and methods (`matmul`, `sigmoid`, `narrow`, …) are defined beside their ops in [`crate::ops`].
///
/// # Panics
/// Each of them panics where its inputs do not fit, or are on two tapes. The message names the op, the shapes and the
/// caller's line.
#[derive(Clone, Copy)]
pub struct Var<'t> {
    tape: &'t Tape,
    id: u32,
}

impl<'t> Var<'t> {
    pub(super) fn new(tape: &'t Tape, id: u32) -> Var<'t> {
        Var { tape, id }
    }

    /// The tape that this value is on.
    pub fn tape(self) -> &'t Tape {
        self.tape
    }

    pub(super) fn id(self) -> u32 {
        self.id
    }

    #[track_caller]
    pub(super) fn id_on(self, tape: &Tape) -> u32 {
        assert!(
            std::ptr::eq(self.tape, tape),
            "a formula mixes values of two tapes: {self:?} is on another than the first; tape.constant(&v.value()) copies a \
             value v to a tape"
        );
        self.id
    }

    /// Axis sizes.
    pub fn shape(self) -> Shape {
        self.tape.shape(self.id).0
    }

    /// The axis sizes as an array, for destructuring: `let [b, t, d] = x.dims()`.
    ///
    /// # Panics
    /// When the value has not `N` axes.
    #[track_caller]
    pub fn dims<const N: usize>(self) -> [usize; N] {
        match self.shape().array() {
            Ok(dims) => dims,
            Err(why) => panic!("{why}"),
        }
    }

    /// Element type.
    pub fn dtype(self) -> DType {
        self.tape.shape(self.id).1
    }

    /// The value as a tensor that shares the tape's buffer.
    pub fn value(self) -> Tensor {
        self.tape.value(self.id)
    }

    /// After a backward pass, the gradient of a leaf ([`Tape::leaf`]), where the result depends on it.
    ///
    /// `None` before that pass, of a constant, of a leaf that the result does not depend on, and of an intermediate
    /// value, whose gradient is dropped during the pass. To see such a gradient, make the value a leaf:
    /// `tape.leaf(&v.value())`.
    pub fn grad(self) -> Option<Tensor> {
        self.tape.grad(self.id)
    }

    /// The same elements in another shape; no copy.
    ///
    /// # Panics
    /// When the sizes differ.
    #[track_caller]
    pub fn reshape(self, shape: impl Into<Shape>) -> Var<'t> {
        self.tape.reshape(self, shape.into())
    }
}

impl std::fmt::Debug for Var<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "Var {} {}", self.shape(), self.dtype())
    }
}
