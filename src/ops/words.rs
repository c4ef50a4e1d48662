//! Functions that formulas are written in, beside the arithmetic of [`Var`].
//!
//! # Panics
//! Each function panics where its inputs do not have the axes that it names, as the methods of [`Var`] do. The message
//! has the shapes and the caller's line.

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

/// [`over_time`] of steps that also hand a state on: the rows [B, T, ..] and the last state.
#[track_caller]
pub fn over_time_with<'t, S: Copy>(
    steps: usize,
    none: Var<'t>,
    mut state: S,
    step: impl Fn(usize, S) -> (Var<'t>, S),
) -> (Var<'t>, S) {
    let rows = over_time(steps, none, |t| {
        let row;
        (row, state) = step(t, state);
        row
    });
    (rows, state)
}

/// [`over_time`] in chunks of `chunk` steps: `step(t, n)` for the n steps from t on gives [B, n, ..], and all are one
/// after another along axis 1. The last chunk may have fewer steps. `none` is the result of no steps, as there.
///
/// ```
/// use tapezoo::{autograd::Tape, ops::words::by_chunks, tensor::{DType, Tensor}};
///
/// let tape = Tape::default();
/// let x = tape.constant(&Tensor::from_vec((0..5).map(f64::from).collect(), [1, 5, 1]));
/// // A sum within each chunk, and the sum of all chunks before it is carried.
/// let mut carried = tape.full([1, 1, 1], DType::F64, 0.0);
/// let y = by_chunks(5, 2, x, |t, n| {
///     let y = x.narrow(1, t, n).cumsum(1) + carried;
///     carried = y.narrow(1, n - 1, 1);
///     y
/// });
/// assert_eq!(y.value().to_f64(), [0.0, 1.0, 3.0, 6.0, 10.0]);
/// ```
///
/// # Panics
/// When `chunk` is 0.
#[track_caller]
pub fn by_chunks<'t>(steps: usize, chunk: usize, none: Var<'t>, step: impl FnMut(usize, usize) -> Var<'t>) -> Var<'t> {
    assert!(chunk > 0, "{steps} steps in chunks of none");
    if steps == 0 { none } else { by_pieces(steps, chunk, 1, step) }
}

/// The pieces of T steps, of `size` each but for the last: where each begins and how long it is.
pub fn pieces(t: usize, size: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..t).step_by(size.max(1)).map(move |from| (from, size.min(t - from)))
}

/// `part(from, n)` of [`pieces`] of T ≥ 1 steps, joined along `axis`.
#[track_caller]
pub fn by_pieces<'t>(t: usize, size: usize, axis: usize, mut part: impl FnMut(usize, usize) -> Var<'t>) -> Var<'t> {
    let parts: Vec<Var<'t>> = pieces(t, size).map(|(from, n)| part(from, n)).collect();
    Var::concat(&parts, axis)
}

/// `part(from, place, n)` for pieces of T steps along axis 2 of x [B, H, T, ..], joined along it; x itself if there are
/// no steps. All steps, after the `seen` steps before x, are cut into rows of `size`. A piece ends with its row, or
/// after one step if `one` is set; `place` is its position in its row.
#[track_caller]
pub fn by_rows<'t>(
    seen: usize,
    x: Var<'t>,
    size: usize,
    one: bool,
    mut part: impl FnMut(usize, usize, usize) -> Var<'t>,
) -> Var<'t> {
    let (t, size) = (x.shape().at(2), size.max(1));
    let (mut from, mut all) = (0, vec![]);
    while from < t {
        let place = (seen + from) % size;
        let n = if one { 1 } else { (size - place).min(t - from) };
        all.push(part(from, place, n));
        from += n;
    }
    if all.is_empty() { x } else { Var::concat(&all, 2) }
}

/// x with a new axis of size 1 at `axis`: of [B, H] and 2 it is [B, H, 1].
#[track_caller]
pub fn insert_axis(x: Var<'_>, axis: usize) -> Var<'_> {
    let shape = x.shape();
    assert!(
        axis <= shape.rank(),
        "no axis {axis} can be inserted into shape {shape}: expected at most {}",
        shape.rank()
    );
    let (before, after) = shape.dims().split_at(axis);
    x.reshape(&[before, &[1], after].concat()[..])
}

/// The last axis in `N` equal parts.
#[track_caller]
pub fn split<const N: usize>(x: Var<'_>) -> [Var<'_>; N] {
    let shape = x.shape();
    let fits = shape.rank() > 0 && shape.last().is_multiple_of(N);
    assert!(fits, "shape {shape} has no last axis that can be split into {N} equal parts");
    let (axis, n) = (shape.rank() - 1, shape.last() / N);
    std::array::from_fn(|i| x.narrow(axis, i * n, n))
}

/// The largest of several values, element by element. Of two that are equal each gets half of the gradient.
#[track_caller]
pub fn maximum<'t>(x: &[Var<'t>]) -> Var<'t> {
    assert!(!x.is_empty(), "the maximum of no values");
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

/// In place of a stabiliser of −∞ before the first token: a number of every type, far below any gate.
pub const LEAST: f64 = -1e38;

/// The number that is subtracted from exponents: the stabiliser m, or [`LEAST`] where m is −∞, because −∞ − (−∞) is
/// NaN. The exponential of −∞ is then 0, and so is its gradient.
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

/// Zeros like x.
#[track_caller]
pub fn zeros_like(x: Var<'_>) -> Var<'_> {
    x.tape().full(x.shape(), x.dtype(), 0.0)
}

/// max(x, 0)
#[track_caller]
pub fn relu(x: Var<'_>) -> Var<'_> {
    maximum(&[x, zeros_like(x)])
}

/// x, and 0 or 1 where x is not between them.
#[track_caller]
pub fn clipped(x: Var<'_>) -> Var<'_> {
    1.0 - relu(1.0 - relu(x))
}

/// 1 where x > 0, else 0. It has no gradient. In double precision an x below 1e-60 gives 1e60 x, less than 1.
#[track_caller]
pub fn positive(x: Var<'_>) -> Var<'_> {
    clipped(1e30 * (1e30 * x.tape().detached(x)))
}

/// 1 at the `n` largest of the last axis of x [B, T, M], else 0; among equal entries the first count. It has no
/// gradient.
#[track_caller]
pub fn largest(x: Var<'_>, n: usize) -> Var<'_> {
    let more = insert_axis(x, 2) - insert_axis(x, 3); // [B, T, i, j]: by how much j is more than i
    let [above, below] = [positive(more), positive(-more)];
    let equal_before = (1.0 - above - below).tril(-1);
    let rank = (above + equal_before).sum_axis(3, false);
    1.0 - clipped(rank + (1.0 - n as f64))
}

/// ln(e^a + e^b)
#[track_caller]
pub fn log_add<'t>(a: Var<'t>, b: Var<'t>) -> Var<'t> {
    let axis = a.shape().rank();
    Var::concat(&[insert_axis(a, axis), insert_axis(b, axis)], axis).logsumexp()
}
