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

use crate::{
    autograd::{Gen, Grad, In, Op, Outs, Value, Var},
    ops::{
        heads::{Dims, Heads},
        math::Math,
        matmul::{Mat, gemm},
    },
    tensor::{Cpu, Cx, Tensor},
    with_real,
};

/// q [B, T, H, K], k [B, S, H, K], v [B, S, H, V] with S >= T → o [B, T, H, V]; saves lse [B, H, T].
pub struct CausalAttention {
    /// Factor of the scores, usually K^-½.
    pub scale: f64,
}

/// Queries to a tile.
const TILE: usize = 32;

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

    /// How many keys query `t` sees.
    fn seen(&self, t: usize) -> usize {
        self.s - self.d.t + t + 1
    }
}

fn mat(rows: usize, cols: usize) -> Mat {
    Mat::new(rows, cols, cols)
}

/// x ← exp(x − lse), with lse = ln Σ exp(x) computed from the largest element, and returned.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2"))]
fn softmax<T: Math>(x: &mut [T]) -> T {
    let top = x.iter().fold(x[0], |m, &x| m.max(x));
    x.iter_mut().for_each(|x| *x = (*x - top).exp());
    let sum: T = x.iter().copied().sum();
    let by = T::ONE / sum;
    x.iter_mut().for_each(|x| *x = *x * by);
    top + sum.ln()
}

/// x ← exp(x − lse)
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2"))]
fn again<T: Math>(x: &mut [T], lse: T) {
    x.iter_mut().for_each(|x| *x = (*x - lse).exp());
}

/// g ← p (g − δ)
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2"))]
fn softmax_backward<T: Math>(p: &[T], g: &mut [T], delta: T) {
    g.iter_mut().zip(p).for_each(|(g, &p)| *g = p * (*g - delta));
}

fn forward<T: Math>(cpu: &Cpu, p: Plan<T>, q: &[T], k: &[T], v: &[T], o: &mut [T], lse: &mut [T]) {
    let (d, s, c) = (p.d, p.s, TILE.min(p.d.t));
    let (mut qs, mut ks, mut vs) = (cpu.temp::<T>(c * d.k), cpu.temp::<T>(s * d.k), cpu.temp::<T>(s * d.v));
    let (mut x, mut y) = (cpu.temp::<T>(c * s), cpu.temp::<T>(c * d.v));
    for i in 0..d.b * d.h {
        p.keys().gather(k, i, 0, s, T::ONE, &mut ks, d.k);
        p.values().gather(v, i, 0, s, T::ONE, &mut vs, d.v);
        for t0 in (0..d.t).step_by(TILE) {
            let n = c.min(d.t - t0);
            let seen = p.seen(t0 + n - 1);
            let (mx, mk, mv) = (mat(n, seen), mat(seen, d.k), mat(seen, d.v));
            d.keys().gather(q, i, t0, n, p.scale, &mut qs, d.k);
            gemm(T::ONE, (&qs, mat(n, d.k)), (&ks, mk.t()), (&mut x, mx), false);
            for (t, row) in x.chunks_exact_mut(seen).take(n).enumerate() {
                let (past, future) = row.split_at_mut(p.seen(t0 + t));
                lse[i * d.t + t0 + t] = softmax(past);
                future.fill(T::ZERO);
            }
            gemm(T::ONE, (&x, mx), (&vs, mv), (&mut y, mat(n, d.v)), false);
            d.values().put(&y, d.v, i, t0, n, o);
        }
    }
}

struct Inputs<'a, T> {
    q: &'a [T],
    k: &'a [T],
    v: &'a [T],
    o: &'a [T],
    lse: &'a [T],
    d_o: &'a [T],
}

