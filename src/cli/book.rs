//! `tapezoo book`: a site to understand the mixers by.

use super::{bar::with_bar, fail, print, say};
use crate::{
    book::{LIBRARY, Site, TITLE},
    error::{Error, Result},
    files,
};
use clap::Parser;
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Make a site of all mixers: equations, the code beside them, what each can track, and the model itself
///
/// A page a mixer, made of its file: the equations, linked with the lines that compute them; its place in the family
/// tree; what it can and cannot track, with the test that shows it. The site needs no server and no network: open
/// index.html.
///
/// Where the library was built for a browser, each page also trains its mixer, and shows its states along bits that the
/// reader types. It opens with a model that this command trains, which takes some ten seconds for all of them. To build
/// it, in the repository: `rustup target add wasm32-unknown-unknown`, then `scripts/web.sh`.
#[derive(Parser)]
#[command(name = "book", version = crate::stamp::version(), after_help = EXAMPLES)]
pub(super) struct Book {
    /// The directory of the site; it is made if need be, and a site that is there is replaced
    #[arg(long, value_name = "DIR", default_value = "site")]
    out: PathBuf,
    /// The library as WebAssembly, compressed by gzip; without it the pages train nothing
    #[arg(long, value_name = "FILE", default_value = LIBRARY)]
    library: PathBuf,
    /// Train no models: pages begin with random weights
    #[arg(long)]
    untrained: bool,
}

const EXAMPLES: &str = "\
Examples:
  book --out site                      writes site/index.html and a page for each mixer
  book --library zoo.wasm.gz           with a library that was not built here

Exit status: 0 when the site is written, 1 when it cannot be written, \
2 when --out is a file or has pages of something else, or --library is no compressed module.";

pub(super) fn run(args: &Book) -> ExitCode {
    if let Err(e) = check(args) {
        return fail(&e, 2);
    }
    match with_bar("{wide_bar} {pos} of {len}: {msg}, {eta}", |bar| Site::new(&args.library, args.untrained, bar)) {
        Ok(site) => finish(&site, &args.out).map_or_else(|e| fail(&e, 1), |()| ExitCode::SUCCESS),
        Err(e) => fail(&e, 2),
    }
}

/// Before any work: whether the site can go there, and the library be had.
fn check(args: &Book) -> Result<()> {
    let Book { out, library, .. } = args;
    if out.exists() && !out.is_dir() {
        let what = "is a file; expected a directory, or a name for a new one";
        return Err(Error::config(format!("--out {}: {what}", out.display())));
    }
    let index = out.join("index.html");
    if index.exists() && !files::read_text(&index, files::RECORD).is_ok_and(|text| text.contains(TITLE)) {
        let what = "has an index.html of something else, which would be replaced; choose another directory";
        return Err(Error::config(format!("--out {}: {what}", out.display())));
    }
    if library != Path::new(LIBRARY) && !library.exists() {
        let what = "is not there; scripts/web.sh builds it, and says where";
        return Err(Error::config(format!("--library {}: {what}", library.display())));
    }
    Ok(())
}

fn finish(site: &Site, out: &Path) -> Result<()> {
    let index = site.write(out)?;
    for note in &site.notes {
        // The pages say it too.
        say("note", note);
    }
    let bytes: usize = site.files.iter().map(|file| file.1.len()).sum();
    print(format!("{}: {} files, {}\n", index.display(), site.files.len(), crate::error::bytes(bytes)))
}
