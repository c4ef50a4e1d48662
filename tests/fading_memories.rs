//! The two memories that most mixers use, in parallel and in chunks, beside their recurrence; and log-linear attention,
//! which is one of them over each of log T stretches.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use tapezoo::{
    autograd::{Gen, Kernels, Tape, Var},
    models::{
        Form, log_linear,
        memories::{erasing, gated},
    },
    tensor::{DType, Tensor},
};

/// q, k, v, (p,) g and S.
fn inputs(g: &mut Gen, erases: bool, [t, k, v, gates]: [usize; 4], gate: fn(&mut Gen) -> f64) -> Vec<Tensor> {
    let key = [2, t, 2, k];
    let unit = |g: &mut Gen| g.tensor(key, |g| f64::from((g.gauss() / (k as f64).sqrt()) as f32));
    let mut all = vec![unit(g), unit(g), g.tensor([2, t, 2, v], |g| f64::from(g.gauss() as f32))];
    all.extend(erases.then(|| unit(g)));
    all.push(g.tensor([2, t, 2, gates], |g| f64::from(gate(g) as f32)));
    all.push(g.tensor([2, 2, k, v], |g| f64::from(g.gauss() as f32)));
    all
}

fn run<'t>(x: &[Var<'t>], form: Form) -> [Var<'t>; 2] {
    let (o, s) = match *x {
        [q, k, v, g, s] => gated([q, k, v, g], s, 0.7, form),
        [q, k, v, p, g, s] => erasing([q, k, v, p, g], s, 0.7, form),
        _ => panic!("{} inputs", x.len()),
    };
    [o, s]
}

/// Small memories go step by step, unless they are told to go by products of chunks.
const KERNELS: [&str; 2] = ["fast", "fast,-gated_linear_attention.fused,-erase_write.fused"];

fn tape(kernels: &str) -> Tape {
    Tape::default().with_kernels(kernels.parse::<Kernels>().unwrap())
}

/// o, S and all gradients.
fn everything(x: &[Tensor], form: Form, dtype: DType, kernels: &str) -> Vec<Vec<f64>> {
    let tape = tape(kernels);
    let x: Vec<Var> = x.iter().map(|x| tape.leaf(&x.cast(dtype))).collect();
    let y = run(&x, form);
    let mut g = Gen::new(3);
    let values: Vec<Vec<f64>> = y.iter().map(|y| y.value().to_f64()).collect();
    tape.backward_from(y.map(|y| (y, g.normal(y.shape()).cast(dtype))));
    let grads = x.iter().map(|x| x.grad().map_or(vec![0.0; x.shape().len()], |g| g.to_f64()));
    values.into_iter().chain(grads).collect()
}

fn error(got: &[Vec<f64>], want: &[Vec<f64>]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let of = |(a, b): (&Vec<f64>, &Vec<f64>)| {
        assert_eq!(a.len(), b.len());
        let off = norm(&mut a.iter().zip(b).map(|(a, b)| a - b));
        if off == 0.0 { 0.0 } else { off / norm(&mut b.iter().copied()) }
    };
    got.iter().zip(want).map(of).fold(0.0, |worst, x| if x > worst || x.is_nan() { x } else { worst })
}

/// Half of the gates next to nothing, half in [−12, 0], and some that forget all, to rounding or altogether.
fn steep(g: &mut Gen) -> f64 {
    match g.below(20) {
        0 => -60.0,
        1 => f64::NEG_INFINITY,
        2..=10 => g.uniform(-12.0, 0.0),
        _ => 0.0,
    }
}

/// Two sequences in two parts are whole, in five they are three runs each, and in 90 runs of a step where there are so few.
const CHUNKS: [Form; 8] = [
    Form::Parallel,
    Form::Chunked(1),
    Form::Chunked(5),
    Form::Chunked(16),
    Form::Chunked(64),
    Form::Split(2),
    Form::Split(5),
    Form::Split(90),
];

