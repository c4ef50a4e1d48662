//! TTT-linear (Sun et al. 2024, arXiv 2407.04620; as in the authors' ttt.py): the state is a linear layer that is trained, by
//! gradient descent in mini-batches, to reconstruct values from keys while it reads.
//!
//! ```text
//! z_s = S'ᵀ k_s + c'                                                     S', c' from before the mini-batch
//! d_s = ∂/∂z_s ½ ‖LN(z_s) − (v_s − k_s)‖²
//! S_t = S' − ρ_t Σ_{s ≤ t} ℓ_s k_s d_sᵀ,  c_t = c' − ρ_t Σ_{s ≤ t} ℓ_s d_s       s and t in one mini-batch
//! o_t = q_t + LN(S_tᵀ q_t + c_t)
//! ```
//!
//! In a mini-batch this is linear attention with values −d: the dual form, which is computed here.

use super::head_first;
use crate::autograd::Var;

/// The layer norm that state and outputs share.
#[derive(Clone, Copy)]
pub struct Norm<'t> {
    /// Weight [H, K]
    pub w: Var<'t>,
    /// Bias [H, K]
    pub b: Var<'t>,
    /// ε
    pub eps: f64,
}

impl<'t> Norm<'t> {
    /// x [B, H, T, K] normalised, and the root that it was divided by.
    fn parts(&self, x: Var<'t>) -> (Var<'t>, Var<'t>) {
        let x = x - x.mean_axis(3, true);
        let root = (x.square().mean_axis(3, true) + self.eps).sqrt();
        (x / root, root)
    }

    fn rows(&self) -> [Var<'t>; 2] {
        let [h, k] = self.w.dims();
        [self.w, self.b].map(|x| x.reshape([h, 1, k]))
    }
}

/// o [B, T, H, K], moving S [B, H, K, K] and c [B, H, K] on: q, k, v [B, T, H, K], lr [B, T, H], row `[R]` for each place of a
/// mini-batch of R tokens.
pub fn read<'t>(qkv: [Var<'t>; 3], lr: Var<'t>, row: Var<'t>, norm: Norm<'t>, state: &mut [Var<'t>; 2]) -> Var<'t> {
    let ([b, t, h, k], size) = (qkv[0].dims(), row.shape().at(0).max(1));
    let ([q, keys, v], [w, bias]) = (qkv.map(head_first), norm.rows());
    let lr = lr.permute([0, 2, 1]).reshape([b, h, t, 1]);
    let [mut s, c] = *state;
    let mut c = c.reshape([b, h, 1, k]);
    let mut all = vec![q.narrow(2, 0, 0)];
    for from in (0..t).step_by(size) {
        let n = size.min(t - from);
        let [q, keys, v, lr] = [q, keys, v, lr].map(|x| x.narrow(2, from, n));
        let row = row.narrow(0, 0, n).reshape([n, 1]);
        let (z, root) = norm.parts(keys.matmul(s) + c);
        let e = w * (w * z + bias - (v - keys));
        let d = lr * (e - e.mean_axis(3, true) - z * (e * z).mean_axis(3, true)) / root;
        let seen = q.matmul(s) + c - row * (q.matmul_t(keys).tril_matmul(d) + d.cumsum(2));
        all.push(q + w * norm.parts(seen).0 + bias);
        let last = row.narrow(0, n - 1, 1);
        (s, c) = (s - last * keys.t_matmul(d), c - last * d.sum_axis(2, true));
    }
    *state = [s, c.reshape([b, h, k])];
    head_first(Var::concat(&all, 2))
}
