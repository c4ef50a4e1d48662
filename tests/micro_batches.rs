//! A batch in parts (`--micro-batches`): the gradient of the whole batch, and the same bits on any number of cores.

#![allow(clippy::unwrap_used)]

mod close;
mod texts;

use close::close;
use std::{fs, time::Duration};
use tapezoo::{
    autograd::Tape,
    inspect::source,
    models, rng,
    tasks::{Batch, Counts, IGNORE, Len},
    tensor::{Cores, Tensor},
    train::{
        Trainer,
        checkpoint::{self, Written},
        config::TrainConfig,
        evaluate::count_answers,
        jobs::{jobs, run_all},
        rundir::{self, RunDir},
    },
};
use texts::contains;

/// A small experiment on sequences with one target each, five in a batch, so that parts differ in size.
fn load(changes: &str) -> tapezoo::error::Result<TrainConfig> {
    let mut small: toml::Table = "eval_lens = [9]\ntrain_len = \"3-9\"\nbatch = 5\nsteps = 4\neval_batches = 5\n\
        eval_batch = 3\nlog_every = 1\ndevice = \"cpu\"\ntask = { name = \"arithmetic\" }\n\
        [model]\nwidth = 8\nheads = 2\nhead_dim = 4\nmlp = 8\nstate = 4"
        .parse()
        .unwrap();
    small.extend(changes.parse::<toml::Table>().unwrap());
    TrainConfig::load(None, small)
}

fn trainer(name: &str, changes: &str) -> Trainer {
    Trainer::new(&load(changes).unwrap().for_model(name).unwrap(), 1).unwrap()
}

/// Losses and gradient norms of four steps, the weights after them, and their accuracy.
fn course(mut trainer: Trainer) -> (Vec<f64>, Vec<f64>, impl PartialEq + std::fmt::Debug) {
    let steps: Vec<_> = (0..4).map(|_| trainer.step().unwrap()).collect();
    let told = steps.iter().flat_map(|step| [step.loss, step.grad_norm]).collect();
    let known = trainer.evaluate().unwrap();
    (told, trainer.model().params().flat().to_f64(), known)
}

#[test]
fn a_step_that_fails_leaves_the_weights() {
    for parts in [1, 2] {
        let mut trainer = trainer("lstm", &format!("lr = 1e30\nclip = 0.0\nwarmup = 0\nmicro_batches = {parts}"));
        let mut before = trainer.model().params().flat().to_f64();
        while trainer.step().is_ok() {
            assert!(trainer.steps() < 50, "a learning rate of 1e30 went well");
            before = trainer.model().params().flat().to_f64();
        }
        assert_eq!(trainer.model().params().flat().to_f64(), before, "{parts} parts");
    }
}

#[test]
fn the_parts_of_a_batch_add_up_to_its_loss_and_gradient() {
    for name in models::names() {
        let whole = course(trainer(name, "dtype = \"f64\""));
        for micro_batches in [2, 3, 5] {
            let parts = course(trainer(name, &format!("dtype = \"f64\"\nmicro_batches = {micro_batches}")));
            // Adam scales updates to about one, so the rounding of a tiny gradient may be large: only the first two
            // steps are compared.
            for (a, b) in parts.0[..4].iter().zip(&whole.0) {
                close(*a, *b, 1e-9, format_args!("{name}, {micro_batches} parts"));
            }
            assert_eq!(parts.2, whole.2, "{name}, {micro_batches} parts");
        }
    }
}

/// A published Mamba looks two tokens ahead, and a published quasi-LSTM takes multiples of eight tokens alone: a batch of
/// theirs is not cut where its targets end.
#[test]
fn parts_of_a_published_model_are_whole() {
    let model = "variant = 'published', width = 8, heads = 2, head_dim = 4, mlp = 8, state = 4";
    let task = "task = { name = 'mqar', layout = 'zoology', vocab = 16, pairs = 2 }";
    for name in ["mamba", "quasi_lstm"] {
        let course = |parts: usize| {
            let lens = format!("train_len = 16\neval_lens = [16]\neval_batch = 40\nmicro_batches = {parts}");
            course(trainer(name, &format!("dtype = 'f64'\nmodel = {{ {model} }}\n{task}\n{lens}")))
        };
        let whole = course(1);
        for parts in [2, 5] {
            let other = course(parts);
            for (a, b) in other.0[..4].iter().zip(&whole.0) {
                close(*a, *b, 1e-9, format_args!("{name}, {parts} parts"));
            }
            assert_eq!(other.2, whole.2, "{name}, {parts} parts");
        }
    }
}

