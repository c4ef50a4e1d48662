//! The clean decoder by its formula, the values that training begins with, the state that training carries, and gates
//! and stretches that no other test sees.
#![allow(clippy::unwrap_used)]

mod close;
mod machine;

use close::{all_close, close};
use machine::Machine;
use std::{collections::HashMap, f64::consts};
use tapezoo::{
    autograd::{Gen, Tape, Var},
    models::{Bound, Eigenvalues, Form, Mixer, Model, ModelConfig, Positions, State},
    tensor::{DType, Shape, Tensor},
};

/// A mixer that returns its input.
struct Identity;

impl Mixer for Identity {
    fn state(&self, _: usize) -> Vec<(&'static str, Shape)> {
        vec![]
    }

    fn sequence<'t>(&self, _: &Bound<'t>, x: Var<'t>, _: &mut State<'t>, _: Form) -> Var<'t> {
        x
    }
}

/// The weights of a model by name.
fn weights(model: &Model) -> HashMap<String, Vec<f64>> {
    model.params().tensors().map(|(name, t)| (name.to_string(), t.to_f64())).collect()
}

/// Weights away from 0 and 1, for every term to be seen.
fn moved(mut model: Model) -> Model {
    let mut g = Gen::new(4);
    model.params_mut().flat_mut().host_mut::<f64>().iter_mut().for_each(|w| *w += 0.3 * g.gauss());
    model
}

/// W x + b, of W [out, in] in rows.
fn affine(w: &[f64], x: &[f64], b: &[f64]) -> Vec<f64> {
    w.chunks(x.len()).zip(b).map(|(row, b)| b + row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>()).collect()
}

fn layer_norm(x: &[f64], w: &[f64], b: &[f64]) -> Vec<f64> {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    (0..x.len()).map(|i| (x[i] - mean) / (variance + 1e-5).sqrt() * w[i] + b[i]).collect()
}

fn gelu(x: &f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
}

/// x = √D E[token] + positions; x = x + Mixer(LN x), x = x + W₂ gelu(W₁ LN x + b₁) + b₂ in every block; W LN x.
#[test]
fn the_decoder_is_its_formula() {
    for positions in [Positions::None, Positions::Learned, Positions::Sinusoidal] {
        let (vocab, classes, width, layers) = (3, 5, 4, 2);
        let sizes = ModelConfig { mixer: "identity".into(), mlp: 3, max_len: 8, positions, ..ModelConfig::default() };
        let c = ModelConfig { vocab, classes, width, layers, ..sizes };
        let model = moved(Model::with_mixer(&c, |_, _| Ok(Identity), 0, DType::F64).unwrap());
        let (w, tokens) = (weights(&model), [2usize, 0, 1, 1]);
        let tape = Tape::default();
        let ids = tape.constant(&Tensor::from_vec(tokens.map(|id| id as i32).to_vec(), [1, 4]));
        let logits = model.forward(&model.params().bind_frozen(&tape), ids, Form::Parallel).value().to_f64();
        for (t, token) in tokens.into_iter().enumerate() {
            let place = match positions {
                Positions::Learned => w["positions"][width * t..][..width].to_vec(),
                // The angles of width 4: t and t / 10000^(2/4).
                Positions::Sinusoidal => [t as f64, t as f64 / 100.0].iter().flat_map(|a| [a.sin(), a.cos()]).collect(),
                _ => vec![0.0; width],
            };
            let row = &w["embedding"][width * token..][..width];
            let mut x: Vec<f64> = row.iter().zip(&place).map(|(e, place)| 2.0 * e + place).collect();
            for l in 0..layers {
                let of = |name: &str| &w[&format!("blocks.{l}.{name}")][..];
                let normed = |x: &[f64], norm: &str| layer_norm(x, of(&format!("{norm}.w")), of(&format!("{norm}.b")));
                let y = normed(&x, "norm");
                x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
                let h: Vec<f64> =
                    affine(of("mlp.w1"), &normed(&x, "mlp.norm"), of("mlp.b1")).iter().map(gelu).collect();
                let y = affine(of("mlp.w2"), &h, of("mlp.b2"));
                x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
            }
            let want = affine(&w["head"], &layer_norm(&x, &w["norm.w"], &w["norm.b"]), &vec![0.0; classes]);
            all_close(&logits[classes * t..][..classes], &want, 1e-10, format_args!("{positions:?}, token {t}"));
        }
    }
}

