//! A model: a mixer in the decoder, with its parameters.

use super::{Bound, Form, Init, ModelConfig, Params, State, decoder::Decoder};
use crate::{
    autograd::{Tape, Var},
    error::{Error, Result},
    tensor::{DType, Tensor},
};

/// A model with its parameters.
pub struct Model {
    config: ModelConfig,
    params: Params,
    decoder: Decoder,
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
        let mut init = Init::new(seed, config.init_std);
        let decoder = Decoder::new(config, &mut init, dtype)?;
        Ok(Model { config: config.clone(), params: init.finish(dtype), decoder })
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
        self.decoder.mixers().next().map_or(vec![], |m| m.forms())
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
        ModelState(self.decoder.mixers().map(|m| State::zero(m, tape, b, dtype)).collect())
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
        self.forward_at(p, tokens, form, None)
    }

    /// [`Model::forward`], or only the logits [R, classes] of some positions of `[B T]`, `rows` `[R]` (i32): where few
    /// positions have a target and there are many classes, the others' would be most of the work.
    ///
    /// # Panics
    /// As [`Model::forward`].
    #[track_caller]
    pub fn forward_at<'t>(&self, p: &Bound<'t>, tokens: Var<'t>, form: Form, rows: Option<Var<'t>>) -> Var<'t> {
        let mut state = self.zero_state(tokens.tape(), tokens.shape().at(0));
        self.decoder.run(p, tokens, &mut state.0, form, rows)
    }

    /// Logits of the next tokens [B, T] of a sequence, moving its state on. With T = 1 this is streaming inference.
    ///
    /// # Panics
    /// As [`Model::forward`].
    #[track_caller]
    pub fn run<'t>(&self, p: &Bound<'t>, tokens: Var<'t>, state: &mut ModelState<'t>, form: Form) -> Var<'t> {
        self.decoder.run(p, tokens, &mut state.0, form, None)
    }
}
