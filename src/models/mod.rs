//! Sequence mixers, one per file, and the decoder that they live in.
//!
//! To add one, write a file with a `Layer` that implements [`Mixer`], and put its name in the list at the end of this
//! file. `--models` then takes the name, and the tests over all mixers cover it: gradients, equality of its forms,
//! streaming, causality, independence of the batch. [`Var::named`] names a value inside a step for the inspect page;
//! [`crate::inspect::view`] says how the page shows it.
//!
//! A mixer of your own crate needs no place here: [`Model::with_mixer`] builds a model of it,
//! [`Trainer::with`](crate::train::Trainer::with) trains that, and [`crate::check`] checks the mixer. [`add`] gives it a
//! name for configurations and the program.
//!
//! # Errors
//! A mixer's `Layer::new` refuses a size in the configuration that it cannot have: the error names it.
//!
//! # Panics
//! Functions of [`Var`]s panic where their inputs do not fit, as its methods do: the message has the shapes and the
//! caller's line.

mod about;
mod config;
pub mod conv;
mod decoder;
pub(crate) mod lti;
pub mod maps;
#[doc(hidden)]
pub mod memories;
mod model;
#[doc(hidden)]
pub mod ngram;
mod own;
mod params;
mod positions;
pub mod prelude;
#[doc(hidden)]
pub mod published;
mod stream;
#[doc(hidden)]
pub mod weights;
pub(crate) mod xlstm;

// Memories and attention without a layer around them.
pub(crate) mod based;
pub(crate) mod ema;
#[doc(hidden)]
pub mod log_linear;
pub(crate) mod mesa;

pub(crate) use about::UNKNOWN;
pub use about::{About, Family, LETTERS, about, facts, lines, table};
pub use config::{Eigenvalues, ModelConfig, Positions, Variant};
pub use conv::{Conv, Convs, Projection, TokenShift, remembered};
pub use maps::{
    AttentionMaps, GatedOutput, GroupNorm, LowRank, inverse_root, linear_heads, narrow_normal, normed_output,
};
pub use model::{Model, ModelState, TOKENS_AT_ONCE, tokens_at_once};
pub use own::add;
pub use params::{Bound, Entry, Init, P, Params};
pub use positions::Rope;
pub use stream::Stream;

pub use crate::ops::words::{over_time, over_time_with, split, token as at};
use crate::{
    autograd::{Tape, Var},
    error::{Error, Result, brief, did_you_mean},
    ops::words::insert_axis,
    tensor::{DType, Device, Shape},
};
use std::{fmt, str::FromStr};

/// How a mixer is computed. All forms of a mixer give the same values, states and gradients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// One step at a time in plain tape ops: the definition.
    Recurrent,
    /// As many positions at once as the mixer allows, in plain tape ops: a scan, or a masked quadratic form. Most
    /// mixers allow all; TTT goes from mini-batch to mini-batch, and the first half of TransNormer from stretch to
    /// stretch.
    Parallel,
    /// Parallel within chunks of this many steps, and recurrent between them: one op with a kernel of its own, or, where
    /// the mixer has none (LMU, LSSL, PaTH, Titans, a part of GSA), tape ops piece by piece. On a CPU most of these ops
    /// run small heads (K V ≤ 256) step by step instead. The delta rules then save a state every so many steps, and
    /// gated linear attention saves one every 16 steps, whatever the number. mLSTM's op always runs in chunks. Without
    /// kernels an op runs its formula.
    Chunked(usize),
    /// Chunked, in this many parts side by side, as many at once as there are idle cores: sequences of the batch, or runs
    /// of their steps if there are fewer sequences (LASP-2). What comes out depends on the number of parts, and not on
    /// that of cores. On a device, in a browser and without kernels it is computed as `chunked`.
    Split(usize),
    /// Hand-written: a scan in one op. Only Mamba's reads the number: it keeps a state every so many steps for the
    /// backward pass, and computes the others again. No other scan depends on it, on a CPU or on a device.
    Scan(usize),
    /// Hand-written: one kernel over the whole sequence. It goes step by step; that of attention goes by tiles.
    Fused,
}

