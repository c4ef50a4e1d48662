//! `tapezoo mqar`: associative recall: which mixers find again what they have seen?

use super::{
    TrainArgs,
    help::Presets,
    run,
    task_flags::{MqarFlags, RepeatFlag, options},
};
use clap::Parser;
use std::process::ExitCode;

/// Train mixers on associative recall (MQAR) and see how many pairs they can hold
///
/// A sequence first lists pairs of a key and a value, and then asks for keys again; the model answers each with its
/// value. Only these positions count. An attention layer looks the key up; a recurrent mixer must have stored all
/// pairs in its state.
#[derive(Parser)]
#[command(name = "mqar", version = crate::stamp::version(), after_help = EXAMPLES)]
pub(super) struct Mqar {
    #[command(flatten)]
    task: MqarFlags,
    #[command(flatten)]
    repeat: RepeatFlag,
    #[command(flatten)]
    train: TrainArgs,
}

pub(super) const PRESETS: Presets = &[("default", "mqar"), ("zoology", "zoology"), ("published", "published-mqar")];

const EXAMPLES: &str = "\
Examples:
  mqar --show 3                          three training sequences with their targets
  mqar                                   a small version, four mixers
  mqar --models delta_net,lstm --pairs 8 --eval-lens 32,64
  mqar --pairs 4 --repeat 2              the pairs are read twice before the queries
  mqar --layout published --keys 8 --values 8 --all-queries --train-len 20 --eval-lens 20
  mqar --preset zoology                  vocabulary 8192, trained on 32 to 128 tokens
  mqar --preset published                the published sizes: 2 pairs, one query";

pub(super) fn train(args: &Mqar) -> ExitCode {
    let mut task = toml::Table::from_iter([("name".into(), "mqar".into())]);
    task.extend(options(&args.task));
    task.extend(options(&args.repeat));
    run(&args.train, PRESETS, "mqar", task)
}
