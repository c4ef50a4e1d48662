//! The short causal convolution in front of Mamba, DeltaNet and mLSTM: each channel on its own, over time.
//!
//! y_t = b + Σⱼ w[:, j] ⊙ x_{t−W+1+j} for j in 0..W, so w[:, W−1] meets the current token. What comes before x_0 is
//! the state [B, W−1, D], the W−1 inputs before x: zeros at the start of a sequence.

mod cpu;

use super::{check_real, linear::total_cuda};
use crate::{
    args,
    autograd::{Gen, Grad, In, Op, Outs, Value, Var},
    cuda::{Cuda, Launch, Module},
    tensor::{Cx, Tensor},
    with_real,
};

/// Depthwise causal convolution of x [B, T, D] with w [D, W] and state [B, W−1, D], and a bias `[D]` or none.
pub struct CausalConv1d;

static MODULE: Module = Module::new("ops/conv.cu", &[include_str!("conv.cu")]);

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

    /// Launches over `rows` of time with `most` rows of blocks: the grid, steps of a thread, and taps at a time.
    fn launch(self, rows: usize, most: usize) -> (Launch, usize, usize) {
        // Longer pieces read less twice, shorter ones occupy more of the device.
        let steps = if self.b * rows * self.d < 1 << 18 { 8 } else { 32 };
        let wide = self.d.next_power_of_two().min(32);
        let high = 256 / wide;
        // Where there are more pieces than blocks, every block has as many.
        let blocks = (self.b * rows.div_ceil(steps)).div_ceil(high);
        let grid = [self.d.div_ceil(wide), blocks.div_ceil(blocks.div_ceil(most).max(1)), 1];
        (Launch::grid(grid, [wide, high, 1]), steps, if self.w <= 4 { 4 } else { 8 })
    }
}

fn forward_cuda(s: Sizes, cu: &Cuda, x: In, y: &mut Tensor) {
    let (launch, steps, taps) = s.launch(s.t, 65_535);
    let kernel = if taps == 4 { "conv_forward_4" } else { "conv_forward_8" };
    for from in (0..s.w).step_by(taps) {
        let bias = (x.len() > 3).then(|| &x[3]);
        let args = args![&x[0], &x[1], &x[2], bias, &mut *y, s.b, s.t, s.d, s.w, from, steps];
        cu.launch(&MODULE, kernel, x[0].dtype(), launch, args);
    }
}

fn backward_cuda(s: Sizes, cu: &Cuda, x: In, g: &Tensor, dx: &mut [Grad]) {
    let [d_x, d_w, d_state, d_bias @ ..] = dx else { return };
    let (launch, steps, taps) = s.launch(s.t + s.w - 1, 512);
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
    if let Some((d, acc)) = d_w.parts() {
        total_cuda(cu, &sums.window(0, [taps]), rows, d, acc);
    }
    if let Some((d, acc)) = d_bias.first_mut().and_then(Grad::parts) {
        total_cuda(cu, &sums.window(taps, [biases]), rows, d, acc);
    }
}

impl Op for CausalConv1d {
    fn name(&self) -> &'static str {
        "causal_conv1d"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        let (shape, w, state) = (x[0].shape(), x[1].shape(), x[2].shape());
        check_real(&x[0])?;
        let fail = |what: &str| Err(format!("{what} for x of shape {shape}, w {w}, state {state}"));
        let ([b, _, d], [dw, taps]) = (shape.array()?, w.array()?);
        if dw != d || taps == 0 {
            return fail("w is not [D, W] with W ≥ 1");
        }
        if state.dims() != [b, taps - 1, d] {
            return fail("state is not [B, W - 1, D]");
        }
        if x.len() > 3 && x[3].shape().dims() != [d] {
            return Err(format!("bias of shape {} for x of shape {shape}", x[3].shape()));
        }
        if (1..x.len()).any(|i| x[i].dtype() != x[0].dtype()) {
            return fail("dtypes differ");
        }
        Ok(shape.into())
    }

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
            Cx::Cpu(cpu) => with_real!(g.dtype(), T => if g.is_empty() {
                dx.iter_mut().for_each(|dx| dx.add::<T>(|_| ()));
            } else {
                cpu::backward::<T>(Sizes::of(x), cpu, x, g, dx);
            }),
            Cx::Cuda(_) if g.is_empty() => dx.iter_mut().for_each(|dx| {
                dx.zeroed();
            }),
            Cx::Cuda(cu) => backward_cuda(Sizes::of(x), cu, x, g, dx),
        }
    }

    fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
        let ([_, t, d], [_, taps]) = (x[0].dims(), x[1].dims());
        let all = Var::concat(&[x[2], x[0]], 1);
        let y =
            (0..taps).map(|j| x[1].narrow(1, j, 1).reshape([d]) * all.narrow(1, j, t)).reduce(|y, term| y + term)?;
        Some(vec![x.get(3).map_or(y, |&b| y + b)])
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (b, t, d, w) = (g.size(3), g.size(6), g.size(20), g.size(9));
        let mut x = vec![g.normal([b, t, d]), g.normal([d, w]), g.normal([b, w - 1, d])];
        if g.coin() {
            x.push(g.normal([d]));
        }
        (CausalConv1d, x)
    }
}

impl<'t> Var<'t> {
    /// Depthwise causal convolution of this [B, T, D] with w [D, W], a bias `[D]` or none, and the W−1 inputs before
    /// it, [B, W−1, D]: w[:, W−1] meets the current token.
    #[track_caller]
    pub fn causal_conv1d(self, w: Var<'t>, b: Option<Var<'t>>, state: Var<'t>) -> Var<'t> {
        match b {
            Some(b) => self.tape().apply(CausalConv1d, [self, w, state, b]),
            None => self.tape().apply(CausalConv1d, [self, w, state]),
        }
    }
}
