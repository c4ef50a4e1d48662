//! The kernel of [`Cast`].

use crate::{
    autograd::{Grad, In, Kernel, Value},
    ops::cast::Cast,
    tensor::{Cx, Real, Tensor},
    with_real,
};

/// y (+)= x
fn convert<X: Real, Y: Real>(x: &[X], y: &mut [Y], acc: bool) {
    for (y, &x) in y.iter_mut().zip(x) {
        let x = Y::of(x.to_f64());
        *y = if acc { *y + x } else { x };
    }
}

impl Kernel for Cast {
    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        match cx {
            Cx::Cpu(_) => with_real!(x[0].dtype(), X => with_real!(self.0, Y => {
                convert::<X, Y>(x[0].host(), y[0].host_mut(), false);
            })),
            Cx::Cuda(cu) => cu.gpu().convert(&x[0], &mut y[0], false),
        }
    }

    fn backward(&self, cx: &Cx, x: In, _: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(g) = &dy[0] else { return };
        match cx {
            Cx::Cpu(_) => with_real!(x[0].dtype(), X => with_real!(g.dtype(), Y => {
                if let Some((d, acc)) = dx[0].slot() {
                    convert::<Y, X>(g.host(), d, acc);
                }
            })),
            Cx::Cuda(cu) => {
                if let Some((d, acc)) = dx[0].slot::<Tensor>() {
                    cu.gpu().convert(g, d, acc);
                }
            }
        }
    }
}
