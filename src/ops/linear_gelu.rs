//! y = gelu(x wᵀ + b), the first half of a decoder's MLP, by GELU's tanh approximation (Hendrycks and Gimpel 2016, arXiv
//! 1606.08415, section 2; ½ (1 + tanh v) = σ(2v)):
//!
//! ```text
//! z = x wᵀ + b        y = gelu(z) = z σ(u),  u = 2 √(2/π) (z + 0.044715 z³)
//! dz = dy gelu′(z),  gelu′(z) = σ(u) + z σ(u) (1 − σ(u)) u′,  u′ = 2 √(2/π) (1 + 0.134145 z²)        dx, dw, db from dz
//! ```
//!
//! One op, because z is the widest value of a decoder. The CPU keeps gelu′(z) in its place, which costs little where σ(u)
//! is at hand, and has dz a few rows at a time, while they are in a cache; z as well, where w in panels serves all parts
//! (with AVX2). A device, for which an exponential costs less than memory, keeps z; its kernels are those of Linear and
//! of [`elementwise`].

use super::{
    check_real, elementwise,
    gemm::{Mat, Panels, Products, Start, gemm_as},
    linear::{Seen, backward_cpu, backward_cuda, forward_cuda, rows_cached, sizes, targets},
    math::Math,
    same_dtype,
};
use crate::{
    args,
    autograd::{Gen, Grad, In, Op, Outs, Value, Var},
    tensor::{Cpu, Cx, Tensor},
    with_real,
};

/// x `[.., I]`, w `[O, I]` and b `[O]`, to `[.., O]`; keeps as many numbers.
pub struct LinearGelu;

/// y = gelu(z), and gelu′(z) takes the place of z.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn activate<T: Math>(z: &mut [T], y: &mut [T]) {
    y.iter_mut().zip(z).for_each(|(y, z)| (*y, *z) = z.gelu_and_slope());
}

impl LinearGelu {
    fn forward_cpu<T: Math>(cpu: &Cpu, x: In, y: &mut [T], kept: &mut [T]) {
        let sizes = sizes(x[0].shape(), x[1].shape());
        let ((rows, i, o), chunk) = (sizes, rows_cached(sizes));
        let (x, w, bias) = (x[0].host(), (x[1].host(), Mat::new(o, i, i).t()), Start::Row(x[2].host::<T>()));
        let several = cpu.products() == Products::F32 && rows >= 2 * chunk;
        let panels = if several { Panels::new(cpu, chunk, w) } else { None };
        // Without panels, w would be brought into order for each part anew.
        let chunk = if panels.is_some() { chunk } else { rows };
        let mut start = 0;
        while start < rows {
            // Fewer than eight rows of their own would be summed in another order than all rows at once.
            let left = rows - start;
            let n = if left < chunk + 8 { left } else { chunk };
            let (x, z) = (&x[start * i..][..n * i], &mut kept[start * o..][..n * o]);
            match &panels {
                Some(panels) if n == chunk => panels.product(bias, x, z),
                _ => gemm_as(cpu.products(), bias, T::ONE, (x, Mat::new(n, i, i)), w, (z, Mat::new(n, o, o))),
            }
            activate(z, &mut y[start * o..][..n * o]);
            start += n;
        }
    }
}

impl Op for LinearGelu {
    fn name(&self) -> &'static str {
        "linear_gelu"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        check_real(&x[0])?;
        let (input, w, b) = (x[0].shape(), x[1].shape(), x[2].shape());
        if input.rank() < 1 || w.rank() != 2 || w.at(1) != input.last() || b.dims() != [w.at(0)] {
            return Err(format!("x {input}, w {w} and bias {b} do not fit: expected [.., I], [O, I] and [O]"));
        }
        same_dtype(x, self.in_f32())?;
        let y = input.with(input.rank() - 1, w.at(0));
        Ok(Outs::from(y).saving([y]))
    }

    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        let [y, kept] = y else { return };
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => {
                Self::forward_cpu::<T>(cpu, x, y.host_mut(), kept.host_mut());
            }),
            Cx::Cuda(cu) => {
                forward_cuda(cu, x, kept);
                let n = y.len();
                let args = args![&**kept, &mut **y, n];
                cu.launch(&elementwise::MODULE, "gelu_tanh_forward", x[0].dtype(), cu.elements(n), args);
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
                let (n, dtype) = (g.len(), g.dtype());
                let mut dz = cu.temp(dtype, n);
                let args = args![&**kept, &**y, g, &mut *dz, false, n];
                cu.launch(&elementwise::MODULE, "gelu_tanh_backward", dtype, cu.elements(n), args);
                backward_cuda(cu, x, &dz, dx);
            }
        }
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (i, o, outer) = (g.size(5), g.size(5), g.shape(2, 4));
        (LinearGelu, vec![g.normal([outer.at(0), outer.at(1), i]), g.normal([o, i]), g.normal([o])])
    }
}

impl<'t> Var<'t> {
    /// gelu(x wᵀ + bias) by the tanh approximation: x `[.., I]`, w `[O, I]`, bias `[O]`.
    #[track_caller]
    pub fn linear_gelu(self, w: Var<'t>, bias: Var<'t>) -> Var<'t> {
        self.tape().apply(LinearGelu, [self, w, bias])
    }
}
