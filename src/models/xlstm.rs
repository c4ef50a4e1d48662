//! What sLSTM and mLSTM share (Beck et al. 2024, arXiv 2405.04517, and its reference code, NX-AI/xlstm).

use super::{Bound, Init, P, State, remembered};
use crate::{autograd::Var, ops::block_diagonal::block_diagonal};

pub use crate::ops::words::{LEAST, log_sigmoid, maximum, reference};

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
    pub fn apply<'t>(&self, p: &Bound<'t>, x: Var<'t>) -> Var<'t> {
        BlockDiagonal::together(p, &[(self, x)], 1, None)
    }

    /// N projections of N inputs [B, T, I], to [B, T, N O]: the outputs of each block are cut into `parts` (gates), and
    /// the result is ordered by projection, part and block. The bias has the same order.
    pub fn together<'t>(p: &Bound<'t>, of: &[(&Self, Var<'t>)], parts: usize, bias: Option<Var<'t>>) -> Var<'t> {
        let ([b, t, i], [g, n, _]) = (of[0].1.dims(), p[of[0].0.w].dims());
        let bias = bias.map(|b| b.reshape([of.len() * parts, g, n / parts]));
        let of: Vec<_> = of.iter().map(|(w, x)| (x.reshape([b, t, g, i / g]), p[w.w])).collect();
        block_diagonal(&of, parts, bias).reshape([b, t, of.len() * g * n])
    }
}

/// A causal convolution and SiLU, or SiLU alone.
pub struct Conv {
    filter: Option<(P, P)>, // [D, W] and its bias
    /// W − 1, the number of past inputs that it needs.
    pub window: usize,
}

impl Conv {
    /// Filters of `width`, drawn as torch's `nn.Conv1d` draws them; none if 0.
    pub fn new(init: &mut Init, channels: usize, width: usize) -> Conv {
        let bound = (width.max(1) as f64).powf(-0.5);
        let filter = (width > 0).then(|| {
            let draw = |g: &mut crate::autograd::Gen, _| g.uniform(-bound, bound);
            (init.custom("conv", [channels, width], draw), init.custom("conv_bias", [channels], draw))
        });
        Conv { filter, window: width.saturating_sub(1) }
    }

    /// Whether there is a filter.
    pub fn exists(&self) -> bool {
        self.filter.is_some()
    }

    /// SiLU(conv(x)) of x [B, T, D]; updates the past inputs, entry `at` of the state.
    pub fn apply<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, at: usize) -> Var<'t> {
        let Some((w, bias)) = self.filter else { return x.silu() };
        let past = state.s[at];
        state.s[at] = remembered(past, x);
        x.causal_conv1d(p[w], Some(p[bias]), past).silu()
    }
}

/// LayerNorm of each head: (h − mean) / √(variance + 1e-5), times one weight per unit; h [B, T, H, K] to [B, T, H K], w
/// `[H K]`. A head of one unit has no variance and is only multiplied by its weight.
pub fn head_norm<'t>(h: Var<'t>, w: Var<'t>) -> Var<'t> {
    let [b, t, heads, k] = h.dims();
    let one = h.tape().full([k], h.dtype(), 1.0);
    let h = if k == 1 { h } else { h.layer_norm(one, None, 1e-5) };
    h.reshape([b, t, heads * k]) * w
}
