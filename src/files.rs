//! Files that somebody else may have written: only regular files and the shell's pipes are read, up to a limit.

pub(crate) mod header;
pub(crate) mod tensors;
pub mod whole;

use crate::{
    available::available,
    error::{Error, Result, bytes as size},
};
use std::{
    fs::{File, Metadata},
    io::Read,
    path::Path,
};

/// The most bytes of a configuration.
pub const CONFIG: u64 = 1 << 20;

/// The most bytes of a file that records runs.
pub const RECORD: u64 = 1 << 30;

/// The most bytes of a file of tensors: as much memory as there is.
pub fn tensors() -> u64 {
    available() as u64
}

/// Open a regular file, or a pipe that the shell has opened for this process: `<(command)` in a command line. Another
/// pipe, a device or a directory is refused: some have no end, and others wait for ever.
///
/// # Errors
/// When it is not there, is no such file, or has more than `most` bytes.
pub fn open(path: &Path, most: u64) -> Result<File> {
    // A named pipe waits until somebody opens it to write.
    let about = path.metadata().map_err(Error::io(path))?;
    if !about.is_file() && !is_own_pipe(path, &about) {
        let what = if about.is_dir() { "a directory" } else { "a device or a pipe" };
        return Err(Error::format(path, format!("{what}, not a regular file, so it is not read")));
    }
    check(path, about.len(), most)?;
    File::open(path).map_err(Error::io(path))
}

/// Whether this is a pipe among the files that this process has open.
fn is_own_pipe(path: &Path, about: &Metadata) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        about.file_type().is_fifo()
            && ["/dev/fd", "/proc/self/fd"].iter().any(|dir| path.parent() == Some(Path::new(dir)))
    }
    #[cfg(not(unix))]
    {
        let _ = (path, about);
        false
    }
}

/// The bytes of a file.
///
/// # Errors
/// As [`open`], and when it cannot be read.
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // The file may be growing, so one byte more than the limit is read.
    open(path, most)?.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(Error::io(path))?;
    check(path, bytes.len() as u64, most)?;
    Ok(bytes)
}

/// The text of a file.
///
/// # Errors
/// As [`read`], and when it is not UTF-8.
pub fn read_text(path: &Path, most: u64) -> Result<String> {
    String::from_utf8(read(path, most)?).map_err(|_| Error::format(path, "no text in UTF-8"))
}

/// Whether there is anything of this name, also a link that leads nowhere.
pub fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

fn check(path: &Path, bytes: u64, most: u64) -> Result<()> {
    if bytes <= most {
        return Ok(());
    }
    let [bytes, most] = [bytes, most].map(|n| size(usize::try_from(n).unwrap_or(usize::MAX)));
    Err(Error::format(path, format!("it has {bytes}, and such a file has at most {most}, so it is not read")))
}
