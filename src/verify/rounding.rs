//! What a reference does to its numbers that the mathematics does not say.
//!
//! Mamba's published code, and mambapy after it, hold two parameters in single precision whatever the rest of the
//! layer is in: `A = -torch.exp(self.A_log.float())`, `D = self.D.float()`. In a fixture made in double precision A is
//! then rounded to 24 bits, and so are the gradients of A_log and D: 2e-8 where everything else agrees to 1e-15. Where
//! a fixture shows this, the same roundings are applied to our numbers, so that the rest can be compared to 1e-9.

use super::Fixture;
use crate::tensor::{DType, Tensor};

fn single(x: f64) -> f64 {
    f64::from(x as f32)
}

/// Whether the fixture's gradient of this input was rounded to single precision.
fn rounded(f: &Fixture, input: &str, dtype: DType) -> bool {
    let known = f.op == "mamba_layer" && ["A_log", "D"].contains(&input) && dtype == DType::F64;
    let shows = |t: &Tensor| t.to_f64().iter().all(|&x| single(x) == x);
    known && f.tensor(&format!("grad.{input}")).is_ok_and(shows)
}

/// How many times the tolerance passes: what is downstream of a number rounded to single precision agrees to 1e-7 for
/// certain, to 1e-9 only where both libraries' exp rounds the same way.
pub fn slack(f: &Fixture, dtype: DType) -> f64 {
    if rounded(f, "A_log", dtype) { 100.0 } else { 1.0 }
}

fn map(t: &Tensor, f: impl Fn(f64) -> f64) -> Tensor {
    Tensor::from_vec(t.to_f64().into_iter().map(f).collect::<Vec<f64>>(), t.shape())
}

/// The input that the reference computed with: the A_log whose A = −exp(A_log) is a single-precision number.
pub fn input(f: &Fixture, name: &str, t: &Tensor, dtype: DType) -> Tensor {
    if name == "A_log" && rounded(f, name, dtype) { map(t, |x| single(single(x).exp()).ln()) } else { t.cast(dtype) }
}

/// Our gradient with the reference's roundings: of dD, and of dA and of dA_log = dA · A after it.
pub fn gradient(f: &Fixture, name: &str, ours: Tensor, dtype: DType) -> Tensor {
    if !rounded(f, name, dtype) {
        return ours;
    }
    if name == "D" {
        return map(&ours, single);
    }
    let a_log = f.tensor("in.A_log").map(Tensor::to_f64).unwrap_or_default();
    let round = |(g, x): (f64, f64)| {
        let a = single(single(x).exp());
        single(single(g / a) * a)
    };
    Tensor::from_vec(ours.to_f64().into_iter().zip(a_log).map(round).collect::<Vec<f64>>(), ours.shape())
}
