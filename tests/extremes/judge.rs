//! What a core is, and whether its forms are one function.
//!
//! The reference is the recurrent form in double precision. In the precision of ε, a form may be off by [`SLACK`] times the
//! sum of
//!
//! - ε of the largest number in the tensor;
//! - what the reference changes by when every input is off by ε: what a formula loses whatever computes it;
//! - ε of the largest product that was summed into the tensor, where sums may cancel ([`Role`]).

use tapezoo::{
    autograd::{Gen, Tape, Var},
    error::quietly,
    models::Form,
    tensor::{DType, Device, Tensor},
};

/// How many roundings a number may be off by.
const SLACK: f64 = 100.0;

/// What an input does to the results.
#[derive(Clone, Copy, PartialEq)]
pub enum Role {
    /// The results are linear in such inputs together: their sum of products has one of them as a factor.
    Adds,
    /// Each product in the sum has it as a factor.
    Times,
    /// It weighs the products by no more than about 1: a gate.
    Weighs,
}

/// An input.
pub struct Input {
    pub name: String,
    pub value: Tensor,
    pub role: Role,
    /// Whether axis 1 is time.
    pub timed: bool,
}

/// A formula in several forms, and inputs for it.
pub struct Core {
    /// Sizes, and what is special about the inputs.
    pub what: String,
    pub inputs: Vec<Input>,
    /// The outputs' names, and whether axis 1 is time.
    pub outputs: Vec<(String, bool)>,
    /// Those beside the recurrent one.
    pub forms: Vec<Form>,
    pub run: Box<dyn for<'t> Fn(&[Var<'t>], Form) -> Vec<Var<'t>>>,
}

/// Gives a closure the type of [`Core::run`].
pub fn formula(
    f: impl for<'t> Fn(&[Var<'t>], Form) -> Vec<Var<'t>> + 'static,
) -> Box<dyn for<'t> Fn(&[Var<'t>], Form) -> Vec<Var<'t>>> {
    Box::new(f)
}

/// A value or gradient.
struct Found {
    name: String,
    shape: Vec<usize>,
    v: Vec<f64>,
}

impl Found {
    fn of(name: String, t: &Tensor) -> Found {
        Found { name, shape: t.shape().dims().to_vec(), v: t.to_f64() }
    }

    fn largest(&self) -> f64 {
        self.v.iter().filter(|x| x.is_finite()).fold(0.0, |m, x| m.max(x.abs()))
    }

    /// [0, 3, 1] of a flat index.
    fn at(&self, i: usize) -> String {
        let mut rest = i;
        let mut at: Vec<usize> = vec![];
        for n in self.shape.iter().rev() {
            at.push(rest % n);
            rest /= n;
        }
        at.reverse();
        format!("{}{at:?}", self.name)
    }
}

/// The outputs, and, if there is a seed, the gradients of Σ⟨random, output⟩; over the results of every step, or the last
/// states, or both, as the seed has it.
fn run(
    core: &Core,
    inputs: &[Tensor],
    (device, dtype): (Device, DType),
    form: Form,
    seed: Option<u64>,
) -> Result<Vec<Found>, String> {
    quietly(|| {
        let tape = Tape::new(device);
        tape.poison(true);
        let x: Vec<Var> = inputs.iter().map(|x| tape.leaf(&x.cast(dtype))).collect();
        let y = (core.run)(&x, form);
        assert_eq!(y.len(), core.outputs.len(), "results");
        let named = y.iter().zip(&core.outputs);
        let mut all: Vec<Found> = named.map(|(y, o)| Found::of(o.0.clone(), &y.value())).collect();
        if let Some(seed) = seed {
            let mut g = Gen::new(seed);
            let cotangents: Vec<Tensor> =
                y.iter().map(|y| g.tensor(y.shape(), |g| f64::from(g.gauss() as f32)).cast(dtype)).collect();
            let counts = |timed: bool| timed && seed % 3 != 1 || !timed && seed % 3 != 2;
            let seeds = y.iter().copied().zip(cotangents).zip(&core.outputs).filter(|(_, o)| counts(o.1));
            tape.backward_from(seeds.map(|(pair, _)| pair));
            for (input, x) in core.inputs.iter().zip(&x) {
                let grad = x.grad().unwrap_or_else(|| Tensor::zeros(x.shape(), dtype));
                assert_eq!(grad.shape(), x.shape(), "the shape of the gradient of {}", input.name);
                all.push(Found::of(format!("grad.{}", input.name), &grad));
            }
        }
        all
    })
    .map_err(|why| format!("{form} {dtype} on {device}: panicked: {why}"))
}

