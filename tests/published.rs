//! The published models' defects, stated as facts. The fixtures in `tests/fixtures/published` show that the models
//! agree with the published code.
#![allow(clippy::unwrap_used)]

mod close;

use approx::relative_eq;
use close::{all_close, close};
use std::panic::catch_unwind;
use tapezoo::{
    autograd::{Gen, Tape, Var},
    models::{
        Form, delta_net, linear_transformer,
        published::{self, Config, Defect, Published},
    },
    tensor::{DType, Device, Tensor},
    train::optimizer::{Adam, AdamConfig, Rule},
};

const B: usize = 3;
const T: usize = 16;

fn config(model: &str) -> Config {
    Config { model: model.into(), d_model: 12, max_seq_len: 64, ..Config::default() }
}

fn tokens(seed: u64) -> Vec<i32> {
    let mut g = Gen::new(seed);
    (0..B * T).map(|_| g.below(2) as i32).collect()
}

/// A model whose weights are large enough for every effect to be seen.
fn model(name: &str) -> Published {
    model_of(&config(name))
}

fn model_of(config: &Config) -> Published {
    let mut m = Published::new(config, 3, DType::F64).unwrap();
    let mut g = Gen::new(4);
    for x in m.params_mut().flat_mut().host_mut::<f64>() {
        *x += 0.3 * g.gauss();
    }
    m
}

/// Logits of tokens [B, T], flat.
fn logits(m: &mut Published, tokens: &[i32], training: bool) -> Vec<f64> {
    let tape = Tape::new(Device::Cpu);
    let p = m.params().bind_frozen(&tape);
    let x = tape.constant(&Tensor::from_vec(tokens.to_vec(), [B, T]));
    let s = &mut published::zero_state(m.config(), &tape, B, DType::F64);
    let form = Form::Recurrent;
    let y = if training { m.train(&p, x, s, form) } else { m.evaluate(&p, x, s, form) };
    y.unwrap().value().to_f64()
}

/// The positions of each row whose logits change with token 12 of row 0.
fn reach(name: &str, training: bool) -> [Vec<usize>; B] {
    reach_of(model(name), training)
}

fn reach_of(mut m: Published, training: bool) -> [Vec<usize>; B] {
    let mut x = tokens(5);
    let before = logits(&mut m, &x, training);
    x[12] ^= 1;
    let after = logits(&mut m, &x, training);
    std::array::from_fn(|b| {
        (0..T).filter(|t| (0..2).any(|c| before[(b * T + t) * 2 + c] != after[(b * T + t) * 2 + c])).collect()
    })
}

#[test]
fn models_without_such_a_defect_see_the_past_of_their_own_row_alone() {
    for name in ["lstm", "quasi_lstm", "linear_transformer", "gpt", "delta_net"] {
        for training in [true, false] {
            assert_eq!(reach(name, training), [(12..T).collect(), vec![], vec![]], "{name}");
        }
    }
}

#[test]
fn mamba_sees_two_tokens_ahead_in_each_layer() {
    assert_eq!(reach("mamba", true), [(8..T).collect(), vec![], vec![]]);
}

#[test]
fn batch_norm_mixes_rows_and_future_in_training_but_not_in_evaluation() {
    let all: Vec<usize> = (0..T).collect();
    assert_eq!(reach("lru", true), [all.clone(), all.clone(), all]);
    assert_eq!(reach("lru", false), [(12..T).collect(), vec![], vec![]]);
}

