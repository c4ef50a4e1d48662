//! The kernel of [`GatedDeltaRule`].

use crate::{
    autograd::{Grad, In, Kernel, Outs, Value},
    kernels::delta::{backward, cuda, forward},
    ops::{delta::GatedDeltaRule, heads::Dims},
    tensor::{Cx, Tensor},
    with_real,
};

impl Kernel for GatedDeltaRule {
    fn saves(&self, x: In) -> Outs {
        Dims::of(x).map_or_else(|_| Outs::default(), |dims| self.0.kept(dims))
    }

    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        let Ok(dims) = Dims::of(x) else { return };
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => forward::<T>(cpu, self.0.plan(dims), x, y)),
            Cx::Cuda(cu) => cuda::forward(&self.0, cu, dims, x, y),
        }
    }

    fn backward(&self, cx: &Cx, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Ok(dims) = Dims::of(x) else { return };
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => backward::<T>(cpu, self.0.plan(dims), x, y, dy, dx)),
            Cx::Cuda(cu) => cuda::backward(&self.0, cu, dims, x, y, dy, dx),
        }
    }
}
