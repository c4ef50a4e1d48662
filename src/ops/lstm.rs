//! The LSTM's recurrence over a whole sequence (Hochreiter & Schmidhuber 1997; forget gate: Gers et al. 2000), as
//! torch's nn.LSTM computes it. x_t holds the input's share W_ih u_t + b_ih + b_hh, gates in the order i, f, g, o:
//!
//! (ĩ, f̃, g̃, õ) = x_t + W_hh h_{t-1};  i, f, o = σ(ĩ, f̃, õ);  g = tanh g̃
//! c_t = f c_{t-1} + i g;  h_t = o tanh c_t
//!
//! Backwards in time, with dh the gradient of h_t from above plus what step t + 1 hands back, dc likewise:
//! dc += dh o (1 − tanh² c_t);  dĩ = dc g i (1 − i);  df̃ = dc c_{t-1} f (1 − f);  dg̃ = dc i (1 − g²);
//! dõ = dh tanh c_t o (1 − o);  to step t − 1: dc f and W_hhᵀ (dĩ, df̃, dg̃, dõ).
//! dW_hh = Σ_{b,t} (dĩ, df̃, dg̃, dõ) h_{t-1}ᵀ is one product over all steps at the end.

use super::{
    math::Math,
    matmul::{Mat, gemm},
    scan::{cotangent, put_all, same_dtype, spare, target, zeros},
};
use crate::{
    autograd::{Gen, Grad, In, Op, Outs, Value, Var},
    tensor::{Cpu, Cx, Real, Tensor},
    with_real,
};

/// x [B, T, 4D] (gates i, f, g, o before the recurrent share), W_hh [4D, D], h0 and c0 [B, D] to h [B, T, D] and the
/// last h and c [B, D].
pub struct LstmSequence;

/// Sizes: batch, steps, channels.
#[derive(Clone, Copy)]
struct Size {
    b: usize,
    t: usize,
    d: usize,
}

impl Size {
    fn of(x: In) -> Size {
        let (b, t, d4) = x[0].shape().split(1);
        Size { b, t, d: d4 / 4 }
    }

    /// Row (i, t) of a [B, T, width] slice.
    fn row(self, i: usize, t: usize, width: usize) -> std::ops::Range<usize> {
        let at = (i * self.t + t) * width;
        at..at + width
    }

    /// Step t − 1 of a [B, T, D] slice, or the initial state [B, D]: a slice and the matrix [B, D] at its start.
    fn before<'a, T>(self, t: usize, first: &'a [T], all: &'a [T]) -> (&'a [T], Mat) {
        match t {
            0 => (first, Mat::new(self.b, self.d, self.d)),
            _ => (&all[(t - 1) * self.d..], Mat::new(self.b, self.d, self.t * self.d)),
        }
    }

    /// Step t of a [B, T, 4D] slice as a matrix [B, 4D], from offset t 4D on.
    fn gates(self) -> Mat {
        Mat::new(self.b, 4 * self.d, self.t * 4 * self.d)
    }
}

/// x ← f(x), in blocks of constant length so that short rows are vectorised too.
#[inline(always)]
pub(super) fn each<T: Real>(x: &mut [T], f: impl Fn(T) -> T) {
    let (blocks, rest) = x.as_chunks_mut::<16>();
    for block in blocks {
        for x in block {
            *x = f(*x);
        }
    }
    for x in rest {
        *x = f(*x);
    }
}

/// Step t of all sequences: gates from their sums, in place, then c and h.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2"))]
fn cell<T: Math>(s: Size, t: usize, gates: &mut [T], c0: &[T], c: &mut [T], h: &mut [T]) {
    let d = s.d;
    for b in 0..s.b {
        let gates = &mut gates[s.row(b, t, 4 * d)];
        each(&mut gates[..2 * d], T::sigmoid);
        each(&mut gates[2 * d..3 * d], T::tanh);
        each(&mut gates[3 * d..], T::sigmoid);
        let row = s.row(b, t, d);
        let (past, now) = c.split_at_mut(row.start);
        let before = if t == 0 { &c0[b * d..(b + 1) * d] } else { &past[row.start - d..] };
        let (c, h, before) = (&mut now[..d], &mut h[row], &before[..d]);
        let (i, f, g, o) = (&gates[..d], &gates[d..2 * d], &gates[2 * d..3 * d], &gates[3 * d..4 * d]);
        for j in 0..d {
            c[j] = f[j] * before[j] + i[j] * g[j];
        }
        h.copy_from_slice(c);
        each(h, T::tanh);
        for j in 0..d {
            h[j] = o[j] * h[j];
        }
    }
}

