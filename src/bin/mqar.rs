//! Associative recall: which mixers find again what they have seen?

use clap::Parser;
use std::process::ExitCode;
use tapezoo::cli::{self, TrainArgs};

/// Train sequence mixers on associative recall (MQAR) and see how many pairs they can hold
///
/// A sequence first lists pairs of a key and a value, and then asks for keys again; the model answers each with its
/// value. Only these positions count. An attention layer looks the key up; a recurrent mixer must have stored all
/// pairs in its state.
#[derive(Parser)]
#[command(name = "mqar", version = tapezoo::stamp::version(), after_help = EXAMPLES)]
struct Cli {
    #[command(flatten)]
    task: TaskArgs,
    #[command(flatten)]
    train: TrainArgs,
}

#[derive(clap::Args)]
#[command(next_help_heading = "The task")]
struct TaskArgs {
    /// Many queries at random gaps (zoology), or "key | value" and one query at the end (published).
    #[arg(long, value_name = "NAME", value_parser = ["zoology", "published"])]
    layout: Option<String>,
    /// zoology: how many tokens there are, half of them keys, half of them values.
    #[arg(long, value_name = "V", value_parser = cli::whole)]
    vocab: Option<i64>,
    /// zoology: how many pairs a sequence has, at every length [default: a sixteenth of the length]
    #[arg(long, value_name = "M", value_parser = cli::whole)]
    pairs: Option<i64>,
    /// zoology: random tokens between the queries, not zeros.
    #[arg(long)]
    random_non_queries: bool,
    /// published: how many different keys there are.
    #[arg(long, value_name = "N", value_parser = cli::whole)]
    keys: Option<i64>,
    /// published: how many different values there are.
    #[arg(long, value_name = "N", value_parser = cli::whole)]
    values: Option<i64>,
    /// published: a key may come again in a sequence; its last value counts.
    #[arg(long)]
    repeated_keys: bool,
    /// published: every key is asked for at the end, not one.
    #[arg(long)]
    all_queries: bool,
}

const PRESETS: [&str; 3] = ["mqar", "zoology", "published-mqar"];

const EXAMPLES: &str = "\
Examples:
  mqar --show 3                          three training sequences with their targets
  mqar                                   a small version, four mixers
  mqar --models delta_net,lstm --pairs 8 --eval-lens 32,64
  mqar --layout published --keys 8 --values 8 --all-queries --train-len 20 --eval-lens 20
  mqar --preset zoology                  vocabulary 8192, length 64, 4 pairs
  mqar --preset published-mqar           the published sizes: 2 pairs, one query";

fn main() -> ExitCode {
    let args: Cli = cli::parse(&PRESETS);
    let TaskArgs { layout, vocab, pairs, random_non_queries, keys, values, repeated_keys, all_queries } = args.task;
    let mut task = toml::Table::from_iter([("name".into(), "mqar".into())]);
    task.extend(layout.map(|layout| ("layout".into(), layout.into())));
    for (key, number) in [("vocab", vocab), ("pairs", pairs), ("keys", keys), ("values", values)] {
        task.extend(number.map(|n| (key.into(), n.into())));
    }
    task.extend(random_non_queries.then(|| ("random_non_queries".into(), true.into())));
    task.extend(repeated_keys.then(|| ("unique_keys".into(), false.into())));
    task.extend(all_queries.then(|| ("all_queries".into(), true.into())));
    cli::run(&args.train, PRESETS[0], task)
}
