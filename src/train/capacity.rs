//! The memory and the time that an experiment needs, estimated before it begins.
//!
//! The memory of a step is that of its values: the model is recorded without being computed, at three short lengths,
//! and continued to the length asked for by the parabola through them. Beside recurrences, which grow with the length,
//! and comparisons of all pairs of steps, which grow with its square, nothing grows faster. A backward pass holds about
//! half as much again (`tests/memory.rs` compares with what training holds).

use super::config::{SEQUENCES, TrainConfig};
use crate::{
    autograd::{Kernels, Tape},
    error::{Error, Result, bytes, count, quietly},
    models::{self, Form, Model},
    rng,
    tasks::{Batch, IGNORE, Len, Tasks},
    tensor::{Device, Tensor, available},
};
use std::borrow::Cow;

/// The most runs of one experiment: models times seeds.
const MOST_RUNS: usize = 1 << 16;

/// Multiplications and additions in a second, within a factor of a few: those of a core on models of few parameters,
/// and the most that a device does.
const OF_A_CORE: f64 = 5e10;
const OF_A_DEVICE: f64 = 1e13;

/// How many times longer a core takes without kernels, by formulas and plain loops, or in the place of a device.
const SLOWER: f64 = 100.0;

/// The longest time that a run may take, in seconds: ten years.
const LONGEST: f64 = 10.0 * 365.25 * 86_400.0;

/// Experiments that take longer than this, in seconds, are announced before they begin.
const LONG: f64 = 600.0;

/// Bytes that every machine has: below this the free memory is not looked up.
const ALWAYS: f64 = (1 << 28) as f64;

/// Refuse an experiment of more runs than anybody waits for.
///
/// # Errors
/// When it has more: the error says how many, and what to change.
pub fn check(cfg: &TrainConfig) -> Result<()> {
    let runs = cfg.models.len().saturating_mul(cfg.seeds);
    if runs > MOST_RUNS {
        let (models, seeds) = (cfg.models.len(), cfg.seeds);
        return Err(Error::config(format!(
            "seeds {seeds}: with {} these are {runs} runs; expected at most {MOST_RUNS}: lower --seeds",
            count(models, "model")
        )));
    }
    Ok(())
}

/// Refuse a run that needs more memory than there is, or more time than anybody has.
///
/// # Errors
/// When it does: the error says which part needs how much, and what to change.
pub fn check_run(cfg: &TrainConfig) -> Result<()> {
    let model = &Model::hollow(&cfg.model, cfg.dtype)?;
    let name = cfg.models.first().map_or("", String::as_str);
    for Time { what, seconds, lower } in times(cfg, model) {
        if seconds > LONGEST {
            let of = if matches!(cfg.device, Device::Cuda(_)) { "the device" } else { "a core" };
            return Err(Error::config(format!("{name}: {what} takes about {} of {of}; lower {lower}", time(seconds))));
        }
    }
    if matches!(cfg.device, Device::Cuda(_)) {
        return Ok(());
    }
    let asked = memory(cfg, model, std::thread::available_parallelism().map_or(1, usize::from));
    let Some(most) = asked.iter().max_by(|a, b| a.bytes.total_cmp(&b.bytes)).filter(|most| most.bytes > ALWAYS) else {
        return Ok(());
    };
    let there = available();
    if most.bytes <= there as f64 {
        return Ok(());
    }
    Err(Error::config(format!(
        "{name}: asks for about {}: {}; {} are available; lower {}",
        bytes(most.bytes as usize),
        most.what,
        bytes(there),
        most.lower
    )))
}

