//! The report of an experiment, for people and for programs.
//!
//! [`table`](crate::train::table) is what a program prints at its end. The rest makes a page of run directories:
//! [`load`] reads them, [`section`] sorts their runs into those that can be compared, [`figures`] says what is drawn,
//! [`plot`] draws it, and [`html`] is the page. [`sweep`] is what sweeps come to, with its maps ([`heat`]). [`watch`] serves
//! the page while runs go on. [`tree`] draws how the mixers descend from one another, and [`mathml`] sets their equations.

pub(crate) mod figures;
pub(crate) mod heat;
pub(crate) mod html;
pub(crate) mod load;
#[doc(hidden)]
pub mod mathml;
#[doc(hidden)]
pub mod plot;
#[doc(hidden)]
pub mod scale;
pub(crate) mod section;
pub(crate) mod sweep;
#[doc(hidden)]
pub mod tree;
pub(crate) mod watch;

use crate::{
    error::{Error, Result},
    files,
    train::rundir,
};
use indicatif::ProgressBar;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// A report in memory.
pub struct Report {
    /// The page.
    pub page: String,
    /// Each figure as a file of its own: its name and its contents.
    pub figures: Vec<(String, String)>,
    /// Notes about runs that are not complete.
    pub notes: Vec<String>,
    /// How many runs there are.
    pub runs: usize,
}

/// The report of the run directories that `paths` are or hold. The same directories give the same bytes.
///
/// # Errors
/// When a path is no run directory and holds none, or one cannot be read, or there is no run at all.
pub fn report(paths: &[PathBuf], bar: &ProgressBar) -> Result<Report> {
    let mut notes = Vec::new();
    let experiments = load::load(paths, &mut notes, bar)?;
    let sweeps = sweeps(paths, &experiments, &mut notes);
    let sections = section::sections(experiments, &mut notes);
    let draw = |mut sweep: sweep::Swept| {
        sweep.styled_as(&sections);
        let drawn = sweep.draw();
        (sweep, drawn)
    };
    let sweeps: Vec<_> = sweeps.into_iter().map(draw).collect();
    if sections.is_empty() {
        return Err(Error::config(format!("there is nothing to report yet: {}", notes.join("; "))));
    }
    let drawn: Vec<_> = sections.into_iter().map(|s| (figures::figures(&s), s)).map(|(f, s)| (s, f)).collect();
    let file = |f: &plot::Figure| (f.name.clone(), f.file());
    let of_sweeps = sweeps.iter().flat_map(|(_, drawn)| drawn).flat_map(|drawn| {
        drawn.over.iter().map(file).chain(drawn.maps.iter().map(|map| (map.name.clone(), map.file())))
    });
    let all = of_sweeps.chain(drawn.iter().flat_map(|(_, f)| f.all()).map(file));
    // Names lose what a file name should not have, so that two may be the same.
    let mut taken = BTreeSet::new();
    let figures = all.map(|(name, svg)| (format!("{}.svg", free(&name, &mut taken)), svg)).collect();
    Ok(Report {
        page: html::page(&sweeps, &drawn, &notes),
        figures,
        runs: drawn.iter().map(|(s, _)| s.runs().count()).sum(),
        notes,
    })
}

/// A name that is not taken yet: this one, or with a number behind it.
fn free(name: &str, taken: &mut BTreeSet<String>) -> String {
    let names = (1..).map(|n| if n == 1 { name.into() } else { format!("{name}-{n}") });
    let free = names.into_iter().find(|name| !taken.contains(name)).unwrap_or_default();
    taken.insert(free.clone());
    free
}

/// The sweeps that these run directories are points of: those at or below the paths that were named.
fn sweeps(paths: &[PathBuf], experiments: &[load::Experiment], notes: &mut Vec<String>) -> Vec<sweep::Swept> {
    let above = experiments.iter().filter_map(|e| e.path.parent());
    let named = |dir: &&Path| paths.iter().any(|path| dir.starts_with(path));
    let dirs: BTreeSet<&Path> = above.filter(named).filter(|dir| files::is_there(&dir.join(rundir::SWEEP))).collect();
    let (mut sweeps, mut taken) = (vec![], BTreeSet::new());
    for dir in dirs {
        match sweep::Swept::read(dir) {
            Ok(mut sweep) => {
                sweep.slug = free(&sweep.slug, &mut taken);
                sweeps.push(sweep);
            }
            Err(e) => notes.push(format!("the figures of the sweep in {} are left out: {e}", dir.display())),
        }
    }
    sweeps
}

impl Report {
    /// Write `report.html` into a directory, which is made if need be, and the figures beside it; the page comes
    /// last. Of files with these names the old ones are replaced, and no others touched. Gives the page's path.
    ///
    /// # Errors
    /// When the directory cannot be made, or a file not be written.
    pub fn write(&self, dir: &Path) -> Result<PathBuf> {
        if dir.exists() && !dir.is_dir() {
            let why = "is a file; expected a directory, or a name for a new one";
            return Err(Error::config(format!("--out {}: {why}", dir.display())));
        }
        fs::create_dir_all(dir).map_err(Error::io(dir))?;
        for (name, svg) in &self.figures {
            rundir::write(&dir.join(name), svg.as_bytes())?;
        }
        let path = dir.join("report.html");
        rundir::write(&path, self.page.as_bytes())?;
        Ok(path)
    }
}
