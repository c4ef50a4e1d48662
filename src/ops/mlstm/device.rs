//! The mLSTM on a device: the kernels of `mlstm.cu`, phase by phase.

use super::Mlstm;
use crate::{
    args,
    autograd::{Grad, In, Value},
    cuda::{Arg, Cuda, Launch, Module, Temp},
    ops::heads::Dims,
    tensor::{DType, Tensor},
};

static MODULE: Module = Module::new("ops/mlstm.cu", &[include_str!("../mlstm.cu")]);

/// Rows and columns of a tile.
const TILE: usize = 32;

/// How many tiles cover `n`.
fn tiles(n: usize) -> usize {
    n.div_ceil(TILE)
}

/// Sizes, and what follows from them.
struct Plan {
    dims: Dims,
    dtype: DType,
    chunk: usize,
    chunks: usize,
    heads: usize,
    scale: f64,
}

/// What the gates of every step come to: ln f … since the chunk's first step, ln i, m and slope, [B, T, H] each.
struct Gates<'a> {
    c: Temp<'a>,
    i: Temp<'a>,
    m: Temp<'a>,
    slope: Temp<'a>,
}

impl Plan {
    /// As the kernels take them.
    fn sizes(&self) -> [usize; 7] {
        let Dims { b, t, h, k, v } = self.dims;
        [b, t, h, k, v, self.chunk, self.chunks]
    }

    /// Steps of all heads.
    fn rows(&self) -> usize {
        self.heads * self.dims.t
    }

    /// Elements of [C, n].
    fn state(&self) -> usize {
        self.dims.k * (self.dims.v + 1)
    }

    fn temp<'a>(&self, cu: &'a Cuda, len: usize) -> Temp<'a> {
        cu.temp(self.dtype.real(), len)
    }

    fn gates<'a>(&self, cu: &'a Cuda, x: In, m_last: Option<&mut Value>) -> Gates<'a> {
        let [mut c, mut i, mut m, mut slope] = std::array::from_fn(|_| self.temp(cu, self.rows()));
        #[rustfmt::skip]
        let args = args![
            &x[3], &x[4], &x[7], &x[8], &mut c, &mut i, &mut m, &mut slope, m_last, self.sizes()
        ];
        cu.launch(&MODULE, "mlstm_gates", self.dtype, Launch::blocks(self.heads.div_ceil(64), 64), args);
        Gates { c, i, m, slope }
    }

    /// A block for every tile of a chunk's share of the state.
    fn outer(&self) -> Launch {
        Launch::blocks(self.heads * self.chunks * tiles(self.dims.k) * tiles(self.dims.v + 1), 256)
    }

    /// A thread for every element of every state.
    fn elements(&self) -> Launch {
        Launch::blocks((self.heads * self.state()).div_ceil(128), 128)
    }

    /// A block for every 32 rows and columns of tensors of this width.
    fn part(&self, width: usize) -> Launch {
        Launch::blocks(self.heads * self.chunks * tiles(self.chunk) * tiles(width).max(1), 256)
    }
}

impl Mlstm {
    fn device_plan(&self, x: In, dims: Dims) -> Plan {
        let chunk = self.chunk.min(dims.t).max(1);
        let (chunks, heads, scale) = (dims.t.div_ceil(chunk), dims.b * dims.h, (dims.k as f64).powf(-0.5));
        Plan { dims, dtype: x[0].dtype(), chunk, chunks, heads, scale }
    }

    pub(super) fn forward_cuda(&self, cu: &Cuda, dims: Dims, x: In, y: &mut [Value]) {
        let [h, c_last, n_last, m_last, den, states] = y else { return };
        let p = self.device_plan(x, dims);
        let (dtype, sizes) = (p.dtype, p.sizes());
        let g = p.gates(cu, x, Some(m_last));
        let mut add = p.temp(cu, p.heads * p.chunks * p.state());
        let args = args![&x[1], &x[2], &g.c, &g.i, &mut add, sizes, p.scale];
        cu.launch(&MODULE, "mlstm_outer", dtype, p.outer(), args);
        let args = args![&x[5], &x[6], &add, &g.c, &mut *states, c_last, n_last, sizes];
        cu.launch(&MODULE, "mlstm_carry", dtype, p.elements(), args);
        let args = args![&x[0], &x[1], &x[2], &*states, &g.c, &g.i, &g.m, h, den, sizes, p.scale, self.eps];
        cu.launch(&MODULE, "mlstm_out", dtype, p.part(p.dims.v), args);
    }