impl Core {
    fn values(&self) -> Vec<Tensor> {
        self.inputs.iter().map(|x| x.value.clone()).collect()
    }

    /// The largest product that is summed into a result, or into the gradient of an input.
    fn product(&self, grad_of: Option<usize>) -> f64 {
        let largest = |x: &Tensor| x.to_f64().iter().filter(|x| x.is_finite()).fold(1.0, |m: f64, x| m.max(x.abs()));
        let mut adds = 1.0f64;
        let mut product = 1.0;
        for (i, x) in self.inputs.iter().enumerate().filter(|(i, _)| Some(*i) != grad_of) {
            match x.role {
                Role::Adds if grad_of.is_none_or(|g| self.inputs[g].role != Role::Adds) => {
                    adds = adds.max(largest(&self.inputs[i].value));
                }
                Role::Times => product *= largest(&x.value),
                _ => {}
            }
        }
        adds * product
    }
}

fn epsilon(dtype: DType) -> f64 {
    if dtype == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) }
}

/// What each tensor of the reference changes by when every input is off by a rounding, at most.
fn noise(core: &Core, want: &[Found], dtype: DType, seed: u64) -> Result<Vec<f64>, String> {
    let mut noise = vec![0.0f64; want.len()];
    let mut g = Gen::new(seed ^ 1);
    for _ in 0..3 {
        let off = |g: &mut Gen, x: f64| if g.coin() { x * (1.0 + epsilon(dtype)) } else { x * (1.0 - epsilon(dtype)) };
        let moved: Vec<Tensor> = core
            .values()
            .iter()
            .map(|x| Tensor::from_vec(x.to_f64().into_iter().map(|x| off(&mut g, x)).collect(), x.shape()))
            .collect();
        let got = run(core, &moved, (Device::Cpu, DType::F64), Form::Recurrent, Some(seed))?;
        for ((noise, a), b) in noise.iter_mut().zip(&got).zip(want) {
            let moved = a.v.iter().zip(&b.v).map(|(a, b)| if a == b { 0.0 } else { (a - b).abs() });
            *noise = moved.fold(*noise, f64::max);
        }
    }
    Ok(noise)
}

/// Whether all forms are the recurrence.
pub fn same(core: &Core, seed: u64, places: &[(Device, DType)]) -> Result<(), String> {
    let reference = (Device::Cpu, DType::F64);
    let want = run(core, &core.values(), reference, Form::Recurrent, Some(seed))?;
    for x in &want {
        if let Some(i) = x.v.iter().position(|x| x.is_nan()) {
            return Err(format!("recurrent f64 on cpu: {} is NaN", x.at(i)));
        }
    }
    let top = want.iter().map(Found::largest).fold(0.0, f64::max);
    for &(device, dtype) in places {
        if dtype == DType::F32 && top > 1e36 {
            continue;
        }
        let (noise, eps) = (noise(core, &want, dtype, seed)?, epsilon(dtype));
        // Numbers below the smallest are zero.
        let least = if dtype == DType::F64 { 1e-300 } else { 1e-36 };
        let floor: Vec<f64> = (0..want.len())
            .map(|i| core.product(i.checked_sub(core.outputs.len())))
            .zip(noise)
            .zip(&want)
            .map(|((product, noise), want)| SLACK * (eps * (product + want.largest()) + noise) + least)
            .collect();
        // Of ops alone, which have tests of their own on a device.
        let recurrent = (device == Device::Cpu && dtype == DType::F32).then_some(Form::Recurrent);
        for form in recurrent.into_iter().chain(core.forms.iter().copied()) {
            let got = run(core, &core.values(), (device, dtype), form, Some(seed))?;
            for ((got, want), allowed) in got.iter().zip(&want).zip(&floor) {
                if got.shape != want.shape {
                    return Err(format!(
                        "{form} {dtype} on {device}: {} has shape {:?}: {:?}",
                        got.name, got.shape, want.shape
                    ));
                }
                for (i, (&a, &b)) in got.v.iter().zip(&want.v).enumerate() {
                    if a != b && !((a - b).abs() <= *allowed) {
                        return Err(format!(
                            "{form} {dtype} on {device}: {} is {a:e}, not {b:e}, and may be off by {allowed:.1e}",
                            got.at(i)
                        ));
                    }
                }
            }
        }
    }
    Ok(())
}

