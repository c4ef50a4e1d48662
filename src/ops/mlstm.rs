//! The mLSTM's memory (Beck et al. 2024, "xLSTM", arXiv 2405.04517, section 2.3): linear attention with an exponential
//! input gate, a forget gate, a normaliser n and a stabiliser m.
//!
//! ```text
//! l = ln σ(f̃_t) + m_{t-1}      m_t = max(l, ĩ_t)      i_t = exp(ĩ_t − m_t)      f_t = exp(l − m_t)
//! C_t = f_t C_{t-1} + i_t k'_t v_tᵀ      n_t = f_t n_{t-1} + i_t k'_t           k' = k / √K
//! h_t = C_tᵀ q_t / N_t      N_t = max(|n_t·q_t|, exp(−m_t)) + ε
//! ```
//!
//! m₀ is given as m₀ + ln w₀: w₀ = 0 is m₀ = −∞, nothing seen yet. As in linear attention the normaliser is one more
//! column of values that are all 1: v̂ = [v, 1], Ĉ = [C, n], and the cotangent of Ĉᵀ q is
//!
//! ```text
//! dô = [dh / N, −(dh·h) / N · sign(n·q) where |n·q| > exp(−m), else 0]
//! ```
//!
//! The gates follow from k and q without another product, since ĩ_t only ever appears with k'_t, and a forget gate
//! between a key and a query scales both. With φ_t = ∂/∂ln f_t:
//!
//! ```text
//! ∂/∂ln i_t = k'_t·dk'_t      φ_t = Σ_{u≥t} (q_u·dq_u − k'_u·dk'_u) + Ĉ⁺·dĈ⁺      u up to the chunk's end, Ĉ⁺ there
//! ```
//!
//! The sum starts anew from Ĉ⁺·dĈ⁺ at the end of every chunk, so that rounding does not pile up along the sequence.
//!
//! For ε = 0 h does not depend on m. What does is γ, the derivative with respect to m_t for fixed Ĉ eᵐ, which goes to
//! whichever argument of the maximum won:
//!
//! ```text
//! γ_T += dm_T − Ĉ_T·dĈ_T      γ_t += −ε (dh_t·h_t) / N_t
//! l won:  df̃_t = (φ_t + γ_t) σ(−f̃_t),  dĩ_t = k'_t·dk'_t,        γ_{t-1} += γ_t
//! ĩ won:  df̃_t = φ_t σ(−f̃_t),          dĩ_t = k'_t·dk'_t + γ_t
//! ```

mod chunk;
mod device;

use super::{math::Math, same_dtype};
use crate::{
    autograd::{Gen, Grad, In, Op, Outs, Value, Var},
    ops::heads::{Dims, Merged, seed},
    tensor::{Cpu, Cx, Real, Temp, Tensor},
    with_real,
};

/// q, k [B, T, H, K], v [B, T, H, V], i, f [B, T, H] (before their activations), C0 [B, H, K, V], n0 [B, H, K],
/// m0, w0 [B, H] → h [B, T, H, V] and the last C, n, m.
///
/// Saves n·q [B, T, H] and Ĉ before each chunk [B, H, T / C, K, V + 1] (on the CPU C and then n, in as many numbers).
pub struct Mlstm {
    /// Steps to a chunk.
    pub chunk: usize,
    /// ε.
    pub eps: f64,
}

#[derive(Clone, Copy)]
struct Plan<T> {
    dims: Dims,
    /// Steps to a chunk; the last may be shorter.
    chunk: usize,
    /// How many chunks there are.
    chunks: usize,
    /// 1 / √K
    scale: T,
    eps: T,
}

struct Inputs<'a, T> {
    q: &'a [T],
    k: &'a [T],
    v: &'a [T],
    i: &'a [T],
    f: &'a [T],
    c0: &'a [T],
    n0: &'a [T],
    m0: &'a [T],
    w0: &'a [T],
}

struct Outputs<'a, T> {
    h: &'a mut [T],
    c: &'a mut [T],
    n: &'a mut [T],
    m: &'a mut [T],
    den: &'a mut [T],
    states: &'a mut [T],
}

/// What the forward pass computed, and the cotangents of h, C, n and m.
struct Saved<'a, T> {
    h: &'a [T],
    c: &'a [T],
    n: &'a [T],
    den: &'a [T],
    states: &'a [T],
    dh: Option<&'a [T]>,
    dc: Option<&'a [T]>,
    dn: Option<&'a [T]>,
    dm: Option<&'a [T]>,
}

struct Grads<'a, T> {
    dq: Merged<'a, T>,
    dk: Merged<'a, T>,
    dv: Merged<'a, T>,
    di: &'a mut [T],
    df: &'a mut [T],
    /// Whether the gradients of the first state are wanted; if not, there is no memory for them.
    state: bool,
    dc0: &'a mut [T],
    dn0: &'a mut [T],
    dm0: &'a mut [T],
    dw0: &'a mut [T],
}

