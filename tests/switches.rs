//! The published models in training, and what each of their switches changes.
#![allow(clippy::unwrap_used)]

mod close;

use approx::abs_diff_eq;
use close::{all_close, close};
use tapezoo::{
    autograd::{Gen, Tape},
    models::{
        Form, Model, ModelConfig, Positions, Variant,
        published::{self, Defect},
    },
    tasks::{Batch, IGNORE, Layout, Mqar},
    tensor::{DType, Device, Tensor},
    train::{Trainer, config::TrainConfig},
};

/// Where configurations are.
const DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/configs");

const B: usize = 3;
const T: usize = 16;

fn config(mixer: &str, without: &[Defect]) -> ModelConfig {
    ModelConfig {
        mixer: mixer.into(),
        variant: Variant::Published,
        without: without.to_vec(),
        width: 4,
        heads: 2,
        head_dim: 4,
        mlp: 8,
        state: 4,
        conv: 3,
        vocab: 3,
        max_len: 32,
        ..ModelConfig::default()
    }
}

/// A model whose weights are large enough for every effect to be seen.
fn model(c: &ModelConfig) -> Model {
    let mut m = Model::new(c, 3, DType::F64).unwrap();
    let mut g = Gen::new(4);
    for x in m.params_mut().flat_mut().host_mut::<f64>() {
        *x += 0.3 * g.gauss();
    }
    m
}

fn tokens(seed: u64) -> Vec<i32> {
    let mut g = Gen::new(seed);
    (0..B * T).map(|_| g.below(3) as i32).collect()
}

