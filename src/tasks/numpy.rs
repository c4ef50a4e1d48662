//! NumPy's generator, bit for bit: `numpy.random.default_rng(seed)` is PCG64 (M. O'Neill, 2014; XSL-RR 128/64)
//! seeded through SeedSequence, and `integers` is Lemire's multiplication with rejection, on 32-bit halves. `rand_pcg` has
//! the generator alone: it seeds in another way, and draws integers from other bits.

use rand::Rng as _;

/// `numpy.random.default_rng(seed)`.
#[derive(Clone, Debug)]
pub struct Pcg64 {
    rng: rand_pcg::Pcg64,
    /// The upper half of the last draw, for the next 32-bit one.
    half: Option<u32>,
}

impl Pcg64 {
    /// The generator of this seed.
    pub fn new(seed: u64) -> Pcg64 {
        let [w0, w1, w2, w3] = seed_sequence(seed).map(u128::from);
        Pcg64 { rng: rand_pcg::Pcg64::new(w0 << 64 | w1, w2 << 64 | w3), half: None }
    }

    fn next_u32(&mut self) -> u32 {
        if let Some(half) = self.half.take() {
            return half;
        }
        let n = self.rng.next_u64();
        self.half = Some((n >> 32) as u32);
        n as u32
    }

    /// `rng.integers(low, high)`: a number in `low..high`, a range of fewer than 2^32 numbers.
    ///
    /// # Panics
    /// When the range is empty.
    pub fn integers(&mut self, low: u32, high: u32) -> u32 {
        assert!(low < high, "integers of the empty range {low}..{high}");
        let n = high - low;
        if n == 1 {
            return low;
        }
        let mut m = u64::from(self.next_u32()) * u64::from(n);
        if (m as u32) < n {
            let threshold = n.wrapping_neg() % n;
            while (m as u32) < threshold {
                m = u64::from(self.next_u32()) * u64::from(n);
            }
        }
        low + (m >> 32) as u32
    }
}

/// `SeedSequence(seed).generate_state(4, uint64)`.
fn seed_sequence(seed: u64) -> [u64; 4] {
    let mut multiplier = 0x43b0_d7e5_u32;
    let mut hash = |value: u32| {
        let value = value ^ multiplier;
        multiplier = multiplier.wrapping_mul(0x931e_8875);
        let value = value.wrapping_mul(multiplier);
        value ^ value >> 16
    };
    let mix = |x: u32, y: u32| {
        let r = x.wrapping_mul(0xca01_f9dd).wrapping_sub(y.wrapping_mul(0x4973_f715));
        r ^ r >> 16
    };
    let mut pool = [seed as u32, (seed >> 32) as u32, 0, 0].map(&mut hash);
    for from in 0..4 {
        for to in 0..4 {
            if from != to {
                pool[to] = mix(pool[to], hash(pool[from]));
            }
        }
    }
    let mut multiplier = 0x8b51_f9dd_u32;
    let words = [0, 1, 2, 3, 0, 1, 2, 3].map(|i: usize| {
        let value = pool[i] ^ multiplier;
        multiplier = multiplier.wrapping_mul(0x58f3_8ded);
        let value = value.wrapping_mul(multiplier);
        u64::from(value ^ value >> 16)
    });
    [0, 2, 4, 6].map(|i| words[i] | words[i + 1] << 32)
}
