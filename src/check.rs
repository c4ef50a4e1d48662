//! Is a mixer, a task or an op of your own right? The facts that hold of every one, as checks that say what does not hold,
//! and by how much. The tests of this crate run the same checks over all of its own.
//!
//! [`mixer`] runs all of a mixer, on small random sequences in double precision, in a second or two:
//!
//! ```
//! use tapezoo::{check, models::{ModelConfig, gla}};
//!
//! let config = ModelConfig { mixer: "mine".into(), width: 4, heads: 2, head_dim: 3, ..ModelConfig::default() };
//! check::mixer(&config, gla::Layer::new)?;
//! # Ok::<(), String>(())
//! ```
//!
//! - [`Case::gradients`]: backpropagation through every form against finite differences.
//! - [`Case::forms`]: every form gives the values, final states and gradients of the recurrent one.
//! - [`Case::causality`]: what comes later changes nothing before it.
//! - [`Case::pieces`]: two pieces of a sequence, with the state passed on, are the whole.
//! - [`Case::rows`]: a sequence does not depend on the others in its batch.
//! - [`streaming`]: a model that reads token by token says what it says to the whole sequence.
//!
//! [`task`] checks that a task keeps its promises: names, bounds, seeds, labels. [`op`] checks an op on its random samples:
//!
//! - [`OpCase::definition`]: it is a primitive or has a formula.
//! - [`OpCase::gradient`]: backpropagation against finite differences.
//! - [`OpCase::purity`]: it depends on its inputs alone.
//! - [`OpCase::sums`]: the gradients of two uses are summed.
//! - [`OpCase::kernels`]: every kernel computes what defines the op; [`OpCase::forced`]: each of them runs.
//! - [`OpCase::precisions`]: what defines it does so in either precision.
//!
//! Each gives a sentence when it fails: "mine chunked:4 looks ahead by 0.13 at step 7".

mod op;
mod task;

pub use op::{OpCase, op};
pub use task::{batch, in_bounds, task};

use crate::{
    autograd::{Gen, Tape, Var, gradcheck},
    error,
    models::{Bound, Form, Init, Mixer, Model, ModelConfig, Params, State, run},
    tensor::{DType, Tensor},
};

/// Nothing, or a sentence with what is wrong.
pub type Checked = Result<(), String>;

/// The largest relative error of a gradient by finite differences.
const OF_DIFFERENCES: f64 = 1e-6;

/// The largest relative error between two ways to compute the same in double precision.
const OF_FORMS: f64 = 1e-8;

/// The same between sums of the same terms in another order.
const OF_ORDER: f64 = 1e-9;

/// Run all checks of a mixer that `build` makes of these sizes, each on several sequences. Small sizes are checked
/// fastest, and say as much.
///
/// # Errors
/// When the mixer cannot be built, or a check fails: which one, in which form, and by how much.
pub fn mixer<M: Mixer + 'static>(
    config: &ModelConfig,
    build: impl Fn(&ModelConfig, &mut Init) -> error::Result<M>,
) -> Checked {
    for seed in 0..8 {
        let g = &mut Gen::new(seed);
        let case = Case::new(config, &build, g).map_err(|e| e.to_string())?;
        let (b, t) = (g.size(3), g.size(12));
        case.forms(seed, b, t)?;
        case.gradients(seed, b, 1 + t % 5)?;
        case.causality(seed, 1 + t)?;
        case.pieces(seed, b, t)?;
        case.rows(seed, t)?;
    }
    let model = Model::with_mixer(config, &build, 3, DType::F64).map_err(|e| e.to_string())?;
    streaming(&model, 2, 19)
}

/// A mixer with parameters.
pub struct Case {
    /// Its name, for messages.
    pub name: String,
    /// The mixer.
    pub mixer: Box<dyn Mixer>,
    /// Its parameters, in double precision.
    pub params: Params,
    /// D, the width of its input and output.
    pub width: usize,
}

