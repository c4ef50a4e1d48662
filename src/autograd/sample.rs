//! Random shapes and tensors for the checks.

use crate::tensor::{DType, Shape, Tensor};
use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};

/// A source of random sizes and tensors, reproducible from its seed.
pub struct Gen {
    rng: ChaCha8Rng,
    /// How many elements larger sizes may still multiply a sample by; 0 where sizes stay small.
    room: usize,
    /// Whether tensors may be special: see [`Gen::at_edges`].
    edges: bool,
}

impl Gen {
    /// A generator for this seed.
    pub fn new(seed: u64) -> Gen {
        Gen { rng: ChaCha8Rng::seed_from_u64(seed), room: 0, edges: false }
    }

    /// The same with sizes on both sides of what kernels switch at (widths of vectors, tiles and chunks), as long as
    /// samples have no more than some `room` elements.
    pub fn around_switches(self, room: usize) -> Gen {
        Gen { room, ..self }
    }

    /// The same with tensors that are all zero, of equal rows, or at the ends of their range, a quarter of the time
    /// each.
    pub fn at_edges(self) -> Gen {
        Gen { edges: true, ..self }
    }

    /// A size in `1..=max`, and 1 a quarter of the time, as it is where things break; or a larger one
    /// ([`Gen::around_switches`]).
    pub fn size(&mut self, max: usize) -> usize {
        const SWITCHES: [usize; 5] = [4, 8, 16, 32, 64];
        if self.room > 0 && self.rng.random_bool(0.4) {
            let n = SWITCHES[self.below(SWITCHES.len())] + self.below(3) - 1;
            if n > max && n <= self.room {
                self.room /= n;
                return n;
            }
        }
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

    /// A standard normal number (Box and Muller). `rand_distr` draws others from the same seed, and every number that was
    /// published with a seed would change.
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
    ///
    /// # Panics
    /// As [`Shape::new`].
    #[track_caller]
    pub fn normal(&mut self, shape: impl Into<Shape>) -> Tensor {
        self.special(shape.into(), [-1.0, 1.0], Gen::gauss)
    }

    /// A tensor of numbers uniform in `lo..hi`.
    ///
    /// # Panics
    /// As [`Shape::new`], and when `lo..hi` is empty.
    #[track_caller]
    pub fn range(&mut self, shape: impl Into<Shape>, lo: f64, hi: f64) -> Tensor {
        self.special(shape.into(), [lo, hi], |g| g.uniform(lo, hi))
    }

    /// A tensor of numbers drawn by `f`; at the edges one that is zero if it may be, that repeats its first row, or
    /// that has these `ends` alone.
    fn special(&mut self, shape: Shape, ends: [f64; 2], f: impl Fn(&mut Gen) -> f64) -> Tensor {
        let kind = if self.edges { self.below(4) } else { 3 };
        match kind {
            0 if ends[0] <= 0.0 && ends[1] >= 0.0 => Tensor::zeros(shape, DType::F64),
            1 => {
                let row: Vec<f64> = (0..shape.last()).map(|_| f(self)).collect();
                Tensor::from_vec(row.into_iter().cycle().take(shape.len()).collect::<Vec<f64>>(), shape)
            }
            2 => self.tensor(shape, |g| ends[g.below(2)]),
            _ => self.tensor(shape, f),
        }
    }

    /// A tensor of numbers drawn by `f`.
    ///
    /// # Panics
    /// As [`Shape::new`].
    #[track_caller]
    pub fn tensor(&mut self, shape: impl Into<Shape>, mut f: impl FnMut(&mut Gen) -> f64) -> Tensor {
        let shape = shape.into();
        Tensor::from_vec((0..shape.len()).map(|_| f(self)).collect::<Vec<f64>>(), shape)
    }

    /// A tensor of integers in `0..n`.
    ///
    /// # Panics
    /// As [`Shape::new`], and when n is 0.
    #[track_caller]
    pub fn ints(&mut self, shape: impl Into<Shape>, n: usize) -> Tensor {
        let shape = shape.into();
        let v = (0..shape.len()).map(|_| i32::try_from(self.below(n)).unwrap_or(0)).collect();
        Tensor::from_vec::<i32>(v, shape)
    }
}
