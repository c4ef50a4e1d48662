//! The convolution on the CPU, one sequence after another. Taps go four at a time, so that their number is a constant
//! and the inputs that they meet stay in registers.

use crate::{
    autograd::{Grad, In, zeroed},
    kernels::{
        conv::Sizes,
        scan::{at, put, put_all},
    },
    tensor::{Cpu, Real, Tensor},
};
use std::ops::Range;

/// Up to this many channels, a few channels go through the whole sequence before the next ones, all in registers. With
/// more channels the sequence is gone through row by row, as it lies in memory.
const NARROW: usize = 32;

impl Sizes {
    /// Where the r-th input of a sequence is, the state's before those of x: `Ok` row of x, or `Err` row of the state.
    fn source(self, r: usize) -> Result<usize, usize> {
        (r + 1).checked_sub(self.w).ok_or(r)
    }

    /// Where sequence b is, in x and in the state.
    fn of_sequence(self, b: usize) -> (Range<usize>, Range<usize>) {
        let (x, past) = (self.t * self.d, (self.w - 1) * self.d);
        (b * x..(b + 1) * x, b * past..(b + 1) * past)
    }
}

/// a [rows, cols] -> y [cols, rows], added if `acc`
fn transpose<T: Real>(rows: usize, cols: usize, a: &[T], y: &mut [T], acc: bool) {
    for i in 0..rows {
        for j in 0..cols {
            let old = if acc { y[j * rows + i] } else { T::ZERO };
            y[j * rows + i] = old + a[i * cols + j];
        }
    }
}

/// sum + a b, lane by lane.
#[inline(always)]
fn add_product<T: Real, const N: usize>(mut sum: [T; N], a: [T; N], b: [T; N]) -> [T; N] {
    for l in 0..N {
        sum[l] = a[l].fma(b[l], sum[l]);
    }
    sum
}

/// Calls `$f::<T, M>(j, …)` for the taps j..j + M that together are all.
macro_rules! by_taps {
    ($w:expr, $f:ident::<$T:ident>($($arg:expr),*)) => {
        for j in (0..$w).step_by(4) {
            match $w - j {
                1 => $f::<$T, 1>(j, $($arg),*),
                2 => $f::<$T, 2>(j, $($arg),*),
                3 => $f::<$T, 3>(j, $($arg),*),
                _ => $f::<$T, 4>(j, $($arg),*),
            }
        }
    };
}

/// Calls `$f::<T, M, N>(i, …)` for the channels i..i + N that together are all.
macro_rules! by_channels {
    ($d:expr, $f:ident::<$T:ident, $M:ident>($($arg:expr),*)) => {{
        let mut i = 0;
        while i + 16 <= $d { $f::<$T, $M, 16>(i, $($arg),*); i += 16; }
        while i + 8 <= $d { $f::<$T, $M, 8>(i, $($arg),*); i += 8; }
        while i + 4 <= $d { $f::<$T, $M, 4>(i, $($arg),*); i += 4; }
        while i < $d { $f::<$T, $M, 1>(i, $($arg),*); i += 1; }
    }};
}

/// The data of a sequence: its inputs, those of the state before those of x; the taps [W, D], one row each; and the row
/// with which sums begin, the bias or zeros.
#[derive(Clone, Copy)]
struct Inputs<'a, T> {
    s: Sizes,
    x: &'a [T],
    state: &'a [T],
    w: &'a [T],
    start: &'a [T],
}

impl<'a, T: Real> Inputs<'a, T> {
    fn tap(self, j: usize) -> &'a [T] {
        &self.w[j * self.s.d..][..self.s.d]
    }

    /// The r-th input.
    #[inline(always)]
    fn row(self, r: usize) -> &'a [T] {
        let d = self.s.d;
        match self.s.source(r) {
            Ok(t) => &self.x[t * d..][..d],
            Err(r) => &self.state[r * d..][..d],
        }
    }
}

/// N channels of y_t: the share of M taps, which meet M inputs.
#[inline(always)]
fn lanes<T: Real, const M: usize, const N: usize>(
    i: usize,
    first: bool,
    w: &[&[T]; M],
    x: &[&[T]; M],
    start: &[T],
    y: &mut [T],
) {
    let mut sum: [T; N] = if first { at(start, 0, 0, i) } else { at(y, 0, 0, i) };
    for k in 0..M {
        sum = add_product(sum, at(w[k], 0, 0, i), at(x[k], 0, 0, i));
    }
    put(y, 0, 0, i, sum, false);
}

/// The share of M taps from j on in a sequence's y, step by step.
#[inline(always)]
fn by_rows<T: Real, const M: usize>(j: usize, x: Inputs<T>, y: &mut [T]) {
    let (mut w, mut seen) = ([x.start; M], [x.start; M]);
    w.iter_mut().enumerate().for_each(|(k, w)| *w = x.tap(j + k));
    seen.iter_mut().skip(1).enumerate().for_each(|(r, seen)| *seen = x.row(j + r));
    for (t, y) in y.chunks_exact_mut(x.s.d).enumerate() {
        for k in 1..M {
            seen[k - 1] = seen[k];
        }
        seen[M - 1] = x.row(t + j + M - 1);
        by_channels!(x.s.d, lanes::<T, M>(j == 0, &w, &seen, x.start, y));
    }
}

