//! The LSTM on a device, and the parts that it shares with the sLSTM there.

use crate::{
    args,
    autograd::{Grad, In, Value},
    cuda::{Arg, Launch, Module, View},
    kernels::{heads::Schedule, lstm::Size, matmul::Mat},
    ops::lstm::LstmSequence,
    tensor::{Cuda, CudaTemp, DType, Device, Tensor},
};

/// The recurrences of this file and of `slstm.rs`.
pub(in crate::kernels) static MODULE: Module = Module::new(
    "kernels/lstm/cells.cu",
    &[include_str!("block.cu"), include_str!("grid.cu"), include_str!("steps.cu"), include_str!("cells.cu")],
);

/// The names of a recurrence's eight kernels, for up to 16, 32, 64 and 128 units a head and 1 or 4 sequences a block.
macro_rules! kernels {
    ($name:literal) => {
        [
            concat!($name, "_16_1"),
            concat!($name, "_16_4"),
            concat!($name, "_32_1"),
            concat!($name, "_32_4"),
            concat!($name, "_64_1"),
            concat!($name, "_64_4"),
            concat!($name, "_128_1"),
            concat!($name, "_128_4"),
        ]
    };
}

pub(in crate::kernels) use kernels;

/// One launch over all steps, whose blocks need not wait for each other, and the number of its kernel; none if the
/// weights of a head of `k` units do not fit into a multiprocessor. `vectors` is how many rows of h or dz a block
/// keeps: 1 forwards, 4 backwards.
pub(in crate::kernels) fn persistent(
    cu: &Cuda,
    dtype: DType,
    b: usize,
    heads: usize,
    k: usize,
    vectors: usize,
) -> Option<(usize, Launch)> {
    // Blocks of one sequence that a large device (132 multiprocessors) runs at once; more would take turns. Few in
    // emulation, so that both kinds are run there.
    const MANY: [usize; 4] = [132 * 8, 132 * 4, 132 * 2, 132];
    const FEW: [usize; 4] = [4, 3, 2, 1];
    let double = dtype == DType::F64;
    let size = [16, 32, 64, 128].iter().position(|&most| k <= most)?;
    let held = if double { [16, 32, 32, 16] } else { [16, 32, 64, 48] }[size];
    let most = if cu.gpu().device() == Device::Emulated { FEW[size] } else { MANY[size] };
    let rows = if b * heads <= most { 1 } else { 4 };
    let (threads, padded) = ((4 * k).next_multiple_of(32), k.next_multiple_of(4));
    let numbers = vectors * padded.max(held) * rows + rows * threads + padded.saturating_sub(held) * threads;
    let shared = numbers * dtype.real().bytes();
    let launch = Launch::blocks(heads * b.div_ceil(rows), threads).shared(shared);
    (shared <= cu.gpu().shared()).then_some((2 * size + rows / 4, launch))
}

/// Launches over all steps by blocks that wait for one another, of the kernel `name` of `grid.cu`: one for as many
/// sequences as the device has room for at once. Each comes with its blocks' counters and its first group of sequences.
/// None if the blocks of one group are too many or too large. `back`: the pass backwards.
pub(in crate::kernels) fn together<'a>(
    cu: &'a Cuda,
    name: &'static str,
    dtype: DType,
    [b, heads, k]: [usize; 3],
    back: bool,
) -> Option<impl Iterator<Item = (Launch, CudaTemp<'a>, usize)>> {
    // Of grid.cu: how deep a slice is, what it takes of so many rows or columns of a tile, and slices of a piece.
    let (deep, slice, piece) = match dtype {
        DType::BF16 => (64, (|n| 36 * n) as fn(usize) -> usize, 16),
        _ => (32, (|n| 32 * (n + 4)) as fn(usize) -> usize, 8),
    };
    // Of a block: columns and slices of its weights, and sums in shared memory.
    let (rows, slices) = (16, k.div_ceil(deep));
    let (columns, slices, sums) = if back { (16, 4 * slices, 4 * rows * 20) } else { (64, slices, rows * 68) };
    let numbers = piece * slice(rows) + sums + slices * slice(columns);
    let launch = Launch::blocks(0, 256).shared(numbers * dtype.real().bytes()).together();
    if launch.shared > cu.gpu().shared() {
        return None;
    }
    let (blocks, groups) = (heads * k.div_ceil(16), b.div_ceil(rows));
    let most = cu.gpu().room(&MODULE, name, dtype, launch) / blocks;
    (most > 0).then(|| {
        (0..groups).step_by(most).map(move |first| {
            let groups = most.min(groups - first);
            let counts = cu.zeros(DType::I32, groups * heads);
            (Launch { grid: [groups * blocks, 1, 1], ..launch }, counts, first)
        })
    })
}

/// Where the gradient of the pre-activations is written: the gradient of x if there is nothing in it yet, else memory
/// of its own, which is to be added to the second tensor, if any.
pub(in crate::kernels) fn dz_target<'a, 'c>(
    cu: &'c Cuda,
    x: &Tensor,
    dx: &'a mut Grad,
    own: &'a mut Option<CudaTemp<'c>>,
) -> (&'a mut Tensor, Option<&'a mut Tensor>) {
    match dx.slot::<Tensor>() {
        Some((d, false)) => (d, None),
        parts => (own.insert(cu.temp(x.dtype(), x.len())), parts.map(|(d, _)| d)),
    }
}

