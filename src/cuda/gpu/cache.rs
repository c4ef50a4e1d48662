//! Compiled kernels on disk. NVRTC takes a tenth of a second a module, and the answer never changes: it is kept under
//! a hash of everything that it depends on.

use crate::files;
use std::{
    env, fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

/// Entries in one directory.
pub struct Cache {
    dir: PathBuf,
}

/// What an entry begins with, before the hash of the rest.
const MAGIC: &[u8; 8] = b"tapezoo1";

impl Cache {
    /// The user's: `$XDG_CACHE_HOME/tapezoo/kernels`, or under `~/.cache`.
    pub fn of_user() -> Cache {
        let var = |name: &str| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let base = var("XDG_CACHE_HOME").or_else(|| var("HOME").map(|home| home.join(".cache")));
        Cache { dir: base.unwrap_or_else(env::temp_dir).join("tapezoo/kernels") }
    }

    /// Entries in this directory.
    pub fn at(dir: &Path) -> Cache {
        Cache { dir: dir.into() }
    }

    /// The entry for these key parts; if there is none, or it is damaged, what `make` makes, kept for the next time.
    ///
    /// # Errors
    /// When `make` fails. A cache that cannot be written is no error: the next run compiles again.
    pub fn get<E>(&self, key: &[&str], make: impl FnOnce() -> Result<Vec<u8>, E>) -> Result<Vec<u8>, E> {
        let parts = || key.iter().flat_map(|part| part.bytes().chain([0]));
        // Two hashes: 128 bits do not collide by chance.
        let path = self.dir.join(format!("{:016x}{:016x}", hash(parts(), 0), hash(parts(), 1)));
        if let Some(found) = read(&path) {
            return Ok(found);
        }
        let made = make()?;
        let _ = self.write(&path, &made);
        Ok(made)
    }

    /// Whole or not at all: written under another name, then renamed.
    fn write(&self, path: &Path, image: &[u8]) -> io::Result<()> {
        fs::create_dir_all(&self.dir)?;
        let partial = path.with_extension(format!("{}-{:?}", std::process::id(), std::thread::current().id()));
        let mut file = fs::File::create(&partial)?;
        file.write_all(MAGIC)?;
        file.write_all(&hash(image.iter().copied(), 0).to_le_bytes())?;
        file.write_all(image)?;
        file.sync_all()?;
        fs::rename(&partial, path)
    }
}

/// The image in a file, if it is whole.
fn read(path: &Path) -> Option<Vec<u8>> {
    let bytes = files::read(path, files::RECORD).ok()?;
    let (sum, image) = bytes.strip_prefix(MAGIC)?.split_first_chunk::<8>()?;
    (u64::from_le_bytes(*sum) == hash(image.iter().copied(), 0)).then(|| image.to_vec())
}

/// FNV-1a.
fn hash(bytes: impl Iterator<Item = u8>, salt: u64) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325 ^ salt, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}