/// A warning about experiments on the CPU that take long, `what` they are: the time, the part that takes most of it, and
/// what reduces it.
///
/// # Errors
/// When a configuration is invalid.
pub fn cost<'a>(what: &str, experiments: impl Iterator<Item = &'a TrainConfig>) -> Result<Option<String>> {
    let (mut all, mut most): (f64, Option<(f64, String)>) = (0.0, None);
    for own in experiments.map(TrainConfig::each_model).collect::<Result<Vec<_>>>()?.iter().flatten() {
        if matches!(own.device, Device::Cuda(_)) {
            continue;
        }
        for Time { what: part, seconds, lower } in times(own, &Model::hollow(&own.model, own.dtype)?) {
            all += seconds * own.seeds as f64;
            if most.as_ref().is_none_or(|most| most.0 < seconds) {
                let name = own.models.first().map_or("", String::as_str);
                most = Some((
                    seconds,
                    format!("{name}: {part}, {} for each seed; to shorten it, lower {lower}", time(seconds)),
                ));
            }
        }
    }
    let most = most.filter(|_| all >= LONG);
    Ok(most.map(|(_, most)| format!("{what} takes about {} of a core; the longest is {most}", time(all))))
}

/// A time in words: "3 days".
fn time(seconds: f64) -> String {
    let units = [("years", 365.25 * 86_400.0), ("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0)];
    let unit = units.into_iter().find(|unit| seconds >= 2.0 * unit.1);
    unit.map_or(format!("{seconds:.0} seconds"), |(name, of)| match seconds / of {
        n if n < 1e6 => format!("{n:.0} {name}"),
        n => format!("{n:.0e} {name}"),
    })
}

/// Refuse so many runs side by side, which `flag` sets, if together they need more memory than there is. `runs` are
/// configurations of one model each, and how many of its runs are to do.
///
/// # Errors
/// When they do: the error says how much, and how many fit.
pub fn check_side_by_side(runs: &[(&TrainConfig, usize)], threads: usize, flag: &str) -> Result<()> {
    let mut asked = vec![];
    let on_cpu = || runs.iter().filter(|(own, _)| !matches!(own.device, Device::Cuda(_)));
    // Threads without a run compute parts of the others' batches.
    let cores = 1 + threads.saturating_sub(on_cpu().map(|of| of.1).sum());
    for &(own, n) in on_cpu() {
        let model = Model::hollow(&own.model, own.dtype)?;
        let most = memory(own, &model, cores).iter().map(|part| part.bytes).fold(0.0, f64::max);
        asked.extend(std::iter::repeat_n(most, n.min(threads)));
    }
    asked.sort_by(|a, b| b.total_cmp(a));
    asked.truncate(threads);
    let all: f64 = asked.iter().sum();
    if all <= ALWAYS || asked.len() < 2 {
        return Ok(());
    }
    let there = available();
    if all <= there as f64 {
        return Ok(());
    }
    let mut left = there as f64;
    let fit = asked
        .iter()
        .take_while(|&&bytes| {
            left -= bytes;
            left >= 0.0
        })
        .count()
        .max(1);
    let (n, [all, there]) = (asked.len(), [all as usize, there].map(bytes));
    Err(Error::config(format!(
        "{n} runs side by side ask for about {all}, and {there} are available; expected {flag} {fit}, or a lower --batch"
    )))
}

/// A part of the work, and about how long it takes.
struct Time {
    what: String,
    seconds: f64,
    lower: &'static str,
}

fn times(cfg: &TrainConfig, model: &Model) -> Vec<Time> {
    let [params, layers, heads, width] =
        [model.params().len(), cfg.model.layers, cfg.model.heads, cfg.model.head_dim].map(|n| n as f64);
    let parallel = cfg.form_of(model) == Form::Parallel && !models::scans(&cfg.model.mixer);
    // A query and a key are multiplied, and a weight and a value; a weight takes as long as 50 multiplications.
    let pair =
        if models::looks_back(&cfg.model.mixer) || parallel { layers * heads * (4.0 * width + 50.0) } else { 0.0 };
    // An n-gram head compares ids, and adds what it reads.
    let pair = pair + cfg.model.ngram as f64 * (2.0 * cfg.model.width as f64 + 50.0);
    let rate = match (cfg.device, &cfg.kernels) {
        (Device::Cuda(_), _) => OF_A_DEVICE,
        (Device::Emulated, _) | (_, Kernels::Plain | Kernels::Only(_)) => OF_A_CORE / SLOWER,
        _ => OF_A_CORE,
    };
    let rate = rate * 4.0 / cfg.dtype.real().bytes() as f64;
    // Each weight is multiplied once for each token, and twice more in the gradient; a token costs something in any
    // case.
    let work = |sequences: f64, len: Len, passes: f64| {
        let [a, b] = [len.min, len.max].map(|n| n as f64);
        let (tokens, pairs) = ((a + b) / 2.0, (a * a + a * b + b * b) / 6.0);
        sequences * passes * (tokens * 2.0 * (params + 100.0) + pairs * pair) / rate
    };
    let steps = cfg.steps as f64 * cfg.batch as f64;
    // However little there is to multiply, a step of a layer takes its time: 6 µs of an LSTM, 15 of DeltaNet and Mamba.
    const OF_A_LAYER: f64 = 10e-6;
    let train = Time {
        what: format!("training for {} steps of {} sequences", cfg.steps, cfg.batch),
        seconds: work(steps, cfg.train_len, 3.0) + cfg.steps as f64 * (cfg.model.layers + 1) as f64 * OF_A_LAYER,
        lower: "--steps or --batch",
    };
    let evaluations = match cfg.eval_every {
        0 => 1.0,
        // One at the end; a multiple that is the last step is no other.
        every => (cfg.steps.saturating_sub(1) / every) as f64 + 1.0,
    };
    let eval = cfg.eval_lens.iter().map(|&len| Time {
        what: format!("evaluating {} batches of {} at length {len}", cfg.eval_batches, cfg.eval_batch),
        seconds: work(evaluations * cfg.eval_batches as f64 * cfg.eval_batch as f64, len, 1.0),
        lower: "eval_lens or eval_batches, or raise eval_every",
    });
    std::iter::once(train).chain(eval).collect()
}

/// A part of the work, and about how many bytes it holds.
#[derive(Debug)]
pub struct Memory {
    /// The name of the part.
    pub what: String,
    /// Its bytes.
    pub bytes: f64,
    /// The settings that make it smaller.
    lower: String,
}

/// About what a run of this model holds at once on so many cores, in training and at each length of its evaluation.
/// Where its steps cannot be recorded without being computed, the parameters alone.
pub fn memory(cfg: &TrainConfig, model: &Model, cores: usize) -> Vec<Memory> {
    let (n, size) = (model.params().len() as f64, cfg.dtype.real().bytes() as f64);
    // As in `Trainer::with`: a device computes a batch whole, and so does a model with more than parameters.
    let buffers = model.carries() || model.statistics().is_some();
    let parts = if cfg.device != Device::Cpu || buffers { 1 } else { cfg.parts() };
    // Weights, gradient, two moments; and a gradient of each part.
    let fixed = n * size * (4.0 + if parts > 1 { parts as f64 } else { 0.0 });
    let part = cfg.batch.div_ceil(parts);
    let at_once = parts.min(cores) as f64;
    let form = cfg.form_of(model);
    let with = |what: String, values: f64, lower: &str| Memory {
        what: format!(
            "{what} in form {form} {}, weights and optimiser {}",
            bytes(values as usize),
            bytes(fixed as usize)
        ),
        bytes: fixed + values,
        lower: format!("{lower}{}", if model.forms().len() > 1 { ", or choose another --form" } else { "" }),
    };
    let train = at_once * 1.5 * values(cfg, model, part, cfg.train_len.max);
    let train =
        with(format!("a step of {} sequences of length {}", cfg.batch, cfg.train_len), train, "--batch or --train-len");
    // The threads of a step's parts share the batches, and cut each as `evaluate` does.
    let at = parts.min(cfg.eval_batches).min(cores) as f64;
    let whole = cfg.device != Device::Cpu || matches!(cfg.task, Tasks::Icll(_) | Tasks::Own(_));
    let sequences = |len: usize| {
        let parts = cfg.eval_batch.saturating_mul(len).div_ceil(model.tokens_at_once());
        let parts = parts.min(cfg.eval_batch.div_ceil(SEQUENCES)).max(1);
        if whole { cfg.eval_batch } else { cfg.eval_batch.div_ceil(parts) }
    };
    let eval = cfg.eval_lens.iter().map(|&len| {
        let bytes = at * values(cfg, model, sequences(len.max), len.max);
        with(format!("evaluating {} sequences of length {len}", cfg.eval_batch), bytes, "eval_batch or --eval-lens")
    });
    std::iter::once(train).chain(eval).collect()
}

/// About how many bytes the values of a forward pass have.
fn values(cfg: &TrainConfig, model: &Model, batch: usize, len: usize) -> f64 {
    const FEW: usize = 8;
    const SHORT: usize = Model::HOLLOW_LEN / 4;
    let few = batch.min(FEW);
    let at = |len: usize| recorded(cfg, model, few, len).unwrap_or(0.0);
    let of = if len <= 4 * SHORT {
        at(len)
    } else {
        // Newton's form of the parabola through lengths of s, 2 s and 4 s.
        let s = SHORT as f64;
        let ([a, b, c], t) = ([SHORT, 2 * SHORT, 4 * SHORT].map(at), len as f64);
        let (ab, bc) = ((b - a) / s, (c - b) / (2.0 * s));
        let abc = ((bc - ab) / (3.0 * s)).max(0.0);
        a + ab * (t - s) + abc * (t - s) * (t - 2.0 * s)
    };
    of * batch as f64 / few as f64
}

/// The bytes of the values of a forward pass that is recorded and not computed; none where it must be computed.
fn recorded(cfg: &TrainConfig, model: &Model, batch: usize, len: usize) -> Option<f64> {
    let tokens = (0..batch * len).map(|i| (i % cfg.model.vocab) as i32).collect();
    let count = || {
        let tape = Tape::hollow();
        let params = model.params().bind_frozen(&tape);
        model.forward(&params, tape.constant(&Tensor::from_vec(tokens, [batch, len])), cfg.form_of(model));
        let held = tape.cx().pool().held();
        held as f64
    };
    quietly(count).ok()
}

/// The ops that a model runs with these kernels in training and evaluation; none where it cannot be recorded without
/// being computed, or on a device.
pub fn ops(cfg: &TrainConfig, kernels: Kernels) -> Option<Vec<Cow<'static, str>>> {
    let model = Model::hollow(&cfg.model, cfg.dtype).ok().filter(|_| cfg.device == Device::Cpu)?;
    let mut ops = vec![];
    for len in cfg.eval_lens.iter().chain([&cfg.train_len]) {
        let len = len.max.min(Model::HOLLOW_LEN);
        // The task decides whether only few positions have targets.
        let mut batch = Batch::new(1, len);
        if cfg.task.check_len(len).is_ok() && cfg.task.check_data(len.into(), &[]).is_ok() {
            batch.fill(&*cfg.task, rng::stream(0, "ops", 0));
        }
        let count = || {
            let tape = Tape::hollow().with_kernels(kernels.clone());
            tape.start_profile();
            let (rows, targets) = batch.labelled().unzip();
            let (tokens, rows) = (tape.constant(&batch.tokens), rows.map(|rows| tape.constant(&rows)));
            let logits = model.forward_at(&model.params().bind(&tape), tokens, cfg.form_of(&model), rows);
            logits.cross_entropy(tape.constant(targets.as_ref().unwrap_or(&batch.targets)), IGNORE);
            tape.take_profile().0.into_keys().collect::<Vec<_>>()
        };
        ops.extend(quietly(count).ok()?);
    }
    Some(ops)
}
