//! The time of the cores of nine mixers, and of a training step of the default preset, on a device.
//!
//! ```text
//! cargo run --release --example timing -- cores --device cuda              all cores, forward and backward
//! cargo run --release --example timing -- cores attention --dtype bf16     one of them
//! cargo run --release --example timing -- steps --device cuda              training steps of the default preset
//! cargo run --release --example timing -- cores --device emulated --tiny   whether all of this works
//! ```
//!
//! A row has a median, compared with the rates of the same device in a plain copy and a plain matrix product.
//! `scripts/gpu_check.sh` runs this on a machine with a GPU, beside PyTorch.

mod clock;
mod cores;
mod inputs;
mod ops;
mod steps;

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use tapezoo::{
    cli::device_name,
    error::{Error, Result},
    tensor::{DType, Device},
};

/// Time the cores of the mixers, or their training steps, on a device
#[derive(Parser)]
#[command(name = "timing")]
struct Args {
    #[command(subcommand)]
    what: What,
    /// Where to run: auto, cpu, cuda, cuda:N or emulated
    #[arg(long, default_value = "auto", value_parser = device_name, global = true)]
    device: String,
    /// Tiny sizes, only to see whether it runs
    #[arg(long, global = true)]
    tiny: bool,
    /// About how many seconds each row is measured for
    #[arg(long, default_value_t = 0.3, global = true)]
    seconds: f64,
    /// Launch every kernel from the host instead of replaying a graph (cores only)
    #[arg(long, global = true)]
    no_graphs: bool,
    /// Print the names, and time nothing
    #[arg(long, global = true)]
    list: bool,
}

#[derive(Subcommand)]
enum What {
    /// The op in which each mixer spends most time, forward and backward
    Cores {
        /// Names [default: all]
        names: Vec<String>,
        /// Precision [default: f32 and bf16; f32 on a CPU]
        #[arg(long, value_parser = dtype)]
        dtype: Option<DType>,
    },
    /// A training step of the default preset, with its data and its update
    Steps {
        /// Models [default: the preset's]
        names: Vec<String>,
    },
}

fn dtype(name: &str) -> std::result::Result<DType, String> {
    match name {
        "bf16" => Ok(DType::BF16),
        "f32" => Ok(DType::F32),
        _ => Err("expected f32 or bf16".into()),
    }
}

/// One row of the table.
fn row(what: &str, seconds: f64, notes: &str) {
    println!("{what:<36} {:>11}  {notes}", format!("{:.4} ms", seconds * 1e3));
}

/// The names asked for; all if there are none.
fn chosen(asked: &[String], all: &[&'static str]) -> Result<Vec<&'static str>> {
    let find = |name: &String| all.iter().copied().find(|known| known == name);
    let unknown = |name: &String| Error::Config(format!("'{name}': expected one of {}", all.join(", ")));
    match asked {
        [] => Ok(all.to_vec()),
        _ => asked.iter().map(|name| find(name).ok_or_else(|| unknown(name))).collect(),
    }
}

fn run(args: &Args) -> Result<()> {
    let device: Device = args.device.parse().map_err(Error::Config)?;
    let (asked, all) = match &args.what {
        What::Cores { names, .. } => (names, cores::NAMES.to_vec()),
        What::Steps { names } => (names, steps::names()?),
    };
    let names = chosen(asked, &all)?;
    if args.list {
        names.iter().for_each(|name| println!("{name}"));
        return Ok(());
    }
    let seconds = if args.tiny { 0.0 } else { args.seconds };
    match &args.what {
        What::Cores { dtype, .. } => {
            let both: &[DType] = if device == Device::Cpu { &[DType::F32] } else { &[DType::F32, DType::BF16] };
            let clock = clock::Clock { budget: seconds, graphs: !args.no_graphs };
            let one = dtype.map(|dtype| [dtype]);
            cores::time_all(&names, device, one.as_ref().map_or(both, |one| one), args.tiny, clock)
        }
        What::Steps { .. } => names.iter().try_for_each(|name| steps::time(name, device, seconds)),
    }
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}
