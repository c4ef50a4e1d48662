//! Word problems of groups that are not solvable, by reflections of one head's state: swaps of S5 by one a token, all of A5
//! by two.
//!
//! Reflections along three directions of a plane, 60° apart, as of three swaps of three things, need keys of both signs: of
//! three vectors that are nowhere negative no product ⟨a, b⟩ ⟨b, c⟩ ⟨c, a⟩ is below 0, and here it is −1/8. RWKV-7's keys have
//! any sign. Those of the other delta rules have come through a SiLU, which has no value below −0.28: such keys are short,
//! and the ε that their length is divided with leaves each reflection a little less than −1. So they last for thousands of
//! tokens, and not for any number.

use crate::{
    BIG,
    machine::{LONG, Machine},
};
use tapezoo::{
    autograd::Gen,
    models::{Eigenvalues, ModelConfig},
};

type Vector = Vec<f64>;
type Matrix = Vec<Vector>;

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn times(m: &Matrix, x: &[f64]) -> Vector {
    m.iter().map(|row| dot(row, x)).collect()
}

fn identity(n: usize) -> Matrix {
    (0..n).map(|i| (0..n).map(|j| f64::from(u8::from(i == j))).collect()).collect()
}

/// a − b, scaled to a length of 1.
fn direction(a: &[f64], b: &[f64]) -> Vector {
    let k: Vector = a.iter().zip(b).map(|(a, b)| a - b).collect();
    let length = dot(&k, &k).sqrt();
    k.iter().map(|x| x / length).collect()
}

/// m (I − 2 k kᵀ).
fn reflected(m: &Matrix, k: &[f64]) -> Matrix {
    let row = |row: &Vector| row.iter().zip(k).map(|(x, y)| x - 2.0 * dot(row, k) * y).collect();
    m.iter().map(row).collect()
}

fn close(a: &[f64], b: &[f64]) -> bool {
    a.iter().zip(b).all(|(x, y)| (x - y).abs() < 1e-6)
}

/// x with SiLU(x) = y, for y from −0.25 to 0.25.
fn before_silu(y: f64) -> f32 {
    (0..100).fold(2.0 * y, |x, _| y * (1.0 + (-x).exp())) as f32
}

/// One head that reflects by these keys of length 1, `keys[i]` being those of token i, one for each step of a token, and
/// none of a token that keeps the state. The values are c keys: S ← (I − 2 k kᵀ) S + 2 c k kᵀ takes c I − S to (I − 2 k kᵀ)
/// (c I − S), so that S = c I − c P after a product P of reflections, and the output is c ⟨w, q − Pᵀ q⟩: c is so small
/// that the ε of the norm behind it hides no size.
fn reflecting(name: &str, eigenvalues: Eigenvalues, keys: &[Vec<Vector>], q: &[f64], w: &[f64]) -> Machine {
    let (width, k, n) = (keys.len(), q.len(), keys.iter().map(Vec::len).max().unwrap());
    let sizes = ModelConfig { heads: 1, head_dim: k, householders: n, ..ModelConfig::default() };
    // Weights are [K, D], n times.
    let by_key = |f: &dyn Fn(f64) -> f32| {
        let mut weights = vec![0.0; n * k * width];
        for (token, steps) in keys.iter().enumerate() {
            for (step, key) in steps.iter().enumerate() {
                (0..k).for_each(|i| weights[(step * k + i) * width + token] = f(key[i]));
            }
        }
        weights
    };
    let same = |x: &[f64], scale: f32| -> Vec<f32> { (0..k * width).map(|at| scale * x[at / width] as f32).collect() };
    let w_o = [w.iter().map(|&w| w as f32).collect(), vec![0.0; (width - 1) * k]].concat();
    let machine = Machine::over(width, name, eigenvalues, sizes);
    if name == "rwkv7" {
        let machine = machine.set("w0", &vec![-BIG; k]).set("a0", &vec![BIG; k]).set("k_k", &vec![1.0; k]);
        let machine = machine.set("ln_x_weight", &vec![1.0; k]).set("g2", &vec![1.0; k * k]);
        let machine = machine.set("receptance_weight", &same(q, 1.0)).set("output_weight", &w_o);
        // k vᵀ is 2 c κ κᵀ.
        let v = by_key(&|x| (x / 512.0) as f32);
        return machine.set("key_weight", &by_key(&|x| x as f32)).set("value_weight", &v);
    }
    let copies = if name == "mom" { 5 } else { 1 }; // MoM has five memories, and its router no preference
    let largest = keys.iter().flatten().flatten().fold(0.0, |most: f64, x| most.max(x.abs()));
    let (w_k, w_v) = (by_key(&|x| before_silu(0.25 * x / largest)), by_key(&|x| before_silu(2e-4 * x)));
    let beta: Vec<f32> =
        (0..n).flat_map(|step| keys.iter().map(move |of| if step < of.len() { BIG } else { -BIG })).collect();
    let machine = machine.set("w_q", &same(q, BIG)).set("w_k", &w_k.repeat(copies)).set("w_v", &w_v.repeat(copies));
    let machine = machine.set("w_beta", &beta.repeat(copies)).set("norm", &vec![1.0; k]).set("w_o", &w_o);
    // The gates are open, as in `delta_rules`.
    let machine = match name {
        "gated_delta_net" | "mom" => machine.set("b_dt", &[-BIG]).set("w_z", &vec![BIG; k * width]),
        "kda" => machine.set("b_dt", &vec![-BIG; k]).set("b_z", &vec![BIG; k]),
        _ => machine,
    };
    if name == "mom" {
        return machine;
    }
    let tap = [0.0, 0.0, 0.0, 1.0].repeat(k);
    machine.set("conv_q", &tap).set("conv_k", &tap.repeat(n)).set("conv_v", &tap.repeat(n))
}

