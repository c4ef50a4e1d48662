//! Is an op right? Its gradient, and what its kernels compute.

use super::{Checked, OF_DIFFERENCES};
use crate::{
    autograd::{Gen, Kernels, Op, Tape, Var, gradcheck},
    ops::{Entry, Sample},
    tensor::{DType, Tensor},
};
use std::collections::BTreeSet;

/// Run all checks of an op, on two dozen of its random samples.
///
/// ```
/// use tapezoo::{check, ops::glu::Glu};
///
/// check::op::<Glu>()?;
/// # Ok::<(), String>(())
/// ```
///
/// # Errors
/// When a check fails: which one, and by how much.
pub fn op<O: Op>() -> Checked {
    let sample = |g: &mut Gen| -> Sample {
        let (op, inputs) = O::sample(g);
        (Box::new(op), inputs)
    };
    let case = OpCase { name: sample(&mut Gen::new(0)).0.name(), sample };
    case.definition()?;
    case.forced(30)?;
    for seed in 0..24 {
        case.gradient(seed)?;
        case.purity(seed)?;
        case.sums(seed)?;
        case.kernels(seed, 1 + seed % 2)?;
        case.precisions(seed)?;
    }
    Ok(())
}

/// An op by its samples.
#[derive(Clone, Copy)]
pub struct OpCase {
    /// Its name, for messages.
    pub name: &'static str,
    /// A random instance with inputs for it.
    pub sample: fn(&mut Gen) -> Sample,
}

impl From<&Entry> for OpCase {
    fn from(&(name, sample): &Entry) -> OpCase {
        OpCase { name, sample }
    }
}

/// The results of an op, and the gradients of its inputs for random cotangents, each with a name.
type Found = Vec<(String, Vec<f64>)>;

/// How often an op is used, on which samples.
#[derive(Clone, Copy)]
struct Uses {
    seed: u64,
    uses: u64,
    /// The factor of all inputs.
    scale: f64,
}

impl OpCase {
    /// It is a primitive or has a formula, and not both.
    ///
    /// # Errors
    /// When it is both or neither.
    pub fn definition(&self) -> Checked {
        let (op, inputs) = (self.sample)(&mut Gen::new(1));
        let tape = Tape::default().with_kernels(Kernels::Plain);
        let x: Vec<Var> = inputs.iter().map(|x| tape.constant(x)).collect();
        match (op.primitive().is_some(), op.formula(&x).is_some()) {
            (true, true) => Err(format!("{} is a primitive, and has a formula", self.name)),
            (false, false) => Err(format!("{} is no primitive, and has no formula", self.name)),
            _ => Ok(()),
        }
    }

    /// Its gradient is that of its value, by finite differences.
    ///
    /// # Errors
    /// When it is not.
    pub fn gradient(&self, seed: u64) -> Checked {
        let (_, inputs) = (self.sample)(&mut Gen::new(seed));
        let build = |seed: u64| (self.sample)(&mut Gen::new(seed)).0;
        let error = gradcheck(|tape, x| tape.apply_dyn(build(seed), x), &inputs, seed, 2);
        match error <= OF_DIFFERENCES {
            true => Ok(()),
            false => {
                let name = self.name;
                Err(format!(
                    "{name}: the gradient is off by {error:.1e} from finite differences, for inputs {inputs:?}"
                ))
            }
        }
    }

    /// Outputs are written in full whatever their buffers held before, and equal inputs give equal bits.
    ///
    /// # Errors
    /// When an output depends on anything but the inputs.
    pub fn purity(&self, seed: u64) -> Checked {
        for dtype in [DType::F64, DType::F32] {
            let (_, inputs) = (self.sample)(&mut Gen::new(seed));
            let run = |poison| {
                let tape = Tape::default();
                tape.poison(poison);
                let x: Vec<Var> = inputs.iter().map(|x| place(&tape, x, dtype, 1.0)).collect();
                let y = tape.apply_dyn((self.sample)(&mut Gen::new(seed)).0, &x);
                let u: Vec<Tensor> = y.iter().map(|y| Gen::new(seed).normal(y.shape()).cast(dtype)).collect();
                let values: Vec<Vec<f64>> = y.iter().map(|y| y.value().to_f64()).collect();
                tape.backward_from(y.iter().copied().zip(u));
                let grads: Vec<_> = x.iter().map(|x| x.grad().map(|g| g.to_f64())).collect();
                (values, grads)
            };
            let (clean, poisoned) = (run(false), run(true));
            if clean != poisoned {
                let name = self.name;
                return Err(format!("{name} in {dtype} depends on old contents: {clean:?} is not {poisoned:?}"));
            }
        }
        Ok(())
    }

