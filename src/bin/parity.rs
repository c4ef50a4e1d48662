//! The headline experiment: which mixers learn parity, and at which lengths does it hold?

use clap::Parser;
use std::process::ExitCode;
use tapezoo::cli::{self, TrainArgs};

/// Train sequence mixers on bit parity and see at which lengths they still know it
///
/// At every position the model says whether the number of ones so far is even. A mixer that has learned to keep
/// one bit of state is right at any length; one that has found a shortcut fails beyond the length it was trained on.
/// With no flags, the seven of the published comparison train on length 32, and the table shows their accuracy at 32 to 256.
#[derive(Parser)]
#[command(name = "parity", version = tapezoo::stamp::version(), after_help = EXAMPLES)]
struct Cli {
    /// Controlled parity: exactly K ones in each sequence, at random positions [default: each bit a fair coin]
    #[arg(long, value_name = "K", value_parser = cli::whole, help_heading = "What is trained")]
    num_ones: Option<i64>,
    #[command(flatten)]
    train: TrainArgs,
}

const PRESETS: [&str; 2] = ["default", "published"];

const EXAMPLES: &str = "\
Examples:
  parity                                         the seven of the published comparison
  parity --models lstm,mamba --seeds 3           two of them, mean and spread over three seeds
  parity --models gpt --train-len 16 --eval-lens 16,24,32 --lr 1e-2 --steps 5000
  parity --preset published --out runs/published the published sizes and 40,000 steps, all recorded
  parity --config runs/published/config.toml     the same again
  parity --show 3                                three training sequences with their targets
  parity --models lru --form recurrent --dtype f64 --json > lru.json";

fn main() -> ExitCode {
    let args: Cli = cli::parse(&PRESETS);
    let mut task = toml::Table::from_iter([("name".into(), "parity".into())]);
    task.extend(args.num_ones.map(|n| ("num_ones".into(), n.into())));
    cli::run(&args.train, PRESETS[0], task)
}