/// Sequences of one target each, of several targets with gaps, with one everywhere, and none at all.
#[test]
fn a_batch_by_length_has_every_target_once_and_ends_with_its_last() {
    let tasks =
        [r#"name = "arithmetic""#, r#"name = "mqar", layout = "zoology", vocab = 16, pairs = 2"#, r#"name = "parity""#];
    let sequences = |batch: &Batch| -> Vec<Vec<(i32, i32)>> {
        let len = batch.targets.shape().at(1);
        let pairs = batch.tokens.host::<i32>().iter().copied().zip(batch.targets.host::<i32>().iter().copied());
        pairs.collect::<Vec<_>>().chunks_exact(len).map(<[_]>::to_vec).collect()
    };
    let cut = |sequence: &[(i32, i32)]| {
        let end = sequence.iter().rposition(|&(_, target)| target != IGNORE).map_or(0, |last| last + 1);
        sequence[..end].to_vec()
    };
    for (task, len) in tasks.into_iter().zip(["3-12", "12", "2-12"]) {
        let task = load(&format!("task = {{ {task} }}\ntrain_len = \"{len}\"\neval_lens = [12]")).unwrap().task;
        for size in [1, 2, 7, 16] {
            let mut batch = Batch::new(size, len.parse::<Len>().unwrap());
            batch.fill(&*task, rng::stream(1, "test", size as u64));
            for n in 2..=size {
                let parts = batch.by_length(n);
                assert_eq!(parts.len(), n);
                for part in &parts {
                    assert!((size / n..=size.div_ceil(n)).contains(&sequences(part).len()), "{len}: {size} in {n}");
                    let longest = sequences(part).iter().map(|s| cut(s).len()).max();
                    assert_eq!(longest, Some(part.targets.shape().at(1)), "{len}: {size} in {n}");
                }
                let lens: Vec<_> = parts.iter().map(|part| part.targets.shape().at(1)).collect();
                assert!(lens.is_sorted(), "{len}: {lens:?}");
                let sorted = |mut all: Vec<_>| {
                    all.sort();
                    all
                };
                let parts = parts.iter().flat_map(sequences).map(|s| cut(&s)).collect();
                let whole = sequences(&batch).iter().map(|s| cut(s)).collect();
                assert_eq!(sorted(parts), sorted(whole), "{len}: {size} in {n}");
            }
        }
    }
    // Without a target there is a token all the same, and of an empty batch nothing.
    let mut none = Batch::new(3, 4);
    none.targets.host_mut::<i32>().fill(IGNORE);
    assert_eq!(none.by_length(2).iter().map(|part| part.tokens.len()).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(Batch::new(3, 0).by_length(3).len(), 3);
}

/// Sequences of one length stay where they are, so that nothing is copied and no sum has another order.
#[test]
fn sequences_of_one_length_keep_their_order() {
    let mut batch = Batch::new(7, 5);
    batch.fill(&*load("task = { name = \"parity\" }").unwrap().task, rng::stream(1, "test", 0));
    let parts = batch.by_length(3);
    let joined =
        |of: fn(&Batch) -> &Tensor| parts.iter().flat_map(|p| of(p).host::<i32>().to_vec()).collect::<Vec<_>>();
    assert_eq!(joined(|b| &b.tokens), batch.tokens.host::<i32>());
    assert_eq!(joined(|b| &b.targets), batch.targets.host::<i32>());
}

/// An evaluation in parts counts the answers that the model gives to each of its batches at once.
#[test]
fn an_evaluation_in_parts_counts_the_answers_to_whole_batches() {
    for name in models::names() {
        let cfg = load("eval_lens = [\"3-64\"]\neval_batch = 70\neval_batches = 1\ndtype = \"f64\"").unwrap();
        let cfg = cfg.for_model(name).unwrap();
        let mut trainer = Trainer::new(&cfg, 1).unwrap();
        let (accuracy, _) = trainer.evaluate().unwrap();
        let (mut batch, tape) = (Batch::new(70, cfg.eval_lens[0]), Tape::default());
        batch.fill(&*cfg.task, rng::stream(0, "evaluate at 3-64", 0));
        let model = trainer.model();
        let params = model.params().bind_frozen(&tape);
        let logits = model.forward(&params, tape.constant(&batch.tokens), model.default_form()).value();
        let mut counts = Counts::new(cfg.task.classes());
        count_answers(&*cfg.task, &tape, &logits, (&batch, None, None), &mut counts);
        assert_eq!(accuracy, [(cfg.eval_lens[0], counts.accuracy())], "{name}");
    }
}

#[test]
fn idle_cores_change_no_bit() {
    for name in models::names() {
        let on = |idle: usize| {
            let mut trainer = trainer(name, "micro_batches = 3");
            trainer.share(&Cores::idle(idle));
            course(trainer)
        };
        let alone = on(0);
        for idle in [1, 2, 7] {
            assert!(on(idle) == alone, "{name}: {idle} idle cores");
        }
    }
}

/// The form `split` depends on its number of parts; where each part is a sequence, its bits do not.
#[test]
fn idle_cores_change_no_bit_of_a_split_sequence() {
    for (name, head_dim) in [("gla", 4), ("gla", 20), ("linear_transformer", 4), ("linear_transformer", 20)] {
        let on = |batch: usize, form: &str, idle: usize| {
            let changes = format!(
                "models = [\"{name}\"]\nbatch = {batch}\nform = \"{form}\"\n\
                 [model]\nwidth = 8\nheads = 2\nhead_dim = {head_dim}\nmlp = 8\nstate = 4"
            );
            let mut trainer = trainer(name, &changes);
            trainer.share(&Cores::idle(idle));
            course(trainer)
        };
        let alone = on(1, "split:3", 0);
        for idle in [1, 2, 7] {
            assert!(on(1, "split:3", idle) == alone, "{name}: {idle} idle cores");
        }
        assert!(on(5, "split:3", 1) == on(5, "chunked", 0), "{name}: whole sequences");
    }
}

/// More threads than runs, as many, and fewer.
#[test]
fn runs_in_parts_are_the_same_on_any_number_of_threads() {
    let cfg = load("micro_batches = 2\nseeds = 2\nmodels = [\"lru\", \"gpt\"]\neval_every = 2").unwrap();
    let on = |threads: usize| {
        let dir = tempfile::tempdir().unwrap();
        let out = RunDir::create(&dir.path().join("run"), &cfg, false).unwrap();
        let (reports, written) = run_all(&cfg, threads, Some(&out), false).unwrap();
        written.unwrap();
        let metrics = |m: &str, seed| fs::read(dir.path().join(format!("run/{m}-seed{seed}/metrics.jsonl"))).unwrap();
        let files: Vec<_> = ["lru", "gpt"].iter().flat_map(|m| [metrics(m, 0), metrics(m, 1)]).collect();
        let kept = fs::read_to_string(dir.path().join("run/config.toml")).unwrap();
        assert!(kept.contains("micro_batches = 2"), "{kept}");
        (reports.iter().map(|r| (r.model.clone(), r.seed, r.accuracy.clone())).collect::<Vec<_>>(), files)
    };
    let one = on(1);
    assert_eq!(one.0.len(), 4);
    for threads in [2, 3, 9] {
        assert!(on(threads) == one, "{threads} threads");
    }
}

/// The error for a gradient that is not finite names its origin, as with a whole batch.
#[test]
fn a_number_that_is_not_finite_is_found() {
    let error = |micro_batches: usize| {
        let mut trainer = trainer("lstm", &format!("lr = 1e38\nclip = 0.0\nmicro_batches = {micro_batches}"));
        (0..9).find_map(|_| trainer.step().err()).unwrap().to_string()
    };
    assert_eq!(error(2), error(1));
    assert!(error(2).contains("not finite"), "{}", error(2));
}

/// Batch statistics and carried states need whole batches.
#[test]
fn models_that_keep_numbers_of_whole_batches_stay_whole() {
    let published =
        "task = { name = \"parity\" }\ntrain_len = 6\nmodels = [\"lru\"]\nmodel = { variant = \"published\"";
    for more in [" }", ", carry_state = true }"] {
        let on = |micro_batches: usize| {
            let text = format!("micro_batches = {micro_batches}\n{published}{more}")
                .replace("lru", if more == " }" { "lru" } else { "lstm" });
            let cfg = load(&text).unwrap();
            course(Trainer::new(&cfg.for_model(&cfg.models[0]).unwrap(), 1).unwrap())
        };
        assert!(on(2) == on(1), "{more}");
    }
}

/// A part has about a thousand tokens, half as many for a mixer that saves much per token, and twice as many for a
/// narrow model; at least four sequences, and at most sixteen parts. A smaller batch is one part, or four if
/// its sequences differ in length.
#[test]
fn a_large_batch_is_in_parts_unless_it_is_said_otherwise() {
    let sizes = [
        ((5, "9"), [1, 1, 1]),
        ((32, "32"), [1, 2, 1]),
        ((32, "64"), [2, 4, 1]),
        ((128, "32"), [4, 8, 2]),
        ((32, "256"), [8, 8, 4]),
        ((8, "4096"), [2, 2, 2]),
        ((1, "65536"), [1, 1, 1]),
        ((4096, "512"), [16, 16, 16]),
        ((64, "2-8"), [4, 4, 4]),
        ((64, "3-40"), [4, 5, 4]),
        ((256, "3-40"), [10, 16, 5]),
        ((12, "3-40"), [3, 3, 3]),
    ];
    for ((batch, len), [n, of_slstm, narrow]) in sizes {
        let size = format!("batch = {batch}\ntrain_len = \"{len}\"");
        let cfg = load(&size).unwrap();
        assert_eq!(cfg.parts(), n, "{size}");
        assert!(cfg.to_toml().unwrap().contains("micro_batches = \"auto\""), "{size}");
        // A run's checkpoints record the number of parts, whatever a later version would choose.
        for (model, n) in [("gpt", n), ("slstm", of_slstm), ("mlstm", of_slstm)] {
            let own = cfg.for_model(model).unwrap().to_toml().unwrap();
            assert!(own.contains(&format!("micro_batches = {n}\n")), "{size}, {model}");
        }
        assert_eq!(load(&format!("{size}\nmicro_batches = 1")).unwrap().parts(), 1);
        for (width, n) in [(7, narrow), (8, n)] {
            assert_eq!(load(&format!("{size}\n[model]\nwidth = {width}")).unwrap().parts(), n, "{size}, width {width}");
        }
    }
}

/// Runs without a record of parts were computed in one.
#[test]
fn a_run_of_before_goes_on_in_one_part() {
    let dir = tempfile::tempdir().unwrap();
    let (path, cfg) = (dir.path().join("run"), load("batch = 128\ntrain_len = 32\nmicro_batches = 1").unwrap());
    RunDir::create(&path, &cfg, false).unwrap();
    let file = path.join("config.toml");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("micro_batches = 1\n"), "{text}");
    fs::write(&file, text.replace("micro_batches = 1\n", "")).unwrap();
    assert_eq!(RunDir::open(&path).unwrap().1.parts(), 1);
    RunDir::create_or_open(&path, &cfg).unwrap();
    let asked = RunDir::create_or_open(&path, &load("batch = 128\ntrain_len = 32").unwrap()).err().unwrap().to_string();
    assert!(asked.contains("micro_batches is 1 there, and \"auto\" here"), "{asked}");
}

/// A run that was started with another number of parts continues with that number.
#[test]
fn a_run_goes_on_in_as_many_parts_as_it_began_in() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("checkpoint.safetensors");
    let of = |more: &str| load(&format!("seed = 7\nbatch = 32\ntrain_len = 32\n{more}")).unwrap();
    let begun = of("micro_batches = 1").for_model("slstm").unwrap();
    checkpoint::save(&path, &mut Trainer::new(&begun, 7).unwrap(), Written::default(), Duration::ZERO).unwrap();
    let parts = |more: &str| rundir::configuration_of(dir.path(), &of(more), "slstm").unwrap();
    for (more, n) in [
        ("", 1),
        ("micro_batches = 2", 2),
        ("per_model = { slstm = { micro_batches = 4 } }", 4),
        ("micro_batches = 2\nper_model = { slstm = { micro_batches = \"auto\" } }", 1),
    ] {
        assert_eq!(parts(more).parts(), n, "{more}");
        assert_eq!(checkpoint::load(&path, &parts(more), 7).is_ok(), n == 1, "{more}");
    }
    let anew = rundir::configuration_of(&dir.path().join("none"), &of(""), "slstm").unwrap();
    assert_eq!(anew.parts(), 2);

    // The same holds for the runs of a directory and for `inspect`.
    let all = of("models = [\"slstm\"]");
    let out = RunDir::create(&dir.path().join("run"), &all, false).unwrap();
    let run = out.of("slstm", 7);
    fs::create_dir(&run).unwrap();
    fs::copy(&path, run.join(rundir::CHECKPOINT)).unwrap();
    fs::write(run.join(rundir::METRICS), "").unwrap();
    assert_eq!(jobs(&all, Some(&out)).unwrap()[0].cfg.parts(), 1);
    assert_eq!(source::checkpoint(&run).unwrap().config.parts(), 1);
}

/// The ops of every part are counted: of sequences of one length, three parts have three times as many calls, and as many
/// elements as the whole.
#[test]
fn a_profile_is_of_all_parts() {
    let told = |micro_batches: usize| {
        let mut trainer =
            trainer("gpt", &format!("task = {{ name = \"parity\" }}\ntrain_len = 9\nmicro_batches = {micro_batches}"));
        trainer.share(&Cores::idle(2));
        let cost = trainer.profile(20).unwrap().0["layer_norm"];
        (cost.calls, cost.bytes)
    };
    let (calls, bytes) = told(1);
    assert_eq!(told(3), (3 * calls, bytes));
}

/// Invalid settings are refused, with a remedy.
#[test]
fn parts_need_sequences() {
    let refused = |more: &str| load(more).unwrap_err().to_string();
    contains(refused("micro_batches = 0"), "micro_batches 0: expected at least 1");
    contains(refused("micro_batches = -2"), "micro_batches -2: expected a whole number from 1 on, or auto");
    contains(refused("micro_batches = \"many\""), "micro_batches many: expected a whole number from 1 on, or auto");
    contains(refused("micro_batches = 6"), "micro_batches 6: expected at most the 5 sequences of a batch");
}