    pub(super) fn backward_cuda(
        &self,
        cu: &Cuda,
        dims: Dims,
        x: In,
        y: &[Value],
        dy: &[Option<Tensor>],
        dx: &mut [Grad],
    ) {
        let ([h, c_last, n_last, _, den, states], [dh, dc, dn, dm, ..]) = (y, dy) else { return };
        let [dq, dk, dv, di, df, dc0, dn0, dm0, dw0] = dx else { return };
        let p = self.device_plan(x, dims);
        let (dtype, sizes, scale, rows) = (p.dtype, p.sizes(), p.scale, p.rows());
        let g = p.gates(cu, x, None);
        let [mut inverse, mut last, mut own] = std::array::from_fn(|_| p.temp(cu, rows));
        let args = args![h, dh, den, &g.m, &mut inverse, &mut last, &mut own, sizes, self.eps];
        cu.launch(&MODULE, "mlstm_cotangents", dtype, cu.elements(32 * rows), args);

        let mut grads = p.temp(cu, p.heads * (p.chunks + 1) * p.state());
        let args = args![&x[0], dh, &inverse, &last, &g.c, &mut grads, sizes];
        cu.launch(&MODULE, "mlstm_outer_back", dtype, p.outer(), args);
        let ((to_c, acc_c), (to_n, acc_n)) = (dc0.target(), dn0.target());
        let args = args![dc, dn, &g.c, &mut grads, to_c, acc_c, to_n, acc_n, sizes];
        cu.launch(&MODULE, "mlstm_carry_back", dtype, p.elements(), args);
        let bounds = p.heads * (p.chunks + 1);
        let mut dots = p.temp(cu, bounds);
        let args = args![states, c_last, n_last, &grads, &mut dots, sizes];
        cu.launch(&MODULE, "mlstm_dots", dtype, Launch::blocks(bounds, 128), args);

        if let Some((to, acc)) = dv.parts() {
            let args = args![&x[0], &x[1], dh, &inverse, &grads, &g.c, &g.i, to, acc, sizes, scale];
            cu.launch(&MODULE, "mlstm_dv", dtype, p.part(p.dims.v), args);
        }
        let parts = tiles(p.dims.k).max(1);
        let [mut qdq, mut kdk] = std::array::from_fn(|_| p.temp(cu, parts * rows));
        let rest: &[Arg] = args![&x[0], &x[1], &x[2], dh, &inverse, &last];
        let (to, acc) = dq.target();
        let args = [rest, args![states, &g.c, &g.i, to, acc, &mut qdq, sizes, scale]].concat();
        cu.launch(&MODULE, "mlstm_dq", dtype, p.part(p.dims.k), &args);
        let (to, acc) = dk.target();
        let args = [rest, args![&grads, &g.c, &g.i, to, acc, &mut kdk, sizes, scale]].concat();
        cu.launch(&MODULE, "mlstm_dk", dtype, p.part(p.dims.k), &args);

        let ((i, acc_i), (f, acc_f), (m, acc_m), (w, acc_w)) = (di.target(), df.target(), dm0.target(), dw0.target());
        #[rustfmt::skip]
        let args = args![
            &x[8], dm, &dots, &qdq, &kdk, parts, &g.slope, &own, i, acc_i, f, acc_f, m, acc_m, w, acc_w, sizes
        ];
        cu.launch(&MODULE, "mlstm_gates_back", dtype, Launch::blocks(p.heads.div_ceil(64), 64), args);
    }
}
