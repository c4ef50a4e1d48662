//! What gates do inside a chunk.
//!
//! With b_t = g_1 + … + g_t from the start of the chunk, four factors:
//!
//! ```text
//! γ_t = exp(b_t)              what is left at step t of the state before the chunk
//! D_ts = exp(b_t − b_s)       what is left at step t of what step s wrote
//! r_s = D_Cs                  what is left of it at the end
//! Γ = γ_C                     what is left there of the state before the chunk
//! ```
//!
//! They are running products of exp(g_t) ≤ 1, D_ts = D_{t-1,s} exp(g_t): the exponential of a difference of cumulative sums
//! without the difference, in which digits would cancel. Nothing is divided, and nothing exceeds 1.
//!
//! The gradients of the gates are sums over what the factors multiply: with y = x exp(g), dg = y dy. The gate of step t is
//! in the factors of what a step u ≥ t reads of a step s < t, of what it reads of the state before the chunk, and of what is
//! left of both at the end:
//!
//! ```text
//! dg_t = Σ_{s<t≤u} (dR ⊙ R + dA ⊙ A)_us + Σ_{u≥t} ((γ ⊙ q)_u · d(γ ⊙ q)_u + (γ ⊙ p)_u · d(γ ⊙ p)_u)
//!        + Σ_{s<t} (r ⊙ k)_s · d(r ⊙ k)_s + ⟨dS, Γ ⊙ S⟩
//! ```
//!
//! Each term has the factor of the gate in it, so that nothing cancels where little is left. This is for one gate for the
//! whole memory; for gates of rows see [`Channels`].

use super::{Gates, channels::Channels, chunk::mat};
use crate::{
    kernels::{
        heads::{Heads, lower},
        math::Math,
        matmul::gemm,
        rows::{add_row_dots, dot, scale, scale_rows, times, times_rows},
        segsum,
        tril_matmul::lower_gemm,
    },
    tensor::{Cpu, Real, Temp},
};

/// The n rows of a chunk: queries, keys to erase by and keys to write under, [n, K].
#[derive(Clone, Copy)]
pub struct Rows<'a, T> {
    pub n: usize,
    pub q: &'a [T],
    pub p: &'a [T],
    pub k: &'a [T],
}

/// The factors of a chunk.
pub enum Fade<'a, T: Math> {
    /// All are 1, and nothing is done.
    Nothing { k: usize },
    /// One for the whole memory.
    Head { k: usize, start: Temp<'a, T>, between: Temp<'a, T>, products: Temp<'a, T>, sums: Temp<'a, T> },
    /// One for each row.
    Channels(Channels<'a, T>),
}

