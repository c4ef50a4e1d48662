//! The Legendre memory unit's memory (Voelker et al. 2019; as in nengo's keras_lmu): the last θ steps of each channel, in
//! shifted Legendre polynomials.
//!
//! ```text
//! θ m' = A m + B u,  A_ij = (2i+1) (−1 if i < j, else (−1)^(i−j+1)),  B_i = (2i+1) (−1)^i
//! m_t = Ā m_{t-1} + B̄ u_t                                                zero-order hold of step 1, or Euler's
//! ```
//!
//! Ā and B̄ are constants.

use super::{at, memories::constant, over_time};
use crate::{autograd::Var, ops::words::insert_axis};

/// Ā (n by n) and B̄ (n): exp [[A/θ, B/θ], [0, 0]] = [[Ā, B̄], [0, 1]], or its first two terms.
fn held(n: usize, theta: f64, euler: bool) -> (Vec<f64>, Vec<f64>) {
    let size = n + 1;
    let sign = |k: usize| if k.is_multiple_of(2) { 1.0 } else { -1.0 };
    let entry = |i: usize, j: usize| match (i, j) {
        _ if i == n => 0.0,
        _ if j == n => sign(i),
        _ if i < j => -1.0,
        _ => -sign(i - j),
    };
    let at = |k: usize| (2.0 * (k / size) as f64 + 1.0) * entry(k / size, k % size) / theta;
    let rate: Vec<f64> = (0..size * size).map(at).collect();
    let product = |a: &[f64], b: &[f64]| -> Vec<f64> {
        let term = |k: usize| (0..size).map(|l| a[k / size * size + l] * b[l * size + k % size]).sum();
        (0..size * size).map(term).collect()
    };
    let largest = rate.chunks(size).map(|row| row.iter().map(|x| x.abs()).sum::<f64>()).fold(0.0, f64::max);
    // Taylor's series of a part of the step that is small, and squares of it.
    let halvings = if euler { 0 } else { largest.max(1.0).log2().ceil() as i32 + 3 };
    let small: Vec<f64> = rate.iter().map(|x| x / 2f64.powi(halvings)).collect();
    let mut sum: Vec<f64> = (0..size * size).map(|i| if i % (size + 1) == 0 { 1.0 } else { 0.0 }).collect();
    let mut term = sum.clone();
    let terms = if euler { 1 } else { 16 };
    for k in 1..=terms {
        term = product(&term, &small).into_iter().map(|x| x / f64::from(k)).collect();
        sum.iter_mut().zip(&term).for_each(|(sum, x)| *sum += x);
    }
    for _ in 0..halvings {
        sum = product(&sum, &sum);
    }
    let rows = || sum.chunks(size).take(n);
    (rows().flat_map(|row| row[..n].to_vec()).collect(), rows().map(|row| row[n]).collect())
}

/// m [B, T, C, N] of u [B, T, C].
pub fn memory<'t>(u: Var<'t>, n: usize, theta: f64, euler: bool) -> Var<'t> {
    let ([b, t, c], (a, input)) = (u.dims(), held(n, theta, euler));
    let (a, input) = (constant(u, a, &[n, n]), constant(u, input, &[n]));
    let mut m = u.tape().full([b, c, n], u.dtype(), 0.0);
    let none = u.tape().full([b, 0, c, n], u.dtype(), 0.0);
    over_time(t, none, |i| {
        m = m.matmul_t(a) + insert_axis(at(u, i), 2) * input;
        m
    })
}
