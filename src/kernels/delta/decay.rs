//! What a gate does inside a chunk.
//!
//! With b_t = g_1 + … + g_t from the start of the chunk, three factors:
//!
//! ```text
//! γ_t = exp(b_t)              what is left at step t of the state before the chunk
//! D_ts = exp(b_t − b_s)       what is left at step t of what step s wrote
//! r_s = D_Cs                  what is left of it at the end
//! ```
//!
//! They are running products of exp(g_t) ≤ 1, D_ts = D_{t-1,s} exp(g_t): the exponential of a difference of
//! cumulative sums without the difference, in which digits would cancel. Nothing is divided, and nothing exceeds 1.

use crate::{
    kernels::{
        heads::Heads,
        math::Math,
        rows::{scale, times, times_rows},
    },
    tensor::{Cpu, Temp},
};

/// The factors of a chunk; without a gate they are all 1, and nothing is done.
pub struct Decay<'a, T: Math> {
    on: bool,
    /// γ, [C]
    start: Temp<'a, T>,
    /// D, [C, C], zero above the diagonal
    between: Temp<'a, T>,
}

impl<'a, T: Math> Decay<'a, T> {
    pub fn new(cpu: &'a Cpu, chunk: usize, on: bool) -> Decay<'a, T> {
        let c = if on { chunk } else { 0 };
        Decay { on, start: cpu.temp(c), between: cpu.temp(c * c) }
    }

    /// Steps `t0..t0 + n` of head `i`.
    pub fn load(&mut self, heads: Heads, g: Option<&[T]>, i: usize, t0: usize, n: usize) {
        if let Some(g) = g {
            heads.gather(g, i, t0, n, T::ONE, &mut self.start, 1);
            build(&mut self.start, &mut self.between, n);
        }
    }

    /// Γ = γ_n
    pub fn whole(&self, n: usize) -> T {
        if self.on { self.start[n - 1] } else { T::ONE }
    }

    /// S ← Γ S
    pub fn state(&self, s: &mut [T], n: usize) {
        if self.on {
            scale(s, self.whole(n));
        }
    }

    /// Rows times γ.
    pub fn since_start(&self, x: &mut [T], n: usize, k: usize) {
        if self.on {
            times_rows(k, &self.start[..n], x);
        }
    }

    /// Rows times r.
    pub fn until_end(&self, x: &mut [T], n: usize, k: usize) {
        if self.on {
            times_rows(k, &self.between[(n - 1) * n..n * n], x);
        }
    }

    /// A ⊙ D
    pub fn between(&self, a: &mut [T], n: usize) {
        if self.on {
            times(&mut a[..n * n], &self.between);
        }
    }
}

/// γ and D of the gates in `start`.
#[versions::versions]
fn build<T: Math>(start: &mut [T], between: &mut [T], n: usize) {
    let mut whole = T::ONE;
    for t in 0..n {
        let a = start[t].exp();
        whole *= a;
        start[t] = whole;
        let (before, row) = between.split_at_mut(t * n);
        let row = &mut row[..n];
        if t > 0 {
            let before = &before[(t - 1) * n..];
            row[..t].iter_mut().zip(before).for_each(|(y, &x)| *y = a * x);
        }
        row[t] = T::ONE;
        row[t + 1..].fill(T::ZERO);
    }
}