    /// The gradients of two uses of the same value are summed: twice the gradient of one.
    ///
    /// # Errors
    /// When they are not.
    pub fn sums(&self, seed: u64) -> Checked {
        let name = self.name;
        for (dtype, bound) in [(DType::F64, 1e-13), (DType::F32, 1e-5)] {
            let (_, inputs) = (self.sample)(&mut Gen::new(seed));
            let run = |uses: usize| {
                let tape = Tape::default();
                let x: Vec<Var> = inputs.iter().map(|x| place(&tape, x, dtype, 1.0)).collect();
                let y = (0..uses).flat_map(|_| tape.apply_dyn((self.sample)(&mut Gen::new(seed)).0, &x));
                let y: Vec<Var> = y.collect();
                let u = |i: usize| Gen::new(seed.wrapping_add((i % (y.len() / uses)) as u64));
                let seeds = y.iter().enumerate().map(|(i, y)| (*y, u(i).normal(y.shape()).cast(dtype)));
                tape.backward_from(seeds.collect::<Vec<_>>());
                x.iter().map(|x| x.grad().map_or(vec![], |g| g.to_f64())).collect::<Vec<_>>()
            };
            for (once, twice) in run(1).iter().zip(run(2)) {
                if once.len() != twice.len() {
                    return Err(format!("{name} in {dtype}: a gradient is missing"));
                }
                // Numbers of size one are summed: of a sum near zero there is their rounding left.
                let size = once.iter().fold(0.1, |m: f64, x| m.max(x.abs()));
                let differs = once.iter().zip(twice).find(|(once, twice)| {
                    let off = (2.0 * *once - twice).abs() / size;
                    off.is_nan() || off > bound
                });
                if let Some((once, twice)) = differs {
                    return Err(format!("{name} in {dtype}: twice the gradient {once} is not {twice}, for {inputs:?}"));
                }
            }
        }
        Ok(())
    }

    /// Every kernel that accepts the inputs computes what defines the op, values and gradients, where the op is used so
    /// many times.
    ///
    /// # Errors
    /// When one does not.
    pub fn kernels(&self, seed: u64, uses: u64) -> Checked {
        let (name, of) = (self.name, Uses { seed, uses, scale: 1.0 });
        let exact = self.run(Kernels::Plain, of, DType::F64);
        let mut rough = None;
        for (dtype, tolerance) in [(DType::F64, 1e-10), (DType::F32, 3e-4)] {
            for by in self.names_of_kernels(seed).into_iter().filter(|by| self.runs(by, of, dtype)) {
                let found = self.run(Kernels::Only(vec![by.into()]), of, dtype);
                if found.len() != exact.len() {
                    return Err(format!("{by} in {dtype}: {} results and gradients, not {}", found.len(), exact.len()));
                }
                for (i, ((what, found), (_, exact_here))) in found.iter().zip(&exact).enumerate() {
                    if found.len() != exact_here.len() {
                        return Err(format!("{by} in {dtype}: {what} has {} elements of {name}", found.len()));
                    }
                    let off = off(found, exact_here);
                    if off <= tolerance {
                        continue;
                    }
                    let rough = rough.get_or_insert_with(|| self.rough(of, &exact));
                    // Where any rounding moves a result this far, nothing can be said of it.
                    let more = match rough.get(i) {
                        Some(&rough) if rough > 1e-3 => f64::INFINITY,
                        Some(&rough) if dtype == DType::F32 => 10.0 * rough,
                        _ => 0.0,
                    };
                    if off > tolerance + more {
                        return Err(format!("{by} in {dtype}: {what} is {off:.1e} off\n{found:?}\n{exact_here:?}"));
                    }
                }
            }
        }
        Ok(())
    }

    /// By how much roundings move each result and gradient of a large sample; nothing for small ones. A long recurrence
    /// with wide weights is chaotic: it amplifies every rounding, in any computation. The size of that is seen in single
    /// precision and, since its roundings may be lucky, with inputs that are about a rounding larger.
    fn rough(&self, of: Uses, exact: &Found) -> Vec<f64> {
        if !is_large(of.seed) {
            return vec![];
        }
        let single = self.run(Kernels::Plain, of, DType::F32);
        let moved = self.run(Kernels::Plain, Uses { scale: 1.0 + 1e-7, ..of }, DType::F64);
        let pairs = single.iter().zip(&moved).zip(exact);
        pairs.map(|((single, moved), exact)| off(&single.1, &exact.1).max(off(&moved.1, &exact.1))).collect()
    }

    /// Every kernel runs where it is forced, on some of so many samples.
    ///
    /// # Errors
    /// When one never runs.
    pub fn forced(&self, samples: u64) -> Checked {
        let (mut forced, mut ran) = (BTreeSet::new(), BTreeSet::new());
        for seed in 0..samples {
            for by in self.names_of_kernels(seed) {
                forced.insert(by);
                if !ran.contains(by) && self.runs(by, Uses { seed, uses: 1, scale: 1.0 }, DType::F64) {
                    ran.insert(by);
                }
            }
        }
        let never: Vec<&str> = forced.difference(&ran).copied().collect();
        match never.is_empty() {
            true => Ok(()),
            false => Err(format!("{}: {never:?} did not run, of {forced:?}", self.name)),
        }
    }

