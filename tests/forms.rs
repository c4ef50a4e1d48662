//! Every mixer, in every form: the same values, states and gradients; causal; independent of the batch; streamable.

#![allow(clippy::unwrap_used)]

mod close;

use approx::abs_diff_eq;
use close::close;
use proptest::prelude::*;
use tapezoo::{
    autograd::{Gen, Tape, Var, gradcheck},
    check::{Case, Checked, streaming},
    models::{Bound, Eigenvalues, Form, Init, MIXERS, Mixer, Model, ModelConfig, Positions, State, names},
    tensor::{DType, Shape, Tensor},
};

/// One of the mixers, of small random sizes.
fn case(name: &str, g: &mut Gen) -> Case {
    let config = ModelConfig {
        mixer: name.into(),
        width: g.size(5),
        heads: g.size(2),
        head_dim: g.size(4),
        state: g.size(3),
        conv: g.below(4),
        expand: g.size(2),
        dt_rank: g.size(2),
        householders: g.size(4),
        eigenvalues: if g.coin() { Eigenvalues::Positive } else { Eigenvalues::Signed },
        ..ModelConfig::default()
    };
    Case::boxed(&config, tapezoo::models::find(name).unwrap(), g).unwrap()
}

/// The same check of all mixers.
fn each(seed: u64, check: impl Fn(&Case, &mut Gen) -> Checked) {
    for (name, _) in MIXERS {
        let g = &mut Gen::new(seed);
        let case = case(name, g);
        check(&case, g).unwrap_or_else(|why| panic!("{why}"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_form_equals_the_recurrence(seed in any::<u64>(), t in prop_oneof![Just(1usize), 2usize..14]) {
        each(seed, |case, g| case.forms(seed, g.size(3), t));
    }

    #[test]
    fn every_form_has_the_gradient_of_its_value(seed in any::<u64>(), t in 1usize..6) {
        each(seed, |case, g| case.gradients(seed, g.size(2), t));
    }

    #[test]
    fn the_future_does_not_change_the_past(seed in any::<u64>(), t in 2usize..12) {
        each(seed, |case, _| case.causality(seed, t));
    }

    /// Two pieces with the state passed on equal the whole, and one row of the batch does not depend on another.
    #[test]
    fn pieces_and_rows_are_independent(seed in any::<u64>(), t in 2usize..24) {
        each(seed, |case, _| case.pieces(seed, 2, t).and_then(|()| case.rows(seed, t)));
    }
}

/// A fault of a mixer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    ForgetsItsState,
    LooksAhead,
    MixesSequences,
    LosesGradients,
}

/// A mixer with a fault in every form but the recurrent one.
struct Broken(Box<dyn Mixer>, Fault);

impl Mixer for Broken {
    fn forms(&self) -> Vec<Form> {
        self.0.forms()
    }
    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        self.0.state(b)
    }
    fn step<'t>(&self, p: &Bound<'t>, x: Var<'t>, s: &mut State<'t>) -> Var<'t> {
        self.0.step(p, x, s)
    }
    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, s: &mut State<'t>, form: Form) -> Var<'t> {
        if self.1 == Fault::ForgetsItsState {
            s.s[0] = 0.0 * s.s[0];
        }
        let y = self.0.sequence(p, x, s, form);
        match self.1 {
            Fault::ForgetsItsState => y,
            Fault::LooksAhead => y + 0.1 * x.sum_axis(1, true),
            Fault::MixesSequences => y + 0.1 * x.sum_axis(0, true),
            Fault::LosesGradients => x.tape().detached(y),
        }
    }
}

/// The checks notice a mixer that is wrong, and say what is wrong with it.
#[test]
fn a_broken_mixer_fails_the_check_of_what_is_broken() {
    let config = ModelConfig { mixer: "mine".into(), width: 4, ..ModelConfig::default() };
    let build = |c: &ModelConfig, init: &mut Init| (tapezoo::models::find("delta_net").unwrap())(c, init);
    let fails = |fault: Fault, check: fn(&Case) -> Checked, words: [&str; 2]| {
        let mut case = Case::boxed(&config, build, &mut Gen::new(1)).unwrap();
        check(&case).unwrap();
        case.mixer = Box::new(Broken(case.mixer, fault));
        let why = check(&case).unwrap_err();
        assert!(why.starts_with("mine ") && words.iter().all(|word| why.contains(word)), "{fault:?}: {why}");
    };
    let forms = |case: &Case| case.forms(1, 2, 5);
    fails(Fault::ForgetsItsState, forms, ["parallel: y is off by ", ""]);
    fails(Fault::LosesGradients, forms, ["parallel: the gradient of x is off by ", ""]);
    fails(Fault::ForgetsItsState, |case| case.pieces(1, 2, 6), ["y is off by", "steps are not the whole"]);
    fails(Fault::LooksAhead, |case| case.causality(1, 7), ["parallel looks ahead by ", "at step 1 of 7"]);
    fails(
        Fault::MixesSequences,
        |case| case.rows(1, 3),
        ["is off by", "a sequence depends on the others in its batch"],
    );
    fails(Fault::LosesGradients, |case| case.gradients(1, 2, 3), ["parallel: the gradient is off by ", "differences"]);

    let model = Model::with_mixer(&config, |c, init| Ok(Broken(build(c, init)?, Fault::LooksAhead)), 0, DType::F64);
    let why = streaming(&model.unwrap(), 2, 5).unwrap_err();
    assert!(why.starts_with("mine parallel: streaming is off by ") && why.ends_with("at token 1 of 5"), "{why}");
}

