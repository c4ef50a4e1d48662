//! The decoder that every mixer lives in:
//!
//! ```text
//! x = Embedding[token] √D (+ positions)
//! for each block:   x = x + Mixer(LayerNorm(x))
//!                   x = x + W₂ gelu(W₁ LayerNorm(x) + b₁) + b₂        where there is an MLP
//! logits = W_out LayerNorm(x)
//! ```
//!
//! as in the published experiment (swiss-ai/modern_rnns), but that no mixer looks at the batch or at the future.

use super::{Bound, Form, Init, Mixer, ModelConfig, P, Params, Positions, State, positions, run};
use crate::{
    autograd::{Tape, Var},
    error::{Error, Result},
    tensor::{DType, Tensor},
};
use std::sync::Arc;

struct LayerNorm {
    w: P,
    b: P,
}

impl LayerNorm {
    fn new(width: usize, init: &mut Init) -> LayerNorm {
        LayerNorm { w: init.full("w", [width], 1.0), b: init.full("b", [width], 0.0) }
    }

    fn apply<'t>(&self, p: &Bound<'t>, x: Var<'t>) -> Var<'t> {
        x.layer_norm(p[self.w], Some(p[self.b]), 1e-5)
    }
}

struct Mlp {
    norm: LayerNorm,
    w1: P,
    b1: P,
    w2: P,
    b2: P,
}

impl Mlp {
    fn new(c: &ModelConfig, init: &mut Init) -> Mlp {
        let (width, hidden) = (c.width, c.mlp);
        // The last layer of each residual branch starts smaller, so that the depth does not scale the sum (GPT-2).
        let std2 = init.std.unwrap_or((hidden as f64).powf(-0.5)) / (2.0 * c.layers as f64).sqrt();
        Mlp {
            norm: init.scope("norm", |i| LayerNorm::new(width, i)),
            w1: init.linear("w1", hidden, width),
            b1: init.full("b1", [hidden], 0.0),
            w2: init.normal("w2", [width, hidden], std2),
            b2: init.full("b2", [width], 0.0),
        }
    }

    fn apply<'t>(&self, p: &Bound<'t>, x: Var<'t>) -> Var<'t> {
        let h = self.norm.apply(p, x).linear(p[self.w1], Some(p[self.b1])).gelu_tanh();
        h.linear(p[self.w2], Some(p[self.b2]))
    }
}

struct Block {
    norm: LayerNorm,
    mixer: Box<dyn Mixer>,
    mlp: Option<Mlp>,
    /// "blocks.0.mixer" and "blocks.0.mlp", for errors.
    names: [Arc<str>; 2],
}

/// A decoder with its parameters.
pub struct Model {
    config: ModelConfig,
    params: Params,
    embedding: P,
    /// Learned positions are a parameter, sinusoidal ones a table.
    learned: Option<P>,
    table: Option<Tensor>,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: P,
    names: [Arc<str>; 2],
}

/// What a model carries from token to token: a [`State`] for each block.
pub struct ModelState<'t>(Vec<State<'t>>);

impl<'t> ModelState<'t> {
    /// The carried tensors of every block, to take them to another tape.
    pub fn tensors(&self) -> Vec<Vec<Tensor>> {
        self.0.iter().map(|s| s.s.iter().map(|v| v.value()).collect()).collect()
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
        config.check()?;
        if dtype == DType::I32 {
            return Err(Error::config("dtype = i32: a model needs f32 or f64"));
        }
        let c = config.clone();
        let build = super::find(&c.mixer)?;
        let mut init = Init::new(seed, c.init_std);
        let std = c.init_std.unwrap_or((c.width as f64).powf(-0.5));
        let embedding = init.normal("embedding", [c.vocab, c.width], std);
        let learned = (c.positions == Positions::Learned).then(|| init.normal("positions", [c.max_len, c.width], std));
        let table = (c.positions == Positions::Sinusoidal).then(|| positions::sinusoid(c.max_len, c.width, dtype));
        let mut blocks = vec![];
        for l in 0..c.layers {
            init.layer = l;
            blocks.push(init.scope(&format!("blocks.{l}"), |init| -> Result<Block> {
                Ok(Block {
                    norm: init.scope("norm", |i| LayerNorm::new(c.width, i)),
                    mixer: {
                        let mixer = init.scope("mixer", |i| build(&c, i))?;
                        c.check_choices(mixer.as_ref())?;
                        mixer
                    },
                    mlp: (c.mlp > 0).then(|| init.scope("mlp", |i| Mlp::new(&c, i))),
                    names: [format!("blocks.{l}.mixer").into(), format!("blocks.{l}.mlp").into()],
                })
            })?);
        }
        let norm = init.scope("norm", |i| LayerNorm::new(c.width, i));
        let head = init.linear("head", c.classes, c.width);
        let names = ["embedding".into(), "head".into()];
        Ok(Model { config: c, params: init.finish(dtype), embedding, learned, table, blocks, norm, head, names })
    }

