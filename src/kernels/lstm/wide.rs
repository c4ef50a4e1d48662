//! Steps of wide LSTMs: all sequences at one step together, for one product with W_hh.

use crate::{
    kernels::{
        gemm::Packed,
        lstm::{Size, lanes_back},
        math::Math,
        matmul::Mat,
        scan::{at, by_lanes, each, fetch, four_at, put},
    },
    tensor::Cpu,
};

/// W channels of x [4D] and z = W_hh h_{t-1} [4D] to gates as they are kept, c and h.
#[inline(always)]
fn cells<T: Math, const W: usize>(
    i: usize,
    d: usize,
    [x, z, before]: [&[T]; 3],
    [gates, c_to, h_to]: &mut [&mut [T]; 3],
) {
    let mut sums = [[T::ZERO; W]; 4];
    for (k, sum) in sums.iter_mut().enumerate() {
        let (x, z): ([T; W], [T; W]) = (at(x, k, d, i), at(z, k, d, i));
        for l in 0..W {
            sum[l] = x[l] + z[l];
        }
    }
    // One by one: a loop over the four would keep them in memory.
    let [ig, f, g, o] = sums;
    let (ig, f) = (each(ig, T::keep_sigmoid), each(f, T::keep_sigmoid));
    let (g, o) = (each(g, T::keep_tanh), each(o, T::keep_sigmoid));
    put(gates, 0, d, i, ig, false);
    put(gates, 1, d, i, f, false);
    put(gates, 2, d, i, g, false);
    put(gates, 3, d, i, o, false);
    let mut c: [T; W] = at(before, 0, d, i);
    for l in 0..W {
        c[l] = f[l].kept_sigmoid().0.fma(c[l], ig[l].kept_sigmoid().0 * g[l].kept_tanh().0);
    }
    let mut h = each(c, T::tanh);
    for l in 0..W {
        h[l] = o[l].kept_sigmoid().0 * h[l];
    }
    put(c_to, 0, d, i, c, false);
    put(h_to, 0, d, i, h, false);
}

/// Step t of all sequences: x [B, T, 4D], z [B, 4D] and c0 [B, D] to rows of gates, c and h [B, T, ..]. `h_state`
/// [B, D] becomes h of this step once more, for the next product.
#[versions::versions]
fn cell<T: Math>(s: Size, t: usize, [x, z, c0]: [&[T]; 3], [gates, c, h]: [&mut [T]; 3], h_state: &mut [T]) {
    let d = s.d;
    for b in 0..s.b {
        let (row, row4, own) = (s.row(b, t, d), s.row(b, t, 4 * d), s.state(b, d));
        if b + 1 < s.b {
            let (next, next4) = (s.row(b + 1, t, d), s.row(b + 1, t, 4 * d));
            for x in [&x[next4.clone()], &gates[next4], &c[next.clone()], &h[next]] {
                fetch(x);
            }
        }
        let (done, c) = c.split_at_mut(row.start);
        let before = if t == 0 { &c0[own.clone()] } else { &done[row.start - d..] };
        let mut to = [&mut gates[row4.clone()], &mut c[..d], &mut h[row]];
        by_lanes!(d, cells::<T>([&x[row4.clone()], &z[s.state(b, 4 * d)], before], &mut to));
        h_state[own].copy_from_slice(to[2]);
    }
}

/// x [B, T, 4D], W_hh [4D, D], h0 and c0 [B, D] to gates [B, T, 4D], c and h [B, T, D].
pub(super) fn forward<T: Math>(cpu: &Cpu, s: Size, [x, w, h0, c0]: [&[T]; 4], [gates, c, h]: [&mut [T]; 3]) {
    let (mut z, mut state) = (cpu.temp::<T>(s.b * 4 * s.d), cpu.temp::<T>(h0.len()));
    state.copy_from_slice(h0);
    let w_t = Packed::new(cpu, s.b, (w, Mat::new(4 * s.d, s.d, s.d).t()));
    for t in 0..s.t {
        w_t.times(&state, &mut z);
        cell(s, t, [x, &z, c0], [&mut *gates, &mut *c, &mut *h], &mut state);
    }
}

/// W channels of the gradients of the gates' sums, to dz and, for the product with W_hh, to dz_t.
#[inline(always)]
fn sum_back<T: Math, const W: usize>(
    i: usize,
    d: usize,
    [gates, before, c]: [&[T]; 3],
    (dy, dh, dc): (&[T], &[T], &mut [T]),
    [dz, dz_t]: &mut [&mut [T]; 2],
) {
    let own = |x: &[T]| at::<T, W>(x, 0, d, i);
    let u = each(own(c), T::keep_tanh);
    let (out, next) = lanes_back(four_at(gates, d, i), own(before), u, own(dy), own(dh), own(dc));
    put(dc, 0, d, i, next, false);
    for (k, &out) in out.iter().enumerate() {
        put(dz, k, d, i, out, false);
        put(dz_t, k, d, i, out, false);
    }
}

/// Step t of all sequences backwards: dh and dc [B, D] come in from step t + 1; dc leaves for t − 1. The gradients of
/// the gates' sums go to dz [B, T, 4D] and to dz_t [B, 4D].
#[versions::versions]
fn cell_back<T: Math>(
    s: Size,
    t: usize,
    [gates, c0, c, dy]: [&[T]; 4],
    (dh, dc): (&[T], &mut [T]),
    [dz, dz_t]: [&mut [T]; 2],
) {
    let d = s.d;
    for b in 0..s.b {
        let (row, row4, own) = (s.row(b, t, d), s.row(b, t, 4 * d), s.state(b, d));
        if b + 1 < s.b {
            let (next, next4) = (s.row(b + 1, t, d), s.row(b + 1, t, 4 * d));
            for x in [&gates[next4.clone()], &dz[next4], &c[s.row(b + 1, t.saturating_sub(1), d)], &dy[next]] {
                fetch(x);
            }
        }
        let before = if t == 0 { &c0[own.clone()] } else { &c[s.row(b, t - 1, d)] };
        let kept = [&gates[row4.clone()], before, &c[row.clone()]];
        let (dy, dh, dc) = (&dy[row], &dh[own.clone()], &mut dc[own]);
        let mut to = [&mut dz[row4], &mut dz_t[s.state(b, 4 * d)]];
        by_lanes!(d, sum_back::<T>(kept, (dy, dh, &mut *dc), &mut to));
    }
}

/// W_hh [4D, D], c0 [B, D], gates, c and dy [B, T, ..] to dz [B, T, 4D], the gradients of the gates' sums; dh and dc
/// [B, D] come in as those of the last h and c and leave as those of the first.
pub(super) fn backward<T: Math>(cpu: &Cpu, s: Size, [w, c0, gates, c, dy]: [&[T]; 5], [dh, dc, dz]: [&mut [T]; 3]) {
    let mut dz_t = cpu.temp::<T>(s.b * 4 * s.d);
    let w = Packed::new(cpu, s.b, (w, Mat::new(4 * s.d, s.d, s.d)));
    for t in (0..s.t).rev() {
        cell_back(s, t, [gates, c0, c, dy], (&*dh, &mut *dc), [&mut *dz, &mut dz_t]);
        w.times(&dz_t, dh);
    }
}
