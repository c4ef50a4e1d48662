//! The n-gram head (Akyürek et al. 2024, arXiv 2401.12973; as in the authors' ngram.py): what followed the last n tokens, each
//! time that they were there before.
//!
//! ```text
//! o_t = mean of h_s over s < t with x_{s−1−j} = x_{t−j} for j = 0 … n − 1        0 if there is no such s
//! ```

use super::memories::constant;
use crate::autograd::Var;

/// o [B, T, D] of ids [B, T] and h [B, T, D].
pub fn read<'t>(ids: Var<'t>, h: Var<'t>, n: usize) -> Var<'t> {
    let ([b, t, _], ids) = (h.dims(), ids.value().to_host());
    let mut weights = Vec::with_capacity(b * t * t);
    for row in ids.host::<i32>().chunks(t.max(1)) {
        for i in 0..t {
            let same = |s: usize| s < i && s >= n && (0..n).all(|j| row[s - 1 - j] == row[i - j]);
            let found = (0..t).filter(|&s| same(s)).count();
            weights.extend((0..t).map(|s| if same(s) { 1.0 / found as f64 } else { 0.0 }));
        }
    }
    constant(h, weights, &[b, t, t]).tril_matmul(h)
}
