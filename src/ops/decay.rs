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

use crate::{autograd::Var, ops::words::zeros_like};

/// The factors that gates over T steps leave.
pub struct Decay<'t, const KINDS: usize> {
    /// M [N, T, T] for each of the rows. The entries above the diagonal are not to be read.
    pub scores: [Var<'t>; KINDS],
    /// exp(g_1 + … + g_t) [N, T, G]
    pub from_start: Var<'t>,
    /// exp(g_{t+1} + … + g_T) [N, T, G]
    pub to_end: Var<'t>,
    /// exp(g_1 + … + g_T) [N, G, 1], the factor of a state.
    pub all: Var<'t>,
}

/// x [N, T, C] as blocks of one step. Steps of zeros, which write nothing and forget nothing, fill T up to a power of
/// two.
fn blocks(x: Var<'_>) -> Var<'_> {
    let ([n, t, c], size) = (x.dims(), x.shape().at(1).next_power_of_two());
    let none = x.tape().full([n, size - t, c], x.dtype(), 0.0);
    Var::concat(&[x, none], 1).reshape([n * size, 1, c])
}

/// Blocks x [.., .., C] as pairs of blocks of h steps: the first of each pair and the second, [.., h, C].
fn halves(x: Var<'_>, h: usize) -> [Var<'_>; 2] {
    let [blocks, steps, c] = x.dims();
    let count = blocks * steps / h / 2;
    let pairs = x.reshape([count, 2, h, c]);
    [0, 1].map(|i| pairs.narrow(1, i, 1).reshape([count, h, c]))
}

/// The gates g [N, T, G] over 1, 2, 4, … steps, up to all. The results [N, T, G] are exp of the sums from the start up
/// to each step, and exp of the sums from each step to the end. `join(h, now, past)` joins pairs of blocks of h steps:
/// `now` is exp of the sums of the second block up to each step, and `past` is exp of the sums of the first block
/// behind each step.
fn doubled<'t>(g: Var<'t>, mut join: impl FnMut(usize, Var<'t>, Var<'t>)) -> [Var<'t>; 2] {
    let ([n, t, gates], size) = (g.dims(), g.shape().at(1).next_power_of_two());
    let mut before = blocks(g);
    let mut after = zeros_like(before);
    let mut h = 1;
    while h < size {
        let ([past, now], [past_after, now_after]) = (halves(before, h), halves(after, h));
        join(h, now.exp(), past_after.exp());
        let whole = |x: Var<'t>| x.narrow(1, h - 1, 1);
        after = Var::concat(&[past_after + whole(now), now_after], 1);
        before = Var::concat(&[past, now + whole(past)], 1);
        h *= 2;
    }
    [before, after].map(|x| x.reshape([n, size, gates]).narrow(1, 0, t).exp())
}

/// The scores of `rows` with the keys k, both [N, T, K] with T ≥ 1, under gates g ≤ 0 [N, T, G], where G is K or 1.
#[track_caller]
pub fn decay<'t, const KINDS: usize>(rows: [Var<'t>; KINDS], k: Var<'t>, g: Var<'t>) -> Decay<'t, KINDS> {
    let ([n, t, _], gates, size) = (k.dims(), g.shape().last(), k.shape().at(1).next_power_of_two());
    let (rows, k) = (rows.map(blocks), blocks(k));
    let mut scores = rows.map(|r| (r * k).sum_axis(2, true));
    let [from_start, to_end] = doubled(g, |h, now, past| {
        let key = halves(k, h)[0] * past;
        scores = std::array::from_fn(|i| {
            let ([first, second], across) = (halves(scores[i], h), (halves(rows[i], h)[1] * now).matmul_t(key));
            let none = zeros_like(first);
            Var::concat(&[Var::concat(&[first, none], 2), Var::concat(&[across, second], 2)], 1)
        });
    });
    Decay {
        scores: scores.map(|p| p.reshape([n, size, size]).narrow(1, 0, t).narrow(2, 0, t)),
        from_start,
        to_end,
        all: from_start.narrow(1, t - 1, 1).reshape([n, gates, 1]),
    }
}

/// The reads S_tᵀ q_t [N, T, M], and the last S, of a memory whose columns fade: S_t = S_{t-1} diag(exp(g_t)) + k_t
/// v_tᵀ. Each column has its own gate and so its own scores. q, k [N, T, K], v, g ≤ 0 [N, T, M] and S [N, K, M], T ≥ 1.
#[track_caller]
pub fn fading_columns<'t>([q, k, v, g]: [Var<'t>; 4], s: Var<'t>) -> (Var<'t>, Var<'t>) {
    let ([n, t, m], size) = (v.dims(), v.shape().at(1).next_power_of_two());
    let [q_rows, k_rows, v_rows] = [q, k, v].map(blocks);
    let mut read = (q_rows * k_rows).sum_axis(2, true) * v_rows;
    let [from_start, to_end] = doubled(g, |h, now, past| {
        let [first, second] = halves(read, h);
        let across = halves(q_rows, h)[1].matmul_t(halves(k_rows, h)[0]).matmul(past * halves(v_rows, h)[0]);
        read = Var::concat(&[first, second + now * across], 1);
    });
    let read = read.reshape([n, size, m]).narrow(1, 0, t);
    let last = from_start.narrow(1, t - 1, 1) * s + k.t_matmul(to_end * v);
    (read + from_start * q.matmul(s), last)
}
