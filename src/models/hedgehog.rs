//! Hedgehog's feature map for linear attention (Zhang et al. 2024, arXiv 2402.04347; as in the authors' lolcats code).
//!
//! ```text
//! φ(x) = [softmax(x W), softmax(−x W)]                                   W one per head
//! ```

use crate::autograd::Var;

/// φ [B, T, H, 2 Q] of x [B, T, H, K] and w [H, K, Q].
pub fn features<'t>(x: Var<'t>, w: Var<'t>) -> Var<'t> {
    let ([b, t, h, k], q) = (x.dims(), w.shape().last());
    let y = x.permute([2, 0, 1, 3]).reshape([h, b * t, k]).matmul(w);
    let y = y.reshape([h, b, t, q]).permute([1, 2, 0, 3]);
    Var::concat(&[y.softmax(), (-y).softmax()], 3)
}
