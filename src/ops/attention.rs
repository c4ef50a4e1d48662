//! Causal softmax attention, exact and in memory linear in the length (Vaswani et al. 2017; Dao et al. 2022).
//!
//! ```text
//! p_ts = exp(scale q_t·k_s − lse_t) for s <= S − T + t      lse_t = ln Σ_s exp(scale q_t·k_s)
//! o_t = Σ_s p_ts v_s
//!
//! δ_t = do_t·o_t                       dx_ts = p_ts (do_t·v_s − δ_t)
//! dq_t = scale Σ_s dx_ts k_s           dk_s = scale Σ_t dx_ts q_t           dv_s = Σ_t p_ts do_t
//! ```
//!
//! A tile of queries sees its keys at once, so a tile's scores are all that is ever kept of the T × S matrix; the
//! backward pass recomputes them from lse. Keys before the first query (S > T) are a cache.

mod flash;
mod side_by_side;
mod tiles;

use crate::ops::words::{insert, over_time, recall, token};
use crate::{
    autograd::{Gen, Grad, In, Op, Outs, Value, Var},
    ops::{
        heads::{Dims, Heads},
        math::Math,
    },
    tensor::{Cx, DType, Tensor},
    with_real,
};

/// q [B, T, H, K], k [B, S, H, K], v [B, S, H, V] with S >= T → o [B, T, H, V]; saves lse [B, H, T].
pub struct CausalAttention {
    /// Factor of the scores, usually K^-½.
    pub scale: f64,
}

/// Sizes: `d.t` queries and `s` keys.
#[derive(Clone, Copy)]
struct Plan<T> {
    d: Dims,
    s: usize,
    scale: T,
}

impl<T: Math> Plan<T> {
    fn keys(&self) -> Heads {
        Heads { t: self.s, ..self.d.keys() }
    }

    fn values(&self) -> Heads {
        Heads { t: self.s, ..self.d.values() }
    }

    /// The wider of keys and values. Narrow heads are computed side by side, others by matrix products.
    fn width(&self) -> usize {
        self.d.k.max(self.d.v)
    }

    /// The first query that sees key `s`.
    fn first(&self, s: usize) -> usize {
        (s + self.d.t).saturating_sub(self.s)
    }

    /// How many keys query `t` sees.
    fn seen(&self, t: usize) -> usize {
        self.s - self.d.t + t + 1
    }
}

/// What the backward pass reads.
struct Inputs<'a, T> {
    q: &'a [T],
    k: &'a [T],
    v: &'a [T],
    o: &'a [T],
    lse: &'a [T],
    d_o: &'a [T],
}

impl CausalAttention {
    fn plan<T: Math>(&self, x: In) -> Result<Plan<T>, String> {
        if let Some(i) = (1..3).find(|&i| x[i].dtype() != x[0].dtype()) {
            return Err(format!("input {i} is {}, the queries are {}", x[i].dtype(), x[0].dtype()));
        }
        let (sq, sk, sv) = (x[0].shape(), x[1].shape(), x[2].shape());
        let ([b, t, h, k], [_, s, ..], [.., v]): ([_; 4], [_; 4], [_; 4]) = (sq.array()?, sk.array()?, sv.array()?);
        if s < t || sk.dims() != [b, s, h, k] || sv.dims() != [b, s, h, v] {
            return Err(format!(
                "q {sq}, k {sk} and v {sv} do not fit [B, T, H, K], [B, S, H, K], [B, S, H, V], S >= T"
            ));
        }
        Ok(Plan { d: Dims { b, t, h, k, v }, s, scale: T::of(self.scale) })
    }
}

impl Op for CausalAttention {
    fn name(&self) -> &'static str {
        "causal_attention"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        let Dims { b, t, h, k, v } = self.plan::<f64>(x)?.d;
        if k == 0 || v == 0 {
            return Err(format!("heads of width 0: q {}, v {}", x[0].shape(), x[2].shape()));
        }
        // bf16 has too few digits for lse: it is saved as a sum of two.
        let lse = if x[0].dtype() == DType::BF16 { [2 * b, h, t] } else { [b, h, t] };
        Ok(Outs::from([[b, t, h, v].into()]).saving([lse.into()]))
    }

    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => {
                if let (Ok(plan), [o, lse]) = (self.plan::<T>(x), y) {
                    let run = match plan.width() {
                        0..=4 => side_by_side::forward::<T, 4>,
                        5..=side_by_side::WIDEST => side_by_side::forward::<T, { side_by_side::WIDEST }>,
                        _ => tiles::forward,
                    };
                    run(cpu, plan, x[0].host(), x[1].host(), x[2].host(), o.host_mut(), lse.host_mut());
                }
            }),
            Cx::Cuda(cu) => {
                if let Ok(plan) = self.plan::<f64>(x) {
                    flash::forward(cu, plan, x, y);
                }
            }
        }
    }

    fn backward(&self, cx: &Cx, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(g) = &dy[0] else { return };
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => {
                if let (Ok(plan), [dq, dk, dv]) = (self.plan::<T>(x), dx) {
                    let (q, k, v, o) = (x[0].host(), x[1].host(), x[2].host(), y[0].host());
                    let inputs = Inputs { q, k, v, o, lse: y[1].host(), d_o: g.host() };
                    let run = match plan.width() {
                        0..=4 => side_by_side::backward::<T, 4>,
                        5..=side_by_side::WIDEST => side_by_side::backward::<T, { side_by_side::WIDEST }>,
                        _ => tiles::backward,
                    };
                    run(cpu, plan, &inputs, [dq.merged(cpu, &x[0]), dk.merged(cpu, &x[1]), dv.merged(cpu, &x[2])]);
                }
            }),
            Cx::Cuda(cu) => {
                if let Ok(plan) = self.plan::<f64>(x) {
                    flash::backward(cu, plan, x, y, g, dx);
                }
            }
        }
    }

    fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
        let ([b, t, h, _], [_, s, _, v]) = (x[0].dims(), x[2].dims());
        let head_first = |x: Var<'t>| x.permute([0, 2, 1, 3]);
        let o = over_time(t, x[0].tape().full([b, 0, h, v], x[0].dtype(), 0.0), |i| {
            // Keys and values that this query sees.
            let [k, v] = [1, 2].map(|j| head_first(x[j].narrow(1, 0, s - t + i + 1)));
            let scores = self.scale * k.matmul(insert(token(x[0], i), 3)); // [B, H, S, 1]
            recall(v, scores.permute([0, 1, 3, 2]).softmax().permute([0, 1, 3, 2]).sum_axis(3, false))
        });
        Some(vec![o])
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (b, t, h) = (g.size(2), g.size(5), g.size(3));
        let (k, v) = Dims::sample(g);
        let s = t + if g.coin() { g.below(4) } else { 0 };
        let x = vec![g.normal([b, t, h, k]), g.normal([b, s, h, k]), g.normal([b, s, h, v])];
        (CausalAttention { scale: g.uniform(0.3, 1.5) }, x)
    }
}

/// o_t = Σ_s softmax_s(scale q_t·k_s) v_s over the keys s up to step t and, when there are more keys than queries,
/// over the cached ones before them: [B, T, H, V].
#[track_caller]
pub fn causal_attention<'t>(q: Var<'t>, k: Var<'t>, v: Var<'t>, scale: f64) -> Var<'t> {
    q.tape().apply(CausalAttention { scale }, [q, k, v])
}
