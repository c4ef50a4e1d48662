//! The same numbers in another type: y = x, rounded to the nearest. The gradient is dy, rounded likewise.
//!
//! In a model in bf16 it stands where a value that is computed in f32 meets the others.

use super::terms::Terms;
use crate::{
    autograd::{Gen, In, Op, Outs, Var},
    ops::check_real,
    tensor::{DType, Shape, Tensor},
};

/// x in another type.
pub struct Cast(pub DType);

impl Op for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        check_real(&x[0])?;
        if self.0 == DType::I32 {
            return Err(format!("{} of shape {} to i32, expected a type to compute in", x[0].dtype(), x[0].shape()));
        }
        Ok([(x[0].shape(), self.0)].into())
    }

    primitive!();

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let rank = g.below(3);
        let x = g.shape(rank, 40);
        (Cast(DType::F64), vec![g.normal(x)])
    }
}

/// y = x, in another type.
impl Terms for Cast {
    fn terms(&self, _: In, y: Shape, mut term: impl FnMut(usize, usize, usize, f64)) {
        (0..y.len()).for_each(|i| term(i, 0, i, 1.0));
    }
}

impl<'t> Var<'t> {
    /// The same numbers in this type; itself if that is its own.
    #[track_caller]
    pub fn cast(self, dtype: DType) -> Var<'t> {
        if self.dtype() == dtype { self } else { self.tape().apply(Cast(dtype), [self]) }
    }
}
