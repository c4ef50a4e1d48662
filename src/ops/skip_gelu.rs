//! What follows an LRU's states (Orvieto et al. 2023, arXiv 2303.06349, eq. 1 and section 3.1): a skip past the memory, and a
//! GELU over both.
//!
//! ```text
//! o = gelu(s), s = y + d ⊙ x          gelu(s) = s σ(2u), u = √(2/π) (s + 0.044715 s³)
//! ```

use crate::{
    autograd::{Candidates, Gen, In, Op, Outs, Var},
    ops::{check_real, same_dtype},
    tensor::Tensor,
};

/// y `[.., N]`, d `[N]` and x as y, to o as y.
pub struct SkipGelu;

impl Op for SkipGelu {
    fn name(&self) -> &'static str {
        "skip_gelu"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        check_real(&x[0])?;
        let [y, d, v] = std::array::from_fn(|i| x[i].shape());
        if y.rank() == 0 || v != y || d.dims() != [y.last()] {
            return Err(format!("y {y}, d {d} and x {v} do not fit: expected [.., N], [N] and [.., N]"));
        }
        same_dtype(self.name(), x)?;
        Ok(y.into())
    }

    fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
        let [y, d, x] = [0, 1, 2].map(|i| x[i]);
        Some(vec![(y + d * x).gelu_tanh()])
    }

    fn kernels(&self) -> Candidates<'_> {
        self.into()
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (b, t, n) = (g.size(3), g.size(60), g.size(40));
        (SkipGelu, vec![g.normal([b, t, n]), g.normal([n]), g.normal([b, t, n])])
    }
}

impl<'t> Var<'t> {
    /// gelu(y + d ⊙ x) of y = self, by the tanh approximation: y and x `[.., N]`, d `[N]`.
    #[track_caller]
    pub fn skip_gelu(self, d: Var<'t>, x: Var<'t>) -> Var<'t> {
        self.tape().apply(SkipGelu, [self, d, x])
    }
}
