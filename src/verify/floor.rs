//! Measures how far rounding alone moves a result.
//!
//! If the terms of a sum cancel, their rounding errors may be larger than the sum. [`measure`] determines how large, by
//! running the op itself in double precision in the form that defines it. It multiplies every term by 1 ± 2^-30 with a
//! random sign, and observes how far each tensor moves. [`ROUNDINGS`] times this movement, rescaled to the rounding of
//! the precision in question, is the tensor's floor.
//!
//! Only terms that are summed linearly are moved:
//! - the cotangents, and every gradient that a step returns: gradients are sums of products of these;
//! - the inputs that appear only in sums and products ([`Spec::summed`](super::specs::Spec)), such as q, k, v of linear
//!   attention, but not inputs of an exponential or a norm.
//!
//! If the fixture's inputs have more digits than the precision, their rounding also moves each tensor, which is not an
//! error of the op. Running the op in double precision on the rounded inputs gives this part of the floor.
//!
//! An ill-conditioned op, or a form that computes it inaccurately, is therefore not excused: to move the gates of a
//! decay, or the mean of a row, would measure the sensitivity to them, not the rounding of a sum.

use super::{Case, Distance, EXACT, Fixture, Named, single};
use crate::{
    autograd::Gen,
    error::Result,
    tensor::{DType, Tensor},
};
use std::collections::BTreeMap;

/// A sum is rounded at every addition, and a fixture may add its terms in another order.
const ROUNDINGS: f64 = 32.0;

/// The relative size of a term's move: far above the rounding of double precision, and small otherwise.
const MOVE: f64 = 1.0 / (1 << 30) as f64;

/// The number of random moves; their mean square is used.
const DRAWS: u64 = 4;

/// Inputs that decide which of two ways is taken, by op. A rounding may turn the decision, and explains no error.
const DECIDE: [(&str, &str); 1] = [("mom", "router")];

/// A source of roundings.
pub struct Rounding {
    random: Gen,
}

impl Rounding {
    pub fn new(seed: u64) -> Rounding {
        Rounding { random: Gen::new(seed) }
    }

    /// Every element multiplied by 1 + [`MOVE`] or 1 − [`MOVE`].
    pub fn rounded(&mut self, t: &Tensor) -> Tensor {
        let mut x = t.to_f64();
        for x in &mut x {
            *x *= if self.random.coin() { 1.0 + MOVE } else { 1.0 - MOVE };
        }
        Tensor::from_vec(x, t.shape())
    }

    /// Move the inputs listed in `names`, or all except integers for "*".
    fn inputs(&mut self, inputs: &Named, names: &[&str]) -> Named {
        let moved = |name: &str, t: &Tensor| t.dtype() != DType::I32 && (names == ["*"] || names.contains(&name));
        let rounded =
            |(name, t): (&String, &Tensor)| (name.clone(), if moved(name, t) { self.rounded(t) } else { t.clone() });
        inputs.iter().map(rounded).collect()
    }
}

/// The floor of every tensor: the largest difference from the fixture that rounding explains.
pub fn measure(f: &Fixture, case: &Case, dtype: DType) -> Result<BTreeMap<String, f64>> {
    let eval = case.steps.as_ref().or(case.forms.first().map(|form| &form.1));
    let Some(eval) = eval else { return Ok(BTreeMap::new()) };
    let (unit, least) = match dtype {
        DType::F64 => (f64::EPSILON / 2.0, f64::MIN_POSITIVE),
        _ => (f64::from(f32::EPSILON / 2.0), f64::from(f32::MIN_POSITIVE)),
    };
    let inputs = single::inputs(f, &case.inputs, dtype);
    let base = eval(&inputs, EXACT, None)?;
    let mut squares: BTreeMap<String, f64> = BTreeMap::new();
    for draw in 0..DRAWS {
        let mut rounding = Rounding::new(draw);
        let moved = eval(&rounding.inputs(&inputs, case.summed), EXACT, Some(&mut rounding))?;
        for (name, by) in apart(&moved, &base) {
            *squares.entry(name).or_default() += (by / MOVE).powi(2) / DRAWS as f64;
        }
    }
    let uncertain = single::uncertain(f, &case.inputs, &base, eval, dtype)?;
    let decides = |name: &str| DECIDE.contains(&(f.op.as_str(), name));
    let round = |(name, t): (&String, &Tensor)| if decides(name) { t.clone() } else { round_trip(t, dtype) };
    let cast: Named = inputs.iter().map(|(name, t)| (name.clone(), round((name, t)))).collect();
    let inherited = apart(&eval(&cast, EXACT, None)?, &base);
    let floor = |(name, square): (String, f64)| {
        let roundings = ROUNDINGS * unit * square.sqrt();
        // Below the smallest normal number there are fewer digits, and an exponential underflows to 0.
        let underflow = least * (base[&name].len() as f64).sqrt();
        let known: f64 = [&uncertain, &inherited].iter().filter_map(|by| by.get(&name)).sum();
        let floor = roundings + underflow + known;
        (name, if floor.is_finite() { floor } else { 0.0 })
    };
    Ok(squares.into_iter().map(floor).collect())
}

/// A tensor rounded to this precision.
fn round_trip(t: &Tensor, dtype: DType) -> Tensor {
    if t.dtype() == DType::I32 { t.clone() } else { t.cast(dtype).cast(DType::F64) }
}

/// The distance of tensors with the same name, without elements that are not finite in one of them.
pub fn apart(a: &Named, b: &Named) -> BTreeMap<String, f64> {
    let difference = |(name, a): (&String, &Tensor)| {
        let pairs = a.to_f64().into_iter().zip(b.get(name)?.to_f64()).filter(|(a, b)| (a - b).is_finite());
        let (a, b): (Vec<f64>, Vec<f64>) = pairs.unzip();
        Some((name.clone(), Distance::between(&a, &b, DType::F64).absolute()))
    };
    a.iter().filter_map(difference).collect()
}
