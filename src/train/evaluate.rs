//! Evaluation: the answers of a model at every evaluation length, counted.

use super::{Accuracy, Scores, Trainer, config::SEQUENCES};
use crate::{
    args,
    autograd::Tape,
    cuda::{self, Module},
    error::{Error, Result},
    models::{Form, Model},
    rng::{self, Rng},
    tasks::{Batch, Counts, IGNORE, Len, Task},
    tensor::{Cx, DType, Real, Tensor},
    with_real,
};
use std::{
    f64::consts::LN_2,
    iter::repeat,
    slice,
    sync::{Mutex, PoisonError},
};

impl Trainer {
    /// The accuracy and the task's scores at each length, on sequences that are the same for every model, seed and
    /// step.
    ///
    /// # Errors
    /// When the device fails, or a signal asks the process to end.
    pub fn evaluate(&mut self) -> Result<(Accuracy, Scores)> {
        let evaluation = cuda::guarded(self.tape.cx().gpu(), || self.try_evaluate())?;
        if asked_to_end() { Err(Error::Interrupted { step: self.step }) } else { Ok(evaluation) }
    }

    /// The counts of the answers that were given before a signal came.
    fn try_evaluate(&mut self) -> (Accuracy, Scores) {
        let (mut accuracy, mut scores) = (Accuracy::new(), Scores::new());
        for len in self.cfg.eval_lens.clone() {
            let counts = self.evaluate_at(len);
            accuracy.push((len, counts.accuracy()));
            for (name, score) in self.task.metrics(&counts) {
                scores.entry(name.into()).or_default().push((len, score));
            }
        }
        (accuracy, scores)
    }

