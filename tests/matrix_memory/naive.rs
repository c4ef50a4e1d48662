//! Loops over single steps, which the fused ops must equal.

use tapezoo::{
    autograd::{Gen, Tape, Var},
    ops::{
        attention::causal_attention,
        delta::delta_rule,
        linear_attn::{linear_attention, linear_attention_normalized},
    },
    tensor::{DType, Tensor},
};

/// The results of an op and the gradients of its inputs.
pub struct Run {
    pub y: Vec<Vec<f64>>,
    pub dx: Vec<Vec<f64>>,
}

/// Runs `f` on `x` cast to `dtype`; `dy` are the cotangents of the results, where there are any.
pub fn run<F>(f: F, x: &[Tensor], dy: &[Option<Tensor>], dtype: DType) -> Run
where
    F: for<'t> Fn(&[Var<'t>]) -> Vec<Var<'t>>,
{
    let tape = Tape::default();
    tape.poison(true);
    let x: Vec<_> = x.iter().map(|x| tape.leaf(&x.cast(dtype))).collect();
    let y = f(&x);
    tape.backward_from(y.iter().zip(dy).filter_map(|(&y, dy)| Some((y, dy.as_ref()?.cast(dtype)))));
    let zeros = |x: &Var| vec![0.0; x.shape().len()];
    Run {
        y: y.iter().map(|y| y.value().to_f64()).collect(),
        dx: x.iter().map(|x| x.grad().map_or_else(|| zeros(x), |g| g.to_f64())).collect(),
    }
}

/// The largest difference, relative to the largest element (or 1).
pub fn error(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let size = b.iter().fold(1.0, |m: f64, b| m.max(b.abs()));
    a.iter().zip(b).fold(0.0, |m: f64, (a, b)| if (a - b).is_nan() { f64::INFINITY } else { m.max((a - b).abs()) })
        / size
}

