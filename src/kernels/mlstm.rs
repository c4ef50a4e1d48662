//! The kernel of [`Mlstm`]. It saves n·q [B, T, H] and Ĉ before each chunk [B, H, T / C, K, V + 1] (on the CPU C and
//! then n, in as many numbers).
//!
//! As in linear attention the normaliser is one more column of values that are all 1: v̂ = [v, 1], Ĉ = [C, n], and the
//! cotangent of Ĉᵀ q is
//!
//! ```text
//! dô = [dh / N, −(dh·h) / N · sign(n·q) where |n·q| > exp(−m), half of that where they are equal, else 0]
//! ```
//!
//! On a device (`chunk.cu`) the gates follow from k and q without another product, since ĩ_t only ever appears with
//! k'_t, and a forget gate between a key and a query scales both. With φ_t = ∂/∂ln f_t:
//!
//! ```text
//! ∂/∂ln i_t = k'_t·dk'_t      φ_t = Σ_{u≥t} (q_u·dq_u − k'_u·dk'_u) + Ĉ⁺·dĈ⁺      u up to the chunk's end, Ĉ⁺ there
//! ```
//!
//! The sum starts anew from Ĉ⁺·dĈ⁺ at the end of every chunk, so that rounding does not pile up along the sequence, and
//! from 0 at a step whose f_t is 0, on which nothing before it depends. On the CPU the decay of a chunk has them from the
//! chunk's own products, as in [`super::gated_linear_attention`].
//!
//! Let Γ be the derivative with respect to m_t for fixed Ĉ. The argument of the maximum that won gets Γ less the
//! gradient of the other one, and the step before gets the gradient of l:
//!
//! ```text
//! Γ_T += dm_T      Γ_t += (dh_t·h_t) e^(−m_t) / N_t where e^(−m) > |n·q|, half of that where they are equal
//! l won:  dl_t = Γ_t − k'_t·dk'_t,  dĩ_t = k'_t·dk'_t        ĩ won:  dl_t = φ_t,  dĩ_t = Γ_t − φ_t
//! df̃_t = dl_t σ(−f̃_t)               Γ_{t-1} += dl_t
//! ```
//!
//! Where they are equal, each gets the mean of both cases. φ_t sums over all later steps, and mostly cancels in Γ_t −
//! φ_t: with γ the derivative for fixed Ĉ eᵐ, on which h does not depend but for ε, the same number is
//!
//! ```text
//! dĩ_t = k'_t·dk'_t + γ_t      γ_T += dm_T − Ĉ_T·dĈ_T      γ_t += −ε (dh_t·h_t) / N_t      γ_{t-1} += γ_t if l won
//! ```
//!
//! Where |γ| > |φ|, the first form has more digits and is used.

mod chunk;
mod device;

use crate::{
    autograd::{Grad, In, Kernel, Outs, Value, zeroed},
    kernels::{
        gated_linear_attention,
        heads::{Place, Slot, cotangent_of},
        math::Math,
        rows::exp,
        scan::by_device,
    },
    ops::{heads::Dims, mlstm::Mlstm},
    tensor::{Cpu, Real, Temp, Tensor},
};

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

/// The results of the forward pass, and the cotangents of h, C, n and m.
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
    dq: Slot<'a, T>,
    dk: Slot<'a, T>,
    dv: Slot<'a, T>,
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
    /// The sizes and settings of the products.
    fn products(&self) -> gated_linear_attention::Plan<T> {
        let Plan { dims, chunk, .. } = *self;
        gated_linear_attention::Plan { dims, chunk, scale: T::ONE, eps: Some(self.eps), gates: 1 }
    }

    /// From n·q and m: 1 / N; the derivative of N by |n·q|, which is 1, or 0, or ½ where both terms of N are equal; and
    /// e^(−m) / N. 1 / N is two factors a and b, where a is e^(m/2) and b the rest: e^(−m) is too large for its type
    /// where m is far below 0, and there both terms are multiplied by eᵐ.
    #[inline(always)]
    fn inverse(&self, den: T, m: T) -> (T, T, T, T) {
        let below = m < T::ZERO;
        let e = (if below { T::of(0.5) * m } else { -m }).decay();
        let (half, floor) = if below { (e, T::ONE) } else { (T::ONE, e) };
        let den = half * (half * den.abs());
        let slope = if den == floor { T::of(0.5) } else { T::ZERO };
        let slope = if den > floor { T::ONE } else { slope };
        let all = den.max(floor) + self.eps * (half * half);
        (half, half / all, slope, floor / all)
    }
}

