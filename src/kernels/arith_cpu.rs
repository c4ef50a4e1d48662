//! Binary ops with broadcasting on the CPU, row by row.

use crate::{
    autograd::{Grad, In},
    kernels::lane_sums::{self, NARROW},
    tensor::{MAX_RANK, Real, Shape, Tensor},
    with_width,
};

/// How one input is laid out in the output's index space, cut into rows along the output's innermost axis.
pub struct Rows {
    pub outer: Vec<(usize, usize, usize)>, // (size, stride of a, stride of b) of each outer axis
    pub inner: usize,
    pub da: usize, // 1, or 0 where a repeats along the innermost axis
    pub db: usize,
}

impl Rows {
    pub fn new(out: Shape, a: Shape, b: Shape) -> Rows {
        let strides = |s: Shape| {
            let mut strides = [0; MAX_RANK];
            let mut step = 1;
            for (i, &n) in s.dims().iter().enumerate().rev() {
                strides[out.rank() - s.rank() + i] = if n == 1 { 0 } else { step };
                step *= n;
            }
            strides
        };
        let (sa, sb) = (strides(a), strides(b));
        let mut axes: Vec<(usize, usize, usize)> =
            out.dims().iter().enumerate().map(|(i, &n)| (n, sa[i], sb[i])).collect();
        // Merge neighbouring axes that either both advance together or both repeat: rows get longer.
        let mut i = axes.len();
        while i > 1 {
            i -= 1;
            let ((n0, a0, b0), (n1, a1, b1)) = (axes[i - 1], axes[i]);
            if a0 == a1 * n1 && b0 == b1 * n1 {
                axes[i - 1] = (n0 * n1, a1, b1);
                axes.remove(i);
            }
        }
        let (inner, da, db) = axes.pop().unwrap_or((1, 0, 0));
        Rows { outer: axes, inner, da, db }
    }

    /// The distances between rows of a and between rows of b, if there is one outer axis and no row repeats one number.
    /// The many short rows of small models are then one loop.
    fn plain(&self) -> Option<(usize, usize)> {
        match (self.outer.as_slice(), self.da, self.db) {
            (&[(_, a, b)], 1, 1) => Some((a, b)),
            _ => None,
        }
    }

    /// Calls `f(offset in out, in a, in b)` once a row.
    #[inline(always)]
    fn each(&self, mut f: impl FnMut(usize, usize, usize)) {
        let rows: usize = self.outer.iter().map(|x| x.0).product();
        let mut index = [0; MAX_RANK];
        let (mut a, mut b) = (0, 0);
        for row in 0..rows {
            f(row * self.inner, a, b);
            for (i, &(n, sa, sb)) in self.outer.iter().enumerate().rev() {
                index[i] += 1;
                a += sa;
                b += sb;
                if index[i] < n {
                    break;
                }
                a -= sa * n;
                b -= sb * n;
                index[i] = 0;
            }
        }
    }
}

/// The scalar function of a binary op and its two partial derivatives times the cotangent g.
pub trait Scalar {
    /// f(a, b)
    fn f<T: Real>(a: T, b: T) -> T;
    /// g ∂f/∂a
    fn da<T: Real>(g: T, a: T, b: T) -> T;
    /// g ∂f/∂b
    fn db<T: Real>(g: T, a: T, b: T) -> T;
}

/// y = f(a, b) for rows of n elements. `y` has no gaps; the rows of a and b lie this far apart.
#[versions::versions]
fn rows_forward<S: Scalar, T: Real>(n: usize, (a, sa): (&[T], usize), (b, sb): (&[T], usize), y: &mut [T]) {
    with_width!(n => for (i, y) in y.chunks_exact_mut(n).enumerate() {
        let (a, b) = (&a[i * sa..][..n], &b[i * sb..][..n]);
        y.iter_mut().zip(a).zip(b).for_each(|((y, &a), &b)| *y = S::f(a, b));
    });
}

/// The gradients of such rows of a or b, whichever `first` says: rows `step` apart, or, if that is 0, added up in one.
#[versions::versions]
fn rows_backward<S: Scalar, T: Real>(
    first: bool,
    acc: bool,
    n: usize,
    g: &[T],
    (a, sa): (&[T], usize),
    (b, sb): (&[T], usize),
    (d, step): (&mut [T], usize),
) {
    let partial = |g: T, a: T, b: T| if first { S::da(g, a, b) } else { S::db(g, a, b) };
    // Sums of narrow rows stay in registers: a sum in memory waits for its own store.
    let mut narrow = [T::ZERO; NARROW];
    let held = acc && step == 0 && n <= NARROW;
    with_width!(n => for (i, g) in g.chunks_exact(n).enumerate() {
        let (a, b) = (&a[i * sa..][..n], &b[i * sb..][..n]);
        let d = if held { &mut narrow[..n] } else { &mut d[i * step..][..n] };
        let entries = d.iter_mut().zip(g).zip(a).zip(b);
        if acc || held {
            entries.for_each(|(((d, &g), &a), &b)| *d += partial(g, a, b));
        } else {
            entries.for_each(|(((d, &g), &a), &b)| *d = partial(g, a, b));
        }
    });
    if held {
        d.iter_mut().zip(narrow).for_each(|(d, sum)| *d += sum);
    }
}

