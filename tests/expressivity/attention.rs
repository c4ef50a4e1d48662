//! Attention: what it cannot tell apart, and PaTH, whose keys are reflected.

use crate::machine::{LONG, Machine, best_threshold, sums};
use crate::{BIG, begun};
use tapezoo::{
    autograd::Tape,
    models::{Eigenvalues, Form, Model, ModelConfig, Positions},
    tensor::{DType, Tensor},
};

/// PaTH over begin, zero and one: the key of the beginning is (1, 0), and each one reflects it (β = 2) or erases it (β
/// = 1). Where it is as it was, the query finds it, and else the token itself, whose key is (0, 1).
fn path(b_beta: f32) -> Machine {
    let sizes = ModelConfig { heads: 1, head_dim: 2, ..ModelConfig::default() };
    let key = [[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]].concat();
    let rows = [&[80.0, 80.0, 80.0, 40.0, 40.0, 40.0][..], &key, &[1.0, 0.0, 0.0, 0.0, 0.0, 0.0]].concat();
    let machine = Machine::over(3, "path", Eigenvalues::Positive, sizes).set("w_qkv", &rows);
    // The direction (1, 0) at a one, and none at others: by the first of 32 channels.
    let first: Vec<f32> = (0..96).map(|i| if i == 2 { BIG } else { 0.0 }).collect();
    let second: Vec<f32> = (0..64).map(|i| if i == 0 { 1.0 } else { 0.0 }).collect();
    let machine = machine.set("w_w1", &first).set("w_w2", &second).set("conv", &[0.0, 0.0, 1.0].repeat(2));
    machine.set("b_beta", &[b_beta]).set("w_o", &[1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
}

/// Attention is a mean of values, which are equal where all tokens are: its answers to ones are the same at each place, and
/// parity is not. This holds for any weights, also with rotary positions and with PaTH's reflections. A zero before the ones
/// makes answers differ from place to place.
#[test]
fn attention_cannot_tell_one_from_another() {
    for name in ["gpt", "hopfield", "path"] {
        let positions = if name == "gpt" { Positions::Rope } else { Positions::None };
        let config = ModelConfig { mixer: name.into(), heads: 2, head_dim: 8, positions, ..ModelConfig::default() };
        let model = Model::new(&config, 5, DType::F64).unwrap();
        let spread = |tokens: Vec<i32>| {
            let tape = Tape::default();
            let tokens = tape.constant(&Tensor::from_vec(tokens, [1, 20]));
            let y = model.forward(&model.params().bind_frozen(&tape), tokens, model.default_form()).value().to_f64();
            let n = y.len() / 20;
            let last = &y[18 * n..];
            (last[0] - last[n]).abs()
        };
        assert!(spread(vec![1; 20]) < 1e-12, "{name}");
        let begun = spread((0..20).map(|t| i32::from(t > 0)).collect());
        assert!(begun > 1e-9, "{name}: {begun:e}");
    }
}

/// The cache makes 4,096 tokens as much work as 8 million of a memory.
#[test]
fn path_attention_tracks_parity_and_cannot_without_reflections() {
    let (tokens, bits) = begun(4096, 6);
    let odd = sums(&bits, 2);
    for (form, piece) in [(Form::Parallel, 512), (Form::Chunked(32), 4097), (Form::Recurrent, 16)] {
        let y = &path(BIG).outputs(&tokens, form, piece)[1..];
        let wrong = y.iter().zip(&odd).filter(|&(&y, &odd)| (y < 0.5) != (odd == 1)).count();
        assert_eq!(wrong, 0, "{form}: {wrong} errors in 4096");
        let y = &path(0.0).outputs(&tokens, form, piece)[1..];
        let share = best_threshold(y, &odd);
        assert!(share < 0.6, "{form}: right at {share:.3} of the positions");
    }
}

/// 100,000 tokens would rewrite 5 · 10⁹ keys. But the keys of zeros and ones are orthogonal to all reflections, which
/// leave them as they are: the test sees this in each piece of the sequence, and then takes them out of the cache. Thus
/// every token reads the key of the beginning, which all ones before have reflected, and the keys of its piece. The
/// last 500 tokens read the whole cache: there the others are back.
#[test]
fn path_attention_tracks_parity_over_a_hundred_thousand_tokens() {
    let (tokens, bits) = begun(LONG, 9);
    let odd = sums(&bits, 2);
    let of = |rows: Vec<[f32; 2]>| Tensor::from_vec(rows.concat(), [1, rows.len(), 1, 2]);
    for (form, piece) in [(Form::Parallel, 500), (Form::Chunked(32), 2000), (Form::Recurrent, 100)] {
        let run = |b_beta: f32| {
            let (machine, mut tape) = (path(b_beta), Tape::default());
            let (mut y, mut carried): (Vec<f32>, Option<Vec<Tensor>>) = (vec![], None);
            for (i, now) in tokens.chunks(piece).enumerate() {
                let at = i * piece;
                if let Some([keys, values, _]) = carried.as_deref_mut() {
                    let rows = |x: &Tensor| x.host::<f32>().as_chunks::<2>().0.to_vec();
                    let (k, v) = (rows(keys), rows(values));
                    assert!(
                        k[1..].iter().all(|k| *k == [0.0, 1.0]) && v[1..].iter().all(|v| *v == [0.0, 0.0]),
                        "keys {k:?}, values {v:?}"
                    );
                    let others = if LONG - at < 500 { at - 1 } else { 0 };
                    *keys = of([vec![k[0]], vec![[0.0, 1.0]; others]].concat());
                    *values = of([vec![v[0]], vec![[0.0, 0.0]; others]].concat());
                }
                let (out, state) = machine.piece(&mut tape, now, at, carried.as_deref(), form);
                y.extend(out);
                carried = Some(state);
            }
            y.remove(0);
            y
        };
        let y = run(BIG);
        let wrong = y.iter().zip(&odd).filter(|&(&y, &odd)| (y < 0.5) != (odd == 1)).count();
        assert_eq!(wrong, 0, "{form}: {wrong} errors in {LONG}");
        let share = best_threshold(&run(0.0), &odd);
        assert!(share < 0.51, "{form}: right at {share:.3} of the positions");
    }
}