#[track_caller]
pub fn same(got: &Run, want: &Run, tolerance: f64, what: &str) {
    for (kind, got, want) in [("result", &got.y, &want.y), ("gradient", &got.dx, &want.dx)] {
        assert_eq!(got.len(), want.len());
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            let e = error(got, want);
            assert!(e <= tolerance, "{what}: {kind} {i} is off by {e:.1e}");
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub b: usize,
    pub t: usize,
    pub h: usize,
    pub k: usize,
    pub v: usize,
}

impl Size {
    fn row(self, b: usize, t: usize, h: usize) -> usize {
        (b * self.t + t) * self.h + h
    }

    /// Row `t` of head `h` of a tensor whose rows have `n` elements.
    fn at(self, x: &[f64], n: usize, b: usize, t: usize, h: usize) -> &[f64] {
        &x[self.row(b, t, h) * n..][..n]
    }
}

pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// S as K rows of V; Sᵀ k.
pub fn recall(s: &[f64], k: &[f64], v: usize) -> Vec<f64> {
    (0..v).map(|j| k.iter().enumerate().map(|(i, k)| s[i * v + j] * k).sum()).collect()
}

/// The delta rule and, with `beta` missing, the sum of k vᵀ, by their recurrences; gradients by the recurrences
/// backwards, with every state kept.
pub fn naive_delta(
    z: Size,
    scale: f64,
    x: &[Tensor],
    beta: Option<&Tensor>,
    s0: &Tensor,
    dy: &[Option<Tensor>],
) -> Run {
    let Size { b, t, h, k, v } = z;
    let [xq, xk, xv] = [0, 1, 2].map(|i| x[i].to_f64());
    let beta_of = |r: usize| beta.map(|x| x.to_f64()[r]);
    let (s0, [go, gs]) = (s0.to_f64(), [0, 1].map(|i| dy[i].as_ref().map(Tensor::to_f64)));
    let (mut o, mut last) = (vec![0.0; xv.len()], s0.clone());
    let (mut dq, mut dk, mut dv, mut ds0) =
        (vec![0.0; xq.len()], vec![0.0; xk.len()], vec![0.0; xv.len()], vec![0.0; s0.len()]);
    let mut db = vec![0.0; b * t * h];
    for (n, m) in (0..b).flat_map(|n| (0..h).map(move |m| (n, m))) {
        let head = (n * h + m) * k * v;
        let mut states = vec![s0[head..head + k * v].to_vec()];
        for i in 0..t {
            let (q, key, val, r) =
                (z.at(&xq, k, n, i, m), z.at(&xk, k, n, i, m), z.at(&xv, v, n, i, m), z.row(n, i, m));
            let mut s = states[i].clone();
            let old = recall(&s, key, v);
            for (a, key) in key.iter().enumerate() {
                for c in 0..v {
                    s[a * v + c] += key * beta_of(r).map_or(val[c], |beta| beta * (val[c] - old[c]));
                }
            }
            recall(&s, q, v).iter().enumerate().for_each(|(c, y)| o[r * v + c] = scale * y);
            states.push(s);
        }
        last[head..head + k * v].copy_from_slice(&states[t]);
        let mut ds = gs.as_ref().map_or(vec![0.0; k * v], |g| g[head..head + k * v].to_vec());
        for i in (0..t).rev() {
            let (q, key, val, r) =
                (z.at(&xq, k, n, i, m), z.at(&xk, k, n, i, m), z.at(&xv, v, n, i, m), z.row(n, i, m));
            let (before, after) = (&states[i], &states[i + 1]);
            let g = go.as_ref().map_or(vec![0.0; v], |g| z.at(g, v, n, i, m).to_vec());
            for a in 0..k {
                dq[r * k + a] = scale * dot(&after[a * v..(a + 1) * v], &g);
                (0..v).for_each(|c| ds[a * v + c] += scale * q[a] * g[c]);
            }
            let de = recall(&ds, key, v); // gradient of the written value
            let old = recall(before, key, v);
            let beta = beta_of(r);
            let write: Vec<f64> = (0..v).map(|c| beta.map_or(val[c], |beta| beta * (val[c] - old[c]))).collect();
            db[r] = (0..v).map(|c| de[c] * (val[c] - old[c])).sum();
            (0..v).for_each(|c| dv[r * v + c] = beta.unwrap_or(1.0) * de[c]);
            for a in 0..k {
                dk[r * k + a] = dot(&ds[a * v..(a + 1) * v], &write);
                if let Some(beta) = beta {
                    dk[r * k + a] -= beta * dot(&before[a * v..(a + 1) * v], &de);
                    (0..v).for_each(|c| ds[a * v + c] -= beta * key[a] * de[c]);
                }
            }
        }
        ds0[head..head + k * v].copy_from_slice(&ds);
    }
    let dx = if beta.is_some() { vec![dq, dk, dv, db, ds0] } else { vec![dq, dk, dv, ds0] };
    Run { y: vec![o, last], dx }
}

/// Normalised linear attention as a formula of ops that are tested elsewhere, one step at a time.
pub fn naive_normalized<'t>(scale: f64, eps: f64, x: &[Var<'t>]) -> Vec<Var<'t>> {
    let [b, t, h, k] = x[0].dims();
    let v = x[2].shape().last();
    // Select step i of [B, T, H, N] by a product with a one-hot row: [B H, N] afterwards.
    let tape = x[0].tape();
    let one_hot =
        |t: usize, i: usize| Tensor::from_vec((0..t).map(|j| if i == j { 1.0 } else { 0.0 }).collect(), [1, t]);
    let step = |x: Var<'t>, n: usize, i: usize| {
        let pick = tape.constant(&Tensor::from_vec(one_hot(t, i).to_f64().repeat(b), [b, 1, t]));
        pick.matmul(x.reshape([b, t, h * n])).reshape([b * h, n])
    };
    let (mut s, mut z) = (x[3].reshape([b * h, k, v]), x[4].reshape([b * h, k]));
    let mut o: Option<Var<'t>> = None;
    for i in 0..t {
        let (q, key, val) = (step(x[0], k, i), step(x[1], k, i), step(x[2], v, i));
        s = s + key.reshape([b * h, k, 1]).matmul(val.reshape([b * h, 1, v]));
        z = z + key;
        let q = scale * q.reshape([b * h, 1, k]);
        let y = (q.matmul(s) / (q.matmul(z.reshape([b * h, k, 1])) + eps)).reshape([b, h * v]);
        // Put step i in its place: an outer product with the same one-hot row.
        let row = tape.constant(&Tensor::from_vec(one_hot(t, i).to_f64().repeat(b), [b, t, 1]));
        let y = row.matmul(y.reshape([b, 1, h * v]));
        o = Some(o.map_or(y, |o| o + y));
    }
    let o = o.expect("one step at least").reshape([b, t, h, v]);
    vec![o, s.reshape([b, h, k, v]), z.reshape([b, h, k])]
}

