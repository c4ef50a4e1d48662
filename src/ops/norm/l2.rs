//! x divided by its Euclidean length: the equations are in [`super`].

use crate::{
    autograd::{Candidates, Gen, In, Op, Outs, Var},
    ops::{
        norm::{norm_infer, norm_sample},
        words::maximum,
    },
    tensor::Tensor,
};

/// x divided by its Euclidean length.
pub struct L2Norm {
    /// The least length, or, if `smooth`, what is added to its square.
    pub eps: f64,
    /// Whether the length is √(Σ x² + ε) instead of max(√Σ x², ε).
    pub smooth: bool,
}

impl Op for L2Norm {
    fn name(&self) -> &'static str {
        "l2_norm"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        norm_infer(x)
    }

    fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
        let axis = x[0].shape().rank() - 1;
        let square = x[0].square().sum_axis(axis, true);
        let least = x[0].tape().full(square.shape(), square.dtype(), self.eps * self.eps);
        let length = if self.smooth { square + self.eps } else { maximum(&[least, square]) };
        Some(vec![x[0] / length.sqrt()])
    }

    fn kernels(&self) -> Candidates<'_> {
        self.into()
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        // Without `smooth`, lengths far from eps: short rows and long ones. (One long entry becomes ±1, whose
        // gradient 0 a finite difference can only round.)
        let x = norm_sample(g, 1).remove(0);
        let (smooth, short) = (g.coin(), x.shape().last() == 1 || g.coin());
        if smooth {
            return (L2Norm { eps: g.uniform(0.1, 0.5), smooth }, vec![x]);
        }
        let away = x.to_f64().iter().map(|&x| x + if x < 0.0 { -0.5 } else { 0.5 }).collect::<Vec<f64>>();
        let eps = if short { 100.0 } else { 0.1 };
        (L2Norm { eps, smooth }, vec![Tensor::from_vec(away, x.shape())])
    }
}