/// DeltaProduct with one Householder matrix per token is DeltaNet, with the same parameters.
#[test]
fn delta_product_of_one_is_delta_net() {
    let model = |mixer: &str| {
        let config = ModelConfig { mixer: mixer.into(), householders: 1, width: 6, ..ModelConfig::default() };
        Model::new(&config, 3, DType::F64).unwrap()
    };
    let [a, b] = ["delta_net", "delta_product"].map(|name| {
        let (model, tape) = (model(name), Tape::default());
        let tokens = tape.constant(&Gen::new(5).ints([2, 11], 2));
        model.forward(&model.params().bind_frozen(&tape), tokens, Form::Chunked(4)).value().to_f64()
    });
    assert_eq!(a, b);
}

/// A whole model: token by token, each on its own tape, gives the same as the whole sequence. Every other model has
/// n-gram heads as well.
#[test]
fn streaming_equals_the_whole_sequence() {
    for (i, name) in names().into_iter().enumerate() {
        for positions in [Positions::None, Positions::Learned, Positions::Sinusoidal, Positions::Rope] {
            let config = ModelConfig {
                mixer: name.into(),
                width: 6,
                heads: 2,
                head_dim: 4,
                state: 3,
                mlp: 5,
                positions,
                ngram: if i % 2 == 0 { 3 } else { 0 },
                max_len: 64,
                ..ModelConfig::default()
            };
            let Ok(model) = Model::new(&config, 3, DType::F64) else {
                let keys = tapezoo::models::names_with(|c| c.rope);
                assert!(
                    positions == Positions::Rope && !keys.contains(&name),
                    "{name} with positions {positions} is refused"
                );
                continue;
            };
            // More tokens than a stretch of TransNormer and two mini-batches of TTT have.
            let t = if positions == Positions::None { 35 } else { 11 };
            streaming(&model, 2, t).unwrap_or_else(|why| panic!("positions {positions}: {why}"));
        }
    }
}

/// A form that the mixer does not have is refused where it is asked for.
#[test]
#[should_panic(expected = "form 'fused': gla has no such form; it has recurrent, parallel, split, chunked")]
fn a_form_that_is_not_there_is_refused() {
    let model = Model::new(&ModelConfig { mixer: "gla".into(), ..ModelConfig::default() }, 0, DType::F32).unwrap();
    let tape = Tape::default();
    model.forward(&model.params().bind(&tape), tape.constant(&Gen::new(0).ints([1, 3], 2)), Form::Fused);
}

/// A model with n-gram heads for 1, 2 and 3 tokens of an alphabet of four.
fn with_ngrams(mixer: &str) -> Model {
    let sizes = ModelConfig { width: 6, heads: 2, head_dim: 4, mlp: 5, state: 3, ..ModelConfig::default() };
    let config = ModelConfig { mixer: mixer.into(), ngram: 3, vocab: 4, classes: 4, ..sizes };
    let mut model = Model::new(&config, 3, DType::F64).unwrap();
    let g = &mut Gen::new(9);
    // Biases and norms away from their first values, where a wrong term may vanish.
    model.params_mut().flat_mut().host_mut::<f64>().iter_mut().for_each(|x| *x += 0.3 * g.gauss());
    model
}

/// Tensors that are equal but for roundings; a gradient that a form never touched is zero.
#[track_caller]
fn assert_same(name: &str, form: Form, got: &[Vec<f64>], want: &[Vec<f64>], tolerance: f64) {
    let scale = want.iter().flatten().fold(1e-300f64, |m, x| m.max(x.abs()));
    for (i, (a, b)) in got.iter().zip(want).enumerate() {
        let zeros = vec![0.0; a.len().max(b.len())];
        let [a, b] = [a, b].map(|x| if x.is_empty() { &zeros } else { x });
        for (a, b) in a.iter().zip(b) {
            assert!(abs_diff_eq!(a, b, epsilon = tolerance * scale), "{name} {form}: tensor {i} has {a}, expected {b}");
        }
    }
}

