//! The work of a training program.

use super::{Presets, TrainArgs, fail, open_device, preset_of, print, resume, say, threads};
use crate::{
    cuda::counters,
    error::{Error, Result, contained},
    models, report,
    tasks::show,
    tensor::Device,
    terminal::{self, fit},
    train::{
        RunReport, Trainer, capacity,
        config::TrainConfig,
        interrupt::{self, Signal},
        jobs::run_told,
        standing::Standing,
        table,
    },
};
use std::{path::Path, process::ExitCode, sync::Arc, time::Instant};
use toml::Table;

/// The work that a command line asks for: check everything, train, print. `presets` are the names that
/// `--preset` takes, `preset` is the one to start from where nothing names another, and `task` are the task's own
/// flags.
///
/// Status 0: all went well; 1: a run failed, or a file could not be written; 2: a value cannot be, or another
/// process is at work in the directory; 129, 130 or 143: it was interrupted.
pub(super) fn run(args: &TrainArgs, presets: Presets, preset: &str, task: Table) -> ExitCode {
    let mut args = args.clone();
    if let Some(typed) = &args.what.preset {
        args.what.preset = Some(preset_of(typed, presets, preset).into());
    }
    let args = &args;
    let listing = match args.what.models.as_deref() {
        Some([what]) if what == "list" => Some(fit(&models::table(), terminal::columns())),
        Some([what]) if what == "tree" => Some(tree()),
        _ => None,
    };
    if let (Some(text), Some(what)) = (listing, args.what.models.as_ref().and_then(|names| names.first())) {
        if let Some(said) = args.beside_a_listing(what, &task) {
            say("warning", &said);
        }
        return print(text).map_or_else(|e| fail(&e, 1), |()| ExitCode::SUCCESS);
    }
    if let Some(n) = args.output.show {
        return match args.resolve(preset, task).and_then(|cfg| samples(&cfg, n)) {
            Ok(text) => print(text).map_or_else(|e| fail(&e, 1), |()| ExitCode::SUCCESS),
            Err(e) => fail(&e, 2),
        };
    }
    if args.output.profile {
        let cfg = args.resolve(preset, task).and_then(|cfg| {
            open_device(args.machine.device.as_deref(), cfg.device, cfg.products)?;
            Ok(cfg)
        });
        return match cfg.map(|cfg| profile(&cfg)) {
            Ok(Ok(())) => ExitCode::SUCCESS,
            Ok(Err(e)) => fail(&e, 1),
            Err(e) => fail(&e, 2),
        };
    }
    let (jobs, n) = args.machine.jobs();
    let prepared = threads(jobs, n).and_then(|threads| {
        interrupt::catch()?;
        Ok((threads, args.open(preset, task)?))
    });
    let (threads, (cfg, out)) = match prepared {
        Ok(prepared) => prepared,
        Err(e) => return fail(&e, 2),
    };
    match (&args.output.resume, capacity::cost("this", [&cfg].into_iter())) {
        (Some(dir), _) => resume::say_what_is_left(dir, &cfg, out.as_ref()),
        (None, Ok(Some(cost))) => say("note", &cost),
        _ => {}
    }
    let standing = Arc::new(Standing::default());
    let dir = out.as_ref().map(|out| out.path().to_path_buf());
    interrupt::at_the_latest({
        let (standing, cfg, dir, json) = (standing.clone(), cfg.clone(), dir.clone(), args.output.json);
        move |signal| {
            standing.save_what_can_be();
            interrupted(signal, &standing, &cfg, dir.as_deref(), json);
        }
    });
    let (reports, written) = match run_told(&cfg, (threads, jobs), out.as_ref(), true, &standing) {
        Ok(done) => done,
        Err(e) => return fail(&e, 2),
    };
    interrupt::at_an_end();
    if let Some(signal) = interrupt::came().filter(|_| !standing.is_finished()) {
        if let Err(e) = written {
            fail(&e, 1);
        }
        return interrupted(signal, &standing, &cfg, dir.as_deref(), args.output.json);
    }
    if let Err(e) = tell(&cfg, &reports, args.output.json).and(written) {
        return fail(&e, 1);
    }
    let lost = standing.take_lost();
    for e in &lost {
        fail(e, 1);
    }
    match reports.iter().filter(|r| r.error.is_some()).count() {
        0 if lost.is_empty() => ExitCode::SUCCESS,
        0 => ExitCode::FAILURE,
        n => fail(&Error::config(format!("{n} of {} runs stopped before the end", reports.len())), 1),
    }
}

