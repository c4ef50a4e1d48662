//! The seven models of the published experiment (swiss-ai/modern_rnns, commit 629c30b) *as published, defects
//! included*, so that what the defects did can be measured. Plain tape ops, apart from the clean mixers beside this.
//!
//! Every departure from what a model's paper says is marked `DEFECT` where it happens, with what the clean mixer does
//! instead:
//!
//! | model | defect |
//! |---|---|
//! | [`linear_transformer`], [`delta_net`] | read only the diagonal of the memory matrix |
//! | [`mamba`] | its convolution sees the future |
//! | [`lru`] | BatchNorm over batch and time; tokens as one number; log-softmax before the loss |
//! | [`quasi_lstm`] | products of gates through logarithms with 1e-8 added; lengths must be multiples of a block |
//! | all with positions ([`gpt`], [`linear_transformer`], [`delta_net`]) | positions beyond the training length stay random |
//! | all but Mamba and the LRU | every weight starts with deviation 0.02, whatever the width |
//!
//! LSTM and GPT compute what their papers say. Parameters have the names of the published code, and start as there.

mod decoder;
pub mod delta_net;
pub mod gpt;
pub mod linear_transformer;
pub mod lru;
pub mod lstm;
pub mod mamba;
pub mod quasi_lstm;

use super::{Bound, Init, Params};
use crate::{
    autograd::Var,
    error::{Error, Result},
    tensor::{DType, Tensor},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The sizes of a published model, under the names of the published code. A model reads those that concern it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Which model: a name of [`names`].
    pub model: String,
    /// Number of blocks.
    pub n_layers: usize,
    /// Width of the residual stream; of the LRU, the number of its complex states.
    pub h_dim: usize,
    /// Hidden width of the MLPs.
    pub mlp_dim: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Number of heads.
    pub n_heads: usize,
    /// Steps in a block of the quasi-LSTM.
    pub block_length: usize,
    /// Width of the residual stream of the LRU.
    pub d_model: usize,
    /// States per channel of Mamba.
    pub d_state: usize,
    /// Width of Mamba's convolution.
    pub d_conv: usize,
    /// Mamba's channels per width.
    pub expand: usize,
    /// Rank of Mamba's Δ.
    pub dt_rank: usize,
    /// Number of classes.
    pub output_size: usize,
    /// Number of different tokens.
    pub num_input_classes: usize,
    /// The longest sequence, where positions are learned.
    pub max_seq_len: usize,
}

impl Default for Config {
    /// Those of the notebook that the poster's figures come from, on bit parity at up to 256 tokens.
    fn default() -> Config {
        Config {
            model: "lstm".into(),
            n_layers: 2,
            h_dim: 4,
            mlp_dim: 8,
            head_dim: 4,
            n_heads: 4,
            block_length: 8,
            d_model: 128,
            d_state: 8,
            d_conv: 3,
            expand: 2,
            dt_rank: 1,
            output_size: 2,
            num_input_classes: 2,
            max_seq_len: 256,
        }
    }
}

impl Config {
    /// D, the inner width of the mixers with heads.
    fn inner(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Refuse sizes that no model can have.
    ///
    /// # Errors
    /// Names the value and what was expected.
    pub fn check(&self) -> Result<()> {
        find(&self.model)?;
        let sizes = [
            ("n_layers", self.n_layers),
            ("h_dim", self.h_dim),
            ("mlp_dim", self.mlp_dim),
            ("head_dim", self.head_dim),
            ("n_heads", self.n_heads),
            ("block_length", self.block_length),
            ("d_model", self.d_model),
            ("d_state", self.d_state),
            ("d_conv", self.d_conv),
            ("expand", self.expand),
            ("dt_rank", self.dt_rank),
            ("output_size", self.output_size),
            ("num_input_classes", self.num_input_classes),
            ("max_seq_len", self.max_seq_len),
        ];
        if let Some((name, n)) = sizes.iter().find(|(_, n)| *n == 0 || *n > 1 << 16) {
            return Err(Error::config(format!("{name} = {n}: expected a number from 1 to {}", 1 << 16)));
        }
        let widest = sizes[1..].iter().map(|x| x.1).chain([self.inner(), self.expand * self.h_dim]).max().unwrap_or(0);
        if self.n_layers.saturating_mul(widest).saturating_mul(self.h_dim.max(self.d_model)) > 1 << 26 {
            let layers = self.n_layers;
            return Err(Error::config(format!("{layers} layers that are {widest} wide: too large a published model")));
        }
        Ok(())
    }
}

/// Parameters on a tape by their published names.
pub type Named<'t> = BTreeMap<String, Var<'t>>;

/// The parameters of one part of a model: those whose names begin with a path.
#[derive(Clone)]
pub struct Part<'a, 't> {
    all: &'a Named<'t>,
    path: String,
}

impl<'a, 't> Part<'a, 't> {
    fn whole(all: &'a Named<'t>) -> Part<'a, 't> {
        Part { all, path: String::new() }
    }

    /// The parameters below `path.name`.
    fn part(&self, name: &str) -> Part<'a, 't> {
        Part { all: self.all, path: format!("{}{name}.", self.path) }
    }

    /// One parameter.
    #[track_caller]
    fn get(&self, name: &str) -> Var<'t> {
        let name = format!("{}{name}", self.path);
        match self.all.get(&name) {
            Some(&p) => p,
            None => panic!("the parameter '{name}' is missing"),
        }
    }

