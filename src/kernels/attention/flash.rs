//! Attention on the device: which kernels of `flash.cu` run, over what.

use crate::{
    args,
    autograd::{Grad, In, Value},
    cuda::{Arg, Launch, Module, Tiles, in_packs},
    kernels::attention::Plan,
    sized,
    tensor::{Cuda, CudaTemp, DType, Tensor},
};

static MODULE: Module = Module::new("kernels/attention/flash.cu", &[include_str!("flash.cu")]);

/// The kernels over pairs of tiles.
#[derive(Clone, Copy, PartialEq)]
enum Kernel {
    Forward,
    Queries,
    Keys,
}

/// Tiles, and the sizes as the kernels get them.
struct Device {
    tiles: Tiles,
    sizes: [usize; 6],
    dtype: DType,
    gated: bool,
    /// Whether a block has 128 rows: in bf16, where there are so many queries, and room for them.
    wide: bool,
}

impl Device {
    fn new(cu: &Cuda, p: &Plan<f64>, x: In) -> Device {
        let d = p.d;
        // Places in a tile beyond the last are counted, too.
        let most = i32::MAX as usize - 256;
        assert!(p.s.max(d.t) <= most, "attention over {} steps on a device, {most} at most", p.s.max(d.t));
        let (sizes, gated, dtype) = ([d.t, p.s, d.h, d.k, d.v, d.b * d.h], x.len() > 3, x[0].dtype());
        let on = Device { tiles: Tiles::of(p.s), sizes, dtype, gated, wide: false };
        let most =
            [Kernel::Forward, Kernel::Queries, Kernel::Keys].map(|kernel| on.wide(kernel, 1).shared).into_iter().max();
        Device { wide: dtype == DType::BF16 && !gated && d.t > 64 && most <= Some(cu.gpu().shared()), ..on }
    }

    /// One of the kernels with 128 rows a block: slices of 64 columns in bf16, padded, and two numbers of a query.
    fn wide(&self, kernel: Kernel, blocks: usize) -> Launch {
        let [.., k, v, _] = self.sizes.map(|n| n.div_ceil(64));
        // Of two steps at once, where heads are narrow enough; the forward kernel for one slice of k always has them.
        let narrow = matches!(kernel, Kernel::Forward) && k == 1;
        let step = if narrow || k + v <= 6 { 128 } else { 64 };
        let (rows, more) = match kernel {
            Kernel::Forward => ((128 + step) * k + step, 0),
            Kernel::Queries => ((128 + step) * (k + v), 0),
            Kernel::Keys => ((128 + step) * (k + v), 4 * 64 * 4),
        };
        Launch::blocks(blocks, 256).shared(rows * 72 * 2 + more)
    }

    /// How many tiles of queries there are: with gates they stand where those of keys do.
    fn query_tiles(&self) -> usize {
        let [t, s, ..] = self.sizes;
        let before = if self.gated && t > 0 { (s - t) % self.tiles.side() } else { 0 };
        self.tiles.over(before + t)
    }

    /// A block for each tile of `queries` or of keys, and of so many columns.
    fn launch(&self, kernel: Kernel, width: usize) -> Launch {
        let [t, s, .., heads] = self.sizes;
        if self.wide {
            let rows = if kernel == Kernel::Keys { s } else { t };
            return self.wide(kernel, heads * rows.div_ceil(128) * width.div_ceil(64));
        }
        let rows = if kernel == Kernel::Keys { self.tiles.over(s) } else { self.query_tiles() };
        // Gates of a tile, a number for each row and one for each warp.
        let more = if self.gated { 2 * self.tiles.side() + 8 } else { 0 };
        self.tiles.launch(heads * rows * self.tiles.over(width), self.dtype, 1, more)
    }

