//! Recall against state: one layer, and ten rules for the memory in it. Whatever else makes a mixer differ from the
//! next (features, gates on the output, its own convolutions) is the same for all, and so is the size of the state, but for a
//! cache's.
//!
//! ```text
//! q_t, k_t, v_t = SiLU(conv(W_{q,k,v} x_t)),  k ← k/‖k‖                  per head, as in DeltaNet
//! β_t = σ(W_β x_t),  α_t = exp(−softplus(W_α x_t + b))                   α is 0.99 at the start
//! o_t = S_tᵀ q_t                                                         S_t by the rule, see `Rule`
//! y_t = W_o RMSNorm(o_t)                                                 norm per head
//! ```
//!
//! cargo run --release --example recall
//!
//! checks that all forms of every rule agree, but of `levels`, which tests/fading_memories.rs has. With arguments it is
//! the program `tapezoo`, which has these ten mixers more; docs/zoo_results.md has what they learned:
//!
//! cargo run --release --example recall -- train --config examples/recall.toml --task mqar --pairs 4

use std::{env, error::Error, process::ExitCode};
use tapezoo::{
    check, cli,
    models::{
        self, Bound, Form, Init, Mixer, ModelConfig, gpt, gsa, kda, log_linear, memories::gated, mom, prelude::*,
    },
    ops::attention::causal_attention,
};

/// A memory. S_t is [K, V]; K = V, but where another number is said, and with it K² numbers of state.
#[derive(Clone, Copy, PartialEq)]
enum Rule {
    /// S_t = S_{t-1} + k_t v_tᵀ
    Identity,
    /// S_t = α_t S_{t-1} + k_t v_tᵀ
    Scalar,
    /// S_t = diag(α_t) S_{t-1} + k_t v_tᵀ
    Diagonal,
    /// S_t = (I − β_t k_t k_tᵀ) S_{t-1} + β_t k_t v_tᵀ
    Delta,
    /// S_t = α_t (I − β_t k_t k_tᵀ) S_{t-1} + β_t k_t v_tᵀ
    DeltaScalar,
    /// S_t = (I − β_t k_t k_tᵀ) diag(α_t) S_{t-1} + β_t k_t v_tᵀ
    DeltaDiagonal,
    /// Softmax attention to K / 2 slots, with a key and a value each, as in [`gsa`].
    Slots,
    /// Four memories of K / 2 × K / 2 with the rule [`DeltaScalar`](Rule::DeltaScalar), each token routed to two, as in
    /// [`mom`].
    Memories,
    /// [`Scalar`](Rule::Scalar) over each of log T stretches of the past, as in [`log_linear`].
    Levels,
    /// Softmax attention to all tokens so far: 2 K numbers a token.
    Cache,
}

use Rule::*;

/// The names of the rules as mixers. What builds a mixer is a function, which captures no rule, hence a macro.
macro_rules! rules {
    ($($name:literal $rule:ident)*) => {
        const RULES: &[(&str, Rule)] = &[$(($name, $rule)),*];

        fn add_all() {
            $(models::add($name, |c, init| Ok(Box::new(Layer::new($rule, c, init)?)));)*
        }
    };
}

rules! {
    "identity" Identity
    "scalar" Scalar
    "diagonal" Diagonal
    "delta" Delta
    "delta_scalar" DeltaScalar
    "delta_diagonal" DeltaDiagonal
    "slots" Slots
    "memories" Memories
    "levels" Levels
    "cache" Cache
}

/// The stretches of the past that [`Levels`] tells apart: enough for 64 tokens. Those before are forgotten.
const LEVELS: [&str; 7] = ["S_0", "S_1", "S_2", "S_3", "S_4", "S_5", "S_6"];
/// The memories that a token is routed to one half of.
const MEMORIES: usize = 4;
/// The root that is taken of the slots' gates, as in [`gsa`].
const ROOT: f64 = 8.0;

struct Layer {
    rule: Rule,
    h: usize,
    k: usize,
    qkv: [Projection; 3],
    alpha: [P; 2],  // W_α, b
    w_beta: P,      // W_β
    choice: [P; 2], // of a slot, a memory or a level
    output: [P; 2], // the norm's weights, W_o
}

impl Layer {
    fn new(rule: Rule, c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        let (h, numbers) = (c.heads, c.head_dim * c.head_dim);
        let k = match rule {
            Memories => c.head_dim / 2,
            Levels => (numbers / LEVELS.len()).isqrt(),
            _ => c.head_dim,
        };
        let (width, sized) = (c.width, ModelConfig { head_dim: k, ..c.clone() });
        let memories = if rule == Memories { MEMORIES } else { 1 };
        let gates = memories * h * if matches!(rule, Diagonal | DeltaDiagonal) { k } else { 1 };
        let choices = match rule {
            Slots => h * c.head_dim / 2,
            Memories => MEMORIES,
            Levels => h * LEVELS.len(),
            _ => 1,
        };
        Ok(Layer {
            rule,
            h,
            k,
            qkv: [("q", 1), ("k", memories), ("v", memories)]
                .map(|(name, parts)| Projection::new(name, parts, &sized, init)),
            alpha: [narrow_normal(init, "w_alpha", gates, width), init.full("b_alpha", [gates], 0.01f64.exp_m1().ln())],
            w_beta: narrow_normal(init, "w_beta", memories * h, width),
            // softplus(b) = 1 of a level.
            choice: [
                narrow_normal(init, "w_choice", choices, width),
                init.full("b_choice", [choices], 1f64.exp_m1().ln()),
            ],
            output: [init.full("norm", [k], 1.0), narrow_normal(init, "w_o", width, h * k)],
        })
    }

