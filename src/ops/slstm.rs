//! The sLSTM's recurrence over a whole sequence (Beck et al. 2024, "xLSTM", arXiv 2405.04517, section 2.2): an LSTM
//! with exponential gates, a normaliser n, a stabiliser m, and heads that do not see one another. x_t holds the input's
//! share of the gates in the order i, f, z, o; R is one [K, K] matrix a gate and head.
//!
//! ```text
//! ĩ, f̃, z̃, õ = x_t + R h_{t-1}
//! l = ln σ(f̃) + m_{t-1}      m_t = max(l, ĩ)      i = exp(ĩ − m_t)      f = exp(l − m_t)
//! c_t = f c_{t-1} + i tanh z̃      n_t = f n_{t-1} + i      h_t = σ(õ) c_t / n_t
//! ```
//!
//! m₀ is given as m₀ + ln w₀: w₀ = 0 is m₀ = −∞, nothing seen yet.
//!
//! Backwards, with dh, dc, dn what step t + 1 hands back plus what comes from above. h does not depend on m, so that m
//! is held fixed throughout; only the last c, n and m do, and γ is their derivative with respect to m for fixed
//! c eᵐ and n eᵐ. It goes to whichever argument of the maximum won, back to the first step that an input won:
//!
//! ```text
//! γ_T = dm_T − (c_T dc_T + n_T dn_T)
//! dc += dh o / n_t      dn −= dh h_t / n_t      dõ = dh h_t (1 − o)      dz̃ = i dc (1 − z²)
//! dĩ = i (z dc + dn) (+ γ)      dl = f (c_{t-1} dc + n_{t-1} dn) (+ γ)      df̃ = dl σ(−f̃)
//! to step t − 1: f dc, f dn, Rᵀ (dĩ, df̃, dz̃, dõ), and γ if l won
//! ```

mod device;

use super::{
    lstm::{SMALL, product},
    math::Math,
    matmul::{Mat, gemm},
    same_dtype,
    scan::{at, by_lanes, each, fetch, put, put_all, spare, target},
};
use crate::{
    autograd::{Gen, Grad, In, Op, Outs, Value, Var},
    ops::heads::seed,
    tensor::{Cpu, Cx, Real, Tensor},
    with_real,
};

/// x [B, T, 4D] (gates i, f, z, o before the recurrent share), R [4, H, K, K] with H K = D, and h0, c0, n0, m0, w0
/// [B, D] to h [B, T, D] and the last h, c, n, m [B, D].
///
/// Saves i, f, z, o, c, n and ±σ(−f̃) of every step [B, T, 7, D]; the sign is that of l − ĩ.
pub struct SlstmSequence;

/// Sizes: batch, steps, heads, units of a head.
#[derive(Clone, Copy)]
struct Size {
    b: usize,
    t: usize,
    h: usize,
    k: usize,
}

/// What is saved of a step.
const SAVED: usize = 7;

impl Size {
    fn of(x: In) -> Size {
        let (r, shape) = (x[1].shape(), x[0].shape());
        Size { b: shape.at(0), t: shape.at(1), h: r.at(1), k: r.at(2) }
    }

    fn d(self) -> usize {
        self.h * self.k
    }

    /// Where, in a tensor [B, T, n D], step t of sequence b begins for head `h`; row j of it is j D further on.
    fn step(self, n: usize, b: usize, t: usize, h: usize) -> usize {
        (b * self.t + t) * n * self.d() + h * self.k
    }

    /// Where, in a tensor [B, D], head `h` of sequence b is.
    fn state(self, b: usize, h: usize) -> std::ops::Range<usize> {
        let at = b * self.d() + h * self.k;
        at..at + self.k
    }

    /// The same in a tensor [H, B, K].
    fn sorted(self, b: usize, h: usize) -> std::ops::Range<usize> {
        let at = (h * self.b + b) * self.k;
        at..at + self.k
    }

    /// Both, for all heads of all sequences.
    fn each_state(self, mut f: impl FnMut(std::ops::Range<usize>, std::ops::Range<usize>)) {
        (0..self.b).for_each(|b| (0..self.h).for_each(|h| f(self.state(b, h), self.sorted(b, h))));
    }

    /// Have step t of the sequence after `b`, in a tensor [B, T, n D], fetched into the cache.
    #[inline(always)]
    fn fetch_next<T>(self, n: usize, b: usize, t: usize, x: &[T]) {
        if b + 1 < self.b {
            fetch(&x[self.step(n, b + 1, t, 0)..][..n * self.d()]);
        }
    }

