//! Training: independent of the number of threads, equal to torch, with clear errors, and with its files on disk in
//! time.

#![allow(clippy::unwrap_used)]

mod close;
mod program;
mod texts;

use close::{all_close, close};
use program::program;
use safetensors::SafeTensors;
use serde_json::Value;
use std::{collections::BTreeMap, fs, path::Path, process, thread, time::Duration};
use tapezoo::{
    autograd::Tape,
    error::Error,
    models, rng,
    tasks::{Batch, IGNORE, Len},
    tensor::{DType, Tensor},
    train::{
        Accuracy, RunReport, Scores, Step, Trainer, Watch,
        config::{PRESETS, TrainConfig},
        jobs::{run_all, said},
        optimizer::{Adam, AdamConfig, Rule, clip},
        rundir::{self, RunDir},
        schedule::{Schedule, Shape},
        sweep::{Plan, Summary},
        table, train,
    },
};
use texts::contains;

/// A small experiment, with these keys changed.
fn config(changes: &str) -> TrainConfig {
    let mut small: toml::Table = "eval_lens = [8, 12]\ntrain_len = 8\nbatch = 4\nsteps = 6\neval_batches = 2\n\
        log_every = 1\n[model]\nwidth = 8\nheads = 2\nhead_dim = 4\nmlp = 8\nstate = 4"
        .parse()
        .unwrap();
    small.extend(changes.parse::<toml::Table>().unwrap());
    TrainConfig::load(None, small).unwrap()
}

/// Every file under a directory, by its path from there.
fn files(top: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut open = vec![top.to_path_buf()];
    while let Some(dir) = open.pop() {
        for path in fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path()) {
            if path.is_dir() {
                open.push(path);
            } else {
                all.insert(path.strip_prefix(top).unwrap().display().to_string(), fs::read(&path).unwrap());
            }
        }
    }
    all
}

/// With a curriculum the longest training length grows from the task's shortest length to the configured one.
#[test]
fn lengths_grow_over_the_curriculum() {
    let cfg = config("train_len = \"3-40\"\ncurriculum = 10\ntask = { name = \"arithmetic\" }");
    let longest: Vec<usize> = (1..=12).map(|step| cfg.train_len_at(step).max).collect();
    assert_eq!(longest, [6, 10, 14, 17, 21, 25, 28, 32, 36, 40, 40, 40]);
    let brackets = "{ name = \"arithmetic\", language = \"modular_arithmetic_with_brackets\" }";
    let cfg = config(&format!("train_len = \"3-40\"\ncurriculum = 100\ntask = {brackets}"));
    assert_eq!(cfg.train_len_at(1).max, 5);
    // A run along it, and one at the full length from the start.
    let mut losses = [Losses(vec![]), Losses(vec![])];
    for (watch, curriculum) in losses.iter_mut().zip([4, 0]) {
        let cfg =
            config(&format!("train_len = \"3-12\"\neval_lens = [12]\ncurriculum = {curriculum}\nmodels = [\"lstm\"]"));
        train(&cfg.for_model("lstm").unwrap(), 0, watch).unwrap();
    }
    assert_eq!(losses[0].0.len(), 6);
    assert!(losses[0].0[..3].iter().zip(&losses[1].0).all(|(a, b)| a != b), "{:?}, {:?}", losses[0].0, losses[1].0);
    assert_eq!(losses[1].0.len(), 6);
}

struct Losses(Vec<u64>);

impl Watch for Losses {
    fn step(&mut self, step: &Step) -> tapezoo::error::Result<()> {
        self.0.push(step.loss.to_bits());
        Ok(())
    }
    fn evaluation(&mut self, _: usize, _: &Accuracy, _: &Scores) -> tapezoo::error::Result<()> {
        Ok(())
    }
}