    fn evaluate_at(&mut self, len: Len) -> Counts {
        let Trainer { cfg, task, model, tape, form, micro_batches, .. } = self;
        tape.reset();
        model.params_mut().refresh();
        let (model, mut batch) = (&*model, Batch::new(cfg.eval_batch, len));
        let of_its_own = task.to_evaluate();
        let task = of_its_own.as_deref().unwrap_or(&**task);
        let Some(parts) = micro_batches else {
            let mut counts = Counts::new(task.classes());
            let batches = (0..cfg.eval_batches).take_while(|_| !asked_to_end());
            batches.for_each(|i| answer(task, model, *form, tape, || sequences(len, i), &mut batch, &mut counts));
            return counts;
        };
        let all = Mutex::new(Counts::new(task.classes()));
        parts.each(cfg.eval_batches, |i, tape| {
            if asked_to_end() {
                return;
            }
            let (mut batch, mut counts) = (Batch::new(cfg.eval_batch, len), Counts::new(task.classes()));
            answer(task, model, *form, tape, || sequences(len, i), &mut batch, &mut counts);
            all.lock().unwrap_or_else(PoisonError::into_inner).merge(&counts);
        });
        all.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// After a step at which the task's curriculum may go on, go on if the model passes.
    pub(super) fn grow(&mut self) {
        let Trainer { cfg, model, tape, form, stages, stage, step, seed, .. } = self;
        let Some(stages) = stages else { return };
        if *stage + 1 == stages.tasks.len() || !step.is_multiple_of(stages.every) {
            return;
        }
        if stages.accuracy > 0.0 {
            tape.reset();
            model.params_mut().refresh();
            let task = &*stages.tasks[*stage];
            let (mut batch, mut counts) = (Batch::new(cfg.eval_batch, cfg.train_len), Counts::new(task.classes()));
            let sequences = || rng::stream(*seed, "stage", *step as u64);
            answer(task, model, *form, tape, sequences, &mut batch, &mut counts);
            if !stages.passes(*stage, &counts) {
                return;
            }
        }
        let next = *stage + 1;
        self.go_on_with(next);
    }
}

/// The random numbers of evaluation batch `i` at a length.
fn sequences(len: Len, i: usize) -> Rng {
    rng::stream(0, &format!("evaluate at {len}"), i as u64)
}

/// Count the model's answers to a batch of sequences that are drawn from these random numbers.
fn answer(
    task: &dyn Task,
    model: &Model,
    form: Form,
    tape: &mut Tape,
    rng: impl Fn() -> Rng,
    batch: &mut Batch,
    counts: &mut Counts,
) {
    let truth = task.truth(&mut rng(), batch.lens(), batch.tokens.shape().at(0));
    batch.fill(task, rng());
    // A device computes all sequences at once, and the truth is of the whole batch.
    let whole = tape.cx().gpu().is_some() || truth.is_some();
    let (sequences, parts) = (batch.tokens.shape().at(0), batch.tokens.len().div_ceil(model.tokens_at_once()));
    let by_length = if whole { vec![] } else { batch.by_length(parts.min(sequences.div_ceil(SEQUENCES)).max(1)) };
    for part in if whole { slice::from_ref(batch) } else { &by_length } {
        let params = model.params().bind_frozen(tape);
        let rows = part.labelled().map(|l| l.0);
        let at = rows.as_ref().map(|rows| tape.constant(rows));
        let logits = model.forward_at(&params, tape.constant(&part.tokens), form, at).value();
        count_answers(task, tape, &logits, (part, rows.as_ref(), truth.as_deref()), counts);
        drop(logits);
        tape.reset();
    }
}

/// Count the answers that logits `[.., classes]` give to a batch, at all positions or at `rows`. `truth` is the true
/// distribution of each target, where the task knows it.
pub fn count_answers(
    task: &dyn Task,
    tape: &Tape,
    logits: &Tensor,
    (batch, rows, truth): (&Batch, Option<&Tensor>, Option<&[f32]>),
    counts: &mut Counts,
) {
    let (rows, targets) = (rows.map(|r| r.host::<i32>()), batch.targets.host::<i32>());
    let said = said(tape, logits);
    let position = |i: usize| rows.map_or(i, |rows| rows[i] as usize);
    match truth {
        None => count(batch.lens().max, &said, rows, targets, counts),
        Some(truth) => {
            // Any possible class is as right as the class that was drawn.
            let mut targets = targets.to_vec();
            for (i, &said) in said.iter().enumerate() {
                let (at, of) = (position(i), task.classes());
                let possible = usize::try_from(said).is_ok_and(|c| c < of && truth[at * of + c] > 0.0);
                if possible && targets[at] != IGNORE {
                    targets[at] = said;
                }
            }
            count(batch.lens().max, &said, rows, &targets, counts);
        }
    }
    if task.counts_bits() || truth.is_some() {
        let asked = |i: usize| Some(position(i)).filter(|&at| targets[at] != IGNORE);
        log_probabilities(&logits.to_host(), asked, |at, log_p| {
            if task.counts_bits() {
                counts.add_bits(-log_p[targets[at] as usize] / LN_2);
            }
            if let Some(truth) = truth {
                let truth = truth[at * task.classes()..][..task.classes()].iter().map(|&p| f64::from(p));
                let pairs = log_p.iter().map(|x| x.exp()).zip(truth.chain(repeat(0.0)));
                counts.add_distance(pairs.map(|(p, truth)| (p - truth).abs()).sum::<f64>() / 2.0);
            }
        });
    }
}

/// Give `each` log p of each class, from logits `[.., classes]`, wherever `asked` has a position for a row.
fn log_probabilities(logits: &Tensor, asked: impl Fn(usize) -> Option<usize>, mut each: impl FnMut(usize, &[f64])) {
    let mut log_p = vec![0.0; logits.shape().last()];
    with_real!(logits.dtype(), T => {
        for (i, row) in logits.host::<T>().chunks_exact(log_p.len()).enumerate() {
            let Some(at) = asked(i) else { continue };
            let most = row.iter().map(|x| x.to_f64()).fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = row.iter().map(|x| (x.to_f64() - most).exp()).sum();
            log_p.iter_mut().zip(row).for_each(|(log_p, x)| *log_p = x.to_f64() - (sum.ln() + most));
            each(at, &log_p);
        }
    });
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

/// Count the answers `said` that equal the target `[sequences, t]`, at the positions that have one. There is an answer
/// at all positions, or at `rows`.
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

/// Whether the program was asked to end: only one that listens can be.
fn asked_to_end() -> bool {
    #[cfg(feature = "laboratory")]
    return super::interrupt::came().is_some();
    #[cfg(not(feature = "laboratory"))]
    false
}
