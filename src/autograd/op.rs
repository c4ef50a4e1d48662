//! Operations: each has output shapes, a value and a derivative on every device, and sample inputs.

use super::{Gen, Var};
use crate::{
    cuda::Arg,
    tensor::{Cpu, Cx, DType, Real, Shape, Tensor},
};
use std::ops::{Deref, DerefMut, Index};

/// One differentiable operation: what it means.
///
/// It is a primitive, with its value and derivative in plain loops, or a formula over other ops. Beside that it may
/// have a [`Kernel`] that computes the same faster. An op without sample inputs for the checks to run on does not
/// compile:
///
/// ```compile_fail
/// # use tapezoo::{autograd::*, tensor::*};
/// struct Forgetful;
/// impl Op for Forgetful {
///     fn name(&self) -> &'static str { "forgetful" }
///     fn infer(&self, x: In) -> Result<Outs, String> { Ok(x[0].shape().into()) }
///     fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> { Some(vec![x[0] * x[0]]) }
/// } // error: not all trait items implemented, missing: `sample`
/// ```
pub trait Op: Send + 'static {
    /// The name in errors, profiles and graphs.
    fn name(&self) -> &'static str;

    /// The shapes and dtypes of the outputs. A shape alone is of the dtype of `x[0]`; other outputs are pairs of both.
    ///
    /// # Errors
    /// When the inputs do not fit together: a sentence with the shapes in it. The tape panics with it, the
    /// op's name and the line of the formula.
    fn infer(&self, x: In) -> Result<Outs, String>;

    /// The primitive, if the op is one.
    fn primitive(&self) -> Option<&dyn Primitive> {
        None
    }

    /// The definition of an op that is no primitive: its results as a formula over other ops. The tape then knows the
    /// derivative as well.
    fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
        let _ = x;
        None
    }

    /// The kernels that compute it faster. The tape takes the first that is switched on and accepts the inputs.
    fn kernels(&self) -> Candidates<'_> {
        Candidates::default()
    }

    /// A random instance with random `f64` inputs (and `i32` indices), sizes of 1 included: what the gradient
    /// check, the device comparison and the benches run on.
    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>)
    where
        Self: Sized;
}

/// A fast way to compute an op on every device. Tests hold it against the op's definition (`tests/kernels.rs`).
pub trait Kernel {
    /// `OP.KERNEL`, where an op has several: in profiles, records and for `--kernels`. The only kernel of an op has the
    /// op's name.
    fn name(&self) -> Option<&'static str> {
        None
    }

    /// Whether it can compute the op of these inputs here, and is meant to.
    fn accepts(&self, x: In, cx: &Cx) -> bool {
        let _ = (x, cx);
        true
    }

    /// Further values that `forward` keeps for `backward`: they stand behind the op's outputs in `y`.
    fn saves(&self, x: In) -> Outs {
        let _ = x;
        Outs::default()
    }

    /// Compute the outputs. Every element of every output must be written: buffers hold old values.
    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]);

    /// Add `dyᵀ ∂y/∂x` into every wanted gradient. `dy[i]` is `None` when output `i` does not matter.
    fn backward(&self, cx: &Cx, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]);
}

/// The kernels of an op, the preferred first.
#[derive(Clone, Copy, Default)]
pub struct Candidates<'a>([Option<&'a dyn Kernel>; 3]);

impl<'a> Candidates<'a> {
    /// Each of them.
    pub fn iter(self) -> impl Iterator<Item = &'a dyn Kernel> {
        self.0.into_iter().flatten()
    }
}

impl<'a, K: Kernel> From<&'a K> for Candidates<'a> {
    fn from(only: &'a K) -> Candidates<'a> {
        Candidates([Some(only), None, None])
    }
}