/// 1 / N of every step from n·q and m, in two factors.
#[versions::versions]
fn inverses<T: Math>(p: Plan<T>, den: &[T], m: &[T], a: &mut [T], b: &mut [T]) {
    a.iter_mut().zip(b).zip(den).zip(m).for_each(|(((a, b), &den), &m)| (*a, *b, ..) = p.inverse(den, m));
}

/// The same; n·q is replaced by the derivative of N with respect to it, and the derivative of ln h with respect to m is
/// written.
#[versions::versions]
fn inverses_and_slopes<T: Math>(p: Plan<T>, den: &mut [T], m: &[T], [a, b, by_m]: [&mut [T]; 3]) {
    for ((((a, b), by_m), den), &m) in a.iter_mut().zip(b).zip(by_m).zip(den).zip(m) {
        let (slope, floor);
        (*a, *b, slope, floor) = p.inverse(*den, m);
        *by_m = floor * (T::ONE - slope);
        *den = if *den < T::ZERO {
            -slope
        } else if *den > T::ZERO {
            slope
        } else {
            T::ZERO
        };
    }
}

/// From f̃ to −ln σ(f̃), in its place, and σ(−f̃).
#[versions::versions]
fn forget<T: Math>(f: &mut [T], slope: &mut [T]) {
    for (f, slope) in f.iter_mut().zip(slope) {
        (*f, *slope) = (-*f).softplus_and_slope();
    }
}

/// The gates of one head at every step, [T] each.
struct Gates<'a, T: Real> {
    /// i_t
    i: Temp<'a, T>,
    /// f_t
    f: Temp<'a, T>,
    /// m_t
    m: Temp<'a, T>,
    /// σ(−f̃_t)
    slope: Temp<'a, T>,
    /// The share of l in the maximum: 1 where l won, ½ where l equals ĩ, else 0. The sign of σ(−f̃) could not carry it,
    /// as σ(−f̃) may be 0.
    share: Temp<'a, T>,
}

/// The derivatives by a stabiliser m: Γ for fixed Ĉ, and γ for fixed Ĉ eᵐ.
struct ByM<S> {
    fixed: S,
    scaled: S,
}

