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
//! [`Defect`] names those that can be left out one by one, to see what each did.
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

use super::{Bound, Form, Init, ModelConfig, Params, Positions, State};
use crate::{
    autograd::{Tape, Var},
    error::{Error, Result},
    tensor::{DType, Shape, Tensor},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A defect that a published model can be built without.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Defect {
    /// Only the diagonal of the memory matrix is read; without it, the whole matrix.
    Diagonal,
    /// Keys have any length, so that the gate 1 − β k² can be negative; without it, φ(k) is divided by its norm.
    RawKeys,
    /// The convolution looks ahead; without it, back.
    Lookahead,
    /// BatchNorm over batch and time; without it, LayerNorm.
    BatchNorm,
    /// A token is one number, its index; without it, one-hot.
    ScalarTokens,
}

impl Defect {
    /// The models that have it.
    fn models(self) -> &'static [&'static str] {
        match self {
            Defect::Diagonal => &["linear_transformer", "delta_net"],
            Defect::RawKeys => &["delta_net"],
            Defect::Lookahead => &["mamba"],
            Defect::BatchNorm | Defect::ScalarTokens => &["lru"],
        }
    }
}

/// As configuration files have it.
fn defect_name(defect: Defect) -> String {
    serde_json::to_value(defect).ok().and_then(|v| Some(v.as_str()?.to_string())).unwrap_or_default()
}

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
    /// Other positions than the published ones.
    pub positions: Option<Positions>,
    /// Deviation of the weights at the start, but in the LRU and Mamba.
    pub std: f64,
    /// Defects that are left out.
    pub without: Vec<Defect>,
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
            positions: None,
            std: STD,
            without: vec![],
        }
    }
}

impl Config {
    /// The published model of a mixer's name at these sizes. A width is that of the residual stream, `d_model` in the
    /// LRU; what a model does not read may be 0.
    pub fn of(c: &ModelConfig) -> Config {
        let lru = c.mixer == "lru";
        Config {
            model: c.mixer.clone(),
            n_layers: c.layers,
            h_dim: if lru { c.state } else { c.width },
            mlp_dim: if lru || c.mixer == "mamba" { c.mlp.max(1) } else { c.mlp },
            head_dim: c.head_dim,
            n_heads: c.heads,
            block_length: c.max_len.min(8),
            d_model: c.width,
            d_state: c.state,
            d_conv: if c.mixer == "mamba" { c.conv } else { c.conv.max(1) },
            expand: c.expand,
            dt_rank: c.rank(),
            output_size: c.classes,
            num_input_classes: c.vocab,
            max_seq_len: c.max_len,
            positions: Some(c.positions),
            std: c.init_std.unwrap_or(STD),
            without: c.without.clone(),
        }
    }

    /// Whether the model is built with this defect.
    fn has(&self, defect: Defect) -> bool {
        !self.without.contains(&defect)
    }

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
        for defect in &self.without {
            let models = defect.models();
            if !models.contains(&self.model.as_str()) {
                let what = format!("without = {}: {} has no such defect", defect_name(*defect), self.model);
                return Err(Error::config(format!("{what}; of the published models, these do: {}", models.join(", "))));
            }
        }
        if self.model == "lru" && self.positions.is_some_and(|p| p != Positions::None) {
            return Err(Error::config("positions: the published lru has none, as it embeds no tokens"));
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
#[derive(Clone, Copy)]
pub enum Mode<'a> {
    /// Mean and variance of the batch.
    Training,
    /// The running ones.
    Evaluation(&'a Statistics),
}

/// Running mean and variance of every BatchNorm, of which only the LRU has any.
#[derive(Clone, Debug)]
pub struct Statistics {
    /// [norms, 2, D], f64.
    values: Tensor,
    width: usize,
}

impl Statistics {
    /// torch's start: mean 0, variance 1.
    pub fn new(c: &Config) -> Statistics {
        let norms = if c.model == "lru" && c.has(Defect::BatchNorm) { c.n_layers } else { 0 };
        let start = [vec![0.0; c.d_model], vec![1.0; c.d_model]].concat();
        Statistics { values: Tensor::from_vec(start.repeat(norms), [norms, 2, c.d_model]), width: c.d_model }
    }

    /// Mean and variance of one BatchNorm.
    pub fn of(&self, layer: usize) -> [Vec<f64>; 2] {
        [0, 1].map(|i| self.values.window((2 * layer + i) * self.width, [self.width]).to_f64())
    }

    /// All of them, as a checkpoint has them.
    pub fn values_mut(&mut self) -> &mut Tensor {
        &mut self.values
    }

    /// Move a tenth of the way to those of a training batch of `b` sequences of `t` tokens ([`Output::batch`]); the
    /// running variance is the unbiased one, as in torch.
    pub fn update(&mut self, batch: &[[Var; 2]], b: usize, t: usize) {
        let n = (b * t) as f64;
        let unbiased = [1.0, n / (n - 1.0).max(1.0)].into_iter().cycle();
        if batch.is_empty() {
            return;
        }
        let running = self.values.host_mut::<f64>().chunks_exact_mut(self.width);
        for ((running, seen), factor) in running.zip(batch.iter().flatten()).zip(unbiased) {
            for (r, s) in running.iter_mut().zip(seen.value().to_f64()) {
                *r += 0.1 * (factor * s - *r);
            }
        }
    }
}

/// A pass over a model: in training or not, in which form, and from which state.
pub struct Pass<'a, 't> {
    /// What a BatchNorm normalises by.
    pub mode: Mode<'a>,
    /// `Recurrent`: plain tape ops. `Fused`: the same equations by the kernels of the clean mixers, where they have one.
    pub form: Form,
    /// One a layer ([`state`]), moved on.
    pub state: &'a mut [State<'t>],
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
    run: for<'t> fn(&Config, &Part<'_, 't>, Var<'t>, &mut Pass<'_, 't>) -> Output<'t>,
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

/// What the published code carries from one training batch to the next on MQAR, for a layer of a batch of `b`: the
/// states of LSTM, quasi-LSTM and LRU. The others start from nothing at each call.
pub fn state(c: &Config, b: usize) -> Vec<Shape> {
    match c.model.as_str() {
        "lstm" => lstm::state(c, b),
        "quasi_lstm" => quasi_lstm::state(c, b),
        "lru" => lru::state(c, b),
        _ => vec![],
    }
}

/// That state before the first batch, for every layer: zeros.
pub fn zero_state<'t>(c: &Config, tape: &'t Tape, b: usize, dtype: DType) -> Vec<State<'t>> {
    let zeros = || state(c, b).into_iter().map(|shape| tape.full(shape, dtype, 0.0)).collect();
    (0..c.n_layers).map(|_| State { t: 0, s: zeros() }).collect()
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

    /// Whether sequences can have this length.
    ///
    /// # Errors
    /// When the quasi-LSTM cannot cut it into its blocks.
    pub fn check_len(&self, len: usize) -> Result<()> {
        let block = self.config.block_length;
        if self.config.model != "quasi_lstm" || len.is_multiple_of(block) {
            return Ok(());
        }
        Err(Error::config(format!("length {len}: the published quasi_lstm takes multiples of its block, {block}")))
    }

    /// The running statistics of its BatchNorms, to restore.
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

    /// Logits [B, T, classes] of a training batch of tokens [B, T]; running statistics move on.
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

/// A constant of this shape on the tape of `like`, of its element type.
fn constant<'t>(like: Var<'t>, values: Vec<f64>, shape: &[usize]) -> Var<'t> {
    like.tape().constant(&Tensor::from_vec(values, shape).cast(like.dtype()))
}