    /// R of one head as [K, 4K], for h R.
    fn pack<T: Real>(self, h: usize, r: &[T], y: &mut [T]) {
        let k = self.k;
        for (i, y) in y[..4 * k * k].iter_mut().enumerate() {
            let (row, gate, col) = (i / (4 * k), i / k % 4, i % k);
            *y = r[((gate * self.h + h) * k + row) * k + col];
        }
    }
}

/// y = v m, for v [rows, k] and m [k, n].
fn times<T: Real>(k: usize, n: usize, v: &[T], m: &[T], y: &mut [T]) {
    if k.min(n) <= SMALL {
        return product(k, n, v, m, y);
    }
    let rows = v.len() / k;
    gemm(T::ONE, (v, Mat::new(rows, k, k)), (m, Mat::new(k, n, n)), (y, Mat::new(rows, n, n)), false);
}

/// Where a step of one head of one sequence is read and written. x [4, D], saved [7, D], h [D] begin at the head's units;
/// z [4K] is h R; the states [K] move on.
struct Step<'a, T> {
    x: &'a [T],
    z: &'a [T],
    states: [&'a mut [T]; 4],
    h: &'a mut [T],
    saved: &'a mut [T],
}

/// W units of it.
#[inline(always)]
fn lanes<T: Math, const W: usize>(i: usize, k: usize, d: usize, y: &mut Step<T>) {
    let mut raw = [[T::ZERO; W]; 4];
    for (g, raw) in raw.iter_mut().enumerate() {
        let (x, z): ([T; W], [T; W]) = (at(y.x, g, d, i), at(y.z, g, k, i));
        for l in 0..W {
            raw[l] = x[l] + z[l];
        }
    }
    let [_, c, n, m] = &y.states;
    let (mut c, mut n, mut m): ([T; W], [T; W], [T; W]) = (at(c, 0, k, i), at(n, 0, k, i), at(m, 0, k, i));
    let (mut ig, mut fg, z, o) = (raw[0], raw[1], each(raw[2], T::tanh), each(raw[3], T::sigmoid));
    let (mut h, mut slope) = (o, raw[1]);
    for l in 0..W {
        // −ln σ(f̃) and σ(−f̃).
        let (fade, fading) = (-raw[1][l]).softplus_and_slope();
        let past = m[l] - fade;
        let wins = past >= raw[0][l];
        m[l] = if wins { past } else { raw[0][l] };
        slope[l] = if wins { fading } else { -fading };
        (ig[l], fg[l]) = (raw[0][l] - m[l], past - m[l]);
    }
    (ig, fg) = (each(ig, T::exp), each(fg, T::exp));
    for l in 0..W {
        c[l] = fg[l] * c[l] + ig[l] * z[l];
        n[l] = fg[l] * n[l] + ig[l];
        h[l] = o[l] * c[l] / n[l];
    }
    put(y.h, 0, d, i, h, false);
    y.states.iter_mut().zip([h, c, n, m]).for_each(|(y, v)| put(y, 0, k, i, v, false));
    [ig, fg, z, o, c, n, slope].into_iter().enumerate().for_each(|(j, v)| put(y.saved, j, d, i, v, false));
}

/// Step t of all heads and sequences: z [H, B, 4K] is h R, the states h [H, B, K] and c, n, m [B, D] move on.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn cell<T: Math>(s: Size, t: usize, x: &[T], z: &[T], states: &mut [&mut [T]; 4], y: (&mut [T], &mut [T])) {
    let (k, d) = (s.k, s.d());
    for b in 0..s.b {
        s.fetch_next(4, b, t, x);
        s.fetch_next(SAVED, b, t, y.1);
        for h in 0..s.h {
            let [h_state, c, n, m] = states;
            let (unit, own) = (s.state(b, h), s.sorted(b, h));
            let states = [&mut h_state[own], &mut c[unit.clone()], &mut n[unit.clone()], &mut m[unit]];
            let mut y = Step {
                x: &x[s.step(4, b, t, h)..],
                z: &z[4 * s.sorted(b, h).start..][..4 * k],
                states,
                h: &mut y.0[s.step(1, b, t, h)..],
                saved: &mut y.1[s.step(SAVED, b, t, h)..],
            };
            by_lanes!(k, lanes::<T>(d, &mut y));
        }
    }
}

/// What a step of one head of one sequence backwards reads: what was saved of it, c and n of the step before, and from
/// above, if anything comes.
struct Seen<'a, T> {
    saved: &'a [T],
    before: [&'a [T]; 2],
    dy: Option<&'a [T]>,
}