impl<T: Math> Plan<T> {
    /// N from n·q and m.
    #[inline(always)]
    fn normaliser(&self, den: T, m: T) -> T {
        den.abs().max((-m).exp()) + self.eps
    }
}

/// N of every step from n·q and m.
#[versions::versions]
fn normalisers<T: Math>(p: Plan<T>, den: &[T], m: &[T], y: &mut [T]) {
    y.iter_mut().zip(den).zip(m).for_each(|((y, &den), &m)| *y = p.normaliser(den, m));
}

/// From n·q to the derivative of N with respect to it, in its place.
#[versions::versions]
fn signs<T: Math>(den: &mut [T], m: &[T]) {
    for (den, &m) in den.iter_mut().zip(m) {
        let sign = if *den < T::ZERO { -T::ONE } else { T::ONE };
        *den = if den.abs() > (-m).exp() { sign } else { T::ZERO };
    }
}

/// From f̃ to −ln σ(f̃), in its place, and σ(−f̃).
#[versions::versions]
fn forget<T: Math>(f: &mut [T], slope: &mut [T]) {
    for (f, slope) in f.iter_mut().zip(slope) {
        (*f, *slope) = (-*f).softplus_and_slope();
    }
}

/// x ← eˣ
#[versions::versions]
fn exp<T: Math>(x: &mut [T]) {
    x.iter_mut().for_each(|x| *x = x.exp());
}

/// The gates of one head at every step, [T] each.
struct Gates<'a, T: Real> {
    /// i_t
    i: Temp<'a, T>,
    /// f_t
    f: Temp<'a, T>,
    /// m_t
    m: Temp<'a, T>,
    /// ±σ(−f̃_t): positive where l won.
    slope: Temp<'a, T>,
}

impl<'a, T: Math> Gates<'a, T> {
    fn new(cpu: &'a Cpu, t: usize) -> Gates<'a, T> {
        Gates { i: cpu.temp(t), f: cpu.temp(t), m: cpu.temp(t), slope: cpu.temp(t) }
    }

    /// Those of head `i`. The last m is returned.
    fn load(&mut self, d: Dims, x: &Inputs<T>, i: usize) -> T {
        d.scalars().gather(x.i, i, 0, d.t, T::ONE, &mut self.i, 1);
        d.scalars().gather(x.f, i, 0, d.t, T::ONE, &mut self.f, 1);
        forget(&mut self.f[..d.t], &mut self.slope[..d.t]);
        let mut m = x.m0[i] + x.w0[i].ln();
        for t in 0..d.t {
            let (input, past) = (self.i[t], m - self.f[t]);
            let wins = past >= input;
            m = if wins { past } else { input };
            self.slope[t] = if wins { self.slope[t] } else { -self.slope[t] };
            (self.i[t], self.f[t], self.m[t]) = (input - m, past - m, m);
        }
        exp(&mut self.i[..d.t]);
        exp(&mut self.f[..d.t]);
        m
    }

    /// From ∂/∂ln i, ∂/∂ln f and γ's own share of every step to the gradients of ĩ and f̃; γ comes in from behind the
    /// last step, and what is left of it before the first one is returned.
    fn back(&self, d: Dims, i: usize, (di, df, own): (&[T], &[T], &[T]), mut gamma: T, g: &mut Grads<T>) -> T {
        for t in (0..d.t).rev() {
            let (at, slope) = (d.scalars().at(i, t), self.slope[t]);
            gamma += own[t];
            if slope > T::ZERO {
                g.di[at] += di[t];
                g.df[at] += (df[t] + gamma) * slope;
            } else {
                g.di[at] += di[t] + gamma;
                g.df[at] += df[t] * -slope;
                gamma = T::ZERO;
            }
        }
        gamma
    }
}

impl Mlstm {
    fn plan<T: Real>(&self, dims: Dims) -> Plan<T> {
        let chunk = self.chunk.min(dims.t).max(1);
        let scale = T::of((dims.k as f64).powf(-0.5));
        Plan { dims, chunk, chunks: dims.t.div_ceil(chunk), scale, eps: T::of(self.eps) }
    }
}

fn inputs<'a, T: Real>(x: &'a In) -> Inputs<'a, T> {
    let at = |i: usize| x[i].host::<T>();
    let [q, k, v, i, f, c0, n0, m0, w0] = std::array::from_fn(at);
    Inputs { q, k, v, i, f, c0, n0, m0, w0 }
}

fn forward<T: Math>(cpu: &Cpu, p: Plan<T>, x: In, y: &mut [Value]) {
    if let [h, c, n, m, den, states] = y {
        let (h, c, n) = (h.host_mut(), c.host_mut(), n.host_mut());
        let y = Outputs { h, c, n, m: m.host_mut(), den: den.host_mut(), states: states.host_mut() };
        chunk::forward(cpu, p, &inputs(&x), y);
    }
}