impl Form {
    /// The steps of `chunked` and `scan` without a number.
    pub const CHUNK: usize = 32;

    /// The form in which a device computes what a CPU does in this one, if no steps were asked for: its kernels multiply
    /// tiles of 64 steps, on tensor cores in bf16 (`tiles.cuh`).
    pub fn on(self, device: Device) -> Form {
        match (self, device) {
            (Form::Chunked(_), Device::Cuda(_) | Device::Emulated) => Form::Chunked(64),
            _ => self,
        }
    }

    /// The steps of a chunk; all T where the form has no chunks.
    pub fn chunk(self, t: usize) -> usize {
        match self {
            Form::Chunked(_) | Form::Split(_) => self.cut().0,
            _ => t,
        }
    }

    /// The steps of a chunk, and the number of parts.
    pub(crate) fn cut(self) -> (usize, usize) {
        match self {
            Form::Chunked(steps) => (steps, 1),
            Form::Split(parts) => (Form::CHUNK, parts),
            _ => (Form::CHUNK, 1),
        }
    }

    /// The name without the number of steps.
    pub fn kind(self) -> &'static str {
        match self {
            Form::Recurrent => "recurrent",
            Form::Parallel => "parallel",
            Form::Chunked(_) => "chunked",
            Form::Split(_) => "split",
            Form::Scan(_) => "scan",
            Form::Fused => "fused",
        }
    }

    /// The same form with chunks or pieces of so many steps, or with so many parts, if it has them.
    pub fn with_steps(self, steps: usize) -> Form {
        match self {
            Form::Chunked(_) => Form::Chunked(steps),
            Form::Split(_) => Form::Split(steps),
            Form::Scan(_) => Form::Scan(steps),
            other => other,
        }
    }

    /// The one of these forms that is meant: earlier versions called a scan chunked.
    pub fn among(self, forms: &[Form]) -> Form {
        let has = |kind: &str| forms.iter().any(|form| form.kind() == kind);
        match self {
            Form::Chunked(steps) if has("scan") && !has("chunked") => Form::Scan(steps),
            form => form,
        }
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Form::Chunked(n) | Form::Split(n) | Form::Scan(n) => write!(f, "{}:{n}", self.kind()),
            other => f.write_str(other.kind()),
        }
    }
}

impl FromStr for Form {
    type Err = String;
    fn from_str(s: &str) -> std::result::Result<Form, String> {
        let (kind, steps) = s.split_once(':').map_or((s, None), |(kind, steps)| (kind, Some(steps)));
        let form = match (kind, steps) {
            ("recurrent", None) => Form::Recurrent,
            ("parallel", None) => Form::Parallel,
            ("chunked", _) => Form::Chunked(Form::CHUNK),
            ("split", _) => Form::Split(2),
            ("scan", _) => Form::Scan(Form::CHUNK),
            ("fused", None) => Form::Fused,
            _ => {
                let expected =
                    "recurrent, parallel, chunked, chunked:STEPS, split, split:PARTS, scan, scan:STEPS or fused";
                return Err(format!("unknown form '{s}': expected {expected}"));
            }
        };
        match steps.map(str::parse) {
            None => Ok(form),
            Some(Ok(steps)) if steps > 0 => Ok(form.with_steps(steps)),
            _ => Err(format!("form '{s}': expected a number from 1 behind the colon")),
        }
    }
}

/// The state that a mixer carries from one step to the next: h and c of an LSTM, the matrix S of DeltaNet, GPT's cache.
pub struct State<'t> {
    /// How many tokens have been seen.
    pub t: usize,
    /// The carried values, in the order of [`Mixer::state`].
    pub s: Vec<Var<'t>>,
    /// Values of the tokens at hand, [B, T, ..], that a block leaves to the blocks after it. Nothing of it is carried.
    pub passed: Option<Var<'t>>,
}

