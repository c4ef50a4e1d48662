//! Golden fixtures: is what this crate computes what another implementation computed?
//!
//! A fixture is one op's inputs, outputs, cotangents and gradients in a safetensors file. [`check`] runs the op in
//! every form that the crate has, and compares every output and every gradient.

mod fixture;
mod optimizers;
mod published;
mod rounding;
mod specs;

pub use fixture::Fixture;

use crate::{
    autograd::Tape,
    error::{Error, Result},
    tensor::{DType, Device, Shape, Tensor},
};
use specs::{Inputs, Run, SPECS, Spec, UNARY};
use std::collections::BTreeMap;

/// How far one tensor of one form is from the fixture's.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// "recurrent", "chunked:16", or "op" where there is but one.
    pub form: String,
    /// "out.o", "grad.q".
    pub tensor: String,
    /// ‖ours − theirs‖ / ‖theirs‖; infinite where a number is not finite.
    pub error: f64,
    /// Whether the reference is so small beside the fixture's other tensors that the error is relative to their
    /// rounding instead.
    pub cancelled: bool,
    /// How many times the tolerance passes: 1, or 100 where the reference itself is partly in single precision.
    pub slack: f64,
}

impl Comparison {
    /// Whether the error is within this tolerance.
    pub fn passes(&self, tolerance: f64) -> bool {
        self.error <= self.slack * tolerance
    }
}

/// The largest relative error that passes, by default.
pub fn tolerance(dtype: DType) -> f64 {
    if dtype == DType::F64 { 1e-9 } else { 1e-4 }
}

/// The names of the ops that a fixture may be about.
pub fn ops() -> Vec<&'static str> {
    SPECS.iter().chain(UNARY).map(|s| s.op).chain(optimizers::OPS).chain([published::OP]).collect()
}

/// Run a fixture's op in every form, and compare.
///
/// # Errors
/// When the op is unknown, or a tensor or attribute is missing or does not fit: names the file, the tensor and what
/// was expected.
pub fn check(f: &Fixture, device: Device, dtype: DType) -> Result<Vec<Comparison>> {
    if optimizers::OPS.contains(&f.op.as_str()) {
        return optimizers::check(f, dtype);
    }
    if f.op == published::OP {
        return published::check(f, device, dtype);
    }
    let Some(spec) = SPECS.iter().chain(UNARY).find(|s| s.op == f.op) else {
        return Err(f.bad(format!("unknown op '{}': expected one of {}", f.op, ops().join(", "))));
    };
    let inputs = fit(f, spec)?;
    let mut found = vec![];
    for (form, run) in (spec.forms)(f)? {
        found.extend(compare(f, &inputs, device, dtype, &form, &run)?);
    }
    if found.is_empty() {
        return Err(f.bad("there is no tensor 'out.…' or 'grad.…' to compare with"));
    }
    Ok(found)
}

/// The inputs of a fixture, once their shapes are known to fit the op and one another.
fn fit(f: &Fixture, spec: &Spec) -> Result<BTreeMap<String, Tensor>> {
    let mut sizes: BTreeMap<char, (usize, String)> = BTreeMap::new();
    let mut inputs = BTreeMap::new();
    for (i, &(name, axes)) in spec.inputs.iter().chain(spec.optional).enumerate() {
        let full = format!("in.{name}");
        if i >= spec.inputs.len() && !f.has(&full) {
            continue;
        }
        let t = f.tensor(&full)?;
        fit_axes(f, &full, t.shape(), axes, &mut sizes)?;
        let integer = matches!(name, "ids" | "targets");
        if integer != (t.dtype() == DType::I32) {
            let wanted = if integer { "integers (I64)" } else { "floating-point numbers (F64)" };
            return Err(f.bad(format!("tensor '{full}': expected {wanted}")));
        }
        inputs.insert(name.to_string(), t.clone());
    }
    let known: Vec<&str> = spec.inputs.iter().chain(spec.optional).map(|x| x.0).collect();
    fit_rest(f, &inputs, &known)?;
    Ok(inputs)
}

