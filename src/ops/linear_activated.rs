//! y = f(x wᵀ + b), an affine layer and what follows it, of which f is
//!
//! ```text
//! gelu(z) = z σ(u), u = 2 √(2/π) (z + 0.044715 z³)        gelu′(z) = σ(u) + gelu(z) (1 − σ(u)) u′,
//!                                                         u′ = 2 √(2/π) (1 + 0.134145 z²)
//! silu(z) = z σ(z)                                        silu′(z) = σ(z) + silu(z) (1 − σ(z))
//! glu([a, b]) = a ⊙ σ(b), z = [a, b]                      dglu/da = σ(b),  dglu/db = glu (1 − σ(b))
//! z = x wᵀ + b        dz = dy f′(z)        dx, dw, db from dz as in [`linear`](super::linear)
//! ```
//!
//! GELU by its tanh approximation (Hendrycks and Gimpel 2016, arXiv 1606.08415, section 2; ½ (1 + tanh v) = σ(2v)), SiLU
//! of the same paper, the gated linear unit of Dauphin et al. 2017 (arXiv 1612.08083, eq. 1).
//!
//! One op, because z is the widest value of a layer. The CPU keeps f′(z) in its place, which costs little where σ is at
//! hand, and has dz a few rows at a time, while they are in a cache; z as well, where w in panels serves all parts
//! (with AVX2). A device, for which an exponential costs less than memory, keeps z; its kernels are those of Linear, of
//! [`elementwise`] and of [`glu`].

use super::{
    check_real, elementwise,
    gemm::{Mat, Start, gemm_as},
    glu,
    linear::{Seen, backward_cpu, backward_cuda, forward_cuda, panels, rows_cached, sizes, targets},
    math::Math,
    same_dtype,
};
use crate::{
    args,
    autograd::{Gen, Grad, In, Op, Outs, Rows, Value, Var},
    cuda::Cuda,
    tensor::{Cpu, Cx, Shape, Tensor},
    with_real,
};

/// x `[.., I]`, w `[O, I]` and, if `bias`, b `[O]`, to `[.., O]`, or to `[.., O / 2]` where two numbers make one.
pub struct LinearActivated {
    /// Whether there is a third input.
    pub bias: bool,
    /// f
    pub activation: Activation,
}

/// What is made of the product.
#[derive(Clone, Copy, PartialEq)]
pub enum Activation {
    /// GELU, by its approximation with tanh.
    Gelu,
    /// SiLU, also called swish.
    Silu,
    /// The gated linear unit: the first half of a row is gated by the second.
    Glu,
}

impl Activation {
    /// The shape of y if z has this one.
    fn output(self, z: Shape) -> Shape {
        if self == Activation::Glu { z.with(z.rank() - 1, z.last() / 2) } else { z }
    }

    fn forward_cuda(self, cu: &Cuda, z: &Tensor, y: &mut Tensor) {
        let (n, width, dtype) = (y.len(), y.shape().last(), z.dtype());
        let mut each = |kernel| cu.launch(&elementwise::MODULE, kernel, dtype, cu.elements(n), args![z, &mut *y, n]);
        match self {
            Activation::Gelu => each("gelu_tanh_forward"),
            Activation::Silu => each("silu_forward"),
            Activation::Glu => cu.launch(&glu::MODULE, "glu_forward", dtype, cu.elements(n), args![z, y, n, width]),
        }
    }

    fn backward_cuda(self, cu: &Cuda, z: &Tensor, y: &Tensor, g: &Tensor, dz: &mut Tensor) {
        let (n, width, dtype) = (y.len(), y.shape().last(), z.dtype());
        let args = args![z, y, g, dz, false, n, width];
        let each = |kernel| cu.launch(&elementwise::MODULE, kernel, dtype, cu.elements(n), &args[..6]);
        match self {
            Activation::Gelu => each("gelu_tanh_backward"),
            Activation::Silu => each("silu_backward"),
            Activation::Glu => cu.launch(&glu::MODULE, "glu_backward", dtype, cu.elements(n), args),
        }
    }

    /// y = f(z) for rows of `o` numbers of z, and f′(z) takes the place of z.
    fn apply<T: Math>(self, o: usize, z: &mut [T], y: &mut [T]) {
        match self {
            Activation::Gelu => gelu(z, y),
            Activation::Silu => silu(z, y),
            Activation::Glu => gated(o / 2, z, y),
        }
    }
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn gelu<T: Math>(z: &mut [T], y: &mut [T]) {
    y.iter_mut().zip(z).for_each(|(y, z)| (*y, *z) = z.gelu_and_slope());
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn silu<T: Math>(z: &mut [T], y: &mut [T]) {
    y.iter_mut().zip(z).for_each(|(y, z)| (*y, *z) = z.silu_and_slope());
}

/// Of rows of 2 n numbers.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn gated<T: Math>(n: usize, z: &mut [T], y: &mut [T]) {
    for (z, y) in z.chunks_exact_mut((2 * n).max(1)).zip(y.chunks_exact_mut(n.max(1))) {
        let (a, b) = z.split_at_mut(n);
        for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
            let (gate, rest) = b.sigmoid_and_rest();
            *y = *a * gate;
            (*a, *b) = (gate, *y * rest);
        }
    }
}