impl<'t> State<'t> {
    /// The state before the first token: zeros.
    pub fn zero(mixer: &dyn Mixer, tape: &'t Tape, b: usize, dtype: DType) -> State<'t> {
        let zero = |(_, shape)| tape.full(shape, dtype, 0.0);
        State::of(0, mixer.state(b).into_iter().map(zero).collect())
    }

    /// The state after `t` tokens.
    pub fn of(t: usize, s: Vec<Var<'t>>) -> State<'t> {
        State { t, s, passed: None }
    }
}

/// A sequence mixer: y_t depends on x_1 … x_t.
///
/// [`Mixer::step`] is the definition. The recurrent form loops over it, streaming calls it, and every form that
/// [`Mixer::sequence`] offers is tested to equal it in values, final state and all gradients.
pub trait Mixer: Send + Sync {
    /// The forms that exist, `Recurrent` first, the fastest on a CPU last. A mixer of which only [`Mixer::step`] is
    /// defined says that it has `Recurrent` alone.
    fn forms(&self) -> Vec<Form> {
        vec![Form::Recurrent, Form::Parallel, Form::Chunked(Form::CHUNK)]
    }

    /// The optional features of this mixer. A configuration that asks for one which the mixer lacks is refused.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// The number of tokens whose saved values roughly fit in the processor's caches between the forward and the
    /// backward pass. A training batch is computed in parts of this many tokens. A mixer that saves much per token sets
    /// it lower. It must not depend on the mixer's sizes; [`tokens_at_once`] adjusts it for narrow models.
    fn tokens_at_once(&self) -> usize {
        TOKENS_AT_ONCE
    }

    /// Names and shapes of the carried state for a batch of `b`, before the first token.
    fn state(&self, b: usize) -> Vec<(&'static str, Shape)>;

    /// One token: x [B, D] to y [B, D]; updates `s.s` ([`run`] counts `s.t`). A mixer that does not define it has it in
    /// the recurrent form of [`Mixer::sequence`], which then gets sequences of one token.
    fn step<'t>(&self, p: &Bound<'t>, x: Var<'t>, s: &mut State<'t>) -> Var<'t> {
        let [b, d] = x.dims();
        self.sequence(p, x.reshape([b, 1, d]), s, Form::Recurrent).reshape([b, d])
    }

    /// A whole sequence, x [B, T, D] to y [B, T, D]: in a form other than `Recurrent` if there is a `step`.
    ///
    /// # Panics
    /// When [`Mixer::forms`] has such a form and this is not defined.
    #[expect(unused_variables, reason = "their names are documentation")]
    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, s: &mut State<'t>, form: Form) -> Var<'t> {
        panic!("form '{form}' is among the mixer's `forms`, but it does not define `sequence`")
    }
}

/// The optional features of a mixer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Capabilities {
    /// It takes rotary positions.
    pub rope: bool,
    /// The range of its transition's eigenvalues can be chosen.
    pub eigenvalues: bool,
}

/// Run a mixer over x [B, T, D] from a state, in any of its forms.
///
/// # Panics
/// When the mixer has no such form, x is not [B, T, D], or the state is another mixer's: when it has not as many values.
#[track_caller]
pub fn run<'t>(m: &dyn Mixer, p: &Bound<'t>, x: Var<'t>, s: &mut State<'t>, form: Form) -> Var<'t> {
    let [_, t, _] = x.dims();
    let values = m.state(1).len();
    assert!(s.s.len() == values, "a state of {} values, and the mixer's has {values}", s.s.len());
    if form == Form::Recurrent && t > 0 {
        let (given, mut left) = (s.passed, vec![]);
        let y = over_time(t, x, |i| {
            s.passed = given.map(|all| all.narrow(1, i, 1));
            let y = m.step(p, at(x, i), s);
            s.t += 1;
            left.extend(s.passed);
            y
        });
        s.passed = if left.is_empty() { None } else { Some(Var::concat(&left, 1)) };
        return y;
    }
    // An empty sequence has no step to run; any other form gives the empty result, as does the input.
    let forms = m.forms();
    if t == 0 && form == Form::Recurrent && forms == [Form::Recurrent] {
        return x;
    }
    let form = if form == Form::Recurrent { forms.last().copied().unwrap_or(form) } else { form };
    let form = match form_of(form, &forms, "the mixer") {
        Ok(form) => form,
        Err(why) => panic!("{why}"),
    };
    let y = m.sequence(p, x, s, form);
    s.t += t;
    y
}