/// h of the step before every one, [B T, D].
pub(in crate::kernels) fn before<'a>(cu: &'a Cuda, h0: &Tensor, h: &Tensor) -> CudaTemp<'a> {
    let ((_, t, d), size) = (h.shape().split(1), h.len());
    let mut y = cu.temp(h.dtype(), size);
    cu.launch(&MODULE, "before", h.dtype(), cu.elements(size), args![h0, h, &mut y, size, t, d]);
    y
}

/// A thread for every cell.
pub(in crate::kernels) fn cells(n: usize) -> Launch {
    Launch::blocks(n.div_ceil(128), 128)
}

impl<const NARROW: bool> Schedule<LstmSequence, NARROW> {
    pub(super) fn forward_cuda(&self, cu: &Cuda, x: In, y: &mut [Value]) {
        let [h, h_last, c_last, gates, c] = y else { return };
        let (Size { b, t, d }, dtype) = (Size::of(x), x[0].dtype());
        if b * d == 0 {
            return;
        }
        let rest: [Arg; 9] = [
            (&x[2]).into(),
            (&x[3]).into(),
            h_last.into(),
            c_last.into(),
            gates.into(),
            c.into(),
            b.into(),
            t.into(),
            d.into(),
        ];
        if let Some((i, launch)) = persistent(cu, dtype, b, 1, d, 1) {
            let args = [args![&x[0], &x[1], h], &rest[..]].concat();
            return cu.launch(&MODULE, kernels!("lstm_forward")[i], dtype, launch, &args);
        }
        const WIDE: &str = "lstm_forward_grid";
        if let Some(launches) = together(cu, WIDE, dtype, [b, 1, d], false) {
            for (launch, mut counts, first) in launches {
                let args = [args![&x[0], &x[1], &mut *h, &mut counts, first], &rest[..]].concat();
                cu.launch(&MODULE, WIDE, dtype, launch, &args);
            }
            return;
        }
        let (mut z, mut state) = (cu.temp(dtype, b * 4 * d), cu.temp(dtype.real(), b * d));
        cu.launch(&MODULE, "lstm_begin", dtype, cells(b * d), &[args![&mut state], &rest[..]].concat());
        for s in 0..t {
            let before = match s {
                0 => View::new(&x[2], Mat::new(b, d, d)),
                _ => View::new(h, Mat::new(b, d, t * d)).at((s - 1) * d),
            };
            let w = View::new(&x[1], Mat::new(4 * d, d, d).t());
            cu.gemm(1.0, before, w, View::out(&mut z, Mat::new(b, 4 * d, 4 * d)), false, 1);
            let args = [args![&x[0], &z, &mut state, &mut *h, s], &rest[..]].concat();
            cu.launch(&MODULE, "lstm_step", dtype, cells(b * d), &args);
        }
    }

    pub(super) fn backward_cuda(&self, cu: &Cuda, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let ([gx, gw, gh0, gc0], [dh, dh_last, dc_last, ..]) = (dx, dy) else { return };
        let (Size { b, t, d }, dtype) = (Size::of(x), x[0].dtype());
        let mut own = None;
        let (dz, add_to) = dz_target(cu, &x[0], gx, &mut own);
        let ((dh0, acc_h), (dc0, acc_c)) = (gh0.target(), gc0.target());
        let rest: &[Arg] = args![&x[3], &y[3], &y[4], dh, dh_last, dc_last, dh0, acc_h, dc0, acc_c, b, t, d];
        const WIDE: &str = "lstm_backward_grid";
        if b * d == 0 {
        } else if let Some((i, launch)) = persistent(cu, dtype, b, 1, d, 4) {
            let args = [args![&x[1], &mut *dz], rest].concat();
            cu.launch(&MODULE, kernels!("lstm_backward")[i], dtype, launch, &args);
        } else if let Some(launches) = together(cu, WIDE, dtype, [b, 1, d], true) {
            for (launch, mut counts, first) in launches {
                let args = [args![&x[1], &mut *dz, &mut counts, first], rest].concat();
                cu.launch(&MODULE, WIDE, dtype, launch, &args);
            }
        } else {
            let (mut back, mut state) = (cu.temp(dtype, b * d), cu.temp(dtype.real(), b * d));
            for s in (0..t).rev() {
                let args = [args![&back, &mut state, &mut *dz, s, 0usize], rest].concat();
                cu.launch(&MODULE, "lstm_step_back", dtype, cells(b * d), &args);
                let (g, w) = (View::new(dz, Mat::new(b, 4 * d, t * 4 * d)).at(s * 4 * d), Mat::new(4 * d, d, d));
                cu.gemm(1.0, g, View::new(&x[1], w), View::out(&mut back, Mat::new(b, d, d)), false, 1);
            }
            let args = [args![&back, &mut state, &mut *dz, 0usize, 1usize], rest].concat();
            cu.launch(&MODULE, "lstm_step_back", dtype, cells(b * d), &args);
        }
        if let Some((dw, acc)) = gw.slot::<Tensor>() {
            let (before, rows) = (before(cu, &x[2], &y[0]), b * t);
            let (g, h) = (View::new(dz, Mat::new(rows, 4 * d, 4 * d).t()), View::new(&before, Mat::new(rows, d, d)));
            cu.gemm(1.0, g, h, View::out(dw, Mat::new(4 * d, d, d)), acc, 1);
        }
        if let Some(to) = add_to {
            cu.gpu().convert(dz, to, true);
        }
    }
}
