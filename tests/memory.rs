//! Memory kept for later steps is bounded, whatever their lengths.
#![allow(clippy::unwrap_used)]

#[cfg(target_os = "linux")]
use std::process::Command;
use tapezoo::{
    autograd::{Gen, Tape},
    models::Model,
    tensor::{Cpu, DType, Device},
    train::{
        Trainer,
        capacity::memory,
        config::TrainConfig,
        jobs::{jobs, work},
        progress::Progress,
        standing::Standing,
    },
};

mod device;

/// A step on sequences of this length: forward, backward, and release of all buffers.
fn step(tape: &mut Tape, len: usize, width: usize) {
    let x = Gen::new(len as u64).normal([2, len, width]).cast(DType::F32).to_device(tape.cx());
    let v = tape.leaf(&x);
    tape.backward((v.tanh() * v.sigmoid()).matmul_t(v).softmax().matmul(v * 0.5).sum());
    tape.reset();
}

/// The peak memory of one step of the longest length, and the most memory held at any time.
fn held(device: Device, longest: usize, width: usize, steps: usize) -> [usize; 2] {
    let mut alone = Tape::new(device);
    (0..2).for_each(|_| step(&mut alone, longest, width));
    let peak = alone.cx().pool().peak();
    let (mut tape, mut g, mut most) = (Tape::new(device), Gen::new(1), 0);
    for _ in 0..steps {
        step(&mut tape, 1 + g.below(longest), width);
        most = most.max(tape.cx().pool().held());
    }
    [peak, most]
}

fn config(len: &str, micro_batches: usize, more: &str) -> TrainConfig {
    let text = format!(
        "steps = 1000\nbatch = 8\ntrain_len = '{len}'\neval_lens = [8]\nmicro_batches = {micro_batches}\n{more}\n\
         model = {{ layers = 1, width = 8, heads = 2, head_dim = 4, mlp = 8, state = 4 }}\ntask = {{ name = 'parity' }}"
    );
    TrainConfig::from_layers("default", None, text.parse().unwrap()).unwrap()
}

#[test]
fn a_thousand_random_lengths_hold_little_more_than_the_longest_needs() {
    let [peak, most] = held(Device::Cpu, 512, 8, 1000);
    assert!(most <= 2 * peak, "{most} bytes were held, where the longest step needs {peak}");
    if let Some(device) = device::device() {
        let [peak, most] = held(device, 64, 3, 300);
        assert!(most <= 2 * peak, "{most} bytes of {device} were held, where the longest step needs {peak}");
    }
}

#[test]
fn random_lengths_find_their_memory_in_what_is_kept() {
    let (mut tape, mut g) = (Tape::new(Device::Cpu), Gen::new(1));
    let mut fresh = || {
        (0..500).for_each(|_| step(&mut tape, 65 + g.below(448), 8));
        tape.fresh_buffers()
    };
    let (first, all) = (fresh(), fresh());
    assert!(all - first <= 50, "500 steps made {} buffers anew, after {first} in the 500 before", all - first);
}

#[test]
fn training_on_a_range_of_lengths_holds_little_more_than_the_longest_needs() {
    for (name, micro_batches) in [("lstm", 1), ("mamba", 2)] {
        let memory = |len: &str, steps: usize| {
            let mut trainer = Trainer::new(&config(len, micro_batches, "").for_model(name).unwrap(), 0).unwrap();
            let mut most = 0;
            for _ in 0..steps {
                trainer.step().unwrap();
                most = most.max(trainer.memory()[0]);
            }
            [trainer.memory()[1], most]
        };
        let ([peak, _], [_, most]) = (memory("128-128", 2), memory("3-128", 300));
        assert!(most <= 2 * peak, "{name}: {most} bytes were held, where the longest step needs {peak}");
    }
}

#[test]
fn memory_that_is_not_there_is_a_message() {
    let said = tapezoo::error::quietly(|| {
        let tape = Tape::new(Device::Cpu);
        tape.cx().pool().get(DType::F32, [1 << 30, 1 << 30].into())
    });
    let said = said.unwrap_err();
    assert!(said.starts_with("out of memory: 4.6 EB asked for"), "{said}");
}