/// Print what came of these runs.
fn tell(cfg: &TrainConfig, reports: &[RunReport], json: bool) -> Result<()> {
    print(if json { table::json(reports)? } else { table::text_within(terminal::columns(), cfg, reports) })
}

/// Say how the runs stand that a signal stopped, with a table of those that are finished where there is no other.
fn interrupted(signal: Signal, standing: &Standing, cfg: &TrainConfig, dir: Option<&Path>, json: bool) -> ExitCode {
    let finished = standing.finished();
    if dir.is_none()
        && !finished.is_empty()
        && let Err(e) = tell(cfg, &finished, json)
    {
        fail(&e, 1);
    }
    let go_on = dir.map(|dir| format!("go on with --resume {}", dir.display()));
    let what = format!("{}: {}", signal.name(), standing.sentence(go_on.as_deref()));
    fail(&Error::Config(what), signal.status())
}

/// The first training sequences of the first seed, drawn as a person would.
fn samples(cfg: &TrainConfig, n: i64) -> Result<String> {
    /// More than anybody reads.
    const MOST: usize = 10_000;
    match usize::try_from(n) {
        Ok(n) if (1..=MOST).contains(&n) => Ok(samples_of(cfg, n)),
        _ => Err(Error::Config(format!("--show {n}: expected 1 to {MOST} sequences"))),
    }
}

/// So many training sequences, in lines that fit the terminal; of a curriculum those at its end, which show the task.
pub(super) fn samples_of(cfg: &TrainConfig, n: usize) -> String {
    let columns = terminal::columns();
    let grows = cfg.curriculum > 0 && !cfg.train_len.is_one() || cfg.task.stages().is_some();
    let remark = if grows { "(as at the end of the curriculum; it begins with less)\n" } else { "" };
    let text = show::samples(&*cfg.task, cfg.train_len, cfg.seed, cfg.batch, n, columns.min(terminal::WIDTH), remark);
    fit(&text, columns)
}

/// How the mixers descend from one another: an SVG, or where a terminal would show it, text.
pub(super) fn tree() -> String {
    if terminal::is_there() { report::tree::text(terminal::columns()) } else { report::tree::file() }
}

/// Print where a training step's time and bytes go, model by model and op by op.
///
/// # Errors
/// When a model cannot be trained, or nothing can be printed.
pub(super) fn profile(cfg: &TrainConfig) -> Result<()> {
    contained(|| profile_each(cfg))
}

fn profile_each(cfg: &TrainConfig) -> Result<()> {
    let emulated = cfg.device == Device::Emulated;
    // In emulation time says little. What is counted does, of kernels that are compiled for it.
    let steps = if emulated { 3 } else { 50 };
    if emulated {
        counters::count(true);
    }
    for (name, one) in cfg.models.iter().zip(cfg.each_model()?) {
        let mut trainer = Trainer::new(&one, cfg.seed)?;
        trainer.profile(3)?; // buffers and caches warm up
        let start = Instant::now();
        let ops = trainer.profile(steps)?.table(steps);
        let step = start.elapsed().as_secs_f64() * 1e6 / steps as f64;
        let form = trainer.form();
        print(fit(&format!("{name}, {form}: {step:.1} µs a step\n{ops}\n"), terminal::columns()))?;
        if emulated {
            counters::take();
            trainer.profile(1)?;
            print(format!(
                "A step's kernels, for an H100:\n{}\n",
                counters::tables(&counters::take(), terminal::columns())
            ))?;
        }
    }
    Ok(())
}
