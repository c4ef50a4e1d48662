//! The kernel of [`GatedSkip`].
//!
//! ```text
//! dy = do ⊙ silu(z),  dx = d ⊙ dy,  dd = Σ x ⊙ dy over the rows,  dz = do ⊙ (y + d ⊙ x) ⊙ σ(z) (1 + z (1 − σ(z)))
//! ```
//!
//! It passes over memory once each way, where products and sums would pass four times (a device sums dd in a second
//! pass), and saves nothing.

use crate::{
    args,
    autograd::{Grad, In, Kernel, Value, zeroed},
    cuda::Module,
    kernels::{lane_sums::columns, linear::column_sums_cuda, math::Math},
    ops::gated_skip::GatedSkip,
    tensor::{Cpu, Cuda, Cx, Tensor},
    with_real,
};

static MODULE: Module = Module::new("kernels/gated_skip.cu", &[include_str!("gated_skip.cu")]);

/// About how many numbers of each tensor go at a time: they stay in the first cache.
const AT_ONCE: usize = 512;

/// d, repeated for each row of a part: narrow rows then fill vectors together.
pub(super) fn repeated<T: Math>(d: &[T]) -> Vec<T> {
    d.repeat((AT_ONCE / d.len().max(1)).max(1))
}

#[versions::versions]
fn forward<T: Math>(d: &[T], [y, x, z]: [&[T]; 3], o: &mut [T]) {
    let n = o.len();
    let (d, y, x, z) = (&d[..n], &y[..n], &x[..n], &z[..n]);
    for i in 0..n {
        o[i] = d[i].fma(x[i], y[i]) * z[i].silu_and_slope().0;
    }
}

/// Adds to dy, dx and dz. The terms of the column sums go to `dd`.
#[versions::versions]
fn backward<T: Math>(d: &[T], [y, x, z, g]: [&[T]; 4], [dy, dx, dz, dd]: [&mut [T]; 4]) {
    let n = g.len();
    let (d, y, x, z) = (&d[..n], &y[..n], &x[..n], &z[..n]);
    let (dy, dx, dz, dd) = (&mut dy[..n], &mut dx[..n], &mut dz[..n], &mut dd[..n]);
    for i in 0..n {
        let (gate, steep) = z[i].silu_and_slope();
        let slope = g[i] * gate;
        dy[i] += slope;
        dx[i] += slope * d[i];
        dd[i] = slope * x[i];
        dz[i] += d[i].fma(x[i], y[i]) * (g[i] * steep);
    }
}

fn backward_cpu<T: Math>(cpu: &Cpu, x: In, g: &Tensor, dx: &mut [Grad]) {
    let [y, d, v, z] = std::array::from_fn(|i| x[i].host::<T>());
    let (g, all) = (g.host::<T>(), repeated(d));
    let [dy, dd, dv, dz] = dx else { return };
    let dd = zeroed(dd.slot_or_scratch::<[T]>(cpu, &x[1]));
    let mut parts =
        [dy.slot_or_scratch::<[T]>(cpu, &x[0]), dv.slot_or_scratch(cpu, &x[2]), dz.slot_or_scratch(cpu, &x[3])];
    let mut products = cpu.temp::<T>(all.len());
    for start in (0..g.len()).step_by(all.len().max(1)) {
        let n = all.len().min(g.len() - start);
        let [dy, dv, dz] = parts.each_mut().map(|(d, acc)| {
            let d = &mut d[start..][..n];
            if !*acc {
                d.fill(T::ZERO);
            }
            d
        });
        let [y, v, z, g] = [y, v, z, g].map(|x| &x[start..][..n]);
        backward(&all, [y, v, z, g], [dy, dv, dz, &mut products]);
        columns(&products[..n], dd);
    }
}

fn backward_cuda(cu: &Cuda, x: In, g: &Tensor, dx: &mut [Grad]) {
    let [dy, dd, dv, dz] = dx else { return };
    let (dtype, n, width) = (g.dtype(), g.len(), x[1].len());
    let mut products = dd.wanted().then(|| cu.temp(dtype, n));
    let [dy, dv, dz] = [dy, dv, dz].map(Grad::target);
    let over = cu.elements(n);
    let (y, d, v, z) = (&x[0], &x[1], &x[2], &x[3]);
    let out = products.as_deref_mut();
    let args = args![y, d, v, z, g, dy.0, dy.1, dv.0, dv.1, dz.0, dz.1, out, n, width];
    cu.launch(&MODULE, "gated_skip_backward", dtype, over, args);
    if let (Some(products), Some((d, acc))) = (&products, dd.slot::<Tensor>()) {
        column_sums_cuda(cu, products, n / width.max(1), d, acc);
    }
}

impl Kernel for GatedSkip {
    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        match cx {
            Cx::Cpu(_) => with_real!(x[0].dtype(), T => {
                let (all, o) = (repeated(x[1].host::<T>()), y[0].host_mut::<T>());
                let mut start = 0;
                for o in o.chunks_mut(all.len().max(1)) {
                    forward(&all, [0, 2, 3].map(|i| &x[i].host::<T>()[start..]), o);
                    start += o.len();
                }
            }),
            Cx::Cuda(cu) => {
                let (n, width) = (y[0].len(), x[1].len());
                let args = args![&x[0], &x[1], &x[2], &x[3], &mut y[0], n, width];
                cu.launch(&MODULE, "gated_skip_forward", x[0].dtype(), cu.elements(n), args);
            }
        }
    }

    fn backward(&self, cx: &Cx, x: In, _: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(g) = &dy[0] else { return };
        match cx {
            Cx::Cpu(cpu) => with_real!(g.dtype(), T => backward_cpu::<T>(cpu, x, g, dx)),
            Cx::Cuda(cu) => backward_cuda(cu, x, g, dx),
        }
    }
}
