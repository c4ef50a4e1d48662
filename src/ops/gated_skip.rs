//! The end of a block of Mamba (Gu and Dao 2023, arXiv 2312.00752, figure 3) or of mLSTM (Beck et al. 2024, arXiv
//! 2405.04517, figure 11): a skip past the memory, and a gate over both.
//!
//! ```text
//! o = (y + d ⊙ x) ⊙ silu(z),  silu(z) = z σ(z)
//! ```

use crate::{
    autograd::{Candidates, Gen, In, Op, Outs, Var},
    ops::{check_real, same_dtype},
    tensor::Tensor,
};

/// y `[.., N]`, d `[N]`, x and z as y, to o as y.
pub struct GatedSkip;

impl Op for GatedSkip {
    fn name(&self) -> &'static str {
        "gated_skip"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        check_real(&x[0])?;
        let [y, d, v, z] = std::array::from_fn(|i| x[i].shape());
        if y.rank() == 0 || v != y || z != y || d.dims() != [y.last()] {
            return Err(format!("y {y}, d {d}, x {v} and z {z} do not fit: expected [.., N], [N] and twice [.., N]"));
        }
        same_dtype(self.name(), x)?;
        Ok(y.into())
    }

    fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
        let [y, d, x, z] = [0, 1, 2, 3].map(|i| x[i]);
        Some(vec![(y + d * x) * z.silu()])
    }

    fn kernels(&self) -> Candidates<'_> {
        self.into()
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (b, t, n) = (g.size(3), g.size(60), g.size(40));
        (GatedSkip, vec![g.normal([b, t, n]), g.normal([n]), g.normal([b, t, n]), g.normal([b, t, n])])
    }
}

impl<'t> Var<'t> {
    /// (y + d ⊙ x) ⊙ silu(z) of y = self: y, x and z `[.., N]`, d `[N]`.
    #[track_caller]
    pub fn gated_skip(self, d: Var<'t>, x: Var<'t>, z: Var<'t>) -> Var<'t> {
        self.tape().apply(GatedSkip, [self, d, x, z])
    }
}
