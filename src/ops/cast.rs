//! The same numbers in another type: y = x, rounded to the nearest. The gradient is dy, rounded likewise.
//!
//! In a model of bf16 this is where a value that is computed in f32 meets the others.

use super::check_real;
use crate::{
    autograd::{Gen, Grad, In, Op, Outs, Primitive, Value, Var},
    tensor::{Cx, DType, Real, Tensor},
    with_real,
};

/// x in another type.
pub struct Cast(pub DType);

/// y (+)= x
fn convert<X: Real, Y: Real>(x: &[X], y: &mut [Y], acc: bool) {
    for (y, &x) in y.iter_mut().zip(x) {
        let x = Y::of(x.to_f64());
        *y = if acc { *y + x } else { x };
    }
}

impl Op for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        check_real(&x[0])?;
        if self.0 == DType::I32 {
            return Err(format!("{} of shape {} to i32, expected a type to compute in", x[0].dtype(), x[0].shape()));
        }
        Ok(Outs::from(x[0].shape()).typed(0..1, self.0))
    }

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
                dx[0].write(|d, acc| convert::<Y, X>(g.host(), d, acc));
            })),
            Cx::Cuda(cu) => {
                if let Some((d, acc)) = dx[0].parts() {
                    cu.gpu().convert(g, d, acc);
                }
            }
        }
    }

    fn primitive(&self) -> Option<&dyn Primitive> {
        Some(self)
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let rank = g.below(3);
        let x = g.shape(rank, 40);
        (Cast(DType::F64), vec![g.normal(x)])
    }
}

impl<'t> Var<'t> {
    /// The same numbers in this type; itself if that is its own.
    #[track_caller]
    pub fn cast(self, dtype: DType) -> Var<'t> {
        if self.dtype() == dtype { self } else { self.tape().apply(Cast(dtype), [self]) }
    }
}