    /// The arguments of the gates: themselves, and the sums in their tiles.
    fn gates<'a>(&self, cu: &'a Cuda, x: In) -> ([Arg; 3], Option<[CudaTemp<'a>; 2]>) {
        if !self.gated {
            return ([Arg::Ptr(0); 3], None);
        }
        let [_, s, .., heads] = self.sizes;
        let [mut after, mut upto] = [(); 2].map(|()| cu.temp(self.dtype.real(), heads * s));
        let over = cu.elements(heads * self.tiles.over(s));
        cu.launch(
            &MODULE,
            "sums",
            self.dtype,
            over,
            args![&x[3], &mut after, &mut upto, self.tiles.side(), self.sizes],
        );
        ([Arg::from(&x[3]), Arg::from(&after), Arg::from(&upto)], Some([after, upto]))
    }
}

/// The name of a kernel: the first without gates.
macro_rules! named {
    ($device:expr, $plain:literal, $fading:literal) => {
        match $device {
            Device { wide: true, .. } => concat!($plain, "_8"),
            Device { gated: true, tiles, .. } => sized!($fading, tiles),
            Device { tiles, .. } => sized!($plain, tiles),
        }
    };
}

/// Writes o and lse.
pub fn forward(cu: &Cuda, p: Plan<f64>, x: In, y: &mut [Value]) {
    let on = Device::new(cu, &p, x);
    if let [o, lse] = y {
        let ([g, after, upto], _sums) = on.gates(cu, x);
        let [keys, values] = [&x[1], &x[2]].map(Arg::from);
        let narrow = on.wide && p.d.k <= 64 && in_packs(p.d.k, on.dtype, [keys]) && in_packs(p.d.v, on.dtype, [values]);
        let kernel = if narrow { "narrow_forward_8" } else { named!(on, "forward", "fading_forward") };
        let args = args![&x[0], keys, values, g, after, upto, o, lse, p.scale, on.sizes];
        cu.launch(&MODULE, kernel, on.dtype, on.launch(Kernel::Forward, p.d.v), args);
    }
}

pub fn backward(cu: &Cuda, p: Plan<f64>, x: In, y: &[Value], d_o: &Tensor, dx: &mut [Grad]) {
    let on = Device::new(cu, &p, x);
    let ([t, s, h, k, v, heads], dtype, c) = (on.sizes, on.dtype, on.tiles.side());
    let rows = p.d.b * t * h;
    let mut delta = cu.temp(dtype.real(), rows);
    cu.launch(&MODULE, "deltas", dtype, cu.elements(32 * rows), args![&y[0], d_o, &mut delta, rows, v]);
    let ([g, after, upto], _sums) = on.gates(cu, x);
    let [dq, dk, dv, dg @ ..] = dx else { return };
    let mut dg = dg.first_mut().and_then(|dg| dg.slot::<Tensor>());
    // The parts of dg.
    let part = |n: usize| dg.is_some().then(|| cu.temp(dtype.real(), heads * n));
    let [mut own, mut past, mut pairs] = [s, s, on.tiles.over(s).pow(2)].map(part);
    let read: &[Arg] = args![&x[0], &x[1], &x[2], g, after, upto, d_o, &y[1], &delta];
    if dg.is_some() || dq.wanted() {
        let over = on.launch(Kernel::Queries, k);
        let (dq, acc) = dq.target();
        let args = [read, args![dq, acc, own.as_mut(), pairs.as_mut(), p.scale, on.sizes]].concat();
        cu.launch(&MODULE, named!(on, "queries", "fading_queries"), dtype, over, &args);
    }
    let ((dk, k_acc), (dv, v_acc)) = (dk.target(), dv.target());
    let over = on.launch(Kernel::Keys, k.max(v));
    let args = [read, args![dk, k_acc, dv, v_acc, past.as_mut(), p.scale, on.sizes]].concat();
    cu.launch(&MODULE, named!(on, "keys", "fading_keys"), dtype, over, &args);
    if let Some((dg, acc)) = &mut dg {
        let tiles = heads * on.tiles.over(s);
        cu.launch(&MODULE, "running", dtype, cu.elements(32 * tiles), args![pairs.as_mut(), c, on.sizes]);
        let args = args![own.as_ref(), past.as_ref(), pairs.as_ref(), &mut **dg, *acc, c, on.sizes];
        cu.launch(&MODULE, "gates", dtype, cu.elements(heads * s), args);
    }
}
