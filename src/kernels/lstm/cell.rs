//! Cells of an LSTM or quasi-LSTM at one step on the CPU: what is left when the gates' sums are known.
//!
//! ```text
//! i, f, o = σ(ĩ, f̃, õ);  g = tanh g̃;  c_t = f c_{t-1} + i g;  u = tanh c_t;  h_t = o u
//! ```
//!
//! Backwards every gradient is dc or dh times a number that the forward pass knows, and that is saved:
//!
//! ```text
//! dc += dh [o (1 − u²)];  dĩ = dc [g i (1 − i)];  df̃ = dc [c_{t-1} f (1 − f)];  dg̃ = dc [i (1 − g²)];
//! dõ = dh [u o (1 − o)];  to step t − 1: dc [f]
//! ```
//!
//! The slopes i (1 − i) and 1 − g² are computed from e^−|x|. A difference 1 − i of rounded numbers has no digits left where
//! the gate is saturated.

use crate::kernels::math::Math;

/// How many numbers of a cell are saved: the factors of the gradients of the gates' sums in the order of the gates; then f,
/// and o (1 − u²).
pub const SAVED: usize = 6;

/// The first half of a step of W cells: the sums of i, f, g and c_{t-1} to the factors of dĩ, df̃, dg̃ and dc, and c.
/// The halves are apart because the second waits for the first: a caller has several of one, then of the other.
#[inline(always)]
pub fn write<T: Math, const W: usize>(
    [mut to_i, mut to_f, mut to_g]: [[T; W]; 3],
    mut c: [T; W],
) -> ([[T; W]; 4], [T; W]) {
    let mut keep = c;
    for l in 0..W {
        let ((i, slope_i), (f, slope_f)) = (to_i[l].sigmoid_and_slope(), to_f[l].sigmoid_and_slope());
        let (g, slope_g) = to_g[l].tanh_and_slope();
        (to_i[l], to_f[l], to_g[l], keep[l]) = (g * slope_i, c[l] * slope_f, i * slope_g, f);
        c[l] = f.fma(c[l], i * g);
    }
    ([to_i, to_f, to_g, keep], c)
}

/// The second half: the sum of o and c to the factors of dõ and dh, and h.
#[inline(always)]
pub fn read<T: Math, const W: usize>(mut to_o: [T; W], mut c: [T; W]) -> ([[T; W]; 2], [T; W]) {
    let mut h = c;
    for l in 0..W {
        let ((o, slope_o), (u, slope_u)) = (to_o[l].sigmoid_and_slope(), c[l].tanh_and_slope());
        (to_o[l], c[l], h[l]) = (u * slope_o, o * slope_u, o * u);
    }
    ([to_o, c], h)
}

/// W cells backwards, from what was saved, dh, and dc from step t + 1: the gradients of the gates' sums, and dc for step
/// t − 1.
#[inline(always)]
pub fn back<T: Math, const W: usize>(
    [mut i, mut f, mut g, mut o, keep, through_u]: [[T; W]; SAVED],
    dh: [T; W],
    mut dc: [T; W],
) -> ([[T; W]; 4], [T; W]) {
    for l in 0..W {
        let whole = dh[l].fma(through_u[l], dc[l]);
        (i[l], f[l], g[l], o[l]) = (whole * i[l], whole * f[l], whole * g[l], dh[l] * o[l]);
        dc[l] = whole * keep[l];
    }
    ([i, f, g, o], dc)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::math::m64;

    /// Against the standard library's functions in double precision.
    fn check<T: Math>(digits: f64, least: f64) {
        let sums = [0.0, -0.0, 1e-30, -1e-6, 0.3, -0.7, 2.0, -4.0, 9.0, 15.0, -16.7, 30.0, -40.0, 80.0, 1e4, -1e4];
        let ends = [f64::INFINITY, f64::NEG_INFINITY];
        let all: Vec<f64> = sums.into_iter().chain(ends).map(|x| T::of(x).to_f64()).collect();
        let n = all.len();
        for case in 0..n * n * n {
            let [i, f, g, o] = [case % n, case / n % n, case / n / n, (7 * case + 3) % n].map(|at| all[at]);
            for before in [0.0, 0.75, -20.0] {
                let ([to_i, to_f, to_g, keep], c) = write([i, f, g].map(|x| [T::of(x)]), [T::of(before)]);
                let ([to_o, through_u], h) = read([T::of(o)], c);
                let c = c[0].to_f64();
                let want = [
                    g.tanh() * m64::sigmoid_slope(i),
                    before * m64::sigmoid_slope(f),
                    m64::sigmoid(i) * m64::tanh_slope(g),
                    c.tanh() * m64::sigmoid_slope(o),
                    m64::sigmoid(f),
                    m64::sigmoid(o) * m64::tanh_slope(c),
                    m64::sigmoid(o) * c.tanh(),
                ];
                let all = [to_i, to_f, to_g, to_o, keep, through_u, h];
                for (k, (got, want)) in all.into_iter().zip(want).enumerate() {
                    let (got, least) = (got[0].to_f64(), least * before.abs().max(1.0));
                    let right = (got - want).abs() <= digits * want.abs() + least;
                    assert!(right, "number {k} of {:?}: {got:e}, not {want:e}", [i, f, g, o, before]);
                }
                let want = m64::sigmoid(f) * before + m64::sigmoid(i) * g.tanh();
                assert!((c - want).abs() <= digits * before.abs().max(1.0), "c of {:?} is {c}", [i, f, g, before]);
            }
        }
    }

    #[test]
    fn every_factor_of_a_gradient_has_its_digits() {
        check::<f32>(2e-6, 1e-36); // below that e^x is on its way to 0
        check::<f64>(1e-14, 1e-300);
    }
}
