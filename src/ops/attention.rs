//! Causal softmax attention (Vaswani et al. 2017, arXiv 1706.03762).
//!
//! ```text
//! p_ts = exp(scale q_t·k_s − lse_t) for s ≤ S − T + t      lse_t = ln Σ_s exp(scale q_t·k_s)
//! o_t = Σ_s p_ts v_s
//! ```
//!
//! Keys before the first query (S > T) are a cache.
//!
//! A query never sees later keys: masked scores are left out of the sums, not multiplied by 0. So a NaN or an infinity
//! in a later key or value changes no output before it.
//!
//! With a gate for each token and head, g_t = ln f_t, a token counts for less with every gate since (the Forgetting
//! Transformer, Lin et al. 2025, arXiv 2503.02130):
//!
//! ```text
//! p_ts = exp(x_ts − lse_t)      x_ts = scale q_t·k_s + g_{s+1} + … + g_t      lse_t = ln Σ_s exp(x_ts)
//! dg_u = Σ dx_ts over s < u ≤ t
//! ```
//!
//! t counts the tokens of the cache too. Each sum of gates is taken over its own segment, and dg_u is the sum of dx
//! over the pairs (s, t) around u. A difference of two running sums from the start would lose the digits of a short
//! segment behind a closed gate, and be NaN behind −∞. The dx of one query add up to 0, so such a difference would give
//! a closed gate nothing but rounding errors for its dg.

use crate::{
    autograd::{Candidates, Gen, In, Op, Outs, Var},
    kernels::heads::schedules,
    ops::{
        heads::Dims,
        same_dtype,
        words::{insert_axis, over_time, recall, token},
    },
    tensor::{Shape, Tensor},
};

/// The op from q [B, T, H, K], k [B, S, H, K], v [B, S, H, V] with S >= T, and g [B, S, H] if tokens fade, to o [B, T,
/// H, V].
pub struct CausalAttention {
    /// Factor of the scores, usually K^-½.
    pub scale: f64,
}

impl Op for CausalAttention {
    fn name(&self) -> &'static str {
        "causal_attention"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        same_dtype(self.name(), x)?;
        let [sq, sk, sv] = [0, 1, 2].map(|i| x[i].shape());
        let ([b, t, h, k], [_, s, ..], [.., v]): ([_; 4], [_; 4], [_; 4]) = (sq.array()?, sk.array()?, sv.array()?);
        if s < t || sk.dims() != [b, s, h, k] || sv.dims() != [b, s, h, v] {
            return Err(format!(
                "q {sq}, k {sk} and v {sv} do not fit [B, T, H, K], [B, S, H, K], [B, S, H, V], S >= T"
            ));
        }
        if k == 0 || v == 0 {
            return Err(format!("heads of width 0: q {}, v {}", x[0].shape(), x[2].shape()));
        }
        if x.len() > 3 {
            Dims::expect(x, 3, "g", &[b, s, h])?;
        }
        Ok(Shape::from([b, t, h, v]).into())
    }

    fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
        let ([b, t, h, _], [_, s, _, v]) = (x[0].dims(), x[2].dims());
        let head_first = |x: Var<'t>| x.permute([0, 2, 1, 3]);
        let since = x.get(3).map(|g| g.permute([0, 2, 1]).segsum()); // [B, H, S, S]
        let o = over_time(t, x[0].tape().full([b, 0, h, v], x[0].dtype(), 0.0), |i| {
            // Keys and values that this query sees.
            let seen = s - t + i + 1;
            let [k, v] = [1, 2].map(|j| head_first(x[j].narrow(1, 0, seen)));
            let scores = self.scale * k.matmul(insert_axis(token(x[0], i), 3)).reshape([b, h, seen]); // (p_ts)
            let since = since.map(|since| since.narrow(2, seen - 1, 1).narrow(3, 0, seen).reshape([b, h, seen]));
            recall(v, since.map_or(scores, |since| scores + since).softmax()) // (o_t)
        });
        Some(vec![o])
    }

    fn kernels(&self) -> Candidates<'_> {
        schedules(self)
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (b, t, h) = (g.size(2), g.size(5), g.size(3));
        let (k, v) = Dims::sample(g);
        let s = t + if g.coin() { g.below(4) } else { 0 };
        let mut x = vec![g.normal([b, t, h, k]), g.normal([b, s, h, k]), g.normal([b, s, h, v])];
        if g.coin() {
            x.push(g.range([b, s, h], -2.0, 0.0));
        }
        (CausalAttention { scale: g.uniform(0.3, 1.5) }, x)
    }
}

/// o_t = Σ_s softmax_s(scale q_t·k_s) v_s over the keys s up to step t and, when there are more keys than queries,
/// over the cached ones before them: [B, T, H, V].
#[track_caller]
pub fn causal_attention<'t>(q: Var<'t>, k: Var<'t>, v: Var<'t>, scale: f64) -> Var<'t> {
    q.tape().apply(CausalAttention { scale }, [q, k, v])
}

/// [`causal_attention`] in which tokens fade: g [B, S, H] has the logarithm of a gate for each token and head.
#[track_caller]
pub fn fading_attention<'t>([q, k, v, g]: [Var<'t>; 4], scale: f64) -> Var<'t> {
    q.tape().apply(CausalAttention { scale }, [q, k, v, g])
}

/// The sums of the gates between each of the last T tokens and those before it, −∞ for later ones: [B, H, T, S] of g
/// [B, S, H].
#[track_caller]
pub fn since(g: Var<'_>, t: usize) -> Var<'_> {
    let (g, past) = (g.permute([0, 2, 1]), g.shape().at(1) - t);
    let new = g.narrow(2, past, t);
    if past == 0 {
        return new.segsum();
    }
    // The sum from an old token to the end of the cache, plus the sum from there to the new token.
    let [b, h, _] = g.dims();
    let none = g.tape().full([b, h, 1], g.dtype(), 0.0);
    let old = Var::concat(&[g.narrow(2, 1, past - 1), none], 2).cumsum_from_end(2);
    Var::concat(&[insert_axis(old, 2) + insert_axis(new.cumsum(2), 3), new.segsum()], 3)
}