/// The n-gram read-out by its definition, in plain loops: the states behind each earlier place with the same n tokens.
fn followed(ids: &[i32], h: &[f64], d: usize, n: usize) -> Vec<f64> {
    let mut o = vec![0.0; h.len()];
    for t in 0..ids.len() {
        let same = |s: &usize| *s >= n && t + 1 >= n && ids[s - n..*s] == ids[t + 1 - n..=t];
        let found: Vec<usize> = (0..t).filter(same).collect();
        for &s in &found {
            (0..d).for_each(|c| o[t * d + c] += h[s * d + c] / found.len() as f64);
        }
    }
    o
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// In both forms and from any cache: the mean by its definition, and nothing of later tokens, NaN neither. The present
    /// token has weight 0, which a NaN of its own gets through.
    #[test]
    fn an_ngram_head_reads_what_followed(seed in any::<u64>(), s in 1usize..30, n in 1usize..5) {
        let (g, d) = (&mut Gen::new(seed), 3);
        let (ids, h) = (g.ints([2, s], 3), g.normal([2, s, d]));
        let (numbers, mut h) = (ids.to_f64(), h.to_f64());
        let rows = |h: &[f64]| -> Vec<f64> {
            let row = |b: usize| followed(&ids.host::<i32>()[b * s..][..s], &h[b * s * d..][..s * d], d, n);
            (0..2).flat_map(row).collect()
        };
        let want = rows(&h);
        let past = g.below(s);
        // The last state is not read by any.
        (0..d).for_each(|c| h[(s - 1) * d + c] = f64::NAN);
        for (form, dtype) in [(Form::Recurrent, DType::F64), (Form::Parallel, DType::F64), (Form::Parallel, DType::F32)] {
            let tape = Tape::default();
            let [x, h] = [(&numbers, &[2, s][..]), (&h, &[2, s, d][..])]
                .map(|(v, shape)| tape.constant(&Tensor::from_vec(v.clone(), shape).cast(dtype)));
            let o = tapezoo::models::ngram::read(x, h, n, s - past, form).value().to_f64();
            for b in 0..2 {
                for (i, o) in o[b * (s - past) * d..][..(s - past) * d].iter().enumerate() {
                    let last = b == 0 && i / d + past + 1 == s;
                    let want = want[(b * s + past) * d + i];
                    if !last {
                        close(*o, want, 1e-5, format_args!("{form} {dtype}, n {n}, row {b}, {i}"));
                    }
                }
            }
        }
    }

    /// A model with n-gram heads, of a mixer with a state and of one with a cache: every form gives the same logits and
    /// gradients, has the gradient of its value, sees no future, and no other sequence of the batch.
    #[test]
    fn a_model_with_ngram_heads_is_one_of_the_zoo(seed in any::<u64>(), t in 1usize..12) {
        for mixer in ["delta_net", "gpt"] {
            let (model, g) = (with_ngrams(mixer), &mut Gen::new(seed));
            let tokens = g.ints([2, t], 4);
            let cotangent = g.normal([2, t, 4]);
            let params: Vec<Tensor> =
                model.params().tensors().map(|(_, p)| Tensor::from_vec(p.to_f64(), p.shape())).collect();
            let of = |form: Form, tokens: &Tensor| {
                let tape = Tape::default();
                let p = Bound::new(params.iter().map(|p| tape.leaf(p)).collect());
                let y = model.forward(&p, tape.constant(tokens), form);
                let value = y.value().to_f64();
                tape.backward_from([(y, cotangent.clone())]);
                let grads = p.vars().iter().map(|p| p.grad().map_or(vec![], |g| g.to_f64()));
                std::iter::once(value).chain(grads).collect::<Vec<_>>()
            };
            let want = of(Form::Recurrent, &tokens);
            let other = 1 + g.below(3) as i32;
            let mut changed = tokens.host::<i32>().to_vec();
            (changed[t - 1], changed[t]) = ((changed[t - 1] + other) % 4, (changed[t] + other) % 4);
            for form in model.forms() {
                let form = form.with_steps(3);
                assert_same(mixer, form, &of(form, &tokens), &want, 1e-9);
                let error = gradcheck(
                    |tape, v| vec![model.forward(&Bound::new(v.to_vec()), tape.constant(&tokens), form)], &params, seed, 2,
                );
                prop_assert!(error <= 1e-6, "{mixer} {form}: error {error:.1e}");
                let y = &of(form, &Tensor::from_vec(changed.clone(), [2, t]))[0];
                prop_assert!(y[..(t - 1) * 4] == of(form, &tokens)[0][..(t - 1) * 4], "{mixer} {form} looks ahead");
                let tape = Tape::default();
                let first = tape.constant(&Tensor::from_vec(tokens.host::<i32>()[..t].to_vec(), [1, t]));
                let alone = model.forward(&model.params().bind_frozen(&tape), first, form).value().to_f64();
                assert_same(mixer, form, &[alone], &[want[0][..t * 4].to_vec()], 1e-12);
            }
        }
    }
}