fn forms() -> impl Iterator<Item = (Form, &'static str)> {
    CHUNKS.into_iter().flat_map(|form| KERNELS.map(|by| (form, by)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_chunk_is_the_recurrence(seed in any::<u64>(), t in 0usize..40, scalar in any::<bool>(), erases in any::<bool>()) {
        let g = &mut Gen::new(seed);
        let least = if g.coin() { 0 } else { 16 }; // small memories go step by step, whatever the chunk
        let (k, v) = (least + g.size(6), least + g.size(6));
        let x = inputs(g, erases, [t, k, v, if scalar { 1 } else { k }], steep);
        let want = everything(&x, Form::Recurrent, DType::F64, "fast");
        for (form, by) in forms() {
            let off = error(&everything(&x, form, DType::F64, by), &want);
            prop_assert!(off < 1e-12, "{form} by {by}, {t} steps: off by {off:.1e}");
        }
    }

    /// A change at a later step changes no bit of an earlier output.
    #[test]
    fn what_comes_later_reaches_nothing_before(seed in any::<u64>(), t in 2usize..40, erases in any::<bool>(), wide in any::<bool>()) {
        let g = &mut Gen::new(seed);
        let (k, v, scalar) = (if wide { 18 } else { 4 }, if wide { 17 } else { 3 }, g.coin());
        let x = inputs(g, erases, [t, k, v, if scalar { 1 } else { k }], steep);
        let (cut, which) = (1 + g.below(t - 1), g.below(x.len() - 1));
        let mut changed = x.clone();
        let inner = x[which].shape().len() / (2 * t);
        let later = |i: usize| i / inner % t >= cut;
        let spoilt = x[which].to_f64().iter().enumerate().map(|(i, &x)| if later(i) { f64::NAN } else { x }).collect();
        changed[which] = Tensor::from_vec::<f64>(spoilt, x[which].shape());
        for (form, by) in forms() {
            let read = |x: &[Tensor]| {
                let tape = tape(by);
                let x: Vec<Var> = x.iter().map(|x| tape.constant(x)).collect();
                run(&x, form)[0].narrow(1, 0, cut).value().to_f64()
            };
            prop_assert_eq!(read(&x), read(&changed), "{} by {}, from step {}, input {}", form, by, cut, which);
        }
    }
}

/// With β = 0 nothing is written; with β = 1, one key and orthogonal keys hold exactly their last value.
#[test]
fn special_keys_erase_as_they_should() {
    let (t, k, v) = (37, 20, 24);
    let keys = |f: &dyn Fn(usize) -> Option<usize>| {
        let mut rows = vec![0.0; 2 * t * 2 * k];
        let ones = (0..2 * t * 2).filter_map(|row| f(row / 2 % t).map(|at| row * k + at % k));
        ones.for_each(|at| rows[at] = 1.0);
        Tensor::from_vec(rows, [2, t, 2, k])
    };
    for (gates, by) in [1, k].into_iter().flat_map(|gates| KERNELS.map(|by| (gates, by))) {
        for (name, key) in [("no", keys(&|_| None)), ("one", keys(&|_| Some(0))), ("orthogonal", keys(&Some))] {
            for beta in [0.0, 1.0, 2.0] {
                let mut x = inputs(&mut Gen::new(8), true, [t, k, v, gates], |_| 0.0);
                (x[1], x[3]) = (
                    key.clone(),
                    Tensor::from_vec(key.to_f64().iter().map(|x| beta * x).collect::<Vec<_>>(), key.shape()),
                );
                x[2] = Tensor::from_vec(x[2].to_f64().iter().map(|x| beta * x).collect::<Vec<_>>(), x[2].shape());
                let want = everything(&x, Form::Recurrent, DType::F64, by);
                let got = everything(&x, Form::Chunked(20), DType::F64, by);
                assert!(error(&got, &want) < 1e-12, "{name} keys, beta {beta}, {gates} gates by {by}");
                let row = |x: &[f64], at: usize| x[at * v..][..v].to_vec();
                if beta == 0.0 || name == "no" {
                    assert_eq!(got[1], x[5].to_f64(), "{name} keys, beta {beta}: the memory stays");
                } else if beta == 1.0 {
                    let at = if name == "one" { 0 } else { (t - 1) % k };
                    let last = [row(&got[1], at), row(&x[2].to_f64(), 2 * (t - 1))].map(|x| vec![x]);
                    assert!(
                        error(&last[..1].concat(), &last[1..].concat()) < 1e-12,
                        "{name} keys hold their last value"
                    );
                }
            }
        }
    }
}

/// No sum of gates is a difference of longer ones, so that single precision keeps its digits behind any gate.
#[test]
fn single_precision_keeps_its_digits() {
    for erases in [false, true] {
        for (k, gates) in [(16, 1), (16, 16), (24, 1), (24, 24)] {
            let x = inputs(&mut Gen::new(5), erases, [128, k, 16, gates], steep);
            let want = everything(&x, Form::Recurrent, DType::F64, "fast");
            for (form, by) in forms() {
                let got = everything(&x, form, DType::F32, by);
                let values = error(&got[..2], &want[..2]);
                let gradients = error(&got[2..], &want[2..]);
                assert!(values < 1e-6, "{form} by {by}, erases {erases}, {gates} gates of {k}: off by {values:.1e}");
                assert!(
                    gradients < 1e-5,
                    "{form} by {by}, erases {erases}, {gates} gates of {k}: gradients off by {gradients:.1e}"
                );
            }
        }
    }
}

/// Its log T states are its matrix of T × T: the outputs, and what is left behind, wherever the sequence is cut; and
/// behind T tokens a level is empty or holds one stretch.
#[test]
fn log_linear_attention_is_a_recurrence_of_log_t_states() {
    let mut g = Gen::new(5);
    for t in [0, 1, 2, 3, 4, 7, 8, 9, 31, 32, 33] {
        for levels in [1, 2, log_linear::levels(t), log_linear::levels(t) + 1] {
            let key = [2, t, 2, 3];
            let mut x = vec![g.normal(key), g.normal(key), g.normal([2, t, 2, 4])];
            x.extend([g.range([2, t, 2], -0.5, 0.0), g.normal([2, t, 2, levels])]);
            let tape = Tape::new(tapezoo::tensor::Device::Cpu);
            let x: Vec<Var> = x.iter().map(|x| tape.constant(&x.cast(DType::F64))).collect();
            let part = |from: usize, n: usize| [0, 1, 2, 3, 4].map(|i| x[i].narrow(1, from, n));
            let whole = log_linear::attention(part(0, t), 0.7);
            let left = log_linear::states(x[1], x[2], x[3], levels);
            for cut in [0, t.min(1), t / 2, t] {
                let mut s = vec![tape.full([2, 2, 3, 4], DType::F64, 0.0); levels];
                let o =
                    [(0, cut), (cut, t - cut)].map(|(from, n)| log_linear::recurrent(part(from, n), &mut s, from, 0.7));
                let o = Var::concat(&o, 1);
                for (mine, other) in [(o, whole)].into_iter().chain(s.iter().copied().zip(left.iter().copied())) {
                    for (a, b) in mine.value().to_f64().iter().zip(other.value().to_f64()) {
                        assert!((a - b).abs() < 1e-12, "{t} tokens, {levels} levels, cut at {cut}: {a}, expected {b}");
                    }
                }
            }
            // As a binary number has a one for each stretch of the tokens before the last.
            let used = left.iter().skip(1).filter(|s| s.value().to_f64().iter().any(|&x| x != 0.0)).count();
            let ones = (0..levels - 1).filter(|bit| t.saturating_sub(1) >> bit & 1 == 1).count();
            assert_eq!(used, ones, "{t} tokens, {levels} levels");
        }
    }
}
