//! Cells of an LSTM or quasi-LSTM at one step on the CPU, once the pre-activations are known.
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
//! The slopes i (1 − i) and 1 − g² are computed from e^−|x|. A difference 1 − i of rounded numbers has no digits left
//! where the gate is saturated.

use crate::kernels::math::Math;

/// How many numbers of a cell are saved: the factors of the gradients of the pre-activations in the order of the gates;
/// then f, and o (1 − u²).
pub const SAVED: usize = 6;

/// The first half of a step of W cells: ĩ, f̃, g̃ and c_{t-1} to the factors of dĩ, df̃, dg̃ and dc, and c. The halves
/// are apart because the second waits for the first: a caller has several of one, then of the other.
#[inline(always)]
pub fn write<T: Math, const W: usize>([z_i, z_f, z_g]: [[T; W]; 3], mut c: [T; W]) -> ([[T; W]; 4], [T; W]) {
    let [mut to_i, mut to_f, mut to_g, mut to_c] = [c; 4];
    for l in 0..W {
        let ((i, slope_i), (f, slope_f)) = (z_i[l].sigmoid_and_slope(), z_f[l].sigmoid_and_slope());
        let (g, slope_g) = z_g[l].tanh_and_slope();
        (to_i[l], to_f[l], to_g[l], to_c[l]) = (g * slope_i, c[l] * slope_f, i * slope_g, f);
        c[l] = f.fma(c[l], i * g);
    }
    ([to_i, to_f, to_g, to_c], c)
}

/// The second half: õ and c to the factors of dõ and dh, and h.
#[inline(always)]
pub fn read<T: Math, const W: usize>(z_o: [T; W], c: [T; W]) -> ([[T; W]; 2], [T; W]) {
    let [mut to_o, mut to_h, mut h] = [c; 3];
    for l in 0..W {
        let ((o, slope_o), (u, slope_u)) = (z_o[l].sigmoid_and_slope(), c[l].tanh_and_slope());
        (to_o[l], to_h[l], h[l]) = (u * slope_o, o * slope_u, o * u);
    }
    ([to_o, to_h], h)
}

/// W cells backwards, from the factors that were saved, dh, and dc from step t + 1: the gradients of the
/// pre-activations, and dc for step t − 1.
#[inline(always)]
pub fn back<T: Math, const W: usize>(
    [to_i, to_f, to_g, to_o, to_c, to_h]: [[T; W]; SAVED],
    dh: [T; W],
    mut dc: [T; W],
) -> ([[T; W]; 4], [T; W]) {
    let [mut dz_i, mut dz_f, mut dz_g, mut dz_o] = [dc; 4];
    for l in 0..W {
        let whole = dh[l].fma(to_h[l], dc[l]);
        (dz_i[l], dz_f[l], dz_g[l], dz_o[l]) = (whole * to_i[l], whole * to_f[l], whole * to_g[l], dh[l] * to_o[l]);
        dc[l] = whole * to_c[l];
    }
    ([dz_i, dz_f, dz_g, dz_o], dc)
}
