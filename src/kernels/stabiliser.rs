//! The kernel of [`Stabiliser`].
//!
//! Backwards, γ is the gradient of m_t, including the part from step t + 1. Where l_t is the larger, log f_t is 0
//! whatever l_t is, and likewise for i_t:
//!
//! ```text
//! γ += dm;  df = γ − dlog_i, di = dlog_i if l_t won;  di = γ − dlog_f, df = dlog_f if i_t won;  γ ← df
//! ```
//!
//! If both are equal, each gets the mean of both cases.
//!
//! m is kept in double precision, because it is a running sum and equal roundings add up.

use crate::{
    args,
    autograd::{Grad, In, Kernel, Outs, Value},
    cuda::{Launch, Module},
    kernels::heads::cotangent_of,
    ops::stabiliser::Stabiliser,
    tensor::{Cx, Real, Tensor},
    with_real,
};

static MODULE: Module = Module::new("kernels/stabiliser.cu", &[include_str!("stabiliser.cu")]);

/// One sequence: f, i and m before it to log f, log i, m, and l's share of the gradient of m: 1, or 0, or ½ where l and
/// i are equal.
fn forward<T: Real>([f, i]: [&[T]; 2], m: T, [log_f, log_i, to_m, share]: [&mut [T]; 4]) {
    let mut m = m.to_f64();
    for t in 0..f.len() {
        let (past, input) = (f[t].to_f64() + m, i[t].to_f64());
        m = if past >= input { past } else { input };
        let from = if m == f64::NEG_INFINITY { 0.0 } else { m };
        (log_f[t], log_i[t], to_m[t]) = (T::of(past - from), T::of(input - from), T::of(m));
        let less = if past == input { 0.5 } else { 0.0 };
        share[t] = T::of(if past > input { 1.0 } else { less });
    }
}

/// A cotangent at t.
fn given<T: Real>(dy: Option<&[T]>, t: usize) -> f64 {
    dy.map_or(0.0, |dy| dy[t].to_f64())
}

/// The same backwards, from the cotangents of log f, log i and m: adds to df and di, and returns the gradient of the
/// first m.
fn backward<T: Real>(
    [m, share]: [&[T]; 2],
    [log_f, log_i, of_m]: [Option<&[T]>; 3],
    [df, di]: [&mut [T]; 2],
    acc: [bool; 2],
) -> T {
    let mut gamma = 0.0;
    for t in (0..m.len()).rev() {
        gamma += given(of_m, t);
        let (to_f, to_i, share) = (given(log_f, t), given(log_i, t), share[t].to_f64());
        // A logarithm is a difference from m, unless m is −∞.
        let blank = m[t] == T::of(f64::NEG_INFINITY);
        let (own_f, own_i, less_f, less_i) = if blank { (to_f, to_i, 0.0, 0.0) } else { (0.0, 0.0, to_f, to_i) };
        // A gate whose share is 0 gets 0, even where the gradient is NaN.
        let part = |share: f64, x: f64| if share > 0.0 { share * x } else { 0.0 };
        let of_f = part(share, own_f + (gamma - less_i)) + part(1.0 - share, to_f);
        let of_i = part(1.0 - share, own_i + (gamma - less_f)) + part(share, to_i);
        let put = |y: &mut T, x: f64, acc: bool| *y = if acc { *y + T::of(x) } else { T::of(x) };
        put(&mut df[t], of_f, acc[0]);
        put(&mut di[t], of_i, acc[1]);
        gamma = of_f;
    }
    T::of(gamma)
}

impl Kernel for Stabiliser {
    /// l's share of the gradient of m. The logarithms alone do not tell which of both was larger if the smaller one
    /// rounds to 0.
    fn saves(&self, x: In) -> Outs {
        x[0].shape().into()
    }

    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        let ([log_f, log_i, m, share], n) = (y, x[0].shape().last()) else { return };
        if x[0].is_empty() {
            return;
        }
        match cx {
            Cx::Cpu(_) => with_real!(x[0].dtype(), T => {
                let [f, i] = [0, 1].map(|j| x[j].host::<T>().chunks_exact(n));
                let [log_f, log_i, m, share] = [log_f, log_i, m, share].map(|y| y.host_mut::<T>().chunks_exact_mut(n));
                let outputs = log_f.zip(log_i).zip(m.zip(share));
                for ((first, (f, i)), ((log_f, log_i), (m, share))) in x[2].host::<T>().iter().zip(f.zip(i)).zip(outputs) {
                    forward([f, i], *first, [log_f, log_i, m, share]);
                }
            }),
            Cx::Cuda(cu) => {
                let (rows, dtype) = (x[2].len(), x[0].dtype());
                let args = args![&x[0], &x[1], &x[2], log_f, log_i, m, share, rows, n];
                cu.launch(&MODULE, "stabiliser", dtype, Launch::blocks(rows.div_ceil(128), 128), args);
            }
        }
    }

    fn backward(&self, cx: &Cx, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let ([df, di, dm], n) = (dx, x[0].shape().last()) else { return };
        if x[0].is_empty() {
            return;
        }
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => {
                let (df, acc_f) = df.slot_or_scratch::<[T]>(cpu, &x[0]);
                let (di, acc_i) = di.slot_or_scratch::<[T]>(cpu, &x[1]);
                let (dm, acc_m) = dm.slot_or_scratch::<[T]>(cpu, &x[2]);
                let of: [Option<&[T]>; 3] = [0, 1, 2].map(|j| cotangent_of(&dy[j]));
                for (row, dm) in dm.iter_mut().enumerate() {
                    let own = row * n..(row + 1) * n;
                    let [m, share] = [2, 3].map(|j| &y[j].host::<T>()[own.clone()]);
                    let to = [&mut df[own.clone()], &mut di[own.clone()]];
                    let first = backward([m, share], of.map(|dy| dy.map(|dy| &dy[own.clone()])), to, [acc_f, acc_i]);
                    *dm = if acc_m { *dm + first } else { first };
                }
            }),
            Cx::Cuda(cu) => {
                let (rows, dtype) = (x[2].len(), x[0].dtype());
                let ((df, acc_f), (di, acc_i), (dm, acc_m)) = (df.target(), di.target(), dm.target());
                let args = args![&y[2], &y[3], &dy[0], &dy[1], &dy[2], df, acc_f, di, acc_i, dm, acc_m, rows, n];
                cu.launch(&MODULE, "stabiliser_back", dtype, Launch::blocks(rows.div_ceil(128), 128), args);
            }
        }
    }
}
