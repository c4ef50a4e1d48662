//! `tapezoo parity`: which mixers learn parity, and at which lengths does it hold?

use super::{
    TrainArgs,
    help::Presets,
    run,
    task_flags::{ParityFlags, options},
};
use clap::Parser;
use std::process::ExitCode;

/// Train sequence mixers on bit parity and see at which lengths they still know it
///
/// At every position the model says whether the number of ones so far is even. A mixer that has learned to keep one bit
/// of state is right at any length; one that has found a shortcut fails beyond the length it was trained on. With no
/// flags, the seven of the published comparison train on length 32, and the table shows their accuracy at 32 to 256.
#[derive(Parser)]
#[command(name = "parity", version = crate::stamp::version(), after_help = EXAMPLES)]
pub(super) struct Parity {
    #[command(flatten)]
    task: ParityFlags,
    #[command(flatten)]
    train: TrainArgs,
}

pub(super) const PRESETS: Presets = &[("default", "default"), ("published", "published")];

const EXAMPLES: &str = "\
Examples:
  parity                                         the seven of the published comparison
  parity --models lstm,mamba --seeds 3           two of them, mean and spread over three seeds
  parity --models gpt --train-len 16 --eval-lens 16,24,32 --lr 1e-2 --steps 5000
  parity --preset published --out runs/published  the published sizes, all recorded
  parity --config runs/published/config.toml     the same again
  parity --show 3                                three training sequences with their targets
  parity --models lru --form recurrent --dtype f64 --json > lru.json";

pub(super) fn train(args: &Parity) -> ExitCode {
    let mut task = toml::Table::from_iter([("name".into(), "parity".into())]);
    task.extend(options(&args.task));
    run(&args.train, PRESETS, "default", task)
}