impl Case {
    /// A mixer as one of the blocks has it, with parameters away from symmetric initial values, where a wrong term may
    /// vanish.
    ///
    /// # Errors
    /// When it cannot be built.
    pub fn new<M: Mixer + 'static>(
        config: &ModelConfig,
        build: impl Fn(&ModelConfig, &mut Init) -> error::Result<M>,
        g: &mut Gen,
    ) -> error::Result<Case> {
        Case::boxed(config, |c, init| Ok(Box::new(build(c, init)?)), g)
    }

    /// The same, of a function as [`models::MIXERS`](crate::models::MIXERS) has them.
    ///
    /// # Errors
    /// As [`Case::new`].
    pub fn boxed(
        config: &ModelConfig,
        build: impl Fn(&ModelConfig, &mut Init) -> error::Result<Box<dyn Mixer>>,
        g: &mut Gen,
    ) -> error::Result<Case> {
        let mut init = Init::new(7, None);
        // Some mixers differ from block to block.
        init.layer = g.below(config.layers);
        let mixer = build(config, &mut init)?;
        let mut params = init.finish(DType::F64);
        params.flat_mut().host_mut::<f64>().iter_mut().for_each(|x| *x += 0.3 * g.gauss());
        Ok(Case { name: config.mixer.clone(), mixer, params, width: config.width })
    }

    /// Every form has the gradient of its value, by finite differences: of x, the initial state and every parameter.
    ///
    /// # Errors
    /// When one has not.
    pub fn gradients(&self, seed: u64, b: usize, t: usize) -> Checked {
        let x = self.inputs(&mut Gen::new(seed), b, t);
        for form in self.mixer.forms() {
            let form = form.with_steps(3);
            let error = gradcheck(|_, v| self.apply(0, v, form), &x, seed, 2);
            if error > OF_DIFFERENCES {
                return Err(format!(
                    "{} {form}: the gradient is off by {error:.1e} from finite differences",
                    self.name
                ));
            }
        }
        Ok(())
    }

    /// Every form equals the recurrent one in values, final state and gradients, with chunks below, at and above T.
    ///
    /// In single precision a form may lose as many digits as the definition loses there (such as in normalising a short
    /// key) and as the form loses in double precision (such as when similar keys make the system of a delta rule's
    /// chunk ill-conditioned). The size of a single rounding is chance; where all digits may be lost, single precision
    /// is not checked.
    ///
    /// # Errors
    /// When one does not.
    pub fn forms(&self, seed: u64, b: usize, t: usize) -> Checked {
        let g = &mut Gen::new(seed);
        let x = self.inputs(g, b, t);
        let want = [DType::F64, DType::F32].map(|dtype| self.everything(&x, Form::Recurrent, seed, dtype));
        let definition = self.same(Form::Recurrent, &want[1], &want[0], f64::INFINITY)?;
        for form in self.other_forms(g) {
            let got = self.everything(&x, form, seed, DType::F64);
            let double = self.same(form, &got, &want[0], OF_FORMS)? * f64::from(f32::EPSILON) / f64::EPSILON;
            let got = self.everything(&x, form, seed, DType::F32);
            let lost = 100.0 * definition.max(double);
            if lost < 0.1 {
                self.same(form, &got, &want[1], lost.max(2e-3)).map_err(|why| format!("{why} in single precision"))?;
            }
        }
        Ok(())
    }

    /// A change of the input from some step on changes outputs from there on, and not a bit of those before.
    ///
    /// # Errors
    /// When a form looks ahead, or does not look at its input.
    ///
    /// # Panics
    /// When there are fewer than two steps.
    pub fn causality(&self, seed: u64, t: usize) -> Checked {
        assert!(t >= 2, "causality needs at least 2 steps, got {t}");
        let g = &mut Gen::new(seed);
        let (x, w) = (self.inputs(g, 1, t), self.width);
        let cut = 1 + g.below(t - 1);
        let mut changed = x.clone();
        let moved = x[0].to_f64().into_iter().enumerate().map(|(i, v)| if i < cut * w { v } else { v + 1.0 });
        changed[0] = Tensor::from_vec(moved.collect(), [1, t, w]);
        for form in self.mixer.forms() {
            let y = |x: &[Tensor]| {
                let tape = Tape::default();
                self.apply(0, &leaves(&tape, x, DType::F64), form)[0].value().to_f64()
            };
            let (a, b) = (y(&x), y(&changed));
            let far = |i: usize| (a[i] - b[i]).abs();
            if let Some(at) = (0..cut * w).find(|&i| a[i] != b[i]) {
                let most = (0..cut * w).map(far).fold(0.0, f64::max);
                let step = at / w + 1;
                return Err(format!("{} {form} looks ahead by {most:.2e} at step {step} of {t}", self.name));
            }
            // A ReLU at the end may leave nothing but zeros.
            let shut = a[cut * w..].iter().chain(&b[cut * w..]).all(|&y| y == 0.0);
            if !shut && a[cut * w..] == b[cut * w..] {
                return Err(format!("{} {form} does not look at its input from step {} of {t} on", self.name, cut + 1));
            }
        }
        Ok(())
    }

    /// Two pieces with the state passed on equal the whole, in every form.
    ///
    /// # Errors
    /// When they do not.
    pub fn pieces(&self, seed: u64, b: usize, t: usize) -> Checked {
        let g = &mut Gen::new(seed);
        let (x, n) = (self.inputs(g, b, t), self.mixer.state(1).len());
        let cut = g.below(t + 1);
        for form in self.mixer.forms() {
            let tape = Tape::default();
            let v = leaves(&tape, &x, DType::F64);
            let first = self.apply(0, &[&[v[0].narrow(1, 0, cut)], &v[1..]].concat(), form);
            let rest = [&[v[0].narrow(1, cut, t - cut)], &first[1..], &v[1 + n..]].concat();
            let second = self.apply(cut, &rest, form);
            let y = Var::concat(&[first[0], second[0]], 1);
            let values = |v: &[Var]| v.iter().map(|y| y.value().to_f64()).collect::<Vec<_>>();
            let pieces = values(&[&[y], &second[1..]].concat());
            self.same(form, &pieces, &values(&self.apply(0, &v, form)), OF_ORDER)
                .map_err(|why| format!("{why}: pieces of {cut} and {} steps are not the whole", t - cut))?;
        }
        Ok(())
    }

    /// The first of two sequences is the same without the other.
    ///
    /// # Errors
    /// When it is not.
    pub fn rows(&self, seed: u64, t: usize) -> Checked {
        let (x, n) = (self.inputs(&mut Gen::new(seed), 2, t), self.mixer.state(1).len());
        for form in self.mixer.forms() {
            let tape = Tape::default();
            let v = leaves(&tape, &x, DType::F64);
            let alone = |(i, v): (usize, &Var<'_>)| if i <= n { v.narrow(0, 0, 1).value() } else { v.value() };
            let alone: Vec<Tensor> = v.iter().enumerate().map(alone).collect();
            let one = self.apply(0, &leaves(&tape, &alone, DType::F64), form)[0].value().to_f64();
            let both = self.apply(0, &v, form)[0].value().to_f64();
            self.same(form, std::slice::from_ref(&one), &[both[..one.len()].to_vec()], 1e-12)
                .map_err(|why| format!("{why}: a sequence depends on the others in its batch"))?;
        }
        Ok(())
    }

    /// x, the state that it starts from, and the parameters.
    fn inputs(&self, g: &mut Gen, b: usize, t: usize) -> Vec<Tensor> {
        let mut all = vec![g.normal([b, t, self.width])];
        // Of the shapes that it has after two tokens, when a cache has grown; a normaliser is a sum of positive
        // features.
        let tape = Tape::default();
        let mut s = State::zero(self.mixer.as_ref(), &tape, b, DType::F64);
        let two = tape.constant(&g.normal([b, 2, self.width]));
        run(self.mixer.as_ref(), &self.params.bind_frozen(&tape), two, &mut s, Form::Recurrent);
        all.extend(s.s.iter().map(|s| g.range(s.shape(), 0.1, 0.9)));
        all.extend(self.params.tensors().map(|(_, p)| Tensor::from_vec(p.to_f64(), p.shape())));
        all
    }

    /// y and the last state after `seen` tokens and these inputs.
    fn apply<'t>(&self, seen: usize, v: &[Var<'t>], form: Form) -> Vec<Var<'t>> {
        let n = self.mixer.state(1).len();
        let p = Bound::new(v[1 + n..].to_vec());
        let mut s = State::of(seen, v[1..1 + n].to_vec());
        let y = run(self.mixer.as_ref(), &p, v[0], &mut s, form);
        [vec![y], s.s].concat()
    }

    /// Values of all outputs, then gradients of all inputs for cotangents drawn from `seed`.
    fn everything(&self, x: &[Tensor], form: Form, seed: u64, dtype: DType) -> Vec<Vec<f64>> {
        let tape = Tape::default();
        tape.poison(true);
        let v = leaves(&tape, x, dtype);
        let y = self.apply(0, &v, form);
        let mut g = Gen::new(seed);
        let mut all: Vec<Vec<f64>> = y.iter().map(|y| y.value().to_f64()).collect();
        tape.backward_from(y.iter().map(|&y| (y, g.normal(y.shape()).cast(dtype))));
        all.extend(v.iter().map(|v| v.grad().map_or(vec![], |g| g.to_f64())));
        all
    }

    /// The names of the values of [`Case::everything`].
    fn names(&self) -> Vec<String> {
        let state: Vec<&str> = self.mixer.state(1).into_iter().map(|s| s.0).collect();
        let outputs = ["y".to_string()].into_iter().chain(state.iter().map(|s| format!("the last state {s}")));
        let inputs = ["x".to_string()].into_iter().chain(state.iter().map(|s| format!("the first state {s}")));
        let params = self.params.entries().iter().map(|e| e.name.clone());
        outputs.chain(inputs.chain(params).map(|name| format!("the gradient of {name}"))).collect()
    }

    /// The largest relative error between two such lists, or what is off by more than `tolerance`.
    fn same(&self, form: Form, got: &[Vec<f64>], want: &[Vec<f64>], tolerance: f64) -> Result<f64, String> {
        let mut worst = 0.0f64;
        let scale = want.iter().flatten().fold(0.0f64, |m, x| m.max(x.abs()));
        for (i, (a, b)) in got.iter().zip(want).enumerate() {
            // A gradient that a form never touched is a gradient of zero.
            let zero = vec![0.0; a.len().max(b.len())];
            let (a, b) = (if a.is_empty() { &zero } else { a }, if b.is_empty() { &zero } else { b });
            let what = || format!("{} {form}: {}", self.name, self.names()[i]);
            if a.len() != b.len() {
                return Err(format!("{} has {} elements, not {}", what(), a.len(), b.len()));
            }
            let error = distance(a, b, scale);
            if error.is_nan() || error > tolerance {
                return Err(format!("{} is off by {error:.1e}", what()));
            }
            worst = worst.max(error);
        }
        Ok(worst)
    }

    /// The forms other than the definition; chunked forms and scans with several numbers of steps.
    fn other_forms(&self, g: &mut Gen) -> Vec<Form> {
        let mut all = vec![];
        for form in self.mixer.forms().into_iter().filter(|&f| f != Form::Recurrent) {
            match form {
                Form::Chunked(_) | Form::Split(_) | Form::Scan(_) => {
                    all.extend([1, 4, 1 + g.below(9), 64].map(|steps| form.with_steps(steps)));
                }
                form => all.push(form),
            }
        }
        all
    }
}

