//! A sequence read one token at a time, from the carried state.

use super::{Form, Model, Positions, Variant};
use crate::{
    autograd::{Kernels, Tape},
    error::{Error, Result},
    tensor::Tensor,
};

/// How many tokens [`Stream::read`] runs at once.
const AT_ONCE: usize = 256;

/// A model at some place in a sequence. A token costs one step and no memory, but for caches, of attention and of
/// n-gram heads, which grow.
pub struct Stream<'m> {
    model: &'m Model,
    tape: Tape,
    /// The carried tensors of each block.
    state: Vec<Vec<Tensor>>,
    /// How many tokens were read.
    t: usize,
}

impl<'m> Stream<'m> {
    /// Before the first token.
    pub fn new(model: &'m Model) -> Stream<'m> {
        Stream::with_kernels(model, Kernels::Fast)
    }

    /// The same, computed by these kernels.
    pub fn with_kernels(model: &'m Model, kernels: Kernels) -> Stream<'m> {
        let tape = Tape::default().with_kernels(kernels);
        let state = model.zero_state(&tape, 1).tensors();
        Stream { model, tape, state, t: 0 }
    }

    /// The logits after one more token: one for each class.
    ///
    /// # Errors
    /// When the token is not in the vocabulary, no position is left in a table of positions, or the model is a
    /// published one that cannot read token by token: most carry no state, positions begin anew with every token, and
    /// the quasi-LSTM takes whole blocks.
    pub fn next(&mut self, token: i32) -> Result<Vec<f64>> {
        self.check(&[token])?;
        Ok(self.run(&[token], Form::Recurrent))
    }

    /// The logits after these tokens, many at once. No tokens have no logits.
    ///
    /// # Errors
    /// As [`Stream::next`]; then none of them is read.
    pub fn read(&mut self, tokens: &[i32]) -> Result<Vec<f64>> {
        if tokens.is_empty() {
            return Ok(vec![]);
        }
        self.check(tokens)?;
        // Whole blocks of a model that takes no others.
        let at_once = (1..=AT_ONCE).rev().find(|&n| self.model.check_len(n).is_ok()).unwrap_or(AT_ONCE);
        let form = self.model.default_form().on(self.tape.cx().device());
        Ok(tokens.chunks(at_once).fold(vec![], |_, part| self.run(part, form)))
    }

    /// How many tokens were read.
    pub fn tokens(&self) -> usize {
        self.t
    }

    /// How many more tokens there are positions for; none if there is no end.
    pub fn left(&self) -> Option<usize> {
        let config = self.model.config();
        (config.positions != Positions::None).then(|| config.max_len.saturating_sub(self.t))
    }

    /// The bytes of the carried state.
    pub fn state_bytes(&self) -> usize {
        self.state.iter().flatten().map(|tensor| tensor.shape().len() * tensor.dtype().bytes()).sum()
    }

    /// See that all of these tokens can be read.
    fn check(&self, tokens: &[i32]) -> Result<()> {
        let config = self.model.config();
        if config.variant == Variant::Published && self.state.iter().all(Vec::is_empty) {
            let remedy = "give all tokens at once to Model::forward, or use the clean mixer, of variant = \"clean\"";
            let what = format!("the published {} carries no state from token to token: {remedy}", config.mixer);
            return Err(Error::Config(what));
        }
        if config.variant == Variant::Published && config.positions != Positions::None {
            let what = format!("positions of the published {} begin anew with every token that is read", config.mixer);
            return Err(Error::Config(format!("{what}; use the clean mixer, of variant = \"clean\"")));
        }
        self.model.check_len(tokens.len())?;
        let vocab = config.vocab;
        if let Some(token) = tokens.iter().find(|&&x| usize::try_from(x).map_or(true, |x| x >= vocab)) {
            return Err(Error::Config(format!("token {token}: expected one of the {vocab} from 0 on")));
        }
        if let Some(left) = self.left().filter(|&left| left < tokens.len()) {
            let (n, max) = (tokens.len(), self.t + left);
            let what = format!("{n} tokens where {left} of the model's {max} positions are left");
            return Err(Error::Config(format!(
                "{what}; read fewer, or build it with a larger max_len or other positions"
            )));
        }
        Ok(())
    }

    /// The logits after these tokens, which were checked.
    fn run(&mut self, tokens: &[i32], form: Form) -> Vec<f64> {
        let params = self.model.params().bind_frozen(&self.tape);
        let mut state = self.model.state_from(&self.tape, self.t, &self.state);
        let x = self.tape.constant(&Tensor::from_vec(tokens.to_vec(), [1, tokens.len()]));
        let logits = self.model.run(&params, x, &mut state, form);
        let [_, t, classes] = logits.dims();
        let last = logits.narrow(1, t - 1, 1).value().to_f64();
        debug_assert_eq!(last.len(), classes);
        self.state = state.tensors();
        self.t += tokens.len();
        drop((params, state));
        self.tape.reset();
        last
    }
}
