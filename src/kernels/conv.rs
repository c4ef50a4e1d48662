//! The kernel of [`CausalConv1d`].

mod cpu;

use crate::{
    args,
    autograd::{Grad, In, Kernel, Value, zeroed},
    cuda::{Arg, Launch, Module, in_packs},
    kernels::linear::total_cuda,
    ops::conv::CausalConv1d,
    tensor::{Cuda, Cx, Tensor},
    with_real,
};

static MODULE: Module = Module::new("kernels/conv.cu", &[include_str!("conv.cu")]);

/// Sizes: batch, time, channels, taps.
#[derive(Clone, Copy)]
struct Sizes {
    b: usize,
    t: usize,
    d: usize,
    w: usize,
}

impl Sizes {
    fn of(x: In) -> Sizes {
        let at = |i: usize, axis: isize| x[i].shape().at(axis);
        Sizes { b: at(0, 0), t: at(0, 1), d: at(0, 2), w: at(1, 1) }
    }

    /// Launches over `rows` of time with `most` rows of blocks, of threads with `channels` each: the grid, steps of a
    /// thread, and taps at a time.
    fn launch(self, rows: usize, most: usize, channels: usize) -> (Launch, usize, usize) {
        // Longer pieces read less twice, shorter ones occupy more of the device.
        let steps = if self.b * rows * self.d < 1 << 18 { 8 } else { 32 };
        let across = self.d / channels;
        let wide = across.next_power_of_two().min(32);
        let high = 256 / wide;
        // Where there are more pieces than blocks, every block has as many.
        let blocks = (self.b * rows.div_ceil(steps)).div_ceil(high);
        let grid = [across.div_ceil(wide), blocks.div_ceil(blocks.div_ceil(most).max(1)), 1];
        (Launch::grid(grid, [wide, high, 1]), steps, if self.w <= 4 { 4 } else { 8 })
    }
}

fn forward_cuda(s: Sizes, cu: &Cuda, x: In, y: &mut Tensor) {
    let (dtype, bias) = (x[0].dtype(), (x.len() > 3).then(|| &x[3]));
    let [input, state, y] = [Arg::from(&x[0]), Arg::from(&x[2]), Arg::from(y)];
    let packed = s.w <= 4 && in_packs(s.d, dtype, [input, state, y]);
    let (launch, steps, taps) = s.launch(s.t, 65_535, if packed { 16 / dtype.bytes() } else { 1 });
    let kernel = match taps {
        4 if packed => "conv_forward_packed_4",
        4 => "conv_forward_4",
        _ => "conv_forward_8",
    };
    for from in (0..s.w).step_by(taps) {
        let args = args![input, &x[1], state, bias, y, s.b, s.t, s.d, s.w, from, steps];
        cu.launch(&MODULE, kernel, dtype, launch, args);
    }
}

fn backward_cuda(s: Sizes, cu: &Cuda, x: In, g: &Tensor, dx: &mut [Grad]) {
    let [d_x, d_w, d_state, d_bias @ ..] = dx else { return };
    let (launch, steps, taps) = s.launch(s.t + s.w - 1, 512, 1);
    let kernel = if taps == 4 { "conv_backward_4" } else { "conv_backward_8" };
    let (dtype, rows) = (g.dtype(), launch.grid[1]);
    let wanted = d_w.wanted() || d_bias.iter().any(|b| b.wanted());
    let mut sums = wanted.then(|| cu.temp(dtype.real(), rows * s.d * (s.w + 1)));
    let ((tx, ax), (ts, as_)) = (d_x.target(), d_state.target());
    for from in (0..s.w).step_by(taps) {
        let into = sums.as_deref_mut();
        let args = args![&x[0], &x[1], &x[2], g, tx, ax, ts, as_, into, s.b, s.t, s.d, s.w, from, steps];
        cu.launch(&MODULE, kernel, dtype, launch, args);
    }
    let Some(sums) = sums else { return };
    let (taps, biases) = (rows * s.d * s.w, rows * s.d);
    if let Some((d, acc)) = d_w.slot::<Tensor>() {
        total_cuda(cu, &sums.window(0, [taps]), rows, d, acc);
    }
    if let Some((d, acc)) = d_bias.first_mut().and_then(Grad::slot::<Tensor>) {
        total_cuda(cu, &sums.window(taps, [biases]), rows, d, acc);
    }
}

impl Kernel for CausalConv1d {
    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        let s = Sizes::of(x);
        if x[0].is_empty() {
            return;
        }
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => {
                cpu::forward::<T>(s, cpu, x, &mut y[0]);
            }),
            Cx::Cuda(cu) => forward_cuda(s, cu, x, &mut y[0]),
        }
    }

    fn backward(&self, cx: &Cx, x: In, _: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(g) = &dy[0] else { return };
        match cx {
            _ if g.is_empty() => dx.iter_mut().filter_map(Grad::slot::<Tensor>).for_each(|dx| _ = zeroed(dx)),
            Cx::Cpu(cpu) => with_real!(g.dtype(), T => cpu::backward::<T>(Sizes::of(x), cpu, x, g, dx)),
            Cx::Cuda(cu) => backward_cuda(Sizes::of(x), cu, x, g, dx),
        }
    }
}
