//! The eigenvalues of the transition from one state to the next, at every step.
//!
//! Where a gate is the transition (LSTM's f, Mamba's Ā, the LRU's λ) they are named values already, and
//! [`View::eigenvalues`] has the name. The eigenvalues of the delta rule are computed here, by the closed form in its
//! file; the eigenvalues of a product of n factors I − β k kᵀ are computed from those of an n × n matrix:
//!
//! ```text
//! Π_j (I − β_j k_j k_jᵀ) = I − Σ_j k_j w_jᵀ,   w_j = β_j (k_j − Σ_{i<j} (k_j·k_i) w_i)
//! eigenvalues: 1 − eig(W K),  (W K)_ij = w_i·k_j,  and 1 for every vector orthogonal to all k
//! ```
//!
//! As many factors as a key has numbers may leave no such vector: then they are those of the K × K product itself.

use super::{
    trace::Series,
    view::{Spectrum, View},
};
use std::collections::BTreeMap;

/// The computed eigenvalues, under the names "eigenvalue", or "Re eigenvalue" and "Im eigenvalue".
pub fn eigenvalues(view: &View, layer: &BTreeMap<String, Series>) -> Vec<(String, Series)> {
    let get = |name: &str| layer.get(name);
    match view.eigenvalues {
        Spectrum::Named(..) | Spectrum::Complex(..) | Spectrum::None => vec![],
        Spectrum::Ones => get("k").map_or(vec![], |k| {
            let (t, h) = (k.data.len() / k.width().max(1), k.shape[0]);
            vec![("eigenvalue".into(), Series { shape: vec![h, 1], data: vec![1.0; t * h] })]
        }),
        Spectrum::Delta => match (get("k"), get("beta")) {
            (Some(k), Some(beta)) => vec![("eigenvalue".into(), delta(k, beta, get("alpha")))],
            _ => vec![],
        },
        Spectrum::Product => match (get("k"), get("beta")) {
            (Some(k), Some(beta)) => product(k, beta),
            _ => vec![],
        },
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

/// α (1 − β ‖k‖²) along k and α orthogonal to it: `[T, H, 2]`.
fn delta(k: &Series, beta: &Series, alpha: Option<&Series>) -> Series {
    let width = k.shape.last().copied().unwrap_or(1);
    let along = |(i, k): (usize, &[f32])| {
        let alpha = alpha.map_or(1.0, |a| f64::from(a.data[i]));
        [(alpha * (1.0 - f64::from(beta.data[i]) * dot(k, k))) as f32, alpha as f32]
    };
    let data = k.data.chunks(width).enumerate().flat_map(along).collect();
    Series { shape: vec![k.shape[0], 2], data }
}

/// The largest matrix whose characteristic polynomial keeps the digits of its eigenvalues.
const MOST: usize = 8;

/// The eigenvalues of a token's product of n factors, real and imaginary parts: n of them and 1, `[T, H, n + 1]`, or where
/// keys have no more than n numbers K of them, `[T, H, K]`; none where the
/// smaller of n and K is more than [`MOST`].
#[doc(hidden)]
pub fn product(k: &Series, beta: &Series) -> Vec<(String, Series)> {
    // A single step is recorded without an axis of steps.
    let [n, h, width] = match k.shape[..] {
        [n, h, width] => [n, h, width],
        [h, width] => [1, h, width],
        _ => return vec![],
    };
    if n.min(width) > MOST {
        return vec![];
    }
    let steps = k.data.len() / k.width().max(1);
    let (mut re, mut im) = (Vec::new(), Vec::new());
    for t in 0..steps {
        let (k, beta) = (k.at(t), beta.at(t));
        for head in 0..h {
            let key = |j: usize| &k[(j * h + head) * width..][..width];
            if n >= width {
                let factors = (0..n).map(|j| (key(j), f64::from(beta[j * h + head])));
                for (a, b) in roots(&characteristic(&whole(factors, width))) {
                    re.push(a as f32);
                    im.push(b as f32);
                }
                continue;
            }
            let mut w: Vec<Vec<f64>> = Vec::new();
            for j in 0..n {
                let mut row: Vec<f64> = key(j).iter().map(|&x| f64::from(x)).collect();
                for (i, before) in w.iter().enumerate() {
                    let overlap = dot(key(j), key(i));
                    row.iter_mut().zip(before).for_each(|(x, &b)| *x -= overlap * b);
                }
                let beta = f64::from(beta[j * h + head]);
                row.iter_mut().for_each(|x| *x *= beta);
                w.push(row);
            }
            let entry = |i: usize, j: usize| -> f64 { w[i].iter().zip(key(j)).map(|(&w, &k)| w * f64::from(k)).sum() };
            let matrix: Vec<Vec<f64>> = (0..n).map(|i| (0..n).map(|j| entry(i, j)).collect()).collect();
            for (a, b) in
                roots(&characteristic(&matrix)).into_iter().map(|(a, b)| (1.0 - a, 0.0 - b)).chain([(1.0, 0.0)])
            {
                re.push(a as f32);
                im.push(b as f32);
            }
        }
    }
    let series = |data| Series { shape: vec![h, (n + 1).min(width)], data };
    vec![("Re eigenvalue".into(), series(re)), ("Im eigenvalue".into(), series(im))]
}

/// The product of I − β k kᵀ over these keys, the last to the left.
fn whole<'a>(factors: impl Iterator<Item = (&'a [f32], f64)>, width: usize) -> Vec<Vec<f64>> {
    let one = |i: usize, j: usize| f64::from(u8::from(i == j));
    let mut m: Vec<Vec<f64>> = (0..width).map(|i| (0..width).map(|j| one(i, j)).collect()).collect();
    for (k, beta) in factors {
        let read: Vec<f64> = (0..width).map(|j| (0..width).map(|i| f64::from(k[i]) * m[i][j]).sum()).collect();
        for (row, &k) in m.iter_mut().zip(k) {
            row.iter_mut().zip(&read).for_each(|(x, read)| *x -= beta * f64::from(k) * read);
        }
    }
    m
}

