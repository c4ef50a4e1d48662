//! Word problems of groups that are not solvable, by reflections of one head's state: the swaps of S5 by one a token, all of A5
//! by two.
//!
//! As released, the keys of delta rules come through a SiLU, so that those which are exact, being long, are nowhere
//! negative. A swap of five things as the corners of a simplex would need keys of both signs: of three swaps of three things
//! the keys lie in a plane, 60° apart, and the product of the three ⟨k, k'⟩ is −1/8. With signs beside the five things no
//! such keys are needed.

use crate::{
    BIG,
    machine::{LONG, Machine},
};
use std::collections::HashMap;
use tapezoo::{
    autograd::Gen,
    models::{Eigenvalues, ModelConfig},
};

type Vector = Vec<f64>;
/// The keys of a token, of length 1, one for each of its steps; none, if it keeps the state.
type Keys = Vec<Vector>;

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn close(a: &[f64], b: &[f64]) -> bool {
    a.iter().zip(b).all(|(x, y)| (x - y).abs() < 1e-6)
}

/// Its place among the vectors that are known, to which it is added if it is new.
fn place(known: &mut Vec<Vector>, x: Vector) -> usize {
    known.iter().position(|other| close(other, &x)).unwrap_or_else(|| {
        known.push(x);
        known.len() - 1
    })
}

/// x with SiLU(x) = y, for y from 0 on.
fn before_silu(y: f64) -> f32 {
    (0..100).fold(y, |x, _| y * (1.0 + (-x).exp())) as f32
}

