//! The code that sLSTM and mLSTM share (Beck et al. 2024, arXiv 2405.04517, and its reference code, NX-AI/xlstm).

use super::{Bound, Init, P};
use crate::{autograd::Var, ops::block_diagonal::block_diagonal};

/// A projection [I] → [O] that is block-diagonal: W [G, O / G, I / G].
pub struct BlockDiagonal {
    w: P,
}

impl BlockDiagonal {
    /// Normal elements of standard deviation `std`, unless the model sets one for all weights.
    pub fn new(init: &mut Init, name: &str, blocks: usize, out: usize, inp: usize, std: f64) -> BlockDiagonal {
        let std = init.std.unwrap_or(std);
        BlockDiagonal { w: init.normal(name, [blocks, out / blocks, inp / blocks], std) }
    }

    /// [B, T, I] to [B, T, O].
    #[track_caller]
    pub fn apply<'t>(&self, p: &Bound<'t>, x: Var<'t>) -> Var<'t> {
        BlockDiagonal::together(p, &[(self, x)], 1, None)
    }

    /// N projections of N inputs [B, T, I], to [B, T, N O]: the outputs of each block are cut into `parts` (gates), and
    /// the result is ordered by projection, part and block. The bias has the same order.
    #[track_caller]
    pub fn together<'t>(p: &Bound<'t>, of: &[(&Self, Var<'t>)], parts: usize, bias: Option<Var<'t>>) -> Var<'t> {
        let ([b, t, i], [g, n, _]) = (of[0].1.dims(), p[of[0].0.w].dims());
        let bias = bias.map(|b| b.reshape([of.len() * parts, g, n / parts]));
        let of: Vec<_> = of.iter().map(|(w, x)| (x.reshape([b, t, g, i / g]), p[w.w])).collect();
        block_diagonal(&of, parts, bias).reshape([b, t, of.len() * g * n])
    }
}

/// LayerNorm of each head: (h − mean) / √(variance + 1e-5), times one weight per unit; h [B, T, H, K] to [B, T, H K], w
/// `[H K]`. A head of one unit has no variance and is only multiplied by its weight.
#[track_caller]
pub fn head_norm<'t>(h: Var<'t>, w: Var<'t>) -> Var<'t> {
    let [b, t, heads, k] = h.dims();
    let one = h.tape().full([k], h.dtype(), 1.0);
    let h = if k == 1 { h } else { h.layer_norm(one, None, 1e-5) };
    h.reshape([b, t, heads * k]) * w
}
