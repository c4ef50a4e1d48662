//! The kernel of [`LinearActivated`].
//!
//! ```text
//! silu′(z) = σ(z) + silu(z) (1 − σ(z))
//! dglu/da = σ(b),  dglu/db = glu (1 − σ(b))
//! dz = dy f′(z), and dx, dw, db from dz as in [`linear`](super::linear)
//! ```
//!
//! z is the widest value of a layer, so it is not kept where that can be avoided. The CPU keeps f′(z) instead, which costs
//! little where σ is at hand, and computes dz a few rows at a time, while they are in a cache. A device, for which an
//! exponential costs less than memory, keeps z; its kernels are those of Linear, of [`elementwise`](super::elementwise) and of
//! [`glu`](super::glu).

use crate::{
    args,
    autograd::{Grad, In, Kernel, Outs, Value},
    cuda::Cuda,
    kernels::{
        elementwise, glu,
        lanes::L,
        linear::{Seen, backward_cpu, backward_cuda, forward_cpu, forward_cuda, sizes, targets},
        math::Math,
    },
    ops::linear_activated::{Activation, LinearActivated},
    tensor::{Cx, Tensor},
    with_real,
};

impl Activation {
    /// The shape of y if z has this one.
    fn forward_cuda(self, cu: &Cuda, z: &Tensor, y: &mut Tensor) {
        let (n, width, dtype) = (y.len(), y.shape().last(), z.dtype());
        match self {
            Activation::Silu => {
                cu.launch(&elementwise::MODULE, "silu_forward", dtype, cu.elements(n), args![z, y, n]);
            }
            Activation::Glu => cu.launch(&glu::MODULE, "glu_forward", dtype, cu.elements(n), args![z, y, n, width]),
        }
    }

    fn backward_cuda(self, cu: &Cuda, z: &Tensor, y: &Tensor, g: &Tensor, dz: &mut Tensor) {
        let (n, width, dtype) = (y.len(), y.shape().last(), z.dtype());
        let args = args![z, y, g, dz, false, n, width];
        match self {
            Activation::Silu => cu.launch(&elementwise::MODULE, "silu_backward", dtype, cu.elements(n), &args[..6]),
            Activation::Glu => cu.launch(&glu::MODULE, "glu_backward", dtype, cu.elements(n), args),
        }
    }

    /// y = f(z) for rows of `o` numbers of z, and f′(z) takes the place of z.
    fn apply<T: Math>(self, o: usize, z: &mut [T], y: &mut [T]) {
        match self {
            Activation::Silu => silu(z, y),
            Activation::Glu => gated(o / 2, z, y),
        }
    }
}

#[versions::versions]
fn silu<T: Math>(z: &mut [T], y: &mut [T]) {
    y.iter_mut().zip(z).for_each(|(y, z)| (*y, *z) = z.silu_and_slope());
}

/// y = a σ(b), and in place of a and b the derivatives of y.
#[inline(always)]
fn gate<T: Math, const W: usize>(y: &mut [T; W], a: &mut [T; W], b: &mut [T; W]) {
    let (mut gate, mut rest) = ([T::ZERO; W], [T::ZERO; W]);
    for l in 0..W {
        (gate[l], rest[l]) = b[l].sigmoid_and_rest();
    }
    for l in 0..W {
        y[l] = a[l] * gate[l];
        b[l] = y[l] * rest[l];
    }
    *a = gate;
}

/// Of rows of 2 n numbers.
#[versions::versions]
fn gated<T: Math>(n: usize, z: &mut [T], y: &mut [T]) {
    for (z, y) in z.chunks_exact_mut((2 * n).max(1)).zip(y.chunks_exact_mut(n.max(1))) {
        let (a, b) = z.split_at_mut(n);
        let (ys, y) = y.as_chunks_mut::<L>();
        let ((a_s, a), (b_s, b)) = (a.as_chunks_mut::<L>(), b.as_chunks_mut::<L>());
        // Whole vectors: of three slices in one loop the compiler does not see that they lie apart.
        for ((y, a), b) in ys.iter_mut().zip(a_s).zip(b_s) {
            gate(y, a, b);
        }
        for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
            gate(std::array::from_mut(y), std::array::from_mut(a), std::array::from_mut(b));
        }
    }
}

impl Kernel for LinearActivated {
    fn saves(&self, x: In) -> Outs {
        let (x, w) = (x[0].shape(), x[1].shape());
        x.with(x.rank() - 1, w.at(0)).into()
    }

    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        let [y, kept] = y else { return };
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => {
                forward_cpu::<T>(cpu, x, kept.host_mut());
                self.activation.apply::<T>(kept.shape().last(), kept.host_mut(), y.host_mut());
            }),
            Cx::Cuda(cu) => {
                forward_cuda(cu, x, kept);
                self.activation.forward_cuda(cu, kept, y);
            }
        }
    }

    fn backward(&self, cx: &Cx, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let (Some(g), [y, kept]) = (&dy[0], y) else { return };
        match cx {
            Cx::Cpu(cpu) => with_real!(g.dtype(), T => {
                let seen = Seen { x: x[0].host(), w: x[1].host(), g: g.host(), slope: Some(kept.host()) };
                backward_cpu::<T>(cpu, sizes(x[0].shape(), x[1].shape()), seen, targets(dx));
            }),
            Cx::Cuda(cu) => {
                let mut dz = cu.temp(g.dtype(), kept.len());
                self.activation.backward_cuda(cu, kept, y, g, &mut dz);
                backward_cuda(cu, x, &dz, dx);
            }
        }
    }
}