/// y = f(a, b) of any rows.
#[versions::versions]
fn any_rows_forward<S: Scalar, T: Real>(rows: &Rows, a: &[T], b: &[T], y: &mut [T]) {
    rows.each(|i, ia, ib| {
        let (y, a, b) = (&mut y[i..i + rows.inner], &a[ia..], &b[ib..]);
        match (rows.da, rows.db) {
            (1, 1) => y.iter_mut().zip(a).zip(b).for_each(|((y, &a), &b)| *y = S::f(a, b)),
            (1, _) => y.iter_mut().zip(a).for_each(|(y, &a)| *y = S::f(a, b[0])),
            (_, 1) => y.iter_mut().zip(b).for_each(|(y, &b)| *y = S::f(a[0], b)),
            _ => y.fill(S::f(a[0], b[0])),
        }
    });
}

/// The gradients of any rows of a or b, as `first` says, overwriting or adding. A row that does not repeat gets its
/// terms, and a repeated number gets their sum.
#[versions::versions]
fn any_rows_backward<S: Scalar, T: Real>(
    first: bool,
    acc: bool,
    rows: &Rows,
    g: &[T],
    (a, b): (&[T], &[T]),
    d: &mut [T],
) {
    let (n, own) = (rows.inner, if first { rows.da } else { rows.db });
    let partial = |g: T, a: T, b: T| if first { S::da(g, a, b) } else { S::db(g, a, b) };
    rows.each(|i, ia, ib| {
        let (g, a, b, d) = (&g[i..i + n], &a[ia..], &b[ib..], &mut d[if first { ia } else { ib }..]);
        if own == 0 {
            let sum = match (rows.da, rows.db) {
                (0, 0) => lane_sums::sum(g, |g| partial(g, a[0], b[0])),
                (0, _) => lane_sums::sum2(g, &b[..n], |g, b| partial(g, a[0], b)),
                _ => lane_sums::sum2(g, &a[..n], |g, a| partial(g, a, b[0])),
            };
            d[0] = sum + if acc { d[0] } else { T::ZERO };
            return;
        }
        match (rows.da, rows.db, acc) {
            (1, 1, true) => d.iter_mut().zip(g).zip(a).zip(b).for_each(|(((d, &g), &a), &b)| *d += partial(g, a, b)),
            (1, 1, false) => d.iter_mut().zip(g).zip(a).zip(b).for_each(|(((d, &g), &a), &b)| *d = partial(g, a, b)),
            (1, _, true) => d.iter_mut().zip(g).zip(a).for_each(|((d, &g), &a)| *d += partial(g, a, b[0])),
            (1, _, false) => d.iter_mut().zip(g).zip(a).for_each(|((d, &g), &a)| *d = partial(g, a, b[0])),
            (_, _, true) => d.iter_mut().zip(g).zip(b).for_each(|((d, &g), &b)| *d += partial(g, a[0], b)),
            (_, _, false) => d.iter_mut().zip(g).zip(b).for_each(|((d, &g), &b)| *d = partial(g, a[0], b)),
        }
    });
}

/// y = f(a, b).
pub fn forward<S: Scalar, T: Real>(x: In, y: &mut Tensor) {
    let rows = Rows::new(y.shape(), x[0].shape(), x[1].shape());
    let (a, b, y) = (x[0].host::<T>(), x[1].host::<T>(), y.host_mut::<T>());
    if y.is_empty() {
        return;
    }
    match rows.plain() {
        Some((sa, sb)) => rows_forward::<S, T>(rows.inner, (a, sa), (b, sb), y),
        None => any_rows_forward::<S, T>(&rows, a, b, y),
    }
}

/// The gradients of a and b.
pub fn backward<S: Scalar, T: Real>(x: In, g: &Tensor, dx: &mut [Grad]) {
    let rows = Rows::new(g.shape(), x[0].shape(), x[1].shape());
    let (a, b, g) = (x[0].host::<T>(), x[1].host::<T>(), g.host::<T>());
    for (which, grad) in dx.iter_mut().enumerate() {
        let first = which == 0;
        if let Some((d, acc)) = grad.slot::<[T]>() {
            // A gradient without repetitions is written once; the others are summed up from zero.
            let whole = d.len() == g.len();
            if !acc && !whole {
                d.fill(T::ZERO);
            }
            if g.is_empty() {
                continue;
            }
            let acc = acc || !whole;
            match rows.plain() {
                Some((sa, sb)) => {
                    let step = if first { sa } else { sb };
                    rows_backward::<S, T>(first, acc, rows.inner, g, (a, sa), (b, sb), (d, step));
                }
                None => any_rows_backward::<S, T>(first, acc, &rows, g, (a, b), d),
            }
        }
    }
}