fn logits(m: &mut Model, tokens: &[i32], training: bool, form: Form) -> Vec<f64> {
    let tape = Tape::new(Device::Cpu);
    let p = m.params().bind_frozen(&tape);
    let x = tape.constant(&Tensor::from_vec(tokens.to_vec(), [B, T]));
    let y = if training { m.train(&p, x, form, None) } else { m.forward(&p, x, form) };
    y.value().to_f64()
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

/// The positions of each row whose logits change with token 12 of row 0.
fn reach(c: &ModelConfig, training: bool) -> [Vec<usize>; B] {
    let (mut m, mut x) = (model(c), tokens(5));
    let before = logits(&mut m, &x, training, Form::Fused);
    x[12] = (x[12] + 1) % 3;
    let after = logits(&mut m, &x, training, Form::Fused);
    std::array::from_fn(|b| {
        (0..T).filter(|t| (0..2).any(|c| before[(b * T + t) * 2 + c] != after[(b * T + t) * 2 + c])).collect()
    })
}

#[test]
fn both_forms_agree_with_every_switch() {
    use Defect::*;
    for name in published::names() {
        for without in
            [&[][..], &[Diagonal], &[RawKeys], &[Diagonal, RawKeys], &[Lookahead], &[BatchNorm, ScalarTokens]]
        {
            for positions in [Positions::None, Positions::Learned, Positions::Sinusoidal, Positions::Rope] {
                let c = ModelConfig { positions, ..config(name, without) };
                if Model::new(&c, 3, DType::F64).is_err() {
                    continue;
                }
                let y = [Form::Recurrent, Form::Fused].map(|form| logits(&mut model(&c), &tokens(5), true, form));
                assert!(distance(&y[0], &y[1]) < 1e-10, "{name} {without:?} {positions}");
            }
        }
    }
}

#[test]
fn each_defect_changes_something_when_it_is_left_out() {
    for (name, defect) in [
        ("linear_transformer", Defect::Diagonal),
        ("delta_net", Defect::Diagonal),
        ("delta_net", Defect::RawKeys),
        ("mamba", Defect::Lookahead),
        ("lru", Defect::BatchNorm),
        ("lru", Defect::ScalarTokens),
    ] {
        let y = [&[][..], &[defect]].map(|w| logits(&mut model(&config(name, w)), &tokens(5), true, Form::Fused));
        assert!(distance(&y[0], &y[1]) > 1e-3, "{name} without {defect:?}");
    }
}

#[test]
fn nothing_sees_the_future_or_other_rows_without_those_defects() {
    let own: [Vec<usize>; B] = [(12..T).collect(), vec![], vec![]];
    assert_eq!(reach(&config("mamba", &[Defect::Lookahead]), true), own);
    assert_eq!(reach(&config("lru", &[Defect::BatchNorm]), true), own);
    assert_ne!(reach(&config("mamba", &[]), true), own);
    assert_ne!(reach(&config("lru", &[]), true), own);
}

#[test]
fn keys_have_length_one_unless_they_are_raw() {
    let tape = Tape::new(Device::Cpu);
    let k = tape.constant(&Gen::new(1).normal([1, 2, 2, 4]));
    for (without, unit) in [(vec![], false), (vec![Defect::RawKeys], true)] {
        let c = published::Config { model: "delta_net".into(), without, ..published::Config::default() };
        let k = published::delta_net::keys(&c, k).value().to_f64();
        let lengths = k.chunks(4).map(|k| k.iter().map(|x| x * x).sum::<f64>());
        assert_eq!(unit, lengths.into_iter().all(|l| abs_diff_eq!(l, 1.0, epsilon = 1e-3)));
    }
}

#[test]
fn tokens_are_one_hot_unless_they_are_a_number() {
    for (without, features) in [(&[][..], 1), (&[Defect::ScalarTokens], 3)] {
        let m = model(&config("lru", without));
        let weight = &m.params().entries()[0];
        assert_eq!((weight.name.as_str(), weight.shape.last()), ("encoder.input_projection.weight", features));
    }
}

#[test]
fn positions_are_those_asked_for() {
    let with = |name: &str, positions| ModelConfig { positions, ..config(name, &[]) };
    for name in ["gpt", "linear_transformer", "delta_net", "lstm"] {
        let all = [Positions::None, Positions::Learned, Positions::Sinusoidal].map(|p| {
            let m = model(&with(name, p));
            let learned = m.params().entries().iter().any(|e| e.name == "position_embedding.weight");
            assert_eq!(learned, p == Positions::Learned);
            logits(&mut model(&with(name, p)), &tokens(5), false, Form::Fused)
        });
        let apart = [1, 2].map(|i| distance(&all[0], &all[i]));
        assert!(apart.iter().all(|&d| d > 1e-3), "{name}: logits are {apart:?} apart");
    }
    for name in ["gpt", "linear_transformer", "delta_net"] {
        let [none, rope] = [Positions::None, Positions::Rope]
            .map(|p| logits(&mut model(&with(name, p)), &tokens(5), false, Form::Fused));
        assert!(distance(&none, &rope) > 1e-3, "{name}");
    }
}

#[test]
fn a_state_is_carried_in_training_and_only_where_there_is_one() {
    for (name, carries) in [("lstm", true), ("quasi_lstm", true), ("lru", true), ("gpt", false), ("delta_net", false)] {
        let c = ModelConfig { carry_state: true, ..config(name, &[]) };
        let (mut m, x) = (model(&c), tokens(5));
        let fresh = logits(&mut model(&config(name, &[])), &x, true, Form::Fused);
        let [first, second] = [(); 2].map(|()| logits(&mut m, &x, true, Form::Fused));
        assert_eq!(first, fresh, "{name}");
        assert_eq!(second != first, carries, "{name}");
    }
    // Evaluation starts from zeros.
    let (mut carrying, x) = (model(&ModelConfig { carry_state: true, ..config("lstm", &[]) }), tokens(5));
    logits(&mut carrying, &x, true, Form::Fused);
    let zeros = logits(&mut model(&config("lstm", &[])), &x, false, Form::Fused);
    assert_eq!(logits(&mut carrying, &x, false, Form::Fused), zeros);
}

#[test]
fn parameters_and_buffers_are_all_there_is_to_a_model_in_training() {
    for name in published::names() {
        let c = ModelConfig { carry_state: true, ..config(name, &[]) };
        let mut m = model(&c);
        (0..3).for_each(|i| drop(logits(&mut m, &tokens(i), true, Form::Fused)));
        let mut copy = model(&c);
        copy.begin_carrying(B);
        let moved: Vec<_> = m.buffers().into_iter().map(|(name, t)| (name, t.clone())).collect();
        let names: Vec<&str> = moved.iter().map(|b| b.0).collect();
        assert_eq!(
            names,
            match name {
                "lru" => vec!["statistics", "carried"],
                "lstm" | "quasi_lstm" => vec!["carried"],
                _ => vec![],
            }
        );
        for ((own, to), (other, from)) in copy.buffers().into_iter().zip(moved) {
            assert_eq!((own, to.shape()), (other, from.shape()));
            *to = Tensor::from_vec(from.to_f64(), from.shape());
        }
        for training in [false, true, false] {
            let y = [&mut m, &mut copy].map(|m| logits(m, &tokens(7), training, Form::Fused));
            assert_eq!(y[0], y[1], "{name}");
        }
    }
}

/// The loss over the rows with a target equals the loss over all rows, and so do its gradients.
#[test]
fn a_head_at_few_positions_gives_the_same_loss() {
    let task = Mqar { vocab: 16, ..Mqar::default() };
    let mut batch = Batch::new(B, T);
    batch.fill(&task, tapezoo::rng::stream(0, "test", 0));
    let (rows, targets) = batch.labelled().unwrap();
    assert_eq!(rows.shape().dims(), [B]);
    for variant in [Variant::Clean, Variant::Published] {
        let c = ModelConfig { vocab: 16, classes: 16, variant, ..config("gpt", &[]) };
        let run = |sparse: bool| {
            let (mut m, tape) = (model(&c), Tape::new(Device::Cpu));
            let p = m.params().bind(&tape);
            let x = tape.constant(&batch.tokens);
            let y = m.train(&p, x, Form::Fused, sparse.then(|| tape.constant(&rows)));
            let loss = y.cross_entropy(tape.constant(if sparse { &targets } else { &batch.targets }), IGNORE);
            tape.backward(loss);
            let mut grads = Tensor::zeros([m.params().len()], DType::F64);
            m.params().gather_grads(&tape, &p, &mut grads);
            (loss.value().item(), grads.to_f64())
        };
        let ((a, da), (b, db)) = (run(false), run(true));
        close(a, b, 1e-14, "the loss");
        all_close(&da, &db, 1e-14, "the gradient");
    }
}

#[test]
fn a_batch_with_many_targets_is_computed_whole_and_one_without_any_has_a_loss() {
    let mut batch = Batch::new(1, 4);
    for (targets, expected) in [
        ([1, 0, 1, 0], None),
        ([IGNORE, 0, IGNORE, 0], None),
        ([IGNORE, IGNORE, IGNORE, 0], Some((vec![3], vec![0]))),
        ([IGNORE; 4], Some((vec![0], vec![IGNORE]))),
    ] {
        batch.targets = Tensor::from_vec(targets.to_vec(), [1, 4]);
        let found = batch.labelled().map(|(r, t)| (r.host::<i32>().to_vec(), t.host::<i32>().to_vec()));
        assert_eq!(found, expected);
    }
}

#[test]
fn values_may_have_ids_of_their_own() {
    let all = |shared_ids| {
        let task = Mqar { layout: Layout::Published, keys: 2, values: 5, shared_ids, ..Mqar::default() };
        let mut batch = Batch::new(50, 8);
        batch.fill(&task, tapezoo::rng::stream(0, "test", 0));
        let mut of: [Vec<i32>; 3] = Default::default();
        for row in batch.tokens.host::<i32>().chunks(8) {
            [0, 1, 2, 3, 4, 5, 6, 7].iter().for_each(|&i| of[[0, 2, 1, 0, 2, 1, 0, 2][i]].push(row[i]));
        }
        of.map(|mut v| {
            v.sort();
            v.dedup();
            v
        })
    };
    assert_eq!(all(true), [vec![1, 2], vec![1, 2, 3, 4, 5], vec![7]]);
    assert_eq!(all(false), [vec![1, 2], vec![3, 4, 5, 6, 7], vec![9]]);
}

fn load(text: &str) -> Result<TrainConfig, String> {
    TrainConfig::load(None, text.parse().unwrap()).map_err(|e| e.to_string())
}

#[test]
fn every_figure_has_a_configuration_that_trains() {
    let files: Vec<_> = std::fs::read_dir(format!("{DIR}/poster")).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(files.len() >= 10, "{files:?}");
    for path in files {
        let cfg = TrainConfig::load(Some(&path), toml::Table::new()).unwrap();
        assert!(cfg.seeds >= 5, "{path:?}");
        for one in cfg.each_model().unwrap() {
            let mut small = one.clone();
            (small.batch, small.eval_batches, small.eval_batch) = (2, 1, 2);
            let mut trainer = Trainer::new(&small, 0).unwrap();
            assert!(trainer.step().unwrap().loss.is_finite(), "{path:?}");
            assert_eq!(trainer.evaluate().unwrap().0.len(), cfg.eval_lens.len());
        }
    }
}

/// The configurations are as `scripts/zoo.py` joins them, and as docs/zoo_results.md says.
#[test]
fn the_zoo_has_models_of_one_size_and_a_configuration_for_every_task() {
    let read = |name: &str| std::fs::read_to_string(format!("{DIR}/zoo/{name}")).unwrap();
    let tasks: Vec<String> = std::fs::read_dir(format!("{DIR}/zoo"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "models.toml")
        .collect();
    assert!(tasks.len() >= 11, "{tasks:?}");
    let load = |task: &str| load(&format!("{}\n{}", read(task), read("models.toml"))).unwrap();
    for task in &tasks {
        load(task).each_model().unwrap_or_else(|e| panic!("{task}: {e}"));
    }
    let cfg = load("parity.toml");
    for (name, own) in cfg.models.iter().zip(cfg.each_model().unwrap()) {
        let params = Model::new(&own.model, 0, DType::F32).unwrap().params().len();
        let expected = match own.model.mixer.as_str() {
            "gpt" => 88_000.0,
            "mom" => 113_000.0,
            _ => 90_000.0,
        };
        assert!((params as f64 / expected - 1.0).abs() < 0.005, "{name}: {params} parameters");
    }
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let published = "preset = 'published'\nmodel = { variant = 'published'";
    for (text, message) in [
        (
            format!("models = ['gpt']\n{published}, without = ['lookahead'] }}"),
            "without = lookahead: gpt has no such defect; of the published models, these do: mamba",
        ),
        ("models = ['lstm']\nmodel = { without = ['diagonal'] }".into(), "only variant = \"published\""),
        (format!("models = ['quasi_lstm']\ntrain_len = 20\n{published} }}"), "takes multiples of its block, 8"),
        (format!("models = ['slstm']\n{published} }}"), "model 'slstm': expected one of lstm, quasi_lstm"),
        (
            format!("models = ['lru']\n{published}, positions = 'sinusoidal' }}"),
            "positions: the published lru has none",
        ),
        (format!("models = ['delta_net']\n{published}, eigenvalues = '-1..1' }}"), "eigenvalues = -1..1"),
        ("model = { variant = 'poster' }".into(), "model.variant 'poster': expected clean or published"),
    ] {
        let error = load(&text).unwrap_err();
        assert!(error.contains(message), "{error}");
    }
}
