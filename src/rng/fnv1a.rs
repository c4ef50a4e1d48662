//! A hash of bytes. `build.rs` has this file as a module too.

/// The 64-bit hash FNV-1a (Fowler, Noll, Vo) of the bytes added so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fnv1a(pub u64);

impl Default for Fnv1a {
    fn default() -> Fnv1a {
        Fnv1a(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv1a {
    /// The hash of these bytes.
    pub fn of(bytes: &[u8]) -> Fnv1a {
        let mut hash = Fnv1a::default();
        hash.add(bytes);
        hash
    }

    /// Add bytes to the hash.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, &b| (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    }

    /// As sixteen digits.
    pub fn hex(self) -> String {
        format!("{:016x}", self.0)
    }
}
