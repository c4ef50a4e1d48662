//! The sLSTM on a device.

use crate::{
    args,
    autograd::{Grad, In, Value, zeroed},
    cuda::{Arg, View},
    kernels::{
        lstm::{MODULE, before, cells, dz_target, kernels, persistent, together},
        matmul::Mat,
        slstm::Size,
    },
    ops::slstm::SlstmSequence,
    tensor::{Cuda, Tensor},
};

impl SlstmSequence {
    pub(super) fn forward_cuda(&self, cu: &Cuda, x: In, y: &mut [Value]) {
        let [h, last @ .., saved] = y else { return };
        let (s, dtype) = (Size::of(x), x[0].dtype());
        let (Size { b, t, h: heads, k }, d) = (s, s.d());
        if b * d == 0 {
            return;
        }
        let mut rest: Vec<Arg> = (2..7).map(|i| (&x[i]).into()).collect();
        rest.extend(last.iter_mut().map(Arg::from));
        rest.extend(args![saved, b, t, heads, k]);
        if let Some((i, launch)) = persistent(cu, dtype, b, heads, k, 1) {
            let args = [args![&x[0], &x[1], h], &rest[..]].concat();
            return cu.launch(&MODULE, kernels!("slstm_forward")[i], dtype, launch, &args);
        }
        const WIDE: &str = "slstm_forward_grid";
        if let Some(launches) = together(cu, WIDE, dtype, [b, heads, k], false) {
            for (launch, mut counts, first) in launches {
                let args = [args![&x[0], &x[1], &mut *h, &mut counts, first], &rest[..]].concat();
                cu.launch(&MODULE, WIDE, dtype, launch, &args);
            }
            return;
        }
        let (mut z, mut state) = (cu.temp(dtype, b * 4 * d), cu.temp(dtype.real(), 3 * b * d));
        cu.launch(&MODULE, "slstm_begin", dtype, cells(b * d), &[args![&mut state], &rest[..]].concat());
        for step in 0..t {
            let before = match step {
                0 => View::new(&x[2], Mat::new(b, k, d)),
                _ => View::new(h, Mat::new(b, k, t * d)).at((step - 1) * d),
            };
            for gate in 0..4 {
                let r = View::new(&x[1], Mat::new(k, k, k)).at(gate * d * k).every(k * k);
                let z = View::out(&mut z, Mat::new(b, k, 4 * d)).at(gate * d).every(k);
                cu.gemm(1.0, before.every(k), r, z, false, heads);
            }
            let args = [args![&x[0], &z, &mut state, &mut *h, step], &rest[..]].concat();
            cu.launch(&MODULE, "slstm_step", dtype, cells(b * d), &args);
        }
    }

    pub(super) fn backward_cuda(&self, cu: &Cuda, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let [gx, gr, initial @ ..] = dx else { return };
        let (s, dtype) = (Size::of(x), x[0].dtype());
        let (Size { b, t, h: heads, k }, d) = (s, s.d());
        let mut own = None;
        let (dz, add_to) = dz_target(cu, &x[0], gx, &mut own);
        let mut rest = args![&x[3], &x[4], &x[6], &y[2], &y[3], &y[5]].to_vec();
        rest.extend(dy[..5].iter().map(Arg::from));
        initial.iter_mut().map(Grad::target).for_each(|(to, acc)| rest.extend([to, acc]));
        rest.extend(args![b, t, heads, k]);
        const WIDE: &str = "slstm_backward_grid";
        if b * d == 0 {
        } else if let Some((i, launch)) = persistent(cu, dtype, b, heads, k, 4) {
            let args = [args![&x[1], &mut *dz], &rest[..]].concat();
            cu.launch(&MODULE, kernels!("slstm_backward")[i], dtype, launch, &args);
        } else if let Some(launches) = together(cu, WIDE, dtype, [b, heads, k], true) {
            for (launch, mut counts, first) in launches {
                let args = [args![&x[1], &mut *dz, &mut counts, first], &rest[..]].concat();
                cu.launch(&MODULE, WIDE, dtype, launch, &args);
            }
        } else {
            let (mut back, mut state) = (cu.temp(dtype, b * d), cu.temp(dtype.real(), 3 * b * d));
            for step in (0..t).rev() {
                let args = [args![&back, &mut state, &mut *dz, step, 0usize], &rest[..]].concat();
                cu.launch(&MODULE, "slstm_step_back", dtype, cells(b * d), &args);
                for gate in 0..4 {
                    let at = step * 4 * d + gate * d;
                    let g = View::new(dz, Mat::new(b, k, t * 4 * d)).at(at).every(k);
                    let r = View::new(&x[1], Mat::new(k, k, k).t()).at(gate * d * k).every(k * k);
                    cu.gemm(1.0, g, r, View::out(&mut back, Mat::new(b, k, d)).every(k), gate > 0, heads);
                }
            }
            let args = [args![&back, &mut state, &mut *dz, 0usize, 1usize], &rest[..]].concat();
            cu.launch(&MODULE, "slstm_step_back", dtype, cells(b * d), &args);
        }
        if b * t == 0 {
            gr.slot::<Tensor>().map(zeroed);
        } else if let Some((dr, acc)) = gr.slot::<Tensor>() {
            let before = before(cu, &x[2], &y[0]);
            let h = View::new(&before, Mat::new(b * t, k, d).t()).every(k);
            for gate in 0..4 {
                let g = View::new(dz, Mat::new(b * t, k, 4 * d)).at(gate * d).every(k);
                let dr = View::out(dr, Mat::new(k, k, k)).at(gate * d * k).every(k * k);
                cu.gemm(1.0, h, g, dr, acc, heads);
            }
        }
        if let Some(to) = add_to {
            cu.gpu().convert(dz, to, true);
        }
    }
}
