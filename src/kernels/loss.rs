//! The kernel of [`CrossEntropy`].

use crate::{
    args,
    autograd::{Grad, In, Kernel, Outs, Value},
    cuda::{Launch, Module},
    kernels::{lane_sums, lanes::L, math::Math},
    ops::loss::CrossEntropy,
    tensor::{Cx, DType, Real, Tensor},
    with_real, with_width,
};

static MODULE: Module = Module::new("kernels/loss.cu", &[include_str!("loss.cu")]);

/// x [rows, n] -> Σ (lse − y·x) over the rows that count. For the backward pass it keeps `kept` = softmax(x), less one
/// at the target: there it is minus the sum of the others, since the difference from one would have no digits where the
/// model is sure. In rows that do not count, `kept` has any values.
///
/// Sixteen rows at a time, of which the exponentials, and the logarithms, are taken together: rows of a few classes
/// fill vectors too.
#[versions::versions]
fn forward<T: Math>(n: usize, (targets, ignore): (&[i32], i32), smoothing: f64, x: &[T], kept: &mut [T]) -> f64 {
    let least = T::of(f64::NEG_INFINITY);
    let mut loss = 0.0;
    for ((x, p), targets) in x.chunks(L * n).zip(kept.chunks_mut(L * n)).zip(targets.chunks(L)) {
        // e^(x − m) of the targets, and Σ e^(x − m) − 1.
        let (mut own, mut more) = ([least; L], [T::ZERO; L]);
        with_width!(n => for (((p, x), &t), own) in p.chunks_exact_mut(n).zip(x.chunks_exact(n)).zip(targets).zip(&mut own) {
            let m = lane_sums::max(x);
            p.iter_mut().zip(x).for_each(|(p, &x)| *p = x - m);
            if t != ignore {
                if smoothing > 0.0 {
                    loss -= smoothing * (lane_sums::sum(p, |x| x).to_f64() / n as f64);
                }
                *own = std::mem::replace(&mut p[t as usize], least);
                if smoothing < 1.0 {
                    loss -= (1.0 - smoothing) * own.to_f64();
                }
            }
        });
        p.iter_mut().chain(&mut own).for_each(|p| *p = p.decay());
        with_width!(n => for (((p, &t), &own), more) in p.chunks_exact_mut(n).zip(targets).zip(&own).zip(&mut more) {
            let others = lane_sums::sum(p, |p| p);
            let scale = T::ONE / (own + others);
            p.iter_mut().for_each(|p| *p *= scale);
            if t != ignore {
                p[t as usize] = -others * scale;
            }
            *more = (own - T::ONE) + others;
        });
        more.iter_mut().for_each(|more| *more = more.ln_1p());
        let counted = targets.iter().zip(more).filter(|t| *t.0 != ignore);
        loss = counted.fold(loss, |loss, (_, log)| loss + log.to_f64());
    }
    loss
}

/// d (+)= scale (p − y) in the rows that count, 0 in the others, whatever is in them.
#[versions::versions]
fn backward<T: Math>(
    n: usize,
    (targets, ignore): (&[i32], i32),
    [scale, smoothing]: [T; 2],
    kept: &[T],
    (d, acc): (&mut [T], bool),
) {
    let each = smoothing / T::of(n as f64);
    with_width!(n => for ((p, d), &t) in kept.chunks_exact(n).zip(d.chunks_exact_mut(n)).zip(targets) {
        let counts = t != ignore;
        let of = |p: T| if counts { scale * (p - each) } else { T::ZERO };
        if acc {
            d.iter_mut().zip(p).for_each(|(d, &p)| *d += of(p));
        } else {
            d.iter_mut().zip(p).for_each(|(d, &p)| *d = of(p));
        }
        if counts && smoothing > T::ZERO {
            d[t as usize] += scale * smoothing;
        }
    });
}

impl CrossEntropy {
    /// 1 / n for the n rows that count; 0 if none does.
    fn scale(&self, targets: &[i32]) -> f64 {
        match targets.iter().filter(|&&t| t != self.ignore_index).count() {
            0 => 0.0,
            n => 1.0 / n as f64,
        }
    }
}

impl Kernel for CrossEntropy {
    fn saves(&self, x: In) -> Outs {
        x[0].shape().into()
    }

    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        let [loss, kept] = y else { return };
        if x[0].is_empty() {
            loss.fill(0.0);
            return;
        }
        let (n, ignore) = (x[0].shape().last(), self.ignore_index);
        match cx {
            Cx::Cpu(_) => with_real!(x[0].dtype(), T => {
                let targets = x[1].host::<i32>();
                let sum = forward(n, (targets, ignore), self.smoothing, x[0].host::<T>(), kept.host_mut());
                loss.host_mut::<T>()[0] = T::of(sum * self.scale(targets));
            }),
            Cx::Cuda(cu) => {
                let (dtype, rows) = (x[0].dtype(), x[1].len());
                let (_, lanes) = cu.rows(rows, n);
                // Depends on sizes alone, so that every device adds in the same order.
                let blocks = rows.div_ceil(256 / lanes as usize).min(1024);
                let (mut sums, mut counts) = (cu.temp(dtype.real(), blocks), cu.temp(DType::I32, blocks));
                let args =
                    args![&x[0], &x[1], &mut **kept, &mut sums, &mut counts, rows, n, lanes, ignore, self.smoothing];
                cu.launch(&MODULE, "cross_entropy", dtype, Launch::blocks(blocks, 256), args);
                let args = args![&sums, &counts, blocks, &mut **loss];
                cu.launch(&MODULE, "cross_entropy_total", dtype, Launch::blocks(1, 256), args);
            }
        }
    }

    fn backward(&self, cx: &Cx, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(g) = &dy[0] else { return };
        if x[0].is_empty() {
            return;
        }
        let (n, ignore) = (x[0].shape().last(), self.ignore_index);
        match cx {
            Cx::Cpu(_) => with_real!(g.dtype(), T => if let Some((d, acc)) = dx[0].slot::<[T]>() {
                let targets = x[1].host::<i32>();
                let scale = g.host::<T>()[0] * T::of(self.scale(targets));
                backward(n, (targets, ignore), [scale, T::of(self.smoothing)], y[1].host(), (d, acc));
            }),
            Cx::Cuda(cu) => {
                let Some((d, acc)) = dx[0].slot::<Tensor>() else { return };
                let (dtype, rows, size) = (x[0].dtype(), x[1].len(), d.len());
                let mut count = cu.temp(DType::I32, 1);
                let args = args![&x[1], rows, ignore, &mut count];
                cu.launch(&MODULE, "count_targets", dtype, Launch::blocks(1, 1024), args);
                let args = args![&y[1], g, &count, d, acc, size];
                cu.launch(&MODULE, "cross_entropy_backward", dtype, cu.elements(size), args);
            }
        }
    }
}
