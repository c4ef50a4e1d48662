//! What an operation is: its output shapes, its value and its derivative, on every device, and sample inputs.

use super::Gen;
use crate::tensor::{Cpu, Cx, DType, Real, Shape, Tensor};
use std::ops::{Deref, DerefMut, Index};

/// One differentiable operation.
///
/// An op without a `backward`, or without a `sample` for the checks to run on, does not compile:
///
/// ```compile_fail
/// # use tapezoo::{autograd::*, tensor::*};
/// struct Forgetful;
/// impl Op for Forgetful {
///     fn name(&self) -> &'static str { "forgetful" }
///     fn infer(&self, x: In) -> Result<Outs, String> { Ok(x[0].shape().into()) }
///     fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {}
///     fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) { (Forgetful, vec![]) }
/// } // error: not all trait items implemented, missing: `backward`
/// ```
pub trait Op: Send + 'static {
    /// The name in errors, profiles and graphs.
    fn name(&self) -> &'static str;

    /// Output shapes; outputs have the dtype of `x[0]` unless [`Outs::typed`] says another. What `backward` needs besides
    /// inputs and outputs is one more output that nobody else sees: [`Outs::saving`].
    ///
    /// # Errors
    /// When the inputs do not fit together: a sentence with the shapes in it. The tape panics with it, the
    /// op's name and the line of the formula.
    fn infer(&self, x: In) -> Result<Outs, String>;

    /// The inputs that are f32 where the others are bf16: rates and phases, of whose rounding a recurrence would make
    /// more with every step.
    fn in_f32(&self) -> &'static [usize] {
        &[]
    }

    /// Compute the outputs. Every element of every output must be written: buffers hold old values.
    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]);

    /// Add `dyᵀ ∂y/∂x` into every wanted gradient. `dy[i]` is `None` when output `i` does not matter.
    fn backward(&self, cx: &Cx, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]);

    /// The inputs whose gradient, where they have the shape of the only output, is that of the output as it is: the tape
    /// hands it on to one of them, and `backward` has nothing to copy for it.
    fn passes_on(&self) -> &'static [usize] {
        &[]
    }

    /// What it does with the rows of its first input: what need be computed only once for equal ones.
    fn rows(&self) -> Rows {
        Rows::Together
    }

    /// A random instance with random `f64` inputs (and `i32` indices), sizes of 1 included: what the gradient
    /// check, the device comparison and the benches run on.
    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>)
    where
        Self: Sized;
}

/// What an op does with the rows (the last axis) of its first input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Whatever it likes.
    Together,
    /// Row i of its one result is a function of row i of the first input, and of the other inputs as a whole. The tape
    /// then computes equal rows once (`autograd/tape/repeated.rs`).
    Alone,
    /// If the rows of its first input are copies of few, it is given these: the table in the input's place, and as one
    /// more input, the last, the index of each row. [`In::steps`] tells the two apart; either way `infer` gives the same
    /// visible shapes, and the gradient is that of what stands in the input's place: the table's is summed over its
    /// copies. On the CPU only.
    Kinds,
    /// As of an [`Embedding`](crate::ops::embed::Embedding): row i of its one result is the row of the first input that
    /// element i of the second names. On the CPU the tape copies them itself, when somebody looks.
    Copied,
}

/// The most outputs of one op.
pub const MAX_OUTS: usize = 6;

/// The shapes of an op's outputs, those that only its `backward` reads last.
#[derive(Clone, Copy)]
pub struct Outs {
    shapes: [Shape; MAX_OUTS],
    dtypes: [Option<DType>; MAX_OUTS],
    len: usize,
    visible: usize,
}

impl Outs {
    /// The same with further outputs that are kept for `backward` and have no gradient of their own.
    pub fn saving<const N: usize>(mut self, list: [Shape; N]) -> Outs {
        self.shapes[self.len..self.len + N].copy_from_slice(&list);
        self.len += N;
        self
    }

    /// The same with outputs `range` of this type, whatever that of `x[0]` is.
    pub fn typed(mut self, range: std::ops::Range<usize>, dtype: DType) -> Outs {
        self.dtypes[range].fill(Some(dtype));
        self
    }

    /// The type of output `i`, if it is not that of `x[0]`.
    pub fn dtype(&self, i: usize) -> Option<DType> {
        self.dtypes[i]
    }

    /// How many outputs are results; the rest are kept for `backward`.
    pub fn visible(&self) -> usize {
        self.visible
    }
}

impl Deref for Outs {
    type Target = [Shape];
    fn deref(&self) -> &[Shape] {
        &self.shapes[..self.len]
    }
}

impl<const N: usize> From<[Shape; N]> for Outs {
    fn from(list: [Shape; N]) -> Outs {
        let mut shapes = [Shape::default(); MAX_OUTS];
        shapes[..N].copy_from_slice(&list);
        Outs { shapes, dtypes: [None; MAX_OUTS], len: N, visible: N }
    }
}

