//! Brackets: which mixers keep a stack, and at which lengths does it hold?

use clap::Parser;
use std::process::ExitCode;
use tapezoo::cli::{self, TrainArgs};

/// Train sequence mixers on Dyck words and see at which lengths they still know what is balanced
///
/// At every position the model says whether everything opened so far is closed. One position in ten is, so saying
/// "no" is right nine times in ten; the recall, the mean over both answers, is then only 0.5. Half of the words are
/// corrupted: their tail is shuffled.
#[derive(Parser)]
#[command(name = "dyck", version = tapezoo::stamp::version(), after_help = EXAMPLES)]
struct Cli {
    /// How many types of brackets there are.
    #[arg(long, value_name = "K", value_parser = cli::whole, help_heading = "What is trained")]
    types: Option<i64>,
    /// How many brackets are open at most.
    #[arg(long, value_name = "D", value_parser = cli::whole, help_heading = "What is trained")]
    depth: Option<i64>,
    #[command(flatten)]
    train: TrainArgs,
}

const PRESETS: [&str; 2] = ["dyck", "published"];

const EXAMPLES: &str = "\
Examples:
  dyck --show 3                          three training words with their targets
  dyck                                   all seven mixers
  dyck --models lstm,gpt --seeds 3       two of them, mean and spread over three seeds
  dyck --types 1 --depth 3 --train-len 8-32 --eval-lens 32,64
  dyck --preset published --out runs/dyck the published sizes and 40,000 steps, all recorded";

fn main() -> ExitCode {
    let args: Cli = cli::parse(&PRESETS);
    let mut task = toml::Table::from_iter([("name".into(), "dyck".into())]);
    task.extend(args.types.map(|k| ("types".into(), k.into())));
    task.extend(args.depth.map(|d| ("depth".into(), d.into())));
    cli::run(&args.train, PRESETS[0], task)
}