/// Whether what is at a step of some sequences leaves the steps before it, and the other sequences, as they were.
pub fn later(core: &Core, seed: u64, places: &[(Device, DType)]) -> Result<(), String> {
    let timed: Vec<usize> = (0..core.inputs.len()).filter(|&i| core.inputs[i].timed).collect();
    let (b, t, _) = core.inputs[timed[0]].value.shape().split(1);
    if b * t == 0 {
        return Ok(());
    }
    let g = &mut Gen::new(seed ^ 2);
    let (at, from) = (g.below(t), g.coin());
    let row = g.coin().then(|| g.below(b));
    let one = g.coin().then(|| timed[g.below(timed.len())]);
    let value = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX][g.below(4)];
    let element = g.coin().then(|| g.below(1000));
    let hit = |i: usize, inner: usize| {
        let steps = if from { i / inner % t >= at } else { i / inner % t == at };
        steps && row.is_none_or(|row| i / inner / t == row) && element.is_none_or(|e| i % inner == e % inner)
    };
    let mut changed = core.values();
    for &i in &timed {
        let (x, inner) = (&core.inputs[i].value, core.inputs[i].value.shape().split(1).2);
        if one.is_none_or(|one| one == i) {
            let put = |(j, x): (usize, f64)| if hit(j, inner) { value } else { x };
            changed[i] = Tensor::from_vec(x.to_f64().into_iter().enumerate().map(put).collect(), x.shape());
        }
    }
    let names: Vec<&str> =
        timed.iter().filter(|i| one.is_none_or(|one| one == **i)).map(|&i| &*core.inputs[i].name).collect();
    let what = format!(
        "{value:e} in {} at step {at}{} of {}{}",
        names.join(", "),
        if from { " and all after it" } else { "" },
        row.map_or("all rows".into(), |row| format!("row {row}")),
        element.map_or(String::new(), |e| format!(", element {e} modulo the width"))
    );
    for &(device, dtype) in places {
        let recurrent = (device == Device::Cpu).then_some(Form::Recurrent);
        for form in recurrent.into_iter().chain(core.forms.iter().copied()) {
            let before = run(core, &core.values(), (device, dtype), form, None)?;
            let after = run(core, &changed, (device, dtype), form, None)?;
            for ((x, y), (_, timed)) in before.iter().zip(&after).zip(&core.outputs) {
                let own = x.v.len() / b;
                let untouched = |i: usize| row.is_some_and(|row| i / own != row) || *timed && i % own / (own / t) < at;
                for (i, (a, b)) in x.v.iter().zip(&y.v).enumerate().filter(|(i, _)| untouched(*i)) {
                    if a.to_bits() != b.to_bits() {
                        return Err(format!("{form} {dtype} on {device}: {what} makes {} {b:e} of {a:e}", x.at(i)));
                    }
                }
            }
        }
    }
    Ok(())
}
