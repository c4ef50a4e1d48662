//! Golden fixtures: does this crate compute the same as another implementation?
//!
//! A fixture is one op's inputs, outputs, cotangents and gradients in a safetensors file. [`check`] runs the op in
//! every form that the crate has, and compares every output and every gradient.
//!
//! # When a tensor agrees
//!
//! Each output and each gradient is judged by its own norm. With θ the tolerance,
//! ```text
//! ‖ours − theirs‖ ≤ θ ‖theirs‖        or        ‖ours − theirs‖ ≤ floor
//! ```
//! The floor is for tensors whose terms cancel, such as the gradient of a nearly constant quotient: no implementation
//! can be more exact than the rounding of the terms. It is measured for each tensor (`floor.rs`), and only if the first
//! condition fails.
//!
//! Infinities of the same sign are equal, and so are NaN and NaN; they count in no norm. Any other pair with one of
//! them is infinitely far apart. A reference beyond the largest number of the precision counts as infinity.

mod distance;
mod fixture;
mod floor;
mod form;
mod functions;
mod layers;
mod optimizers;
mod published;
mod shapes;
mod single;
#[doc(hidden)]
pub mod specs;
mod steps;
mod zoo;

pub use fixture::Fixture;

use crate::{
    autograd::Kernels,
    error::{Error, Result, quietly},
    tensor::{DType, Device, Tensor},
};
use distance::Distance;
use floor::Rounding;
use specs::{Spec, specs};
use std::{collections::BTreeMap, path::Path};

/// How far one tensor of one form is from the fixture's.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// "recurrent", "chunked:16", or "op" where there is only one.
    pub form: String,
    /// "out.o", "grad.q".
    pub tensor: String,
    /// ‖ours − theirs‖ / ‖theirs‖, or divided by the floor if that is larger; infinite where only one is finite.
    pub error: f64,
    /// The floor, divided in the same way: an error up to this is rounding. It is measured only where the error is
    /// above the tolerance, and is 0 elsewhere.
    pub floor: f64,
}

impl Comparison {
    /// Whether the error is within this tolerance, or is rounding.
    pub fn passes(&self, tolerance: f64) -> bool {
        self.error <= tolerance.max(self.floor)
    }

    /// Whether the error is above this tolerance, but is rounding.
    pub fn cancelled(&self, tolerance: f64) -> bool {
        self.error > tolerance && self.passes(tolerance)
    }
}

/// The largest relative error that passes, by default.
pub fn tolerance(dtype: DType) -> f64 {
    if dtype == DType::F64 { 1e-9 } else { 1e-4 }
}

/// The names of the ops that a fixture may be about.
pub fn ops() -> Vec<&'static str> {
    specs().map(|s| s.op).chain(optimizers::OPS).chain([published::OP]).collect()
}

/// Tensors by name.
type Named = BTreeMap<String, Tensor>;

/// Where a form is run, in what precision, and by which kernels.
#[derive(Clone, Copy)]
pub struct Place<'k> {
    /// The device.
    pub device: Device,
    /// The precision.
    pub dtype: DType,
    /// Which ops are computed by their kernels.
    pub kernels: &'k Kernels,
}

impl Place<'_> {
    /// With all kernels.
    pub const fn new(device: Device, dtype: DType) -> Place<'static> {
        Place { device, dtype, kernels: &Kernels::Fast }
    }
}

/// The CPU in double precision, where floors are measured.
const EXACT: Place = Place::new(Device::Cpu, DType::F64);

/// From the inputs of a fixture to its outputs and gradients, by the fixture's names. With a [`Rounding`], every summed
/// term is moved at random.
type Eval<'f> = Box<dyn Fn(&Named, Place, Option<&mut Rounding>) -> Result<Named> + 'f>;