/// Store the value e₁ under the key e₀, then ask for e₀: a memory gives e₁; a memory of which only the diagonal is read
/// gives 0.
#[test]
fn a_value_in_another_channel_than_its_key_is_never_read() {
    let tape = Tape::new(Device::Cpu);
    let one = |v: [f64; 2]| tape.constant(&Tensor::from_vec(v.to_vec(), [1, 1, 1, 2]));
    let (q, k, v, same) = (one([1.0, 0.0]), one([1.0, 0.0]), one([0.0, 1.0]), one([1.0, 0.0]));
    let read = |o: Var| o.value().to_f64().iter().map(|x| (x * 1e5).round() / 1e5).collect::<Vec<_>>();

    assert_eq!(read(published::linear_transformer::memory(q, k, v)), [0.0, 0.0]);
    assert_eq!(read(published::linear_transformer::memory(q, k, same)), [1.0, 0.0]);
    let zeros = |shape: &[usize]| tape.full(shape, DType::F64, 0.0);
    let mut clean = linear_transformer::Memory { s: zeros(&[1, 1, 2, 2]), z: Some((zeros(&[1, 1, 2]), 1e-6)) };
    assert_eq!(read(linear_transformer::recurrent(q, k, v, &mut clean, 1.0)), [0.0, 1.0]);

    let beta = tape.full([1, 1, 1], DType::F64, 1.0);
    assert_eq!(read(published::linear_transformer::whole_memory(q, k, v)), [0.0, 1.0]);
    assert_eq!(read(published::delta_net::whole_memory(q, k, v, beta)), [0.0, 1.0]);
    assert_eq!(read(published::delta_net::memory(q, k, v, beta)), [0.0, 0.0]);
    assert_eq!(read(published::delta_net::memory(q, k, same, beta)), [1.0, 0.0]);
    assert_eq!(read(delta_net::sequence([q, k, v, beta], zeros(&[1, 1, 2, 2]), 1.0, Form::Recurrent).0), [0.0, 1.0]);
}

/// The published code, with the whole matrix and a read of its diagonal, gives the same numbers.
#[test]
fn the_diagonal_alone_is_what_the_published_einsum_reads() {
    let (t, d) = (7, 3);
    let mut g = Gen::new(6);
    let [q, k, v]: [Vec<f64>; 3] = std::array::from_fn(|_| (0..t * d).map(|_| g.gauss().exp()).collect());
    let beta: Vec<f64> = (0..t).map(|_| g.uniform(0.0, 1.0)).collect();
    let (mut w, mut expected) = ([[0.0; 3]; 3], vec![]);
    for s in 0..t {
        let old = w;
        for i in 0..d {
            for j in 0..d {
                // einsum("bhdd,bhd->bhd", W, k) and W += beta (v − v̄) kᵀ
                w[i][j] += beta[s] * (v[s * d + i] - old[i][i] * k[s * d + i]) * k[s * d + j];
            }
        }
        expected.extend((0..d).map(|i| w[i][i] * q[s * d + i]));
    }
    let tape = Tape::new(Device::Cpu);
    let on = |x: &[f64], d| tape.constant(&Tensor::from_vec(x.to_vec(), [1, t, 1, d]));
    let o = published::delta_net::memory(on(&q, d), on(&k, d), on(&v, d), on(&beta, 1).reshape([1, t, 1]));
    all_close(&o.value().to_f64(), &expected, 1e-12, "o");
}

/// The gate 1 − β k² of the diagonal DeltaNet: −1 flips, −3.5 grows.
#[test]
fn delta_net_without_normalised_keys_flips_and_grows() {
    for (key, factor) in [(2.0, -1.0), (3.0, -3.5)] {
        let tape = Tape::new(Device::Cpu);
        let row = |v: &[f64]| tape.constant(&Tensor::from_vec(v.to_vec(), [1, 4, 1, 1]));
        // First w = ½ · 2 · 1 = 1, then only keys.
        let (q, k, v) = (row(&[1.0; 4]), row(&[2.0, key, key, key]), row(&[1.0, 0.0, 0.0, 0.0]));
        let o = published::delta_net::memory(q, k, v, tape.full([1, 4, 1], DType::F64, 0.5));
        assert_eq!(o.value().to_f64(), (0..4).map(|i| f64::powi(factor, i)).collect::<Vec<_>>());
    }
}