/// This form, with any number of steps, by the name that it has among the forms of a mixer.
fn form_of(form: Form, forms: &[Form], mixer: &str) -> std::result::Result<Form, String> {
    let (kinds, own): (Vec<&str>, Form) = (forms.iter().map(|form| form.kind()).collect(), form.among(forms));
    match kinds.contains(&own.kind()) {
        true => Ok(own),
        false => Err(format!("form '{form}': {mixer} has no such form; it has {}", kinds.join(", "))),
    }
}

/// The empty sequence [B, 0, ..] of steps shaped like y [B, ..].
#[track_caller]
pub fn no_steps(y: Var<'_>) -> Var<'_> {
    insert_axis(y, 1).narrow(1, 0, 0)
}

/// x Wᵀ + b, cut into `N` equal parts.
///
/// # Panics
/// When W is no matrix, or its rows are not `N` equal parts.
#[track_caller]
pub fn linear_parts<'t, const N: usize>(x: Var<'t>, w: Var<'t>, b: Option<Var<'t>>) -> [Var<'t>; N] {
    let [out, _] = w.dims();
    assert!(out.is_multiple_of(N), "W {} has not {N} equal parts of rows", w.shape());
    linear_cut(x, w, b, [out / N; N])
}

/// x Wᵀ + b in parts of these widths. Cutting a tensor copies it. It is therefore W that is cut, for `N` products,
/// unless x has fewer rows than W or is wider than the result: each of the products reads all of x.
///
/// # Panics
/// When W is no matrix, or has not as many rows as the parts have together.
#[track_caller]
pub fn linear_cut<'t, const N: usize>(x: Var<'t>, w: Var<'t>, b: Option<Var<'t>>, widths: [usize; N]) -> [Var<'t>; N] {
    let start = |i: usize| widths[..i].iter().sum();
    let [out, inp] = w.dims();
    assert!(widths.iter().sum::<usize>() == out, "W {} has not parts of {widths:?} rows", w.shape());
    if x.shape().rows() < out || inp > out {
        let (y, axis) = (x.linear(w, b), x.shape().rank() - 1);
        return std::array::from_fn(|i| y.narrow(axis, start(i), widths[i]));
    }
    std::array::from_fn(|i| {
        let part = |w: Var<'t>| w.narrow(0, start(i), widths[i]);
        x.linear(part(w), b.map(part))
    })
}

/// [B, T, H K] to heads [B, T, H, K].
#[track_caller]
pub fn heads(x: Var<'_>, h: usize) -> Var<'_> {
    let [b, t, hk] = x.dims();
    x.reshape([b, t, h, hk / h])
}

/// Heads [B, T, H, K] back to [B, T, H K].
#[track_caller]
pub fn merge_heads(x: Var<'_>) -> Var<'_> {
    let [b, t, h, k] = x.dims();
    x.reshape([b, t, h * k])
}

/// [B, T, H, K] to [B, H, T, K], one matrix per head.
#[track_caller]
pub fn head_first(x: Var<'_>) -> Var<'_> {
    x.permute([0, 2, 1, 3])
}

/// Builds a mixer: sizes from the configuration, parameters from the initialiser. [`Model::with_mixer`] takes any
/// function of this kind.
///
/// # Errors
/// When a size in the configuration cannot be.
pub type Build = fn(&ModelConfig, &mut Init) -> Result<Box<dyn Mixer>>;

/// As [`Build`], with whatever it has captured.
type Builder<'a> = &'a dyn Fn(&ModelConfig, &mut Init) -> Result<Box<dyn Mixer>>;

macro_rules! mixers {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        $(pub mod $name;)*

        /// Every mixer of this crate by name.
        pub const MIXERS: &[(&str, Build)] = &[$((stringify!($name), |c, init| Ok(Box::new($name::Layer::new(c, init)?)))),*];

        /// The same with their facts.
        const ALL: &[(&str, Build, &About)] = {
            // The ABOUT of a file without one is looked up one scope further out.
            #[allow(unused_imports)]
            use about::UNKNOWN as ABOUT;
            &[$({
                #[allow(unused_imports)]
                use $name::*;
                (stringify!($name), |c, init| Ok(Box::new($name::Layer::new(c, init)?)), &ABOUT)
            }),*]
        };

        /// The files of the mixers, to show them and their equations.
        const FILES: &[(&str, &str)] = &[$((stringify!($name), include_str!(concat!(stringify!($name), ".rs")))),*];
    };
}

// The mixers of the published experiment, and then the others by family, in the order of `Family::ALL`.
mixers! {
    lstm, quasi_lstm, lru, linear_transformer, gpt, delta_net, mamba,
    slstm,
    s4d, lssl, lmu,
    mlstm, gla, retnet, hgrn2, mamba2, mamba3, gsa, hedgehog, transnormer, lightnet,
    gated_delta_net, delta_product, kda, rwkv7, mom,
    ttt, titans,
    fox, path, hopfield, seqboat
}

/// The names of all mixers, in the order of the tables; behind them those that were [added](add).
pub fn names() -> Vec<&'static str> {
    own::all().iter().map(|m| m.0).collect()
}

/// The file of a mixer.
pub fn source(name: &str) -> Option<&'static str> {
    FILES.iter().find(|f| f.0 == name).map(|f| f.1)
}

