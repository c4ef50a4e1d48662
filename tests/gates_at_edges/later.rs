//! NaN and infinities later in a sequence reach nothing before them.

use crate::{INF, MLSTM, attention, cell, cell_inputs, memory, memory_inputs, places, run, selective};
use tapezoo::{
    autograd::{Gen, Tape, Var},
    models::{
        Form,
        published::{self, Defect, Published},
    },
    tensor::{DType, Tensor},
};

/// A NaN at one step of a sequence changes no bit of earlier steps, nor of the other sequence.
#[test]
fn what_comes_later_reaches_nothing_before() {
    let (g, t, at) = (&mut Gen::new(8), 21, 13);
    let narrow = |g: &mut Gen, k| {
        let key = [2, t, 3, k];
        vec![g.normal(key), g.normal(key), g.normal(key)]
    };
    type Core = (&'static str, Vec<Tensor>, usize, Vec<Form>, for<'t> fn(&[Var<'t>], Form) -> Vec<Var<'t>>);
    let scan = |g: &mut Gen| {
        let (row, state) = ([2, t, 18], [2, t, 5]);
        let all = [g.normal(row), g.range(row, 0.1, 1.0), g.range([18, 5], -2.0, -0.1)];
        all.into_iter().chain([g.normal(state), g.normal(state), g.normal([2, 18, 5])]).collect()
    };
    let cores: Vec<Core> = vec![
        ("mlstm", memory_inputs(g, t, 4, |_| 0.1, |_| 2.0), 5, MLSTM.to_vec(), memory),
        ("wide mlstm", memory_inputs(g, t, 20, |_| 0.1, |_| 2.0), 5, MLSTM.to_vec(), memory),
        ("slstm", cell_inputs(g, t, |_| 0.1, |_| 2.0), 1, vec![Form::Fused], cell),
        ("attention", narrow(g, 4), 3, vec![Form::Parallel, Form::Fused], attention),
        ("wider attention", narrow(g, 7), 3, vec![Form::Parallel, Form::Fused], attention),
        ("wide attention", narrow(g, 20), 3, vec![Form::Parallel, Form::Fused], attention),
        ("selective scan", scan(g), 5, vec![Form::Parallel, Form::Scan(4), Form::Scan(64)], selective),
    ];
    for (name, x, timed, forms, f) in &cores {
        for place in places() {
            for &form in [Form::Recurrent].iter().chain(forms) {
                let before = run(place, x, form, *f);
                for input in (0..*timed).filter(|&i| x[i].shape().at(1) == t) {
                    for bad in [f64::NAN, INF, -INF] {
                        let mut changed = x.clone();
                        let inner = x[input].len() / (2 * t);
                        let mut v = x[input].to_f64();
                        v[at * inner..(at + 1) * inner].fill(bad);
                        changed[input] = Tensor::from_vec(v, x[input].shape());
                        let after = run(place, &changed, form, *f);
                        let inner = before[0].len() / (2 * t);
                        let same = |i: usize| before[0][i].to_bits() == after[0][i].to_bits();
                        let seen =
                            (0..before[0].len()).filter(|i| !(at * inner..t * inner).contains(i)).find(|&i| !same(i));
                        assert!(
                            seen.is_none(),
                            "{name}, {form} {} on {}: {bad} in input {input} at step {at} reaches number {seen:?}",
                            place.1,
                            place.0
                        );
                    }
                }
            }
        }
    }
}

/// The same for the causal published models: a token whose embedding is NaN.
#[test]
fn a_later_token_reaches_nothing_before_in_the_published_models() {
    for model in published::names().into_iter().filter(|&m| m != "lru") {
        let without = if model == "mamba" { vec![Defect::Lookahead] } else { vec![] };
        let c =
            published::Config { model: model.into(), without, num_input_classes: 3, ..published::Config::default() };
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
