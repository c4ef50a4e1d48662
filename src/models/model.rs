//! A model with its parameters: a mixer in the decoder, or a published model.

use super::{
    Bound, Builder, Form, Init, Mixer, ModelConfig, Params, Positions, State, Stream, Variant, any_size,
    decoder::Decoder,
    find, form_of,
    published::{self, Published},
    weights::STATISTICS,
};
use crate::{
    autograd::{Tape, Var},
    error::{Error, Result},
    tasks::{Batch, IGNORE},
    tensor::{DType, Shape, Tensor},
};

/// A model with its parameters.
pub struct Model {
    config: ModelConfig,
    body: Body,
    /// The final state of the last training batch as one flat tensor, if the next batch starts from it.
    carried: Option<Tensor>,
}

/// The part that computes the logits.
enum Body {
    Clean(Decoder, Params),
    Published(Published),
}

/// The state of a model between two tokens: a [`State`] for each block.
pub struct ModelState<'t>(Vec<State<'t>>);

impl<'t> ModelState<'t> {
    /// The carried tensors of every block, for use on another tape.
    pub fn tensors(&self) -> Vec<Vec<Tensor>> {
        self.0.iter().map(|s| s.s.iter().map(|v| v.value()).collect()).collect()
    }

    fn vars(&self) -> impl Iterator<Item = Var<'t>> {
        self.0.iter().flat_map(|s| s.s.iter().copied())
    }

    /// All carried tensors, concatenated; `None` if there are none. A tensor that has not the shape it began with is
    /// a cache, which has grown, and is left out.
    fn flat(&self, shapes: &[Shape]) -> Option<Tensor> {
        let part = |(v, shape): (Var<'t>, &Shape)| {
            let flat = v.reshape([v.shape().len()]).cast(v.dtype().real());
            if v.shape() == *shape { flat } else { flat.narrow(0, 0, 0) }
        };
        let all: Vec<Var> = self.vars().zip(shapes).map(part).collect();
        (!all.is_empty()).then(|| Var::concat(&all, 0).value())
    }

    /// Restore the tensors that [`ModelState::flat`] returned.
    fn restore(&mut self, tape: &'t Tape, flat: Option<&Tensor>) {
        let Some(flat) = flat else { return };
        let mut offset = 0;
        for v in self.0.iter_mut().flat_map(|s| &mut s.s) {
            let (shape, dtype) = (v.shape(), v.dtype());
            *v = tape.constant(&flat.window(offset, shape)).cast(dtype);
            offset += shape.len();
        }
    }

    /// The states of the blocks.
    pub fn blocks(&self) -> &[State<'t>] {
        &self.0
    }
}

impl Model {
    /// A model with random parameters.
    ///
    /// # Errors
    /// When a size makes no sense.
    pub fn new(config: &ModelConfig, seed: u64, dtype: DType) -> Result<Model> {
        check(config, dtype)?;
        match config.variant {
            Variant::Published => {
                let body = Body::Published(Published::new(&published::Config::of(config), seed, dtype)?);
                Ok(Model { config: config.clone(), body, carried: None })
            }
            Variant::Clean => Model::build(config, &find(&config.mixer)?, seed, dtype),
        }
    }

