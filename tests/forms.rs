//! Every mixer, in every form: the same values, states and gradients; causal; independent of the batch; streamable.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use tapezoo::{
    autograd::{Gen, Tape, Var},
    check::{Case, Checked, streaming},
    models::{Bound, Eigenvalues, Form, Init, MIXERS, Mixer, Model, ModelConfig, Positions, State, names},
    tensor::{DType, Shape},
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

/// What can be wrong with a mixer.
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

/// A whole model: token by token, each on its own tape, gives the same as the whole sequence.
#[test]
fn streaming_equals_the_whole_sequence() {
    for name in names() {
        for positions in [Positions::None, Positions::Learned, Positions::Sinusoidal, Positions::Rope] {
            let config = ModelConfig {
                mixer: name.into(),
                width: 6,
                heads: 2,
                head_dim: 4,
                state: 3,
                mlp: 5,
                positions,
                max_len: 64,
                ..ModelConfig::default()
            };
            let Ok(model) = Model::new(&config, 3, DType::F64) else {
                let keys = tapezoo::models::names_with(|c| c.rope);
                assert!(positions == Positions::Rope && !keys.contains(&name));
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
#[should_panic(expected = "form 'fused': gla has no such form; it has recurrent, parallel, chunked")]
fn a_form_that_is_not_there_is_refused() {
    let model = Model::new(&ModelConfig { mixer: "gla".into(), ..ModelConfig::default() }, 0, DType::F32).unwrap();
    let tape = Tape::default();
    model.forward(&model.params().bind(&tape), tape.constant(&Gen::new(0).ints([1, 3], 2)), Form::Fused);
}