/// Step t of all sequences backwards: dh and dc [B, D] come in from step t + 1; dc leaves for t − 1, and dz gets the
/// gradients of the gates' sums.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2"))]
fn cell_back<T: Math>(
    s: Size,
    t: usize,
    (gates, c0, c, dy): (&[T], &[T], &[T], &[T]),
    (dh, dc): (&[T], &mut [T]),
    dz: &mut [T],
    tanh_c: &mut [T],
) {
    let d = s.d;
    for b in 0..s.b {
        let (gates, dz) = (&gates[s.row(b, t, 4 * d)], &mut dz[s.row(b, t, 4 * d)]);
        let before = if t == 0 { &c0[b * d..(b + 1) * d] } else { &c[s.row(b, t - 1, d)] };
        let (dy, c) = (&dy[s.row(b, t, d)], &c[s.row(b, t, d)]);
        let (dh, dc) = (&dh[b * d..(b + 1) * d], &mut dc[b * d..(b + 1) * d]);
        let (i, f, g, o) = (&gates[..d], &gates[d..2 * d], &gates[2 * d..3 * d], &gates[3 * d..4 * d]);
        let (di, dz) = dz.split_at_mut(d);
        let (df, dz) = dz.split_at_mut(d);
        let (dg, d_o) = dz.split_at_mut(d);
        let (before, d_o, u) = (&before[..d], &mut d_o[..d], &mut tanh_c[..d]);
        u.copy_from_slice(c);
        each(u, T::tanh);
        for j in 0..d {
            let dh = dy[j] + dh[j];
            d_o[j] = dh * u[j] * o[j] * (T::ONE - o[j]);
            let dcj = dc[j] + dh * o[j] * (T::ONE - u[j] * u[j]);
            di[j] = dcj * g[j] * i[j] * (T::ONE - i[j]);
            df[j] = dcj * before[j] * f[j] * (T::ONE - f[j]);
            dg[j] = dcj * i[j] * (T::ONE - g[j] * g[j]);
            dc[j] = dcj * f[j];
        }
    }
}

impl LstmSequence {
    fn forward_cpu<T: Math>(x: In, y: &mut [Value]) {
        let [h, h_last, c_last, gates, c] = y else { return };
        let s = Size::of(x);
        let [v, w, h0, c0] = std::array::from_fn(|i| x[i].host::<T>());
        let (h, c, gates) = (h.host_mut::<T>(), c.host_mut::<T>(), gates.host_mut::<T>());
        let w_t = Mat::new(4 * s.d, s.d, s.d).t();
        gates.copy_from_slice(v);
        if s.b * s.d > 0 {
            for t in 0..s.t {
                let (before, m) = s.before(t, h0, h);
                gemm(T::ONE, (before, m), (w, w_t), (&mut gates[t * 4 * s.d..], s.gates()), true);
                cell(s, t, gates, c0, c, h);
            }
        }
        for b in 0..s.b {
            let r = b * s.d..(b + 1) * s.d;
            let end = (s.t > 0).then(|| s.row(b, s.t - 1, s.d));
            let (h, c) = end.map_or((&h0[r.clone()], &c0[r.clone()]), |end| (&h[end.clone()], &c[end]));
            h_last.host_mut()[r.clone()].copy_from_slice(h);
            c_last.host_mut()[r].copy_from_slice(c);
        }
    }

