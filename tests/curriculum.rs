//! A task that grows: stages come when they should, and a run that is interrupted goes on to the same bits. On a device
//! too, where what is counted of languages is also the CPU's.
#![allow(clippy::unwrap_used)]

mod close;
#[path = "device/mod.rs"]
mod device;

use close::close;
use std::{sync::Arc, time::Duration};
use tapezoo::{
    tasks::{Counts, Icll, Stages, Task, Window},
    train::{
        Step, Trainer,
        checkpoint::{Written, load, save},
        config::TrainConfig,
    },
};

fn config(task: &str) -> TrainConfig {
    let small = "models = [\"lstm\"]\neval_lens = [10, 20]\ntrain_len = 10\nbatch = 8\nsteps = 60\neval_batches = 1\n\
        eval_batch = 16\nwarmup = 0\nmicro_batches = 2\n[model]\nwidth = 8\nheads = 2\nhead_dim = 4\nmlp = 8";
    let text = format!("{small}\n[task]\nname = \"window\"\nwindow = 6\n{task}");
    text.parse::<TrainConfig>().unwrap().for_model("lstm").unwrap()
}

fn steps(trainer: &mut Trainer, n: usize) -> Vec<Step> {
    (0..n).map(|_| trainer.step().unwrap()).collect()
}

#[test]
fn without_an_accuracy_it_grows_by_steps() {
    let cfg = config("grow_from = 3\ngrow_every = 4\ngrow_at = 0.0");
    let stages: Vec<usize> =
        steps(&mut Trainer::new(&cfg, 0).unwrap(), 20).iter().map(|step| step.stage.unwrap()).collect();
    let expected: Vec<usize> = (0..20).map(|step| (step / 4).min(3) + 1).collect();
    assert_eq!(stages, expected);
    let step = Trainer::new(&config(""), 0).unwrap().step().unwrap();
    assert_eq!(step.stage, None);
}

#[test]
fn it_grows_only_when_it_knows_the_stage() {
    // Nobody knows a parity after a few steps.
    let cfg = config("grow_from = 2\ngrow_every = 2\ngrow_at = 0.98");
    let all = steps(&mut Trainer::new(&cfg, 0).unwrap(), 12);
    assert!(all.iter().all(|step| step.stage == Some(1)));
    // Whether the last two bits are the same is soon known, and of the last three not at once.
    let cfg = config("question = \"match\"\nasked = 0\ngrow_from = 2\ngrow_every = 10\ngrow_at = 0.9");
    let mut trainer = Trainer::new(&TrainConfig { steps: 600, lr: 1e-2, ..cfg }, 0).unwrap();
    let all = steps(&mut trainer, 600);
    let at = |stage| all.iter().position(|step| step.stage == Some(stage));
    let (second, third) = (at(2).unwrap(), at(3).unwrap_or(600));
    assert!(second > 10 && second.is_multiple_of(10) && third > second + 10, "stages at {second} and {third}");
}

/// Saved after every step, whatever its stage, by accuracies about which chance decides.
#[test]
fn a_run_that_is_interrupted_goes_on_to_the_same_bits() {
    let cfg = config("question = \"match\"\nasked = 2\ngrow_from = 2\ngrow_every = 3\ngrow_at = 0.3");
    let mut whole = Trainer::new(&cfg, 1).unwrap();
    // Nothing can be made ahead, whoever asks.
    whole.make_batches_ahead();
    let all = steps(&mut whole, 30);
    let stages: Vec<usize> = all.iter().map(|step| step.stage.unwrap()).collect();
    assert!(stages[0] == 1 && stages[29] > 2 && stages.contains(&2), "{stages:?}");
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut torn = Trainer::new(&cfg, 1).unwrap();
    for (i, step) in all.iter().enumerate() {
        assert_eq!(torn.step().unwrap(), *step, "step {}", i + 1);
        save(file.path(), &mut torn, Written::default(), Duration::ZERO).unwrap();
        torn = load(file.path(), &cfg, 1).unwrap().0;
    }
    assert_eq!(whole.evaluate().unwrap(), torn.evaluate().unwrap());
    assert!(whole.evaluate().unwrap().1.contains_key("largest"));
}

/// Whatever stage the training is at.
#[test]
fn an_evaluation_is_of_the_last_stage() {
    let evaluate = |task| Trainer::new(&config(task), 0).unwrap().evaluate().unwrap();
    assert_eq!(evaluate("grow_from = 2"), evaluate(""));
}

/// One that knows all but the largest window has learned half of the stage, and stays.
#[test]
fn it_takes_the_largest_window_to_go_on() {
    let task = Window { window: 4, asked: 2, grow_from: Some(3), ..Window::default() };
    // Classes 0 and 1 are answers about three bits, 2 and 3 about four.
    let knows = |right: [bool; 4]| {
        let mut counts = Counts::new(4);
        right.iter().enumerate().for_each(|(is, &right)| (0..10).for_each(|_| counts.add(right.then_some(is), is)));
        counts
    };
    let [small, large] = [[true, true, false, false], [false, false, true, true]].map(knows);
    assert_eq!((task.metrics(&small), task.metrics(&large)), (vec![("largest", 0.0)], vec![("largest", 1.0)]));
    let mut stages = task.stages().unwrap();
    stages.accuracy = 0.4;
    assert_eq!([stages.passes(1, &small), stages.passes(1, &large)], [false, true]);
    // Of a distance less is better, so it is left aside; and at 0 nobody is held up.
    let mut stages = Stages { tasks: vec![Arc::new(Icll::default())], every: 1, accuracy: 0.9 };
    assert!(stages.passes(0, &knows([true; 4])) && !stages.passes(0, &small));
    stages.accuracy = 0.0;
    assert!(stages.passes(0, &knows([false; 4])));
}

#[test]
fn on_a_device_the_same_is_counted() {
    let Some(device) = device::device() else { return };
    let base = config("question = \"match\"\nasked = 2\ngrow_from = 2\ngrow_every = 1\ngrow_at = 0.3");
    let stages = |device| {
        let mut trainer = Trainer::new(&TrainConfig { device, ..base.clone() }, 1).unwrap();
        steps(&mut trainer, 5).iter().map(|step| step.stage).collect::<Vec<_>>()
    };
    assert_eq!(stages(device), stages("cpu".parse().unwrap()));
    // Few of the 18 letters are possible, so that most of what an untrained model says is wrong.
    let text = "models = [\"gpt\"]\ndevice = \"cpu\"\neval_lens = [12, \"5-30\"]\ntrain_len = 12\nbatch = 2\n\
        eval_batches = 2\neval_batch = 4\ntask = { name = \"icll\" }\n[model]\nwidth = 8\nheads = 2\nhead_dim = 4";
    let cfg = text.parse::<TrainConfig>().unwrap().for_model("gpt").unwrap();
    let [here, there] = [cfg.device, device]
        .map(|device| Trainer::new(&TrainConfig { device, ..cfg.clone() }, 0).unwrap().evaluate().unwrap());
    assert_eq!(here.0, there.0);
    for ((len, here), (_, there)) in here.1["tvd"].iter().zip(&there.1["tvd"]) {
        assert!((0.5..1.0).contains(here), "{here} at {len}");
        close(*there, *here, 1e-6, len);
    }
}