#[test]
fn results_are_the_same_bits_on_one_thread_and_on_two() {
    let cfg = config("seeds = 2\nmodels = ['all']");
    let on = |threads: usize| {
        let dir = tempfile::tempdir().unwrap();
        let out = RunDir::create(&dir.path().join("run"), &cfg, false).unwrap();
        let (reports, written) = run_all(&cfg, threads, Some(&out), false).unwrap();
        written.unwrap();
        let key = |r: &RunReport| (r.model.clone(), r.seed, r.accuracy.clone(), r.error.clone());
        let kept = |name: &str| name.ends_with("jsonl") || name.ends_with("safetensors");
        let files: BTreeMap<_, _> = files(dir.path()).into_iter().filter(|f| kept(&f.0)).collect();
        assert_eq!(files.len(), 2 * 2 * models::names().len());
        (reports.iter().map(key).collect::<Vec<_>>(), files)
    };
    let (one, two) = (on(1), on(2));
    assert_eq!(one.0, two.0);
    for (name, bytes) in one.1 {
        assert!(two.1[&name] == bytes, "{name} is not the same");
    }
}

#[test]
fn the_seed_is_all_there_is_to_the_losses() {
    let cfg = config("models = ['delta_net']").for_model("delta_net").unwrap();
    let losses = |seed| {
        let mut losses = Losses(vec![]);
        train(&cfg, seed, &mut losses).unwrap();
        losses.0
    };
    assert_eq!(losses(3), losses(3));
    assert_ne!(losses(3), losses(4));
}

#[test]
fn smoothed_targets_are_trained_on_and_not_evaluated_on() {
    let first = |text: &str| {
        let cfg = config(text).for_model("lstm").unwrap();
        let mut trainer = Trainer::new(&cfg, 0).unwrap();
        (trainer.step().unwrap().grad_norm, trainer.evaluate().unwrap())
    };
    let (plain, smoothed) = (first("lr = 1e-30"), first("lr = 1e-30\nlabel_smoothing = 0.5"));
    assert_ne!(plain.0, smoothed.0);
    assert_eq!(plain.1, smoothed.1);
    // The loss is that of the smoothed targets.
    let cfg = config("label_smoothing = 0.5\nmicro_batches = 1").for_model("lstm").unwrap();
    let model = models::Model::new(&cfg.model, 0, cfg.dtype).unwrap();
    let mut batch = Batch::new(cfg.batch, cfg.train_len);
    batch.fill(&*cfg.task, rng::stream(0, "train", 0));
    let tape = Tape::default();
    let logits = model.forward(&model.params().bind_frozen(&tape), tape.constant(&batch.tokens), model.default_form());
    let want = logits.cross_entropy_smoothed(tape.constant(&batch.targets), IGNORE, 0.5).value().item();
    let got = Trainer::new(&cfg, 0).unwrap().step().unwrap().loss;
    close(got, want, 1e-5, "the loss of the first step");
}

