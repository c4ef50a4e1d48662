//! Products of few steps, y [m, n] = a [m, k] b [k, n] with k = 1, 2, 4 or 8 and alpha = 1, for a and y in rows: all of
//! b, or as many of its columns as fit, stays in registers while the rows of a go by. A tile would load b anew for
//! every few rows and be over before it has begun.

use super::operand::{FEWEST, Product};
use crate::kernels::vector::{Job, Vector};

/// K steps, C vectors of columns, of which the last is filled as far as n says.
///
/// To run it, a [m, K] and y [m, n] must be in rows, and all be memory to read or write.
struct Rows<'a, const K: usize, const C: usize>(&'a Product);

impl<const K: usize, const C: usize> Job for Rows<'_, K, C> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self, v: V) {
        let Product { m, n, a, b, ref out, .. } = *self.0;
        let last = n - (C - 1) * V::W;
        let (mut held, mut init) = ([[v.zero(); C]; K], [v.zero(); C]);
        let mask = v.first(last);
        // SAFETY: b has K rows of n elements, what is added one; lanes beyond a mask are not read.
        unsafe {
            let mut numbers = [0f32; 16];
            for c in 0..C {
                let (columns, mask) = if c + 1 < C { (V::W, v.first(V::W)) } else { (last, mask) };
                if !out.init.is_null() && out.init_rs == 0 {
                    init[c] = v.load_first(out.init.add(c * V::W), mask);
                }
                for (p, held) in held.iter_mut().enumerate() {
                    let mut row = b.from(p, c * V::W).at;
                    if b.cs != 1 {
                        numbers[..columns].iter_mut().enumerate().for_each(|(l, x)| *x = *row.add(l * b.cs));
                        row = numbers.as_ptr();
                    }
                    held[c] = v.load_first(row, mask);
                }
            }
        }
        let (mut at, mut to) = (a.at, out.at);
        for _ in 0..m {
            // SAFETY: a row of a and one of y, of K and n elements. What is added to, if its rows differ, is y itself.
            unsafe {
                let mut sums = [v.zero(); C];
                for (p, b) in held.iter().enumerate() {
                    let x = v.splat(*at.add(p));
                    for c in 0..C {
                        sums[c] = if p == 0 { v.mul(x, b[c]) } else { v.mul_add(x, b[c], sums[c]) };
                    }
                }
                for c in 0..C {
                    let to = to.add(c * V::W);
                    if c + 1 < C || last == V::W {
                        let init = if out.init_rs > 0 { v.load(to) } else { init[c] };
                        v.store(to, v.add(sums[c], init));
                    } else {
                        let init = if out.init_rs > 0 { v.load_first(to, mask) } else { init[c] };
                        v.store_first(to, last, v.add(sums[c], init));
                    }
                }
            }
            (at, to) = (at.wrapping_add(a.rs), to.wrapping_add(out.rs));
        }
    }
}

/// The product, if this is the way to compute it.
///
/// # Safety
/// a [m, k], b [k, n] and what `out` [m, n] starts from are memory to read, y to write, which overlaps no other; none
/// of the sizes is 0.
pub unsafe fn product<V: Vector>(v: V, p: &Product) -> bool {
    let Product { m, k, n, a, ref out, .. } = *p;
    if !matches!(k, 1 | 2 | 4 | 8) || n < V::W / 2 || m < FEWEST || a.cs != 1 || out.cs != 1 || out.alpha != 1.0 {
        return false;
    }
    // Half of the registers hold b.
    let most = (V::REGISTERS / 2 / k).min(V::REGISTERS / 8) * V::W;
    for j in (0..n).step_by(most) {
        let p = &p.columns(j, most);
        macro_rules! rows {
            ($($k:literal $c:literal),*) => {
                match (k, p.n.div_ceil(V::W)) {
                    // SAFETY: this function's contract; columns j.. of n, no more than are left.
                    $(($k, $c) if const { $k * $c <= V::REGISTERS / 2 && $c <= V::REGISTERS / 8 } => unsafe {
                        v.enter(Rows::<$k, $c>(p))
                    },)*
                    _ => unreachable!("{k} steps of {} columns", p.n),
                }
            };
        }
        rows!(1 1, 1 2, 1 3, 1 4, 2 1, 2 2, 2 3, 2 4, 4 1, 4 2, 4 3, 4 4, 8 1, 8 2);
    }
    true
}
