//! One head at a time in tensors of layout [B, T, H, K]: code that the matrix-memory ops share.
//!
//! A head's steps are rows of K elements that lie H K apart. Most kernels copy a chunk of them to contiguous scratch
//! memory, compute there, and add the result back; attention in tiles multiplies them where they lie.

use crate::{
    autograd::{Candidates, Grad, In, Kernel, Op, Outs, Value},
    kernels::{
        gemm::{Mat, gemm},
        math::Math,
        scan::fetch,
    },
    ops::heads::Dims,
    tensor::{Cpu, Cuda, Cx, Real, Tensor},
    with_real,
};
use bytemuck::TransparentWrapper;

/// The largest state that runs step by step.
const SMALL: usize = 256;

/// One of an op's two kernels. With `FIRST` it is the fused kernel, for small sizes on the CPU; otherwise it is the
/// general one, which devices also use.
#[derive(TransparentWrapper)]
#[repr(transparent)]
pub struct Schedule<O, const FIRST: bool>(pub O);

impl<O, const FIRST: bool> Schedule<O, FIRST> {
    /// Whether this kernel is the one for these inputs.
    pub fn fits(x: In, cx: &Cx) -> bool {
        !FIRST || matches!(cx, Cx::Cpu(_)) && Dims::of(x).is_ok_and(|dims| dims.small())
    }
}

/// Both kernels.
pub fn schedules<O: Op>(op: &O) -> Candidates<'_>
where
    Schedule<O, true>: Kernel,
    Schedule<O, false>: Kernel,
{
    [Schedule::<O, true>::wrap_ref(op) as &dyn Kernel, Schedule::<O, false>::wrap_ref(op)].into()
}

/// The two kernels of an op, on the CPU and on a device, as [`Schedule`] runs them.
pub trait Scheduled {
    /// Their names, the fused one first.
    const NAMES: [&'static str; 2];

    /// Whether devices have a kernel for these inputs.
    fn on_devices(&self, x: In) -> bool;

    /// The values that the forward pass saves.
    fn saves(&self, dims: Dims, x: In, fused: bool) -> Outs;

    /// See [`Kernel::forward`].
    fn forward<T: Math>(&self, cpu: &Cpu, dims: Dims, fused: bool, x: In, y: &mut [Value]);

    /// See [`Kernel::backward`].
    fn backward<T: Math>(
        &self,
        cpu: &Cpu,
        dims: Dims,
        fused: bool,
        x: In,
        y: &[Value],
        dy: &[Option<Tensor>],
        dx: &mut [Grad],
    );

    /// See [`Kernel::forward`].
    fn forward_on_device(&self, cu: &Cuda, dims: Dims, x: In, y: &mut [Value]);

    /// See [`Kernel::backward`].
    fn backward_on_device(&self, cu: &Cuda, dims: Dims, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]);
}

impl<O: Scheduled, const FIRST: bool> Kernel for Schedule<O, FIRST> {
    fn name(&self) -> Option<&'static str> {
        Some(O::NAMES[usize::from(!FIRST)])
    }

    fn accepts(&self, x: In, cx: &Cx) -> bool {
        (matches!(cx, Cx::Cpu(_)) || self.0.on_devices(x)) && Self::fits(x, cx)
    }

    fn saves(&self, x: In) -> Outs {
        Dims::of(x).map_or_else(|_| Outs::default(), |dims| self.0.saves(dims, x, FIRST))
    }

    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        let Ok(dims) = Dims::of(x) else { return };
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => self.0.forward::<T>(cpu, dims, FIRST, x, y)),
            Cx::Cuda(cu) => self.0.forward_on_device(cu, dims, x, y),
        }
    }

    fn backward(&self, cx: &Cx, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Ok(dims) = Dims::of(x) else { return };
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => self.0.backward::<T>(cpu, dims, FIRST, x, y, dy, dx)),
            Cx::Cuda(cu) => self.0.backward_on_device(cu, dims, x, y, dy, dx),
        }
    }
}

impl Dims {
    /// Whether states are small enough to be run step by step, many heads side by side, rather than by matrix
    /// products of chunks.
    pub fn small(&self) -> bool {
        self.k * self.v <= SMALL
    }

    /// Rows of one of q, k and their gradients.
    pub fn keys(&self) -> Heads {
        Heads { t: self.t, h: self.h, k: self.k }
    }

    /// Rows of one of v, o and their gradients.
    pub fn values(&self) -> Heads {
        Heads { t: self.t, h: self.h, k: self.v }
    }

    /// Rows of one element: β [B, T, H].
    pub fn scalars(&self) -> Heads {
        Heads { t: self.t, h: self.h, k: 1 }
    }
}

/// A tensor [.., T, H, K].
#[derive(Clone, Copy)]
pub struct Heads {
    /// Steps.
    pub t: usize,
    /// Heads.
    pub h: usize,
    /// Elements of a row.
    pub k: usize,
}

/// Steps `t0..t0 + n` of head `i`; heads are counted through the batch, i = b H + h.
#[derive(Clone, Copy)]
pub struct Place {
    pub i: usize,
    pub t0: usize,
    pub n: usize,
}