/// W units of it. The states dh, dc, dn, γ [K] come from step t + 1 and become what step t − 1 gets, but for dh. The
/// gradient of the gates' sums goes to dz [4K], and to dx [4, D] or is added.
#[inline(always)]
fn lanes_back<T: Math, const W: usize>(
    i: usize,
    k: usize,
    d: usize,
    x: &Seen<T>,
    g: &mut [&mut [T]; 4],
    dz: &mut [T],
    (dx, acc): (&mut [T], bool),
) {
    let mut saved = [[T::ZERO; W]; SAVED];
    saved.iter_mut().enumerate().for_each(|(j, y)| *y = at(x.saved, j, d, i));
    let [ig, fg, z, o, c, n, slope] = saved;
    let (mut dh, mut dc, mut dn, mut gamma): ([T; W], [T; W], [T; W], [T; W]) =
        (at(g[0], 0, k, i), at(g[1], 0, k, i), at(g[2], 0, k, i), at(g[3], 0, k, i));
    let (c0, n0): ([T; W], [T; W]) = (at(x.before[0], 0, k, i), at(x.before[1], 0, k, i));
    if let Some(dy) = x.dy {
        let dy: [T; W] = at(dy, 0, k, i);
        for l in 0..W {
            dh[l] += dy[l];
        }
    }
    let mut out = [[T::ZERO; W]; 4];
    for l in 0..W {
        let (per_n, h) = (dh[l] / n[l], o[l] * c[l] / n[l]);
        dc[l] += per_n * o[l];
        dn[l] -= per_n * h;
        let wins = slope[l] > T::ZERO;
        let (to_past, to_input) = if wins { (gamma[l], T::ZERO) } else { (T::ZERO, gamma[l]) };
        let slope = if wins { slope[l] } else { -slope[l] };
        out[0][l] = ig[l] * (z[l] * dc[l] + dn[l]) + to_input;
        out[1][l] = (fg[l] * (c0[l] * dc[l] + n0[l] * dn[l]) + to_past) * slope;
        out[2][l] = ig[l] * dc[l] * (T::ONE - z[l] * z[l]);
        out[3][l] = dh[l] * h * (T::ONE - o[l]);
        (dc[l], dn[l], gamma[l]) = (fg[l] * dc[l], fg[l] * dn[l], to_past);
    }
    g[1..].iter_mut().zip([dc, dn, gamma]).for_each(|(y, v)| put(y, 0, k, i, v, false));
    for (j, &out) in out.iter().enumerate() {
        put(dz, j, k, i, out, false);
        put(dx, j, d, i, out, acc);
    }
}

/// Step t of all heads and sequences backwards: dh [H, B, K] and dc, dn, γ [B, D], dz [H, B, 4K] and dx as in
/// [`lanes_back`]. `first` is c and n before the first step.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn cell_back<T: Math>(
    s: Size,
    t: usize,
    (saved, first, dy): (&[T], [&[T]; 2], Option<&[T]>),
    g: &mut [&mut [T]; 4],
    dz: &mut [T],
    (dx, acc): (&mut [T], bool),
) {
    let (k, d) = (s.k, s.d());
    for b in 0..s.b {
        s.fetch_next(SAVED, b, t.saturating_sub(1), saved);
        s.fetch_next(4, b, t, dx);
        for h in 0..s.h {
            let (unit, own) = (s.state(b, h), s.sorted(b, h));
            let before = match t.checked_sub(1) {
                None => first.map(|x| &x[unit.clone()]),
                Some(t) => [4, 5].map(|j| &saved[s.step(SAVED, b, t, h) + j * d..][..k]),
            };
            let dy = dy.map(|dy| &dy[s.step(1, b, t, h)..]);
            let seen = Seen { saved: &saved[s.step(SAVED, b, t, h)..], before, dy };
            let [dh, dc, dn, gamma] = g;
            let mut g = [&mut dh[own.clone()], &mut dc[unit.clone()], &mut dn[unit.clone()], &mut gamma[unit]];
            let (dz, dx) = (&mut dz[4 * own.start..4 * own.end], &mut dx[s.step(4, b, t, h)..]);
            by_lanes!(k, lanes_back::<T>(d, &seen, &mut g, &mut *dz, (&mut *dx, acc)));
        }
    }
}

/// m + ln w.
fn effective<T: Math>(m: T, w: T) -> T {
    m + w.ln()
}

