//! The scans of [`LinearScan`](super::scan::LinearScan) and [`LruScan`](super::scan::LruScan) in ⌈log₂ T⌉ rounds
//! of whole-tensor operations (Hillis & Steele 1986), from ops that the tape knows already: nothing here has a
//! derivative of its own. More arithmetic than the loop, by log₂ T, but none of it waits for the step before.
//!
//! Before the round of width s, element t holds the composition of the maps of steps t − s + 1 … t (fewer at the
//! start); the round puts behind it what element t − s holds, so that it covers 2 s steps.

use crate::{
    autograd::Var,
    ops::lru_scan::{Complex, mul},
};

/// The values of [`linear_scan`](super::scan::linear_scan): (h [B, T, D], the last h [B, D]). Products of many a are
/// numbers of the type: with |a| ≤ 1 they always are.
#[track_caller]
pub fn linear_scan_parallel<'t>(a: Var<'t>, b: Var<'t>, h0: Var<'t>) -> (Var<'t>, Var<'t>) {
    let [n, steps, d] = b.dims();
    let (mut a, mut b, mut s) = (a, b, 1);
    while s < steps {
        let early = |x: Var<'t>| x.narrow(1, 0, steps - s);
        let late = |x: Var<'t>| x.narrow(1, s, steps - s);
        let both = |x: Var<'t>, y: Var<'t>| Var::concat(&[x.narrow(1, 0, s), y], 1);
        (a, b) = (both(a, late(a) * early(a)), both(b, late(a) * early(b) + late(b)));
        s *= 2;
    }
    let h = a * h0.reshape([n, 1, d]) + b;
    (h, last(h, h0))
}

/// The values of [`lru_scan`](super::scan::lru_scan): (h [B, T, D], the last h [B, D]). A map that covers s steps
/// multiplies by λˢ, whichever the steps.
#[track_caller]
pub fn lru_scan_parallel<'t>(lambda: Complex<'t>, x: Complex<'t>, h0: Complex<'t>) -> (Complex<'t>, Complex<'t>) {
    let [n, steps, d] = x.0.dims();
    if steps == 0 {
        return (x, h0);
    }
    // The initial state enters with the first input.
    let first = mul(lambda, (h0.0.reshape([n, 1, d]), h0.1.reshape([n, 1, d])));
    let enter = |x: Var<'t>, first: Var<'t>| Var::concat(&[x.narrow(1, 0, 1) + first, x.narrow(1, 1, steps - 1)], 1);
    let mut h = (enter(x.0, first.0), enter(x.1, first.1));
    let (mut power, mut s) = (lambda, 1);
    while s < steps {
        let early = mul(power, (h.0.narrow(1, 0, steps - s), h.1.narrow(1, 0, steps - s)));
        let both = |h: Var<'t>, early| Var::concat(&[h.narrow(1, 0, s), h.narrow(1, s, steps - s) + early], 1);
        h = (both(h.0, early.0), both(h.1, early.1));
        power = mul(power, power);
        s *= 2;
    }
    (h, (last(h.0, h0.0), last(h.1, h0.1)))
}

/// The last state, h0 when there are no steps.
#[track_caller]
fn last<'t>(h: Var<'t>, h0: Var<'t>) -> Var<'t> {
    match h.dims() {
        [_, 0, _] => h0,
        [n, steps, d] => h.narrow(1, steps - 1, 1).reshape([n, d]),
    }
}
