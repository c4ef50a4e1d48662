//! Random streams keyed by (seed, purpose, index), which depend on nothing else.
//!
//! Batch 17 of the training data of seed 3 is `stream(3, "train", 17)`: the same bits whatever was drawn before,
//! on whichever thread or device. ChaCha is a counter-based generator, so starting a stream at any index costs nothing.

use rand::SeedableRng;
pub use rand::rngs::ChaCha8Rng as Rng;

/// The stream of random numbers for this seed, purpose and index.
pub fn stream(seed: u64, purpose: &str, index: u64) -> Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&fnv1a(purpose.as_bytes()).to_le_bytes());
    let mut rng = Rng::from_seed(key);
    rng.set_stream(index);
    rng
}

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

/// The 64-bit hash FNV-1a, to turn a purpose into a number.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    Fnv1a::of(bytes).0
}