/// Of the losses the first is recorded, and those of multiples of `log_every`.
#[test]
fn losses_are_recorded_as_often_as_asked() {
    let dir = tempfile::tempdir().unwrap();
    let cfg = config("models = ['lstm']\nseeds = 1\nsteps = 8\nlog_every = 3");
    let out = RunDir::create(&dir.path().join("run"), &cfg, false).unwrap();
    run_all(&cfg, 1, Some(&out), false).unwrap().1.unwrap();
    let metrics = fs::read_to_string(out.of("lstm", cfg.seed).join("metrics.jsonl")).unwrap();
    let lines = metrics.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let steps: Vec<u64> = lines.filter(|l| l.get("loss").is_some()).map(|l| l["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [1, 3, 6]);
}

#[test]
fn the_loss_of_every_mixer_goes_down() {
    // Sequences of two tokens: the parity of two bits, which every mixer can learn.
    let cfg = config("train_len = 2\neval_lens = [2]\nsteps = 1500\nbatch = 32\nlr = 1e-2");
    for name in models::names() {
        let mut losses = Losses(vec![]);
        let trained = train(&cfg.for_model(name).unwrap(), 0, &mut losses).unwrap();
        let last = losses.0[1400..].iter().map(|&loss| f64::from_bits(loss)).sum::<f64>() / 100.0;
        assert!(last < 0.3, "{name}: the loss is {last} in the end; that of a coin is 0.69");
        assert!(trained.accuracy[0].1 > 0.8, "{name}: {:?}", trained.accuracy);
    }
}

#[test]
fn no_step_after_the_second_allocates_a_buffer() {
    for (name, more) in models::names().into_iter().flat_map(|name| [(name, ""), (name, "micro_batches = 3")]) {
        let mut trainer = Trainer::new(&config(more).for_model(name).unwrap(), 0).unwrap();
        (0..2).for_each(|_| assert!(trainer.step().unwrap().loss.is_finite()));
        let before = trainer.fresh_buffers();
        (0..3).for_each(|_| assert!(trainer.step().unwrap().loss.is_finite()));
        assert_eq!(trainer.fresh_buffers(), before, "{name} {more}");
    }
}

#[test]
fn weight_decay_keeps_to_its_windows() {
    let config = AdamConfig { rule: Rule::AdamW, betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.5 };
    let mut p = Tensor::full([4], DType::F64, 2.0);
    Adam::new(4, DType::F64, config).step(0.1, &mut p, &Tensor::zeros([4], DType::F64), &[(0..1, false), (1..4, true)]);
    assert_eq!(p.to_f64(), [2.0, 1.9, 1.9, 1.9]);
}

#[test]
fn matrices_decay_and_biases_and_norms_do_not() {
    let cfg = config("dtype = 'f64'").for_model("lstm").unwrap();
    let mut model = models::Model::new(&cfg.model, 0, DType::F64).unwrap();
    model.params_mut().flat_mut().host_mut::<f64>().fill(2.0);
    let zeros = Tensor::zeros([model.params().len()], DType::F64);
    let adam = AdamConfig { rule: Rule::AdamW, betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.5 };
    Adam::of(model.params(), adam).update(0.1, model.params_mut(), &zeros);
    for (name, x) in model.params().tensors() {
        let want = if x.shape().rank() == 2 { 1.9 } else { 2.0 };
        assert!(x.to_f64().iter().all(|&x| x == want), "{name}: {:?}", x.to_f64());
    }
}

#[test]
fn clipping_scales_to_the_norm_asked_for() {
    for dtype in [DType::F32, DType::F64] {
        let g = || Tensor::from_vec((0..19).map(|i| f64::from(i % 3) - 1.0).collect::<Vec<_>>(), [19]).cast(dtype);
        let norm = g().to_f64().iter().map(|g| g * g).sum::<f64>().sqrt();
        for (max, expected) in [(0.0, norm), (100.0, norm), (0.5, 0.5)] {
            let mut clipped = g();
            close(clip(&mut clipped, max), norm, 1e-12, format_args!("the norm before clipping to {max}"));
            close(clip(&mut clipped, 0.0), expected, 1e-6, format_args!("the norm clipped to {max}"));
        }
    }
}

#[test]
fn schedules_rise_hold_and_fall() {
    let s = Schedule { shape: Shape::Cosine, peak: 2.0, min_ratio: 0.1, warmup: 10, steps: 110 };
    assert_eq!((s.lr(1), s.lr(5), s.lr(10)), (0.2, 1.0, 2.0));
    close(s.lr(60), 1.1, 1e-12, "half way down");
    close(s.lr(110), 0.2, 1e-12, "at the end");
    let rises = (11..110).find(|&i| s.lr(i + 1) >= s.lr(i));
    assert_eq!(rises, None, "the rate does not fall after this step");
    let s = Schedule { shape: Shape::Constant, warmup: 0, ..s };
    assert_eq!((s.lr(1), s.lr(110)), (2.0, 2.0));
    let s = Schedule { shape: Shape::Cosine, warmup: 110, ..s };
    assert_eq!(s.lr(110), 2.0);
    // A run that ends on the way up, and goes on all the same.
    let s = Schedule { warmup: 120, ..s };
    assert!((0.2..=2.0).contains(&s.lr(121)), "{}", s.lr(121));
}

#[test]
fn a_run_takes_its_steps_at_the_rates_of_its_schedule() {
    let keys = "lr = 1e-2\nwarmup = 2\nschedule = 'cosine'\nmin_lr_fraction = 0.3";
    let mut trainer = Trainer::new(&config(keys).for_model("lstm").unwrap(), 0).unwrap();
    let rates: Vec<f64> = (0..6).map(|_| trainer.step().unwrap().lr).collect();
    let fall = |part: f64| 1e-2 * (0.3 + 0.35 * (1.0 + (std::f64::consts::PI * part).cos()));
    all_close(&rates, &[5e-3, 1e-2, fall(0.25), fall(0.5), fall(0.75), fall(1.0)], 1e-12, "rates");
}

/// A run is batches of its stream, gradients, clipping and updates with the constants of its configuration.
#[test]
fn a_run_is_made_of_its_steps() {
    let keys = "dtype = 'f64'\nmicro_batches = 1\nschedule = 'constant'\nwarmup = 0\nlr = 1e-2\nclip = 0.05\n\
        optimizer = 'adamw'\nweight_decay = 0.3\nbetas = [0.8, 0.95]\neps = 1e-3";
    let cfg = config(keys).for_model("lstm").unwrap();
    let mut trainer = Trainer::new(&cfg, 3).unwrap();
    let mut model = models::Model::new(&cfg.model, 3, DType::F64).unwrap();
    let own = AdamConfig { rule: Rule::AdamW, betas: [0.8, 0.95], eps: 1e-3, weight_decay: 0.3 };
    let mut adam = Adam::of(model.params(), own);
    let (mut tape, mut batch) = (Tape::default(), Batch::new(cfg.batch, cfg.train_len.max));
    for i in 0..4 {
        trainer.step().unwrap();
        batch.fill(&*cfg.task, rng::stream(3, "train", i));
        let (_, mut grads) = model.params().gradient(&mut tape, |tape, p| model.loss(tape, p, &batch));
        clip(&mut grads, 0.05);
        adam.update(1e-2, model.params_mut(), &grads);
    }
    let [got, want] = [trainer.model(), &model].map(|model| model.params().flat().to_f64());
    all_close(&got, &want, 1e-9, "weights");
}

#[test]
fn a_run_that_blows_up_names_step_and_op_and_leaves_the_others_alone() {
    let quiet = config("models = ['lstm', 'lru']\nseeds = 1");
    let loud = config("models = ['lstm', 'lru']\nseeds = 1\n[per_model.lru]\nlr = 1e30\nclip = 0.0\nwarmup = 0");
    let (quiet, loud) = (run_all(&quiet, 2, None, false).unwrap().0, run_all(&loud, 2, None, false).unwrap().0);
    assert_eq!((&loud[0].accuracy, &loud[0].error), (&quiet[0].accuracy, &None));
    let error = loud[1].error.as_deref().unwrap();
    assert!(
        error.starts_with("step 2: the value of op '") && error.ends_with("is not finite; lower lr, or set clip"),
        "{error}"
    );
    assert!(loud[1].accuracy.is_empty(), "{:?}", loud[1].accuracy);
}

/// As in the tables: what is not perfect does not read 1.000.
#[test]
fn a_finished_run_is_not_said_to_be_perfect_unless_it_is() {
    let said =
        |accuracy| said(&RunReport { accuracy: vec![(Len::from(48), accuracy)], wall_s: 1.0, ..RunReport::default() });
    assert_eq!([0.99993, 1.0].map(said), ["0.999 at 48, 1.0 s", "1.000 at 48, 1.0 s"]);
}

#[test]
fn a_last_update_that_is_not_finite_is_not_missed() {
    let cfg = config("models = ['gpt']\nsteps = 1\nwarmup = 0\nlr = 1e300").for_model("gpt").unwrap();
    let error = train(&cfg, 0, &mut Losses(vec![])).err().unwrap();
    assert!(matches!(error, Error::NotFinite { step: 1, .. }), "{error}");
}

#[test]
fn points_of_a_sweep_are_compared_at_a_length_that_all_have_and_bits_by_the_least() {
    let dir = tempfile::tempdir().unwrap();
    let grid = dir.path().join("grid.toml");
    fs::write(&grid, "models = ['gpt']\nseeds = 1\n[grid]\nlr = [0.01, 0.02]").unwrap();
    let plan = Plan::load(&grid).unwrap();
    let report = |bits: &[(usize, f64)]| {
        let of: Accuracy = bits.iter().map(|&(len, x)| (Len::from(len), x)).collect();
        let scores = BTreeMap::from([("bits_per_byte".into(), of)]);
        vec![RunReport { model: "gpt".into(), scores, ..RunReport::default() }]
    };
    let best = |one: &[(usize, f64)], two: &[(usize, f64)]| {
        let summary = Summary::new(&plan, vec![report(one), report(two)]);
        let groups = summary.groups();
        (groups[0].len, groups[0].best_of_each_model()[0].values[0].clone())
    };
    assert_eq!(best(&[(32, 2.0), (64, 1.0)], &[(32, 1.5), (128, 9.0)]), (Some(Len::from(32)), "0.02".into()));
    assert_eq!(best(&[(32, 1.0), (64, 3.0)], &[(128, 2.0)]), (None, "0.02".into()));
}

#[test]
fn presets_are_whole_and_read_back_as_they_were_written() {
    for (name, _) in PRESETS {
        let flags: toml::Table = [("preset".to_string(), name.into())].into_iter().collect();
        let cfg = TrainConfig::load(None, flags).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        fs::write(&path, cfg.to_toml().unwrap()).unwrap();
        assert_eq!(TrainConfig::load(Some(&path), toml::Table::new()).unwrap(), cfg);
    }
}

#[test]
fn flags_are_over_the_file_and_the_file_is_over_the_preset_also_for_single_models() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("my.toml");
    fs::write(&path, "preset = 'published'\nlr = 0.5\n[model]\nstate = 6\n[per_model.gpt]\nsteps = 7").unwrap();
    let cfg = TrainConfig::load(Some(&path), "steps = 9\nmodel.layers = 1".parse().unwrap()).unwrap();
    let lru = cfg.for_model("lru").unwrap();
    assert_eq!((lru.lr, lru.steps, lru.betas), (0.5, 9, [0.9, 0.95]));
    // 128 is the preset's width for the LRU alone; its state is 4 there, but the file's 6 is for all.
    assert_eq!((lru.model.width, lru.model.state, lru.model.layers), (128, 6, 1));
    assert_eq!((cfg.for_model("gpt").unwrap().steps, cfg.for_model("lstm").unwrap().model.width), (9, 4));
}

#[test]
fn files_appear_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    rundir::write(&path, b"old").unwrap();
    rundir::write(&path, b"new").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert!(rundir::write(&dir.path().join("no/such/file"), b"").is_err());
    fs::create_dir(dir.path().join("full")).unwrap();
    fs::write(dir.path().join("full/x"), b"").unwrap();
    let error = rundir::write(&dir.path().join("full"), b"").unwrap_err();
    assert!(error.to_string().contains("full"), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "a temporary file was left behind");
}

