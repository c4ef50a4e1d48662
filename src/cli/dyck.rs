//! `tapezoo dyck`: which mixers keep a stack of brackets, and at which lengths does it hold?

use super::{
    TrainArgs,
    help::Presets,
    run,
    task_flags::{DyckFlags, options},
};
use clap::Parser;
use std::process::ExitCode;

/// Train sequence mixers on Dyck words and see at which lengths they still know what is balanced
///
/// At every position the model says whether everything opened so far is closed. One position in ten is, so saying
/// "no" is right nine times in ten; the recall, the mean over both answers, is then only 0.5. Half of the words are
/// corrupted: their tail is shuffled.
#[derive(Parser)]
#[command(name = "dyck", version = crate::stamp::version(), after_help = EXAMPLES)]
pub(super) struct Dyck {
    #[command(flatten)]
    task: DyckFlags,
    #[command(flatten)]
    train: TrainArgs,
}

pub(super) const PRESETS: Presets = &[("default", "dyck"), ("published", "published")];

const EXAMPLES: &str = "\
Examples:
  dyck --show 3                          three training words with their targets
  dyck                                   all seven mixers
  dyck --models lstm,gpt --seeds 3       two of them, mean and spread over three seeds
  dyck --types 1 --depth 3 --train-len 8-32 --eval-lens 32,64
  dyck --preset published --out runs/dyck  as published, and recorded";

pub(super) fn train(args: &Dyck) -> ExitCode {
    let mut task = toml::Table::from_iter([("name".into(), "dyck".into())]);
    task.extend(options(&args.task));
    run(&args.train, PRESETS, "dyck", task)
}