/// That there are no inputs but these, and that every gradient has the shape of its input.
fn fit_rest(f: &Fixture, inputs: &BTreeMap<String, Tensor>, known: &[&str]) -> Result<()> {
    for name in f.tensors.keys().filter_map(|n| n.strip_prefix("in.")) {
        if !inputs.contains_key(name) {
            return Err(f.bad(format!("tensor 'in.{name}': op '{}' has the inputs {}", f.op, known.join(", "))));
        }
    }
    for (name, t) in f.tensors.iter().filter(|(n, _)| n.starts_with("grad.")) {
        let input =
            inputs.get(&name[5..]).ok_or_else(|| f.bad(format!("tensor '{name}': there is no 'in.{}'", &name[5..])))?;
        if t.shape() != input.shape() {
            return Err(f.bad(format!(
                "tensor '{name}' has shape {}: expected {}, as 'in.{}'",
                t.shape(),
                input.shape(),
                &name[5..]
            )));
        }
    }
    Ok(())
}

/// Match a shape against axes such as "BTHK" ('*': any number of axes; a digit: an axis of that size).
fn fit_axes(
    f: &Fixture,
    name: &str,
    shape: Shape,
    axes: &str,
    sizes: &mut BTreeMap<char, (usize, String)>,
) -> Result<()> {
    let (open, letters) = axes.strip_prefix('*').map_or((false, axes), |rest| (true, rest));
    let n = letters.len();
    let pretty = || letters.chars().map(|c| c.to_string()).collect::<Vec<_>>().join(", ");
    if shape.rank() < n || (shape.rank() > n && !open) {
        let (most, dots) = if open { ("at least ", ".., ") } else { ("", "") };
        return Err(f.bad(format!("tensor '{name}' has shape {shape}: expected {most}{n} axes, [{dots}{}]", pretty())));
    }
    for (c, &size) in letters.chars().zip(&shape.dims()[shape.rank() - n..]) {
        let (expected, whence) = match c {
            '1'..='9' => (c as usize - '0' as usize, "by definition".to_string()),
            c => sizes.entry(c).or_insert_with(|| (size, format!("as in '{name}'"))).clone(),
        };
        if size != expected {
            return Err(f.bad(format!(
                "tensor '{name}' has shape {shape}: axis {c} of [{}] should be {expected} {whence}",
                pretty()
            )));
        }
    }
    Ok(())
}