/// All weights by name, as a reader in another language would find them.
#[test]
fn weights_are_saved_under_their_names() {
    let cfg = config("models = ['mamba']\nseed = 5\ndtype = 'f64'");
    let dir = tempfile::tempdir().unwrap();
    let out = RunDir::create(dir.path(), &cfg, false).unwrap();
    run_all(&cfg, 1, Some(&out), false).unwrap().1.unwrap();
    let bytes = fs::read(dir.path().join("mamba-seed5/weights.safetensors")).unwrap();
    let (saved, (_, meta)) = (SafeTensors::deserialize(&bytes).unwrap(), SafeTensors::read_metadata(&bytes).unwrap());
    let mut trainer = Trainer::new(&cfg.for_model("mamba").unwrap(), 5).unwrap();
    (0..cfg.steps).for_each(|_| assert!(trainer.step().unwrap().loss.is_finite()));
    let mut count = 0;
    for (name, tensor) in trainer.model().params().tensors() {
        let view = saved.tensor(name).unwrap();
        assert_eq!(view.shape(), tensor.shape().dims());
        let values: Vec<f64> = view.data().chunks_exact(8).map(bytemuck::pod_read_unaligned).collect();
        assert_eq!(values, tensor.to_f64(), "{name}");
        count += 1;
    }
    assert_eq!(saved.len(), count);
    let about: Value = serde_json::from_str(&meta.metadata().clone().unwrap()["tapezoo"]).unwrap();
    assert_eq!((&about["step"], &about["seed"]), (&6.into(), &5.into()));
    let model: models::ModelConfig = serde_json::from_value(about["model"].clone()).unwrap();
    assert_eq!(&model, trainer.model().config());
}