impl<'a> From<[&'a dyn Kernel; 2]> for Candidates<'a> {
    fn from([first, second]: [&'a dyn Kernel; 2]) -> Candidates<'a> {
        Candidates([Some(first), Some(second), None])
    }
}

impl<'a> From<[&'a dyn Kernel; 3]> for Candidates<'a> {
    fn from(all: [&'a dyn Kernel; 3]) -> Candidates<'a> {
        Candidates(all.map(Some))
    }
}

/// An op that is not made of others: its value and its derivative in plain loops over host memory. It has one output.
pub trait Primitive {
    /// Writes every element of the output `y`.
    fn value(&self, x: In, y: &mut Tensor);

    /// Adds `dyᵀ ∂y/∂x` to every gradient in `dx` that is wanted.
    fn derivative(&self, x: In, dy: &Tensor, dx: &mut [Grad]);
}

/// The most outputs of one op, or values that a kernel saves.
pub const MAX_OUTS: usize = 6;

/// The shapes of outputs, or of the values that a kernel saves, and their dtypes where these are not that of `x[0]`.
#[derive(Clone, Copy, Default)]
pub struct Outs {
    list: [(Shape, Option<DType>); MAX_OUTS],
    len: usize,
}

impl Deref for Outs {
    type Target = [(Shape, Option<DType>)];
    fn deref(&self) -> &[(Shape, Option<DType>)] {
        &self.list[..self.len]
    }
}

impl<const N: usize> From<[(Shape, Option<DType>); N]> for Outs {
    fn from(outs: [(Shape, Option<DType>); N]) -> Outs {
        let mut list = <[(Shape, Option<DType>); MAX_OUTS]>::default();
        list[..N].copy_from_slice(&outs);
        Outs { list, len: N }
    }
}

impl<const N: usize> From<[(Shape, DType); N]> for Outs {
    fn from(outs: [(Shape, DType); N]) -> Outs {
        outs.map(|(shape, dtype)| (shape, Some(dtype))).into()
    }
}

impl<const N: usize> From<[Shape; N]> for Outs {
    fn from(shapes: [Shape; N]) -> Outs {
        shapes.map(|shape| (shape, None)).into()
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
    pub(super) requires_grad: bool,
    /// Whether the buffer is the pool's (an op's output, a constant from `full`, a copy of a tensor from another
    /// device) or the caller's (a leaf or a constant that was on the device already).
    pub(super) pooled: bool,
}

impl Value {
    /// Whether gradients from several ops are added up in a wider type: for a bf16 value in the caller's buffer, as
    /// parameters on the device are.
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

impl From<&Value> for Arg {
    #[track_caller]
    fn from(t: &Value) -> Arg {
        Arg::from(&**t)
    }
}
impl From<&mut Value> for Arg {
    #[track_caller]
    fn from(t: &mut Value) -> Arg {
        Arg::from(&mut **t)
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

    /// If wanted, the elements, and whether to add to them (`true`) or to overwrite them all (`false`).
    pub fn slot<D: Elements + ?Sized>(&mut self) -> Option<(&mut D, bool)> {
        if self.wanted { self.tensor.as_mut().map(|t| (D::of(t), self.acc)) } else { None }
    }

    /// The same, with scratch memory to overwrite if unwanted: for kernels that compute all gradients in one pass.
    /// `like` is the input that this gradient belongs to.
    pub fn slot_or_scratch<D: Elements + ?Sized>(&mut self, cpu: &Cpu, like: &Tensor) -> (&mut D, bool) {
        let acc = self.acc;
        let t = self.tensor.get_or_insert_with(|| cpu.pool().get(like.dtype(), like.shape()));
        (D::of(t), acc)
    }

    /// Where a CUDA kernel writes this gradient (null if nobody wants it), and whether it adds to what is there: two
    /// arguments, `S* dx, int acc`. In the kernel: `if (dx) put(dx + i, v, acc);`
    #[track_caller]
    pub fn target(&mut self) -> (Arg, Arg) {
        match self.slot::<Tensor>() {
            Some((t, acc)) => (Arg::from(t), Arg::from(acc)),
            None => (Arg::Ptr(0), Arg::I32(0)),
        }
    }
}

/// The elements of a slot to add to: zeros, if there was no gradient in it.
pub fn zeroed<D: Elements + ?Sized>((elements, acc): (&mut D, bool)) -> &mut D {
    if !acc {
        elements.zero();
    }
    elements
}

/// A kernel's view of a gradient: the tensor, or its elements in host memory.
pub trait Elements {
    /// The view of this tensor.
    fn of(t: &mut Tensor) -> &mut Self;

    /// Overwrite all with zeros.
    fn zero(&mut self);
}

impl Elements for Tensor {
    fn of(t: &mut Tensor) -> &mut Tensor {
        t
    }

    fn zero(&mut self) {
        self.fill(0.0);
    }
}

impl<T: Real> Elements for [T] {
    fn of(t: &mut Tensor) -> &mut [T] {
        t.host_mut()
    }

    fn zero(&mut self) {
        self.fill(T::ZERO);
    }
}
