//! `--out DIR` begins runs in a directory, `--resume DIR` goes on with them.

use super::{TrainArgs, check_task, open_device};
use crate::{
    error::{Error, Result, printable},
    train::{
        config::{TrainConfig, difference, merge},
        rundir::{self, Found, RunDir},
    },
};
use std::{
    io::{self, Write},
    path::Path,
};
use toml::Table;

impl TrainArgs {
    /// The directory to leave runs in, if any, and the configuration: that of `--resume`, or that of the flags.
    pub(super) fn open(&self, preset: &str, task: Table) -> Result<(TrainConfig, Option<RunDir>)> {
        let Some(dir) = &self.output.resume else {
            let cfg = self.resolve(preset, task)?;
            open_device(self.machine.device.as_deref(), cfg.device, cfg.products)?;
            let out = self.output.out.as_deref();
            let out = out.map(|path| RunDir::create(path, &cfg, self.output.force)).transpose()?;
            return Ok((cfg, out));
        };
        let (out, mut cfg) = RunDir::open(dir)?;
        let table = |cfg: &TrainConfig| cfg.to_toml()?.parse::<Table>().map_err(|e| Error::Config(e.to_string()));
        // Flags may repeat what is there, and say how often to save; everything else would be another experiment.
        let there = table(&cfg)?;
        let refused = |what| Error::Config(format!("--resume {}: {what}", dir.display()));
        check_task(&there, preset, &task).map_err(refused)?;
        let (mut here, mut flags) = (there.clone(), self.table());
        flags.insert("task".into(), task.into());
        // "auto" is the same as the device that it stands for.
        if flags.get("device").and_then(|name| name.as_str()?.parse().ok()) == Some(cfg.device) {
            flags.remove("device");
        }
        merge(&mut here, flags);
        if let Some((key, there, here)) = difference(&there, &here) {
            let what = format!("{key} is {there} there, and {here} here; a resumed run keeps its configuration");
            return Err(refused(what));
        }
        cfg.checkpoint_every = self.training.checkpoint_every.unwrap_or(cfg.checkpoint_every);
        open_device(self.machine.device.as_deref(), cfg.device, cfg.products)?;
        Ok((cfg, Some(out)))
    }
}

/// Say on standard error where a resumed directory stands.
pub(super) fn say_what_is_left(dir: &Path, cfg: &TrainConfig, out: Option<&RunDir>) {
    let runs = cfg.models.iter().flat_map(|model| (cfg.seed..).take(cfg.seeds).map(move |seed| (model, seed)));
    let finished = |(model, seed): (&String, u64)| {
        out.is_some_and(|out| matches!(rundir::find(&out.of(model, seed)), Ok(Found::Finished(_))))
    };
    let (all, done) = (cfg.models.len() * cfg.seeds, runs.filter(|&run| finished(run)).count());
    let rest = if done == all { "there is nothing left to do" } else { "going on with the rest" };
    // Nobody may be there to read it.
    let _ =
        writeln!(io::stderr(), "{}: {done} of {all} runs are finished; {rest}", printable(&dir.display().to_string()));
}