    /// The sizes it was made with.
    pub fn config(&self) -> &ModelConfig {
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

    /// The forms that its mixer can be computed in, `Recurrent` first.
    pub fn forms(&self) -> Vec<Form> {
        self.blocks.first().map_or(vec![], |b| b.mixer.forms())
    }

    /// The fastest form on a CPU.
    pub fn default_form(&self) -> Form {
        self.forms().pop().unwrap_or(Form::Recurrent)
    }

    /// Whether the mixer has this form (with any chunk size).
    ///
    /// # Errors
    /// When it has not: names the form and those that exist.
    pub fn check_form(&self, form: Form) -> Result<()> {
        let kinds: Vec<&str> = self.forms().iter().map(|f| f.kind()).collect();
        if kinds.contains(&form.kind()) {
            return Ok(());
        }
        let mixer = &self.config.mixer;
        Err(Error::config(format!("form '{form}': {mixer} has no such form; it has {}", kinds.join(", "))))
    }

    /// The state before the first token, for a batch of `b`.
    pub fn zero_state<'t>(&self, tape: &'t Tape, b: usize) -> ModelState<'t> {
        let dtype = self.params.flat().dtype();
        ModelState(self.blocks.iter().map(|block| State::zero(block.mixer.as_ref(), tape, b, dtype)).collect())
    }

    /// A state after `t` tokens, from the tensors of [`ModelState::tensors`].
    pub fn state_from<'t>(&self, tape: &'t Tape, t: usize, tensors: &[Vec<Tensor>]) -> ModelState<'t> {
        let bind = |s: &Vec<Tensor>| State { t, s: s.iter().map(|x| tape.constant(x)).collect() };
        ModelState(tensors.iter().map(bind).collect())
    }

    /// Logits [B, T, classes] of tokens [B, T] (i32), from the start of a sequence.
    ///
    /// # Panics
    /// When a token is not in the vocabulary, or the sequence is longer than `max_len` where positions need a table.
    #[track_caller]
    pub fn forward<'t>(&self, p: &Bound<'t>, tokens: Var<'t>, form: Form) -> Var<'t> {
        let mut state = self.zero_state(tokens.tape(), tokens.shape().at(0));
        self.run(p, tokens, &mut state, form)
    }

    /// Logits of the next tokens [B, T] of a sequence, moving its state on. With T = 1 this is streaming inference.
    ///
    /// # Panics
    /// As [`Model::forward`].
    #[track_caller]
    pub fn run<'t>(&self, p: &Bound<'t>, tokens: Var<'t>, state: &mut ModelState<'t>, form: Form) -> Var<'t> {
        let tape = tokens.tape();
        let [_, t] = tokens.dims();
        let t0 = state.0.first().map_or(0, |s| s.t);
        tape.scope(&self.names[0]);
        let mut x = (self.config.width as f64).sqrt() * p[self.embedding].embedding(tokens); // [B, T, D]
        let most = self.config.max_len;
        if self.learned.is_some() || self.table.is_some() {
            assert!(t0 + t <= most, "position {} is past max_len = {most}", t0 + t);
        }
        if let Some(learned) = self.learned {
            x = x + p[learned].narrow(0, t0, t);
        }
        if let Some(table) = &self.table {
            x = x + tape.constant(&table.window(t0 * self.config.width, [t, self.config.width]));
        }
        for (block, s) in self.blocks.iter().zip(&mut state.0) {
            tape.scope(&block.names[0]);
            x = x + run(block.mixer.as_ref(), p, block.norm.apply(p, x), s, form);
            if let Some(mlp) = &block.mlp {
                tape.scope(&block.names[1]);
                x = x + mlp.apply(p, x);
            }
        }
        tape.scope(&self.names[1]);
        self.norm.apply(p, x).linear(p[self.head], None)
    }
}
