//! A training step that is recorded as a graph and replayed gives the same bits as a step launched kernel by kernel:
//! with new data in each step, evaluations in between, and changing lengths.
#![allow(clippy::unwrap_used)]

mod device;
mod texts;

use device::device;
use std::{panic, thread};
use tapezoo::{
    autograd::Tape,
    tasks::Batch,
    tensor::{DType, Device, Tensor},
    train::{Trainer, config::TrainConfig, on_device::OnDevice},
};
use texts::contains;
use toml::Value;

fn trainer(device: Device, model: &str, flags: &str) -> Trainer {
    let base = "batch = 3\ntrain_len = 6\neval_lens = [9]\neval_batch = 2\neval_batches = 1\nclip = 0.5\n";
    let sizes = "[model]\nlayers = 1\nwidth = 8\nheads = 2\nhead_dim = 4\nmlp = 8\n";
    let mut table: toml::Table = format!("{base}{sizes}").parse().unwrap();
    let mut flags: toml::Table = flags.parse().unwrap();
    if let Some(Value::Table(more)) = flags.remove("model") {
        table["model"].as_table_mut().unwrap().extend(more);
    }
    table.extend(flags);
    table.insert("device".into(), device.to_string().into());
    table.insert("models".into(), toml::Value::Array(vec![model.into()]));
    Trainer::new(&TrainConfig::load(None, table).unwrap().for_model(model).unwrap(), 1).unwrap()
}

/// The weights after some steps with an evaluation among them, the steps' metrics, and whether steps were replayed.
fn run(device: Device, model: &str, flags: &str) -> (Vec<f64>, Vec<[f64; 2]>, bool) {
    let mut trainer = trainer(device, model, flags);
    let mut told = Vec::new();
    for i in 0..9 {
        let step = trainer.step().unwrap();
        told.push([step.loss, step.grad_norm]);
        if i == 5 {
            trainer.evaluate().unwrap();
        }
    }
    let recorded = trainer.replays();
    (trainer.model().params().flat().to_f64(), told, recorded)
}

#[test]
fn a_replayed_step_is_the_launched_one() {
    let Some(device) = device() else { return };
    for flags in ["", "dtype = \"f64\"", "dtype = \"bf16\"", "weight_decay = 0.1\noptimizer = \"adamw\""] {
        assert_replayed(device, "lstm", flags);
    }
}

/// N-gram heads over a cell, a memory and a cache. Their matches depend on the tokens of the step.
#[test]
fn a_replayed_step_with_ngram_heads_is_the_launched_one() {
    let Some(device) = device() else { return };
    for model in ["lstm", "delta_net", "gpt"] {
        for dtype in ["f32", "bf16"] {
            let steps = assert_replayed(device, model, &format!("dtype = \"{dtype}\"\n[model]\nngram = 2"));
            let without = run(device, model, &format!("cuda_graph = \"off\"\ndtype = \"{dtype}\"")).1;
            assert!(steps != without, "{model}, {dtype}: the heads change nothing");
        }
    }
}

/// Steps that are replayed and steps that are launched have the same bits: their metrics.
fn assert_replayed(device: Device, model: &str, flags: &str) -> Vec<[f64; 2]> {
    let off = run(device, model, &format!("cuda_graph = \"off\"\n{flags}"));
    let on = run(device, model, &format!("cuda_graph = \"on\"\n{flags}"));
    assert!(on.2 && !off.2, "{model}, {flags}: recorded: {} and {}", on.2, off.2);
    assert_eq!(on.1, off.1, "{model}, {flags}");
    assert_eq!(on.0, off.0, "{model}, {flags}");
    on.1
}

#[test]
fn a_shape_that_changes_is_recorded_anew_or_launched() {
    let Some(device) = device() else { return };
    let flags = "curriculum = 4\ntrain_len = \"4-7\"";
    let off = run(device, "lstm", &format!("cuda_graph = \"off\"\n{flags}"));
    let on = run(device, "lstm", &format!("cuda_graph = \"auto\"\n{flags}"));
    assert_eq!((on.0, on.1), (off.0, off.1));
}

/// The end of a cuBLAS handle waits for all that its device does, and nobody may wait for a stream that records.
#[test]
fn a_device_that_ends_spoils_no_recording_by_another_thread() {
    let Some(device) = device() else { return };
    let matrix = |tape: &Tape| Tensor::full([4, 4], DType::F32, 2.0).to_device(tape.cx());
    let multiply = |tape: &Tape, x: &Tensor| tape.constant(x).matmul(tape.constant(x)).value();
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            for _ in 0..2000 {
                let tape = Tape::new(device);
                multiply(&tape, &matrix(&tape));
            }
        });
        let mut tape = Tape::new(device);
        let gpu = tape.cx().gpu().unwrap();
        while !other.is_finished() {
            let x = matrix(&tape);
            let mut y = multiply(&tape, &x);
            let mut graph = gpu.capture(|| (0..200).for_each(|_| y = multiply(&tape, &x)));
            gpu.replay(&mut graph);
            assert_eq!(y.to_f64(), [16.0; 16]);
            tape.reset();
        }
    });
}