/// Pᵀ q after each token, as its place among the `of` points that it can be.
fn places(keys: &[Vec<Vector>], q: &[f64], tokens: &[u8], of: usize) -> Vec<usize> {
    let (mut m, mut known) = (identity(q.len()), Vec::<Vector>::new());
    let mut place = |token: &u8| {
        m = keys[usize::from(*token)].iter().fold(std::mem::take(&mut m), |m, k| reflected(&m, k));
        let at = times(&m, q);
        known.iter().position(|x| close(x, &at)).unwrap_or_else(|| {
            known.push(at);
            known.len() - 1
        })
    };
    let places: Vec<usize> = tokens.iter().map(&mut place).collect();
    assert_eq!(known.len(), of, "the points that {q:?} can be");
    places
}

/// How far apart the outputs of one place are at most, and those of two places at least.
fn spread_and_gap(y: &[f32], places: &[usize]) -> (f32, f32) {
    let mut ranges = vec![(f32::INFINITY, f32::NEG_INFINITY); places.iter().max().unwrap() + 1];
    for (&y, &place) in y.iter().zip(places) {
        ranges[place] = (ranges[place].0.min(y), ranges[place].1.max(y));
    }
    ranges.sort_by(|a, b| a.0.total_cmp(&b.0));
    let spread = ranges.iter().map(|r| r.1 - r.0).fold(0.0, f32::max);
    (spread, ranges.windows(2).map(|r| r[1].0 - r[0].1).fold(f32::INFINITY, f32::min))
}

/// For `n` tokens the output tells where each of the points `q` is, and thus the product of all tokens: of the first point in
/// every form. The same weights do not, where eigenvalues cannot be negative.
fn assert_follows(name: &str, keys: &[Vec<Vector>], qs: &[Vector], w: &[f64], of: usize, n: usize) {
    let mut g = Gen::new(1);
    let tokens: Vec<u8> = (0..n).map(|_| g.below(keys.len()) as u8).collect();
    for (i, q) in qs.iter().enumerate() {
        let (places, machine) = (places(keys, q, &tokens, of), reflecting(name, Eigenvalues::Signed, keys, q, w));
        let mut ways = machine.ways();
        if i > 0 {
            ways.drain(..ways.len() - 1);
        }
        for (form, piece) in ways {
            let (spread, gap) = spread_and_gap(&machine.outputs(&tokens, form, piece), &places);
            assert!(spread < gap, "{name}, {form}, pieces of {piece}: one place {spread:e} apart, two places {gap:e}");
        }
        let positive = reflecting(name, Eigenvalues::Positive, keys, q, w);
        let (form, piece) = positive.ways().pop().unwrap();
        let (_, gap) = spread_and_gap(&positive.outputs(&tokens, form, piece), &places);
        assert!(gap < 0.0, "{name} with eigenvalues from 0 on tells two places apart, by {gap:e}");
    }
}