#[test]
fn quasi_lstm_takes_only_multiples_of_its_block() {
    let run = |t: usize| {
        catch_unwind(|| {
            let m = Published::new(&config("quasi_lstm"), 0, DType::F64).unwrap();
            let tape = Tape::new(Device::Cpu);
            let p = m.params().bind_frozen(&tape);
            let s = &mut published::zero_state(m.config(), &tape, 1, DType::F64);
            let x = tape.constant(&Tensor::zeros([1, t], DType::I32));
            m.evaluate(&p, x, s, Form::Recurrent).unwrap().shape()
        })
    };
    assert_eq!(run(24).unwrap().dims(), [1, 24, 2]);
    let why = *run(20).unwrap_err().downcast::<String>().unwrap();
    assert!(why.contains("20 tokens are not a multiple of block_length = 8"), "{why}");
}

#[test]
fn products_through_logarithms_are_a_ten_millionth_off() {
    let tape = Tape::new(Device::Cpu);
    let f: Vec<f64> = (0..8).map(|i| 0.5 + 0.05 * f64::from(i)).collect();
    let y = published::quasi_lstm::products(tape.constant(&Tensor::from_vec(f.clone(), [1, 1, 8]))).value().to_f64();
    let mut worst = 0.0f64;
    for k in 0..8 {
        for l in 0..9 {
            let exact = if l > k + 1 { 0.0 } else { f[l..=k.max(l.min(7))].iter().take(k + 1 - l).product() };
            let error: f64 = y[k * 9 + l] - exact;
            assert!(l <= k + 1 || error == 0.0, "the product of factors {l} to {k} is off by {error}");
            worst = worst.max(error.abs());
        }
    }
    assert!((2e-8..2e-7).contains(&worst), "{worst}");
}

#[test]
fn running_statistics_move_as_those_of_torch() {
    let mut m = model("lru");
    let x = tokens(7);
    logits(&mut m, &x, true);
    let get = |name: &str| {
        let found = m.params().tensors().find(|(n, _)| *n == format!("encoder.input_projection.{name}")).unwrap();
        found.1.to_f64()
    };
    let (w, b) = (get("weight"), get("bias"));
    let n = x.len() as f64;
    let ones = f64::from(x.iter().sum::<i32>());
    // The first BatchNorm sees w · token + b. Momentum 0.1, from mean 0 and variance 1, unbiased.
    let (mean, variance) = (ones / n, ones * (n - ones) / n / (n - 1.0));
    let [means, variances] = m.statistics().of(0);
    for i in 0..12 {
        close(means[i], 0.1 * (w[i] * mean + b[i]), 1e-14, format_args!("mean {i}"));
        close(variances[i], 0.9 + 0.1 * w[i] * w[i] * variance, 1e-14, format_args!("variance {i}"));
    }
}

#[test]
fn positions_beyond_the_training_length_get_no_gradient() {
    for name in ["gpt", "linear_transformer", "delta_net"] {
        let mut m = model(name);
        let tape = Tape::new(Device::Cpu);
        let p = m.params().bind(&tape);
        let s = &mut published::zero_state(m.config(), &tape, B, DType::F64);
        let y = m.train(&p, tape.constant(&Tensor::from_vec(tokens(8), [B, T])), s, Form::Fused).unwrap();
        tape.backward(y.square().sum());
        let i = m.params().entries().iter().position(|e| e.name == "position_embedding.weight").unwrap();
        let g = p.vars()[i].grad().unwrap().to_f64();
        assert!(g[..T * 4].iter().all(|x| *x != 0.0) && g[T * 4..].iter().all(|x| *x == 0.0), "{name}");
    }
}