impl From<Shape> for Outs {
    fn from(shape: Shape) -> Outs {
        [shape].into()
    }
}

/// A tensor on the tape.
pub struct Value {
    pub(super) tensor: Tensor,
    /// Whether the loss may depend on a leaf through it.
    pub(super) needs: bool,
    /// Whether the buffer belongs to the pool (an op wrote it) or to the caller (a leaf).
    pub(super) pooled: bool,
    /// If its rows are copies of those of a table: the ids of the table and of the indices.
    pub(super) copied: Option<[u32; 2]>,
    /// Whether they are still to be copied, because nobody has looked at them.
    pub(super) owed: bool,
    /// Of integers that the tape moved to a device: as they are in host memory, for checks that a kernel cannot make.
    pub(super) original: Option<Tensor>,
}

impl Value {
    /// Whether the gradients that several ops have for it are added up in a wider type: a parameter's in bf16.
    pub(super) fn sums_wide(&self) -> bool {
        !self.pooled && self.dtype() != self.dtype().real()
    }
}

impl Deref for Value {
    type Target = Tensor;
    fn deref(&self) -> &Tensor {
        &self.tensor
    }
}

impl DerefMut for Value {
    fn deref_mut(&mut self) -> &mut Tensor {
        &mut self.tensor
    }
}

/// The inputs of an op: `x[0]`, `x[1]`, …
#[derive(Clone, Copy)]
pub struct In<'a> {
    pub(super) values: &'a [Value],
    pub(super) ids: &'a [u32],
}

impl In<'_> {
    /// How many inputs there are.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The integers of input `i`, where the host has seen them.
    pub fn integers(&self, i: usize) -> Option<&[i32]> {
        let value = &self.values[self.ids[i] as usize];
        let seen = value.original.as_ref().unwrap_or(&value.tensor);
        seen.gpu().is_none().then(|| seen.host())
    }
}

impl Index<usize> for In<'_> {
    type Output = Tensor;
    fn index(&self, i: usize) -> &Tensor {
        &self.values[self.ids[i] as usize]
    }
}

/// Where the gradient of one input goes.
pub struct Grad {
    pub(super) tensor: Option<Tensor>,
    /// Whether the buffer already holds a gradient, to be added to, or old values, to be overwritten.
    pub(super) acc: bool,
    pub(super) wanted: bool,
}

impl Grad {
    /// Whether anybody needs this gradient.
    pub fn wanted(&self) -> bool {
        self.wanted
    }

    /// If wanted, the buffer, and whether to add to it (`true`) or to overwrite all of it (`false`).
    pub fn parts(&mut self) -> Option<(&mut Tensor, bool)> {
        if self.wanted { self.tensor.as_mut().map(|t| (t, self.acc)) } else { None }
    }

    /// If wanted, call `f` with the elements and whether to add to them or to overwrite them all.
    pub fn write<T: Real>(&mut self, f: impl FnOnce(&mut [T], bool)) {
        if let Some((t, acc)) = self.parts() {
            f(t.host_mut(), acc);
        }
    }

    /// If wanted, call `f` with the elements, zeroed on the first contribution, to add to.
    pub fn add<T: Real>(&mut self, f: impl FnOnce(&mut [T])) {
        self.write(|d: &mut [T], acc| {
            if !acc {
                d.fill(T::ZERO);
            }
            f(d);
        });
    }

    /// If wanted, the buffer, zeroed on the first contribution, to add to.
    pub fn zeroed(&mut self) -> Option<&mut Tensor> {
        let (t, acc) = self.parts()?;
        if !acc {
            t.fill(0.0);
        }
        Some(t)
    }

    /// The elements and whether to add to them or to write them all, wanted or not (scratch memory if not): for kernels
    /// that compute all gradients in one pass. `like` is the input that this gradient belongs to.
    pub fn merged<T: Real>(&mut self, cpu: &Cpu, like: &Tensor) -> (&mut [T], bool) {
        let acc = self.tensor.is_some() && self.acc;
        let t = self.tensor.get_or_insert_with(|| cpu.pool().get(T::DTYPE, like.shape()));
        self.acc = true;
        (t.host_mut(), acc)
    }

    /// The elements to add to, wanted or not (scratch memory if not): for kernels that compute all gradients in
    /// one pass. `like` is the input that this gradient belongs to.
    pub fn slice<T: Real>(&mut self, cpu: &Cpu, like: &Tensor) -> &mut [T] {
        let zero = self.tensor.is_none() || !self.acc;
        let t = self.tensor.get_or_insert_with(|| cpu.pool().get(T::DTYPE, like.shape()));
        self.acc = true;
        let d = t.host_mut::<T>();
        if zero {
            d.fill(T::ZERO);
        }
        d
    }
}