/// Kill the program while it works: all finished files are complete.
#[test]
fn a_killed_process_leaves_files_that_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let mut child = program("parity")
        .args("--models lstm --seeds 2000 --steps 5 --train-len 4 --eval-lens 4 --batch 2 --out".split(' '))
        .arg(&out)
        .stdout(process::Stdio::null())
        .spawn()
        .unwrap();
    while !out.join("results.json").exists() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it could be killed");
        thread::sleep(Duration::from_millis(5));
    }
    thread::sleep(Duration::from_millis(100));
    child.kill().unwrap();
    child.wait().unwrap();

    let results: Value = serde_json::from_slice(&fs::read(out.join("results.json")).unwrap()).unwrap();
    let runs = results["runs"].as_array().unwrap();
    assert!((1..2000).contains(&runs.len()), "{} runs", runs.len());
    contains(fs::read_to_string(out.join("table.txt")).unwrap(), "lstm");
    for run in runs {
        let dir = out.join(format!("lstm-seed{}", run["seed"]));
        let weights = fs::read(dir.join("weights.safetensors")).unwrap();
        SafeTensors::deserialize(&weights).unwrap();
        for line in fs::read_to_string(dir.join("metrics.jsonl")).unwrap().lines() {
            serde_json::from_str::<Value>(line).unwrap();
        }
    }
    // The configuration reads back.
    TrainConfig::load(Some(&out.join("config.toml")), toml::Table::new()).unwrap();
}