/// Softmax attention by its definition; gradients by the definition of the softmax's Jacobian.
pub fn naive_attention(z: Size, s: usize, scale: f64, x: &[Tensor], dy: &Tensor) -> Run {
    let Size { b, t, h, k, v } = z;
    let keys = Size { t: s, ..z };
    let [xq, xk, xv] = [0, 1, 2].map(|i| x[i].to_f64());
    let g = dy.to_f64();
    let mut y = vec![0.0; b * t * h * v];
    let (mut dq, mut dk, mut dv) = (vec![0.0; xq.len()], vec![0.0; xk.len()], vec![0.0; xv.len()]);
    for (n, m) in (0..b).flat_map(|n| (0..h).map(move |m| (n, m))) {
        for i in 0..t {
            let seen = s - t + i + 1;
            let r = z.row(n, i, m);
            let q = &xq[r * k..(r + 1) * k];
            let x: Vec<f64> = (0..seen).map(|j| scale * dot(q, keys.at(&xk, k, n, j, m))).collect();
            let top = x.iter().fold(f64::NEG_INFINITY, |m, &x| m.max(x));
            let sum: f64 = x.iter().map(|x| (x - top).exp()).sum();
            let p: Vec<f64> = x.iter().map(|x| (x - top).exp() / sum).collect();
            let dp: Vec<f64> = (0..seen).map(|j| dot(&g[r * v..(r + 1) * v], keys.at(&xv, v, n, j, m))).collect();
            let mean: f64 = dot(&p, &dp);
            for j in 0..seen {
                let rj = keys.row(n, j, m);
                let dx = p[j] * (dp[j] - mean) * scale;
                (0..v).for_each(|c| y[r * v + c] += p[j] * xv[rj * v + c]);
                (0..v).for_each(|c| dv[rj * v + c] += p[j] * g[r * v + c]);
                (0..k).for_each(|c| dq[r * k + c] += dx * xk[rj * k + c]);
                (0..k).for_each(|c| dk[rj * k + c] += dx * xq[r * k + c]);
            }
        }
    }
    Run { y: vec![y], dx: vec![dq, dk, dv] }
}

/// q, k, v, beta in (0, 2), s0, with keys of length about 1, and the cotangents of o and s.
pub fn tensors(z: Size, seed: u64) -> (Vec<Tensor>, Vec<Option<Tensor>>) {
    let g = &mut Gen::new(seed);
    let Size { b, t, h, k, v } = z;
    let a = 1.5 / (k as f64).sqrt();
    let x = vec![
        g.range([b, t, h, k], -a, a),
        g.range([b, t, h, k], -a, a),
        g.normal([b, t, h, v]),
        g.range([b, t, h], 0.0, 2.0),
        g.normal([b, h, k, v]),
    ];
    (x, vec![Some(g.normal([b, t, h, v])), Some(g.normal([b, h, k, v]))])
}

pub fn delta(scale: f64, chunk: usize) -> impl for<'t> Fn(&[Var<'t>]) -> Vec<Var<'t>> {
    move |x| {
        let (o, s) = delta_rule(x[0], x[1], x[2], x[3], x[4], scale, chunk);
        vec![o, s]
    }
}

pub fn linear(scale: f64, chunk: usize) -> impl for<'t> Fn(&[Var<'t>]) -> Vec<Var<'t>> {
    move |x| {
        let (o, s) = linear_attention(x[0], x[1], x[2], x[3], scale, chunk);
        vec![o, s]
    }
}

pub fn normalized(scale: f64, eps: f64, chunk: usize) -> impl for<'t> Fn(&[Var<'t>]) -> Vec<Var<'t>> {
    move |x| {
        let (o, (s, z)) = linear_attention_normalized(x[0], x[1], x[2], (x[3], x[4]), scale, eps, chunk);
        vec![o, s, z]
    }
}

pub fn attention(scale: f64) -> impl for<'t> Fn(&[Var<'t>]) -> Vec<Var<'t>> {
    move |x| vec![causal_attention(x[0], x[1], x[2], scale)]
}

/// Which of two cotangents there are.
pub fn masks(dy: &[Option<Tensor>]) -> Vec<Vec<Option<Tensor>>> {
    let keep = |a: bool, b: bool| vec![dy[0].clone().filter(|_| a), dy[1].clone().filter(|_| b)];
    vec![keep(true, true), keep(true, false), keep(false, true)]
}
