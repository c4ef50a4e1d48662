//! Training, to be read from top to bottom: [`train`] is the loop, [`Trainer::step`] one step of it.

pub mod checkpoint;
pub mod config;
pub mod data;
pub mod interrupt;
pub mod jobs;
pub mod on_device;
pub mod optimizer;
mod presets;
pub mod rundir;
pub mod schedule;
pub mod sweep;

use crate::{
    args,
    autograd::{Profile, Tape, Var},
    cuda::{self, Module},
    error::{Error, Result},
    models::{Form, Model},
    rng,
    tasks::{Batch, Counts, IGNORE, Len},
    tensor::{Cx, DType, Real, Tensor},
    with_real,
};
use config::TrainConfig;
use data::Data;
use on_device::{Feed, Graphs, OnDevice};
use optimizer::{Adam, Window, clip};
use serde::Serialize;
use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

/// What a step tells about itself.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Which step it was, counted from 1.
    pub step: usize,
    /// The mean loss before the step.
    pub loss: f64,
    /// The global norm of its gradient, before clipping.
    pub grad_norm: f64,
    /// The learning rate.
    pub lr: f64,
}

/// Accuracy over all positions, at each length.
pub type Accuracy = Vec<(Len, f64)>;

/// What else a task is judged by ([`Task::metrics`](crate::tasks::Task::metrics)), by name, at each length.
pub type Scores = BTreeMap<String, Accuracy>;

/// Somebody who watches a run. Watching changes nothing.
pub trait Watch {
    /// A step was taken.
    ///
    /// # Errors
    /// When it could not be recorded; the run stops.
    fn step(&mut self, step: &Step) -> Result<()>;

    /// An evaluation was made after this step.
    ///
    /// # Errors
    /// As [`Watch::step`].
    fn evaluation(&mut self, step: usize, accuracy: &Accuracy, scores: &Scores) -> Result<()>;

    /// The step and its evaluation are done: the time to save where the run stands, or to stop it with an error.
    ///
    /// # Errors
    /// As [`Watch::step`], or when the run is to stop.
    fn pause(&mut self, _trainer: &mut Trainer) -> Result<()> {
        Ok(())
    }
}

/// A run that came to its end.
pub struct Trained {
    /// The model with its final weights.
    pub model: Model,
    /// Its accuracy at each length.
    pub accuracy: Accuracy,
    /// The task's other scores.
    pub scores: Scores,
    /// The time spent in training steps, evaluation not counted.
    pub training: Duration,
}

/// Train the one model of `cfg` (see [`TrainConfig::for_model`]) from this seed.
///
/// # Errors
/// When the configuration cannot be, a number is not finite, or `watch` cannot record.
pub fn train(cfg: &TrainConfig, seed: u64, watch: &mut dyn Watch) -> Result<Trained> {
    train_on(Trainer::new(cfg, seed)?, watch)
}

/// Train from where this trainer stands, to the end of its run.
///
/// # Errors
/// As [`train`].
pub fn train_on(mut trainer: Trainer, watch: &mut dyn Watch) -> Result<Trained> {
    let TrainConfig { steps, eval_every, .. } = trainer.cfg;
    for step in trainer.step + 1..=steps {
        let start = Instant::now();
        let took = trainer.step()?;
        trainer.training += start.elapsed();
        watch.step(&took)?;
        if eval_every > 0 && step.is_multiple_of(eval_every) && step < steps {
            let (accuracy, scores) = trainer.evaluate()?;
            watch.evaluation(step, &accuracy, &scores)?;
        }
        watch.pause(&mut trainer)?;
    }
    trainer.check_finite()?;
    let (accuracy, scores) = trainer.evaluate()?;
    watch.evaluation(steps, &accuracy, &scores)?;
    let training = trainer.training;
    Ok(Trained { model: trainer.into_model()?, accuracy, scores, training })
}

/// A model in training, with all that a step needs; nothing is allocated after the second step.
pub struct Trainer {
    cfg: TrainConfig,
    seed: u64,
    step: usize,
    model: Model,
    form: Form,
    tape: Tape,
    adam: Adam,
    /// What a device needs besides, if this runs on one.
    on_device: Option<OnDevice>,
    /// Which parts of the flat parameters decay.
    windows: Vec<Window>,
    /// The gradient, flat like the parameters.
    grads: Tensor,
    data: Data,
    batch: Batch,
    /// The time spent in steps, over all processes that took one.
    training: Duration,
}