fn mean(x: impl ExactSizeIterator<Item = f64>) -> f64 {
    let n = x.len() as f64;
    x.sum::<f64>() / n
}

/// LRU: |λ|² uniform in [r_min², r_max²], the phase uniform, γ = √(1 - |λ|²). Mamba: A = -1 … -N in every channel, and Δ
/// log-uniform in [0.001, 0.1].
#[test]
fn rates_begin_where_their_papers_put_them() {
    let begin = |mixer: &str, sizes: ModelConfig| {
        weights(&Model::new(&ModelConfig { mixer: mixer.into(), layers: 1, ..sizes }, 3, DType::F64).unwrap())
    };
    let w = begin("lru", ModelConfig { state: 4096, r_min: 0.9, r_max: 0.99, ..ModelConfig::default() });
    let of = |name: &str| w[&format!("blocks.0.mixer.{name}")].iter();
    let squares: Vec<f64> = of("nu_log").map(|nu| (-2.0 * nu.exp()).exp()).collect();
    assert!(squares.iter().all(|x| (0.8099..0.9802).contains(x)), "{squares:?}");
    close(mean(squares.iter().copied()), (0.81 + 0.9801) / 2.0, 4e-3, "the mean of |λ|²");
    let quarter = squares.iter().filter(|&&x| x < 0.81 + 0.1701 / 4.0).count();
    close(quarter as f64 / 4096.0, 0.25, 0.03, "the lowest quarter");
    close(mean(of("theta_log").map(|theta| theta.exp())), consts::PI, 0.03, "the mean phase");
    for (gamma, square) in of("gamma_log").zip(&squares) {
        close(gamma.exp(), (1.0 - square).sqrt(), 1e-4, "γ");
    }

    let w = begin("mamba", ModelConfig { width: 256, state: 5, ..ModelConfig::default() });
    let of = |name: &str| &w[&format!("blocks.0.mixer.{name}")][..];
    for row in of("A_log").chunks(5) {
        all_close(row, &[1.0f64, 2.0, 3.0, 4.0, 5.0].map(f64::ln), 1e-6, "ln -A");
    }
    let dt: Vec<f64> = of("dt_proj_bias").iter().map(|b| b.exp().ln_1p()).collect();
    assert!(dt.iter().all(|dt| (0.999e-3..0.1001).contains(dt)), "{dt:?}");
    close(mean(dt.iter().map(|dt| dt.ln())), 0.01f64.ln(), 0.05, "the mean of ln Δ");
    assert!(of("D").iter().all(|&d| d == 1.0));
}

/// Weights of the decoder: of deviation 1/√in, and the last of a residual branch smaller by √(2 L); all of `init_std`, if
/// it is set.
#[test]
fn weights_begin_with_the_deviation_of_their_rule() {
    let sizes =
        || ModelConfig { mixer: "lstm".into(), width: 64, mlp: 100, vocab: 64, classes: 64, ..Default::default() };
    let layers = sizes().layers as f64;
    for (init_std, embedding, head, w1, w2) in [(None, 0.125, 0.125, 0.125, 0.1), (Some(0.5), 0.5, 0.5, 0.5, 0.5)] {
        let w = weights(&Model::new(&ModelConfig { init_std, ..sizes() }, 3, DType::F64).unwrap());
        let w2 = w2 / (2.0 * layers).sqrt();
        for (name, want) in [("embedding", embedding), ("head", head), ("blocks.0.mlp.w1", w1), ("blocks.1.mlp.w2", w2)]
        {
            let deviation = mean(w[name].iter().map(|w| w * w)).sqrt();
            close(deviation, want, 0.06 * want, format_args!("{name}, {init_std:?}"));
        }
    }
}

