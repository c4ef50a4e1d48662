//! The lock of a directory that a process works in. It ends with the process, however that ends.
//!
//! A lock file that a killed process left behind is no lock. Where a file system has no locks, nobody is kept out.

use crate::{
    error::{Error, Result},
    files::{self, whole::is},
    stamp,
};
use std::{
    fs::{self, File, TryLockError},
    io::Write,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// The lock of a directory that holds runs.
pub const LOCK: &str = "lock";

/// A lock on a directory, until it is dropped.
pub struct Lock {
    file: File,
    path: PathBuf,
    /// The directory itself; none where directories cannot be opened.
    dir: Option<File>,
    alone: bool,
}

impl Lock {
    /// A lock for this process alone.
    ///
    /// # Errors
    /// When another process has it: the error names that process. When it cannot be written.
    pub fn exclusive(dir: &Path) -> Result<Lock> {
        let mut lock = Lock::take(dir, File::try_lock, 0)?;
        lock.alone = true;
        let who = format!("process {} on {} since {}\n", std::process::id(), stamp::host(), stamp::now());
        // The text only makes the error of the next process clearer.
        let _ = lock.file.set_len(0).and_then(|()| (&lock.file).write_all(who.as_bytes()));
        Ok(lock)
    }

    /// A lock beside other processes that share it.
    ///
    /// # Errors
    /// When a process has it for itself; when it cannot be written.
    pub fn shared(dir: &Path) -> Result<Lock> {
        // A process that leaves takes it alone for a moment, to see whether it is the last.
        let lock = Lock::take(dir, File::try_lock_shared, 20)?;
        // The name in the file is that of a process that was killed. It is not at work any more.
        let _ = lock.file.set_len(0);
        Ok(lock)
    }

    /// A lock, tried again so many times, a twentieth of a second apart.
    fn take(dir: &Path, lock: fn(&File) -> std::result::Result<(), TryLockError>, mut again: u32) -> Result<Lock> {
        let path = dir.join(LOCK);
        loop {
            let opened = File::options().read(true).write(true).create(true).truncate(false).open(&path);
            let file = opened.map_err(Error::io(&path))?;
            if let Err(TryLockError::WouldBlock) = lock(&file) {
                if again > 0 {
                    again -= 1;
                    thread::sleep(Duration::from_millis(50));
                    continue;
                }
                let said = files::read_text(&path, files::CONFIG).unwrap_or_default();
                let line = said.lines().next().unwrap_or_default();
                let plain: String = line.chars().filter(|c| !c.is_control()).take(120).collect();
                let who = if plain.is_empty() { String::new() } else { format!(" ({plain})") };
                let what = format!("another process{who} is at work in it; wait for it, or stop it");
                return Err(Error::format(dir, what));
            }
            // The process that had the lock before may have removed the file in between.
            if is(&file, &path) {
                return Ok(Lock { file, path, dir: File::open(dir).ok(), alone: false });
            }
        }
    }

    /// See that the directory is still there, and is the one that was locked.
    ///
    /// # Errors
    /// When it is not: `what` is then not done.
    pub fn check(&self, what: &str) -> Result<()> {
        let dir = self.path.parent().unwrap_or(Path::new(""));
        // A shared lock may be removed by others, where the file system has no locks.
        if self.dir.as_ref().is_none_or(|own| is(own, dir)) && (!self.alone || self.holds()) {
            return Ok(());
        }
        let why = "the directory was removed or replaced while this process was at work in it";
        Err(Error::format(dir, format!("{why}; {what}")))
    }

    /// Whether the directory is still the one that was locked.
    pub fn holds(&self) -> bool {
        is(&self.file, &self.path)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // The last process to leave removes the lock file; a file that stays is harmless.
        let last = !matches!(self.file.try_lock(), Err(TryLockError::WouldBlock));
        if last && self.holds() {
            let _ = fs::remove_file(&self.path);
        }
    }
}