impl LinearActivated {
    fn forward_cpu<T: Math>(&self, cpu: &Cpu, x: In, y: &mut [T], kept: &mut [T]) {
        let sizes = sizes(x[0].shape(), x[1].shape());
        let (rows, i, o) = sizes;
        let from = if self.bias { Start::Row(x[2].host::<T>()) } else { Start::Zero };
        let (x, w) = (x[0].host(), (x[1].host(), Mat::new(o, i, i).t()));
        let panels = panels(cpu, sizes, w);
        // Without panels, w would be brought into order for each part anew.
        let chunk = if panels.is_some() { rows_cached(sizes) } else { rows };
        let width = y.len() / rows.max(1);
        let mut start = 0;
        while start < rows {
            // Fewer than eight rows of their own would be summed in another order than all rows at once.
            let left = rows - start;
            let n = if left < chunk + 8 { left } else { chunk };
            let (x, z) = (&x[start * i..][..n * i], &mut kept[start * o..][..n * o]);
            match &panels {
                Some(panels) if n == chunk => panels.product(from, x, z),
                _ => gemm_as(cpu.products(), from, T::ONE, (x, Mat::new(n, i, i)), w, (z, Mat::new(n, o, o))),
            }
            self.activation.apply(o, z, &mut y[start * width..][..n * width]);
            start += n;
        }
    }
}

impl Op for LinearActivated {
    fn name(&self) -> &'static str {
        match self.activation {
            Activation::Gelu => "linear_gelu",
            Activation::Silu => "linear_silu",
            Activation::Glu => "linear_glu",
        }
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        check_real(&x[0])?;
        let (input, w) = (x[0].shape(), x[1].shape());
        if input.rank() < 1 || w.rank() != 2 || w.at(1) != input.last() {
            return Err(format!("x {input} and w {w} do not fit: expected [.., I] and [O, I]"));
        }
        if self.bias && x[2].shape().dims() != [w.at(0)] {
            return Err(format!("w {w} and bias {} do not fit: expected [O, I] and [O]", x[2].shape()));
        }
        if self.activation == Activation::Glu && !w.at(0).is_multiple_of(2) {
            return Err(format!("w {w} gives an odd number of outputs, expected two halves"));
        }
        same_dtype(x, self.in_f32())?;
        let z = input.with(input.rank() - 1, w.at(0));
        Ok(Outs::from(self.activation.output(z)).saving([z]))
    }

    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        let [y, kept] = y else { return };
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => {
                self.forward_cpu::<T>(cpu, x, y.host_mut(), kept.host_mut());
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

    fn rows(&self) -> Rows {
        Rows::Alone
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let activation = [Activation::Gelu, Activation::Silu, Activation::Glu][g.below(3)];
        let (i, o, outer, bias) = (g.size(5), g.size(5), g.shape(2, 4), g.coin());
        let o = if activation == Activation::Glu { 2 * o } else { o };
        let mut x = vec![g.normal([outer.at(0), outer.at(1), i]), g.normal([o, i])];
        if bias {
            x.push(g.normal([o]));
        }
        (LinearActivated { bias, activation }, x)
    }
}

impl<'t> Var<'t> {
    /// gelu(x wᵀ + bias) by the tanh approximation: x `[.., I]`, w `[O, I]`, bias `[O]`, to `[.., O]`.
    #[track_caller]
    pub fn linear_gelu(self, w: Var<'t>, bias: Var<'t>) -> Var<'t> {
        self.tape().apply(LinearActivated { bias: true, activation: Activation::Gelu }, [self, w, bias])
    }

    /// silu(x wᵀ): x `[.., I]`, w `[O, I]`, to `[.., O]`.
    #[track_caller]
    pub fn linear_silu(self, w: Var<'t>) -> Var<'t> {
        self.tape().apply(LinearActivated { bias: false, activation: Activation::Silu }, [self, w])
    }

    /// a ⊙ σ(b) of the halves [a, b] of x wᵀ + bias: x `[.., I]`, w `[2 O, I]`, bias `[2 O]`, to `[.., O]`.
    #[track_caller]
    pub fn linear_glu(self, w: Var<'t>, bias: Var<'t>) -> Var<'t> {
        self.tape().apply(LinearActivated { bias: true, activation: Activation::Glu }, [self, w, bias])
    }
}