impl SlstmSequence {
    fn forward_cpu<T: Math>(cpu: &Cpu, x: In, y: &mut [Value]) {
        let [h, h_last, c_last, n_last, m_last, saved] = y else { return };
        let (s, v, r) = (Size::of(x), x[0].host::<T>(), x[1].host::<T>());
        let (h, saved, h_last) = (h.host_mut::<T>(), saved.host_mut::<T>(), h_last.host_mut::<T>());
        // The last states serve as the running ones; h is sorted by heads, for the products.
        let [c, n, m] = [c_last, n_last, m_last].map(|y| y.host_mut::<T>());
        c.copy_from_slice(x[3].host());
        n.copy_from_slice(x[4].host());
        m.iter_mut().zip(x[5].host()).zip(x[6].host()).for_each(|((y, &m), &w)| *y = effective(m, w));
        let (k, rows) = (s.k, s.b * s.k);
        let (mut packed, mut sorted) = (cpu.temp::<T>(s.h * 4 * k * k), cpu.temp::<T>(s.h * rows));
        let mut z = cpu.temp::<T>(s.h * 4 * rows);
        (0..s.h).for_each(|head| s.pack(head, r, &mut packed[head * 4 * k * k..]));
        s.each_state(|unit, own| sorted[own].copy_from_slice(&x[2].host::<T>()[unit]));
        for t in 0..if z.is_empty() { 0 } else { s.t } {
            for head in 0..s.h {
                let (h, r) = (&sorted[head * rows..][..rows], &packed[head * 4 * k * k..][..4 * k * k]);
                times(k, 4 * k, h, r, &mut z[head * 4 * rows..][..4 * rows]);
            }
            cell(s, t, v, &z, &mut [&mut sorted, c, n, m], (h, saved));
        }
        s.each_state(|unit, own| h_last[unit].copy_from_slice(&sorted[own]));
    }

    fn backward_cpu<T: Math>(cpu: &Cpu, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let [gx, gr, initial @ ..] = dx else { return };
        let (s, r, first) = (Size::of(x), x[1].host::<T>(), [x[3].host::<T>(), x[4].host::<T>()]);
        let (h, saved) = (y[0].host::<T>(), y[5].host::<T>());
        let mut sx = spare::<T>(cpu, gx, &x[0]);
        let dx = target(gx, &mut sx);
        let dr = gr.slice::<T>(cpu, &x[1]);
        let (k, rows, all) = (s.k, s.b * s.k, 4 * s.k * s.k);
        let (mut packed, mut turned, mut dp) = (cpu.temp::<T>(all), cpu.temp::<T>(s.h * all), cpu.temp::<T>(s.h * all));
        for (head, turned) in turned.chunks_exact_mut(all.max(1)).enumerate() {
            s.pack(head, r, &mut packed);
            turned.iter_mut().enumerate().for_each(|(i, y)| *y = packed[i % k * 4 * k + i / k]);
        }
        dp.fill(T::ZERO);
        // dh is sorted by heads.
        let mut g = [(); 4].map(|()| cpu.temp::<T>(s.h * rows));
        for (g, dy) in g.iter_mut().zip(&dy[1..]) {
            match seed(dy) {
                Some(dy) => g.copy_from_slice(dy),
                None => g.fill(T::ZERO),
            }
        }
        let [dh, dc, dn, gamma] = &mut g;
        seed(&dy[1]).into_iter().for_each(|dy: &[T]| s.each_state(|unit, own| dh[own].copy_from_slice(&dy[unit])));
        let (c, n) = (y[2].host::<T>(), y[3].host::<T>());
        (0..gamma.len()).for_each(|i| gamma[i] -= c[i] * dc[i] + n[i] * dn[i]);
        let mut dz = cpu.temp::<T>(s.h * 4 * rows);
        for t in (0..if dz.is_empty() { 0 } else { s.t }).rev() {
            let states = &mut [&mut **dh, &mut **dc, &mut **dn, &mut **gamma];
            cell_back(s, t, (saved, first, seed(&dy[0])), states, &mut dz, (&mut *dx.0, dx.1));
            for (head, dz) in dz.chunks_exact(4 * rows).enumerate() {
                times(4 * k, k, dz, &turned[head * all..][..all], &mut dh[head * rows..][..rows]);
                // dR = Σ h_{t-1} dzᵀ over all steps and sequences.
                let (before, step) = match t.checked_sub(1) {
                    None => (&x[2].host::<T>()[head * k..], s.d()),
                    Some(t) => (&h[s.step(1, 0, t, head)..], s.t * s.d()),
                };
                let (m, mz) = (Mat::new(s.b, k, step), Mat::new(s.b, 4 * k, 4 * k));
                let dp = (&mut dp[head * all..][..all], Mat::new(k, 4 * k, 4 * k));
                gemm(T::ONE, (before, m.t()), (dz, mz), dp, true);
            }
        }
        for (i, &dp) in dp.iter().enumerate() {
            let (head, i) = (i / all, i % all);
            dr[((i / k % 4 * s.h + head) * k + i / (4 * k)) * k + i % k] += dp;
        }
        initial_back(cpu, s, x, [dh, dc, dn, gamma], initial);
    }
}