/// The same for N channels through all steps.
#[inline(always)]
fn column<T: Real, const M: usize, const N: usize>(i: usize, j: usize, x: Inputs<T>, y: &mut [T]) {
    let (mut w, mut seen) = ([[T::ZERO; N]; M], [[T::ZERO; N]; M]);
    w.iter_mut().enumerate().for_each(|(k, w)| *w = at(x.tap(j + k), 0, 0, i));
    seen.iter_mut().skip(1).enumerate().for_each(|(r, seen)| *seen = at(x.row(j + r), 0, 0, i));
    let start = if j == 0 { at(x.start, 0, 0, i) } else { [T::ZERO; N] };
    for t in 0..x.s.t {
        for k in 1..M {
            seen[k - 1] = seen[k];
        }
        seen[M - 1] = at(x.row(t + j + M - 1), 0, 0, i);
        let mut sum = start;
        for k in 0..M {
            sum = add_product(sum, w[k], seen[k]);
        }
        put(y, t, x.s.d, i, sum, j > 0);
    }
}

#[inline(always)]
fn by_columns<T: Real, const M: usize>(j: usize, x: Inputs<T>, y: &mut [T]) {
    by_channels!(x.s.d, column::<T, M>(j, x, y));
}

#[versions::versions]
fn sequence<T: Real>(x: Inputs<T>, y: &mut [T]) {
    if x.s.d <= NARROW {
        by_taps!(x.s.w, by_columns::<T>(x, y));
    } else {
        by_taps!(x.s.w, by_rows::<T>(x, y));
    }
}

