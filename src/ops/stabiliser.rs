//! The stabiliser of exponential gates over a whole sequence, and the logarithms of the gates that it stabilises (Beck
//! et al. 2024, "xLSTM", arXiv 2405.04517, equations 15 to 17), from f = ln σ(f̃) and i = ĩ:
//!
//! ```text
//! l_t = f_t + m_{t-1},  m_t = max(l_t, i_t)
//! log f_t = l_t − m_t,  log i_t = i_t − m_t
//! ```
//!
//! Step s has the weight log i_s + log f_{s+1} + … + log f_t at step t. These terms are at most 0, and of each step the
//! larger is 0. A difference of unstabilised exponents is the same number, but has no digits left if both contain a
//! gate of −1e9.
//!
//! As long as m_t = −∞ nothing was written: both logarithms are −∞.

use crate::{
    autograd::{Candidates, Gen, In, Op, Outs, Var},
    ops::{
        same_dtype,
        words::{insert_axis, maximum, reference},
    },
    tensor::Tensor,
};

/// f and i [.., T], and m before the first step [..], to log f, log i and m [.., T].
pub struct Stabiliser;

impl Op for Stabiliser {
    fn name(&self) -> &'static str {
        "stabiliser"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        let [f, i, m] = [0, 1, 2].map(|j| x[j].shape());
        let fits = f == i && f.dims().split_last().is_some_and(|(_, rest)| rest == m.dims());
        if !fits {
            return Err(format!("f {f}, i {i} and m {m} do not fit: expected [.., T] twice and [..]"));
        }
        same_dtype(self.name(), x)?;
        Ok([f, f, f].into())
    }

    fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
        let (axis, steps) = (x[2].shape().rank(), x[0].shape().last());
        let (mut m, mut all) = (insert_axis(x[2], axis), [vec![], vec![], vec![]]);
        for t in 0..steps {
            let (l, i) = (x[0].narrow(axis, t, 1) + m, x[1].narrow(axis, t, 1));
            m = maximum(&[l, i]);
            let from = reference(m);
            all.iter_mut().zip([l - from, i - from, m]).for_each(|(all, x)| all.push(x));
        }
        let join = |parts: Vec<Var<'t>>| if parts.is_empty() { x[0] } else { Var::concat(&parts, axis) };
        Some(all.map(join).into())
    }

    fn kernels(&self) -> Candidates<'_> {
        self.into()
    }

    /// In some samples gates equal the stabiliser.
    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (b, h, t) = (g.size(3), g.size(3), g.size(9));
        (Stabiliser, vec![g.range([b, h, t], -2.0, -0.1), g.normal([b, h, t]), g.normal([b, h])])
    }
}

/// (log f, log i, m) of [`Stabiliser`].
#[track_caller]
pub fn stabiliser<'t>(f: Var<'t>, i: Var<'t>, m: Var<'t>) -> [Var<'t>; 3] {
    f.tape().apply_many(Stabiliser, [f, i, m])
}
