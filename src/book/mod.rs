//! A site to understand the mixers by: a page for each, made of its file alone.
//!
//! The contents of a page come from these modules: [`prose`] reads the documentation at the head of the file,
//! [`equations`] its equations and the lines that compute them, [`cores`] has the ops that run it over a sequence,
//! [`cost`] the measured times and bytes, and [`tracks`] the facts that tests show.
//!
//! The pages are made here: `annotated` sets equations beside their code, [`tree`] has the family tree and the links to
//! mixers, [`lab`] the part that trains, `backwards` has the derivatives of the ops in each line, and `page` puts a
//! mixer's page together. `lists` has the pages of all mixers and of all exercises, and [`tour`] leads through eight
//! stops. `frame` is around every page.
//!
//! Where the library was built for a browser (`scripts/web.sh`) it is part of the site, and each page trains its mixer. A
//! page then opens with a model that [`Site::new`] has trained.

mod annotated;
mod backwards;
#[doc(hidden)]
pub mod cores;
#[doc(hidden)]
pub mod cost;
#[doc(hidden)]
pub mod equations;
mod frame;
#[doc(hidden)]
pub mod lab;
mod lists;
mod page;
#[doc(hidden)]
pub mod prose;
#[doc(hidden)]
pub mod tour;
#[doc(hidden)]
pub mod tracks;
#[doc(hidden)]
pub mod tree;

use crate::{
    autograd::Called,
    error::{Error, Result},
    files,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use indicatif::ProgressBar;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Mutex,
    thread,
};

/// Where `scripts/web.sh` leaves the library.
pub(crate) const LIBRARY: &str = "target/web/tapezoo.wasm.gz";

/// The title of the first page, by which a site is known.
pub(crate) const TITLE: &str = "The annotated zoo";

/// The most bytes of the library that a site takes.
const MOST: u64 = 3 << 20;

/// A site in memory.
pub struct Site {
    /// Each file: its name, and what is in it.
    pub files: Vec<(String, String)>,
    /// The parts that the site lacks, and how to have them.
    pub notes: Vec<String>,
}

impl Site {
    /// The site, with the library for the browser from this file, if it is there. Its pages begin with models that are
    /// trained here, on all cores, unless `untrained` says not to.
    ///
    /// # Errors
    /// When the file is there and cannot be read, or is no compressed module.
    pub fn new(library: &Path, untrained: bool, bar: &ProgressBar) -> Result<Site> {
        let names = tree::all();
        let engine = engine(library)?;
        let (trains, mut notes) = (engine.is_some() && !untrained, vec![]);
        bar.set_length(names.len() as u64 * if trains { 2 } else { 1 } + 1);
        let trained = if trains { trained(&names, &mut notes, bar) } else { BTreeMap::new() };
        let mut files = vec![
            ("book.css".to_string(), frame::style()),
            ("book.js".into(), frame::script()),
            ("index.html".into(), lists::index(engine.is_some())),
            ("tour.html".into(), tour::page()),
            ("table.html".into(), lists::table()),
            ("exercises.html".into(), lists::exercises()),
        ];
        bar.inc(1);
        let calls: BTreeMap<&str, Vec<Called>> = names.iter().map(|name| (*name, backwards::called(name))).collect();
        files.push((backwards::PAGE.into(), backwards::page(&calls.values().flatten().copied().collect::<Vec<_>>())));
        for name in names {
            bar.set_message(name);
            let models = [Some(name), tree::about(name).parent.map(|parent| parent.0)];
            let scripts =
                models.iter().flatten().filter(|name| trained.contains_key(**name)).map(|name| lab::trained_file(name));
            let scripts: Vec<String> = scripts.collect();
            files.push((tree::file(name), page::page(name, &calls[name], engine.as_ref().map(|_| &scripts[..]))));
            bar.inc(1);
        }
        files.extend(trained.into_iter().map(|(name, script)| (lab::trained_file(name), script)));
        match engine {
            Some(text) => files.extend([("engine.js".into(), text), ("inspector.js".into(), lab::inspector())]),
            None => notes.push(format!(
                "{}: not there, so the pages train no model; build it with scripts/web.sh, and make the site again",
                library.display()
            )),
        }
        Ok(Site { files, notes })
    }

    /// Write every file into a directory, which is made if need be; `index.html` comes last. Files with these names are
    /// replaced; of an earlier site, the library and the trained models that this one lacks are deleted. Gives the path of
    /// the index.
    ///
    /// # Errors
    /// When the directory cannot be made, or a file not be written.
    pub fn write(&self, dir: &Path) -> Result<PathBuf> {
        fs::create_dir_all(dir).map_err(Error::io(dir))?;
        let is_index = |file: &&(String, String)| file.0 == "index.html";
        let others = self.files.iter().filter(|file| !is_index(file));
        for (name, text) in others.chain(self.files.iter().filter(is_index)) {
            files::whole::write(&dir.join(name), text.as_bytes())?;
        }
        // A library or a trained model that an earlier site had would be offered by nothing.
        let of_earlier = ["engine.js", "inspector.js"].map(String::from).into_iter();
        for name in of_earlier.chain(tree::all().into_iter().map(lab::trained_file)) {
            if !self.files.iter().any(|file| file.0 == name) {
                files::whole::remove_file(&dir.join(name))?;
            }
        }
        Ok(dir.join("index.html"))
    }
}

/// The scripts with the weights of trained models, by mixer; where training fails, a note says so.
fn trained<'a>(names: &[&'a str], notes: &mut Vec<String>, bar: &ProgressBar) -> BTreeMap<&'a str, String> {
    let (left, found) = (Mutex::new(names.iter()), Mutex::new(BTreeMap::new()));
    let next = || left.lock().ok()?.next().copied();
    let work = || {
        while let Some(name) = next() {
            bar.set_message(format!("training {name}"));
            let script = lab::trained(name);
            bar.inc(1);
            if let Ok(mut found) = found.lock() {
                found.insert(name, script);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..thread::available_parallelism().map_or(1, usize::from) {
            // Where the system has no more threads, there is still this one.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    let mut scripts = BTreeMap::new();
    for (name, script) in found.into_inner().unwrap_or_default() {
        match script {
            Ok(script) => drop(scripts.insert(name, script)),
            Err(e) => notes.push(format!("{name}: its page begins with an untrained model: {}", e.shown())),
        }
    }
    scripts
}

/// The script that holds the library, where there is one.
fn engine(library: &Path) -> Result<Option<String>> {
    if !files::is_there(library) {
        return Ok(None);
    }
    let bytes = files::read(library, MOST)?;
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        let what = "not compressed by gzip; expected what scripts/web.sh builds";
        return Err(Error::format(library, what));
    }
    Ok(Some(format!("'use strict';\nwindow.engine = '{}';\n", STANDARD.encode(bytes))))
}