impl<'a, T: Math> Gates<'a, T> {
    fn new(cpu: &'a Cpu, t: usize) -> Gates<'a, T> {
        Gates { i: cpu.temp(t), f: cpu.temp(t), m: cpu.temp(t), slope: cpu.temp(t), share: cpu.temp(t) }
    }

    /// Loads the rows of head `i`, and returns the last m.
    fn load(&mut self, d: Dims, x: &Inputs<T>, i: usize) -> T {
        let all = Place { i, t0: 0, n: d.t };
        d.scalars().gather(x.i, all, T::ONE, &mut self.i, 1);
        d.scalars().gather(x.f, all, T::ONE, &mut self.f, 1);
        forget(&mut self.f[..d.t], &mut self.slope[..d.t]);
        let mut m = x.m0[i] + x.w0[i].ln();
        for t in 0..d.t {
            let (input, past) = (self.i[t], m - self.f[t]);
            m = if past >= input { past } else { input };
            let less = if past == input { T::of(0.5) } else { T::ZERO };
            self.share[t] = if past > input { T::ONE } else { less };
            // Until something is written m = −∞, and the weights are 0.
            let from = if m == T::of(f64::NEG_INFINITY) { T::ZERO } else { m };
            (self.i[t], self.f[t], self.m[t]) = (input - from, past - from, m);
        }
        exp(&mut self.i[..d.t]);
        exp(&mut self.f[..d.t]);
        m
    }

    /// Adds the gradients of ĩ and f̃, from ∂/∂ln i, ∂/∂ln f and each step's own part of the derivatives by m (`own`).
    /// `by` are those derivatives behind the last step; Γ before the first step is returned.
    fn back(&self, d: Dims, i: usize, (di, df): (&[T], &[T]), own: ByM<&[T]>, mut by: ByM<T>, g: &mut Grads<T>) -> T {
        for t in (0..d.t).rev() {
            let (at, share) = (d.scalars().at(i, t), self.share[t]);
            by.fixed += own.fixed[t];
            by.scaled += own.scaled[t];
            // A gate whose share is 0 gets 0, even where the gradient is NaN.
            let part = |share: T, x: T| if share > T::ZERO { share * x } else { T::ZERO };
            let won = if by.scaled.abs() > df[t].abs() { by.fixed - df[t] } else { di[t] + by.scaled };
            g.di[at] += part(share, di[t]) + part(T::ONE - share, won);
            by = ByM {
                fixed: part(share, by.fixed - di[t]) + part(T::ONE - share, df[t]),
                scaled: part(share, by.scaled),
            };
            g.df[at] += by.fixed * self.slope[t];
        }
        by.fixed
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

impl Mlstm {
    fn forward_cpu<T: Math>(&self, cpu: &Cpu, x: In, y: &mut [Value]) {
        let (Ok(dims), [h, c, n, m, den, states]) = (Dims::of(x), y) else { return };
        let (h, c, n) = (h.host_mut(), c.host_mut(), n.host_mut());
        let y = Outputs { h, c, n, m: m.host_mut(), den: den.host_mut(), states: states.host_mut() };
        chunk::forward(cpu, self.plan::<T>(dims), &inputs(&x), y);
    }

    fn backward_cpu<T: Math>(&self, cpu: &Cpu, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let [dh, dc, dn, dm] = std::array::from_fn(|i| cotangent_of(&dy[i]));
        let [h, c, n, _, den, states] = std::array::from_fn(|i| y[i].host());
        let y = Saved { h, c, n, den, states, dh, dc, dn, dm };
        let (Ok(dims), [dq, dk, dv, di, df, dc0, dn0, dm0, dw0]) = (Dims::of(x), dx) else { return };
        let state = [&*dc0, &*dn0, &*dm0, &*dw0].into_iter().any(Grad::wanted);
        let d = Grads {
            dq: dq.slot_or_scratch(cpu, &x[0]),
            dk: dk.slot_or_scratch(cpu, &x[1]),
            dv: dv.slot_or_scratch(cpu, &x[2]),
            di: zeroed(di.slot_or_scratch(cpu, &x[3])),
            df: zeroed(df.slot_or_scratch(cpu, &x[4])),
            state,
            dc0: if state { zeroed(dc0.slot_or_scratch(cpu, &x[5])) } else { &mut [] },
            dn0: if state { zeroed(dn0.slot_or_scratch(cpu, &x[6])) } else { &mut [] },
            dm0: if state { zeroed(dm0.slot_or_scratch(cpu, &x[7])) } else { &mut [] },
            dw0: if state { zeroed(dw0.slot_or_scratch(cpu, &x[8])) } else { &mut [] },
        };
        chunk::backward(cpu, self.plan::<T>(dims), &inputs(&x), &y, d);
    }
}

impl Kernel for Mlstm {
    fn saves(&self, x: In) -> Outs {
        let Ok(dims) = Dims::of(x) else { return Outs::default() };
        let chunks = self.plan::<f64>(dims).chunks;
        [x[3].shape(), [dims.b, dims.h, chunks, dims.k, dims.v + 1].into()].into()
    }

    by_device!();
}