fn compare(
    f: &Fixture,
    inputs: &BTreeMap<String, Tensor>,
    device: Device,
    dtype: DType,
    form: &str,
    run: &Run,
) -> Result<Vec<Comparison>> {
    let tape = Tape::open(device).map_err(Error::Device)?;
    let vars = inputs
        .iter()
        .map(|(name, t)| {
            let var =
                if t.dtype() == DType::I32 { tape.constant(t) } else { tape.leaf(&rounding::input(f, name, t, dtype)) };
            (name.clone(), var)
        })
        .collect();
    let x = Inputs { tape: &tape, dtype, vars };
    let outputs = formula(f, || run(&x))?;
    let mut found = vec![];
    let mut push = |tensor: String, (error, cancelled)| {
        found.push(Comparison { form: form.into(), tensor, error, cancelled, slack: rounding::slack(f, dtype) })
    };
    let scale = f.tensors.iter().filter(|(n, _)| !n.starts_with("in.")).map(|(_, t)| norm(t)).fold(0.0, f64::max);
    let known: Vec<&str> = outputs.iter().map(|o| o.0).collect();
    let mut seeds = vec![];
    for (kind, name) in f.tensors.keys().filter_map(|n| n.split_once('.')).filter(|n| n.0 == "out" || n.0 == "ct") {
        let Some(&(_, y)) = outputs.iter().find(|o| o.0 == name) else {
            return Err(f.bad(format!("tensor '{kind}.{name}': op '{}' has the outputs {}", f.op, known.join(", "))));
        };
        let t = f.tensor(&format!("{kind}.{name}"))?;
        if t.shape() != y.shape() {
            return Err(f.bad(format!("tensor '{kind}.{name}' has shape {}: expected {}", t.shape(), y.shape())));
        }
        if kind == "out" {
            push(format!("out.{name}"), distance(&y.value(), t, scale));
        } else {
            seeds.push((y, t.cast(dtype)));
        }
    }
    // The gradients of a whole model are those of its loss; there are no cotangents.
    if let Some(&(_, loss)) = outputs.iter().find(|o| o.0 == "loss" && f.op == published::OP) {
        seeds = vec![(loss, Tensor::full(loss.shape(), dtype, 1.0))];
    }
    let grads: Vec<&str> = f.tensors.keys().filter_map(|n| n.strip_prefix("grad.")).collect();
    if !grads.is_empty() && seeds.is_empty() {
        return Err(f.bad("there are gradients ('grad.…') but no cotangent ('ct.…') that they belong to"));
    }
    formula(f, || tape.backward_from(seeds.iter().cloned()))?;
    for name in grads {
        let theirs = f.tensor(&format!("grad.{name}"))?;
        let zero = || Tensor::zeros(theirs.shape(), dtype);
        let ours = rounding::gradient(f, name, x.vars[name].grad().unwrap_or_else(zero), dtype);
        push(format!("grad.{name}"), distance(&ours, theirs, scale));
    }
    Ok(found)
}

/// Run a formula on data that came from outside: where sizes do not fit, the panic's message becomes an error.
fn formula<R>(f: &Fixture, run: impl FnOnce() -> R) -> Result<R> {
    crate::error::quietly(run).map_err(|why| f.bad(format!("op '{}' cannot be run on it: {why}", f.op)))
}

/// ‖ours − theirs‖ / ‖theirs‖, and whether the reference is cancelled: less than a thousand roundings of the fixture's
/// largest tensor, `scale`, as the gradient of a quotient that is nearly constant. There the arithmetic of the dtype
/// holds no more digits, and eight roundings of the largest tensor pass instead.
fn distance(ours: &Tensor, theirs: &Tensor, scale: f64) -> (f64, bool) {
    let eps = if ours.dtype() == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
    let (a, b) = (ours.to_f64(), theirs.to_f64());
    let difference = a.iter().zip(&b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt();
    let cancelled = norm(theirs) < 1e3 * eps * scale;
    let size = if cancelled { 8.0 * eps / tolerance(ours.dtype()) * scale } else { norm(theirs) };
    let error = if difference == 0.0 { 0.0 } else { difference / size };
    (if error.is_nan() { f64::INFINITY } else { error }, cancelled)
}

fn norm(t: &Tensor) -> f64 {
    t.to_f64().iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// Compare a file, or say what is wrong with it.
///
/// # Errors
/// As [`Fixture::read`] and [`check`].
pub fn check_file(path: &std::path::Path, device: Device, dtype: DType) -> Result<(Fixture, Vec<Comparison>)> {
    let f = Fixture::read(path)?;
    let found = check(&f, device, dtype)?;
    Ok((f, found))
}

/// Shorthand for the modules here.
type Checked = Result<Vec<Comparison>>;

impl Fixture {
    /// A tensor with this shape.
    ///
    /// # Errors
    /// When it is missing or has another.
    fn shaped(&self, name: &str, shape: Shape) -> Result<&Tensor> {
        let t = self.tensor(name)?;
        if t.shape() == shape {
            return Ok(t);
        }
        let error: Error = self.bad(format!("tensor '{name}' has shape {}: expected {shape}", t.shape()));
        Err(error)
    }
}