#[test]
fn a_step_that_fails_leaves_the_weights_and_says_where() {
    let Some(device) = device() else { return };
    for graph in ["on", "off"] {
        let mut trainer =
            trainer(device, "lstm", &format!("cuda_graph = \"{graph}\"\nlr = 1e30\nclip = 0.0\nwarmup = 0"));
        let mut before = trainer.model().params().flat().to_f64();
        let error = loop {
            match trainer.step() {
                Ok(_) => before = trainer.model().params().flat().to_f64(),
                Err(e) => break e.to_string(),
            }
            assert!(trainer.steps() < 50, "a learning rate of 1e30 went well");
        };
        assert!(error.contains("not finite"), "{error}");
        assert_eq!(trainer.model().params().flat().to_f64(), before, "graph {graph}");
    }
}

/// A graph is one launch, so its ops cannot be profiled.
#[test]
fn a_profile_is_of_steps_that_are_launched() {
    let Some(device) = device() else { return };
    let mut trainer = trainer(device, "lstm", "cuda_graph = \"on\"");
    (0..4).for_each(|_| trainer.step().map(drop).unwrap());
    assert!(trainer.replays());
    let table = trainer.profile(1).unwrap().table(1);
    assert!(table.contains("lstm_sequence"), "{table}");
}

#[test]
fn what_cannot_be_recorded_is_said() {
    let Some(device) = device() else { return };
    let on_cpu = TrainConfig::load(None, "cuda_graph = \"on\"\ndevice = \"cpu\"".parse().unwrap());
    contains(on_cpu.unwrap_err().to_string(), "cuda_graph on: expected a device");
    let mut table: toml::Table =
        "preset = \"published-mqar\"\ncuda_graph = \"on\"\n[model]\nvariant = \"published\"\ncarry_state = true"
            .parse()
            .unwrap();
    table.insert("device".into(), device.to_string().into());
    let cfg = TrainConfig::load(None, table).unwrap().for_model("lstm").unwrap();
    let error = Trainer::new(&cfg, 0).map(drop).unwrap_err().to_string();
    assert!(error.contains("keeps a state from batch to batch"), "{error}");
}

/// A recorded copy reads the host's memory again when it is replayed, and by then the caller has freed that memory.
#[test]
fn a_recorded_copy_has_its_own_source() {
    let Some(device) = device() else { return };
    let tape = Tape::new(device);
    let gpu = tape.cx().gpu().unwrap();
    let mut x = Tensor::full([70], DType::I32, 3.0).to_device(tape.cx());
    let mut copied = Tensor::zeros([70], DType::I32);
    let mut graph = gpu.capture(|| {
        x.fill(-7.0);
        let host = Tensor::full([70], DType::I32, 5.0);
        copied = host.to_device(tape.cx());
    });
    assert_eq!(x.to_f64(), [3.0; 70]);
    for _ in 0..2 {
        // Other tensors are written where the source was.
        let others: Vec<_> = (0..100).map(|i| Tensor::full([70], DType::I32, f64::from(i))).collect();
        gpu.replay(&mut graph);
        assert_eq!((x.to_f64(), copied.to_f64(), others.len()), (vec![-7.0; 70], vec![5.0; 70], 100));
        x.fill(0.0);
    }
}

/// A replay runs no op's checks, so a batch unlike all earlier ones is not replayed.
#[test]
fn an_index_that_is_not_there_is_told_where_steps_are_replayed_too() {
    let Some(device) = device() else { return };
    let mut tape = Tape::new(device);
    let mut on = OnDevice::new(tape.cx(), 1, &[]).unwrap();
    let mut step = |id: i32| {
        let mut batch = Batch::new(1, 3usize);
        batch.tokens.host_mut::<i32>().copy_from_slice(&[0, id, 1]);
        on.give(tape.cx(), &batch, &[0.0; 11]);
        on.run(true, &mut tape, |on, tape| {
            on.upload();
            let table = tape.full([6, 4], DType::F32, 1.0);
            table.embedding(tape.constant(on.feed().tokens));
            tape.reset();
        });
        on.recorded()
    };
    assert_eq!([2, 1, 2, 2, 0, 5, 4].map(&mut step), [false, false, true, true, true, true, true]);
    let why = panic::catch_unwind(panic::AssertUnwindSafe(|| step(6))).expect_err("an id that is not there");
    let why = why.downcast_ref::<String>().unwrap();
    assert!(why.contains("embedding: id 6 is outside 0..6"), "{why}");
}