    /// A model with random parameters around a mixer of your own: `build` makes one for each block, from the sizes in
    /// the configuration (and from what it captures), and declares its parameters. `config.mixer` is its name in
    /// messages.
    ///
    /// ```
    /// use tapezoo::{models::{Model, ModelConfig, gla}, tensor::DType};
    ///
    /// let config = ModelConfig { mixer: "mine".into(), ..ModelConfig::default() };
    /// let model = Model::with_mixer(&config, gla::Layer::new, 0, DType::F32)?;
    /// let logits = model.stream().next(1)?;
    /// # assert_eq!(logits.len(), 2);
    /// # Ok::<(), tapezoo::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// When a size makes no sense, or `build` fails.
    pub fn with_mixer<M: Mixer + 'static>(
        config: &ModelConfig,
        build: impl Fn(&ModelConfig, &mut Init) -> Result<M>,
        seed: u64,
        dtype: DType,
    ) -> Result<Model> {
        if config.variant == Variant::Published {
            return Err(Error::config("variant = \"published\": a mixer of your own needs variant = \"clean\""));
        }
        config.check_sizes()?;
        check_dtype(dtype)?;
        Model::build(config, &|c, init| Ok(Box::new(build(c, init)?)), seed, dtype)
    }

    fn build(config: &ModelConfig, build: Builder, seed: u64, dtype: DType) -> Result<Model> {
        config.check_tables()?;
        let mut init = Init::cautious(seed, config.init_std);
        let mut decoder = Decoder::new(config, build, &mut init, dtype)?;
        if !init.complete()? {
            init = init.afresh()?;
            decoder = Decoder::new(config, build, &mut init, dtype)?;
        }
        Ok(Model { config: config.clone(), body: Body::Clean(decoder, init.finish(dtype)), carried: None })
    }

    /// A model whose parameters have shapes but no values, to ask about its sizes and for [`Tape::hollow`]: to draw
    /// 10^9 parameters takes a minute. Sequences can have up to [`Model::HOLLOW_LEN`] tokens.
    ///
    /// # Errors
    /// As [`Model::new`].
    pub fn hollow(config: &ModelConfig, dtype: DType) -> Result<Model> {
        check(config, dtype)?;
        let body = match config.variant {
            Variant::Published => Body::Published(Published::hollow(&published::Config::of(config), dtype)?),
            Variant::Clean => {
                config.check_tables()?;
                let mut init = Init::counting(config.init_std);
                let mut small = config.clone();
                if config.positions != Positions::Learned {
                    small.max_len = config.max_len.min(Model::HOLLOW_LEN);
                }
                let decoder = Decoder::new(&small, &find(&config.mixer)?, &mut init, dtype)?;
                Body::Clean(decoder, init.finish_hollow(dtype)?)
            }
        };
        Ok(Model { config: config.clone(), body, carried: None })
    }

    /// The longest sequence that [`Model::hollow`] takes.
    pub const HOLLOW_LEN: usize = 256;

    /// The sizes it was made with.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Its parameters.
    pub fn params(&self) -> &Params {
        match &self.body {
            Body::Clean(_, params) => params,
            Body::Published(model) => model.params(),
        }
    }

    /// Its parameters, for training.
    pub fn params_mut(&mut self) -> &mut Params {
        match &mut self.body {
            Body::Clean(_, params) => params,
            Body::Published(model) => model.params_mut(),
        }
    }

    /// The forms that its mixer can be computed in, `Recurrent` first.
    pub fn forms(&self) -> Vec<Form> {
        match &self.body {
            Body::Clean(decoder, _) => decoder.mixers().next().map_or(vec![], |m| m.forms()),
            Body::Published(_) => super::published::FORMS.to_vec(),
        }
    }

    /// How many tokens of a batch are computed at once: see [`Mixer::tokens_at_once`]. Any number for a published model,
    /// which may look ahead: a batch that is cut where its targets end has other answers.
    pub fn tokens_at_once(&self) -> usize {
        match &self.body {
            Body::Clean(decoder, _) => {
                let of_mixer = decoder.mixers().next().map_or(TOKENS_AT_ONCE, |m| m.tokens_at_once());
                at_width(of_mixer, self.config.width)
            }
            Body::Published(_) => usize::MAX,
        }
    }

    /// The fastest form on a CPU.
    pub fn default_form(&self) -> Form {
        self.forms().pop().unwrap_or(Form::Recurrent)
    }

    /// Whether the mixer has this form (with any number of steps), by the name it has or had.
    ///
    /// # Errors
    /// When it has not. The error names the form, and the forms that exist.
    pub fn check_form(&self, form: Form) -> Result<()> {
        form_of(form, &self.forms(), &self.config.mixer).map(drop).map_err(Error::Config)
    }

    /// The model before the first token of a sequence, to be read token by token.
    pub fn stream(&self) -> Stream<'_> {
        Stream::new(self)
    }

    /// Whether sequences can have this length.
    ///
    /// # Errors
    /// When they cannot. Only published models refuse a length.
    pub fn check_len(&self, len: usize) -> Result<()> {
        match &self.body {
            Body::Clean(..) => Ok(()),
            Body::Published(model) => model.check_len(len),
        }
    }

    /// Whether no answer depends on a later token, nor on how many there are: published models may look ahead, and some
    /// take whole blocks alone.
    pub fn is_causal(&self) -> bool {
        matches!(self.body, Body::Clean(..))
    }

    /// The state before the first token, for a batch of `b`.
    pub fn zero_state<'t>(&self, tape: &'t Tape, b: usize) -> ModelState<'t> {
        let dtype = self.params().dtype();
        ModelState(match &self.body {
            Body::Clean(decoder, _) => decoder.zero_state(tape, b, dtype),
            Body::Published(model) => published::zero_state(model.config(), tape, b, dtype),
        })
    }

    /// The names of a block's carried tensors; none for a published model.
    pub fn state_names(&self) -> Vec<&'static str> {
        match &self.body {
            Body::Clean(decoder, _) => {
                decoder.mixers().next().map_or(vec![], |m| m.state(1).into_iter().map(|s| s.0).collect())
            }
            Body::Published(_) => vec![],
        }
    }

    /// A state after `t` tokens, from the tensors of [`ModelState::tensors`].
    pub fn state_from<'t>(&self, tape: &'t Tape, t: usize, tensors: &[Vec<Tensor>]) -> ModelState<'t> {
        let bind = |s: &Vec<Tensor>| State::of(t, s.iter().map(|x| tape.constant(x)).collect());
        ModelState(tensors.iter().map(bind).collect())
    }

    /// Logits [B, T, classes] of tokens [B, T] (i32), from the start of a sequence.
    ///
    /// # Panics
    /// When a token is not in the vocabulary, the sequence is longer than `max_len` where positions need a table, the
    /// mixer has no such form, or the parameters are not shaped as this model's.
    #[track_caller]
    pub fn forward<'t>(&self, p: &Bound<'t>, tokens: Var<'t>, form: Form) -> Var<'t> {
        self.forward_at(p, tokens, form, None)
    }

    /// [`Model::forward`], or with `rows` `[R]` (i32, indices into `[B T]`) only the logits [R, classes] of these
    /// positions: with many classes and few targets, the other logits would be most of the work.
    ///
    /// # Panics
    /// As [`Model::forward`].
    #[track_caller]
    pub fn forward_at<'t>(&self, p: &Bound<'t>, tokens: Var<'t>, form: Form, rows: Option<Var<'t>>) -> Var<'t> {
        let mut state = self.zero_state(tokens.tape(), tokens.shape().at(0));
        self.run_at(p, tokens, &mut state, form, rows)
    }

    /// The mean loss of a batch: the cross-entropy of its targets, where there are any. A published LRU is normalised by
    /// its running statistics, which this does not move; [`Model::train`] does.
    ///
    /// # Panics
    /// As [`Model::forward`].
    #[track_caller]
    pub fn loss<'t>(&self, tape: &'t Tape, p: &Bound<'t>, batch: &Batch) -> Var<'t> {
        let (rows, targets) = batch.labelled().unzip();
        let rows = rows.map(|rows| tape.constant(&rows));
        let form = self.default_form().on(tape.cx().device());
        let logits = self.forward_at(p, tape.constant(&batch.tokens), form, rows);
        logits.cross_entropy(tape.constant(&targets.unwrap_or(batch.targets.clone())), IGNORE)
    }

    /// [`Model::forward_at`] for a training batch. A published LRU normalises by the batch's statistics, and updates
    /// its running statistics for evaluation. With `carry_state` the batch starts from the final state of the last one.
    ///
    /// # Panics
    /// As [`Model::forward`].
    #[track_caller]
    pub fn train<'t>(&mut self, p: &Bound<'t>, tokens: Var<'t>, form: Form, rows: Option<Var<'t>>) -> Var<'t> {
        let (tape, [b, _]) = (tokens.tape(), tokens.dims());
        let mut state = self.zero_state(tape, b);
        let shapes: Vec<Shape> = state.vars().map(Var::shape).collect();
        if self.config.carry_state {
            self.begin_carrying(b);
            state.restore(tape, self.carried.as_ref());
        }
        let form = self.form_for(p, tokens, form);
        let y = match &mut self.body {
            Body::Clean(decoder, _) => decoder.run(p, tokens, &mut state.0, form, rows),
            Body::Published(model) => pick(or_panic(model.train(p, tokens, &mut state.0, form)), rows),
        };
        if self.config.carry_state {
            self.carried = state.flat(&shapes);
        }
        y
    }

    /// Whether training batches start from a state that the batch before has left: with `carry_state`, where there is a
    /// state.
    pub fn carries(&self) -> bool {
        self.config.carry_state && self.zero_state(&Tape::hollow(), 1).vars().next().is_some()
    }

    /// With `carry_state`, and no state carried yet: carry zeros, for batches of `b` sequences.
    pub fn begin_carrying(&mut self, b: usize) {
        if self.config.carry_state && self.carried.is_none() {
            let tape = Tape::default();
            let state = self.zero_state(&tape, b);
            self.carried = state.flat(&state.vars().map(Var::shape).collect::<Vec<_>>());
        }
    }

    /// The tensors that training updates besides the parameters, by name: running statistics and the carried state.
    pub fn buffers(&mut self) -> Vec<(&'static str, &mut Tensor)> {
        let statistics = match &mut self.body {
            Body::Clean(..) => None,
            Body::Published(model) => Some(model.statistics_mut().values_mut()).filter(|t| !t.is_empty()),
        };
        statistics.map(|t| (STATISTICS, t)).into_iter().chain(self.carried.as_mut().map(|t| ("carried", t))).collect()
    }

    /// The running statistics that it evaluates by, if it has any.
    pub(crate) fn statistics(&self) -> Option<&Tensor> {
        match &self.body {
            Body::Clean(..) => None,
            Body::Published(model) => Some(model.statistics().values()).filter(|t| !t.is_empty()),
        }
    }

    /// A form by the name that it has in this mixer, if these tokens can be read in it with these parameters.
    #[track_caller]
    fn form_for(&self, p: &Bound<'_>, tokens: Var<'_>, form: Form) -> Form {
        self.params().expect(p);
        let vocab = self.config.vocab;
        let outside = |&&id: &&i32| !usize::try_from(id).is_ok_and(|id| id < vocab);
        let (given, dtype) = (tokens.value(), tokens.dtype());
        assert!(dtype == DType::I32, "tokens of shape {} are {dtype}, expected i32", tokens.shape());
        if let Some(token) = given.integers().and_then(|ids| ids.iter().find(outside).copied()) {
            panic!("token {token}: expected one of the model's vocabulary, 0..{vocab}");
        }
        match form_of(form, &self.forms(), &self.config.mixer) {
            Ok(form) => form,
            Err(why) => panic!("{why}"),
        }
    }

    #[track_caller]
    fn run_at<'t>(
        &self,
        p: &Bound<'t>,
        tokens: Var<'t>,
        state: &mut ModelState<'t>,
        form: Form,
        rows: Option<Var<'t>>,
    ) -> Var<'t> {
        let form = self.form_for(p, tokens, form);
        match &self.body {
            Body::Clean(decoder, _) => decoder.run(p, tokens, &mut state.0, form, rows),
            Body::Published(model) => pick(or_panic(model.evaluate(p, tokens, &mut state.0, form)), rows),
        }
    }

    /// Logits of the next tokens [B, T] of a sequence; updates its state. With T = 1 this is streaming inference. Of
    /// the published models only LSTM, quasi-LSTM and LRU have a state; the others start anew at each call.
    ///
    /// # Panics
    /// As [`Model::forward`].
    #[track_caller]
    pub fn run<'t>(&self, p: &Bound<'t>, tokens: Var<'t>, state: &mut ModelState<'t>, form: Form) -> Var<'t> {
        self.run_at(p, tokens, state, form, None)
    }
}

