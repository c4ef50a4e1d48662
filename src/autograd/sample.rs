//! Random shapes and tensors for the checks.

use crate::tensor::{Shape, Tensor};
use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};

/// A source of random sizes and tensors, reproducible from its seed.
pub struct Gen {
    rng: ChaCha8Rng,
}

impl Gen {
    /// A generator for this seed.
    pub fn new(seed: u64) -> Gen {
        Gen { rng: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// A size in `1..=max`; 1 a quarter of the time, as it is where things break.
    pub fn size(&mut self, max: usize) -> usize {
        if self.rng.random_bool(0.25) { 1 } else { self.rng.random_range(1..=max) }
    }

    /// An integer in `0..n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.rng.random_range(0..n)
    }

    /// A number in `lo..hi`.
    pub fn uniform(&mut self, lo: f64, hi: f64) -> f64 {
        self.rng.random_range(lo..hi)
    }

    /// Heads or tails.
    pub fn coin(&mut self) -> bool {
        self.rng.random_bool(0.5)
    }

    /// A standard normal number (Box and Muller).
    pub fn gauss(&mut self) -> f64 {
        let (a, b): (f64, f64) = (self.rng.random_range(f64::MIN_POSITIVE..1.0), self.rng.random_range(0.0..1.0));
        (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }

    /// A shape of `rank` axes, each at most `max`.
    pub fn shape(&mut self, rank: usize, max: usize) -> Shape {
        let dims: Vec<usize> = (0..rank).map(|_| self.size(max)).collect();
        Shape::new(&dims)
    }

    /// A tensor of standard normal numbers.
    pub fn normal(&mut self, shape: impl Into<Shape>) -> Tensor {
        self.tensor(shape, Gen::gauss)
    }

    /// A tensor of numbers uniform in `lo..hi`.
    pub fn range(&mut self, shape: impl Into<Shape>, lo: f64, hi: f64) -> Tensor {
        self.tensor(shape, |g| g.uniform(lo, hi))
    }

    /// A tensor of numbers drawn by `f`.
    pub fn tensor(&mut self, shape: impl Into<Shape>, mut f: impl FnMut(&mut Gen) -> f64) -> Tensor {
        let shape = shape.into();
        Tensor::from_vec((0..shape.len()).map(|_| f(self)).collect::<Vec<f64>>(), shape)
    }

    /// A tensor of integers in `0..n`.
    pub fn ints(&mut self, shape: impl Into<Shape>, n: usize) -> Tensor {
        let shape = shape.into();
        let v = (0..shape.len()).map(|_| i32::try_from(self.below(n)).unwrap_or(0)).collect();
        Tensor::from_vec::<i32>(v, shape)
    }
}
