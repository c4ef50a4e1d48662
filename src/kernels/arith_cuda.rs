//! The launches of arith.cu: broadcasting, and the sums over what it repeats.

use crate::{
    args,
    autograd::{Grad, In},
    cuda::{Arg, Launch, Module},
    kernels::{arith_cpu::Rows, linear::total_cuda},
    tensor::{Cuda, MAX_RANK, Tensor},
};

/// The kernels of arithmetic and of sums over axes.
pub(super) static MODULE: Module = Module::new("kernels/arith.cu", &[include_str!("arith.cu")]);

/// The kernels of a sum: few terms each; sums side by side; terms side by side.
pub(super) type Sums = [&'static str; 3];

/// The three names of a sum's kernels.
macro_rules! sums {
    ($name:literal) => {
        [concat!($name, "_serial"), concat!($name, "_columns"), concat!($name, "_rows")]
    };
}

pub(super) use sums;

/// An axis: its size, and its steps in the output and the two inputs.
#[derive(Clone, Copy)]
pub(super) struct Axis {
    pub n: usize,
    pub steps: [usize; 3],
}

impl Axis {
    /// An axis that is not there.
    const NONE: Axis = Axis { n: 1, steps: [0; 3] };
}

/// The axes of the output, outermost first, padded at the front with [`Axis::NONE`].
fn axes(rows: &Rows) -> [Axis; MAX_RANK] {
    let mut list = [Axis::NONE; MAX_RANK];
    let mut step = 1;
    let inner = (rows.inner, rows.da, rows.db);
    for (axis, &(n, a, b)) in list.iter_mut().rev().zip(std::iter::once(&inner).chain(rows.outer.iter().rev())) {
        *axis = Axis { n, steps: [step, a, b] };
        step *= n;
    }
    list
}

/// Sizes, and the three kinds of steps, as arguments.
fn space(axes: [Axis; MAX_RANK]) -> [Arg; 4] {
    let steps = |i: usize| Arg::from(axes.map(|a| a.steps[i]));
    [Arg::from(axes.map(|a| a.n)), steps(0), steps(1), steps(2)]
}

/// y = f(x₀, x₁)
pub(super) fn forward(cu: &Cuda, kernel: &'static str, x: In, y: &mut Tensor) {
    let (a, b, size) = (&x[0], &x[1], y.len());
    let [n, _, sa, sb] = space(axes(&Rows::new(y.shape(), a.shape(), b.shape())));
    let flat = a.len() == size && b.len() == size;
    cu.launch(&MODULE, kernel, y.dtype(), cu.elements(size), args![a, b, y, size, flat, n, sa, sb]);
}

/// The gradients of both inputs.
pub(super) fn backward(cu: &Cuda, kernels: Sums, x: In, g: &Tensor, dx: &mut [Grad]) {
    let axes = axes(&Rows::new(g.shape(), x[0].shape(), x[1].shape()));
    for (which, grad) in dx.iter_mut().enumerate() {
        if let Some((d, acc)) = grad.slot::<Tensor>() {
            sum(cu, kernels, [g, &x[0], &x[1]], (axes, which + 1), 1.0, (d, acc));
        }
    }
}

/// d (+)= scale Σ terms over those `axes` along which tensor `to` (1 or 2) makes no step; d lies along the others.
pub(super) fn sum(
    cu: &Cuda,
    [serial, columns, rows]: Sums,
    [g, a, b]: [&Tensor; 3],
    (axes, to): ([Axis; MAX_RANK], usize),
    scale: f64,
    (d, acc): (&mut Tensor, bool),
) {
    // Axes of more than one element stand last.
    let split = |kept: bool| {
        let mut list = [Axis::NONE; MAX_RANK];
        let some = axes.iter().rev().filter(|a| a.n != 1 && (a.steps[to] > 0) == kept);
        list.iter_mut().rev().zip(some).for_each(|(to, &axis)| *to = axis);
        list
    };
    let (keep, reduce) = (split(true), split(false));
    let reduced: usize = reduce.iter().map(|a| a.n).product();
    let kept = d.len();
    if kept == 0 {
        return;
    }
    let side_by_side = axes.iter().rev().find(|a| a.n > 1).is_none_or(|a| a.steps[to] > 0);
    let wide = kept.next_power_of_two().min(32);
    let across = kept.div_ceil(wide);
    // Depends on sizes alone, so that every device adds in the same order.
    let (kernel, most) = match () {
        () if reduced <= 32 => (serial, 1),
        () if side_by_side => (columns, reduced.div_ceil(512).min((1024 / across).clamp(1, 256))),
        () => (rows, reduced.div_ceil(1024).min((4096 / kept).clamp(1, 1024))),
    };
    let chunk = reduced.div_ceil(most).max(1);
    let chunks = reduced.div_ceil(chunk).max(1);
    let launch = match () {
        () if reduced <= 32 => cu.elements(kept),
        () if side_by_side => Launch::grid([across, chunks, 1], [wide, 256 / wide, 1]),
        () => cu.elements(32 * kept * chunks),
    };
    let dtype = d.dtype();
    let mut sums = (chunks > 1).then(|| cu.temp(dtype.real(), chunks * kept));
    let target = if sums.is_some() { Arg::Ptr(0) } else { Arg::from(&mut *d) };
    let ([kn, ky, ka, kb], [rn, ry, ra, rb]) = (space(keep), space(reduce));
    #[rustfmt::skip]
    let args = args![
        g, a, b, to == 2, scale, target, acc, sums.as_deref_mut(), kept, reduced, chunk,
        kn, ky, ka, kb, rn, ry, ra, rb
    ];
    cu.launch(&MODULE, kernel, dtype, launch, args);
    if let Some(sums) = sums {
        total_cuda(cu, &sums, chunks, d, acc);
    }
}
