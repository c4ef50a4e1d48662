//! Training, to be read from top to bottom: [`train`] is the loop, [`Trainer::step`] one step of it.
//!
//! Of its modules, too, each knows those before it, and those on a level with it:
//! interrupt, lock, outcome, presets, schedule ← optimizer ← on_device ← capacity, config ← data, evaluate,
//! gradient, micro_batches, profile, progress, rehearsal, standing, table ← checkpoint ← rundir ← jobs ← sweep.

#[doc(hidden)]
pub mod capacity;
#[cfg(feature = "laboratory")]
#[doc(hidden)]
pub mod checkpoint;
pub mod config;
pub(crate) mod data;
#[doc(hidden)]
pub mod evaluate;
mod gradient;
#[cfg(feature = "laboratory")]
pub(crate) mod interrupt;
#[cfg(feature = "laboratory")]
#[doc(hidden)]
pub mod jobs;
#[cfg(feature = "laboratory")]
mod lock;
#[doc(hidden)]
pub mod micro_batches;
#[doc(hidden)]
pub mod on_device;
pub mod optimizer;
mod outcome;
mod presets;
mod profile;
#[cfg(feature = "laboratory")]
#[doc(hidden)]
pub mod progress;
#[doc(hidden)]
pub mod rehearsal;
#[cfg(feature = "laboratory")]
#[doc(hidden)]
pub mod rundir;
pub mod schedule;
#[cfg(feature = "laboratory")]
#[doc(hidden)]
pub mod standing;
#[cfg(feature = "laboratory")]
#[doc(hidden)]
pub mod sweep;
#[cfg(feature = "laboratory")]
#[doc(hidden)]
pub mod table;

use crate::{
    autograd::Tape,
    cuda,
    error::{Error, Result},
    models::{self, Form, Model},
    tasks::{Batch, Stages, Task},
    tensor::{Cores, DType, Device, Tensor},
};
use config::{Parts, TrainConfig};
use data::Data;
use gradient::{culprit, gradient, not_finite};
use micro_batches::MicroBatches;
use on_device::{Feed, Graphs, OnDevice};
use optimizer::{Adam, Noise, Window, clip, windows};
pub use outcome::{Accuracy, RunReport, Scores};
use serde::Serialize;
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// The record of one step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Step {
    /// The number of the step, counted from 1.
    pub step: usize,
    /// The mean loss before the step.
    pub loss: f64,
    /// The global norm of its gradient, before clipping.
    pub grad_norm: f64,
    /// The learning rate.
    pub lr: f64,
    /// The stage that it belonged to, counted from 1, where the task has a curriculum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<usize>,
}

/// An observer of a run. Watching changes nothing.
pub trait Watch {
    /// A step was taken.
    ///
    /// # Errors
    /// When it could not be recorded; the run stops.
    fn step(&mut self, _step: &Step) -> Result<()> {
        Ok(())
    }

    /// An evaluation begins, which may take long. Nothing changes until [`Watch::evaluation`] or [`Watch::pause`].
    ///
    /// # Errors
    /// As [`Watch::step`].
    fn evaluates(&mut self, _trainer: &mut Trainer) -> Result<()> {
        Ok(())
    }

    /// An evaluation was made after this step.
    ///
    /// # Errors
    /// As [`Watch::step`].
    fn evaluation(&mut self, _step: usize, _accuracy: &Accuracy, _scores: &Scores) -> Result<()> {
        Ok(())
    }

    /// The step and its evaluation are done: the time to save where the run stands, or to stop it with an error.
    ///
    /// # Errors
    /// As [`Watch::step`], or when the run is to stop.
    fn pause(&mut self, _trainer: &mut Trainer) -> Result<()> {
        Ok(())
    }
}

/// An observer that does nothing.
impl Watch for () {}

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
    /// The names of the kernels that computed ops.
    pub kernels: Vec<String>,
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
    let steps = trainer.cfg.steps;
    // The run may have been interrupted in the evaluation after its last step.
    evaluate_on_the_way(&mut trainer, watch)?;
    while trainer.step < steps {
        let start = Instant::now();
        let took = trainer.step()?;
        trainer.training += start.elapsed();
        watch.step(&took)?;
        evaluate_on_the_way(&mut trainer, watch)?;
        watch.pause(&mut trainer)?;
    }
    trainer.check_finite()?;
    let (accuracy, scores) = evaluate_or_stop(&mut trainer, watch)?;
    watch.evaluation(steps, &accuracy, &scores)?;
    let training = trainer.training;
    let kernels = trainer.kernels();
    Ok(Trained { model: trainer.into_model()?, accuracy, scores, training, kernels })
}