/// The characteristic polynomial xⁿ + c₁ xⁿ⁻¹ + … + cₙ of a matrix, by Faddeev and LeVerrier: `[c₁, …, cₙ]`.
fn characteristic(a: &[Vec<f64>]) -> Vec<f64> {
    let n = a.len();
    let mut c = Vec::with_capacity(n);
    let mut m: Vec<Vec<f64>> = vec![vec![0.0; n]; n];
    let mut last = 1.0;
    for k in 1..=n {
        m.iter_mut().enumerate().for_each(|(i, row)| row[i] += last);
        let am: Vec<Vec<f64>> =
            (0..n).map(|i| (0..n).map(|j| (0..n).map(|l| a[i][l] * m[l][j]).sum()).collect()).collect();
        last = -(0..n).map(|i| am[i][i]).sum::<f64>() / k as f64;
        c.push(last);
        m = am;
    }
    c
}

/// The roots of xⁿ + c₁ xⁿ⁻¹ + … + cₙ, all at once (Durand and Kerner), the largest real part first.
#[doc(hidden)]
pub fn roots(c: &[f64]) -> Vec<(f64, f64)> {
    let n = c.len();
    if let [b, c] = *c {
        let d = b * b / 4.0 - c;
        let r = d.abs().sqrt();
        return if d >= 0.0 {
            vec![(r - b / 2.0, 0.0), (-r - b / 2.0, 0.0)]
        } else {
            vec![(-b / 2.0, r), (-b / 2.0, -r)]
        };
    }
    let mul = |a: (f64, f64), b: (f64, f64)| (a.0 * b.0 - a.1 * b.1, a.0 * b.1 + a.1 * b.0);
    let div = |a: (f64, f64), b: (f64, f64)| {
        let norm = (b.0 * b.0 + b.1 * b.1).max(f64::MIN_POSITIVE);
        ((a.0 * b.0 + a.1 * b.1) / norm, (a.1 * b.0 - a.0 * b.1) / norm)
    };
    let at = |x: (f64, f64)| c.iter().fold((1.0, 0.0), |sum, &c| (mul(sum, x).0 + c, mul(sum, x).1));
    let mut z: Vec<(f64, f64)> =
        (0..n).scan((1.0, 0.0), |x, _| Some(std::mem::replace(x, mul(*x, (0.4, 0.9))))).collect();
    for _ in 0..500 {
        let mut moved: f64 = 0.0;
        for i in 0..n {
            let others = (0..n).filter(|&j| j != i).fold((1.0, 0.0), |p, j| mul(p, (z[i].0 - z[j].0, z[i].1 - z[j].1)));
            let step = div(at(z[i]), others);
            z[i] = (z[i].0 - step.0, z[i].1 - step.1);
            moved = moved.max(step.0.abs() + step.1.abs());
        }
        if moved < 1e-13 {
            break;
        }
    }
    z.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.total_cmp(&a.1)));
    z
}
