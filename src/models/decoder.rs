//! The decoder that every mixer lives in:
//!
//! ```text
//! x = Embedding[token] √D (+ positions)
//! for each block:   x = x + Mixer(LayerNorm(x))
//!                   x = x + NGram_n(LayerNorm(x)),  n = 1 …                in the first, where there are n-gram heads
//!                   x = x + W₂ gelu(W₁ LayerNorm(x) + b₁) + b₂        where there is an MLP
//! logits = W_out LayerNorm(x)
//! ```
//!
//! as in the published experiment (swiss-ai/modern_rnns), except that no mixer sees the future or the batch's other
//! sequences.

use super::{Bound, Builder, Form, Init, Mixer, ModelConfig, P, Positions, State, ngram, positions, run};
use crate::{
    autograd::{Tape, Var},
    error::Result,
    tensor::{DType, Tensor},
};
use std::sync::Arc;

pub(super) struct LayerNorm {
    w: P,
    b: P,
}

impl LayerNorm {
    pub fn new(width: usize, init: &mut Init) -> LayerNorm {
        LayerNorm { w: init.full("w", [width], 1.0), b: init.full("b", [width], 0.0) }
    }

    pub fn apply<'t>(&self, p: &Bound<'t>, x: Var<'t>) -> Var<'t> {
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
    /// None but in the first block.
    ngrams: ngram::Heads,
    mlp: Option<Mlp>,
    /// "blocks.0.mixer", "blocks.0.ngram" and "blocks.0.mlp", for errors.
    names: [Arc<str>; 3],
}

/// The decoder: handles to its parameters, and the mixers.
pub(super) struct Decoder {
    width: usize,
    max_len: usize,
    embedding: P,
    /// Learned positions are a parameter, sinusoidal ones a table.
    learned: Option<P>,
    table: Option<Tensor>,
    /// Every id as a number [V, 1], where n-gram heads compare them.
    numbers: Option<Tensor>,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: P,
    names: [Arc<str>; 2],
}

impl Decoder {
    /// Declare all parameters; `build` builds the mixer of each block.
    pub fn new(c: &ModelConfig, build: Builder, init: &mut Init, dtype: DType) -> Result<Decoder> {
        let std = c.init_std.unwrap_or((c.width as f64).powf(-0.5));
        let embedding = init.normal("embedding", [c.vocab, c.width], std);
        let learned = (c.positions == Positions::Learned).then(|| init.normal("positions", [c.max_len, c.width], std));
        let table =
            (c.positions == Positions::Sinusoidal).then(|| positions::sinusoid(c.max_len, c.width, dtype.real()));
        let numbers = (c.ngram > 0).then(|| {
            let ids = (0..c.vocab).map(|id| id as f64).collect();
            Tensor::from_vec::<f64>(ids, [c.vocab, 1]).cast(dtype.real())
        });
        let mut blocks = vec![];
        for l in 0..c.layers {
            init.layer = l;
            blocks.push(init.scope(&format!("blocks.{l}"), |init| -> Result<Block> {
                Ok(Block {
                    norm: init.scope("norm", |i| LayerNorm::new(c.width, i)),
                    mixer: {
                        let mixer = init.scope("mixer", |i| build(c, i))?;
                        c.check_capabilities(mixer.as_ref())?;
                        mixer
                    },
                    ngrams: ngram::Heads::new(if l == 0 { c.ngram } else { 0 }, c.width, init),
                    mlp: (c.mlp > 0).then(|| init.scope("mlp", |i| Mlp::new(c, i))),
                    names: ["mixer", "ngram", "mlp"].map(|part| format!("blocks.{l}.{part}").into()),
                })
            })?);
        }
        let norm = init.scope("norm", |i| LayerNorm::new(c.width, i));
        let head = init.linear("head", c.classes, c.width);
        let names = ["embedding".into(), "head".into()];
        let (width, max_len) = (c.width, c.max_len);
        Ok(Decoder { width, max_len, embedding, learned, table, numbers, blocks, norm, head, names })
    }

    /// The mixers, one per block.
    pub fn mixers(&self) -> impl Iterator<Item = &dyn Mixer> {
        self.blocks.iter().map(|b| b.mixer.as_ref())
    }

    /// The blocks' states before the first token: the mixer's, and behind it that of the n-gram heads.
    pub fn zero_state<'t>(&self, tape: &'t Tape, b: usize, dtype: DType) -> Vec<State<'t>> {
        let zero = |block: &Block| {
            let mut state = State::zero(block.mixer.as_ref(), tape, b, dtype);
            if !block.ngrams.is_empty() {
                // Ids are whole numbers, which bf16 does not have beyond 256.
                state.s.push(tape.full([b, 0], dtype.real(), 0.0));
                state.s.extend(block.ngrams.state(b, self.width).into_iter().map(|shape| tape.full(shape, dtype, 0.0)));
            }
            state
        };
        self.blocks.iter().map(zero).collect()
    }

    /// Logits [B, T, classes] of tokens [B, T]; updates the blocks' states. With `rows` `[R]`, indices into `[B T]`,
    /// only the logits [R, classes] of these positions: after the last mixer no token needs another.
    #[track_caller]
    pub fn run<'t>(
        &self,
        p: &Bound<'t>,
        tokens: Var<'t>,
        state: &mut [State<'t>],
        form: Form,
        rows: Option<Var<'t>>,
    ) -> Var<'t> {
        let tape = tokens.tape();
        let [b, t] = tokens.dims();
        let t0 = state.first().map_or(0, |s| s.t);
        tape.scope(&self.names[0]);
        if self.learned.is_some() || self.table.is_some() {
            assert!(t0 + t <= self.max_len, "position {} is past max_len = {}", t0 + t, self.max_len);
        }
        let dtype = p[self.embedding].dtype();
        let places = match &self.table {
            Some(table) => Some(tape.constant(&table.window(t0 * self.width, [t, self.width])).cast(dtype)),
            None => self.learned.map(|learned| p[learned].narrow(0, t0, t)),
        };
        let mut x = positions::embed(p[self.embedding], (self.width as f64).sqrt(), tokens, places); // [B, T, D]
        let asked = |x: Var<'t>| rows.map_or(x, |rows| x.reshape([b * t, self.width]).embedding(rows)); // [R, D]
        let mut passed = None;
        for (l, (block, s)) in self.blocks.iter().zip(state).enumerate() {
            tape.scope(&block.names[0]);
            s.passed = passed;
            // A mixer knows its own state alone.
            let mut behind = if block.ngrams.is_empty() { vec![] } else { s.s.split_off(block.mixer.state(b).len()) };
            x = x + run(block.mixer.as_ref(), p, block.norm.apply(p, x).named("input"), s, form);
            passed = s.passed.take();
            if let Some(numbers) = self.numbers.as_ref().filter(|_| !behind.is_empty()) {
                tape.scope(&block.names[1]);
                let ids = tape.constant(numbers).embedding(tokens).reshape([b, t]);
                x = block.ngrams.run(p, ids, x, &mut behind, form);
                s.s.append(&mut behind);
            }
            if l + 1 == self.blocks.len() {
                x = asked(x);
            }
            if let Some(mlp) = &block.mlp {
                tape.scope(&block.names[2]);
                x = x + mlp.apply(p, x);
            }
        }
        tape.scope(&self.names[1]);
        self.norm.apply(p, x).linear(p[self.head], None)
    }
}
