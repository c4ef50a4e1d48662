//! Functions that formulas are written in, beside the arithmetic of [`Var`].

use crate::autograd::Var;

/// x_t of a sequence: [B, T, ..] to [B, ..].
#[track_caller]
pub fn token(x: Var<'_>, t: usize) -> Var<'_> {
    let shape = x.shape();
    let dims: Vec<usize> = shape.dims().iter().enumerate().filter(|&(axis, _)| axis != 1).map(|(_, &n)| n).collect();
    x.narrow(1, t, 1).reshape(&dims[..])
}

/// `step(t)` for t in 0..steps, each [B, ..], stacked along a new axis 1: [B, T, ..]. `none` is the result of no steps:
/// any value of shape [B, 0, ..].
#[track_caller]
pub fn over_time<'t>(steps: usize, none: Var<'t>, step: impl FnMut(usize) -> Var<'t>) -> Var<'t> {
    let rows: Vec<Var<'t>> = (0..steps).map(step).map(|y| insert_axis(y, 1)).collect();
    if rows.is_empty() { none } else { Var::concat(&rows, 1) }
}

/// x with a new axis of size 1 at `axis`: of [B, H] and 2 it is [B, H, 1].
#[track_caller]
pub fn insert_axis(x: Var<'_>, axis: usize) -> Var<'_> {
    let shape = x.shape();
    let (before, after) = shape.dims().split_at(axis);
    x.reshape(&[before, &[1], after].concat()[..])
}

/// The last axis in `N` equal parts.
#[track_caller]
pub fn split<const N: usize>(x: Var<'_>) -> [Var<'_>; N] {
    let (axis, n) = (x.shape().rank() - 1, x.shape().last() / N);
    std::array::from_fn(|i| x.narrow(axis, i * n, n))
}

/// The largest of several values, element by element. Of two that are equal each gets half of the gradient.
#[track_caller]
pub fn maximum<'t>(x: &[Var<'t>]) -> Var<'t> {
    let axis = x[0].shape().rank();
    let columns: Vec<Var<'t>> = x.iter().map(|&x| insert_axis(x, axis)).collect();
    Var::concat(&columns, axis).max_axis(axis, false)
}

/// ln σ(x)
#[track_caller]
pub fn log_sigmoid(x: Var<'_>) -> Var<'_> {
    -(-x).softplus()
}

/// A matrix memory's read: S [B, H, K, V] and q [B, H, K] to Sᵀ q [B, H, V].
#[track_caller]
pub fn recall<'t>(s: Var<'t>, q: Var<'t>) -> Var<'t> {
    let [b, h, _, v] = s.dims();
    s.t_matmul(insert_axis(q, 3)).reshape([b, h, v])
}

/// k vᵀ of each head: k [B, H, K] and v [B, H, V] to [B, H, K, V].
#[track_caller]
pub fn outer<'t>(k: Var<'t>, v: Var<'t>) -> Var<'t> {
    insert_axis(k, 3) * insert_axis(v, 2)
}

/// Stands for a stabiliser of −∞, before anything was seen: a number of every type, and far below any gate.
pub const LEAST: f64 = -1e38;

/// What exponents are measured from: the stabiliser m, or where that is −∞ a number, since −∞ less −∞ is none. Of −∞
/// the exponential is 0 then, as is its gradient.
#[track_caller]
pub fn reference(m: Var<'_>) -> Var<'_> {
    maximum(&[m, m.tape().full(m.shape(), m.dtype(), LEAST)])
}

/// x, with the largest number of its type in place of +∞, and the least one in place of −∞.
#[track_caller]
pub fn finite(x: Var<'_>) -> Var<'_> {
    let most = x.tape().full(x.shape(), x.dtype(), x.dtype().largest());
    -maximum(&[-most, -maximum(&[x, -most])])
}
