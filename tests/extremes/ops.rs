//! Every kernel of the ops that are no sequence cores (`cores.rs` has these) at the ends of its numbers' range equals
//! the op's definition, its formula or plain loops, in double precision: values and gradients, to the rounding of
//! inputs and results as in `judge.rs`. An index out of range is the same error everywhere.
//!
//! Errors that it finds: a slope of GELU or SiLU that is 0 · ∞ far out; ELU's slope as its value plus one; rows that do
//! not count and are not numbers; squares that overflow; ids that one device checks and another does not.

use crate::{
    draw::{change, pick},
    judge::{Found, Rounding, epsilon, noise},
};
use proptest::prelude::*;
use tapezoo::{
    autograd::{Gen, Kernels, Tape, Var},
    error::quietly,
    ops::{Entry, OPS, Sample},
    tensor::{DType, Device, Tensor},
};

const INF: f64 = f64::INFINITY;

/// How many roundings a result may be off by.
const SLACK: f64 = 100.0;

/// Ops that are cores, whose inputs have ranges of their own.
const CORES: [&str; 15] = [
    "CausalAttention",
    "DeltaRule",
    "EraseWrite",
    "GatedDeltaRule",
    "GatedLinearAttention",
    "LinearAttention",
    "LinearScan",
    "LruScan",
    "LstmSequence",
    "Mlstm",
    "QuasiLstm",
    "SelectiveScan",
    "SlstmSequence",
    "Stabiliser",
    "UnitLowerSolve",
];

/// Ops of which an element depends on no other, or a row on no other row, so that NaN and infinities stay where they
/// are.
const APART: [&str; 19] = [
    "Exp",
    "Log",
    "Expm1",
    "DecayRate",
    "Sqrt",
    "Square",
    "Wrap",
    "Sin",
    "Cos",
    "Sigmoid",
    "Tanh",
    "Silu",
    "Softplus",
    "Elu",
    "Elu1",
    "GeluTanh",
    "Gelu",
    "CrossEntropy",
    "Logsumexp",
];

/// Ops whose gradients have roundings of exponents, or of angles, in them.
const OF_EXPONENTS: [&str; 4] = ["Softmax", "CausalSoftmax", "Logsumexp", "Wrap"];

/// An op, and inputs for it.
struct Case {
    /// The special features of the inputs.
    what: String,
    inputs: Vec<Tensor>,
    /// Whether an index is out of range.
    refused: bool,
    /// Results may be off by a rounding of this, however small they are.
    floor: f64,
    /// Makes the op again.
    again: Box<dyn Fn() -> Sample>,
    seed: u64,
}

impl Case {
    fn draw((name, sample): Entry, seed: u64, room: usize) -> Case {
        let draw = move || {
            let g = Gen::new(seed);
            sample(&mut if seed.is_multiple_of(2) { g } else { g.around_switches(room) })
        };
        let (mut g, mut what, mut refused) = (Gen::new(seed ^ 1), String::new(), false);
        let mut inputs = draw().1;
        // One input is special, or all are: less so, that their products do not overflow.
        let one = (inputs.len() == 1 || g.coin()).then(|| g.below(inputs.len()));
        let reach = if one.is_some() { 30.0 } else { 8.0 };
        for (i, x) in inputs.iter_mut().enumerate().filter(|(i, _)| one.is_none_or(|one| one == *i)) {
            *x = if x.dtype() == DType::I32 {
                let wrong = !x.is_empty() && g.coin();
                refused |= wrong;
                if wrong { wrong_id(&mut g, x, &mut what) } else { x.clone() }
            } else {
                special(&mut g, i, x, reach, APART.contains(&name), &mut what)
            };
        }
        let inputs: Vec<Tensor> = inputs.iter().map(single).collect();
        let largest =
            inputs.iter().flat_map(Tensor::to_f64).filter(|x| x.is_finite()).fold(1.0, |m: f64, x| m.max(x.abs()));
        let floor = if OF_EXPONENTS.contains(&name) { largest } else { 0.0 };
        Case { what, inputs, refused, floor, again: Box::new(draw), seed }
    }

