//! Functions of one number, applied to every element. Each is one formula with its derivative beside it.
//!
//! The formulas use calls, `+ - * /`, literals and `select`: what Rust and CUDA C read alike. `x` is the input, `y`
//! the output, and the derivative `df` may use both.

use crate::{
    args,
    autograd::{Gen, Grad, In, Op, Outs, Rows, Value, Var},
    cuda::Module,
    tensor::{Cx, DType, Tensor},
};

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident = $Op:ident in $lo:literal..$hi:literal { |$x:ident, $y:ident| f: $f:expr, df: $df:expr })*) => { $(
        $(#[$doc])*
        pub struct $Op;

        const _: () = {
            #[allow(unused)]
            mod k32 {
                use crate::ops::math::m32::*;
                #[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
                pub fn forward(xs: &[f32], ys: &mut [f32]) {
                    for (o, &$x) in ys.iter_mut().zip(xs) { *o = $f }
                }
                #[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
                pub fn backward(xs: &[f32], ys: &[f32], g: &[f32], d: &mut [f32], acc: bool) {
                    if acc {
                        for (((d, &g), &$x), &$y) in d.iter_mut().zip(g).zip(xs).zip(ys) { *d += g * ($df) }
                    } else {
                        for (((d, &g), &$x), &$y) in d.iter_mut().zip(g).zip(xs).zip(ys) { *d = g * ($df) }
                    }
                }
            }
            #[allow(unused)]
            mod k64 {
                use crate::ops::math::m64::*;
                pub fn forward(xs: &[f64], ys: &mut [f64]) {
                    for (o, &$x) in ys.iter_mut().zip(xs) { *o = $f }
                }
                pub fn backward(xs: &[f64], ys: &[f64], g: &[f64], d: &mut [f64], acc: bool) {
                    for (((d, &g), &$x), &$y) in d.iter_mut().zip(g).zip(xs).zip(ys) {
                        *d = g * ($df) + if acc { *d } else { 0.0 }
                    }
                }
            }

            impl Op for $Op {
                fn name(&self) -> &'static str { stringify!($name) }

                fn infer(&self, x: In) -> Result<Outs, String> { Ok(x[0].shape().into()) }

                fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
                    match cx {
                        Cx::Cpu(_) => match x[0].dtype() {
                            DType::F32 => k32::forward(x[0].host(), y[0].host_mut()),
                            _ => k64::forward(x[0].host(), y[0].host_mut()),
                        },
                        Cx::Cuda(cu) => {
                            let n = x[0].len();
                            let kernel = concat!(stringify!($name), "_forward");
                            cu.launch(&MODULE, kernel, x[0].dtype(), cu.elements(n), args![&x[0], &mut y[0], n]);
                        }
                    }
                }

                fn backward(&self, cx: &Cx, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
                    let Some(g) = &dy[0] else { return };
                    match cx {
                        Cx::Cpu(_) => match x[0].dtype() {
                            DType::F32 => dx[0].write(|d, acc| k32::backward(x[0].host(), y[0].host(), g.host(), d, acc)),
                            _ => dx[0].write(|d, acc| k64::backward(x[0].host(), y[0].host(), g.host(), d, acc)),
                        },
                        Cx::Cuda(cu) => {
                            let n = x[0].len();
                            let kernel = concat!(stringify!($name), "_backward");
                            if let Some((d, acc)) = dx[0].parts() {
                                let args = args![&x[0], &y[0], g, d, acc, n];
                                cu.launch(&MODULE, kernel, x[0].dtype(), cu.elements(n), args);
                            }
                        }
                    }
                }

                fn rows(&self) -> Rows { Rows::Alone }

                fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
                    let shape = g.shape(3, 5);
                    ($Op, vec![g.range(shape, $lo, $hi)])
                }
            }
        };

        impl<'t> Var<'t> {
            $(#[$doc])*
            #[track_caller]
            pub fn $name(self) -> Var<'t> { self.tape().apply($Op, [self]) }
        }
    )*

        /// The kernels: each formula once more, as CUDA C.
        pub static MODULE: Module = Module::new("ops/elementwise.cu", &[
            include_str!("elementwise.cu"),
            $(concat!(
                "struct ", stringify!($name), "_ {\n",
                "    static __device__ real f(real ", stringify!($x), ") { return ", stringify!($f), "; }\n",
                "    static __device__ real df(real ", stringify!($x), ", real ", stringify!($y), ") { return ", stringify!($df), "; }\n",
                "};\n",
                "extern \"C\" __global__ void ", stringify!($name), "_forward(const S* x, S* y, i64 n) {\n",
                "    map_forward<", stringify!($name), "_>(x, y, n);\n",
                "}\n",
                "extern \"C\" __global__ void ", stringify!($name), "_backward(const S* x, const S* y, const S* dy, S* dx, int acc, i64 n) {\n",
                "    map_backward<", stringify!($name), "_>(x, y, dy, dx, acc, n);\n",
                "}\n",
            )),*
        ]);
    };
}

unary! {
    /// eˣ
    exp = Exp in -3.0..3.0 { |x, y| f: exp(x), df: y }
    /// ln x
    log = Log in 0.5..3.0 { |x, y| f: log(x), df: 1.0 / x }
    /// eˣ − 1, exact near zero
    expm1 = Expm1 in -2.0..2.0 { |x, y| f: expm1(x), df: exp(x) }
    /// √x
    sqrt = Sqrt in 0.5..3.0 { |x, y| f: sqrt(x), df: 0.5 / y }
    /// x²
    square = Square in -3.0..3.0 { |x, y| f: x * x, df: 2.0 * x }
    /// sin x
    sin = Sin in -7.0..7.0 { |x, y| f: sin(x), df: cos(x) }
    /// cos x
    cos = Cos in -7.0..7.0 { |x, y| f: cos(x), df: -sin(x) }
    /// σ(x) = 1 / (1 + e⁻ˣ)
    sigmoid = Sigmoid in -6.0..6.0 { |x, y| f: sigmoid(x), df: sigmoid_slope(x) }
    /// tanh x
    tanh = Tanh in -4.0..4.0 { |x, y| f: tanh(x), df: tanh_slope(x) }
    /// SiLU (swish): x σ(x)
    silu = Silu in -6.0..6.0 { |x, y| f: silu(x), df: silu_slope(x) }
    /// ln(1 + eˣ), without overflow
    softplus = Softplus in -6.0..6.0 { |x, y| f: softplus(x), df: sigmoid(x) }
    /// elu(x) = x for x > 0, eˣ − 1 otherwise
    elu = Elu in -3.0..3.0 { |x, y| f: select(x > 0.0, x, expm1(x)), df: select(x > 0.0, 1.0, exp(x)) }
    /// φ(x) = elu(x) + 1, the positive feature map of linear attention
    elu1 = Elu1 in -3.0..3.0 { |x, y| f: select(x > 0.0, x + 1.0, exp(x)), df: select(x > 0.0, 1.0, y) }
    /// GELU by its tanh approximation: ½ x (1 + tanh(√(2/π) (x + 0.044715 x³)))
    gelu_tanh = GeluTanh in -3.0..3.0 { |x, y| f: gelu_tanh(x), df: gelu_tanh_slope(x) }
    /// GELU itself: x Φ(x) = ½ x (1 + erf(x / √2))
    gelu = Gelu in -3.0..3.0 { |x, y| f: gelu(x), df: gelu_slope(x) }
}