    /// How many entries of the state are the memory's; windows of the convolutions come behind.
    fn entries(&self) -> usize {
        match self.rule {
            Slots | Cache => 2,
            Levels => LEVELS.len(),
            _ => 1,
        }
    }

    /// o [B, T, H, V] of x [B, T, D], and the memory behind it.
    fn read<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let ([b, t, _], &Layer { rule, h, .. }) = (x.dims(), self);
        let [q, k, v] = std::array::from_fn(|j| self.qkv[j].apply(p, x, state, self.entries() + j));
        let g = || -x.linear(p[self.alpha[0]], Some(p[self.alpha[1]])).softplus();
        let beta = || x.linear(p[self.w_beta], None).sigmoid();
        let chosen = || x.linear(p[self.choice[0]], None);
        let none = || x.tape().full([b, t, h, 1], x.dtype(), 0.0);
        let unit = |k: Var<'t>| k.l2_norm_smooth(1e-6);
        if rule == Memories {
            let parts = |x: Var<'t>| x.reshape([b, t, MEMORIES, h, x.shape().last() / (MEMORIES * h)]);
            let numbers = |x: Var<'t>| x.reshape([b, t, MEMORIES, h]);
            let inputs = [heads(q, h), unit(parts(k)), parts(v), numbers(beta()), numbers(g()), chosen()];
            let (o, s) = mom::read(inputs, MEMORIES / 2, state.s[0], 1.0, form);
            state.s[0] = s;
            return o;
        }
        let [q, k, v] = [heads(q, h), unit(heads(k, h)), heads(v, h)];
        let (o, s) = match rule {
            Identity => gated([q, k, v, none()], state.s[0], 1.0, form),
            Scalar | Diagonal => gated([q, k, v, heads(g(), h)], state.s[0], 1.0, form),
            Delta => kda::sequence([q, k, v, beta(), none()], state.s[0], 1.0, form),
            DeltaScalar | DeltaDiagonal => kda::sequence([q, k, v, beta(), heads(g(), h)], state.s[0], 1.0, form),
            Slots => {
                let g = heads(1.0 / ROOT * log_sigmoid(chosen()), h);
                let mut slots = [state.s[0], state.s[1]];
                let o = gsa::attention([q, k, v, -g.expm1(), g], &mut slots, 1.0, form);
                state.s[1] = slots[1];
                (o, slots[0])
            }
            Levels => {
                let lambda = heads(x.linear(p[self.choice[0]], Some(p[self.choice[1]])).softplus(), h);
                let (inputs, begun) = ([q, k, v, g(), lambda], state.t);
                let states = &mut state.s[..LEVELS.len()];
                // The parallel form begins with no state.
                if form == Form::Recurrent || begun > 0 {
                    return log_linear::recurrent(inputs, states, begun, 1.0);
                }
                states.copy_from_slice(&log_linear::states(k, v, inputs[3], LEVELS.len()));
                return log_linear::attention(inputs, 1.0);
            }
            Cache => {
                let (keys, values) = (Var::concat(&[state.s[0], k], 1), Var::concat(&[state.s[1], v], 1));
                state.s[1] = values;
                let o = if form == Form::Parallel {
                    gpt::parallel(q, keys, values, 1.0)
                } else {
                    causal_attention(q, keys, values, 1.0)
                };
                (o, keys)
            }
            Memories => unreachable!("has its own shapes, above"),
        };
        state.s[0] = s;
        o
    }
}

impl Mixer for Layer {
    fn forms(&self) -> Vec<Form> {
        match self.rule {
            Levels => vec![Form::Recurrent, Form::Parallel],
            Cache => vec![Form::Recurrent, Form::Parallel, Form::Fused],
            _ => vec![Form::Recurrent, Form::Parallel, Form::Chunked(Form::CHUNK)],
        }
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        let Layer { h, k, .. } = *self;
        let matrix = |name, h, rows| (name, Shape::from([b, h, rows, k]));
        let own = match self.rule {
            Slots => vec![("slot keys", Shape::from([b, h, k, k / 2])), matrix("slot values", h, k / 2)],
            Memories => vec![matrix("S", MEMORIES * h, k)],
            Levels => LEVELS.map(|name| matrix(name, h, k)).to_vec(),
            Cache => ["keys", "values"].map(|name| (name, Shape::from([b, 0, h, k]))).to_vec(),
            _ => vec![matrix("S", h, k)],
        };
        own.into_iter().chain(Projection::windows(&self.qkv, b)).collect()
    }

    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let o = self.read(p, x, state, form);
        normed_output(o, p[self.output[0]], None, p[self.output[1]])
    }
}

fn main() -> std::result::Result<ExitCode, Box<dyn Error>> {
    if env::args().len() > 1 {
        add_all();
        return Ok(cli::tapezoo());
    }
    for &(name, rule) in RULES {
        if rule == Levels {
            println!("{name}: its forms begin with no memory; tests/fading_memories.rs has them side by side");
            continue;
        }
        let config =
            ModelConfig { mixer: name.into(), width: 6, heads: 2, head_dim: 6, conv: 3, ..ModelConfig::default() };
        check::mixer(&config, |c, init| Layer::new(rule, c, init))?;
        println!("{name}: all forms agree, in values, states and gradients");
    }
    Ok(ExitCode::SUCCESS)
}