impl Trainer {
    /// Fresh weights and moments.
    ///
    /// # Errors
    /// When the model cannot have these sizes, or the device is not there or too small.
    pub fn new(cfg: &TrainConfig, seed: u64) -> Result<Trainer> {
        let mut model = Model::new(&cfg.model, seed, cfg.dtype)?;
        model.begin_carrying(cfg.batch);
        let n = model.params().len();
        let tape = Tape::open_with(cfg.device, cfg.products).map_err(Error::Device)?;
        let windows = windows(&model, cfg.weight_decay);
        let mut adam = Adam::new(n, cfg.dtype, cfg.adam());
        let (grads, on_device) = cuda::guarded(tape.cx().gpu(), || {
            model.params_mut().to_device(tape.cx());
            adam.to_device(tape.cx());
            (Tensor::zeros([n], cfg.dtype).to_device(tape.cx()), OnDevice::new(tape.cx(), n, &windows))
        })?;
        if cfg.cuda_graph == Graphs::On && !model.buffers().is_empty() {
            return Err(Error::Config(format!(
                "cuda_graph on: {} keeps a state from batch to batch, which cannot be recorded; expected auto or off",
                cfg.model.mixer
            )));
        }
        Ok(Trainer {
            seed,
            step: 0,
            form: cfg.form_of(&model),
            tape,
            adam,
            on_device,
            windows,
            grads,
            data: Data::new(cfg, seed, 0),
            batch: Batch::new(cfg.batch, cfg.train_len_at(1)),
            training: Duration::ZERO,
            model,
            cfg: cfg.clone(),
        })
    }

    /// The model with its weights in host memory.
    ///
    /// # Errors
    /// When the device fails.
    pub fn into_model(mut self) -> Result<Model> {
        self.tape.reset();
        cuda::guarded(self.tape.cx().gpu(), || self.model.params_mut().to_host())?;
        Ok(self.model)
    }

    /// The model as it is now.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The number of steps taken.
    pub fn steps(&self) -> usize {
        self.step
    }

    /// Have the batches to come made ahead, by a thread of their own.
    pub fn make_batches_ahead(&mut self) {
        self.data.ahead();
    }

    /// The same, once it is known that making them takes long enough.
    pub fn make_batches_ahead_if_it_pays(&mut self) {
        self.data.ahead_if_it_pays();
    }

    /// Every tensor that a step moves on, under its name in a checkpoint: weights, moments, and what the model keeps.
    fn state(&mut self) -> Vec<(&'static str, Tensor)> {
        let [m, v] = self.adam.moments();
        let mut state =
            vec![("params", self.model.params().flat().clone()), ("adam.m", m.clone()), ("adam.v", v.clone())];
        state.extend(self.model.buffers().into_iter().map(|(name, tensor)| (name, tensor.clone())));
        state
    }

    /// Stand after so many steps, with the tensors that [`Trainer::state`] gave there.
    ///
    /// # Errors
    /// When they do not fit: a sentence.
    fn go_to(&mut self, step: usize, state: &HashMap<String, Tensor>) -> std::result::Result<(), String> {
        self.step = step;
        self.data = Data::new(&self.cfg, self.seed, step);
        let assign = |name: &str, to: &mut Tensor| {
            let from = state.get(name).ok_or(format!("no tensor '{name}'"))?;
            if (from.shape(), from.dtype()) != (to.shape(), to.dtype()) {
                return Err(format!("'{name}' is {} of {}, not {}", from.shape(), from.dtype(), to.shape()));
            }
            to.assign(from);
            Ok(())
        };
        let [m, v] = self.adam.go_to(step);
        assign("adam.m", m)?;
        assign("adam.v", v)?;
        assign("params", self.model.params_mut().flat_mut())?;
        self.model.buffers().into_iter().try_for_each(|(name, to)| assign(name, to))
    }

    /// Take this many steps and say where the time of the ops went.
    ///
    /// # Errors
    /// As [`Trainer::step`].
    pub fn profile(&mut self, steps: usize) -> Result<Profile> {
        self.tape.start_profile();
        for _ in 0..steps {
            self.step()?;
        }
        Ok(self.tape.take_profile())
    }

    /// How many buffers the tape ever allocated.
    pub fn fresh_buffers(&self) -> usize {
        self.tape.fresh_buffers()
    }

