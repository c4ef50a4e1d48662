//! Position information.

use super::{ModelConfig, Positions};
use crate::{
    autograd::Var,
    ops::words::{by_pieces, insert_axis, token},
    tensor::{DType, Tensor},
};

/// x = scale · table[token] + positions: [B, T, D] of a table [V, D], tokens [B, T] and positions [T, D].
#[track_caller]
pub(super) fn embed<'t>(table: Var<'t>, scale: f64, tokens: Var<'t>, positions: Option<Var<'t>>) -> Var<'t> {
    let x = (scale * table).embedding(tokens);
    positions.map_or(x, |positions| x + positions)
}

/// The angles of position t: t / 10000^(2i / n) for i = 0 … n/2 - 1.
fn angles(len: usize, n: usize) -> impl Iterator<Item = f64> {
    let half = n / 2;
    (0..len).flat_map(move |t| (0..half).map(move |i| t as f64 / 10_000f64.powf(2.0 * i as f64 / n as f64)))
}

/// Sines and cosines of the position (Vaswani et al. 2017, section 3.5): [len, D], sines in even columns.
pub(super) fn sinusoid(len: usize, width: usize, dtype: DType) -> Tensor {
    let v: Vec<f64> = angles(len, width).flat_map(|a| [a.sin(), a.cos()]).collect();
    Tensor::from_vec(v, [len, width]).cast(dtype)
}

/// Rotary positions (Su et al. 2021, arXiv 2104.09864, eq. 34, with the pairs of GPT-NeoX): the pair (x_i, x_{i + K/2})
/// of a query or key at position t is rotated by the angle t / 10000^(2i / K), so that q_t · k_s depends on t − s.
pub struct Rope {
    /// cos and sin [len, 1, K/2], in f32 and in f64.
    tables: [(Tensor, Tensor); 2],
}

impl Rope {
    /// Tables up to `max_len`, if the model wants rotary positions.
    pub fn new(c: &ModelConfig) -> Option<Rope> {
        (c.positions == Positions::Rope).then(|| Rope::tables(c.max_len, c.head_dim))
    }

    /// Tables of `len` positions for heads of width `k`.
    pub(super) fn tables(len: usize, k: usize) -> Rope {
        let table = |f: fn(f64) -> f64, dtype| {
            let v: Vec<f64> = angles(len, k).map(f).collect();
            Tensor::from_vec(v, [len, 1, k / 2]).cast(dtype)
        };
        Rope { tables: [DType::F32, DType::F64].map(|d| (table(f64::cos, d), table(f64::sin, d))) }
    }

    /// Rotate x [B, T, H, K], whose first position is `t0`.
    ///
    /// # Panics
    /// When the sequence is longer than the tables.
    #[track_caller]
    pub fn rotate<'t>(&self, x: Var<'t>, t0: usize) -> Var<'t> {
        let [_, t, _, k] = x.dims();
        let half = k / 2;
        let (cos, sin) = &self.tables[usize::from(x.dtype() == DType::F64)];
        assert!(t0 + t <= cos.shape().at(0), "rope: position {} is past max_len = {}", t0 + t, cos.shape().at(0));
        let rows = |table: &Tensor| x.tape().constant(&table.window(t0 * half, [t, 1, half])).cast(x.dtype());
        let (cos, sin) = (rows(cos), rows(sin));
        let (a, b) = (x.narrow(3, 0, half), x.narrow(3, half, half));
        Var::concat(&[a * cos - b * sin, a * sin + b * cos], 3)
    }
}

/// cos and sin [T, 1, K/2] of p 10000^(−2j / K), where p, the place of a token, counts from 0 to R − 1 and begins again;
/// on x's tape, for x [B, T, ..] behind `seen` tokens.
pub(super) fn places<'t>(x: Var<'t>, seen: usize, r: usize, k: usize) -> [Var<'t>; 2] {
    let t = x.shape().at(1);
    // An angle has few digits in bf16.
    let full = |shape: &[usize], value: f64| x.tape().full(shape, x.dtype().real(), value);
    let place = full(&[r, 1, 1], 1.0).cumsum(0) - 1.0;
    let repeated = Var::concat(&vec![place; (t + r).div_ceil(r)], 0).narrow(0, seen % r, t);
    let rate = -2.0 * 10_000f64.ln() / k.max(1) as f64;
    let angles = repeated * (rate * (full(&[k / 2], 1.0).cumsum(0) - 1.0)).exp();
    [angles.cos(), angles.sin()].map(|y| y.cast(x.dtype()))
}

/// φ_t = φ_{t-1} + turns_t modulo 2π, of the φ before [B, H, S] and turns [B, T, H, S], T ≥ 1, in the type of the turns.
/// After every 32 steps whole turns are left out: a sum over everything would lose the digits of an angle.
pub fn running_angles<'t>(phi: Var<'t>, turns: Var<'t>) -> Var<'t> {
    let mut phi = phi.cast(turns.dtype());
    by_pieces(turns.shape().at(1), 32, 1, |from, n| {
        let all = (insert_axis(phi, 1) + turns.narrow(1, from, n).cumsum(1)).wrap();
        phi = token(all, n - 1);
        all
    })
}

/// Rotate if the model has rotary positions.
#[track_caller]
pub fn rotate<'t>(rope: &Option<Rope>, x: Var<'t>, t0: usize) -> Var<'t> {
    rope.as_ref().map_or(x, |r| r.rotate(x, t0))
}