#[test]
fn what_training_holds_is_estimated_within_a_factor_of_two() {
    let mut off = vec![];
    for name in tapezoo::models::names() {
        let forms = Model::new(&config("64", 1, "").for_model(name).unwrap().model, 0, DType::F32).unwrap().forms();
        for form in forms {
            for len in [48, 400] {
                let more = format!("models = ['{name}']\nform = '{form}'");
                let cfg = config(&len.to_string(), 1, &more).for_model(name).unwrap();
                let mut trainer = Trainer::new(&cfg, 0).unwrap();
                trainer.step().unwrap();
                let params = 4 * trainer.model().params().len() * 4;
                let (is, said) = (trainer.memory()[1] + params, memory(&cfg, trainer.model(), 2)[0].bytes as usize);
                if is > 2 * said || said > 2 * is {
                    off.push(format!("{name} {form} T = {len}: {said} bytes estimated, {is} held"));
                }
            }
        }
    }
    assert!(off.is_empty(), "{off:#?}");
}

#[test]
fn a_larger_buffer_is_lent_only_where_an_idle_one_would_be_given_up() {
    let cpu = Cpu::default();
    let step = |lens: &[usize]| {
        lens.iter().for_each(|&len| drop(cpu.temp::<f32>(len)));
        cpu.pool().end_step();
        cpu.pool().fresh()
    };
    assert_eq!([(); 3].map(|()| step(&[40_000, 20_000])), [2; 3], "in steps of one shape each has its own");
    assert_eq!([(); 3].map(|()| step(&[20_000])), [2; 3]);
    assert_eq!(step(&[30_000]), 2, "the one of 40,000 is idle");
    assert_eq!(step(&[30_000]), 2);
}

#[test]
fn batches_are_counted_as_they_are_computed() {
    let of = |text: &str, carry_state: bool| {
        let mut cfg = config("64", 8, &format!("models = ['lru']\n{text}")).for_model("lru").unwrap();
        cfg.model.carry_state = carry_state;
        let model = Model::new(&cfg.model, 0, DType::F32).unwrap();
        memory(&cfg, &model, 2).iter().map(|part| part.bytes).collect::<Vec<_>>()
    };
    // A model that carries its state computes a batch whole, four times what two cores have of eight parts.
    let (apart, whole) = (of("", false)[0], of("", true)[0]);
    assert!(whole > 2.0 * apart, "{whole} bytes estimated, and {apart} for parts");
    // An evaluation goes by parts: sixteen times the sequences are more parts, and no larger ones.
    let [few, many] = [64, 1024].map(|n| of(&format!("eval_batch = {n}\neval_batches = 8"), false)[1]);
    assert!(many < 2.0 * few, "{many} bytes estimated for 1024 sequences, {few} for 64");
}

#[test]
fn what_does_not_fit_is_refused_with_its_size_and_what_to_change() {
    let refused = |text: &str, words: &[&str]| {
        let task = "task = { name = 'parity' }";
        let why = TrainConfig::from_layers("default", None, format!("{text}\n{task}").parse().unwrap()).unwrap_err();
        let why = why.to_string();
        assert!(words.iter().all(|word| why.contains(word)) && why.lines().count() <= 2, "{text}: {why}");
    };
    refused("seeds = 1000000000", &["seeds 1000000000", "7000000000 runs", "lower --seeds"]);
    refused("eval_batches = 9000000000000000000", &["evaluating 9000000000000000000 batches", "years of a core"]);
    refused("steps = 9000000000000000000", &["training for 9000000000000000000 steps", "lower --steps"]);
    refused("models = ['gpt']\nform = 'parallel'\neval_lens = [240000]", &["gpt: asks for about", "length 240000"]);
    // Attention takes time where it takes no memory.
    let years = ["gpt: evaluating 10000000 batches of 32 at length 24000", "years of a core", "lower eval_lens"];
    refused("models = ['gpt']\neval_lens = [24000]\neval_batches = 10000000", &years);
    refused("models = ['lstm']\nmodel = { width = 65536, layers = 1024 }", &["parameters ask for", "lower --width"]);
    refused("models = ['lstm']\ntrain_len = 2048\nbatch = 32768\nmodel = { width = 4096 }", &["lower --batch"]);
}

