//! Sizes on both sides of every switch between kernels, and numbers at the edges.

use proptest::{prelude::*, sample::select};
use tapezoo::{
    autograd::Gen,
    tensor::{Shape, Tensor},
};

/// Batch, steps, heads, widths of keys and values, channels, states per channel, and chunk size.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub b: usize,
    pub t: usize,
    pub h: usize,
    pub k: usize,
    pub v: usize,
    pub d: usize,
    pub n: usize,
    pub chunk: usize,
}

/// Widths of keys and values: narrow attention is up to 4 and up to 8 wide; a memory of up to 256 elements runs step by
/// step, a larger one by products of chunks.
const HEADS: [(usize, usize); 11] =
    [(1, 1), (2, 3), (4, 4), (4, 5), (5, 8), (9, 8), (8, 9), (16, 16), (16, 17), (17, 16), (20, 20)];

/// Channels: a register, half of one and their neighbours; 32, where LSTM, quasi-LSTM and convolution change; 64.
const CHANNELS: [usize; 14] = [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65];

fn of(
    chunks: &'static [usize],
    batch: &'static [usize],
    heads: &'static [usize],
    longest: usize,
) -> BoxedStrategy<Size> {
    let widths = (select(&HEADS[..]), select(&CHANNELS[..]), select(&[1, 2, 3, 4, 5, 8, 9, 16][..]));
    (select(chunks), select(batch), select(heads), widths, 0usize..10)
        .prop_map(move |(chunk, b, h, ((k, v), d, n), t)| {
            let t = [1, 2, 3, chunk - 1, chunk, chunk + 1, 2 * chunk + 1, 17, longest, 0][t].min(longest);
            Size { b, t, h, k, v, d, n, chunk }
        })
        .boxed()
}

/// Sizes for the CPU. Sixteen narrow sequences or heads are computed side by side.
pub fn sizes() -> BoxedStrategy<Size> {
    of(&[1, 2, 3, 4, 8, 16, 32, 64], &[1, 2, 3, 4, 5, 0], &[1, 2, 3, 5, 16], 66)
}

/// Sizes for the emulated device, where a step takes a thousand times as long.
pub fn small() -> BoxedStrategy<Size> {
    of(&[1, 2, 4, 16], &[1, 2, 0], &[1, 2], 17)
}

/// Numbers that single precision represents.
pub fn tensor(g: &mut Gen, shape: impl Into<Shape>, mut f: impl FnMut(&mut Gen) -> f64) -> Tensor {
    g.tensor(shape, |g| f64::from(f(g) as f32))
}

/// Standard normal numbers.
pub fn normal(g: &mut Gen, shape: impl Into<Shape>) -> Tensor {
    tensor(g, shape, Gen::gauss)
}

/// One of a list.
pub fn pick<T: Copy>(g: &mut Gen, of: &[T]) -> T {
    of[g.below(of.len())]
}

/// Change some elements of x, or none; adds a description to `what`.
pub fn change(g: &mut Gen, x: &Tensor, mut f: impl FnMut(&mut Gen, usize, f64) -> f64) -> Tensor {
    let v: Vec<f64> = x.to_f64().iter().enumerate().map(|(i, &x)| f64::from(f(g, i, x) as f32)).collect();
    Tensor::from_vec(v, x.shape())
}

/// The step that element i of x [B, T, ..] belongs to.
fn step(x: &Tensor, i: usize) -> usize {
    let (_, t, inner) = x.shape().split(1);
    i / inner % t
}

/// A tensor [B, T, ..]: random, or all of one size, or zero at some steps, or the same at each step. `sizes` are the
/// sizes that the formula can take.
pub fn rows(g: &mut Gen, name: &str, shape: impl Into<Shape>, sizes: &[f64], what: &mut String) -> Tensor {
    let x = normal(g, shape);
    let (_, t, inner) = x.shape().split(1);
    match g.below(8) {
        0 => {
            let size = pick(g, sizes);
            *what += &format!(", {name} of {size:e}");
            change(g, &x, |_, _, x| size * x)
        }
        1 => {
            let (from, to) = range(g, t);
            *what += &format!(", {name} zero at {from}..{to}");
            change(g, &x, |_, i, v| if (from..to).contains(&step(&x, i)) { 0.0 } else { v })
        }
        2 => {
            *what += &format!(", {name} repeated");
            let all = x.to_f64();
            change(g, &x, |_, i, _| all[i / (t * inner) * t * inner + i % inner])
        }
        3 => {
            let (size, at) = (pick(g, sizes), g.below(t.max(1)));
            *what += &format!(", {name} of {size:e} at {at}");
            change(g, &x, |_, i, v| if step(&x, i) == at { size * v } else { v })
        }
        _ => x,
    }
}

/// Gates [B, T, ..] from f, or at some steps one of these special values.
pub fn gates(
    g: &mut Gen,
    name: &str,
    shape: impl Into<Shape>,
    f: impl FnMut(&mut Gen) -> f64,
    special: &[f64],
    what: &mut String,
) -> Tensor {
    let mut x = tensor(g, shape, f);
    let (_, t, _) = x.shape().split(1);
    for _ in 0..g.below(3) {
        let value = pick(g, special);
        let (from, to) = range(g, t);
        let one_in = pick(g, &[1, 1, 2]);
        let some = if one_in == 1 { "" } else { " (half of them)" };
        *what += &format!(", {name} = {value:e} at {from}..{to}{some}");
        x = change(g, &x, |g, i, v| if (from..to).contains(&step(&x, i)) && g.below(one_in) == 0 { value } else { v });
    }
    x
}

/// Input gates x [B, T, ..] in three of four cases shut at the first steps: not at all open, as at padding on the left,
/// and then so little that e^(−m) is more than a number holds.
pub fn shut_at_first(g: &mut Gen, x: Tensor, what: &mut String) -> Tensor {
    let (_, t, _) = x.shape().split(1);
    if g.below(4) == 0 {
        return x;
    }
    let padding = g.below(t + 1);
    let shut = padding + g.below(t - padding + 1);
    *what += &format!(", i = -inf at 0..{padding}, i = -90 at {padding}..{shut}");
    change(g, &x, |_, i, v| match step(&x, i) {
        step if step < padding => f64::NEG_INFINITY,
        step if step < shut => -90.0,
        _ => v,
    })
}

/// Steps from..to: the first, a single one, all, the last, or some.
fn range(g: &mut Gen, t: usize) -> (usize, usize) {
    let (a, b) = (g.below(t + 1), g.below(t + 1));
    match g.below(5) {
        0 => (0, a),
        1 => (a, (a + 1).min(t)),
        2 => (0, t),
        3 => (a, t),
        _ => (a.min(b), a.max(b)),
    }
}

/// A tensor of any shape with some special elements.
pub fn sprinkled(
    g: &mut Gen,
    name: &str,
    shape: impl Into<Shape>,
    f: impl FnMut(&mut Gen) -> f64,
    special: &[f64],
    what: &mut String,
) -> Tensor {
    let x = tensor(g, shape, f);
    if g.below(3) > 0 || x.is_empty() {
        return x;
    }
    let value = pick(g, special);
    *what += &format!(", some of {name} = {value:e}");
    change(g, &x, |g, _, v| if g.coin() { value } else { v })
}
