//! The decoder of all published models but the LRU:
//!
//! ```text
//! x = Embedding[token] √h                         N(0, 0.02²), not tied to the head
//! x = x + Position[0 … T-1]                       GPT, linear transformer and DeltaNet only; learned
//! for each block:   x = x + Mixer(LN₁(x))
//!                   x = x + W₂ gelu(W₁ LN₂(x) + b₁) + b₂             not in Mamba
//! logits = W_out LN_f(x)
//! ```

use super::{Config, Init, Output, Part, Pass};
use crate::{
    autograd::Var,
    models::{Form, Positions, State, positions},
};

/// The differences between the models.
pub(super) struct Decoder {
    /// Whether learned positions are added, unless the configuration asks for others.
    pub positions: bool,
    /// Whether blocks have an MLP.
    pub mlp: bool,
    /// The name of a block's mixer: "attn", "rnn", "mamba".
    pub mixer: &'static str,
}

impl Decoder {
    /// Declare the parameters; `mixer` declares those of a block's mixer.
    pub fn init(&self, c: &Config, init: &mut Init, mixer: fn(&Config, &mut Init)) {
        let (width, hidden) = (c.h_dim, c.mlp_dim);
        init.normal("input_embedding.weight", [c.num_input_classes, width], c.std);
        // DEFECT: training at T tokens never trains the rows from T on, so a longer sequence meets random vectors
        // there. The clean decoder has no positions by default, or sinusoidal or rotary ones.
        if self.positions(c) == Positions::Learned {
            init.normal("position_embedding.weight", [c.max_seq_len, width], c.std);
        }
        for l in 0..c.n_layers {
            init.scope(&format!("layers.{l}"), |init| {
                init.norm("ln1", width);
                init.scope(self.mixer, |init| mixer(c, init));
                if self.mlp {
                    init.norm("ln2", width);
                    // DEFECT: standard deviation 0.02 suits width 768; at width 4 the branch starts near zero. The
                    // clean decoder's weights start with standard deviation 1/√in.
                    init.linear_std("mlp.c_fc", hidden, width, c.std);
                    init.linear_std("mlp.c_proj", width, hidden, c.std / (2.0 * c.n_layers as f64).sqrt());
                }
            });
        }
        init.norm("ln_f", width);
        init.normal("linear.weight", [c.output_size, width], c.std);
    }

    fn positions(&self, c: &Config) -> Positions {
        c.positions.unwrap_or(if self.positions { Positions::Learned } else { Positions::None })
    }

    /// Logits of tokens [B, T], with `mixer` from [B, T, h] to [B, T, h].
    #[track_caller]
    pub fn run<'t>(
        &self,
        c: &Config,
        p: &Part<'_, 't>,
        tokens: Var<'t>,
        pass: &mut Pass<'_, 't>,
        mixer: for<'m> fn(&Config, &Part<'_, 'm>, Var<'m>, &mut State<'m>, Form) -> Var<'m>,
    ) -> Output<'t> {
        let [_, t] = tokens.dims();
        let table = p.get("input_embedding.weight");
        let places = match self.positions(c) {
            Positions::Learned => {
                assert!(t <= c.max_seq_len, "position {t} is past max_seq_len = {}", c.max_seq_len);
                Some(p.get("position_embedding.weight").narrow(0, 0, t))
            }
            Positions::Sinusoidal => Some(table.tape().constant(&positions::sinusoid(t, c.h_dim, table.dtype()))),
            Positions::None | Positions::Rope => None, // the mixers rotate their queries and keys
        };
        let mut x = positions::embed(table, (c.h_dim as f64).sqrt(), tokens, places); // [B, T, h]
        for l in 0..c.n_layers {
            let p = p.part(&format!("layers.{l}"));
            x = x + mixer(c, &p.part(self.mixer), p.layer_norm("ln1", x), &mut pass.state[l], pass.form);
            if self.mlp {
                x = x + p.linear("mlp.c_proj", p.linear("mlp.c_fc", p.layer_norm("ln2", x)).gelu_tanh());
            }
        }
        Output { logits: p.linear_unbiased("linear", p.layer_norm("ln_f", x)), batch: vec![] }
    }
}