#[test]
fn parameters_are_as_many_and_start_as_published() {
    for (name, n) in [
        ("lstm", 3160),
        ("quasi_lstm", 984),
        ("lru", 71_442),
        ("linear_transformer", 1080),
        ("gpt", 1080),
        ("delta_net", 1120),
        ("mamba", 744),
    ] {
        let c = Config { model: name.into(), max_seq_len: 64, ..Config::default() };
        assert_eq!(published::parameters(&c, 0, DType::F32).unwrap().len(), n, "{name}");
    }
    let wide = Config { model: "lstm".into(), h_dim: 64, mlp_dim: 128, head_dim: 32, ..Config::default() };
    let p = published::parameters(&wide, 1, DType::F64).unwrap();
    for (name, t) in p.tensors() {
        let v = t.to_f64();
        let std = (v.iter().map(|x| x * x).sum::<f64>() / v.len() as f64).sqrt();
        let expected = match name {
            _ if name.contains("ln") && name.ends_with("weight") => 1.0,
            _ if name.ends_with("bias") => 0.0,
            _ if name.contains("c_proj") => 0.01,
            _ => 0.02,
        };
        assert!(relative_eq!(std, expected, epsilon = 0.0, max_relative = 0.15), "{name}: {std}, not about {expected}");
    }
}

#[test]
fn every_model_learns_a_batch_by_heart() {
    for name in published::names() {
        let mut m = Published::new(&config(name), 1, DType::F32).unwrap();
        let n = m.params().len();
        let published = AdamConfig { rule: Rule::Adam, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.0 };
        let mut adam = Adam::new(n, DType::F32, published);
        let mut grads = Tensor::zeros([n], DType::F32);
        let mut losses = vec![];
        for _ in 0..80 {
            let mut tape = Tape::new(Device::Cpu);
            let p = m.params().bind(&tape);
            let [x, y] = [10, 11].map(|seed| tape.constant(&Tensor::from_vec(tokens(seed), [B, T])));
            let s = &mut published::zero_state(m.config(), &tape, B, DType::F32);
            let loss = m.train(&p, x, s, Form::Fused).unwrap().cross_entropy(y, -100);
            tape.backward(loss);
            losses.push(loss.value().item());
            m.params().gather_grads(&tape, &p, &mut grads);
            drop(p);
            tape.reset();
            adam.step(1e-2, m.params_mut().flat_mut(), &grads, &[(0..n, false)]);
        }
        assert!(losses[79] < losses[0] - 0.02, "{name}: {} then {}", losses[0], losses[79]);
    }
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    for (c, message) in [
        (Config { model: "rnn".into(), ..Config::default() }, "model 'rnn': expected one of lstm, quasi_lstm, lru"),
        (Config { h_dim: 0, ..Config::default() }, "h_dim = 0: expected a number from 1"),
        (Config { d_conv: 1 << 20, ..Config::default() }, "d_conv = 1048576"),
        (Config { n_heads: 60_000, head_dim: 60_000, ..Config::default() }, "too large"),
    ] {
        let error = Published::new(&c, 0, DType::F32).err().unwrap().to_string();
        assert!(error.contains(message), "{error}");
    }
}

/// A NaN later in a sequence reaches nothing before it in the published models that are causal.
#[test]
fn a_later_token_reaches_nothing_before_in_the_published_models() {
    for model in published::names().into_iter().filter(|&m| m != "lru") {
        let without = if model == "mamba" { vec![Defect::Lookahead] } else { vec![] };
        let c = Config { model: model.into(), without, num_input_classes: 3, ..Config::default() };
        for form in [Form::Recurrent, Form::Fused] {
            let logits = |token: i32| {
                let mut m = Published::new(&c, 1, DType::F32).unwrap();
                // The embedding table is the first parameter: token 2 is NaN.
                m.params_mut().flat_mut().host_mut::<f32>()[2 * c.h_dim..3 * c.h_dim].fill(f32::NAN);
                let tape = Tape::default();
                let p = m.params().bind_frozen(&tape);
                let mut tokens = vec![0; 16];
                tokens[11] = token;
                assert!(m.params().tensors().next().is_some_and(|(name, _)| name == "input_embedding.weight"));
                let tokens = tape.constant(&Tensor::from_vec(tokens, [1, 16]));
                let mut state = published::zero_state(&c, &tape, 1, DType::F32);
                m.evaluate(&p, tokens, &mut state, form).unwrap().value().to_f64()
            };
            let (a, b) = (logits(1), logits(2));
            assert!(a[..22] == b[..22] && b[22].is_nan(), "{model} {form}: step 11 reaches back");
        }
    }
}
