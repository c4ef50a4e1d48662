//! A site to understand the mixers by: a page for each, made of its file alone.
//!
//! What a page says comes from here: [`prose`] reads the documentation at the head of the file, [`equations`] its
//! equations and the lines that compute them, [`cores`] has the ops that run it over a sequence, [`cost`] what was
//! measured, and [`tracks`] what tests show.
//!
//! The pages are made here: `annotated` sets equations beside their code, [`tree`] has the family tree and the links to
//! mixers, [`lab`] the part that trains, and `page` puts a mixer's page together. `lists` has the pages of all mixers and
//! of all exercises, and [`tour`] leads through eight stops. `frame` is around every page.
//!
//! Where the library was built for a browser (`scripts/web.sh`) it is part of the site, and each page trains its mixer.

mod annotated;
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
    error::{Error, Result},
    files, models,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use indicatif::ProgressBar;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Where `scripts/web.sh` leaves the library.
pub(crate) const LIBRARY: &str = "target/web/tapezoo.wasm.gz";

/// The most bytes of the library that a site takes.
const MOST: u64 = 3 << 20;

/// A site in memory.
pub struct Site {
    /// Each file: its name, and what is in it.
    pub files: Vec<(String, String)>,
    /// What the site lacks, and how to have it.
    pub notes: Vec<String>,
}

impl Site {
    /// The site, with the library for the browser from this file, if it is there.
    ///
    /// # Errors
    /// When the file is there and cannot be read, or is no compressed module.
    pub fn new(library: &Path, bar: &ProgressBar) -> Result<Site> {
        let names = models::names();
        bar.set_length(names.len() as u64 + 1);
        let engine = engine(library)?;
        let mut files = vec![
            ("book.css".to_string(), frame::style()),
            ("book.js".into(), frame::script()),
            ("index.html".into(), lists::index(engine.is_some())),
            ("tour.html".into(), tour::page(engine.is_some())),
            ("table.html".into(), lists::table()),
            ("exercises.html".into(), lists::exercises()),
        ];
        bar.inc(1);
        for name in names {
            bar.set_message(name);
            files.push((tree::file(name), page::page(name, engine.is_some())));
            bar.inc(1);
        }
        let mut notes = vec![];
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
    /// replaced, and no others touched. Gives the path of the index.
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
        // A library that an earlier site had would be offered by nothing.
        for name in ["engine.js", "inspector.js"] {
            if !self.files.iter().any(|file| file.0 == name) {
                files::whole::remove_file(&dir.join(name))?;
            }
        }
        Ok(dir.join("index.html"))
    }
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