    /// One step: a batch, the loss, its gradient, the update.
    ///
    /// # Errors
    /// When the loss or the norm of the gradient is not finite: the error names the step and the first op whose
    /// value or gradient was not. The weights are then as they were before the step. When the device fails.
    pub fn step(&mut self) -> Result<Step> {
        cuda::guarded(self.tape.cx().gpu(), || self.try_step())?
    }

    fn try_step(&mut self) -> Result<Step> {
        self.step += 1;
        self.data.next(&mut self.batch);
        let lr = self.cfg.schedule().lr(self.step);
        let [loss, grad_norm] = if self.on_device.is_some() { self.step_on_device(lr) } else { self.step_on_cpu(lr) }?;
        Ok(Step { step: self.step, loss, grad_norm, lr })
    }

    /// The update, if it can be, and the loss and the norm of the gradient.
    fn step_on_cpu(&mut self, lr: f64) -> Result<[f64; 2]> {
        let Trainer { cfg, model, form, tape, grads, batch, .. } = self;
        let (rows, targets) = batch.labelled().unzip();
        let targets = targets.as_ref().unwrap_or(&batch.targets);
        let loss =
            gradient(cfg, model, tape, *form, &Feed { tokens: &batch.tokens, rows: rows.as_ref(), targets }, grads);
        let told = [loss.value().item(), clip(grads, cfg.clip)];
        if !told.iter().all(|x| x.is_finite()) {
            return Err(Error::NotFinite { step: self.step, what: culprit(model, tape, loss) });
        }
        tape.reset();
        self.adam.step(lr, model.params_mut().flat_mut(), grads, &self.windows);
        Ok(told)
    }

    /// The same without waiting for the device before the end, and, once recorded, in one call.
    fn step_on_device(&mut self, lr: f64) -> Result<[f64; 2]> {
        let Trainer { cfg, model, form, tape, grads, adam, on_device, .. } = self;
        let Some(on) = on_device else { unreachable!("called for a device") };
        on.give(tape.cx(), &self.batch, &adam.next(lr, cfg.clip));
        let graphs = cfg.cuda_graph != Graphs::Off && model.buffers().is_empty();
        on.run(graphs, tape, |on, tape| {
            on.upload();
            let loss = gradient(cfg, model, tape, *form, &on.feed(), grads).value();
            on.judge(grads, &loss);
            drop(loss);
            tape.reset();
            on.update(adam, model.params_mut().flat_mut(), grads);
            on.download();
        });
        let told = on.told();
        if !told.iter().all(|x| x.is_finite()) {
            // The parameters are as they were: the same again, and with every value kept.
            let loss = gradient(cfg, model, tape, *form, &on.feed(), grads);
            return Err(Error::NotFinite { step: self.step, what: culprit(model, tape, loss) });
        }
        Ok(told)
    }

    /// Whether steps on a device are replayed from a graph by now.
    pub fn replays(&self) -> bool {
        self.on_device.as_ref().is_some_and(OnDevice::recorded)
    }

    /// Whether the last update left every parameter finite; the next step would tell.
    fn check_finite(&self) -> Result<()> {
        if cuda::guarded(self.tape.cx().gpu(), || self.model.params().flat().all_finite())? {
            return Ok(());
        }
        Err(Error::NotFinite { step: self.step, what: "a parameter, after the update, is not finite".into() })
    }

    /// The accuracy and the task's scores at each length, on sequences that are the same for every model, seed and
    /// step.
    ///
    /// # Errors
    /// When the device fails.
    pub fn evaluate(&mut self) -> Result<(Accuracy, Scores)> {
        cuda::guarded(self.tape.cx().gpu(), || self.try_evaluate())
    }

    fn try_evaluate(&mut self) -> (Accuracy, Scores) {
        let (mut accuracy, mut scores) = (Accuracy::new(), Scores::new());
        for len in self.cfg.eval_lens.clone() {
            let counts = self.evaluate_at(len);
            accuracy.push((len, counts.accuracy()));
            for (name, score) in self.cfg.task.metrics(&counts) {
                scores.entry(name.into()).or_default().push((len, score));
            }
        }
        (accuracy, scores)
    }