/// A fixture's request, after the check that it fits its op.
struct Case<'f> {
    inputs: Named,
    /// The inputs whose rounding counts for the floor; see [`floor`].
    summed: &'static [&'static str],
    forms: Vec<(String, Eval<'f>)>,
    /// The function that measures the floor, if not the first form.
    steps: Option<Eval<'f>>,
}

impl<'f> Case<'f> {
    fn new(f: &'f Fixture) -> Result<Case<'f>> {
        if optimizers::OPS.contains(&f.op.as_str()) {
            return optimizers::case(f);
        }
        if f.op == published::OP {
            return published::case(f);
        }
        match specs().find(|s| s.op == f.op) {
            Some(spec) => Case::of(f, spec),
            None => Err(f.bad(format!("unknown op '{}': expected one of {}", f.op, ops().join(", ")))),
        }
    }

    fn of(f: &'f Fixture, spec: &'static Spec) -> Result<Case<'f>> {
        f.know(spec.attrs)?;
        let inputs = shapes::fit(f, spec)?;
        let forms = (spec.forms)(f)?.into_iter().map(|(name, run)| (name, form::eval(f, run))).collect();
        Ok(Case { inputs, summed: spec.summed, forms, steps: steps::of(f)?.map(|run| form::eval(f, run)) })
    }
}

/// Run a fixture's op in every form, and compare. Where an error exceeds `limit`, the tolerance, the floor is measured.
///
/// # Errors
/// When the op is unknown, or a tensor or attribute is unknown, missing or does not fit. The error names the file, the
/// tensor and what was expected.
pub fn check(f: &Fixture, place: Place, limit: f64) -> Result<Vec<Comparison>> {
    quietly(|| compare(f, place, limit)).unwrap_or_else(|why| Err(f.unfit(why)))
}

fn compare(f: &Fixture, place: Place, limit: f64) -> Result<Vec<Comparison>> {
    let case = Case::new(f)?;
    let inputs = single::inputs(f, &case.inputs, place.dtype);
    let mut found = vec![];
    for (form, eval) in &case.forms {
        let got = single::results(f, eval(&inputs, place, None)?, place.dtype);
        for (name, ours) in got {
            let theirs = f.tensor(&name)?;
            found.push((form, name, Distance::between(&ours.to_f64(), &theirs.to_f64(), place.dtype)));
        }
    }
    if found.is_empty() {
        return Err(f.bad("there is no tensor 'out.…' or 'grad.…' to compare with"));
    }
    let off = found.iter().any(|(_, _, d)| d.relative(0.0)[0] > limit);
    let floors = if off { floor::measure(f, &case, place.dtype)? } else { Default::default() };
    let judged = found.into_iter().map(|(form, tensor, distance)| {
        let plain = distance.relative(0.0);
        let floor = floors.get(&tensor).copied().unwrap_or(0.0);
        let [error, floor] = if plain[0] > limit { distance.relative(floor) } else { plain };
        Comparison { form: form.clone(), tensor, error, floor }
    });
    Ok(judged.collect())
}

/// The outputs and gradients of a fixture's op in its first form, in double precision.
#[doc(hidden)]
pub fn recurrent(f: &Fixture) -> Result<BTreeMap<String, Tensor>> {
    let case = Case::new(f)?;
    (case.forms[0].1)(&case.inputs, EXACT, None)
}

/// Compare a file to the default tolerance of the precision, or say what is wrong with it.
///
/// # Errors
/// As [`Fixture::read`] and [`check`].
pub fn check_file(path: &Path, device: Device, dtype: DType) -> Result<(Fixture, Vec<Comparison>)> {
    let f = Fixture::read(path)?;
    let found = check(&f, Place::new(device, dtype), tolerance(dtype))?;
    Ok((f, found))
}

impl Fixture {
    /// The error for a panic in a formula, whose message says what does not fit.
    fn unfit(&self, why: String) -> Error {
        self.bad(format!("op '{}' cannot be run on it: {why}", self.op))
    }
}