/// The gradients of a sequence's inputs, to be written or, with `true`, added to; and those of the taps [W, D] and of
/// the bias, which are always added to.
struct Outputs<'a, T> {
    dx: (&'a mut [T], bool),
    dstate: (&'a mut [T], bool),
    dw: &'a mut [T],
    dbias: &'a mut [T],
}

impl Sizes {
    /// The taps from j on that meet the r-th input: all M of them, but fewer near the ends. An input that a tap does
    /// not meet may be infinite, so it is not multiplied by zero instead.
    #[inline(always)]
    fn met<const M: usize>(self, r: usize, j: usize) -> Range<usize> {
        (r - j + 1).saturating_sub(self.t)..M.min(r - j + 1)
    }
}

/// N channels of the r-th input's gradient Σ_j w[j] g_{r−j}, and the share x_r g_{r−j} of this input in the gradient of
/// each tap j that meets it.
#[inline(always)]
fn lanes_back<T: Real, const M: usize, const N: usize>(
    i: usize,
    d: usize,
    met: Range<usize>,
    (w, g, x): (&[&[T]; M], &[&[T]; M], &[T]),
    (dx, acc): (&mut [T], bool),
    dw: &mut [T],
) {
    let (mut sum, x, inner) = ([T::ZERO; N], at(x, 0, 0, i), met == (0..M));
    for k in 0..M {
        if !inner && !met.contains(&k) {
            continue;
        }
        let g = at(g[k], 0, 0, i);
        sum = add_product(sum, at(w[k], 0, 0, i), g);
        let dtap = add_product(at(dw, k, d, i), x, g);
        put(dw, k, d, i, dtap, false);
    }
    put(dx, 0, 0, i, sum, acc);
}

/// The backward pass of M taps from j on, input by input.
#[inline(always)]
fn by_rows_back<T: Real, const M: usize>(j: usize, x: Inputs<T>, g: &[T], to: &mut Outputs<T>) {
    let Sizes { t: steps, d, .. } = x.s;
    let (mut w, mut window) = ([x.start; M], [x.start; M]);
    w.iter_mut().enumerate().for_each(|(k, w)| *w = x.tap(j + k));
    for r in j..steps + x.s.w - 1 {
        for k in (1..M).rev() {
            window[k] = window[k - 1];
        }
        window[0] = if r - j < steps { &g[(r - j) * d..][..d] } else { x.start };
        let (dx, acc) = match x.s.source(r) {
            Ok(t) => (&mut to.dx.0[t * d..][..d], to.dx.1 || j > 0),
            Err(r) => (&mut to.dstate.0[r * d..][..d], to.dstate.1 || j > 0),
        };
        let dw = &mut to.dw[j * d..][..M * d];
        let met = x.s.met::<M>(r, j);
        by_channels!(d, lanes_back::<T, M>(d, met.clone(), (&w, &window, x.row(r)), (&mut *dx, acc), &mut *dw));
        if j == 0 {
            to.dbias.iter_mut().zip(window[0]).for_each(|(d, &g)| *d += g);
        }
    }
}

/// The same for N channels through all inputs.
#[inline(always)]
fn column_back<T: Real, const M: usize, const N: usize>(
    i: usize,
    j: usize,
    x: Inputs<T>,
    g: &[T],
    to: &mut Outputs<T>,
) {
    let (s, d) = (x.s, x.s.d);
    let (mut w, mut dw, mut window) = ([[T::ZERO; N]; M], [[T::ZERO; N]; M], [[T::ZERO; N]; M]);
    for k in 0..M {
        (w[k], dw[k]) = (at(x.w, j + k, d, i), at(to.dw, j + k, d, i));
    }
    let mut all = [T::ZERO; N];
    for r in j..s.t + s.w - 1 {
        for k in (1..M).rev() {
            window[k] = window[k - 1];
        }
        window[0] = if r - j < s.t { at(g, r - j, d, i) } else { [T::ZERO; N] };
        let (mut sum, x_r, met) = ([T::ZERO; N], at(x.row(r), 0, 0, i), s.met::<M>(r, j));
        let inner = met == (0..M);
        for k in 0..M {
            if !inner && !met.contains(&k) {
                continue;
            }
            sum = add_product(sum, w[k], window[k]);
            dw[k] = add_product(dw[k], x_r, window[k]);
        }
        for l in 0..N {
            all[l] += window[0][l];
        }
        match s.source(r) {
            Ok(t) => put(to.dx.0, t, d, i, sum, to.dx.1 || j > 0),
            Err(r) => put(to.dstate.0, r, d, i, sum, to.dstate.1 || j > 0),
        }
    }
    dw.into_iter().enumerate().for_each(|(k, dw)| put(to.dw, j + k, d, i, dw, false));
    if j == 0 {
        put(to.dbias, 0, d, i, all, true);
    }
}

#[inline(always)]
fn by_columns_back<T: Real, const M: usize>(j: usize, x: Inputs<T>, g: &[T], to: &mut Outputs<T>) {
    by_channels!(x.s.d, column_back::<T, M>(j, x, g, to));
}

/// `x.start` is zeros here.
#[versions::versions]
fn sequence_back<T: Real>(x: Inputs<T>, g: &[T], to: &mut Outputs<T>) {
    if x.s.d <= NARROW {
        by_taps!(x.s.w, by_columns_back::<T>(x, g, to));
    } else {
        by_taps!(x.s.w, by_rows_back::<T>(x, g, to));
    }
}

/// x [B, T, D], w [D, W], the state [B, W − 1, D] and perhaps a bias `[D]` to y [B, T, D]; none of them empty.
pub fn forward<T: Real>(s: Sizes, cpu: &Cpu, x: In, y: &mut Tensor) {
    let (v, state, y) = (x[0].host::<T>(), x[2].host::<T>(), y.host_mut::<T>());
    let (mut w, zeros) = (cpu.temp::<T>(s.w * s.d), cpu.zeros::<T>(s.d));
    transpose(s.d, s.w, x[1].host(), &mut w, false);
    let start = if x.len() > 3 { x[3].host::<T>() } else { &zeros };
    for b in 0..s.b {
        let (rows, past) = s.of_sequence(b);
        sequence(Inputs { s, x: &v[rows.clone()], state: &state[past], w: &w, start }, &mut y[rows]);
    }
}

/// The gradients of all inputs, from that of y.
pub fn backward<T: Real>(s: Sizes, cpu: &Cpu, x: In, g: &Tensor, dx: &mut [Grad]) {
    let (v, state, g) = (x[0].host::<T>(), x[2].host::<T>(), g.host::<T>());
    let [d_x, d_w, d_state, d_bias @ ..] = dx else { return };
    let (mut w, start) = (cpu.temp::<T>(s.w * s.d), &*cpu.zeros::<T>(s.d));
    transpose(s.d, s.w, x[1].host(), &mut w, false);
    let (mut dw, mut dbias) = (cpu.zeros::<T>(s.w * s.d), cpu.zeros::<T>(s.d));
    let (dx, acc) = d_x.slot_or_scratch::<[T]>(cpu, &x[0]);
    let (dstate, acc_state) = d_state.slot_or_scratch::<[T]>(cpu, &x[2]);
    for b in 0..s.b {
        let (rows, past) = s.of_sequence(b);
        let inputs = Inputs { s, x: &v[rows.clone()], state: &state[past.clone()], w: &w, start };
        let (dx, dstate) = ((&mut dx[rows.clone()], acc), (&mut dstate[past], acc_state));
        sequence_back(inputs, &g[rows], &mut Outputs { dx, dstate, dw: &mut dw, dbias: &mut dbias });
    }
    if let Some(d) = d_w.slot::<[T]>().map(zeroed) {
        transpose(s.w, s.d, &dw, d, true);
    }
    if let Some((d, acc)) = d_bias.first_mut().and_then(Grad::slot::<[T]>) {
        put_all(d, &dbias, acc);
    }
}