/// The evaluation that is due on the way, after some steps before the last, unless it has been made.
fn evaluate_on_the_way(trainer: &mut Trainer, watch: &mut dyn Watch) -> Result<()> {
    let TrainConfig { steps, eval_every, .. } = trainer.cfg;
    let step = trainer.step;
    let due = eval_every > 0 && step > 0 && step < steps && step.is_multiple_of(eval_every);
    if due && !trainer.evaluated {
        let (accuracy, scores) = evaluate_or_stop(trainer, watch)?;
        watch.evaluation(step, &accuracy, &scores)?;
        trainer.evaluated = true;
    }
    Ok(())
}

/// An evaluation; where a signal cuts it short, the run stands after its step, and that is saved.
fn evaluate_or_stop(trainer: &mut Trainer, watch: &mut dyn Watch) -> Result<(Accuracy, Scores)> {
    watch.evaluates(trainer)?;
    let evaluation = trainer.evaluate();
    if let Err(Error::Interrupted { .. }) = evaluation {
        watch.pause(trainer)?;
    }
    evaluation
}

/// A model in training, with all that a step needs. No tape allocates anything after its second step of the same shape.
pub struct Trainer {
    cfg: TrainConfig,
    task: Arc<dyn Task>,
    /// The task's curriculum, and which stage of it the next step is of.
    stages: Option<Stages>,
    stage: usize,
    seed: u64,
    step: usize,
    /// Whether an evaluation was made after this step, where one is due on the way.
    evaluated: bool,
    model: Model,
    form: Form,
    tape: Tape,
    adam: Adam,
    /// The parts of a batch, if it is computed in more than one.
    micro_batches: Option<MicroBatches>,
    /// The buffers of a step on a device, if this runs on one.
    on_device: Option<OnDevice>,
    /// The ranges of the flat parameters, each with whether weight decay applies to it.
    windows: Vec<Window>,
    /// The gradient, flat like the parameters. In bf16 too, the parameters, the gradient and the moments are f32.
    grads: Tensor,
    data: Data,
    batch: Batch,
    /// The time spent in steps, over all processes that took one.
    training: Duration,
    /// The names of the kernels that ran in earlier processes.
    earlier_kernels: Vec<String>,
}

impl Trainer {
    /// Fresh weights and moments, for the one model of `cfg` (see [`TrainConfig::for_model`]) and its task.
    ///
    /// # Errors
    /// When the model cannot have these sizes, or the device is not there or too small.
    pub fn new(cfg: &TrainConfig, seed: u64) -> Result<Trainer> {
        Trainer::with(cfg, Model::new(&cfg.model, seed, cfg.dtype)?, cfg.task.shared(), seed)
    }

