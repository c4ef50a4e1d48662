//! One or two models on one sequence, and the files that are made of them.

use super::{
    data::{self, Encoding},
    graph,
    input::Input,
    page,
    source::Source,
    trace::{self, Trace},
};
use crate::{
    error::{Error, Result},
    tasks::Tasks,
};
use indicatif::ProgressBar;
use std::path::{Path, PathBuf};

/// Whether a model can be shown side by side with the first.
///
/// # Errors
/// When they have learned different tasks.
pub fn same_task(name: &str, task: &Tasks, first: &Tasks) -> Result<()> {
    if task == first {
        return Ok(());
    }
    let what = "two runs side by side read the same sequence, so they need the same task";
    let (task, first) = (task.title(), first.title());
    Err(Error::Config(format!("--compare {name}: it has learned {task}, the first {first}; {what}")))
}

/// One or two models on one sequence.
pub struct Inspection {
    /// The sequence.
    pub input: Input,
    /// Each model and its trace.
    pub runs: Vec<(Source, Trace)>,
    /// The tape of a training step of each, if asked for.
    pub graphs: Vec<graph::StepGraph>,
}

impl Inspection {
    /// Run every model over the sequence.
    ///
    /// # Errors
    /// When a model cannot run it, or the models have learned different tasks.
    pub fn new(sources: Vec<Source>, input: Input, with_graph: bool, bar: &ProgressBar) -> Result<Inspection> {
        for source in &sources {
            same_task(&source.name, &source.config.task, &sources[0].config.task)?;
        }
        let mut inspection = Inspection { input, runs: vec![], graphs: vec![] };
        for source in sources {
            source.check(inspection.input.tokens.len())?;
            bar.set_length(inspection.input.tokens.len() as u64);
            bar.set_position(0);
            bar.set_message(format!("running {}", source.name));
            let trace = trace::trace(&source, &inspection.input.tokens, bar)?;
            if with_graph {
                inspection.graphs.push(graph::of_a_step(&source)?);
            }
            inspection.runs.push((source, trace));
        }
        Ok(inspection)
    }

    /// The page.
    ///
    /// # Errors
    /// When a number cannot be written.
    pub fn page(&self) -> Result<String> {
        page::page(self, &data::page_json(self)?)
    }

    /// Write the page and, if asked for, the data as JSON and safetensors and the graph as DOT. Returns the paths.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, out: &Path, json: bool) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        if json {
            files.push((beside(out, "json"), data::json(self, Encoding::Named)?.into_bytes()));
            files.push((beside(out, "safetensors"), data::safetensors(self)?));
        }
        for (i, graph) in self.graphs.iter().enumerate() {
            let ending: String = if i == 0 { "dot".into() } else { format!("{}.dot", i + 1) };
            files.push((beside(out, &ending), graph.dot().into_bytes()));
        }
        // The page is written last: if it exists, all files do.
        files.push((out.into(), self.page()?.into_bytes()));
        for (path, bytes) in &files {
            crate::train::rundir::write(path, bytes)?;
        }
        Ok(files.into_iter().rev().map(|f| f.0).collect())
    }
}

/// The file beside a page that has this ending in place of the page's.
pub fn beside(page: &Path, ending: &str) -> PathBuf {
    if page.extension().is_some_and(|own| own == "html" || own == "htm") {
        return page.with_extension(ending);
    }
    // What is behind another dot belongs to the name: lr0.1.
    let mut name = page.file_name().unwrap_or_default().to_os_string();
    name.push(".");
    name.push(ending);
    page.with_file_name(name)
}
