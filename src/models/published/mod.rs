//! The seven models of the published experiment (swiss-ai/modern_rnns, commit 629c30b) *as published, defects
//! included*, so that the effect of each defect can be measured. They are separate from the clean mixers.
//!
//! Every departure from a model's paper is marked `DEFECT` in the code, with what the clean mixer does instead:
//!
//! | model | defect |
//! |---|---|
//! | [`linear_transformer`], [`delta_net`] | read only the diagonal of the memory matrix |
//! | [`delta_net`] | its keys are not normalised |
//! | [`mamba`] | its convolution sees the future |
//! | [`lru`] | BatchNorm over batch and time; tokens as one number; log-softmax before the loss |
//! | [`quasi_lstm`] | products of gates through logarithms with 1e-8 added; lengths must be multiples of a block |
//! | all with positions ([`gpt`], [`linear_transformer`], [`delta_net`]) | positions beyond the training length stay random |
//! | all but Mamba and the LRU | every weight starts with deviation 0.02, whatever the width |
//!
//! [`Defect`] lists the defects that can be left out one by one.
//!
//! LSTM and GPT compute what their papers say. Parameters have the names and the initial distributions of the published
//! code.
//!
//! # Panics
//! The functions of [`Var`]s in these modules panic where their inputs do not fit: the message has the shapes.

mod config;
mod decoder;
pub mod delta_net;
pub mod gpt;
pub mod linear_transformer;
pub mod lru;
pub mod lstm;
pub mod mamba;
mod parameters;
pub mod quasi_lstm;
mod statistics;

pub use config::{Config, Defect};
pub use parameters::{Named, Part};
pub use statistics::Statistics;

use super::{Bound, Entry, Form, Init, Params, State};
use crate::{
    autograd::{Tape, Var},
    error::{Error, Result},
    tensor::{DType, Shape, Tensor},
};

/// The forms of every published model.
pub const FORMS: [Form; 2] = [Form::Recurrent, Form::Fused];

/// The statistics that BatchNorm normalises by.
#[derive(Clone, Copy)]
pub enum Mode<'a> {
    /// Mean and variance of the batch.
    Training,
    /// The running mean and variance.
    Evaluation(&'a Statistics),
}

/// A pass over a model: its mode, form and state.
pub struct Pass<'a, 't> {
    /// The statistics that BatchNorm normalises by.
    pub mode: Mode<'a>,
    /// `Recurrent`: plain tape ops. `Fused`: the same equations through the ops of the clean mixers, where there is
    /// one.
    pub form: Form,
    /// One per layer ([`state`]); updated.
    pub state: &'a mut [State<'t>],
}

/// The outputs of a model.
pub struct Output<'t> {
    /// [B, T, classes]; of the LRU, their log-softmax.
    pub logits: Var<'t>,
    /// Mean and (biased) variance of the batch at every BatchNorm, in training mode.
    pub batch: Vec<[Var<'t>; 2]>,
}

/// A model of the table: its parameters, and what it computes.
#[derive(Clone, Copy)]
struct Builder {
    init: fn(&Config, &mut Init),
    run: for<'t> fn(&Config, &Part<'_, 't>, Var<'t>, &mut Pass<'_, 't>) -> Output<'t>,
}

/// A model that is a mixer in a decoder.
macro_rules! in_decoder {
    ($name:ident) => {
        (
            stringify!($name),
            Builder { init: $name::init, run: |c, p, x, pass| $name::DECODER.run(c, p, x, pass, $name::mixer) },
        )
    };
}

const MODELS: &[(&str, Builder)] = &[
    in_decoder!(lstm),
    in_decoder!(quasi_lstm),
    ("lru", Builder { init: lru::init, run: lru::run }),
    in_decoder!(linear_transformer),
    in_decoder!(gpt),
    in_decoder!(delta_net),
    in_decoder!(mamba),
];

/// The names of all published models.
pub fn names() -> Vec<&'static str> {
    MODELS.iter().map(|m| m.0).collect()
}

fn find(name: &str) -> Result<Builder> {
    let found = MODELS.iter().find(|m| m.0 == name).map(|m| m.1);
    found.ok_or_else(|| Error::config(format!("model '{name}': expected one of {}", names().join(", "))))
}

/// The parameters of a model with their published names, as they start.
///
/// # Errors
/// When a size makes no sense.
pub fn parameters(c: &Config, seed: u64, dtype: DType) -> Result<Params> {
    c.check()?;
    let mut init = Init::cautious(seed, None);
    (find(&c.model)?.init)(c, &mut init);
    if !init.complete()? {
        init = init.afresh()?;
        (find(&c.model)?.init)(c, &mut init);
    }
    Ok(init.finish(dtype))
}

/// Names and shapes of a model's parameters, if it has at most `most` layers.
///
/// # Errors
/// When a size makes no sense.
pub fn entries(c: &Config, most: usize) -> Result<Vec<Entry>> {
    c.check()?;
    if c.n_layers > most {
        return Err(Error::config(format!(
            "n_layers = {}: expected at most {most}, the number of tensors",
            c.n_layers
        )));
    }
    let init = find(&c.model)?.init;
    Ok(Init::entries_of(|i| init(c, i)))
}

