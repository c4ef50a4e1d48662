//! Roundings of a reference implementation that are not part of the mathematics.
//!
//! Mamba's published code, and mambapy after it, keep two parameters in single precision, whatever the precision of the
//! rest: `A = -torch.exp(self.A_log.float())`, `D = self.D.float()`. In a fixture made in double precision A is then
//! rounded to 24 bits, and so are the gradients of A_log and D: 2e-8 where everything else agrees to 1e-15. If a
//! fixture shows this, the same roundings are applied to our results, so that everything else can be compared to 1e-9.
//!
//! It is unknown which way the other library's exp rounded. The movement of each tensor by one rounding of A is
//! measured and added to its floor.

use super::{EXACT, Eval, Fixture, Named, floor};
use crate::{
    autograd::Gen,
    error::Result,
    tensor::{DType, Tensor},
};
use std::collections::BTreeMap;

fn single(x: f64) -> f64 {
    f64::from(x as f32)
}

/// Whether the fixture's gradient of this input was rounded to single precision: it is not all zeros, and no element
/// has more than 24 bits.
fn rounded(f: &Fixture, input: &str, dtype: DType) -> bool {
    let known = f.op == "mamba_layer" && ["A_log", "D"].contains(&input) && dtype == DType::F64;
    let shows = |t: &Tensor| {
        let x = t.to_f64();
        x.iter().any(|&x| x != 0.0) && x.iter().all(|&x| single(x) == x)
    };
    known && f.tensor(&format!("grad.{input}")).is_ok_and(shows)
}

fn map(t: &Tensor, f: impl FnMut(f64) -> f64) -> Tensor {
    Tensor::from_vec(t.to_f64().into_iter().map(f).collect::<Vec<f64>>(), t.shape())
}

/// The inputs that the reference computed with: the A_log whose A = −exp(A_log) is a single-precision number.
pub fn inputs(f: &Fixture, inputs: &Named, dtype: DType) -> Named {
    let mut inputs = inputs.clone();
    if let Some(a_log) = inputs.get_mut("A_log").filter(|_| rounded(f, "A_log", dtype)) {
        *a_log = map(a_log, |x| single(single(x).exp()).ln());
    }
    inputs
}

/// Our results with the reference's roundings: of dD, of dA, and of dA_log = dA · A.
pub fn results(f: &Fixture, mut results: Named, dtype: DType) -> Named {
    if let Some(d) = results.get_mut("grad.D").filter(|_| rounded(f, "D", dtype)) {
        *d = map(d, single);
    }
    if let Some(d) = results.get_mut("grad.A_log").filter(|_| rounded(f, "A_log", dtype)) {
        let a_log = f.tensor("in.A_log").map(Tensor::to_f64).unwrap_or_default();
        let mut a = a_log.iter().map(|&x| single(single(x).exp()));
        *d = map(d, |g| a.next().map_or(g, |a| if a == 0.0 { 0.0 } else { single(single(g / a) * a) }));
    }
    results
}

/// How far the results may be off because A, and gradients from it, may have been rounded the other way.
pub fn uncertain(f: &Fixture, given: &Named, base: &Named, eval: &Eval, dtype: DType) -> Result<BTreeMap<String, f64>> {
    if !rounded(f, "A_log", dtype) {
        return Ok(BTreeMap::new());
    }
    let mut random = Gen::new(0);
    let mut moved = given.clone();
    if let Some(a_log) = moved.get_mut("A_log") {
        let ulp = f64::from(f32::EPSILON);
        *a_log = map(a_log, |x| single(single(x).exp()).ln() + if random.coin() { ulp } else { -ulp });
    }
    let moved = results(f, eval(&moved, EXACT, None)?, dtype);
    Ok(floor::apart(&moved, &results(f, base.clone(), dtype)))
}
