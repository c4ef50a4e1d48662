//! Compiled kernels on disk. NVRTC takes up to seconds for a file, and the answer never changes: it is kept under a hash of
//! everything that it depends on.

use crate::{
    error::{Error, Result},
    files::{self, whole},
    rng::{Fnv1a, fnv1a},
};
use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// Entries in one directory.
pub struct Cache {
    dir: PathBuf,
}

/// The first bytes of an entry, before the hash of the rest.
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
    pub fn get<E>(
        &self,
        key: &[&str],
        make: impl FnOnce() -> std::result::Result<Vec<u8>, E>,
    ) -> std::result::Result<Vec<u8>, E> {
        let path = self.path(key);
        if let Some(found) = read(&path) {
            return Ok(found);
        }
        let made = make()?;
        let _ = self.write(&path, &made);
        Ok(made)
    }

    /// Whether there is an entry for these key parts; it may be damaged.
    pub fn has(&self, key: &[&str]) -> bool {
        self.path(key).exists()
    }

    fn path(&self, key: &[&str]) -> PathBuf {
        let hash = |salt: u64| {
            let mut hash = Fnv1a(Fnv1a::default().0 ^ salt);
            key.iter().flat_map(|part| [part.as_bytes(), &[0]]).for_each(|bytes| hash.add(bytes));
            hash.hex()
        };
        // Two hashes: 128 bits do not collide by chance.
        self.dir.join(hash(0) + &hash(1))
    }

    fn write(&self, path: &Path, image: &[u8]) -> Result<()> {
        fs::create_dir_all(&self.dir).map_err(Error::io(&self.dir))?;
        whole::write(path, &[MAGIC, &fnv1a(image).to_le_bytes(), image].concat())
    }
}

/// The image in a file, if it is whole.
fn read(path: &Path) -> Option<Vec<u8>> {
    let bytes = files::read(path, files::RECORD).ok()?;
    let (sum, image) = bytes.strip_prefix(MAGIC)?.split_first_chunk::<8>()?;
    (u64::from_le_bytes(*sum) == fnv1a(image)).then(|| image.to_vec())
}
