//! The description of a core, and the check that its forms are the same function.
//!
//! The reference is the recurrent form in double precision. In the precision of ε, a form may be off by [`SLACK`] times
//! the sum of
//!
//! - ε times the largest element of the tensor;
//! - the change of the reference when every input changes by ε: the digits that any implementation loses;
//! - the change of the reference when the result of every op, and every op's share of a gradient, is rounded up or down
//!   at random: what the roundings between inputs and results do. A read that does not depend on its query, as there is
//!   one key alone, has a gradient of 0 by it, and an implementation roundings, divided by what the read is normalised
//!   with;
//! - ε times the largest product that was summed into the tensor, where sums may cancel ([`Role`]).

use tapezoo::{
    autograd::{Gen, Tape, Var},
    error::quietly,
    models::Form,
    tensor::{DType, Device, Tensor},
};

/// How many roundings an element may be off by, if it is not a sum of many terms.
const SLACK: f64 = 100.0;

/// Binary digits that are dropped to see what the roundings of double precision do.
const FEWER: u32 = 3;

/// Where the recurrent form is the reference.
const REFERENCE: (Device, DType) = (Device::Cpu, DType::F64);

/// The effect of an input on the results.
#[derive(Clone, Copy, PartialEq)]
pub enum Role {
    /// The results are linear in all such inputs together: each product in the sum has one of them as a factor.
    Adds,
    /// Each product in the sum has this input as a factor.
    Times,
    /// It scales the products by at most about 1: a gate.
    Weighs,
}

/// An input.
pub struct Input {
    pub name: String,
    pub value: Tensor,
    pub role: Role,
    /// Whether axis 1 is time.
    pub timed: bool,
    /// Whether its gradient is not asked for.
    pub fixed: bool,
}

/// A formula in several forms, and inputs for it.
pub struct Core {
    /// Sizes, and the special features of the inputs.
    pub what: String,
    pub inputs: Vec<Input>,
    /// The outputs' names, and whether axis 1 is time.
    pub outputs: Vec<(String, bool)>,
    /// The forms other than the recurrent one.
    pub forms: Vec<Form>,
    pub run: Box<Formula>,
    /// Whether the computation is so long that the loss of the recurrent form in single precision must be measured too.
    pub deep: bool,
}

/// Inputs to outputs, in a form.
pub type Formula = dyn for<'t> Fn(&[Var<'t>], Form) -> Vec<Var<'t>>;

/// Gives a closure its type.
pub fn formula(f: impl for<'t> Fn(&[Var<'t>], Form) -> Vec<Var<'t>> + 'static) -> Box<Formula> {
    Box::new(f)
}

/// A value or gradient.
pub struct Found {
    name: String,
    shape: Vec<usize>,
    v: Vec<f64>,
}

impl Found {
    pub fn of(name: String, t: &Tensor) -> Found {
        Found { name, shape: t.shape().dims().to_vec(), v: t.to_f64() }
    }

    /// The largest of the finite elements.
    pub fn largest(&self) -> f64 {
        self.v.iter().filter(|x| x.is_finite()).fold(0.0, |m, x| m.max(x.abs()))
    }

    /// The largest difference; equal infinities do not differ.
    pub fn distance(&self, other: &Found) -> f64 {
        let both = self.v.iter().zip(&other.v);
        both.map(|(a, b)| if a == b { 0.0 } else { (a - b).abs() }).fold(0.0, f64::max)
    }

    /// Whether it equals `want` up to this difference in each element.
    fn is(&self, want: &Found, allowed: f64, here: &str) -> Result<(), String> {
        if self.shape != want.shape {
            return Err(format!("{here}: {} has shape {:?}, not {:?}", self.name, self.shape, want.shape));
        }
        let wrong = |(a, b): (&f64, &f64)| a != b && (a - b).abs().partial_cmp(&allowed).is_none_or(|o| o.is_gt());
        match self.v.iter().zip(&want.v).position(wrong) {
            None => Ok(()),
            Some(i) => Err(format!(
                "{here}: {} is {:e}, not {:e}, and may be off by {allowed:.1e}",
                self.at(i),
                self.v[i],
                want.v[i]
            )),
        }
    }

