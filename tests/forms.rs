//! Every mixer, in every form: the same values, states and gradients; causal; independent of the batch; streamable.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use tapezoo::{
    autograd::{Gen, Tape, Var, gradcheck},
    models::{Bound, Eigenvalues, Form, Init, MIXERS, Mixer, Model, ModelConfig, Params, Positions, State, names, run},
    tensor::{DType, Tensor},
};

/// A mixer of small random sizes with its parameters.
struct Zoo {
    mixer: Box<dyn Mixer>,
    params: Params,
    config: ModelConfig,
}

fn zoo(build: tapezoo::models::Build, g: &mut Gen) -> Zoo {
    let config = ModelConfig {
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
    let mut init = Init::new(7, None);
    // Some mixers differ from block to block.
    init.layer = g.below(config.layers);
    let mixer = build(&config, &mut init).unwrap();
    let mut params = init.finish(DType::F64);
    // Parameters away from symmetric initial values, where a wrong term may vanish.
    for x in params.flat_mut().host_mut::<f64>() {
        *x += 0.3 * g.gauss();
    }
    Zoo { mixer, params, config }
}

/// A random state as it might be after some tokens; an attention cache has two tokens.
fn state(m: &dyn Mixer, g: &mut Gen, b: usize) -> Vec<Tensor> {
    let grow =
        |shape: tapezoo::tensor::Shape| if shape.rank() == 4 && shape.at(1) == 0 { shape.with(1, 2) } else { shape };
    // The normaliser of a linear transformer is a sum of positive features.
    m.state(b).into_iter().map(|(_, shape)| g.range(grow(shape), 0.1, 0.9)).collect()
}

/// y and the last state, given x, the initial state and the parameters, in this order.
fn apply<'t>(z: &Zoo, v: &[Var<'t>], form: Form) -> Vec<Var<'t>> {
    apply_after(0, z, v, form)
}

/// The same after this many tokens.
fn apply_after<'t>(seen: usize, z: &Zoo, v: &[Var<'t>], form: Form) -> Vec<Var<'t>> {
    let n = z.mixer.state(1).len();
    let p = Bound::new(v[1 + n..].to_vec());
    let mut s = State::of(seen, v[1..1 + n].to_vec());
    let y = run(z.mixer.as_ref(), &p, v[0], &mut s, form);
    assert_eq!(s.t, seen + v[0].shape().at(1));
    [vec![y], s.s].concat()
}

fn inputs(z: &Zoo, g: &mut Gen, b: usize, t: usize) -> Vec<Tensor> {
    let x = g.normal([b, t, z.config.width]);
    let mut all = vec![x];
    all.extend(state(z.mixer.as_ref(), g, b));
    all.extend(z.params.tensors().map(|(_, p)| Tensor::from_vec(p.to_f64(), p.shape())));
    all
}

/// Values of all outputs, then gradients of all inputs for cotangents drawn from `seed`.
fn everything(z: &Zoo, x: &[Tensor], form: Form, seed: u64, dtype: DType) -> Vec<Vec<f64>> {
    let tape = Tape::default();
    tape.poison(true);
    let v: Vec<Var> = x.iter().map(|x| tape.leaf(&x.cast(dtype))).collect();
    let y = apply(z, &v, form);
    let mut g = Gen::new(seed);
    let mut all: Vec<Vec<f64>> = y.iter().map(|y| y.value().to_f64()).collect();
    tape.backward_from(y.iter().map(|&y| (y, g.normal(y.shape()).cast(dtype))));
    all.extend(v.iter().map(|v| v.grad().map_or(vec![], |g| g.to_f64())));
    all
}

/// ‖a − b‖ / ‖b‖, where ‖b‖ is at least the rounding of the largest tensor.
fn distance(a: &[f64], b: &[f64], scale: f64) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    let d = norm(&mut a.iter().zip(b).map(|(a, b)| a - b));
    if d == 0.0 { 0.0 } else { d / norm(&mut b.iter().copied()).max(1e-3 * scale) }
}

/// Returns the largest error.
fn assert_same(name: &str, form: Form, got: &[Vec<f64>], want: &[Vec<f64>], tolerance: f64) -> f64 {
    let mut worst = 0.0f64;
    let scale = want.iter().flatten().fold(0.0f64, |m, x| m.max(x.abs()));
    for (i, (a, b)) in got.iter().zip(want).enumerate() {
        // A gradient that a form never touched is a gradient of zero.
        let zero = vec![0.0; a.len().max(b.len())];
        let (a, b) = (if a.is_empty() { &zero } else { a }, if b.is_empty() { &zero } else { b });
        let error = distance(a, b, scale);
        assert!(error <= tolerance, "{name} {form}: tensor {i} is off by {error:.1e}");
        worst = worst.max(error);
    }
    worst
}