    fn evaluate_at(&mut self, len: Len) -> Counts {
        let Trainer { cfg, model, tape, .. } = self;
        tape.reset();
        let mut batch = Batch::new(cfg.eval_batch, len);
        let mut counts = Counts::new(cfg.task.classes());
        for i in 0..cfg.eval_batches {
            batch.fill(&*cfg.task, rng::stream(0, &format!("evaluate at {len}"), i as u64));
            let params = model.params().bind_frozen(tape);
            let rows = batch.labelled().map(|l| l.0);
            let at = rows.as_ref().map(|rows| tape.constant(rows));
            let logits = model.forward_at(&params, tape.constant(&batch.tokens), self.form, at).value();
            let (rows, targets) = (rows.as_ref().map(|r| r.host::<i32>()), batch.targets.host());
            count(len.max, &said(tape, &logits), rows, targets, &mut counts);
            drop(logits);
            tape.reset();
        }
        counts
    }
}

/// The loss of a batch on the tape, and its gradient in `into`.
fn gradient<'t>(
    cfg: &TrainConfig,
    model: &mut Model,
    tape: &'t Tape,
    form: Form,
    feed: &Feed,
    into: &mut Tensor,
) -> Var<'t> {
    let params = model.params().bind(tape);
    let rows = feed.rows.map(|rows| tape.constant(rows));
    let logits = model.train(&params, tape.constant(feed.tokens), form, rows);
    let loss = logits.cross_entropy_smoothed(tape.constant(feed.targets), IGNORE, cfg.label_smoothing);
    tape.backward(loss);
    model.params().gather_grads(tape, &params, into);
    loss
}

static ARGMAX: Module = Module::new("train/argmax.cu", &[include_str!("argmax.cu")]);

/// The class of the largest of each row of logits `[.., classes]`, -1 where one is not finite.
fn said(tape: &Tape, logits: &Tensor) -> Vec<i32> {
    let (rows, classes) = (logits.shape().rows(), logits.shape().last());
    match tape.cx() {
        Cx::Cpu(_) => with_real!(logits.dtype(), T => {
            logits.host::<T>().chunks_exact(classes).map(largest).collect()
        }),
        Cx::Cuda(cu) => {
            let mut said = cu.temp(DType::I32, rows);
            // A warp a row.
            let launch = cu.elements(rows * 32);
            cu.launch(&ARGMAX, "argmax", logits.dtype(), launch, args![logits, &mut said, rows, classes]);
            said.to_host().host().to_vec()
        }
    }
}

fn largest<T: Real>(row: &[T]) -> i32 {
    let best = (1..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best });
    if row.iter().all(|x| x.is_finite()) { best as i32 } else { -1 }
}

/// Count where what was said is the target `[sequences, t]`, at the positions that have one. It was said at all
/// positions, or at `rows`.
fn count(t: usize, said: &[i32], rows: Option<&[i32]>, targets: &[i32], counts: &mut Counts) {
    let positions: Vec<usize> = match rows {
        Some(rows) => rows.iter().map(|&row| row as usize).collect(),
        None => (0..targets.len()).collect(),
    };
    let mut said = said.iter();
    for sequence in positions.chunk_by(|a, b| a / t == b / t) {
        let (mut all, mut wrong) = (0, 0);
        for (&at, &said) in sequence.iter().zip(&mut said).filter(|(at, _)| targets[**at] != IGNORE) {
            counts.add(usize::try_from(said).ok(), targets[at] as usize);
            all += 1;
            wrong += usize::from(said != targets[at]);
        }
        counts.sequences += u64::from(all > 0);
        counts.perfect += u64::from(all > 0 && wrong == 0);
    }
}

/// Which value or gradient was the first that is not finite, on a tape that holds a step.
fn culprit(model: &Model, tape: &Tape, loss: Var) -> String {
    let what = if !model.params().flat().all_finite() {
        "a parameter, before the step,".into()
    } else {
        let culprit = tape.first_not_finite().or_else(|| tape.backward_watched(loss));
        culprit.map_or("the norm of the gradient".into(), |c| c.to_string())
    };
    format!("{what} is not finite")
}

/// The flat parameters in stretches that decay and stretches that do not.
fn windows(model: &Model, weight_decay: f64) -> Vec<Window> {
    let n = model.params().len();
    if weight_decay == 0.0 {
        return vec![(0..n, false)];
    }
    let mut windows: Vec<Window> = Vec::new();
    for e in model.params().entries() {
        let end = e.offset + e.shape.len();
        match windows.last_mut() {
            Some((range, decay)) if *decay == e.decay => range.end = end,
            _ => windows.push((e.offset..end, e.decay)),
        }
    }
    windows
}
