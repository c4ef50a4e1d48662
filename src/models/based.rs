//! The feature map of Based (Arora et al. 2024, arXiv 2402.18668), which is the exponential's Taylor series up to the
//! square, and JRT's reading of a prefix (Arora et al. 2024, "Just read twice", arXiv 2407.05483).
//!
//! ```text
//! φ(q)·φ(k) = 1 + x + x²/2,  x = scale q·k                               positive for every x
//! o_t = Σ_{s ≤ t} φ(q_t)·φ(k_s) v_s / (Σ_{s ≤ t} φ(q_t)·φ(k_s) + ε)
//! ```
//!
//! JRT adds to both sums those over all of a prefix, with keys and values of its own: every token sees the whole of it.

use super::head_first;
use crate::{autograd::Var, ops::words::maximum};

/// φ(q)·φ(k) / m² of the products x, with a number m for each row.
fn weights<'t>(x: Var<'t>, m: Var<'t>) -> Var<'t> {
    let x = x / m;
    0.5 * x.square() + (x + 1.0 / m) / m
}

/// The largest magnitude in each row of x, if it is above 1, else 1. It has no gradient: a quotient does not depend on it.
fn largest_of<'t>(x: Var<'t>) -> Var<'t> {
    let (x, [b, h, t, _]) = (x.tape().detached(x), x.dims());
    let one = x.tape().full([b, h, t, 1], x.dtype(), 1.0);
    Var::concat(&[maximum(&[x, -x]), one], 3).max_axis(3, true)
}

/// o [B, T, H, V] of q, k [B, T, H, K], v [B, T, H, V] and a prefix k [B, E, H, K], v [B, E, H, V] or none.
pub fn attention<'t>([q, k, v]: [Var<'t>; 3], prefix: Option<[Var<'t>; 2]>, scale: f64, eps: f64) -> Var<'t> {
    let [q, k, v] = [q, k, v].map(head_first);
    // What is left out of a row does not count, whatever it is.
    let x = (scale * q).matmul_t(k).tril(0);
    let prefix = prefix.map(|[k, v]| ((scale * q).matmul_t(head_first(k)), head_first(v)));
    // Single precision cannot hold the square of a large product: both sums are divided by that of a row's largest.
    let m = prefix.iter().map(|of| largest_of(of.0)).fold(largest_of(x), |m, other| maximum(&[m, other]));
    let a = weights(x, m).tril(0);
    let (mut sum, mut read) = (a.sum_axis(3, true), a.tril_matmul(v));
    if let Some((x, v)) = prefix {
        let a = weights(x, m);
        (sum, read) = (sum + a.sum_axis(3, true), read + a.matmul(v));
    }
    head_first(read / (sum + eps / m.square()))
}