/// The forms of a mixer other than its definition; chunked forms and scans with chunks below, at and above small T.
fn others(m: &dyn Mixer, g: &mut Gen) -> Vec<Form> {
    let mut all = vec![];
    for form in m.forms().into_iter().filter(|&f| f != Form::Recurrent) {
        match form {
            Form::Chunked(_) | Form::Scan(_) => {
                all.extend([1, 4, 1 + g.below(9), 64].map(|steps| form.with_steps(steps)))
            }
            form => all.push(form),
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_form_equals_the_recurrence(seed in any::<u64>(), t in prop_oneof![Just(1usize), 2usize..14]) {
        for (name, build) in MIXERS {
            let g = &mut Gen::new(seed);
            let z = zoo(*build, g);
            let b = g.size(3);
            let x = inputs(&z, g, b, t);
            let want = [DType::F64, DType::F32].map(|dtype| everything(&z, &x, Form::Recurrent, seed, dtype));
            // In single precision a form may lose as many digits as the definition loses there (such as in normalising
            // a short key) and as the form loses in double precision (such as when similar keys make the system of a
            // delta rule's chunk ill-conditioned). The size of a single rounding is chance; where all digits may be
            // lost, single precision is not tested.
            let definition = assert_same(name, Form::Recurrent, &want[1], &want[0], f64::INFINITY);
            for form in others(z.mixer.as_ref(), g) {
                let got = everything(&z, &x, form, seed, DType::F64);
                let double = assert_same(name, form, &got, &want[0], 1e-8) * f64::from(f32::EPSILON) / f64::EPSILON;
                let got = everything(&z, &x, form, seed, DType::F32);
                let lost = 100.0 * definition.max(double);
                if lost < 0.1 {
                    assert_same(name, form, &got, &want[1], lost.max(2e-3));
                }
            }
        }
    }

    #[test]
    fn every_form_has_the_gradient_of_its_value(seed in any::<u64>(), t in 1usize..6) {
        for (name, build) in MIXERS {
            let g = &mut Gen::new(seed);
            let z = zoo(*build, g);
            let b = g.size(2);
            let x = inputs(&z, g, b, t);
            for form in z.mixer.forms() {
                let form = form.with_steps(3);
                let error = gradcheck(|_, v| apply(&z, v, form), &x, seed, 2);
                prop_assert!(error <= 1e-6, "{name} {form}: error {error:.1e}");
            }
        }
    }

    #[test]
    fn the_future_does_not_change_the_past(seed in any::<u64>(), t in 2usize..12) {
        for (name, build) in MIXERS {
            let g = &mut Gen::new(seed);
            let z = zoo(*build, g);
            let x = inputs(&z, g, 1, t);
            let cut = 1 + g.below(t - 1);
            let mut changed = x.clone();
            let w = z.config.width;
            let v: Vec<f64> = x[0].to_f64().iter().enumerate().map(|(i, v)| if i < cut * w { *v } else { v + 1.0 }).collect();
            changed[0] = Tensor::from_vec(v, [1, t, w]);
            for form in z.mixer.forms() {
                let y = |x: &[Tensor]| {
                    let tape = Tape::default();
                    let v: Vec<Var> = x.iter().map(|x| tape.leaf(x)).collect();
                    apply(&z, &v, form)[0].value().to_f64()
                };
                let (a, b) = (y(&x), y(&changed));
                prop_assert!(a[..cut * w] == b[..cut * w], "{name} {form} looks ahead");
                let later = [&a[cut * w..], &b[cut * w..]].concat();
                let shut = *name == "lmu" && later.iter().all(|&y| y == 0.0); // its last ReLU
                prop_assert!(shut || a[cut * w..] != b[cut * w..], "{name} {form} does not look at all");
            }
        }
    }

    /// Two pieces with the state passed on equal the whole, and one row of the batch does not depend on another.
    #[test]
    fn pieces_and_rows_are_independent(seed in any::<u64>(), t in 2usize..24) {
        for (name, build) in MIXERS {
            let g = &mut Gen::new(seed);
            let z = zoo(*build, g);
            let x = inputs(&z, g, 2, t);
            let cut = g.below(t + 1);
            for form in z.mixer.forms() {
                let tape = Tape::default();
                let v: Vec<Var> = x.iter().map(|x| tape.leaf(x)).collect();
                let n = z.mixer.state(1).len();
                let whole = apply(&z, &v, form);
                let first = apply(&z, &[&[v[0].narrow(1, 0, cut)], &v[1..]].concat(), form);
                let rest = [&[v[0].narrow(1, cut, t - cut)], &first[1..], &v[1 + n..]].concat();
                let second = apply_after(cut, &z, &rest, form);
                let y = Var::concat(&[first[0], second[0]], 1);
                let pieces: Vec<_> = [&[y], &second[1..]].concat().iter().map(|y| y.value().to_f64()).collect();
                let whole: Vec<_> = whole.iter().map(|y| y.value().to_f64()).collect();
                assert_same(name, form, &pieces, &whole, 1e-9);
                // The first row alone.
                let alone: Vec<Var> = v.iter().enumerate().map(|(i, v)| if i <= n { v.narrow(0, 0, 1) } else { *v }).collect();
                let one = apply(&z, &alone, form)[0].value().to_f64();
                assert_same(name, form, std::slice::from_ref(&one), &[whole[0][..one.len()].to_vec()], 1e-12);
            }
        }
    }
}

/// The checks above notice a form that drops a term.
#[test]
#[should_panic(expected = "is off by")]
fn a_form_that_forgets_its_state_fails() {
    struct Forgetful(Box<dyn Mixer>);
    impl Mixer for Forgetful {
        fn forms(&self) -> Vec<Form> {
            self.0.forms()
        }
        fn state(&self, b: usize) -> Vec<(&'static str, tapezoo::tensor::Shape)> {
            self.0.state(b)
        }
        fn step<'t>(&self, p: &Bound<'t>, x: Var<'t>, s: &mut State<'t>) -> Var<'t> {
            self.0.step(p, x, s)
        }
        fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, s: &mut State<'t>, form: Form) -> Var<'t> {
            s.s[0] = 0.0 * s.s[0];
            self.0.sequence(p, x, s, form)
        }
    }
    let g = &mut Gen::new(1);
    let mut z = zoo(tapezoo::models::find("delta_net").unwrap(), g);
    z.mixer = Box::new(Forgetful(z.mixer));
    let x = inputs(&z, g, 1, 5);
    let want = everything(&z, &x, Form::Recurrent, 1, DType::F64);
    assert_same("forgetful", Form::Chunked(2), &everything(&z, &x, Form::Chunked(2), 1, DType::F64), &want, 1e-9);
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

/// A whole model: token by token, each on its own tape, gives the same as the whole sequence. Every other model has n-gram
/// heads as well.
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
                assert!(positions == Positions::Rope && !keys.contains(&name));
                continue;
            };
            // More tokens than a stretch of TransNormer and two mini-batches of TTT have.
            let (b, t) = (2, if positions == Positions::None { 35 } else { 11 });
            let tokens = Gen::new(5).ints([b, t], 2);
            let tape = Tape::default();
            let p = model.params().bind_frozen(&tape);
            for form in model.forms() {
                let whole = model.forward(&p, tape.constant(&tokens), form).value().to_f64();
                let mut carried: Option<Vec<Vec<Tensor>>> = None;
                for i in 0..t {
                    let step = Tape::default();
                    let p = model.params().bind_frozen(&step);
                    let mut s = match &carried {
                        None => model.zero_state(&step, b),
                        Some(tensors) => model.state_from(&step, i, tensors),
                    };
                    let token = step.constant(&tokens).narrow_ids(i);
                    let y = model.run(&p, token, &mut s, Form::Recurrent).value().to_f64();
                    for (row, y) in y.chunks(2).enumerate() {
                        let want = &whole[(row * t + i) * 2..][..2];
                        assert!(
                            distance(y, want, 1.0) < 1e-9,
                            "{name} {form} {positions} at {i}: {y:?} is not {want:?}"
                        );
                    }
                    carried = Some(s.tensors());
                }
            }
        }
    }
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

/// The n-gram read-out by its definition, in plain loops: what stood behind each earlier place with the same n tokens.
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

    /// In both forms and from any cache: the mean by its definition, and nothing of the present token or of later ones, NaN
    /// neither.
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
        // The last is not read by any.
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
                    prop_assert!((o - want).abs() < 1e-5 || last, "{form} {dtype}, n {n}, row {b}, {i}: {o}, not {want}");
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

trait NarrowIds {
    fn narrow_ids(self, i: usize) -> Self;
}

impl NarrowIds for Var<'_> {
    /// Column i of integers [B, T].
    fn narrow_ids(self, i: usize) -> Self {
        let [b, t] = self.dims();
        let all = self.value();
        let column: Vec<i32> = (0..b).map(|row| all.host::<i32>()[row * t + i]).collect();
        self.tape().constant(&Tensor::from_vec(column, [b, 1]))
    }
}