    /// Train this model on this task, with what `cfg` says of the rest: steps, lengths, batches, the optimiser, the
    /// device. Its `models`, `model`, `per_model` and `task` are not read. [`checkpoint`] goes on with the crate's own
    /// models and tasks alone; [`Model::save`] keeps the weights of any.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tapezoo::{models::{Model, ModelConfig, gla}, tasks::Dyck, tensor::DType, train::Trainer};
    ///
    /// let task = Arc::new(Dyck::default());
    /// let config = ModelConfig { mixer: "mine".into(), vocab: 6, ..ModelConfig::default() };
    /// let model = Model::with_mixer(&config, gla::Layer::new, 0, DType::F32)?;
    /// let mut trainer = Trainer::with(&"train_len = 8\nbatch = 16".parse()?, model, task, 0)?;
    /// println!("{:?}", trainer.step()?);
    /// # Ok::<(), tapezoo::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the task has no sequences of these lengths, the model's tokens and classes are not the task's, its weights
    /// are of another type than `dtype`, or the device is not there or too small.
    pub fn with(cfg: &TrainConfig, mut model: Model, task: Arc<dyn Task>, seed: u64) -> Result<Trainer> {
        let cfg = &of_model(cfg, &model, &*task)?;
        model.begin_carrying(cfg.batch);
        let n = model.params().len();
        let tape = Tape::open_with(cfg.device, cfg.products).map_err(Error::Device)?.with_kernels(cfg.kernels.clone());
        let windows = windows(model.params(), cfg.weight_decay);
        let real = cfg.dtype.real();
        let mut adam = Adam::new(n, real, cfg.adam());
        let (grads, on_device) = cuda::guarded(tape.cx().gpu(), || {
            match cfg.dtype {
                DType::BF16 => model.params_mut().copy_in_bf16(tape.cx()),
                _ => model.params_mut().to_device(tape.cx()),
            }
            adam.to_device(tape.cx());
            (Tensor::zeros([n], real).to_device(tape.cx()), OnDevice::new(tape.cx(), n, &windows))
        })?;
        if cfg.cuda_graph == Graphs::On && !model.buffers().is_empty() {
            return Err(Error::Config(format!(
                "cuda_graph on: {} keeps a state from batch to batch, which cannot be recorded; expected auto or off",
                cfg.model.mixer
            )));
        }
        let whole = cfg.parts() == 1 || cfg.device != Device::Cpu || !model.buffers().is_empty();
        let micro_batches = if whole { None } else { Some(MicroBatches::new(cfg, &grads)?) };
        let mut trainer = Trainer {
            seed,
            step: 0,
            evaluated: false,
            form: cfg.form_of(&model),
            tape,
            adam,
            micro_batches,
            on_device,
            windows,
            grads,
            data: Data::new(cfg, task.clone(), seed, 0),
            batch: Batch::new(cfg.batch, cfg.train_len_of(&*task, 1)),
            stages: task.stages(),
            stage: 0,
            task,
            training: Duration::ZERO,
            earlier_kernels: vec![],
            model,
            cfg: cfg.clone(),
        };
        trainer.go_on_with(0);
        Ok(trainer)
    }