    /// torch's `nn.Linear` of this name.
    #[track_caller]
    fn linear(&self, name: &str, x: Var<'t>) -> Var<'t> {
        let p = self.part(name);
        x.linear(p.get("weight"), Some(p.get("bias")))
    }

    /// The same without a bias.
    #[track_caller]
    fn linear_unbiased(&self, name: &str, x: Var<'t>) -> Var<'t> {
        x.linear(self.part(name).get("weight"), None)
    }

    #[track_caller]
    fn layer_norm(&self, name: &str, x: Var<'t>) -> Var<'t> {
        let p = self.part(name);
        x.layer_norm(p.get("weight"), Some(p.get("bias")), 1e-5)
    }
}

/// How the published code initialises its layers.
trait PublishedInit {
    /// Weight of this deviation, bias zero.
    fn linear_std(&mut self, name: &str, out: usize, inp: usize, std: f64);

    /// Weight and bias uniform in ±1/√in: what torch does where the code says nothing.
    fn linear_torch(&mut self, name: &str, out: usize, inp: usize, bias: bool);

    /// Gain one, bias zero.
    fn norm(&mut self, name: &str, width: usize);
}

/// The deviation of nearly every published weight.
const STD: f64 = 0.02;

impl PublishedInit for Init {
    fn linear_std(&mut self, name: &str, out: usize, inp: usize, std: f64) {
        self.scope(name, |i| {
            i.normal("weight", [out, inp], std);
            i.full("bias", [out], 0.0);
        });
    }

    fn linear_torch(&mut self, name: &str, out: usize, inp: usize, bias: bool) {
        let bound = (inp as f64).powf(-0.5);
        self.scope(name, |i| {
            i.uniform_always("weight", [out, inp], bound);
            if bias {
                i.custom("bias", [out], |g, _| g.uniform(-bound, bound));
            }
        });
    }

    fn norm(&mut self, name: &str, width: usize) {
        self.scope(name, |i| {
            i.full("weight", [width], 1.0);
            i.full("bias", [width], 0.0);
        });
    }
}

/// What a BatchNorm normalises by.
pub enum Mode<'a> {
    /// Mean and variance of the batch.
    Training,
    /// The running ones.
    Evaluation(&'a Statistics),
}

/// Running mean and variance of every BatchNorm, of which only the LRU has any.
#[derive(Clone, Debug, PartialEq)]
pub struct Statistics(Vec<[Vec<f64>; 2]>);

impl Statistics {
    /// torch's start: mean 0, variance 1.
    pub fn new(c: &Config) -> Statistics {
        let norms = if c.model == "lru" { c.n_layers } else { 0 };
        Statistics(vec![[vec![0.0; c.d_model], vec![1.0; c.d_model]]; norms])
    }

    /// Means and variances, one pair a BatchNorm.
    pub fn values(&self) -> &[[Vec<f64>; 2]] {
        &self.0
    }

    /// Move a tenth of the way to those of a training batch of `b` sequences of `t` tokens ([`Output::batch`]); the
    /// running variance is the unbiased one, as in torch.
    pub fn update(&mut self, batch: &[[Var; 2]], b: usize, t: usize) {
        let n = (b * t) as f64;
        let unbiased = [1.0, n / (n - 1.0).max(1.0)];
        for (running, seen) in self.0.iter_mut().zip(batch) {
            for ((running, seen), factor) in running.iter_mut().zip(seen).zip(unbiased) {
                for (r, s) in running.iter_mut().zip(seen.value().to_f64()) {
                    *r += 0.1 * (factor * s - *r);
                }
            }
        }
    }
}

/// What a model gives.
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
    run: for<'t> fn(&Config, &Part<'_, 't>, Var<'t>, Mode) -> Output<'t>,
}

macro_rules! models {
    ($($name:ident),*) => {
        const MODELS: &[(&str, Builder)] = &[$((stringify!($name), Builder { init: $name::init, run: $name::run })),*];
    };
}

models! { lstm, quasi_lstm, lru, linear_transformer, gpt, delta_net, mamba }

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
    let mut init = Init::new(seed, None);
    (find(&c.model)?.init)(c, &mut init);
    Ok(init.finish(dtype))
}

/// Run a model on tokens [B, T] (i32) from the start of a sequence.
///
/// # Errors
/// When there is no such model.
///
/// # Panics
/// When a parameter is missing or misshaped, a token is not in the vocabulary, or the model cannot take this length.
#[track_caller]
pub fn run<'t>(c: &Config, p: &Named<'t>, tokens: Var<'t>, mode: Mode) -> Result<Output<'t>> {
    Ok((find(&c.model)?.run)(c, &Part::whole(p), tokens, mode))
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

    /// The sizes it was made with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Its parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Its parameters, to train.
    pub fn params_mut(&mut self) -> &mut Params {
        &mut self.params
    }

    /// The running statistics of its BatchNorms.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    fn named<'t>(&self, p: &Bound<'t>) -> Named<'t> {
        self.params.entries().iter().map(|e| e.name.clone()).zip(p.vars().iter().copied()).collect()
    }

    /// Logits [B, T, classes] of a training batch of tokens [B, T]; running statistics move on.
    ///
    /// # Errors
    /// As [`run`].
    ///
    /// # Panics
    /// As [`run`].
    #[track_caller]
    pub fn train<'t>(&mut self, p: &Bound<'t>, tokens: Var<'t>) -> Result<Var<'t>> {
        let [b, t] = tokens.dims();
        let y = run(&self.config, &self.named(p), tokens, Mode::Training)?;
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
    pub fn evaluate<'t>(&self, p: &Bound<'t>, tokens: Var<'t>) -> Result<Var<'t>> {
        Ok(run(&self.config, &self.named(p), tokens, Mode::Evaluation(&self.statistics))?.logits)
    }
}

/// A constant of this shape on the tape of `like`, of its element type.
fn constant<'t>(like: Var<'t>, values: Vec<f64>, shape: &[usize]) -> Var<'t> {
    like.tape().constant(&Tensor::from_vec(values, shape).cast(like.dtype()))
}
