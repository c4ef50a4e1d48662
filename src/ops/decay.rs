//! Scores that fade from the step of the key to the step that reads, by a gate for each channel or each head:
//!
//! ```text
//! M_ts = Σ_c r_tc k_sc exp(g_{s+1,c} + … + g_{t,c})    for s ≤ t
//! ```
//!
//! As a product of two matrices (r ⊙ e^b) (k ⊙ e^(−b))ᵀ, with b the running sum of g, it would overflow: g ≤ 0, and
//! e^(−b) may be any size. Instead the steps are halved (secondary chunking, Yang et al. 2024, arXiv 2312.06635,
//! section 4, taken to the end): where h is the first step of the second half, what the second half reads of the first
//! is
//!
//! ```text
//! M_ts = Σ_c (r_tc e^{g_h + … + g_t}) (k_sc e^{g_{s+1} + … + g_{h−1}})    for s < h ≤ t
//! ```
//!
//! and each half is treated likewise. No exponent is positive. All halves of one size are one product. Each sum is
//! taken inside its own block, and no two sums are subtracted: a gate that forgets nearly all takes no digits from
//! later ones.

use crate::autograd::Var;

/// What gates over T steps leave.
pub struct Decay<'t, const KINDS: usize> {
    /// M [N, T, T] of each of the rows; what it holds above the diagonal is not to be read.
    pub scores: [Var<'t>; KINDS],
    /// exp(g_1 + … + g_t) [N, T, G]
    pub from_start: Var<'t>,
    /// exp(g_{t+1} + … + g_T) [N, T, G]
    pub to_end: Var<'t>,
    /// exp(g_1 + … + g_T) [N, G, 1], to multiply a state with.
    pub all: Var<'t>,
}

/// x [N 2m, h, C] as m pairs of blocks: the first of each and the second, [N m, h, C].
fn halves(x: Var<'_>) -> [Var<'_>; 2] {
    let [blocks, h, c] = x.dims();
    let pairs = x.reshape([blocks / 2, 2, h, c]);
    [0, 1].map(|i| pairs.narrow(1, i, 1).reshape([blocks / 2, h, c]))
}

/// Rows and keys [N, T, K], T ≥ 1, and gates g ≤ 0 [N, T, G], where G is K or 1.
#[track_caller]
pub fn decay<'t, const KINDS: usize>(rows: [Var<'t>; KINDS], k: Var<'t>, g: Var<'t>) -> Decay<'t, KINDS> {
    let [n, t, _] = k.dims();
    let (tape, dtype, size) = (k.tape(), k.dtype(), t.next_power_of_two());
    let zeros = |shape: [usize; 3]| tape.full(shape, dtype, 0.0);
    // Blocks of one step, after some that hold nothing and forget nothing.
    let blocks = |x: Var<'t>| {
        let c = x.shape().last();
        Var::concat(&[x, zeros([n, size - t, c])], 1).reshape([n * size, 1, c])
    };
    let (rows, k, mut before) = (rows.map(blocks), blocks(k), blocks(g));
    let mut after = zeros(before.dims());
    let mut scores = rows.map(|r| (r * k).sum_axis(2, true));
    let mut h = 1;
    while h < size {
        let count = n * size / h;
        let cut = |x: Var<'t>| halves(x.reshape([count, h, x.shape().last()]));
        let ([past, now], [past_after, now_after]) = (cut(before), cut(after)); // sums within each half
        let (fade, key) = (now.exp(), cut(k)[0] * past_after.exp());
        scores = std::array::from_fn(|i| {
            let ([first, second], across) = (cut(scores[i]), (cut(rows[i])[1] * fade).matmul_t(key));
            let none = zeros([count / 2, h, h]);
            Var::concat(&[Var::concat(&[first, none], 2), Var::concat(&[across, second], 2)], 1)
        });
        let whole = |x: Var<'t>| x.narrow(1, h - 1, 1);
        after = Var::concat(&[past_after + whole(now), now_after], 1);
        before = Var::concat(&[past, now + whole(past)], 1);
        h *= 2;
    }
    let gates = g.shape().last();
    let steps = |x: Var<'t>| x.reshape([n, size, gates]).narrow(1, 0, t).exp();
    let from_start = steps(before);
    Decay {
        scores: scores.map(|p| p.reshape([n, size, size]).narrow(1, 0, t).narrow(2, 0, t)),
        from_start,
        to_end: steps(after),
        all: from_start.narrow(1, t - 1, 1).reshape([n, gates, 1]),
    }
}