/// The gradients of h0, c0, n0, m0 and w0 from dh [H, B, K] and dc, dn, γ [B, D] before the first step.
fn initial_back<T: Math>(cpu: &Cpu, s: Size, x: In, [dh, dc, dn, gamma]: [&[T]; 4], dx: &mut [Grad]) {
    let ([c0, n0, w0], [gh, gc, gn, gm, gw]) = ([3, 4, 6].map(|i| x[i].host::<T>()), dx) else { return };
    // h does not depend on m: where m0 moves for fixed c0 and n0, c0 eᵐ and n0 eᵐ move.
    let dm = |i: usize| gamma[i] + c0[i] * dc[i] + n0[i] * dn[i];
    let dh_last = gh.slice::<T>(cpu, &x[2]);
    s.each_state(|unit, own| put_all(&mut dh_last[unit], &dh[own], true));
    gc.write(|d, acc| put_all(d, dc, acc));
    gn.write(|d, acc| put_all(d, dn, acc));
    gm.add(|d: &mut [T]| d.iter_mut().enumerate().for_each(|(i, d)| *d += dm(i)));
    // Before the first token nothing depends on w: c and n are zero.
    let of_w = |i: usize| if w0[i] > T::ZERO { dm(i) / w0[i] } else { T::ZERO };
    gw.add(|d: &mut [T]| d.iter_mut().enumerate().for_each(|(i, d)| *d += of_w(i)));
}

impl Op for SlstmSequence {
    fn name(&self) -> &'static str {
        "slstm_sequence"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        let (v, r) = (x[0].shape(), x[1].shape());
        let [b, t, d4] = v.array()?;
        let [four, h, k, k2] = r.array()?;
        let d = h * k;
        if four != 4 || k != k2 || d4 != 4 * d {
            return Err(format!("x {v} and r {r} do not fit: expected [B, T, 4 H K] and [4, H, K, K]"));
        }
        for (i, name) in ["h0", "c0", "n0", "m0", "w0"].into_iter().enumerate() {
            if x[2 + i].shape().dims() != [b, d] {
                return Err(format!("{name} {} should be {:?} for x {v} and r {r}", x[2 + i].shape(), [b, d]));
            }
        }
        same_dtype(x, self.in_f32())?;
        let state = x[2].shape();
        Ok(Outs::from([[b, t, d].into(), state, state, state, state]).saving([[b, t, SAVED, d].into()]))
    }

    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => Self::forward_cpu::<T>(cpu, x, y)),
            Cx::Cuda(cu) => Self::forward_cuda(cu, x, y),
        }
    }

    fn backward(&self, cx: &Cx, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => Self::backward_cpu::<T>(cpu, x, y, dy, dx)),
            Cx::Cuda(cu) => Self::backward_cuda(cu, x, y, dy, dx),
        }
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (b, t, h, k) = (g.size(3), g.size(5), g.size(2), g.size(5));
        let state = [b, h * k];
        let mut x = vec![g.normal([b, t, 4 * h * k]), g.normal([4, h, k, k]), g.normal(state), g.normal(state)];
        // The normaliser is at least 1 from the first token on.
        x.extend([g.range(state, 1.0, 3.0), g.normal(state), g.range(state, 0.5, 1.5)]);
        (SlstmSequence, x)
    }
}

/// h [B, T, D] and the last [h, c, n, m] of [`SlstmSequence`]: x [B, T, 4D], r [4, H, K, K], state = [h, c, n, m, w]
/// before the first step, [B, D] each.
#[track_caller]
pub fn slstm_sequence<'t>(x: Var<'t>, r: Var<'t>, state: [Var<'t>; 5]) -> (Var<'t>, [Var<'t>; 4]) {
    let [h0, c0, n0, m0, w0] = state;
    let [h, last @ ..]: [Var<'t>; 5] = x.tape().apply_many(SlstmSequence, [x, r, h0, c0, n0, m0, w0]);
    (h, last)
}