    fn primitive(&self) -> bool {
        (self.again)().0.primitive().is_some()
    }

    fn kernels(&self) -> Vec<&'static str> {
        let op = (self.again)().0;
        op.kernels().iter().map(|kernel| kernel.name().unwrap_or(op.name())).collect()
    }

    /// Results, and the gradients of Σ⟨random, result⟩; or the message with which the op panics.
    fn run(
        &self,
        inputs: &[Tensor],
        (device, dtype): (Device, DType),
        kernels: Kernels,
        rounding: Option<(DType, u64)>,
    ) -> Result<Vec<Found>, String> {
        quietly(|| {
            let tape = Tape::new(device).with_kernels(kernels);
            tape.poison(true);
            if let Some((to, seed)) = rounding {
                let mut rounding = Rounding::to(to, seed);
                tape.change_results(move |y| rounding.round(y));
            }
            let place = |x: &Tensor| if x.dtype() == DType::I32 { tape.constant(x) } else { tape.leaf(&x.cast(dtype)) };
            let x: Vec<Var> = inputs.iter().map(place).collect();
            let y = tape.apply_dyn((self.again)().0, &x);
            let mut all: Vec<Found> =
                y.iter().enumerate().map(|(i, y)| Found::of(format!("result {i}"), &y.value())).collect();
            let mut g = Gen::new(self.seed ^ 2);
            let seeds: Vec<_> = y.iter().map(|y| (*y, g.normal(y.shape()).cast(DType::F32).cast(y.dtype()))).collect();
            match rounding {
                None => tape.backward_from(seeds),
                Some((to, seed)) => {
                    let mut rounding = Rounding::to(to, !seed);
                    tape.backward_with(seeds, |g| rounding.round(g));
                }
            }
            for (i, x) in x.iter().enumerate().filter(|(_, x)| x.dtype() != DType::I32) {
                let grad = x.grad().unwrap_or_else(|| Tensor::zeros(x.shape(), dtype));
                all.push(Found::of(format!("gradient {i}"), &grad));
            }
            all
        })
    }

    fn definition(&self, inputs: &[Tensor], rounding: Option<(DType, u64)>) -> Result<Vec<Found>, String> {
        self.run(inputs, (Device::Cpu, DType::F64), Kernels::Plain, rounding)
    }

    fn same(&self, devices: &[Device]) -> Result<(), String> {
        let want = self.definition(&self.inputs, None);
        if want.is_err() != self.refused {
            return Err(format!("the definition: {:?}", want.err()));
        }
        for &device in devices {
            for dtype in [DType::F64, DType::F32] {
                let fits = |want: &Vec<Found>| want.iter().all(|x| x.largest() < 1e36);
                if dtype == DType::F32 && want.as_ref().is_ok_and(|want| !fits(want)) {
                    continue; // single precision has no such numbers
                }
                let least = if dtype == DType::F64 { 1e-300 } else { 1e-36 };
                let allowed: Vec<f64> = match &want {
                    Err(_) => vec![],
                    Ok(want) => {
                        let noise = noise(want, &self.inputs, dtype, self.seed, |x, by| self.definition(x, by))?;
                        let off = |(x, noise): (&Found, f64)| {
                            SLACK * (epsilon(dtype) * x.largest().max(self.floor) + noise) + least
                        };
                        want.iter().zip(noise).map(off).collect()
                    }
                };
                let forced = self.kernels().into_iter().map(|name| (name, Kernels::Only(vec![name.into()])));
                let ways: Vec<_> = match device {
                    // A formula may overflow on its way in single precision.
                    Device::Cpu if self.primitive() => forced.chain([("plain loops", Kernels::Plain)]).collect(),
                    Device::Cpu => forced.collect(),
                    _ => vec![("the kernel", Kernels::Fast)],
                };
                for (name, kernels) in ways {
                    let here = format!("{name} in {dtype} on {device}");
                    match (self.run(&self.inputs, (device, dtype), kernels, None), &want) {
                        (Ok(got), Ok(want)) => {
                            let mut all = got.iter().zip(want).zip(&allowed);
                            all.try_for_each(|((got, want), &off)| got.is_or_both_nan(want, off, &here))?;
                        }
                        (Err(got), Err(want)) if got == *want => {}
                        (got, want) => {
                            let say = |x: Result<(), &String>| {
                                x.map_or_else(|why| format!("“{why}”"), |()| "no error".into())
                            };
                            let (got, want) = (got.map(drop), want.as_ref().map(drop));
                            return Err(format!("{here}: {}, not {}", say(got.as_ref().copied()), say(want)));
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// The tensor rounded to single precision.
fn single(x: &Tensor) -> Tensor {
    if x.dtype() == DType::I32 { x.clone() } else { x.cast(DType::F32).cast(DType::F64) }
}

/// Numbers of one size, far from zero, of all sizes up to 10^`reach`, zeros, or some that are no numbers.
fn special(g: &mut Gen, i: usize, x: &Tensor, reach: f64, apart: bool, what: &mut String) -> Tensor {
    let (size, far) = (10f64.powf(reach * pick(g, SIZES)), pick(g, FAR));
    match g.below(if apart { 12 } else { 8 }) {
        0 => {
            *what += &format!(", input {i} of {size:e}");
            change(g, x, |_, _, x| size * x)
        }
        1 => {
            *what += &format!(", input {i} near {far}");
            change(g, x, |_, _, x| far + x)
        }
        2 => {
            *what += &format!(", input {i} of all sizes");
            change(g, x, |g, _, x| x * 10f64.powf(g.uniform(-reach, reach)))
        }
        3 => {
            *what += &format!(", input {i} zero");
            change(g, x, |_, _, _| 0.0)
        }
        8.. => {
            let (value, row) = (pick(g, &[f64::NAN, INF, -INF]), g.below(x.shape().rows().max(1)));
            let width = x.shape().last().max(1);
            *what += &format!(", row {row} of input {i} is {value}");
            change(g, x, |_, i, x| if i / width == row { value } else { x })
        }
        _ => x.clone(),
    }
}

/// The tensor with an id that is out of range.
fn wrong_id(g: &mut Gen, x: &Tensor, what: &mut String) -> Tensor {
    let (at, id) = (g.below(x.len()), pick(g, &[-7, 100_000, i32::MAX, i32::MIN]));
    *what += &format!(", id {at} is {id}");
    let ids = x.to_f64().into_iter().enumerate().map(|(i, x)| if i == at { id } else { x as i32 });
    Tensor::from_vec(ids.collect(), x.shape())
}

/// Exponents of sizes, in shares of the largest.
const SIZES: &[f64] = &[-1.0, -0.4, -0.13, 0.13, 0.27, 0.67, 1.0];
const FAR: &[f64] = &[-8192.0, -300.0, -91.0, -60.0, -20.0, -9.0, -5.0, 5.0, 9.0, 20.0, 60.0, 91.0, 300.0, 8192.0];

fn check(cases: u32, room: usize, devices: &[Device]) {
    let wanted = std::env::var("EXTREMES").unwrap_or_default();
    let ops = OPS.iter().filter(|(name, _)| name.contains(&wanted) && !CORES.contains(name));
    crate::each(ops.map(|&entry| (entry.0, entry)), cases, any::<u64>, |&entry, seed| {
        let case = Case::draw(entry, seed, room);
        case.same(devices).map_err(|why| format!("seed {seed}{}:\n  {why}", case.what))
    });
}

#[test]
fn a_kernel_of_an_op_is_its_definition() {
    check(100, 1 << 10, &[Device::Cpu]);
}

#[test]
fn emulated_ops_are_their_definition() {
    if crate::device::device().is_some() {
        check(40, 1 << 7, &[Device::Emulated]);
    }
}
