//! One step of the sLSTM, forwards and backwards, for all heads of all sequences, after the products with R.

use crate::kernels::{
    math::Math,
    scan::{at, by_lanes, put},
    slstm::Size,
};

/// The saved values of a step: the smaller of i and f, z, o as [`keep`] gives it, c, n, ±σ(−f̃) and 1 − z².
pub const SAVED: usize = 7;

/// Where a step of one head of one sequence is read and written. x [4, D], saved [7, D], h [D] begin at the head's
/// units; z [4K] is h R; the states [K] move on.
struct Step<'a, T> {
    x: &'a [T],
    z: &'a [T],
    states: [&'a mut [T]; 4],
    h: &'a mut [T],
    saved: &'a mut [T],
}

/// i and f. One of them is 1 and the other `less`, unless nothing was written yet, where n is 0: f is 1 where l won.
/// Then the slope has no sign; a comparison could not tell where it is 0.
#[inline(always)]
fn gates<T: Math>(less: T, slope: T, blank: bool) -> (T, T) {
    match slope.sign_bit() {
        true => (T::ONE, less),
        false => (less, if blank { T::ZERO } else { T::ONE }),
    }
}

/// σ(x), and as it is saved: the smaller of σ(x) and σ(−x), with the sign bit set if that is σ(−x). So it has the
/// digits of 1 − σ too.
#[inline(always)]
fn keep<T: Math>(x: T) -> (T, T) {
    let u = (-x.abs()).decay();
    let large = T::ONE / (T::ONE + u);
    let small = u * large;
    if x > T::ZERO { (large, -small) } else { (small, small) }
}

/// σ and 1 − σ from the saved number.
#[inline(always)]
fn kept<T: Math>(saved: T) -> (T, T) {
    let (small, large) = (saved.abs(), T::ONE - saved.abs());
    if saved.sign_bit() { (large, small) } else { (small, large) }
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
    let (mut z, mut slope_z, mut o, mut h) = (raw[2], raw[2], raw[3], raw[3]);
    for l in 0..W {
        (z[l], slope_z[l]) = z[l].tanh_and_slope();
    }
    for l in 0..W {
        (h[l], o[l]) = keep(o[l]);
    }
    let (mut less, mut slope, mut tie) = (raw[0], raw[1], [false; W]);
    let least = T::of(f64::NEG_INFINITY);
    for l in 0..W {
        // −ln σ(f̃) and σ(−f̃).
        let (fade, fading) = (-raw[1][l]).softplus_and_slope();
        let past = m[l] - fade;
        let wins = past >= raw[0][l];
        tie[l] = past == raw[0][l];
        m[l] = if wins { past } else { raw[0][l] };
        slope[l] = if wins { fading } else { -fading };
        less[l] = (if wins { raw[0][l] } else { past }) - if m[l] == least { T::ZERO } else { m[l] };
    }
    for less in &mut less {
        *less = less.decay();
    }
    for l in 0..W {
        let blank = m[l] == least;
        let (ig, fg) = gates(less[l], slope[l], blank);
        c[l] = fg.fma(c[l], ig * z[l]);
        n[l] = fg.fma(n[l], ig);
        h[l] = h[l] * c[l] / if blank { T::ONE } else { n[l] };
        less[l] = if tie[l] { -less[l] } else { less[l] };
    }
    put(y.h, 0, d, i, h, false);
    y.states.iter_mut().zip([h, c, n, m]).for_each(|(y, v)| put(y, 0, k, i, v, false));
    [less, z, o, c, n, slope, slope_z].into_iter().enumerate().for_each(|(j, v)| put(y.saved, j, d, i, v, false));
}

