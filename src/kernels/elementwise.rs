//! The kernels of [`elementwise`](crate::kernels::elementwise): each is one formula with its derivative beside it.
//!
//! The formulas use calls, `+ - * /`, literals and `select`: what Rust and CUDA C read alike. `x` is the input, `y`
//! the output, and the derivative `df` may use both.

use crate::{
    args,
    autograd::{Grad, In, Kernel, Value},
    cuda::Module,
    ops::elementwise::{Cos, Elu, Elu1, Exp, Expm1, Gelu, GeluTanh, Sigmoid, Silu, Sin, Softplus, Sqrt, Tanh, Wrap, *},
    tensor::{Cx, DType, Tensor},
};

macro_rules! kernels {
    ($($name:ident = $Op:ident { |$x:ident, $y:ident| f: $f:expr, df: $df:expr })*) => { $(
        const _: () = {
            #[allow(unused)]
            mod k32 {
                use crate::kernels::math::m32::*;
                #[versions::versions]
                pub fn forward(xs: &[f32], ys: &mut [f32]) {
                    for (o, &$x) in ys.iter_mut().zip(xs) { *o = $f }
                }
                #[versions::versions]
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
                use crate::kernels::math::m64::*;
                pub fn forward(xs: &[f64], ys: &mut [f64]) {
                    for (o, &$x) in ys.iter_mut().zip(xs) { *o = $f }
                }
                pub fn backward(xs: &[f64], ys: &[f64], g: &[f64], d: &mut [f64], acc: bool) {
                    for (((d, &g), &$x), &$y) in d.iter_mut().zip(g).zip(xs).zip(ys) {
                        *d = g * ($df) + if acc { *d } else { 0.0 }
                    }
                }
            }

            impl Kernel for $Op {
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
                            DType::F32 => if let Some((d, acc)) = dx[0].slot() {
                                k32::backward(x[0].host(), y[0].host(), g.host(), d, acc);
                            },
                            _ => if let Some((d, acc)) = dx[0].slot() {
                                k64::backward(x[0].host(), y[0].host(), g.host(), d, acc);
                            },
                        },
                        Cx::Cuda(cu) => {
                            let n = x[0].len();
                            let kernel = concat!(stringify!($name), "_backward");
                            if let Some((d, acc)) = dx[0].slot::<Tensor>() {
                                let args = args![&x[0], &y[0], g, d, acc, n];
                                cu.launch(&MODULE, kernel, x[0].dtype(), cu.elements(n), args);
                            }
                        }
                    }
                }
            }
        };
    )*

        /// The kernels: each formula once more, as CUDA C.
        pub static MODULE: Module = Module::new("kernels/elementwise.cu", &[
            include_str!("elementwise.cu"),
            $(concat!(
                "struct ", stringify!($name), "_ {\n",
                "    static __device__ real f(real ", stringify!($x), ") { return ", stringify!($f), "; }\n",
                "    static __device__ real df(real ", stringify!($x), ", real ", stringify!($y), ") { return ", stringify!($df), "; }\n",
                "};\n",
                "KERNEL(", stringify!($name), "_forward)(const S* x, S* y, i64 n) {\n",
                "    map_forward<", stringify!($name), "_>(x, y, n);\n",
                "}\n",
                "KERNEL(", stringify!($name), "_backward)(const S* x, const S* y, const S* dy, S* dx, int acc, i64 n) {\n",
                "    map_backward<", stringify!($name), "_>(x, y, dy, dx, acc, n);\n",
                "}\n",
            )),*
        ]);
    };
}

kernels! {
    exp = Exp { |x, y| f: exp(x), df: y }
    log = Log { |x, y| f: log(x), df: 1.0 / x }
    expm1 = Expm1 { |x, y| f: expm1(x), df: exp(x) }
    decay_rate = DecayRate { |x, y| f: decay_rate(x), df: y }
    sqrt = Sqrt { |x, y| f: sqrt(x), df: 0.5 / y }
    square = Square { |x, y| f: x * x, df: 2.0 * x }
    wrap = Wrap { |x, y| f: wrap(x), df: 1.0 }
    sin = Sin { |x, y| f: sin(x), df: cos(x) }
    cos = Cos { |x, y| f: cos(x), df: -sin(x) }
    sigmoid = Sigmoid { |x, y| f: sigmoid(x), df: sigmoid_slope(x) }
    tanh = Tanh { |x, y| f: tanh(x), df: tanh_slope(x) }
    silu = Silu { |x, y| f: silu(x), df: silu_slope(x) }
    softplus = Softplus { |x, y| f: softplus(x), df: sigmoid(x) }
    elu = Elu { |x, y| f: select(x > 0.0, x, expm1(x)), df: select(x > 0.0, 1.0, exp(x)) }
    elu1 = Elu1 { |x, y| f: select(x > 0.0, x + 1.0, exp(x)), df: select(x > 0.0, 1.0, y) }
    gelu_tanh = GeluTanh { |x, y| f: gelu_tanh(x), df: gelu_tanh_slope(x) }
    gelu = Gelu { |x, y| f: gelu(x), df: gelu_slope(x) }
}
