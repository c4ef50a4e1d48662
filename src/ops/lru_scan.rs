//! The recurrence of the LRU, with one complex λ a channel (Orvieto et al. 2023, "Resurrecting Recurrent Neural Networks
//! for Long Sequences", eq. 3).
//!
//! ```text
//! h_t = λ h_{t-1} + x_t
//! ```
//!
//! A row of x and h has the real parts first and the imaginary parts behind them, so that one matrix product makes x
//! and one takes h. In a slice [T, 2 D] rows 2t and 2t + 1 of D elements are the parts of step t. λ and the states have
//! a tensor for each part.

use crate::{
    autograd::{Candidates, Gen, In, Op, Outs, Var},
    ops::{
        same_dtype, some_steps,
        words::{over_time, split, token},
    },
    tensor::Tensor,
};

/// h_t = λ h_{t-1} + x_t: the parts of λ `[D]`, x [B, T, 2 D] with the imaginary parts behind the real ones, and the
/// parts of h0 [B, D], to h as x and the parts of the last state [B, D].
pub struct LruScan {
    /// Steps of a chunk, on which no result depends: a CPU goes through all steps, a device through groups of its own.
    pub chunk: usize,
}

impl Op for LruScan {
    fn name(&self) -> &'static str {
        "lru_scan"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        let [lr, li, v, hr, hi] = std::array::from_fn(|i| x[i].shape());
        let [n, _, both] = v.array()?;
        let d = both / 2;
        if both % 2 != 0 || lr != [d].into() || li != lr || hr != [n, d].into() || hi != hr {
            return Err(format!(
                "λ {lr} {li}, x {v} and h0 {hr} {hi} do not fit: expected [D] twice, [B, T, 2 D] and [B, D] twice"
            ));
        }
        same_dtype(self.name(), x).and(some_steps(self.chunk))?;
        Ok([v, hr, hi].map(|shape| (shape, x[2].dtype())).into())
    }

    fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
        let ([_, t, _], [lr, li]) = (x[2].dims(), [x[0], x[1]].map(|lambda| lambda.cast(x[2].dtype())));
        let (mut hr, mut hi) = (x[3], x[4]);
        let all = over_time(t, x[2], |t| {
            let [xr, xi] = split(token(x[2], t));
            (hr, hi) = (lr * hr - li * hi + xr, lr * hi + li * hr + xi); // (h_t)
            Var::concat(&[hr, hi], 1)
        });
        Some(vec![all, hr, hi])
    }

    fn kernels(&self) -> Candidates<'_> {
        self.into()
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let shape = g.shape(3, 7);
        let (n, t, d) = (shape.at(0), shape.at(1), shape.at(2));
        let lambda = [g.range([d], -0.8, 0.8), g.range([d], -0.8, 0.8)];
        let rest = [g.normal([n, t, 2 * d]), g.normal([n, d]), g.normal([n, d])];
        (LruScan { chunk: g.size(5) }, lambda.into_iter().chain(rest).collect())
    }
}

/// A complex value: real and imaginary part.
pub type Complex<'t> = (Var<'t>, Var<'t>);

/// The complex product, element by element.
#[track_caller]
pub fn mul<'t>(a: Complex<'t>, b: Complex<'t>) -> Complex<'t> {
    (a.0 * b.0 - a.1 * b.1, a.0 * b.1 + a.1 * b.0)
}

/// h_t = λ h_{t-1} + x_t by [`LruScan`]: λ `[D]`, x [B, T, D], h0 [B, D] to all states [B, T, D] and the last [B, D]
/// (h0 when T = 0).
#[track_caller]
pub fn lru_scan<'t>(lambda: Complex<'t>, x: Complex<'t>, h0: Complex<'t>, chunk: usize) -> (Complex<'t>, Complex<'t>) {
    let (axis, d) = (x.0.shape().rank().saturating_sub(1), lambda.0.shape().last());
    assert!(x.0.shape() == x.1.shape(), "lru_scan: x {} and {} differ", x.0.shape(), x.1.shape());
    let (h, last) = lru_scan_joined(lambda, joined(x), h0, chunk);
    ((h.narrow(axis, 0, d), h.narrow(axis, d, d)), last)
}

/// [`lru_scan`] of x [B, T, 2 D], in which the imaginary parts of a row are behind the real ones. h has the same
/// layout.
#[track_caller]
pub fn lru_scan_joined<'t>(lambda: Complex<'t>, x: Var<'t>, h0: Complex<'t>, chunk: usize) -> (Var<'t>, Complex<'t>) {
    let inputs = [lambda.0, lambda.1, x, h0.0, h0.1];
    let [h, last_r, last_i] = x.tape().apply_many(LruScan { chunk }, inputs);
    (h, (last_r, last_i))
}

/// Both parts side by side along the last axis.
#[track_caller]
pub(crate) fn joined<'t>(x: Complex<'t>) -> Var<'t> {
    Var::concat(&[x.0, x.1], x.0.shape().rank().saturating_sub(1))
}

/// [`lru_scan_joined`] by [`lru_scan_parallel`](super::scan::lru_scan_parallel).
#[track_caller]
pub fn lru_scan_parallel_joined<'t>(lambda: Complex<'t>, x: Var<'t>, h0: Complex<'t>) -> (Var<'t>, Complex<'t>) {
    let [re, im] = split(x);
    let (h, last) = super::scan::lru_scan_parallel(lambda, (re, im), h0);
    (joined(h), last)
}