/// Adds the gradients of q, k and v.
fn backward<T: Math>(cpu: &Cpu, p: Plan<T>, x: &Inputs<T>, dq: &mut [T], dk: &mut [T], dv: &mut [T]) {
    let (d, s, c) = (p.d, p.s, TILE.min(p.d.t));
    let (mut qs, mut ks, mut vs) = (cpu.temp::<T>(c * d.k), cpu.temp::<T>(s * d.k), cpu.temp::<T>(s * d.v));
    let (mut dqs, mut dks, mut dvs) = (cpu.temp::<T>(c * d.k), cpu.temp::<T>(s * d.k), cpu.temp::<T>(s * d.v));
    let (mut w, mut g, mut gy) = (cpu.temp::<T>(c * s), cpu.temp::<T>(c * s), cpu.temp::<T>(c * d.v));
    for i in 0..d.b * d.h {
        p.keys().gather(x.k, i, 0, s, T::ONE, &mut ks, d.k);
        p.values().gather(x.v, i, 0, s, T::ONE, &mut vs, d.v);
        dks.fill(T::ZERO);
        dvs.fill(T::ZERO);
        for t0 in (0..d.t).step_by(TILE) {
            let n = c.min(d.t - t0);
            let seen = p.seen(t0 + n - 1);
            let (mx, mk, mv) = (mat(n, seen), mat(seen, d.k), mat(seen, d.v));
            d.keys().gather(x.q, i, t0, n, p.scale, &mut qs, d.k);
            d.values().gather(x.d_o, i, t0, n, T::ONE, &mut gy, d.v);
            gemm(T::ONE, (&qs, mat(n, d.k)), (&ks, mk.t()), (&mut w, mx), false);
            gemm(T::ONE, (&gy, mat(n, d.v)), (&vs, mv.t()), (&mut g, mx), false);
            for (t, (w, g)) in w.chunks_exact_mut(seen).zip(g.chunks_exact_mut(seen)).take(n).enumerate() {
                let (past, o) = (p.seen(t0 + t), &x.o[d.values().at(i, t0 + t)..][..d.v]);
                let delta = gy[t * d.v..].iter().zip(o).map(|(&g, &o)| g * o).sum();
                again(&mut w[..past], x.lse[i * d.t + t0 + t]);
                softmax_backward(&w[..past], &mut g[..past], delta);
                w[past..].fill(T::ZERO);
                g[past..].fill(T::ZERO);
            }
            gemm(T::ONE, (&g, mx), (&ks, mk), (&mut dqs, mat(n, d.k)), false);
            gemm(T::ONE, (&g, mx.t()), (&qs, mat(n, d.k)), (&mut dks, mk), true);
            gemm(T::ONE, (&w, mx.t()), (&gy, mat(n, d.v)), (&mut dvs, mv), true);
            d.keys().add(&dqs, d.k, p.scale, i, t0, n, dq);
        }
        p.keys().add(&dks, d.k, T::ONE, i, 0, s, dk);
        p.values().add(&dvs, d.v, T::ONE, i, 0, s, dv);
    }
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
        let Dims { b, t, h, v, .. } = self.plan::<f64>(x)?.d;
        Ok(Outs::from([[b, t, h, v].into()]).saving([[b, h, t].into()]))
    }

    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => {
                if let (Ok(plan), [o, lse]) = (self.plan::<T>(x), y) {
                    forward(cpu, plan, x[0].host(), x[1].host(), x[2].host(), o.host_mut(), lse.host_mut());
                }
            }),
        }
    }

    fn backward(&self, cx: &Cx, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(g) = &dy[0] else { return };
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => {
                if let (Ok(plan), [dq, dk, dv]) = (self.plan::<T>(x), dx) {
                    let (q, k, v, o) = (x[0].host(), x[1].host(), x[2].host(), y[0].host());
                    let x_ = Inputs { q, k, v, o, lse: y[1].host(), d_o: g.host() };
                    backward(cpu, plan, &x_, dq.slice(cpu, &x[0]), dk.slice(cpu, &x[1]), dv.slice(cpu, &x[2]));
                }
            }),
        }
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (b, t, h, k, v) = (g.size(2), g.size(5), g.size(3), g.size(5), g.size(5));
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