/// Two halves of a sequence as two batches: with the state carried, the second has the answers that it has in the whole.
#[test]
fn a_carried_state_goes_on_where_the_batch_before_ended() {
    let tokens: Vec<i32> = (0..24).map(|i| i * i % 7 % 2).collect();
    for name in ["lstm", "quasi_lstm", "lru", "mamba", "delta_net", "retnet", "slstm", "mlstm", "rwkv7", "titans"] {
        let c = ModelConfig { mixer: name.into(), width: 8, heads: 2, head_dim: 4, state: 4, ..ModelConfig::default() };
        let mut model = moved(Model::new(&ModelConfig { carry_state: true, ..c }, 3, DType::F64).unwrap());
        let form = model.default_form();
        let ids = |tokens: &[Vec<i32>]| Tensor::from_vec(tokens.concat(), [tokens.len(), tokens[0].len()]);
        let rows: Vec<Vec<i32>> = tokens.chunks(12).map(<[i32]>::to_vec).collect();
        let whole = {
            let tape = Tape::default();
            let p = model.params().bind_frozen(&tape);
            model.forward(&p, tape.constant(&ids(&rows)), form).value().to_f64()
        };
        for half in 0..2 {
            let tape = Tape::default();
            let p = model.params().bind_frozen(&tape);
            let part: Vec<Vec<i32>> = rows.iter().map(|row| row[6 * half..][..6].to_vec()).collect();
            let y = model.train(&p, tape.constant(&ids(&part)), form, None).value().to_f64();
            for (b, y) in y.chunks(12).enumerate() {
                all_close(y, &whole[24 * b + 12 * half..][..12], 1e-8, format_args!("{name}, row {b}, half {half}"));
            }
        }
    }
}

const ONE: [f32; 4] = [1.0, 0.0, 0.0, 1.0];

/// One head of two channels over two one-hot tokens; every weight is zero until it is set.
fn two(name: &str) -> Machine {
    let sizes = ModelConfig { heads: 1, head_dim: 2, ..ModelConfig::default() };
    Machine::new(name, Eigenvalues::Positive, sizes).set("w_o", &ONE)
}

/// TransNormer's first half: scores below zero count for nothing, and nothing is seen of the stretch of 32 before.
#[test]
fn transnormer_attends_within_its_stretch_and_to_no_negative_score() {
    let attention = |q: [f32; 2]| {
        // The query and the key of a token are q[token], and its value says which token it is.
        let w = [q[0], q[1], 0.0, 0.0, q[0], q[1], 0.0, 0.0, 1.0, 0.0, 0.0, 1.0];
        two("transnormer").set("w_qkv", &w).set("norm", &[1.0; 2])
    };
    for piece in [1, 33, 64] {
        let y = attention([1.0, -1.0]).outputs(&[0, 1], Form::Parallel, piece);
        assert_eq!(y[1], 0.0, "the score of the first token is negative");
        let tokens = [vec![1; 16], vec![0; 48]].concat();
        let y = attention([1.0, 1.0]).outputs(&tokens, Form::Parallel, piece);
        close(y[31].into(), 1.0, 1e-5, "as many of either token in the stretch");
        close(y[32].into(), consts::SQRT_2, 1e-5, "the first of the next stretch sees itself alone");
    }
}

/// Where o is normed to ones, the output is the gate: SiLU in RetNet, and a sigmoid in FoX.
#[test]
fn gates_of_the_output_are_their_functions() {
    let sigmoid = 1.0 / (1.0 + (-2f64).exp());
    let retnet = two("retnet");
    let fox = two("fox").set("q_norm", &[1.0; 2]).set("k_norm", &[1.0; 2]).set("norm", &[1.0; 2]);
    for (name, machine, gate) in [("retnet", retnet, 2.0 * sigmoid), ("fox", fox, sigmoid)] {
        let machine = machine.set("w_qkv", &[1.0; 12]).set("w_g", &[2.0; 4]);
        close(machine.outputs(&[0], Form::Parallel, 1)[0].into(), gate, 1e-5, name);
    }
}