    /// The same, where NaN agrees with NaN.
    pub fn is_or_both_nan(&self, want: &Found, allowed: f64, here: &str) -> Result<(), String> {
        let both = |(a, b): (&f64, &f64)| a.is_nan() && b.is_nan();
        if self.shape != want.shape || !self.v.iter().zip(&want.v).any(both) {
            return self.is(want, allowed, here);
        }
        let without = |x: &Found| {
            let v = self.v.iter().zip(&want.v).zip(&x.v).map(|((a, b), &x)| if both((a, b)) { 0.0 } else { x });
            Found { name: x.name.clone(), shape: x.shape.clone(), v: v.collect() }
        };
        without(self).is(&without(want), allowed, here)
    }

    /// The index on each axis of a flat index: [0, 3, 1].
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

/// The outputs, and, if there is a seed, the gradients of Σ⟨random, output⟩; over the results of every step, or the
/// last states, or both, as the seed decides.
fn run(
    core: &Core,
    inputs: &[Tensor],
    place: (Device, DType),
    form: Form,
    seed: Option<u64>,
) -> Result<Vec<Found>, String> {
    run_rounded(core, inputs, place, form, seed, None)
}

/// The same, with results and shares of gradients rounded to this precision, if any, as a seed decides.
fn run_rounded(
    core: &Core,
    inputs: &[Tensor],
    (device, dtype): (Device, DType),
    form: Form,
    seed: Option<u64>,
    rounding: Option<(DType, u64)>,
) -> Result<Vec<Found>, String> {
    quietly(|| {
        let tape = Tape::new(device);
        tape.poison(true);
        if let Some((to, seed)) = rounding {
            let mut rounding = Rounding::to(to, seed);
            tape.change_results(move |y| rounding.round(y));
        }
        let place = |(x, input): (&Tensor, &Input)| {
            let x = x.cast(dtype);
            if input.fixed { tape.constant(&x) } else { tape.leaf(&x) }
        };
        let x: Vec<Var> = inputs.iter().zip(&core.inputs).map(place).collect();
        let y = (core.run)(&x, form);
        assert_eq!(y.len(), core.outputs.len(), "results");
        let named = y.iter().zip(&core.outputs);
        let mut all: Vec<Found> = named.map(|(y, o)| Found::of(o.0.clone(), &y.value())).collect();
        if let Some(seed) = seed {
            let mut g = Gen::new(seed);
            // An infinite output has no slope: a stabiliser of −∞ is the largest of many that are equal, and only a
            // recurrence knows which of them came first.
            let cotangent = |y: &Var| {
                let ct = g.tensor(y.shape(), |g| f64::from(g.gauss() as f32)).to_f64();
                let finite =
                    ct.into_iter().zip(y.value().to_f64()).map(|(ct, y)| if y.is_infinite() { 0.0 } else { ct });
                Tensor::from_vec(finite.collect(), y.shape()).cast(dtype)
            };
            let cotangents: Vec<Tensor> = y.iter().map(cotangent).collect();
            let counts = |timed: bool| timed && seed % 3 != 1 || !timed && seed % 3 != 2;
            let seeds = y.iter().copied().zip(cotangents).zip(&core.outputs).filter(|(_, o)| counts(o.1));
            match rounding {
                None => tape.backward_from(seeds.map(|(pair, _)| pair)),
                Some((to, seed)) => {
                    let mut rounding = Rounding::to(to, !seed);
                    tape.backward_with(seeds.map(|(pair, _)| pair), |g| rounding.round(g));
                }
            }
            for (input, x) in core.inputs.iter().zip(&x).filter(|(input, _)| !input.fixed) {
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
    /// How many roundings a result may be off by: more for longer sums, and for norms after the core, which amplify a
    /// rounding of zero.
    fn slack(&self) -> f64 {
        let steps = self.inputs.iter().filter(|x| x.timed).map(|x| x.value.shape().split(1).1);
        (SLACK + 20.0 * steps.max().unwrap_or(0) as f64) * if self.deep { 100.0 } else { 1.0 }
    }

    fn values(&self) -> Vec<Tensor> {
        self.inputs.iter().map(|x| x.value.clone()).collect()
    }

    /// The input whose gradient is result i, if it is one.
    fn gradient(&self, i: usize) -> Option<usize> {
        let mut leaves = (0..self.inputs.len()).filter(|&j| !self.inputs[j].fixed);
        i.checked_sub(self.outputs.len()).and_then(|i| leaves.nth(i))
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

pub fn epsilon(dtype: DType) -> f64 {
    if dtype == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) }
}

/// Rounds numbers in double precision to fewer digits, up or down at random; what has no more digits stays.
pub struct Rounding {
    random: Gen,
    /// The number of binary digits that are dropped.
    drop: u32,
}

impl Rounding {
    /// To the digits of single precision, or to [`FEWER`] than those of double precision.
    pub fn to(dtype: DType, seed: u64) -> Rounding {
        Rounding { random: Gen::new(seed), drop: if dtype == DType::F64 { FEWER } else { 29 } }
    }

    /// Numbers that are finite, in double precision.
    pub fn round(&mut self, t: &mut Tensor) {
        if t.dtype() != DType::F64 {
            return;
        }
        let mut x = t.to_f64();
        for x in x.iter_mut().filter(|x| x.is_finite()) {
            let (bits, one) = (x.to_bits(), 1 << self.drop);
            let rest = bits % one;
            let up = rest > 0 && self.random.uniform(0.0, 1.0) * one as f64 <= rest as f64;
            *x = f64::from_bits(bits - rest + if up { one } else { 0 });
        }
        *t = Tensor::from_vec(x, t.shape());
    }
}

/// The largest change of each tensor of a reference when every input but indices changes by a rounding, and when
/// everything else is rounded. `run` computes the reference from inputs, rounded if so asked.
pub fn noise(
    want: &[Found],
    inputs: &[Tensor],
    dtype: DType,
    seed: u64,
    run: impl Fn(&[Tensor], Option<(DType, u64)>) -> Result<Vec<Found>, String>,
) -> Result<Vec<f64>, String> {
    let (mut noise, mut between) = (vec![0.0f64; want.len()], vec![0.0f64; want.len()]);
    let raise = |most: &mut [f64], found: Vec<Found>| {
        most.iter_mut().zip(&found).zip(want).for_each(|((most, a), b)| *most = most.max(a.distance(b)));
    };
    let mut g = Gen::new(seed ^ 1);
    let mut off = |x: f64| if g.coin() { x * (1.0 + epsilon(dtype)) } else { x * (1.0 - epsilon(dtype)) };
    for draw in 0..3 {
        let moved = |x: &Tensor| match x.dtype() {
            DType::I32 => x.clone(),
            _ => Tensor::from_vec(x.to_f64().into_iter().map(&mut off).collect(), x.shape()),
        };
        raise(&mut noise, run(&inputs.iter().map(moved).collect::<Vec<_>>(), None)?);
        raise(&mut between, run(inputs, Some((dtype, seed ^ (8 + draw))))?);
    }
    let size = if dtype == DType::F64 { f64::from(1 << FEWER) } else { 1.0 };
    noise.iter_mut().zip(between).for_each(|(noise, between)| *noise += between / size);
    Ok(noise)
}

/// Whether all forms equal the recurrence.
pub fn same(core: &Core, seed: u64, places: &[(Device, DType)]) -> Result<(), String> {
    let want = run(core, &core.values(), REFERENCE, Form::Recurrent, Some(seed))?;
    no_nan(&want, "recurrent f64 on cpu")?;
    // Single precision cannot represent such numbers.
    let fits = want.iter().map(Found::largest).fold(0.0, f64::max) < 1e36;
    let mut definition = vec![0.0; want.len()];
    if fits {
        let single = run(core, &core.values(), (Device::Cpu, DType::F32), Form::Recurrent, Some(seed))?;
        no_nan(&single, "recurrent f32 on cpu")?;
        if core.deep {
            definition = single.iter().zip(&want).map(|(a, b)| a.distance(b) / epsilon(DType::F32)).collect();
        }
    }
    let mut wrong = vec![];
    for &(device, dtype) in places.iter().filter(|place| fits || place.1 == DType::F64 && !core.deep) {
        let reference = |x: &[Tensor], rounding: Option<(DType, u64)>| {
            run_rounded(core, x, REFERENCE, Form::Recurrent, Some(seed), rounding)
        };
        let (noise, eps) = (noise(&want, &core.values(), dtype, seed, reference)?, epsilon(dtype));
        // Numbers below the smallest normal one count as zero.
        let least = if dtype == DType::F64 { 1e-300 } else { 1e-36 };
        let allowed: Vec<f64> = (0..want.len())
            .map(|i| {
                let sums = core.product(core.gradient(i)) + want[i].largest() + definition[i];
                core.slack() * (eps * sums + noise[i]) + least
            })
            .collect();
        // Recurrent forms are ops, which have tests of their own on a device.
        let recurrent = (device == Device::Cpu && dtype == DType::F32).then_some(Form::Recurrent);
        for form in recurrent.into_iter().chain(core.forms.iter().copied()) {
            let here = format!("{form} {dtype} on {device}");
            let outcome = run(core, &core.values(), (device, dtype), form, Some(seed))
                .and_then(|got| got.iter().zip(&want).zip(&allowed).try_for_each(|((a, b), &off)| a.is(b, off, &here)));
            wrong.extend(outcome.err());
        }
    }
    all_well(wrong)
}

fn no_nan(all: &[Found], what: &str) -> Result<(), String> {
    all.iter().try_for_each(|x| match x.v.iter().position(|x| x.is_nan()) {
        Some(i) => Err(format!("{what}: {} is NaN", x.at(i))),
        None => Ok(()),
    })
}

fn all_well(wrong: Vec<String>) -> Result<(), String> {
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n  ")) }
}

/// A value at a place that earlier steps and other sequences must not see.
struct Poison {
    value: f64,
    /// The step, and whether all later steps get the value too.
    at: usize,
    from: bool,
    /// The sequence, or all.
    row: Option<usize>,
    /// The input, or all inputs with a time axis.
    input: Option<usize>,
    /// The element of each step, modulo their number, or all elements.
    element: Option<usize>,
}

impl Poison {
    fn draw(g: &mut Gen, [b, t]: [usize; 2], timed: &[usize]) -> Poison {
        Poison {
            value: [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX][g.below(4)],
            at: g.below(t),
            from: g.coin(),
            row: g.coin().then(|| g.below(b)),
            input: g.coin().then(|| timed[g.below(timed.len())]),
            element: g.coin().then(|| g.below(1000)),
        }
    }

    /// x [B, T, ..] with the value put in.
    fn put(&self, x: &Tensor) -> Tensor {
        let (_, t, inner) = x.shape().split(1);
        let hit = |i: usize| {
            let step = i / inner % t;
            (step == self.at || self.from && step > self.at)
                && self.row.is_none_or(|row| i / inner / t == row)
                && self.element.is_none_or(|e| i % inner == e % inner)
        };
        let put = |(i, x): (usize, f64)| if hit(i) { self.value } else { x };
        Tensor::from_vec(x.to_f64().into_iter().enumerate().map(put).collect(), x.shape())
    }

    fn describe(&self, core: &Core) -> String {
        format!(
            "{:e} in {} at step {}{} of {}{}",
            self.value,
            self.input.map_or("all that runs in time", |i| &core.inputs[i].name),
            self.at,
            if self.from { " and after" } else { "" },
            self.row.map_or("all rows".into(), |row| format!("row {row}")),
            self.element.map_or(String::new(), |e| format!(", element {e} modulo the width"))
        )
    }
}

/// Whether a change at a step of some sequences leaves earlier steps and other sequences unchanged.
pub fn later(core: &Core, seed: u64, places: &[(Device, DType)]) -> Result<(), String> {
    let timed: Vec<usize> = (0..core.inputs.len()).filter(|&i| core.inputs[i].timed).collect();
    let (b, t, _) = core.inputs[timed[0]].value.shape().split(1);
    if b * t == 0 {
        return Ok(());
    }
    let poison = Poison::draw(&mut Gen::new(seed ^ 2), [b, t], &timed);
    let mut changed = core.values();
    for &i in timed.iter().filter(|&&i| poison.input.is_none_or(|one| one == i)) {
        changed[i] = poison.put(&changed[i]);
    }
    let mut wrong = vec![];
    for &(device, dtype) in places {
        let recurrent = (device == Device::Cpu).then_some(Form::Recurrent);
        for form in recurrent.into_iter().chain(core.forms.iter().copied()) {
            let runs = run(core, &core.values(), (device, dtype), form, None)
                .and_then(|before| Ok((before, run(core, &changed, (device, dtype), form, None)?)));
            let outcome = runs.and_then(|(before, after)| {
                before.iter().zip(&after).zip(&core.outputs).try_for_each(|((x, y), (_, timed))| {
                    let own = (x.v.len() / b).max(1);
                    let untouched = |i: usize| {
                        poison.row.is_some_and(|row| i / own != row) || *timed && i % own / (own / t).max(1) < poison.at
                    };
                    let alike = |a: f64, b: f64| a == b || a.to_bits() == b.to_bits();
                    let changed = |&i: &usize| untouched(i) && !alike(x.v[i], y.v[i]);
                    (0..x.v.len()).find(changed).map_or(Ok(()), |i| {
                        let (here, what) = (format!("{form} {dtype} on {device}"), poison.describe(core));
                        Err(format!("{here}: {} was {:e} and is {:e} with {what}", x.at(i), x.v[i], y.v[i]))
                    })
                })
            });
            wrong.extend(outcome.err());
        }
    }
    all_well(wrong)
}