/// Shapes of the state that the published code carries from one training batch to the next on MQAR, for one layer and a
/// batch of `b`. Only LSTM, quasi-LSTM and LRU carry one; the others start from zeros at each call.
pub fn state(c: &Config, b: usize) -> Vec<Shape> {
    match c.model.as_str() {
        "lstm" => lstm::state(c, b),
        "quasi_lstm" => quasi_lstm::state(c, b),
        "lru" => lru::state(c, b),
        _ => vec![],
    }
}

/// The state before the first batch, for every layer: zeros.
pub fn zero_state<'t>(c: &Config, tape: &'t Tape, b: usize, dtype: DType) -> Vec<State<'t>> {
    let zeros = || state(c, b).into_iter().map(|shape| tape.full(shape, dtype, 0.0)).collect();
    (0..c.n_layers).map(|_| State::of(0, zeros())).collect()
}

/// Run a model on tokens [B, T] (i32).
///
/// # Errors
/// When there is no such model.
///
/// # Panics
/// When a parameter is missing or misshaped, a token is not in the vocabulary, or the model cannot take this length.
#[track_caller]
pub fn run<'t>(c: &Config, p: &Named<'t>, tokens: Var<'t>, pass: &mut Pass<'_, 't>) -> Result<Output<'t>> {
    Ok((find(&c.model)?.run)(c, &Part::whole(p), tokens, pass))
}

/// A published model with its parameters and statistics.
pub struct Published {
    config: Config,
    params: Params,
    statistics: Statistics,
}

impl Published {
    /// A model as the published code initialises it.
    ///
    /// # Errors
    /// When a size makes no sense.
    pub fn new(c: &Config, seed: u64, dtype: DType) -> Result<Published> {
        Ok(Published { config: c.clone(), params: parameters(c, seed, dtype)?, statistics: Statistics::new(c) })
    }

    /// The same without values: see [`Init::finish_hollow`].
    ///
    /// # Errors
    /// As [`Published::new`].
    pub fn hollow(c: &Config, dtype: DType) -> Result<Published> {
        c.check()?;
        let mut init = Init::counting(None);
        (find(&c.model)?.init)(c, &mut init);
        Ok(Published { config: c.clone(), params: init.finish_hollow(dtype)?, statistics: Statistics::new(c) })
    }

    /// The sizes it was made with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Its parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Its parameters, for training.
    pub fn params_mut(&mut self) -> &mut Params {
        &mut self.params
    }

    /// Whether sequences can have this length.
    ///
    /// # Errors
    /// When the quasi-LSTM cannot cut it into whole blocks.
    pub fn check_len(&self, len: usize) -> Result<()> {
        let block = self.config.block_length;
        if self.config.model != "quasi_lstm" || len.is_multiple_of(block) {
            return Ok(());
        }
        Err(Error::config(format!("length {len}: the published quasi_lstm takes multiples of its block, {block}")))
    }

    /// The running statistics of its BatchNorms, mutable.
    pub fn statistics_mut(&mut self) -> &mut Statistics {
        &mut self.statistics
    }

    /// The running statistics of its BatchNorms.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    fn named<'t>(&self, p: &Bound<'t>) -> Named<'t> {
        self.params.entries().iter().map(|e| e.name.clone()).zip(p.vars().iter().copied()).collect()
    }

    /// Logits [B, T, classes] of a training batch of tokens [B, T]; updates the running statistics.
    ///
    /// # Errors
    /// As [`run`].
    ///
    /// # Panics
    /// As [`run`].
    #[track_caller]
    pub fn train<'t>(
        &mut self,
        p: &Bound<'t>,
        tokens: Var<'t>,
        state: &mut [State<'t>],
        form: Form,
    ) -> Result<Var<'t>> {
        let [b, t] = tokens.dims();
        let y = run(&self.config, &self.named(p), tokens, &mut Pass { mode: Mode::Training, form, state })?;
        self.statistics.update(&y.batch, b, t);
        Ok(y.logits)
    }

    /// Logits [B, T, classes] of tokens [B, T], as in evaluation.
    ///
    /// # Errors
    /// As [`run`].
    ///
    /// # Panics
    /// As [`run`].
    #[track_caller]
    pub fn evaluate<'t>(&self, p: &Bound<'t>, tokens: Var<'t>, state: &mut [State<'t>], form: Form) -> Result<Var<'t>> {
        let mode = Mode::Evaluation(&self.statistics);
        Ok(run(&self.config, &self.named(p), tokens, &mut Pass { mode, form, state })?.logits)
    }
}

/// A constant of this shape, on the tape of `like` and of its element type.
fn constant<'t>(like: Var<'t>, values: Vec<f64>, shape: &[usize]) -> Var<'t> {
    like.tape().constant(&Tensor::from_vec(values, shape).cast(like.dtype()))
}
