//! Random streams keyed by (seed, purpose, index), which depend on nothing else.
//!
//! Batch 17 of the training data of seed 3 is `stream(3, "train", 17)`: the same bits whatever was drawn before,
//! on whichever thread or device. ChaCha is a counter-based generator, so starting a stream at any index costs nothing.

mod fnv1a;

pub use fnv1a::Fnv1a;
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

/// The 64-bit hash FNV-1a, to turn a purpose into a number.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    Fnv1a::of(bytes).0
}