#[test]
fn a_run_without_memory_leaves_the_others_alone() {
    let cfg = config("8", 1, "models = ['lstm', 'gpt', 'mamba']\nseeds = 1\neval_batches = 1\neval_batch = 2");
    let mut jobs = jobs(&cfg, None).unwrap();
    for job in &mut jobs {
        job.cfg.steps = 3;
    }
    // Beyond the estimate, as if other processes took memory later.
    jobs[1].cfg.batch = 1 << 40;
    let (mut reports, standing) = (vec![None; 3], Standing::default());
    for threads in [1, 3] {
        work(&jobs.iter().collect::<Vec<_>>(), threads, &Progress::new(false), &standing, None, |i, report| {
            reports[i] = Some(report)
        });
        let errors: Vec<_> = reports.iter().map(|report| report.as_ref().unwrap().error.clone()).collect();
        assert!(errors[0].is_none() && errors[2].is_none(), "{errors:?}");
        assert!(errors[1].as_ref().is_some_and(|e| e.starts_with("out of memory: 35.2 TB asked for")), "{errors:?}");
        assert_eq!(standing.finished().len(), 2);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn runs_that_fit_one_by_one_are_refused_side_by_side_and_read_where_none_fits() {
    let dir = tempfile::tempdir().unwrap();
    let run = |kilobytes: usize, line: &str| {
        let script = format!("ulimit -v {kilobytes}; exec {} {line}", env!("CARGO_BIN_EXE_tapezoo"));
        let output = Command::new("bash").args(["-c", &script]).current_dir(dir.path()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let line = "parity --models lstm,quasi_lstm --seeds 1 --steps 1 --train-len 256 --batch 64 --width 128 --heads 2 \
                --head-dim 64 --eval-lens 8 --micro-batches 1 --force --out runs --jobs";
    let (status, said) = run(700_000, &format!("{line} 1"));
    assert_eq!(status, Some(0), "{said}");
    let (status, said) = run(700_000, &format!("{line} 2"));
    assert_eq!(status, Some(2), "{said}");
    assert!(said.contains("2 runs side by side ask for about") && said.contains("expected --jobs 1"), "{said}");
    assert!(dir.path().join("runs/lstm-seed0/result.json").exists(), "the runs before are gone");
    // Reading takes less than training.
    let (status, said) = run(400_000, &format!("{line} 1"));
    assert!(status == Some(2) && said.contains("lstm: asks for about"), "{said}");
    for line in ["report runs", "inspect --checkpoint runs/lstm-seed0 --len 8", "parity --resume runs"] {
        let (status, said) = run(400_000, line);
        assert_eq!(status, Some(0), "{line}: {said}");
    }
}

#[test]
fn the_estimate_needs_no_values() {
    for (name, variant) in tapezoo::models::names().into_iter().flat_map(|n| [(n, "clean"), (n, "published")]) {
        let preset = if variant == "clean" { "default" } else { "published" };
        let text = format!("models = ['{name}']\neval_lens = [512]\ntrain_len = 400\ntask = {{ name = 'parity' }}");
        let Ok(cfg) = TrainConfig::from_layers(preset, None, text.parse().unwrap()) else { continue };
        let cfg = cfg.for_model(name).unwrap();
        let said = |model: &Model| format!("{:?}", memory(&cfg, model, 2));
        let (real, hollow) =
            (Model::new(&cfg.model, 0, cfg.dtype).unwrap(), Model::hollow(&cfg.model, cfg.dtype).unwrap());
        assert_eq!(said(&real), said(&hollow), "{name}, {variant}");
        let places =
            |model: &Model| model.params().entries().iter().map(|e| (e.name.clone(), e.offset)).collect::<Vec<_>>();
        assert_eq!(places(&real), places(&hollow), "{name}, {variant}");
    }
}