impl<'a, T: Math> Fade<'a, T> {
    pub fn new(cpu: &'a Cpu, gates: Gates, c: usize, k: usize) -> Fade<'a, T> {
        let square = || cpu.temp(c * c);
        match gates {
            Gates::None => Fade::Nothing { k },
            Gates::Head => {
                Fade::Head { k, start: cpu.temp(c), between: square(), products: square(), sums: cpu.temp(3 * c) }
            }
            Gates::Channel => Fade::Channels(Channels::new(cpu, c, k)),
        }
    }

    pub fn on(&self) -> bool {
        !matches!(self, Fade::Nothing { .. })
    }

    /// Steps `t0..t0 + n` of head `i`.
    pub fn load(&mut self, heads: Heads, g: &[T], i: usize, t0: usize, n: usize) {
        match self {
            Fade::Nothing { .. } => {}
            Fade::Head { start, between, .. } => {
                heads.gather(g, i, t0, n, T::ONE, start, 1);
                build(start, between, n);
            }
            Fade::Channels(all) => all.load(heads, g, i, t0, n),
        }
    }

    /// R = tril(Q Kᵀ) and A = stril(P Kᵀ), faded.
    pub fn scores(&mut self, x: Rows<T>, r: &mut [T], a: &mut [T]) {
        let (n, k) = match self {
            Fade::Channels(all) => return all.scores(x, r, a),
            Fade::Nothing { k } | Fade::Head { k, .. } => (x.n, *k),
        };
        for (rows, y, strict) in [(x.q, &mut *r, false), (x.p, &mut *a, true)] {
            gemm(T::ONE, (rows, mat(n, k)), (x.k, mat(n, k).t()), (y, mat(n, n)), false);
            lower(y, n, strict);
        }
        if let Fade::Head { between, .. } = self {
            times(&mut r[..n * n], between);
            times(&mut a[..n * n], between);
        }
    }

    /// y = γ ⊙ x for rows x.
    pub fn since_start(&self, n: usize, x: &[T], y: &mut [T]) {
        match self {
            Fade::Nothing { .. } => {}
            Fade::Head { k, start, .. } => scale_rows(*k, &start[..n], x, y),
            Fade::Channels(all) => all.since_start(n, x, y),
        }
    }

    /// y = r ⊙ k for the keys.
    pub fn to_end(&self, n: usize, keys: &[T], y: &mut [T]) {
        match self {
            Fade::Nothing { .. } => {}
            Fade::Head { k, between, .. } => scale_rows(*k, &between[(n - 1) * n..n * n], keys, y),
            Fade::Channels(all) => all.to_end(n, y),
        }
    }

    /// S ← Γ ⊙ S
    pub fn state(&self, n: usize, s: &mut [T]) {
        match self {
            Fade::Nothing { .. } => {}
            Fade::Head { start, .. } => scale(s, start[n - 1]),
            Fade::Channels(all) => all.state(n, s),
        }
    }

    /// dQ, dP and dK come in as the gradients of γ ⊙ Q, γ ⊙ P and r ⊙ K, and go out as those of Q, P and K; dg is written.
    /// `scores` are R and A, with gradients dR and dA, which are overwritten; `state` is S, dS, and whether either is zero.
    pub fn backward(
        &mut self,
        cpu: &Cpu,
        x: Rows<T>,
        [r, a]: [&[T]; 2],
        [dr, da]: [&mut [T]; 2],
        (zero, s, ds): (bool, &[T], &[T]),
        [dq, dp, dk]: [&mut [T]; 3],
        dg: &mut [T],
    ) {
        let n = x.n;
        let k = match self {
            Fade::Channels(all) => return all.backward(x, [dr, da], (zero, s, ds), [dq, dp, dk], dg),
            Fade::Nothing { k } | Fade::Head { k, .. } => *k,
        };
        if let Fade::Head { start, between, products, sums, .. } = self {
            product(&dr[..n * n], r, products, false);
            product(&da[..n * n], a, products, true);
            times(&mut dr[..n * n], between);
            times(&mut da[..n * n], between);
            times_rows(k, &start[..n], dq);
            times_rows(k, &start[..n], dp);
            times_rows(k, &between[(n - 1) * n..n * n], dk);
            sums.fill(T::ZERO);
            let (first, rest) = sums.split_at_mut(n);
            let (last, room) = rest.split_at_mut(n);
            add_row_dots(k, &x.q[..n * k], dq, first);
            add_row_dots(k, &x.p[..n * k], dp, first);
            add_row_dots(k, &x.k[..n * k], dk, last);
            let across = if zero { T::ZERO } else { start[n - 1] * dot(ds, s) };
            gate(&products[..n * n], (first, last, across), room, &mut dg[..n]);
        }
        let (mk, ma) = (mat(n, k), mat(n, n));
        lower_gemm(cpu, n, k, dr, x.k, dq, true);
        lower_gemm(cpu, n, k, da, x.k, dp, true);
        gemm(T::ONE, (dr, ma.t()), (x.q, mk), (&mut *dk, mk), true);
        gemm(T::ONE, (da, ma.t()), (x.p, mk), (dk, mk), true);
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

/// y = a ⊙ b, or y += a ⊙ b
#[versions::versions]
fn product<T: Real>(a: &[T], b: &[T], y: &mut [T], acc: bool) {
    for ((y, &a), &b) in y.iter_mut().zip(a).zip(b) {
        *y = if acc { *y + a * b } else { a * b };
    }
}

/// dg from its terms: of what a step reads of another (w [n, n]) and of the state before the chunk, and of what is left of
/// each step and of the whole after it.
fn gate<T: Real>(w: &[T], (start, end, across): (&[T], &[T], T), room: &mut [T], dg: &mut [T]) {
    segsum::backward(dg.len(), w, dg, false, room);
    let mut sum = across;
    for (dg, &end) in dg.iter_mut().zip(end) {
        *dg += sum;
        sum += end;
    }
    sum = T::ZERO;
    for (dg, &start) in dg.iter_mut().zip(start).rev() {
        sum += start;
        *dg += sum;
    }
}
