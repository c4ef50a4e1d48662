//! The norms of rows that the plain loops compute wrongly: rows whose squares overflow or underflow, or whose mean is
//! so large beside their spread that its rounding counts. They are recognised by the 1 / √(… + ε) that the plain loops
//! give, and computed again one by one: in double precision, scaled by a power of two, and with the mean subtracted
//! twice.

use crate::{kernels::lane_sums, tensor::Real};
use std::ops::Range;

/// The least and the largest r of a row that the plain loops compute: its squares, and their sum, are then far from the
/// ends of the type.
fn bounds<T: Real>() -> [T; 2] {
    let [least, most] = if size_of::<T>() == 4 { [-60, 40] } else { [-480, 400] };
    [least, most].map(|e| T::of(2f64.powi(e)))
}

/// The largest mean of such a row, in units of √(var + ε). The error of y is so many roundings.
const MEAN: f64 = 16.0;

#[inline(always)]
fn near<T: Real>([least, most]: [T; 2], mean: T, r: T) -> bool {
    (r > least) & (r < most) & ((mean * r).abs() < T::of(MEAN))
}

/// Whether all rows are done by the plain loops; `mean` is of each row, or of none.
#[versions::versions]
fn all_near<T: Real>(mean: &[T], r: &[T]) -> bool {
    let bounds = bounds::<T>();
    if mean.is_empty() {
        return r.iter().fold(true, |all, &r| all & near(bounds, T::ZERO, r));
    }
    mean.iter().zip(r).fold(true, |all, (&mean, &r)| all & near(bounds, mean, r))
}

/// Stretches of rows, and whether they are far. As a rule only single rows are.
pub fn stretches<T: Real>(mean: &[T], r: &[T]) -> Vec<(Range<usize>, bool)> {
    if all_near(mean, r) {
        return vec![(0..r.len(), false)];
    }
    let far = |i: usize| !near(bounds(), mean.get(i).copied().unwrap_or(T::ZERO), r[i]);
    let mut all: Vec<(Range<usize>, bool)> = vec![];
    for i in 0..r.len() {
        match all.last_mut() {
            Some((rows, was)) if *was == far(i) => rows.end = i + 1,
            _ => all.push((i..i + 1, far(i))),
        }
    }
    all
}

/// A row less its mean, times a power of two.
struct Row {
    x: Vec<f64>,
    mean: f64,
    /// The power of two.
    scale: f64,
    /// Σ x²
    square: f64,
}

impl Row {
    fn new(n: usize) -> Row {
        Row { x: vec![0.0; n], mean: 0.0, scale: 1.0, square: 0.0 }
    }

    /// Make this row x. False, and nothing to do, if x is not finite, or if x and `floor`, which may count beside it,
    /// are 0.
    fn load<T: Real>(&mut self, centre: bool, floor: f64, x: &[T]) -> bool {
        let largest = x.iter().fold(floor, |most, x| most.max(x.to_f64().abs()));
        if !x.iter().all(|x| x.is_finite()) || largest == 0.0 {
            return false;
        }
        let exponent = (largest.to_bits() >> 52) as i32 - 1023;
        self.scale = 2f64.powi(-exponent.clamp(-1000, 1000));
        self.x.iter_mut().zip(x).for_each(|(to, x)| *to = x.to_f64() * self.scale);
        self.mean = 0.0;
        for _ in 0..if centre { 2 } else { 0 } {
            let mean = lane_sums::sum(&self.x, |x| x) / x.len() as f64;
            self.x.iter_mut().for_each(|x| *x -= mean);
            self.mean += mean;
        }
        self.square = lane_sums::sum(&self.x, |x| x * x);
        true
    }

    /// [`Row::load`], then normalise: the row becomes x̂. Gives its r before scaling.
    fn normalise<T: Real>(&mut self, centre: bool, eps: f64, x: &[T]) -> Option<f64> {
        if !self.load(centre, eps.sqrt(), x) {
            return None;
        }
        let r = 1.0 / (self.square / x.len() as f64 + eps * self.scale * self.scale).sqrt();
        self.x.iter_mut().for_each(|x| *x *= r);
        Some(r)
    }
}

/// Compute again the rows that [`super::forward`] computes wrongly.
pub fn forward<T: Real>(centre: bool, eps: f64, x: &[T], (w, b): (&[T], Option<&[T]>), [y, mean, r]: [&mut [T]; 3]) {
    let (n, mut row) = (w.len(), Row::new(w.len()));
    for i in stretches(mean, r).into_iter().filter(|s| s.1).flat_map(|s| s.0) {
        if let Some(s) = row.normalise(centre, eps, &x[i * n..][..n]) {
            for (j, (y, x)) in y[i * n..][..n].iter_mut().zip(&row.x).enumerate() {
                *y = T::of(x * w[j].to_f64() + b.map_or(0.0, |b| b[j].to_f64()));
            }
            (mean[i], r[i]) = (T::of(row.mean / row.scale), T::of(s * row.scale));
        }
    }
}

/// dx of such rows, as [`super::backward_x`].
pub fn backward_x<T: Real>(centre: bool, eps: f64, [x, g]: [&[T]; 2], w: &[T], (d, acc): (&mut [T], bool)) {
    let (n, mut row, mut gw) = (w.len(), Row::new(w.len()), vec![0.0; w.len()]);
    for ((x, g), d) in x.chunks_exact(n).zip(g.chunks_exact(n)).zip(d.chunks_exact_mut(n)) {
        let r = row.normalise(centre, eps, x).unwrap_or(f64::NAN);
        gw.iter_mut().zip(g).zip(w).for_each(|((gw, g), w)| *gw = g.to_f64() * w.to_f64());
        let of_g = if centre { lane_sums::sum(&gw, |g| g) / n as f64 } else { 0.0 };
        let of_gx = lane_sums::sum2(&gw, &row.x, |g, x| g * x) / n as f64;
        for ((d, g), x) in d.iter_mut().zip(&gw).zip(&row.x) {
            let dx = T::of(r * (g - of_g - x * of_gx) * row.scale);
            *d = if acc { *d + dx } else { dx };
        }
    }
}

/// dw += Σ g x̂ over such rows.
pub fn backward_w<T: Real>(centre: bool, eps: f64, x: &[T], g: &[T], dw: &mut [T]) {
    let (n, mut row) = (dw.len(), Row::new(dw.len()));
    for (x, g) in x.chunks_exact(n).zip(g.chunks_exact(n)) {
        if row.normalise(centre, eps, x).is_none() {
            row.x.fill(f64::NAN);
        }
        dw.iter_mut().zip(g).zip(&row.x).for_each(|((dw, g), x)| *dw += T::of(g.to_f64() * x));
    }
}

/// Compute again the rows that [`super::l2::l2_forward`] computes wrongly. Rows shorter than eps are right already.
pub fn l2_forward<T: Real>(n: usize, smooth: bool, eps: f64, x: &[T], y: &mut [T], r: &mut [T]) {
    let mut row = Row::new(n);
    for i in stretches(&[], r).into_iter().filter(|s| s.1).flat_map(|s| s.0) {
        if !row.load(false, if smooth { eps.sqrt() } else { eps }, &x[i * n..][..n]) {
            continue;
        }
        let more = if smooth { eps * row.scale * row.scale } else { 0.0 };
        let length = (row.square + more).sqrt();
        if smooth || length >= eps * row.scale {
            y[i * n..][..n].iter_mut().zip(&row.x).for_each(|(y, x)| *y = T::of(x / length));
            r[i] = T::of(row.scale / length);
        }
    }
}
