//! The kernel of [`SkipGelu`].
//!
//! ```text
//! ds = do ⊙ gelu′(s);  dy = ds,  dx = d ⊙ ds,  dd = Σ x ⊙ ds over the rows
//! ```
//!
//! It passes over memory once each way, where products and sums would pass three times (a device sums dd in a second pass). The CPU
//! saves gelu′(s), which costs little where gelu is at hand; a device, for which an exponential costs less than memory, saves
//! nothing.

use crate::{
    args,
    autograd::{Grad, In, Kernel, Outs, Value, zeroed},
    cuda::{Cuda, Module},
    kernels::{gated_skip::repeated, lane_sums::columns, linear::column_sums_cuda, math::Math},
    ops::skip_gelu::SkipGelu,
    tensor::{Cpu, Cx, Shape, Tensor},
    with_real,
};

static MODULE: Module = Module::new("kernels/skip_gelu.cu", &[include_str!("skip_gelu.cu")]);

#[versions::versions]
fn forward<T: Math>(d: &[T], y: &[T], x: &[T], o: &mut [T], slope: &mut [T]) {
    let n = o.len();
    let (d, y, x, slope) = (&d[..n], &y[..n], &x[..n], &mut slope[..n]);
    for i in 0..n {
        (o[i], slope[i]) = d[i].fma(x[i], y[i]).gelu_and_slope();
    }
}

/// y = a ⊙ b, or y += a ⊙ b.
#[inline(always)]
fn product<T: Math>(a: &[T], b: &[T], y: &mut [T], acc: bool) {
    let products = y.iter_mut().zip(a.iter().zip(b).map(|(&a, &b)| a * b));
    if acc { products.for_each(|(y, p)| *y += p) } else { products.for_each(|(y, p)| *y = p) }
}

/// Writes dy and dx, or adds to them; `dd` becomes what the columns of are summed, `ds` is scratch memory.
#[versions::versions]
fn backward<T: Math>(
    [d, x, slope, g]: [&[T]; 4],
    (dy, acc_y): (&mut [T], bool),
    (dx, acc_x): (&mut [T], bool),
    [ds, dd]: [&mut [T]; 2],
) {
    let ds = &mut ds[..g.len()];
    product(g, slope, ds, false);
    product(g, slope, dy, acc_y);
    product(ds, d, dx, acc_x);
    product(ds, x, dd, false);
}

fn forward_cpu<T: Math>(x: In, o: &mut [T], slope: &mut [T]) {
    let (y, d, v) = (x[0].host::<T>(), repeated(x[1].host::<T>()), x[2].host::<T>());
    let mut start = 0;
    for (o, slope) in o.chunks_mut(d.len().max(1)).zip(slope.chunks_mut(d.len().max(1))) {
        forward(&d, &y[start..], &v[start..], o, slope);
        start += o.len();
    }
}

fn backward_cpu<T: Math>(cpu: &Cpu, x: In, slope: &[T], g: &[T], dx: &mut [Grad]) {
    let [dy, dd, dv] = dx else { return };
    let (v, d) = (x[2].host::<T>(), repeated(x[1].host::<T>()));
    let dd = zeroed(dd.slot_or_scratch::<[T]>(cpu, &x[1]));
    let ((dy, acc_y), (dv, acc_v)) = (dy.slot_or_scratch::<[T]>(cpu, &x[0]), dv.slot_or_scratch::<[T]>(cpu, &x[2]));
    let (mut ds, mut products) = (cpu.temp::<T>(d.len()), cpu.temp::<T>(d.len()));
    for start in (0..g.len()).step_by(d.len().max(1)) {
        let r = start..g.len().min(start + d.len());
        let products = &mut products[..r.len()];
        let inputs = [&d, &v[r.clone()], &slope[r.clone()], &g[r.clone()]];
        backward(inputs, (&mut dy[r.clone()], acc_y), (&mut dv[r], acc_v), [&mut ds, &mut *products]);
        columns(products, dd);
    }
}

fn backward_cuda(cu: &Cuda, x: In, g: &Tensor, dx: &mut [Grad]) {
    let [dy, dd, dv] = dx else { return };
    let (dtype, n, width) = (g.dtype(), g.len(), x[1].len());
    let mut products = dd.wanted().then(|| cu.temp(dtype, n));
    let [dy, dv] = [dy, dv].map(Grad::target);
    let (y, d, v, out) = (&x[0], &x[1], &x[2], products.as_deref_mut());
    let args = args![y, d, v, g, dy.0, dy.1, dv.0, dv.1, out, n, width];
    cu.launch(&MODULE, "skip_gelu_backward", dtype, cu.elements(n), args);
    if let (Some(products), Some((d, acc))) = (&products, dd.slot::<Tensor>()) {
        column_sums_cuda(cu, products, n / width.max(1), d, acc);
    }
}

impl Kernel for SkipGelu {
    fn saves(&self, x: In) -> Outs {
        // The slope, on the CPU.
        if x[0].gpu().is_some() { Shape::from([0]).into() } else { x[0].shape().into() }
    }

    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        let [o, slope] = y else { return };
        match cx {
            Cx::Cpu(_) => with_real!(x[0].dtype(), T => forward_cpu::<T>(x, o.host_mut(), slope.host_mut())),
            Cx::Cuda(cu) => {
                let (n, width) = (o.len(), x[1].len());
                let args = args![&x[0], &x[1], &x[2], o, n, width];
                cu.launch(&MODULE, "skip_gelu_forward", x[0].dtype(), cu.elements(n), args);
            }
        }
    }

    fn backward(&self, cx: &Cx, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(g) = &dy[0] else { return };
        match cx {
            Cx::Cpu(cpu) => with_real!(g.dtype(), T => backward_cpu::<T>(cpu, x, y[1].host(), g.host(), dx)),
            Cx::Cuda(cu) => backward_cuda(cu, x, g, dx),
        }
    }
}