/// The equations of a mixer: the first block in the documentation of its file.
pub fn equations(name: &str) -> Option<String> {
    let file = source(name)?;
    let (_, block) = file.split_once("//! ```text\n")?;
    let (block, _) = block.split_once("//! ```")?;
    let line = |line: &str| line.trim_start_matches("//!").strip_prefix(' ').unwrap_or("").trim_end().to_string();
    Some(block.lines().map(line).collect::<Vec<_>>().join("\n"))
}

/// Whether every token is compared with all before it: the state of the mixer is a cache that grows with each.
pub fn looks_back(name: &str) -> bool {
    about(name).is_some_and(|about| about.family == Family::Attention)
}

/// Whether the parallel form of a mixer, if it has one, costs as much as its steps do. That of attention costs more,
/// because it compares all pairs of tokens. So does that of a mixer with a chunked form: it takes the sequence as one
/// chunk, and compares all pairs in it.
pub fn scans(name: &str) -> bool {
    let chunked = |mixer: Box<dyn Mixer>| mixer.forms().iter().any(|form| matches!(form, Form::Chunked(_)));
    !looks_back(name) && find(name).and_then(any_size).is_ok_and(|mixer| !chunked(mixer))
}

/// A mixer of default sizes, for questions whose answer does not depend on sizes.
fn any_size(build: Build) -> Result<Box<dyn Mixer>> {
    build(&ModelConfig::default(), &mut Init::counting(None))
}

/// The forms of a model's mixer, `Recurrent` first.
///
/// # Errors
/// When there is no such mixer.
pub fn forms(model: &ModelConfig) -> Result<Vec<Form>> {
    match model.variant {
        Variant::Clean => Ok(any_size(find(&model.mixer)?)?.forms()),
        Variant::Published => Ok(published::FORMS.to_vec()),
    }
}

/// The mixers that have a capability.
pub fn names_with(has: fn(Capabilities) -> bool) -> Vec<&'static str> {
    own::all().iter().filter(|m| any_size(m.1).is_ok_and(|mixer| has(mixer.capabilities()))).map(|m| m.0).collect()
}

/// The constructor of the mixer with this name.
///
/// # Errors
/// When there is none.
pub fn find(name: &str) -> Result<Build> {
    let found = own::all().iter().find(|m| m.0 == name).map(|m| m.1);
    found.ok_or_else(|| Error::Config(unknown(name, &names())))
}

/// The message about a name that none of these mixers and variants has.
pub fn unknown(name: &str, known: &[&str]) -> String {
    let near = did_you_mean(name.split(':').next().unwrap_or_default(), known.iter().copied());
    let why = match name.split_once(':') {
        Some((mixer, _)) if known.contains(&mixer) => {
            format!(": expected a name alone, and settings as flags (--eigenvalues -1..1) or in [per_model.{mixer}]")
        }
        _ => format!("{near}: `tapezoo models` lists all"),
    };
    format!("unknown model '{}'{why}", brief(name, 80))
}
