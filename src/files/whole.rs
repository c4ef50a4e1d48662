//! Files that appear whole or not at all.

use crate::error::{Error, Result};
use std::{
    fs::{self, File, TryLockError},
    io::{self, Write},
    path::{Path, PathBuf},
};
use tempfile::{Builder, NamedTempFile};

/// How the names of unfinished files end.
const ENDING: &str = ".tmp";

/// Write a file whole or not at all: under another name beside it, synced, then renamed. A link leads to the file that
/// is replaced, or to the place of one that is not there; a device or a pipe is written to, and stays what it is. A
/// file that is replaced keeps who may read and write it.
///
/// # Errors
/// When it cannot be written; the old file, if there was one, is then as it was.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    if fs::metadata(path).is_ok_and(|there| !there.is_file() && !there.is_dir()) {
        return fs::write(path, bytes).map_err(Error::io(path));
    }
    let led = || fs::read_link(path).map(|to| path.parent().unwrap_or(Path::new("")).join(to));
    let target = fs::canonicalize(path).or_else(|_| led()).unwrap_or_else(|_| path.into());
    let directory = target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::metadata(directory).map_err(Error::io(directory))?;
    let all = || -> io::Result<()> {
        let mut file = unfinished(directory, &target)?;
        file.write_all(bytes)?;
        if let Ok(there) = fs::metadata(&target) {
            file.as_file().set_permissions(there.permissions())?;
        }
        file.as_file().sync_all()?;
        file.persist(&target)?;
        // The new name itself is on the disk once its directory is; Windows opens no directories.
        if cfg!(unix) {
            File::open(directory)?.sync_all()?;
        }
        Ok(())
    };
    all().map_err(Error::io(path))
}

/// A file beside `path`, under a name that nobody else has, locked for as long as it is open.
fn unfinished(directory: &Path, path: &Path) -> io::Result<NamedTempFile> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".");
    loop {
        let mut builder = Builder::new();
        builder.prefix(&name).suffix(ENDING).rand_bytes(16);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            builder.permissions(fs::Permissions::from_mode(0o666)); // less what the umask takes
        }
        let file = builder.tempfile_in(directory)?;
        // Where there are no locks, no other process removes it either.
        let _ = file.as_file().lock();
        // Before it was locked, another process may have removed it as the leftover of a killed process.
        if is(file.as_file(), file.path()) {
            return Ok(file);
        }
    }
}

/// Whether this is the name of an unfinished file of one of `names`.
pub fn is_unfinished(path: &Path, names: &[&str]) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let whole = name.strip_suffix(ENDING).and_then(|name| name.rsplit_once('.'));
    whole.is_some_and(|(whole, tag)| {
        tag.len() == 16 && tag.chars().all(|c| c.is_ascii_alphanumeric()) && names.contains(&whole)
    })
}

/// Delete the unfinished files of `names` that processes left when they were killed; not those of a process at work.
///
/// # Errors
/// When the directory cannot be read, or a file cannot be deleted.
pub fn remove_unfinished(dir: &Path, names: &[&str]) -> Result<()> {
    for path in entries(dir)?.into_iter().filter(|path| is_unfinished(path, names)) {
        // A file that is gone by now was finished, or removed by another process.
        let Ok(file) = File::open(&path) else { continue };
        match file.try_lock() {
            Ok(()) if is(&file, &path) => remove_file(&path)?,
            Ok(()) | Err(TryLockError::WouldBlock | TryLockError::Error(_)) => {}
        }
    }
    Ok(())
}

/// The paths of a directory's entries.
///
/// # Errors
/// When it cannot be read.
pub fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let listed = fs::read_dir(dir).and_then(|all| all.map(|entry| Ok(entry?.path())).collect());
    listed.map_err(Error::io(dir))
}

/// Delete a file, if it is there.
///
/// # Errors
/// When it is there and cannot be deleted.
pub fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::io(path)(e)),
        _ => Ok(()),
    }
}

/// Whether this open file is what the path names: it may have been removed or replaced.
pub fn is(file: &File, path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let id = |m: fs::Metadata| (m.dev(), m.ino());
        matches!((file.metadata(), fs::metadata(path)), (Ok(own), Ok(there)) if id(own.clone()) == id(there.clone()))
    }
    #[cfg(not(unix))]
    {
        let _ = file;
        path.exists()
    }
}