    fn backward_cpu<T: Math>(cpu: &Cpu, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let ([gx, gw, gh0, gc0], [dh_all, dh_last, dc_last, ..]) = (dx, dy) else { return };
        let s = Size::of(x);
        let (w, h0, c0) = (x[1].host::<T>(), x[2].host::<T>(), x[3].host::<T>());
        let (h, gates, c) = (y[0].host::<T>(), y[3].host::<T>(), y[4].host::<T>());
        let (z, zh, zc) = (zeros(cpu, dh_all, &y[0]), zeros(cpu, dh_last, &y[1]), zeros(cpu, dc_last, &y[2]));
        let (mut dh, mut dc, mut row) = (cpu.temp::<T>(s.b * s.d), cpu.temp::<T>(s.b * s.d), cpu.temp::<T>(s.d));
        dh.copy_from_slice(cotangent(dh_last, &zh));
        dc.copy_from_slice(cotangent(dc_last, &zc));
        let mut sx = spare::<T>(cpu, gx, &x[0]);
        let (dx, acc) = target(gx, &mut sx);
        // dx is the gradient of the gates' sums; where it is to be added to, they need memory of their own.
        let mut own = cpu.temp::<T>(if acc { x[0].len() } else { 0 });
        let dz: &mut [T] = if acc { &mut own } else { &mut *dx };
        if s.b * s.d > 0 {
            for t in (0..s.t).rev() {
                let inputs = (gates, c0, c, cotangent(dh_all, &z));
                cell_back(s, t, inputs, (&dh, &mut dc), dz, &mut row);
                let (m, w_m) = (Mat::new(s.b, s.d, s.d), Mat::new(4 * s.d, s.d, s.d));
                gemm(T::ONE, (&dz[t * 4 * s.d..], s.gates()), (w, w_m), (&mut dh, m), false);
            }
        }
        gw.write(|dw, acc| weights_back(cpu, s, dz, h0, h, dw, acc));
        gh0.write(|d, acc| put_all(d, &dh, acc));
        gc0.write(|d, acc| put_all(d, &dc, acc));
        if acc {
            put_all(dx, &own, true);
        }
    }
}

/// dW_hh = dzᵀ (h_{t-1} of every step): one product over B T rows.
fn weights_back<T: Real>(cpu: &Cpu, s: Size, dz: &[T], h0: &[T], h: &[T], dw: &mut [T], acc: bool) {
    let (rows, d) = (s.b * s.t, s.d);
    if rows == 0 {
        return if acc {
        } else {
            dw.fill(T::ZERO)
        };
    }
    let mut before = cpu.temp::<T>(rows * d);
    for b in 0..s.b {
        let r = b * s.t * d..(b + 1) * s.t * d;
        let to = &mut before[r.clone()];
        to[..d].copy_from_slice(&h0[b * d..(b + 1) * d]);
        to[d..].copy_from_slice(&h[r.start..r.end - d]);
    }
    let (m, mh) = (Mat::new(rows, 4 * d, 4 * d), Mat::new(rows, d, d));
    gemm(T::ONE, (dz, m.t()), (&before, mh), (dw, Mat::new(4 * d, d, d)), acc);
}

impl Op for LstmSequence {
    fn name(&self) -> &'static str {
        "lstm_sequence"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        let [v, w, h0, c0] = std::array::from_fn(|i| x[i].shape());
        let [b, t, _] = v.array()?;
        let [d4, d] = w.array()?;
        if d4 != 4 * d || v.at(2) != d4 || h0 != [b, d].into() || c0 != h0 {
            return Err(format!(
                "x {v}, w_hh {w}, h0 {h0} and c0 {c0} do not fit: expected [B, T, 4D], [4D, D] and [B, D] twice"
            ));
        }
        same_dtype(x)?;
        let h = [b, t, d].into();
        Ok(Outs::from([h, h0, h0]).saving([v, h]))
    }

    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        match cx {
            Cx::Cpu(_) => with_real!(x[0].dtype(), T => Self::forward_cpu::<T>(x, y)),
        }
    }

    fn backward(&self, cx: &Cx, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => Self::backward_cpu::<T>(cpu, x, y, dy, dx)),
        }
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (b, t, d) = (g.size(3), g.size(5), g.size(5));
        (LstmSequence, vec![g.normal([b, t, 4 * d]), g.normal([4 * d, d]), g.normal([b, d]), g.normal([b, d])])
    }
}

/// (h, h_last, c_last) of [`LstmSequence`]: x [B, T, 4D], w_hh [4D, D], h0 and c0 [B, D] to h [B, T, D] and the last h
/// and c [B, D] (h0 and c0 when T = 0).
#[track_caller]
pub fn lstm_sequence<'t>(x: Var<'t>, w_hh: Var<'t>, h0: Var<'t>, c0: Var<'t>) -> (Var<'t>, Var<'t>, Var<'t>) {
    let [h, h_last, c_last] = x.tape().apply_many(LstmSequence, [x, w_hh, h0, c0]);
    (h, h_last, c_last)
}
