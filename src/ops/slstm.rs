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
    scan::{at, by_lanes, each, put},
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

    /// R of one head as [K, 4K], for h R.
    fn pack<T: Real>(self, h: usize, r: &[T], y: &mut [T]) {
        let k = self.k;
        for (i, y) in y.iter_mut().enumerate() {
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

/// W units of one head of one sequence at one step. `x` and `saved` begin at the head's units, rows D apart; z [4K] is
/// h R; the state [4, K] is h, c, n, m, and moves on.
#[inline(always)]
fn lanes<T: Math, const W: usize>(i: usize, k: usize, d: usize, x: &[T], z: &[T], state: &mut [T], saved: &mut [T]) {
    let raw: [[T; W]; 4] = std::array::from_fn(|g| {
        let (mut x, z): ([T; W], [T; W]) = (at(x, g, d, i), at(z, g, k, i));
        for l in 0..W {
            x[l] += z[l];
        }
        x
    });
    let [_, mut c, mut n, mut m]: [[T; W]; 4] = std::array::from_fn(|j| at(state, j, k, i));
    let (mut ig, mut fg, z, o) = (raw[0], raw[1], each(raw[2], T::tanh), each(raw[3], T::sigmoid));
    let (mut h, mut slope) = (o, each(raw[1], |f| (-f).sigmoid()));
    for l in 0..W {
        let past = m[l] - (-raw[1][l]).softplus();
        let wins = past >= raw[0][l];
        m[l] = if wins { past } else { raw[0][l] };
        slope[l] = if wins { slope[l] } else { -slope[l] };
        (ig[l], fg[l]) = (raw[0][l] - m[l], past - m[l]);
    }
    (ig, fg) = (each(ig, T::exp), each(fg, T::exp));
    for l in 0..W {
        c[l] = fg[l] * c[l] + ig[l] * z[l];
        n[l] = fg[l] * n[l] + ig[l];
        h[l] = o[l] * c[l] / n[l];
    }
    [h, c, n, m].into_iter().enumerate().for_each(|(j, v)| put(state, j, k, i, v, false));
    [ig, fg, z, o, c, n, slope].into_iter().enumerate().for_each(|(j, v)| put(saved, j, d, i, v, false));
}

/// Step t of head `h` in all sequences: z [B, 4K], state [B, 4, K].
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn cell<T: Math>(s: Size, t: usize, h: usize, x: &[T], z: &[T], state: &mut [T], saved: &mut [T]) {
    let (k, d) = (s.k, s.d());
    for b in 0..s.b {
        let (z, state) = (&z[b * 4 * k..(b + 1) * 4 * k], &mut state[b * 4 * k..(b + 1) * 4 * k]);
        let (x, saved) = (&x[s.step(4, b, t, h)..], &mut saved[s.step(SAVED, b, t, h)..]);
        by_lanes!(k, lanes::<T>(d, x, z, &mut *state, &mut *saved));
    }
}

/// W units of one step backwards. `g` [4, K] is dh, dc, dn, γ from step t + 1 and becomes what step t − 1 gets, but for
/// dh; dz [4K] is the gradient of the gates' sums. `before` is c and n of step t − 1.
#[inline(always)]
fn lanes_back<T: Math, const W: usize>(
    i: usize,
    k: usize,
    d: usize,
    saved: &[T],
    (before_c, before_n): (&[T], &[T]),
    dy: Option<&[T]>,
    g: &mut [T],
    dz: &mut [T],
) {
    let [ig, fg, z, o, c, n, slope]: [[T; W]; SAVED] = std::array::from_fn(|j| at(saved, j, d, i));
    let [mut dh, mut dc, mut dn, mut gamma]: [[T; W]; 4] = std::array::from_fn(|j| at(g, j, k, i));
    let (c0, n0): ([T; W], [T; W]) = (at(before_c, 0, k, i), at(before_n, 0, k, i));
    if let Some(dy) = dy {
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
    [dc, dn, gamma].into_iter().enumerate().for_each(|(j, v)| put(g, j + 1, k, i, v, false));
    out.into_iter().enumerate().for_each(|(j, v)| put(dz, j, k, i, v, false));
}

/// Step t of head `h` in all sequences backwards: g [B, 4, K] and dz [B, 4K] as in [`lanes_back`].
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn cell_back<T: Math>(
    s: Size,
    (t, h): (usize, usize),
    saved: &[T],
    (c0, n0): (&[T], &[T]),
    dy: Option<&[T]>,
    g: &mut [T],
    dz: &mut [T],
) {
    let (k, d) = (s.k, s.d());
    for b in 0..s.b {
        let (g, dz) = (&mut g[b * 4 * k..(b + 1) * 4 * k], &mut dz[b * 4 * k..(b + 1) * 4 * k]);
        let before = match t.checked_sub(1) {
            None => (&c0[s.state(b, h)], &n0[s.state(b, h)]),
            Some(t) => {
                let row = &saved[s.step(SAVED, b, t, h)..];
                (&row[4 * d..4 * d + k], &row[5 * d..5 * d + k])
            }
        };
        let (saved, dy) = (&saved[s.step(SAVED, b, t, h)..], dy.map(|dy| &dy[s.step(1, b, t, h)..]));
        by_lanes!(k, lanes_back::<T>(d, saved, before, dy, &mut *g, &mut *dz));
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
        let (h, saved) = (h.host_mut::<T>(), saved.host_mut::<T>());
        let mut last = [h_last, c_last, n_last, m_last].map(|y| y.host_mut::<T>());
        let (k, rows) = (s.k, s.b * s.k);
        let (mut packed, mut state) = (cpu.temp::<T>(4 * k * k), cpu.temp::<T>(4 * rows));
        let (mut before, mut z) = (cpu.temp::<T>(rows), cpu.temp::<T>(4 * rows));
        for head in 0..if rows == 0 { 0 } else { s.h } {
            s.pack(head, r, &mut packed);
            for b in 0..s.b {
                let (row, state) = (s.state(b, head), &mut state[b * 4 * k..(b + 1) * 4 * k]);
                (0..4).for_each(|j| state[j * k..(j + 1) * k].copy_from_slice(&x[2 + j].host::<T>()[row.clone()]));
                let w = &x[6].host::<T>()[row];
                state[3 * k..].iter_mut().zip(w).for_each(|(m, &w)| *m = effective(*m, w));
            }
            for t in 0..s.t {
                for (y, state) in before.chunks_exact_mut(k).zip(state.chunks_exact(4 * k)) {
                    y.copy_from_slice(&state[..k]);
                }
                times(k, 4 * k, &before, &packed, &mut z);
                cell(s, t, head, v, &z, &mut state, saved);
                for (b, state) in state.chunks_exact(4 * k).enumerate() {
                    h[s.step(1, b, t, head)..][..k].copy_from_slice(&state[..k]);
                }
            }
            for (b, state) in state.chunks_exact(4 * k).enumerate() {
                let parts = last.iter_mut().zip(state.chunks_exact(k));
                parts.for_each(|(y, state)| y[s.state(b, head)].copy_from_slice(state));
            }
        }
    }

    fn backward_cpu<T: Math>(cpu: &Cpu, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let [gx, gr, initial @ ..] = dx else { return };
        let (s, r, h0) = (Size::of(x), x[1].host::<T>(), x[2].host::<T>());
        let (c0, n0, h, saved) = (x[3].host::<T>(), x[4].host::<T>(), y[0].host::<T>(), y[5].host::<T>());
        let (dx, dr) = (gx.slice::<T>(cpu, &x[0]), gr.slice::<T>(cpu, &x[1]));
        let (k, rows, d) = (s.k, s.b * s.k, s.d());
        let (mut packed, mut turned) = (cpu.temp::<T>(4 * k * k), cpu.temp::<T>(4 * k * k));
        let (mut g, mut dh) = (cpu.temp::<T>(4 * rows), cpu.temp::<T>(rows));
        // Of every step, time first: the gradient of the gates' sums, and h of the step before.
        let (mut dz, mut before) = (cpu.temp::<T>(s.t * 4 * rows), cpu.temp::<T>(s.t * rows));
        for head in 0..if rows == 0 { 0 } else { s.h } {
            s.pack(head, r, &mut packed);
            (0..4 * k * k).for_each(|i| turned[i] = packed[i % k * 4 * k + i / k]);
            for (b, g) in g.chunks_exact_mut(4 * k).enumerate() {
                let row = s.state(b, head);
                for (j, g) in g.chunks_exact_mut(k).enumerate() {
                    match seed::<T>(&dy[1 + j]) {
                        Some(dy) => g.copy_from_slice(&dy[row.clone()]),
                        None => g.fill(T::ZERO),
                    }
                }
                let (c, n) = (&y[2].host::<T>()[row.clone()], &y[3].host::<T>()[row]);
                (0..k).for_each(|i| g[3 * k + i] -= c[i] * g[k + i] + n[i] * g[2 * k + i]);
            }
            for t in (0..s.t).rev() {
                let dz = &mut dz[t * 4 * rows..(t + 1) * 4 * rows];
                cell_back(s, (t, head), saved, (c0, n0), seed(&dy[0]), &mut g, dz);
                times(4 * k, k, dz, &turned, &mut dh);
                for b in 0..s.b {
                    g[b * 4 * k..][..k].copy_from_slice(&dh[b * k..(b + 1) * k]);
                    let h = if t == 0 { &h0[s.state(b, head)] } else { &h[s.step(1, b, t - 1, head)..][..k] };
                    before[t * rows + b * k..][..k].copy_from_slice(h);
                    for (j, dz) in dz[b * 4 * k..(b + 1) * 4 * k].chunks_exact(k).enumerate() {
                        let dx = &mut dx[s.step(4, b, t, head) + j * d..][..k];
                        dx.iter_mut().zip(dz).for_each(|(dx, &dz)| *dx += dz);
                    }
                }
            }
            // dR = Σ h_{t-1} dzᵀ over all steps and sequences.
            let (m, mz, n) = (Mat::new(s.t * s.b, k, k), Mat::new(s.t * s.b, 4 * k, 4 * k), Mat::new(k, 4 * k, 4 * k));
            gemm(T::ONE, (&before, m.t()), (&dz, mz), (&mut packed, n), false);
            for (i, &dp) in packed.iter().enumerate() {
                dr[((i / k % 4 * s.h + head) * k + i / (4 * k)) * k + i % k] += dp;
            }
            initial_back(cpu, s, head, x, &g, initial);
        }
    }
}

/// The gradients of h0, c0, n0, m0 and w0 from g [B, 4, K], which is dh, dc, dn, γ before the first step.
fn initial_back<T: Math>(cpu: &Cpu, s: Size, head: usize, x: In, g: &[T], dx: &mut [Grad]) {
    let [c0, n0, w0] = [3, 4, 6].map(|i| x[i].host::<T>());
    let k = s.k;
    for (j, grad) in dx.iter_mut().enumerate() {
        let dx = grad.slice::<T>(cpu, &x[2 + j]);
        for (b, g) in g.chunks_exact(4 * k).enumerate() {
            for (i, at) in s.state(b, head).enumerate() {
                let dm = g[3 * k + i] + c0[at] * g[k + i] + n0[at] * g[2 * k + i];
                dx[at] += match j {
                    3 => dm,
                    // Before the first token nothing depends on w: c and n are zero.
                    4 if w0[at] > T::ZERO => dm / w0[at],
                    4 => T::ZERO,
                    _ => g[j * k + i],
                };
            }
        }
    }
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
