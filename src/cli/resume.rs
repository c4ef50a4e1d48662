//! `--out DIR` begins runs in a directory, `--resume DIR` goes on with them.

use super::{TrainArgs, open_device, resolve::check_task, threads};
use crate::{
    error::{Error, Result, printable},
    tasks::Tasks,
    train::{
        capacity,
        config::{TrainConfig, difference, merge},
        jobs::{counted, jobs},
        rundir::{self, Found, RunDir},
    },
};
use std::{
    io::{self, Write},
    path::Path,
};
use toml::{Table, Value};

impl TrainArgs {
    /// The directory to leave runs in, if any, and the configuration: that of `--resume`, or that of the flags.
    pub(super) fn open(&self, preset: &str, task: Table) -> Result<(TrainConfig, Option<RunDir>)> {
        let Some(dir) = &self.output.resume else {
            let cfg = self.resolve(preset, task)?;
            open_device(self.machine.device.as_deref(), cfg.device, cfg.products)?;
            let (flag, n) = self.machine.jobs();
            // Before earlier runs are deleted.
            capacity::check_side_by_side(&counted(jobs(&cfg, None)?.iter()), threads(flag, n)?, flag)?;
            let out = self.output.out.as_deref();
            let out = out.map(|path| RunDir::create(path, &cfg, self.output.force)).transpose()?;
            return Ok((cfg, out));
        };
        let (out, mut cfg) = RunDir::open(dir)?;
        let table = |cfg: &TrainConfig| cfg.to_toml()?.parse::<Table>().map_err(|e| Error::Config(e.to_string()));
        let refused = |what| Error::Config(format!("--resume {}: {what}", dir.display()));
        check_task(&table(&cfg)?, preset, &task).map_err(refused)?;
        // The text may be in another place by now; its checksum tells whether it is the same.
        if let (Tasks::Text(text), Some(files)) = (&mut cfg.task, task.get("text").and_then(Value::as_array)) {
            text.text = files.iter().filter_map(Value::as_str).map(String::from).collect();
        }
        let loaded = cfg.load_data();
        loaded.map_err(|e| match cfg.task {
            Tasks::Text(_) => Error::Config(format!("{e}; --text FILE says where the text of this run is now")),
            _ => e,
        })?;
        // Flags may repeat what is there, and say how often to save; everything else would be another experiment.
        let there = table(&cfg)?;
        let (mut here, mut flags) = (there.clone(), self.table());
        flags.insert("task".into(), task.into());
        // "auto" is the same as the device that it stands for.
        if flags.get("device").and_then(|name| name.as_str()?.parse().ok()) == Some(cfg.device) {
            flags.remove("device");
        }
        merge(&mut here, flags);
        let mut other = difference(&there, &here);
        // A run records neither "all" nor what is as if it were not said.
        if other.is_some()
            && let Ok(cfg) = TrainConfig::recorded(&dir.join(rundir::CONFIG), here)
        {
            other = difference(&there, &table(&cfg)?);
        }
        if let Some((key, there, here)) = other {
            let another =
                format!("for another begin a new run: --config {} --out DIR", dir.join(rundir::CONFIG).display());
            let keeps = "a resumed run keeps its configuration";
            let what = format!("{key} is {there} there, and {here} here; {keeps}; {another}");
            return Err(refused(what));
        }
        for (model, seed) in runs(&cfg) {
            let of = out.of(model, seed);
            // Of a result that is damaged its run complains, and the others go on.
            if let Ok(Found::Finished(_)) = rundir::find(&of) {
                let own = rundir::configuration_of(&of, &cfg, model)?;
                rundir::check_configuration(&of, &own, seed)?;
            }
        }
        if let Some(every) = self.training.checkpoint_every {
            cfg.checkpoint_every = every;
            cfg.per_model.values_mut().for_each(|own| drop(own.remove("checkpoint_every")));
            cfg.check()?;
        }
        open_device(self.machine.device.as_deref(), cfg.device, cfg.products)?;
        Ok((cfg, Some(out)))
    }
}

/// Every model with every seed.
fn runs(cfg: &TrainConfig) -> impl Iterator<Item = (&String, u64)> {
    cfg.models.iter().flat_map(|model| (cfg.seed..).take(cfg.seeds).map(move |seed| (model, seed)))
}

/// Say on standard error where a resumed directory stands.
pub(super) fn say_what_is_left(dir: &Path, cfg: &TrainConfig, out: Option<&RunDir>) {
    let finished = |(model, seed): (&String, u64)| {
        let of = out?.of(model, seed);
        matches!(rundir::find(&of), Ok(Found::Finished(_))).then(|| rundir::check_files(&of))
    };
    let finished: Vec<Result<()>> = runs(cfg).filter_map(finished).collect();
    let (all, done) = (cfg.models.len() * cfg.seeds, finished.len());
    let rest = match finished.iter().filter(|weights| weights.is_err()).count() {
        0 if done == all => "there is nothing left to do".into(),
        0 => "going on with the rest".into(),
        lost => format!("{lost} of them lost files"),
    };
    // Nobody may be there to read it.
    let _ =
        writeln!(io::stderr(), "{}: {done} of {all} runs are finished; {rest}", printable(&dir.display().to_string()));
}