/// Check the sizes and the element type.
fn check(config: &ModelConfig, dtype: DType) -> Result<()> {
    config.check()?;
    check_dtype(dtype)
}

fn check_dtype(dtype: DType) -> Result<()> {
    if dtype == DType::I32 { Err(Error::config("dtype = i32: a model needs f32 or f64")) } else { Ok(()) }
}

/// The given rows `[R]` of logits [B, T, C], as [R, C]; without rows, the logits unchanged.
#[track_caller]
fn pick<'t>(logits: Var<'t>, rows: Option<Var<'t>>) -> Var<'t> {
    let [b, t, c] = logits.dims();
    rows.map_or(logits, |rows| logits.reshape([b * t, c]).embedding(rows))
}

/// The only error is an unknown name, and a model that was built has a known one.
#[track_caller]
fn or_panic(logits: Result<Var<'_>>) -> Var<'_> {
    match logits {
        Ok(logits) => logits,
        Err(e) => panic!("{e}"),
    }
}

/// [`Mixer::tokens_at_once`] of a model's mixer; twice as many for a narrow model, where the fixed cost of a part
/// outweighs its gain in the caches (`--profile` with `--micro-batches` shows it).
///
/// # Errors
/// When there is no such mixer.
pub fn tokens_at_once(model: &ModelConfig) -> Result<usize> {
    Ok(at_width(any_size(find(&model.mixer)?)?.tokens_at_once(), model.width))
}

/// [`tokens_at_once`] of a model of this width, given its mixer's.
fn at_width(tokens: usize, width: usize) -> usize {
    const NARROW: usize = 8;
    if width < NARROW { 2 * tokens } else { tokens }
}

/// [`Mixer::tokens_at_once`] of most mixers.
pub const TOKENS_AT_ONCE: usize = 1024;