#[test]
fn a_table_fits_a_narrow_terminal_and_says_when_a_number_is_perfect() {
    let cfg: TrainConfig = "models = ['linear_transformer']".parse().unwrap();
    let report = |accuracy: f64| RunReport {
        model: "linear_transformer".into(),
        accuracy: [32, 64, 128, 256].map(|len| (Len::from(len), accuracy)).into(),
        params: 4544,
        ..RunReport::default()
    };
    let narrow = table::text_within(40, &cfg, &[report(1.0)]);
    assert!(narrow.lines().all(|line| line.chars().count() <= 40), "{narrow}");
    for word in [" 256", "params", "steps/s", "wall s", " 4544", "Only what is perfect reads 1.000."] {
        assert!(narrow.contains(word), "no '{word}' in:\n{narrow}");
    }
    let wide = table::text(&cfg, &[report(0.9996)]);
    assert!(wide.contains("0.999") && !wide.contains("perfect"), "{wide}");
    // A run that failed took no time that would tell about the others.
    let (took, failed) =
        (RunReport { wall_s: 8.5, ..report(1.0) }, RunReport { error: Some("no".into()), ..report(1.0) });
    let both = table::text(&cfg, &[took, failed]);
    assert!(both.contains(" 8.5"), "{both}");
    // A slow run makes some steps in a second, and not 0 of them.
    let slow = table::text(&cfg, &[RunReport { steps_per_s: 0.4, ..report(1.0) }]);
    assert!(slow.contains(" 0.40 "), "{slow}");
}

#[test]
fn numbers_stand_apart_however_wide_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let grid = dir.path().join("grid.toml");
    fs::write(&grid, "models = ['gpt']\nseeds = 2\n[grid]\nlr = [0.01]").unwrap();
    let plan = Plan::load(&grid).unwrap();
    let reports = [4321.0, 54_321.5].map(|bits| RunReport {
        model: "gpt".into(),
        seed: u64::from(bits > 5000.0),
        params: 123_456_789,
        accuracy: [32, 64].map(|len| (Len::from(len), 0.5)).into(),
        scores: BTreeMap::from([("bits_per_byte".into(), [32, 64].map(|len| (Len::from(len), bits)).into())]),
        ..RunReport::default()
    });
    let (mean, deviation) = ("29321.250", "±35355.693");
    let words = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>();
    let table = table::text(&plan.points[0].cfg, &reports);
    let of = |word: &str| words(&table).iter().filter(|w| *w == word).count();
    assert_eq!((of(mean), of(deviation), of("123456789")), (2, 2, 1), "{table}");
    let summary = Summary::new(&plan, vec![reports.to_vec()]).text();
    let of = |word: &str| words(&summary).iter().filter(|w| *w == word).count();
    assert_eq!((of(mean), of(deviation)), (2, 2), "{summary}");
}
