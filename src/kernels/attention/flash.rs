//! Attention on the device: which kernels of `flash.cu` run, over what.

use crate::{
    args,
    autograd::{Grad, In, Value},
    cuda::{Cuda, Module, Tiles},
    kernels::attention::Plan,
    sized,
    tensor::Tensor,
};

static MODULE: Module = Module::new("kernels/attention/flash.cu", &[include_str!("flash.cu")]);

/// Tiles, and the sizes as the kernels get them.
fn plan(p: &Plan<f64>) -> (Tiles, [usize; 6]) {
    let d = p.d;
    (Tiles::of(p.s), [d.t, p.s, d.h, d.k, d.v, d.b * d.h])
}

/// Writes o and lse.
pub fn forward(cu: &Cuda, p: Plan<f64>, x: In, y: &mut [Value]) {
    let (tiles, sizes @ [t, _, _, _, v, heads]) = plan(&p);
    if let [o, lse] = y {
        let dtype = x[0].dtype();
        let over = tiles.launch(heads * tiles.over(t) * tiles.over(v), dtype, 1, 0);
        let args = args![&x[0], &x[1], &x[2], o, lse, p.scale, sizes];
        cu.launch(&MODULE, sized!("forward", tiles), dtype, over, args);
    }
}

pub fn backward(cu: &Cuda, p: Plan<f64>, x: In, y: &[Value], g: &Tensor, dx: &mut [Grad]) {
    let (tiles, sizes @ [t, s, h, k, v, heads]) = plan(&p);
    let (dtype, rows) = (x[0].dtype(), p.d.b * t * h);
    let mut delta = cu.temp(dtype.real(), rows);
    cu.launch(&MODULE, "deltas", dtype, cu.elements(32 * rows), args![&y[0], g, &mut delta, rows, v]);
    if let [dq, dk, dv] = dx {
        if let Some((dq, acc)) = dq.slot::<Tensor>() {
            let over = tiles.launch(heads * tiles.over(t) * tiles.over(k), dtype, 1, 0);
            let args = args![&x[0], &x[1], &x[2], g, &y[1], &delta, dq, acc, p.scale, sizes];
            cu.launch(&MODULE, sized!("queries", tiles), dtype, over, args);
        }
        let ((dk, k_acc), (dv, v_acc)) = (dk.target(), dv.target());
        let over = tiles.launch(heads * tiles.over(s) * tiles.over(k.max(v)), dtype, 1, 0);
        let args = args![&x[0], &x[1], &x[2], g, &y[1], &delta, dk, k_acc, dv, v_acc, p.scale, sizes];
        cu.launch(&MODULE, sized!("keys", tiles), dtype, over, args);
    }
}