/// Step t of all heads and sequences: z [H, B, 4K] is h R, the states h [H, B, K] and c, n, m [B, D] move on.
#[versions::versions]
pub fn cell<T: Math>(s: Size, t: usize, x: &[T], z: &[T], states: &mut [&mut [T]; 4], y: (&mut [T], &mut [T])) {
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

/// The data that a step of one head of one sequence reads backwards: its saved values, c and n of the step before, and
/// the cotangent of h, if there is one.
struct Seen<'a, T> {
    saved: &'a [T],
    before: [&'a [T]; 2],
    dy: Option<&'a [T]>,
}

/// W units of it, from dh [K] of step t + 1. The states dc, dn, γ [K] come from there too, and become what step t − 1
/// gets. The gradient of the pre-activations goes to dz [4K] and to dx [4, D].
#[inline(always)]
fn lanes_back<T: Math, const W: usize>(
    i: usize,
    k: usize,
    d: usize,
    (x, dh): (&Seen<T>, &[T]),
    g: &mut [&mut [T]; 3],
    dz: &mut [T],
    dx: &mut [T],
) {
    let mut saved = [[T::ZERO; W]; SAVED];
    saved.iter_mut().enumerate().for_each(|(j, y)| *y = at(x.saved, j, d, i));
    let [less, z, o, c, n, slope, slope_z] = saved;
    let (mut dh, mut dc, mut dn, mut gamma): ([T; W], [T; W], [T; W], [T; W]) =
        (at(dh, 0, k, i), at(g[0], 0, k, i), at(g[1], 0, k, i), at(g[2], 0, k, i));
    let (c0, n0): ([T; W], [T; W]) = (at(x.before[0], 0, k, i), at(x.before[1], 0, k, i));
    if let Some(dy) = x.dy {
        let dy: [T; W] = at(dy, 0, k, i);
        for l in 0..W {
            dh[l] += dy[l];
        }
    }
    let mut out = [[T::ZERO; W]; 4];
    for l in 0..W {
        let blank = n[l] == T::ZERO;
        let (z, (o, less_o)) = (z[l], kept(o[l]));
        let inverse = if blank { T::ZERO } else { T::ONE / n[l] };
        let (per_n, h) = (dh[l] * inverse, o * c[l] * inverse);
        dc[l] = per_n.fma(o, dc[l]);
        dn[l] = (-per_n).fma(h, dn[l]);
        let (ig, fg) = gates(less[l].abs(), slope[l], blank);
        let half = T::of(0.5) * gamma[l];
        let (to_past, to_input) = if slope[l].sign_bit() { (T::ZERO, gamma[l]) } else { (gamma[l], T::ZERO) };
        let (to_past, to_input) = if less[l].sign_bit() { (half, half) } else { (to_past, to_input) };
        let slope = slope[l].abs();
        out[0][l] = ig.fma(z.fma(dc[l], dn[l]), to_input);
        out[1][l] = fg.fma(c0[l].fma(dc[l], n0[l] * dn[l]), to_past) * slope;
        out[2][l] = ig * dc[l] * slope_z[l];
        out[3][l] = dh[l] * h * less_o;
        (dc[l], dn[l], gamma[l]) = (fg * dc[l], fg * dn[l], to_past);
    }
    g.iter_mut().zip([dc, dn, gamma]).for_each(|(y, v)| put(y, 0, k, i, v, false));
    for (j, &out) in out.iter().enumerate() {
        put(dz, j, k, i, out, false);
        put(dx, j, d, i, out, false);
    }
}

/// Step t of all heads and sequences backwards: dh [H, B, K], `g` with dc, dn and γ [B, D], dz [H, B, 4K] and dx [B, T,
/// 4, D] as in [`lanes_back`]. `first` is c and n before the first step.
#[versions::versions]
pub fn cell_back<T: Math>(
    s: Size,
    t: usize,
    (saved, first, dy): (&[T], [&[T]; 2], Option<&[T]>),
    dh: &[T],
    g: &mut [&mut [T]; 3],
    dz: &mut [T],
    dx: &mut [T],
) {
    let (k, d) = (s.k, s.d());
    for b in 0..s.b {
        s.fetch_next(SAVED, b, t.saturating_sub(1), saved);
        s.fetch_next(4, b, t, dx);
        for h in 0..s.h {
            let (unit, own) = (s.state(b, h), s.sorted(b, h));
            let before = if t == 0 {
                [&first[0][unit.clone()], &first[1][unit.clone()]]
            } else {
                let [c, n] = [3, 4].map(|j| s.step(SAVED, b, t - 1, h) + j * d);
                [&saved[c..c + k], &saved[n..n + k]]
            };
            let dy = dy.map(|dy| &dy[s.step(1, b, t, h)..]);
            let seen = Seen { saved: &saved[s.step(SAVED, b, t, h)..], before, dy };
            let mut g = g.each_mut().map(|g| &mut g[unit.clone()]);
            let (dz, dx) = (&mut dz[4 * own.start..4 * own.end], &mut dx[s.step(4, b, t, h)..]);
            by_lanes!(k, lanes_back::<T>(d, (&seen, &dh[own.clone()]), &mut g, dz, dx));
        }
    }
}
