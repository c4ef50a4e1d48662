//! `tapezoo verify`: checks golden fixtures.

use super::{KernelsFlag, device_name, fail, open_device, print};
use crate::{
    error::{Error, Result, brief},
    tensor::{DType, Products},
    terminal::columns,
    verify::{Comparison, Fixture, Place, check, ops, tolerance},
};
use clap::Parser;
use std::{path::PathBuf, process::ExitCode};

/// Run an op on the inputs of a fixture in every form, and compare every output and gradient with the fixture's.
///
/// A fixture is a safetensors file with tensors in.NAME, out.NAME, ct.NAME (cotangents) and grad.NAME, and with
/// metadata 'op', 'attrs' (JSON) and 'source'. Write one from your own kernel to check it against ours:
/// the README's section 'Check your own kernel' gives the format and an example.
///
/// The error of a tensor is the norm of the difference over the norm of the reference, each tensor by itself. Where it
/// is above the tolerance it may still be rounding, if what the tensor is summed of cancels: every term is moved by a
/// rounding, in double precision, and what moves the tensor by so much is no error; such a tensor is marked *. Equal
/// infinities agree, and so do NaN and NaN. Exit status: 0 when every tensor of every file agrees, 1 when one does not,
/// 2 when a file cannot be used; the others are still checked.
#[derive(Parser)]
#[command(name = "verify", version = crate::stamp::version(), after_help = format!("Ops: {}", ops().join(", ")))]
pub(super) struct Verify {
    /// Fixture files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Where to run: auto, cpu, cuda, cuda:N or emulated
    #[arg(long, default_value = "auto", value_parser = device_name)]
    device: String,
    /// Precision to run in: f64 or f32
    #[arg(long, default_value = "f64", value_parser = precision)]
    dtype: DType,
    #[command(flatten)]
    switch: KernelsFlag,
    /// Largest error that passes [default: 1e-9 in f64, 1e-4 in f32]
    #[arg(long, value_parser = positive)]
    tolerance: Option<f64>,
    /// Print only the files that fail, and the summary
    #[arg(long, short)]
    quiet: bool,
}

/// The fixtures' tolerances are for these two.
fn precision(s: &str) -> std::result::Result<DType, String> {
    match s.parse()? {
        dtype @ (DType::F32 | DType::F64) => Ok(dtype),
        _ => Err("expected f64 or f32".into()),
    }
}

fn positive(s: &str) -> std::result::Result<f64, String> {
    s.parse()
        .ok()
        .filter(|&x: &f64| x > 0.0 && x.is_finite())
        .ok_or_else(|| format!("'{s}': expected a number above 0"))
}

/// Status 0: every file agrees; 1: a tensor does not; 2: a file cannot be used.
pub(super) fn run(args: &Verify) -> ExitCode {
    checked(args).map_or_else(|e| fail(&e, 2), ExitCode::from)
}

/// The status.
fn checked(args: &Verify) -> Result<u8> {
    let device = args.device.parse().unwrap_or_default();
    open_device(None, device, Products::default()).map_err(|e| Error::Config(e.to_string()))?;
    let kernels = &args.switch.kernels.clone().unwrap_or_default();
    let place = Place { device, dtype: args.dtype, kernels };
    let limit = args.tolerance.unwrap_or(tolerance(args.dtype));
    let (mut wrong, mut unusable, mut forms) = (0, 0, 0);
    let mut worst: Option<(f64, String)> = None;
    let mut cancelled = false;
    for path in &args.files {
        let checked = Fixture::read(path).and_then(|fixture| Ok((check(&fixture, place, limit)?, fixture)));
        let (found, fixture) = match checked {
            Ok(checked) => checked,
            Err(e) => {
                fail(&e, 2);
                unusable += 1;
                continue;
            }
        };
        let failed = found.iter().any(|c| !c.passes(limit));
        wrong += usize::from(failed);
        if failed || !args.quiet {
            let source = brief(&fixture.source, 100);
            print(format!("{}  {} ({source})\n", fixture.name(), fixture.op))?;
        }
        cancelled |= found.iter().any(|c| c.cancelled(limit)) && (failed || !args.quiet);
        for form in found.chunk_by(|a, b| a.form == b.form) {
            forms += 1;
            if failed || !args.quiet {
                print(form_text(form, limit))?;
            }
        }
        for c in found {
            if !c.cancelled(limit) && worst.as_ref().is_none_or(|w| c.error > w.0) {
                worst = Some((c.error, format!("{} of {} in {}", c.tensor, c.form, fixture.name())));
            }
        }
    }
    let right = args.files.len() - wrong - unusable;
    let at = worst.map_or(String::new(), |(e, at)| format!("; largest error {e:.1e}, {at}"));
    if cancelled {
        let why = "what the tensor is summed of is so much larger that the error is within its rounding";
        print(format!("* cancelled: {why}\n"))?;
    }
    let all = args.files.len();
    print(format!("{right} of {all} files agree to {limit:e} in {} ({forms} forms){at}\n", args.dtype))?;
    Ok(if unusable > 0 { 2 } else { u8::from(wrong > 0) })
}

/// One line a form, broken where the terminal ends, and before column 100.
fn form_text(form: &[Comparison], limit: f64) -> String {
    let (mut text, bad) = (String::new(), form.iter().any(|c| !c.passes(limit)));
    let mut line = format!("  {} {:<11}", if bad { "FAIL" } else { "ok  " }, form[0].form);
    for c in form {
        let mark = match c {
            c if !c.passes(limit) => "!",
            c if c.cancelled(limit) => "*",
            _ => "",
        };
        let cell = format!(" {} {:.1e}{mark}", c.tensor, c.error);
        if line.len() + cell.len() > columns().clamp(40, 99) {
            text += &format!("{line}\n");
            line = " ".repeat(18);
        }
        line.push_str(&cell);
    }
    text + &format!("{line}\n")
}