/// One head that reflects by the keys of each token. The values are c times the keys: S ← (I − 2 k kᵀ) S + 2 c k kᵀ takes c I −
/// S to (I − 2 k kᵀ) (c I − S), so that S = c I − c P after a product P of reflections. It is read by c (q − Pᵀ q), and w
/// of that is the output. The norm between hides how long it is, unless c is so small that its ε does not let it.
fn reflecting(name: &str, eigenvalues: Eigenvalues, keys: &[Keys], q: &[f64], w: &[f64], c: f64) -> Machine {
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
        let (key, value) = (by_key(&|x| x as f32), by_key(&|x| (2.0 * c * x) as f32)); // k vᵀ is 2 c k kᵀ
        return machine.set("key_weight", &key).set("value_weight", &value);
    }
    let copies = if name == "mom" { 5 } else { 1 }; // MoM has five memories, and its router no preference
    let (w_k, w_v) = (by_key(&|x| BIG * x as f32), by_key(&|x| before_silu(c * x)));
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
fn places(keys: &[Keys], q: &[f64], tokens: &[u8], of: usize) -> Vec<usize> {
    let unit = |i: usize| (0..q.len()).map(|j| f64::from(u8::from(i == j))).collect();
    let (mut m, mut known): (Vec<Vector>, _) = ((0..q.len()).map(unit).collect(), vec![]);
    let mut after = |token: &u8| {
        for k in &keys[usize::from(*token)] {
            for row in &mut m {
                let along = dot(row, k);
                row.iter_mut().zip(k).for_each(|(x, k)| *x -= 2.0 * along * k);
            }
        }
        place(&mut known, m.iter().map(|row| dot(row, q)).collect())
    };
    let places: Vec<usize> = tokens.iter().map(&mut after).collect();
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

/// The output tells where q is, after every token and in every form; in one alone, if it is `quick`. The outputs of one place
/// are `apart` at most. With the same weights they overlap, where eigenvalues cannot be negative.
fn assert_tells(
    name: &str,
    weights: [&[f64]; 2],
    c: f64,
    keys: &[Keys],
    tokens: &[u8],
    places: &[usize],
    quick: bool,
    apart: f32,
) {
    let [q, w] = weights;
    let machine = reflecting(name, Eigenvalues::Signed, keys, q, w, c);
    let ways = machine.ways();
    for &(form, piece) in &ways[if quick { ways.len() - 1 } else { 0 }..] {
        let (spread, gap) = spread_and_gap(&machine.outputs(tokens, form, piece), places);
        let said = format!("{name}, {form}, pieces of {piece}: one place {spread:e} apart, two places {gap:e}");
        assert!(spread <= apart && gap > 0.0, "{said}");
    }
    let positive = reflecting(name, Eigenvalues::Positive, keys, q, w, c);
    let (form, piece) = ways[ways.len() - 1];
    let (_, gap) = spread_and_gap(&positive.outputs(tokens, form, piece), places);
    assert!(gap < 0.0, "{name} with eigenvalues from 0 on tells two places apart, by {gap:e}");
}

fn random_tokens(n: usize, of: usize) -> Vec<u8> {
    let mut g = Gen::new(1);
    (0..n).map(|_| g.below(of) as u8).collect()
}

/// Things are orthogonal, and a swap of two is the reflection along their sum, which turns the signs of both: a thing is where
/// it is, whatever its sign. No entry is rounded, at any length.
#[test]
fn one_reflection_a_token_follows_the_swaps_of_s5() {
    let pairs = |which: &[usize]| (0..16).map(|i| if which.contains(&(i / 2)) { 0.5 } else { 0.0 }).collect::<Vector>();
    let swaps = (0..5).flat_map(|i| (0..i).map(move |j| vec![pairs(&[i, j])]));
    let keys: Vec<Keys> = [vec![]].into_iter().chain(swaps).collect();
    let tokens = random_tokens(LONG, keys.len());
    let w: Vector = (0..16).map(|i| [1.0, 2.3, 3.9, 5.1, 7.4, 0.0, 0.0, 0.0][i / 2]).collect();
    for name in ["delta_net", "gated_delta_net", "kda", "mom", "rwkv7"] {
        let c = if name == "rwkv7" { 1.0 / 1024.0 } else { f64::from(BIG) };
        for thing in 0..5 {
            // DeltaNet for as long as it tracks parity; a tenth of that for the other mixers and things.
            let tokens = if name == "delta_net" && thing == 0 { &tokens } else { &tokens[..LONG / 10] };
            let q = pairs(&[thing]);
            let places = places(&keys, &q, tokens, 10);
            assert_tells(name, [&q, &w], c, &keys, tokens, &places, thing > 0, 0.0);
        }
    }
}

fn quaternion(a: &[f64], b: &[f64]) -> Vector {
    let row = |signs: [f64; 4], at: [usize; 4]| (0..4).map(|i| signs[i] * a[i] * b[at[i]]).sum();
    vec![
        row([1.0, -1.0, -1.0, -1.0], [0, 1, 2, 3]),
        row([1.0, 1.0, 1.0, -1.0], [1, 0, 3, 2]),
        row([1.0, -1.0, 1.0, 1.0], [2, 3, 0, 1]),
        row([1.0, 1.0, -1.0, 1.0], [3, 2, 1, 0]),
    ]
}

/// Two keys x, y, nowhere negative, with x ȳ = ±p. One is a unit vector e, the other |p e|.
fn two_keys(p: &[f64]) -> Keys {
    let units = (0..4).map(|i| (0..4).map(|j| f64::from(u8::from(i == j))).collect::<Vector>());
    let both = units.flat_map(|e| {
        let other: Vector = quaternion(p, &e).iter().map(|x| x.abs()).collect();
        [vec![e.clone(), other.clone()], vec![other, e]]
    });
    let fits = |keys: &Keys| {
        let conjugate: Vector = keys[1].iter().enumerate().map(|(i, y)| if i == 0 { *y } else { -y }).collect();
        let product = quaternion(&keys[0], &conjugate);
        close(&product, p) || close(&product, &p.iter().map(|x| -x).collect::<Vector>())
    };
    both.into_iter().find(fits).unwrap()
}

/// A5 is the rotations of an icosahedron, which are quaternions p up to their sign. Reflections of four dimensions along y and
/// then x take h to x ȳ h ȳ x: p times h, times something that does not matter. Keys and states are rounded here.
#[test]
fn two_reflections_a_token_follow_a5() {
    let phi = (1.0 + 5f64.sqrt()) / 2.0;
    let generators = [[0.5, 0.5, 0.5, 0.5], [phi / 2.0, 0.5 / phi, 0.5, 0.0]];
    let mut all = vec![vec![1.0, 0.0, 0.0, 0.0]];
    for next in 0..120 {
        let products = generators.map(|g| quaternion(&all[next], &g));
        products.into_iter().for_each(|p| _ = place(&mut all, p));
    }
    assert_eq!(all.len(), 120, "the group over A5");
    // Of p and −p the one whose first part that is not zero is positive.
    let sign = |p: &[f64]| p.iter().find(|x| x.abs() > 1e-6).unwrap().signum();
    let upright = |p: &[f64]| p.iter().map(|x| x * sign(p)).collect::<Vector>();
    let mut elements = vec![];
    all.iter().for_each(|p| _ = place(&mut elements, upright(p)));
    assert_eq!(elements.len(), 60, "A5");

    let keys: Vec<Keys> = elements.iter().map(|p| two_keys(p)).collect();
    let tokens = random_tokens(LONG / 10, 60);
    let (mut p, mut products) = (vec![1.0, 0.0, 0.0, 0.0], vec![]);
    for &token in &tokens {
        p = upright(&quaternion(&p, &elements[usize::from(token)]));
        products.push(place(&mut elements, p.clone()));
    }
    // Of all directions that were tried this one has the 120 places furthest apart.
    let w = [0.23990173, 0.75083036, 0.53228158, 0.30883205];
    let mut found = vec![vec![]; tokens.len()];
    for i in 0..4 {
        let q: Vector = (0..4).map(|j| f64::from(u8::from(i == j))).collect();
        let places = places(&keys, &q, &tokens, 120);
        assert_tells("delta_product", [&q, &w], 2e-4, &keys, &tokens, &places, i > 0, 1e-4);
        found.iter_mut().zip(places).for_each(|(f, place)| f.push(place));
    }
    // The four places are those of one element of A5.
    let mut of = HashMap::new();
    let wrong =
        found.into_iter().zip(&products).filter(|(places, p)| of.entry(places.clone()).or_insert(**p) != *p).count();
    assert_eq!(wrong, 0, "products that have places of others");
}