/// A model that reads `b` random sequences of `t` tokens one token at a time, each on a tape of its own, says the same
/// as to whole sequences, in every form.
///
/// # Errors
/// When it does not.
pub fn streaming(model: &Model, b: usize, t: usize) -> Checked {
    let config = model.config();
    let tokens = Gen::new(5).ints([b, t], config.vocab);
    let column = |i: usize| {
        let ids = (0..b).map(|row| tokens.host::<i32>()[row * t + i]).collect::<Vec<_>>();
        Tensor::from_vec(ids, [b, 1])
    };
    let mut carried: Option<Vec<Vec<Tensor>>> = None;
    let mut streamed = vec![]; // by token, then by row
    for i in 0..t {
        let tape = Tape::default();
        let p = model.params().bind_frozen(&tape);
        let mut s = match &carried {
            None => model.zero_state(&tape, b),
            Some(tensors) => model.state_from(&tape, i, tensors),
        };
        let y = model.run(&p, tape.constant(&column(i)), &mut s, Form::Recurrent);
        streamed.push(y.value().to_f64());
        carried = Some(s.tensors());
    }
    for form in model.forms() {
        let tape = Tape::default();
        let p = model.params().bind_frozen(&tape);
        let whole = model.forward(&p, tape.constant(&tokens), form).value().to_f64();
        for (i, y) in streamed.iter().enumerate() {
            for (row, y) in y.chunks(config.classes).enumerate() {
                let error = distance(y, &whole[(row * t + i) * config.classes..][..config.classes], 1.0);
                if error.is_nan() || error > OF_ORDER {
                    let name = &config.mixer;
                    return Err(format!("{name} {form}: streaming is off by {error:.1e} at token {} of {t}", i + 1));
                }
            }
        }
    }
    Ok(())
}

/// ‖a − b‖ / ‖b‖, where ‖b‖ is at least the rounding of the largest tensor.
fn distance(a: &[f64], b: &[f64], scale: f64) -> f64 {
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    let d = norm(&mut a.iter().zip(b).map(|(a, b)| a - b));
    if d == 0.0 { 0.0 } else { d / norm(&mut b.iter().copied()).max(1e-3 * scale) }
}

fn leaves<'t>(tape: &'t Tape, x: &[Tensor], dtype: DType) -> Vec<Var<'t>> {
    x.iter().map(|x| tape.leaf(&x.cast(dtype))).collect()
}
