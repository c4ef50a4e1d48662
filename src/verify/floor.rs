//! How far rounding alone moves a result, measured.
//!
//! What a tensor is summed of may cancel: then its rounding is that of its terms, which may be larger than the tensor. How
//! much that is, [`measure`] finds out by the op itself in double precision, in its defining form of small steps. Every
//! term is moved by a factor 1 ± 2^-30 with a random sign, and the tensor moves by what the roundings of its terms add up
//! to. [`ROUNDINGS`] times this, at the rounding of the precision in question, is the floor of that tensor.
//!
//! Terms are moved where they are summed linearly, and nowhere else:
//! - the cotangents, and every gradient that a step hands back: a gradient is a sum of products of them;
//! - the inputs that stand only in sums and products ([`Spec::summed`](super::specs::Spec)), such as q, k, v of linear
//!   attention, but not what goes through an exponential or is normalised.
//!
//! And where the fixture's inputs have more digits than the precision, what their rounding moves each tensor by is no error
//! of the op's either: it is known by running it, in double precision, on the rounded inputs.
//!
//! So an op that is badly conditioned, or a form that computes it badly, is not excused: moving the gates of a decay, or
//! the mean of a row, would show how much the result depends on them, not what is summed.

use super::{Case, Distance, EXACT, Fixture, Named, single};
use crate::{
    autograd::Gen,
    error::Result,
    tensor::{DType, Tensor},
};
use std::collections::BTreeMap;

/// A sum of many terms is rounded again at every addition, and a fixture's is of another order than ours.
const ROUNDINGS: f64 = 32.0;

/// By how much a term is moved: far above the rounding of double precision, far below all else.
const MOVE: f64 = 1.0 / (1 << 30) as f64;

/// How often; the mean square counts.
const DRAWS: u64 = 4;

/// A source of roundings.
pub struct Rounding {
    random: Gen,
}

impl Rounding {
    pub fn new(seed: u64) -> Rounding {
        Rounding { random: Gen::new(seed) }
    }

    /// Every number multiplied by 1 + [`MOVE`] or 1 − [`MOVE`].
    pub fn rounded(&mut self, t: &Tensor) -> Tensor {
        let mut x = t.to_f64();
        for x in &mut x {
            *x *= if self.random.coin() { 1.0 + MOVE } else { 1.0 - MOVE };
        }
        Tensor::from_vec(x, t.shape())
    }

    /// The inputs that `names` says, or all of them but integers for "*".
    fn inputs(&mut self, inputs: &Named, names: &[&str]) -> Named {
        let moved = |name: &str, t: &Tensor| t.dtype() != DType::I32 && (names == ["*"] || names.contains(&name));
        let rounded =
            |(name, t): (&String, &Tensor)| (name.clone(), if moved(name, t) { self.rounded(t) } else { t.clone() });
        inputs.iter().map(rounded).collect()
    }
}

/// The floor of every tensor: how large a difference from the fixture is rounding.
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
    let cast: Named = inputs.iter().map(|(name, t)| (name.clone(), round_trip(t, dtype))).collect();
    let inherited = apart(&eval(&cast, EXACT, None)?, &base);
    let floor = |(name, square): (String, f64)| {
        let roundings = ROUNDINGS * unit * square.sqrt();
        // Below the smallest normal number there are fewer digits, and an exponential is 0.
        let underflow = least * (base[&name].len() as f64).sqrt();
        let known: f64 = [&uncertain, &inherited].iter().filter_map(|by| by.get(&name)).sum();
        let floor = roundings + underflow + known;
        (name, if floor.is_finite() { floor } else { 0.0 })
    };
    Ok(squares.into_iter().map(floor).collect())
}

/// A tensor as this precision holds it.
fn round_trip(t: &Tensor, dtype: DType) -> Tensor {
    if t.dtype() == DType::I32 { t.clone() } else { t.cast(dtype).cast(DType::F64) }
}

/// How far apart tensors of the same names are; what is not finite in one of them does not count.
pub fn apart(a: &Named, b: &Named) -> BTreeMap<String, f64> {
    let difference = |(name, a): (&String, &Tensor)| {
        let pairs = a.to_f64().into_iter().zip(b.get(name)?.to_f64()).filter(|(a, b)| (a - b).is_finite());
        let (a, b): (Vec<f64>, Vec<f64>) = pairs.unzip();
        Some((name.clone(), Distance::between(&a, &b, DType::F64).absolute()))
    };
    a.iter().filter_map(difference).collect()
}