    /// The steps to come are of this stage, where the task has a curriculum.
    fn go_on_with(&mut self, stage: usize) {
        self.stage = stage;
        if let Some(stages) = &self.stages {
            self.data.go_on_with(stages.tasks[stage].clone());
        }
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

    /// Have parts of a batch, or of a kernel's work, computed on cores that are idle, as long as they are.
    pub fn share(&mut self, cores: &Cores) {
        self.tape.share(cores);
        self.micro_batches.iter_mut().for_each(|parts| parts.share(cores));
    }

    /// Have the batches to come made ahead, by a thread of their own.
    pub fn make_batches_ahead(&mut self) {
        self.data.ahead();
    }

    /// As [`Trainer::make_batches_ahead`], once it is known that making them takes long enough.
    pub fn make_batches_ahead_if_it_pays(&mut self) {
        self.data.ahead_if_it_pays();
    }

    /// Every tensor that a step changes, under its name in a checkpoint: weights, moments, and the model's own state.
    fn state(&mut self) -> Vec<(&'static str, Tensor)> {
        let [m, v] = self.adam.moments();
        let mut state =
            vec![("params", self.model.params().flat().clone()), ("adam.m", m.clone()), ("adam.v", v.clone())];
        state.extend(self.model.buffers().into_iter().map(|(name, tensor)| (name, tensor.clone())));
        state
    }

    /// Stand after so many steps, before one of this stage, with the tensors that [`Trainer::state`] gave there.
    ///
    /// # Errors
    /// When they do not fit: the error is a sentence.
    fn go_to(&mut self, step: usize, stage: usize, state: &HashMap<String, Tensor>) -> std::result::Result<(), String> {
        self.step = step;
        self.data = Data::new(&self.cfg, self.task.clone(), self.seed, step);
        let stages = self.stages.as_ref().map_or(1, |stages| stages.tasks.len());
        if stage >= stages {
            return Err(format!("stage {stage} of a task that has {stages}, counted from 0"));
        }
        self.go_on_with(stage);
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

    /// One step: a batch, the loss, its gradient, the update.
    ///
    /// # Errors
    /// When the loss or the norm of the gradient is not finite: the error names the step and the first op whose
    /// value or gradient was not. The weights are then as they were before the step, and the trainer must not go on.
    /// When the device fails.
    pub fn step(&mut self) -> Result<Step> {
        cuda::guarded(self.tape.cx().gpu(), || self.try_step())?
    }

    fn try_step(&mut self) -> Result<Step> {
        self.step += 1;
        self.evaluated = false;
        let stage = self.stages.as_ref().map(|_| self.stage + 1);
        self.data.next(&mut self.batch);
        let lr = self.cfg.schedule().lr(self.step);
        let [loss, grad_norm] = if self.on_device.is_some() { self.step_on_device(lr) } else { self.step_on_cpu(lr) }?;
        self.grow();
        Ok(Step { step: self.step, loss, grad_norm, lr, stage })
    }

    /// The update, if all numbers are finite, and the loss and the norm of the gradient.
    fn step_on_cpu(&mut self, lr: f64) -> Result<[f64; 2]> {
        let Trainer { cfg, model, form, tape, grads, batch, micro_batches, .. } = self;
        let whole = |model: &mut Model, grads: &mut Tensor| {
            let (rows, targets) = batch.labelled().unzip();
            let targets = targets.as_ref().unwrap_or(&batch.targets);
            gradient(cfg, model, tape, *form, &Feed { tokens: &batch.tokens, rows: rows.as_ref(), targets }, grads)
        };
        let (loss, on_tape) = match micro_batches {
            Some(parts) => (parts.gradient(cfg, model, *form, batch, grads), None),
            None => {
                let loss = whole(model, grads);
                (loss.value().item(), Some(loss))
            }
        };
        let told = [loss, clip(grads, cfg.clip)];
        if !told.iter().all(|x| x.is_finite()) {
            let what = culprit(cfg, model, tape, |model| on_tape.unwrap_or_else(|| whole(model, grads)));
            return Err(Error::NotFinite { step: self.step, what });
        }
        tape.reset();
        if let Some(noise) = Noise::of(cfg.grad_noise, self.seed, self.step - 1) {
            noise.add_to(grads);
        }
        self.adam.step(lr, model.params_mut().flat_mut(), grads, &self.windows);
        Ok(told)
    }

    /// As `step_on_cpu`, without waiting for the device before the end, and, once recorded, in one call.
    fn step_on_device(&mut self, lr: f64) -> Result<[f64; 2]> {
        let Trainer { cfg, model, form, tape, grads, adam, on_device, .. } = self;
        let Some(on) = on_device else { unreachable!("called for a device") };
        let mut numbers = adam.next(lr, cfg.clip);
        if let Some(noise) = Noise::of(cfg.grad_noise, self.seed, self.step - 1) {
            noise.put_into(&mut numbers);
        }
        on.give(tape.cx(), &self.batch, &numbers);
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
            // The parameters are as they were, so the step is computed again, with every value kept.
            let what = culprit(cfg, model, tape, |model| gradient(cfg, model, tape, *form, &on.feed(), grads));
            return Err(Error::NotFinite { step: self.step, what });
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
        Err(Error::NotFinite { step: self.step, what: not_finite(&self.cfg, "a parameter, after the update,") })
    }
}

/// The configuration of training this model on this task, if the three go together.
fn of_model(cfg: &TrainConfig, model: &Model, task: &dyn Task) -> Result<TrainConfig> {
    cfg.check_task(task)?;
    task.check_data(cfg.train_len, &cfg.eval_lens).map_err(Error::Config)?;
    let has = model.config();
    for (what, there, asked) in [("vocab", has.vocab, task.vocab()), ("classes", has.classes, task.classes())] {
        if there < asked {
            return Err(Error::Config(format!(
                "{what} = {there}: {} has {asked}; build the model with them",
                task.name()
            )));
        }
    }
    let (weights, dtype) = (model.params().flat().dtype(), cfg.dtype);
    if weights != dtype.real() {
        return Err(Error::Config(format!(
            "dtype = {dtype}: the model's weights are {weights}; build it with {dtype}"
        )));
    }
    cfg.form.map_or(Ok(()), |form| model.check_form(form))?;
    let at_once = models::tokens_at_once(has).unwrap_or_else(|_| model.tokens_at_once());
    let parts = cfg.micro_batches.of(cfg.batch, cfg.train_len, at_once);
    Ok(TrainConfig { model: has.clone(), micro_batches: Parts::Count(parts), ..cfg.clone() })
}
