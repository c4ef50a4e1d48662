//! The affine maps around attention, which several mixers have: to queries, keys and values, and back to the model's
//! width.

use super::{Bound, Init, ModelConfig, P, heads, linear_parts, merge_heads};
use crate::autograd::Var;

/// W_q, W_k and W_v below one another with their biases, and W_o with its bias, for H heads of width K.
pub struct AttentionMaps {
    /// H
    pub h: usize,
    /// K
    pub k: usize,
    qkv: P,
    qkv_bias: P,
    w_o: P,
    b_o: P,
}

impl AttentionMaps {
    /// For the model's width. Biases start at 0.
    pub fn new(c: &ModelConfig, init: &mut Init) -> AttentionMaps {
        let (width, inner) = (c.width, c.inner());
        AttentionMaps {
            h: c.heads,
            k: c.head_dim,
            qkv: init.linear("w_qkv", 3 * inner, width),
            qkv_bias: init.full("b_qkv", [3 * inner], 0.0),
            w_o: init.linear("w_o", width, inner),
            b_o: init.full("b_o", [width], 0.0),
        }
    }

    /// 1 / √K, the factor of a score.
    pub fn scale(&self) -> f64 {
        (self.k as f64).powf(-0.5)
    }

    /// q, k and v, [B, T, H, K] each, of x [B, T, D].
    pub fn project<'t>(&self, p: &Bound<'t>, x: Var<'t>) -> [Var<'t>; 3] {
        linear_parts(x, p[self.qkv], Some(p[self.qkv_bias])).map(|x| heads(x, self.h))
    }

    /// y [B, T, D] of what was read, o [B, T, H, K].
    pub fn output<'t>(&self, p: &Bound<'t>, o: Var<'t>) -> Var<'t> {
        merge_heads(o).linear(p[self.w_o], Some(p[self.b_o]))
    }
}