impl Heads {
    /// Where the row of step `t` of head `i` begins.
    pub fn at(&self, i: usize, t: usize) -> usize {
        (((i / self.h) * self.t + t) * self.h + i % self.h) * self.k
    }

    /// Fetch at most `n` steps from `t0` on of head `i`, if there is one, into the cache. The rows of a head lie apart,
    /// so no processor fetches them by itself.
    pub fn fetch<T, const N: usize>(&self, x: [&[T]; N], (i, t0): (usize, usize), n: usize) {
        for t in t0..self.t.min(t0 + n) {
            let at = self.at(i, t);
            x.iter().filter_map(|x| x.get(at..at + self.k)).for_each(fetch);
        }
    }

    /// These steps as a matrix, where they lie in x.
    pub fn view<'a, T>(&self, x: &'a [T], Place { i, t0, n }: Place) -> (&'a [T], Mat) {
        (&x[self.at(i, t0)..], Mat::new(n, self.k, self.h * self.k))
    }

    /// The same to write to.
    pub fn view_mut<'a, T>(&self, x: &'a mut [T], Place { i, t0, n }: Place) -> (&'a mut [T], Mat) {
        (&mut x[self.at(i, t0)..], Mat::new(n, self.k, self.h * self.k))
    }

    /// Copy these steps, times `scale`, to rows `stride` apart.
    pub fn gather<T: Real>(&self, x: &[T], Place { i, t0, n }: Place, scale: T, y: &mut [T], stride: usize) {
        if n > 0 {
            gather(&x[self.at(i, t0)..], self.h * self.k, self.k, n, scale, y, stride);
        }
    }

    /// Copy rows, `stride` apart, to these steps.
    pub fn put<T: Real>(&self, x: &[T], stride: usize, Place { i, t0, n }: Place, y: &mut [T]) {
        for t in 0..n {
            let at = self.at(i, t0 + t);
            y[at..at + self.k].copy_from_slice(&x[t * stride..t * stride + self.k]);
        }
    }

    /// Write rows, `stride` apart and times `scale`, to these steps, or add them.
    pub fn scatter<T: Real>(&self, x: &[T], stride: usize, scale: T, Place { i, t0, n }: Place, y: &mut Slot<T>) {
        if n > 0 {
            scatter(x, stride, self.k, n, scale, &mut y.0[self.at(i, t0)..], self.h * self.k, y.1);
        }
    }
}

/// Elements to write, or, if true, to add to. Each element is written once.
pub type Slot<'a, T> = (&'a mut [T], bool);

#[versions::versions]
fn gather<T: Real>(x: &[T], step: usize, k: usize, n: usize, scale: T, y: &mut [T], stride: usize) {
    for t in 0..n {
        let (x, y) = (&x[t * step..t * step + k], &mut y[t * stride..t * stride + k]);
        y.iter_mut().zip(x).for_each(|(y, &x)| *y = scale * x);
    }
}

#[versions::versions]
fn scatter<T: Real>(x: &[T], stride: usize, k: usize, n: usize, scale: T, y: &mut [T], step: usize, acc: bool) {
    for t in 0..n {
        let (x, y) = (&x[t * stride..t * stride + k], &mut y[t * step..t * step + k]);
        if acc {
            y.iter_mut().zip(x).for_each(|(y, &x)| *y += scale * x);
        } else {
            y.iter_mut().zip(x).for_each(|(y, &x)| *y = scale * x);
        }
    }
}

/// Whether a state, or the cotangent of one, is all zeros, as before the first token and behind the last. Products with
/// zeros are skipped ([`gemm_unless_zero`]): if a sequence is one chunk, these are about half of all products.
#[versions::versions]
pub fn is_zero<T: Real>(x: &[T]) -> bool {
    x.chunks(64).all(|x| !x.iter().fold(false, |any, &x| any | (x != T::ZERO)))
}

/// y = alpha a b, or y += alpha a b when `acc`, for y without gaps; unless a or b is `zero`.
pub fn gemm_unless_zero<T: Real>(zero: bool, alpha: T, a: (&[T], Mat), b: (&[T], Mat), y: (&mut [T], Mat), acc: bool) {
    match (zero, acc) {
        (false, _) => gemm(alpha, a, b, y, acc),
        (true, false) => y.0[..y.1.rows * y.1.cols].fill(T::ZERO),
        (true, true) => {}
    }
}

/// Zero the entries above the diagonal of the first `n` rows and columns; with `strict` the diagonal too.
pub fn zero_above_diagonal<T: Real>(a: &mut [T], n: usize, strict: bool) {
    for (i, row) in a.chunks_exact_mut(n.max(1)).take(n).enumerate() {
        row[i + usize::from(!strict)..].fill(T::ZERO);
    }
}

/// The elements of a cotangent, if there is one.
pub fn cotangent_of<T: Real>(dy: &Option<Tensor>) -> Option<&[T]> {
    dy.as_ref().map(|g| g.host())
}