    /// The definition holds in single precision too, at small sizes.
    ///
    /// # Errors
    /// When it does not.
    pub fn precisions(&self, seed: u64) -> Checked {
        let of = Uses { seed: seed / 4 * 4 + seed % 2, uses: 1, scale: 1.0 };
        let [double, single] = [DType::F64, DType::F32].map(|dtype| self.run(Kernels::Plain, of, dtype));
        for ((what, double), (_, single)) in double.iter().zip(&single) {
            let off = off(single, double);
            if off > 2e-4 {
                return Err(format!("{}: {what} is {off:.1e} off in f32\n{single:?}\n{double:?}", self.name));
            }
        }
        Ok(())
    }

    /// The names of its kernels: each is forced in turn.
    fn names_of_kernels(&self, seed: u64) -> Vec<&'static str> {
        let op = (self.sample)(&mut draw(seed)).0;
        op.kernels().iter().map(|kernel| kernel.name().unwrap_or(op.name())).collect()
    }

    /// Whether a kernel runs where it is forced. One that does not accept the inputs leaves them to the formula, which
    /// would then be compared with itself.
    fn runs(&self, by: &str, of: Uses, dtype: DType) -> bool {
        let tape = Tape::hollow().with_kernels(Kernels::Only(vec![by.into()]));
        tape.apply_dyn((self.sample)(&mut draw(of.seed)).0, &self.inputs(&tape, of, dtype));
        tape.ran().contains(&by)
    }

    fn inputs<'t>(&self, tape: &'t Tape, of: Uses, dtype: DType) -> Vec<Var<'t>> {
        (self.sample)(&mut draw(of.seed)).1.iter().map(|x| place(tape, x, dtype, of.scale)).collect()
    }

    /// The results and gradients.
    fn run(&self, kernels: Kernels, of: Uses, dtype: DType) -> Found {
        let tape = Tape::default().with_kernels(kernels);
        tape.poison(true);
        let x = self.inputs(&tape, of, dtype);
        let (mut found, mut seeds) = (vec![], vec![]);
        for n in 0..of.uses {
            for (i, y) in tape.apply_dyn((self.sample)(&mut draw(of.seed)).0, &x).into_iter().enumerate() {
                seeds.push((y, Gen::new(of.seed ^ (i as u64 + 10 * n)).normal(y.shape()).cast(y.dtype())));
                found.push((format!("result {i} {}", y.shape()), y.value().to_f64()));
            }
        }
        tape.backward_from(seeds);
        for (i, x) in x.iter().enumerate().filter(|(_, x)| x.dtype() != DType::I32) {
            // For an input that no result depends on, a formula gives no gradient and a kernel gives zeros.
            let zeros = || vec![0.0; x.shape().len()];
            found.push((format!("gradient {i} {}", x.shape()), x.grad().map_or_else(zeros, |g| g.to_f64())));
        }
        found
    }
}

/// An input in this precision, times a number, for its gradient; integers as they are.
fn place<'t>(tape: &'t Tape, x: &Tensor, dtype: DType, scale: f64) -> Var<'t> {
    if x.dtype() == DType::I32 {
        return tape.constant(x);
    }
    let scaled = x.to_f64().into_iter().map(|x| scale * x).collect();
    tape.leaf(&Tensor::from_vec::<f64>(scaled, x.shape()).cast(dtype))
}

/// Small samples, and half of the time of sizes around the kernels' switches; with tensors of zeros, of equal rows and
/// at the ends of their range among them.
fn draw(seed: u64) -> Gen {
    let g = if is_large(seed) { Gen::new(seed).around_switches(1 << 12) } else { Gen::new(seed) };
    if seed.is_multiple_of(2) { g } else { g.at_edges() }
}

fn is_large(seed: u64) -> bool {
    seed % 4 >= 2
}

/// The largest difference relative to the largest finite element of either, or to a tenth where all elements are small
/// (a gradient may be a sum that cancels).
fn off(a: &[f64], b: &[f64]) -> f64 {
    let size = a.iter().chain(b).filter(|x| x.is_finite()).fold(0.1, |size: f64, x| size.max(x.abs()));
    let off = |(a, b): (&f64, &f64)| match (a - b).abs() / size {
        _ if a == b || a.is_nan() && b.is_nan() => 0.0,
        off if off.is_nan() => f64::INFINITY,
        off => off,
    };
    a.iter().zip(b).map(off).fold(0.0, f64::max)
}