/// Five things are the corners of a simplex: words of eight bits, any two of which differ in four. A swap is the reflection
/// along the difference of two, which has no entries but ±1/2: nothing is rounded.
#[test]
fn one_reflection_a_token_follows_the_swaps_of_s5() {
    let things: Vec<Vector> = [0b1111_0000u8, 0b1100_1100, 0b1100_0011, 0b1010_1010, 0b1010_0101]
        .map(|word| (0..8).map(|bit| f64::from(word >> (7 - bit) & 1) / 2.0).collect())
        .to_vec();
    let swaps = (0..5).flat_map(|i| (0..i).map(move |j| (i, j))).map(|(i, j)| vec![direction(&things[i], &things[j])]);
    let keys: Vec<Vec<Vector>> = [vec![]].into_iter().chain(swaps).collect();
    // The readout of the five is 0, 1/2, 1, 3/2, 2.
    let w = [0.0, 0.0, 2.0, -2.0, 0.5, 0.5, 0.5, 1.5];
    assert_follows("rwkv7", &keys, &things, &w, 5, LONG);
    for name in ["delta_net", "gated_delta_net", "kda", "mom"] {
        assert_follows(name, &keys, &things, &w, 5, 1000);
    }
}

/// A5 is the rotations of an icosahedron, and a rotation is two reflections: one takes a direction to where it should be,
/// and the other what is still wrong, within the plane across it.
#[test]
fn two_reflections_a_token_follow_a5() {
    let phi = (1.0 + 5f64.sqrt()) / 2.0;
    let corners = [[0.0, 1.0, phi], [1.0, phi, 0.0], [phi, 0.0, 1.0]].map(|corner| direction(&corner, &[0.0; 3]));
    let by_three = vec![vec![0.0, 0.0, 1.0], vec![1.0, 0.0, 0.0], vec![0.0, 1.0, 0.0]];
    let middle = direction(&[phi, 1.0, phi + 1.0], &[0.0; 3]); // of an edge
    let by_two: Matrix = reflected(&identity(3), &middle).iter().map(|row| row.iter().map(|x| -x).collect()).collect();
    let mut rotations = vec![identity(3)];
    for next in 0..60 {
        for generator in [&by_three, &by_two] {
            let m: Matrix = times_matrix(&rotations[next], generator);
            if !rotations.iter().any(|known| close(&known.concat(), &m.concat())) {
                rotations.push(m);
            }
        }
    }
    assert_eq!(rotations.len(), 60, "the group A5");
    let keys: Vec<Vec<Vector>> = rotations.iter().map(two_keys).collect();
    let keys: Vec<Vec<Vector>> =
        keys.into_iter().map(|of| of.into_iter().map(|k| [k, vec![0.0]].concat()).collect()).collect();
    let qs = corners.map(|corner| [corner, vec![0.0]].concat());
    // The readouts of the twelve corners are as far apart as can be.
    let w = [-0.807, 0.577, -0.125, 0.0];
    assert_follows("delta_product", &keys, &qs, &w, 12, 1000);
}

fn times_matrix(a: &Matrix, b: &Matrix) -> Matrix {
    let column = |j: usize| b.iter().map(|row| row[j]).collect::<Vector>();
    a.iter().map(|row| (0..b.len()).map(|j| dot(row, &column(j))).collect()).collect()
}

/// Keys of two reflections whose product is the rotation m; of none, if it is the identity.
fn two_keys(m: &Matrix) -> Vec<Vector> {
    let x = [0.36, 0.48, 0.8];
    if close(&times(m, &x), &x) {
        return vec![];
    }
    let first = direction(&times(m, &x), &x);
    let rest: Matrix = times_matrix(&reflected(&identity(3), &first), m);
    // I − rest = 2 k kᵀ: each of its columns is along k.
    let column = |j: usize| -> Vector { (0..3).map(|i| f64::from(u8::from(i == j)) - rest[i][j]).collect() };
    let longest = (0..3).map(column).max_by(|a, b| dot(a, a).total_cmp(&dot(b, b))).unwrap();
    vec![first, direction(&longest, &[0.0; 3])]
}
