//! Checks before a fixture is run: its tensors fit the op and each other, and the op fits in memory.

use super::{Fixture, Named, specs::Spec};
use crate::{
    error::Result,
    tensor::{DType, Shape, Tensor, available},
};
use std::collections::BTreeMap;

/// The size of each axis by its letter, and the tensor that set it.
type Sizes = BTreeMap<char, (usize, String)>;

/// The inputs of a fixture, after the check that the shapes of inputs, outputs, cotangents and gradients fit the op and
/// each other.
pub fn fit(f: &Fixture, spec: &Spec) -> Result<Named> {
    let mut sizes = Sizes::new();
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
    let known: Vec<&str> = spec.outputs.iter().map(|x| x.0).collect();
    for (full, name) in f.tensors.keys().filter_map(|n| Some((n, n.strip_prefix("out.").or(n.strip_prefix("ct."))?))) {
        let Some(&(_, axes)) = spec.outputs.iter().find(|x| x.0 == name) else {
            return Err(f.bad(format!("tensor '{full}': op '{}' has the outputs {}", f.op, known.join(", "))));
        };
        fit_axes(f, full, f.tensor(full)?.shape(), axes, &mut sizes)?;
    }
    fit_memory(f, spec, &sizes)?;
    Ok(inputs)
}

/// Check that all inputs are among these, and that every gradient has the shape of its input.
pub fn fit_rest(f: &Fixture, inputs: &Named, known: &[&str]) -> Result<()> {
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
        if input.dtype() == DType::I32 {
            return Err(f.bad(format!("tensor '{name}': integers have no gradient")));
        }
    }
    Ok(())
}

/// Match a shape against axes such as "BTHK". '*' stands for any number of axes, the same in every tensor; a digit for
/// an axis of that size; a letter for the same size everywhere.
fn fit_axes(f: &Fixture, name: &str, shape: Shape, axes: &str, sizes: &mut Sizes) -> Result<()> {
    let (open, letters) = axes.strip_prefix('*').map_or((false, axes), |rest| (true, rest));
    let n = letters.len();
    let pretty = || letters.chars().map(|c| c.to_string()).collect::<Vec<_>>().join(", ");
    if shape.rank() < n || (shape.rank() > n && !open) {
        let (most, dots) = if open { ("at least ", ".., ") } else { ("", "") };
        return Err(f.bad(format!("tensor '{name}' has shape {shape}: expected {most}{n} axes, [{dots}{}]", pretty())));
    }
    let outer = &shape.dims()[..shape.rank() - n];
    if open {
        // The axes of '*' are 'a', 'b', …, and their number is '*'.
        let counted = ('a'..='z').zip(outer.iter().copied());
        for (c, size) in std::iter::once(('*', outer.len())).chain(counted) {
            let (expected, whence) = sizes.entry(c).or_insert_with(|| (size, name.to_string()));
            if size != *expected {
                let what = format!("tensor '{name}' has shape {shape}: its first axes should be those of '{whence}'");
                return Err(f.bad(what));
            }
        }
    }
    for (c, &size) in letters.chars().zip(&shape.dims()[outer.len()..]) {
        let (expected, whence) = match c {
            '1'..='9' => (c as usize - '0' as usize, "by definition".to_string()),
            c => {
                let (size, whence) = sizes.entry(c).or_insert_with(|| (size, name.to_string()));
                (*size, format!("as in '{whence}'"))
            }
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

/// How many values of the largest size a form holds, forward and backward.
const COPIES: u128 = 10;

/// Check that the largest intermediate values of the op, and the file's own tensors, fit in memory.
fn fit_memory(f: &Fixture, spec: &Spec, sizes: &Sizes) -> Result<()> {
    let size = |c: char| match c {
        '*' => ('a'..='z').filter_map(|c| sizes.get(&c)).map(|s| s.0 as u128).fold(1, u128::saturating_mul),
        '1'..='9' => c as u128 - '0' as u128,
        c => sizes.get(&c).map_or(1, |s| s.0 as u128),
    };
    // An axis of 0 counts as 1: a mask, for example, is [T, T] even for an empty batch.
    let product = |axes: &str| axes.chars().map(|c| size(c).max(1)).fold(1, u128::saturating_mul);
    let outputs = spec.outputs.iter().map(|x| x.1);
    let elements = spec.largest.iter().copied().chain(outputs).map(product).fold(0, u128::saturating_add);
    fits(f, elements)
}

/// The most multiplications of one op in one form, and about how many there are in a second.
const MOST_WORK: u128 = 5_000_000_000;
const PER_SECOND: f64 = 1e8;

/// Check that this many elements fit in memory, with all intermediate values.
pub fn fits(f: &Fixture, elements: u128) -> Result<()> {
    let own: u128 = f.tensors.values().map(|t: &Tensor| t.len() as u128).sum();
    let bytes = elements.saturating_add(own).saturating_mul(8 * COPIES);
    let free = available();
    if bytes > free as u128 {
        let gigabytes = |n: f64| n / f64::from(1 << 30);
        return Err(f.bad(format!(
            "op '{}' at these sizes would take about {:.0} GiB for its values and gradients: {:.0} GiB are free; make \
             the fixture smaller",
            f.op,
            gigabytes(bytes as f64).ceil(),
            gigabytes(free as f64).floor()
        )));
    }
    Ok(())
}

/// Check that this many multiplications, beside those that grow as the tensors do, end soon.
pub fn soon(f: &Fixture, multiplications: u128) -> Result<()> {
    if multiplications > MOST_WORK {
        let minutes = multiplications as f64 / PER_SECOND / 60.0;
        let what = format!("op '{}' at these sizes would take about {minutes:.0} minutes", f.op);
        return Err(f.bad(format!("{what}; make the fixture smaller")));
    }
    Ok(())
}