fn backward<T: Math>(cpu: &Cpu, p: Plan<T>, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
    let [dh, dc, dn, dm] = std::array::from_fn(|i| seed(&dy[i]));
    let [h, c, n, _, den, states] = std::array::from_fn(|i| y[i].host());
    let y = Saved { h, c, n, den, states, dh, dc, dn, dm };
    if let [dq, dk, dv, di, df, dc0, dn0, dm0, dw0] = dx {
        let state = [&*dc0, &*dn0, &*dm0, &*dw0].into_iter().any(Grad::wanted);
        let d = Grads {
            dq: dq.merged(cpu, &x[0]),
            dk: dk.merged(cpu, &x[1]),
            dv: dv.merged(cpu, &x[2]),
            di: di.slice(cpu, &x[3]),
            df: df.slice(cpu, &x[4]),
            state,
            dc0: if state { dc0.slice(cpu, &x[5]) } else { &mut [] },
            dn0: if state { dn0.slice(cpu, &x[6]) } else { &mut [] },
            dm0: if state { dm0.slice(cpu, &x[7]) } else { &mut [] },
            dw0: if state { dw0.slice(cpu, &x[8]) } else { &mut [] },
        };
        chunk::backward(cpu, p, &inputs(&x), &y, d);
    }
}

impl Op for Mlstm {
    fn name(&self) -> &'static str {
        "mlstm"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        same_dtype(x, self.in_f32())?;
        let dims = Dims::of(x)?;
        let Dims { b, t, h, k, v } = dims;
        if self.chunk == 0 {
            return Err("a chunk needs at least one step".into());
        }
        Dims::expect(x, 3, "i", &[b, t, h])?;
        Dims::expect(x, 4, "f", &[b, t, h])?;
        Dims::expect(x, 5, "C0", &[b, h, k, v])?;
        Dims::expect(x, 6, "n0", &[b, h, k])?;
        Dims::expect(x, 7, "m0", &[b, h])?;
        Dims::expect(x, 8, "w0", &[b, h])?;
        let chunks = self.plan::<f64>(dims).chunks;
        let y = [x[2].shape(), x[5].shape(), x[6].shape(), x[7].shape()];
        Ok(Outs::from(y).saving([x[3].shape(), [b, h, chunks, k, v + 1].into()]))
    }

    /// The gates, which stand in exponents.
    fn in_f32(&self) -> &'static [usize] {
        &[3, 4]
    }

    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        let Ok(dims) = Dims::of(x) else { return };
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => forward::<T>(cpu, self.plan(dims), x, y)),
            Cx::Cuda(cu) => self.forward_cuda(cu, dims, x, y),
        }
    }

    fn backward(&self, cx: &Cx, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Ok(dims) = Dims::of(x) else { return };
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => backward::<T>(cpu, self.plan(dims), x, y, dy, dx)),
            Cx::Cuda(cu) => self.backward_cuda(cu, dims, x, y, dy, dx),
        }
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (b, t, h) = (g.size(2), g.size(7), g.size(3));
        let (k, v) = Dims::sample(g);
        let op = Mlstm { chunk: g.size(4), eps: g.uniform(0.05, 0.2) };
        let (key, gate) = ([b, t, h, k], [b, t, h]);
        let mut x = vec![g.normal(key), g.normal(key), g.normal([b, t, h, v]), g.normal(gate), g.normal(gate)];
        x.extend([g.normal([b, h, k, v]), g.normal([b, h, k]), g.normal([b, h]), g.range([b, h], 0.5, 1.5)]);
        (op, x)
    }
}

/// The memory (C [B, H, K, V], n [B, H, K], m [B, H]) and the weight of the past w [B, H], which is 0 before the first
/// token and then 1.
#[derive(Clone, Copy)]
pub struct Memory<'t> {
    /// C
    pub c: Var<'t>,
    /// n
    pub n: Var<'t>,
    /// m
    pub m: Var<'t>,
    /// w
    pub w: Var<'t>,
}

/// h [B, T, H, V] of [`Mlstm`], moving the memory on: q, k [B, T, H, K], v [B, T, H, V], i, f [B, T, H].
#[track_caller]
pub fn mlstm<'t>(
    [q, k, v]: [Var<'t>; 3],
    [i, f]: [Var<'t>; 2],
    memory: &mut Memory<'t>,
    eps: f64,
    chunk: usize,
) -> Var<'t> {
    let Memory { c, n, m, w } = *memory;
    let [h, c, n, m] = q.tape().apply_many(Mlstm { chunk, eps }, [q, k, v, i, f, c, n, m, w]);
    if i.shape().at(1) > 0 {
        *memory = Memory { c, n, m, w: q.tape().full(w.shape(), w.dtype(), 1.0) };
    }
    h
}
