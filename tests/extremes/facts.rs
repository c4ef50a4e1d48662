//! The simple ops at the ends of their numbers' range, on the CPU and on the device, against formulas in double
//! precision: slopes where a function is flat, rows of huge and of tiny numbers, means that are large compared with
//! their spread, and elements that must not count, whatever they are.
//!
//! These are sharper than the judge of `ops.rs`, which allows for the rounding of inputs and of every result on the
//! way.

use crate::device::{all, evaluate, evaluate_by};
use approx::abs_diff_eq;
use std::{f64::consts::PI, panic};
use tapezoo::{
    autograd::{Gen, Kernels, Var},
    tensor::{DType, Device, Shape, Tensor},
};

const INF: f64 = f64::INFINITY;

fn places() -> impl Iterator<Item = (Device, DType)> {
    all().into_iter().flat_map(|device| [DType::F32, DType::F64].map(|dtype| (device, dtype)))
}

fn tensor(x: Vec<f64>, shape: impl Into<Shape>) -> Tensor {
    Tensor::from_vec(x, shape)
}

fn ints(v: &[i32]) -> Tensor {
    Tensor::from_vec(v.to_vec(), [v.len()])
}

/// `x` rounded to this type.
fn rounded(dtype: DType, x: f64) -> f64 {
    if dtype == DType::F32 { f64::from(x as f32) } else { x }
}

/// f32 numbers of either sign, away from zero.
fn away(g: &mut Gen, n: usize) -> Vec<f64> {
    (0..n).map(|_| rounded(DType::F32, g.uniform(0.5, 2.0) * if g.coin() { 1.0 } else { -1.0 })).collect()
}

#[track_caller]
fn close(what: &str, got: &[f64], want: &[f64], relative: f64, absolute: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let same = got == want || (got.is_nan() && want.is_nan());
        let near = abs_diff_eq!(got, want, epsilon = relative * want.abs() + absolute);
        assert!(same || near, "{what}: number {i} is {got:e}, not {want:e}");
    }
}

/// Assert a difference relative to the largest element.
#[track_caller]
fn close_to_scale(what: &str, got: &[f64], want: &[f64], tolerance: f64) {
    let scale = want.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
    close(what, got, want, 0.0, tolerance * scale);
}

fn sigma(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// f(x) and its slope, whose limits are 0 and 0 on the left, x and 1 on the right.
fn within(far: f64, x: f64, f: impl Fn() -> (f64, f64)) -> (f64, f64) {
    match x {
        x if x < -far => (0.0, 0.0),
        x if x > far => (x, 1.0),
        _ => f(),
    }
}

fn silu(x: f64) -> (f64, f64) {
    within(750.0, x, || (x * sigma(x), sigma(x) + x * sigma(x) * sigma(-x)))
}

fn gelu_tanh(x: f64) -> (f64, f64) {
    let (root, z) = ((8.0 / PI).sqrt(), x * x);
    let u = root * x * (1.0 + 0.044715 * z);
    within(30.0, x, || (x * sigma(u), sigma(u) + x * sigma(u) * sigma(-u) * root * (1.0 + 3.0 * 0.044715 * z)))
}

fn gelu(x: f64) -> (f64, f64) {
    let cdf = 0.5 * libm::erfc(-x / 2f64.sqrt());
    within(40.0, x, || (x * cdf, cdf + x * (-0.5 * x * x).exp() / (2.0 * PI).sqrt()))
}

type Function = (&'static str, for<'t> fn(Var<'t>) -> Var<'t>, fn(f64) -> (f64, f64));

/// With other ops that implement the same function, on a column of numbers.
const FUNCTIONS: [Function; 13] = [
    ("exp", |x| x.exp(), |x| (x.exp(), x.exp())),
    ("expm1", |x| x.expm1(), |x| (x.exp_m1(), x.exp())),
    ("sigmoid", |x| x.sigmoid(), |x| (sigma(x), sigma(x) * sigma(-x))),
    ("tanh", |x| x.tanh(), |x| (x.tanh(), 4.0 * sigma(2.0 * x) * sigma(-2.0 * x))),
    ("softplus", |x| x.softplus(), |x| (x.max(0.0) + (-x.abs()).exp().ln_1p(), sigma(x))),
    ("elu", |x| x.elu(), |x| if x > 0.0 { (x, 1.0) } else { (x.exp_m1(), x.exp()) }),
    ("elu1", |x| x.elu1(), |x| if x > 0.0 { (x + 1.0, 1.0) } else { (x.exp(), x.exp()) }),
    ("silu", |x| x.silu(), silu),
    ("gelu", |x| x.gelu(), gelu),
    ("gelu_tanh", |x| x.gelu_tanh(), gelu_tanh),
    ("gated_skip", |x| filled(x, 1.0).gated_skip(none(x), filled(x, 0.0), x), silu),
    ("glu by its gate", |x| Var::concat(&[filled(x, 1.0), x], 1).glu(), |x| (sigma(x), sigma(x) * sigma(-x))),
    ("glu by what it lets through", |x| Var::concat(&[x, filled(x, 40.0)], 1).glu(), |x| (x, 1.0)),
];

fn filled<'t>(x: Var<'t>, value: f64) -> Var<'t> {
    x.tape().full(x.shape(), x.dtype(), value)
}

fn none(x: Var) -> Var {
    x.tape().full([1], x.dtype(), 0.0)
}

#[test]
fn functions_and_their_slopes_are_right_however_far_out() {
    let mut x: Vec<f64> =
        [1e-30, 1e-3, 0.3, 1.0, 2.5, 5.0, 9.0, 15.0, 20.0, 40.0, 87.5, 89.0, 91.0, 1e3, 1e10, 1.9e19, 1e20, 1e38, INF]
            .into_iter()
            .flat_map(|x| [x, -x])
            .map(|x| rounded(DType::F32, x))
            .collect();
    x.extend([0.0, -0.0, f64::NAN]);
    for (device, dtype) in places() {
        for (name, f, formula) in FUNCTIONS {
            let column = [tensor(x.clone(), [x.len(), 1])];
            let got = evaluate(device, dtype, &column, None, |x| f(x[0]));
            let want =
                |i: usize| x.iter().map(|&x| rounded(dtype, <[f64; 2]>::from(formula(x))[i])).collect::<Vec<_>>();
            let (relative, absolute) = if dtype == DType::F32 { (2e-5, 1.2e-38) } else { (1e-12, 1e-300) };
            for (i, what) in ["value", "slope"].into_iter().enumerate() {
                close(
                    &format!("{name} in {dtype} on {device}, {what} of {x:?}"),
                    &got[i],
                    &want(i),
                    relative,
                    absolute,
                );
            }
        }
    }
}

#[test]
fn functions_in_bf16_are_finite_where_they_should_be() {
    let Some(device) = crate::device::device() else { return };
    let x = [1e10, 1e20, 3e38, INF].into_iter().flat_map(|x| [x, -x]).collect::<Vec<_>>();
    for (name, f, formula) in &FUNCTIONS[1..] {
        let got = evaluate(device, DType::BF16, &[tensor(x.clone(), [x.len(), 1])], None, |x| f(x[0]));
        let want =
            |i: usize| x.iter().map(|&x| rounded(DType::F32, <[f64; 2]>::from(formula(x))[i])).collect::<Vec<_>>();
        (0..2).for_each(|i| close(&format!("{name} in bf16 of {x:?}"), &got[i], &want(i), 1e-2, 1e-37));
    }
}

#[test]
fn a_batch_without_a_target_has_no_loss_and_no_gradient() {
    for (device, dtype) in places() {
        for (smoothing, n) in [(0.0, 2), (0.1, 2), (0.0, 5), (0.1, 5)] {
            let x = [Gen::new(1).normal([3, n])];
            let got = evaluate(device, dtype, &x, None, |x| {
                let targets = x[0].tape().constant(&ints(&[-100; 3]));
                x[0].cross_entropy_smoothed(targets, -100, smoothing)
            });
            assert_eq!(got, [vec![0.0], vec![0.0; 3 * n]], "{dtype} on {device}, smoothing {smoothing}");
        }
    }
}

#[test]
fn what_a_softmax_does_not_see_has_no_effect_whatever_it_is() {
    for (device, dtype) in places() {
        for n in [1, 3, 8, 16, 19, 70] {
            let g = &mut Gen::new(n as u64);
            let (x, u) = (g.normal([2, n, n]).to_f64(), g.normal([2, n, n]).to_f64());
            let hidden = |i: usize| i % n > i / n % n;
            let with = |x: &[f64], value: f64| {
                let hide = |(i, &x): (usize, &f64)| if hidden(i) { value } else { x };
                tensor(x.iter().enumerate().map(hide).collect(), [2, n, n])
            };
            let run = |x, u, f: for<'t> fn(&[Var<'t>]) -> Var<'t>| evaluate(device, dtype, &[x], Some(&u), f);
            let tame = run(with(&x, 0.0), with(&u, 0.0), |x| x[0].causal_softmax(0));
            for value in [f64::NAN, INF, -INF] {
                let what = format!("{n} columns, {dtype} on {device}, {value} where nobody looks");
                let wild = run(with(&x, value), with(&u, value), |x| x[0].causal_softmax(0));
                assert_eq!(wild, tame, "{what}");
                // Masked by −∞ instead.
                let masked = run(with(&x, -INF), with(&u, value), |x| x[0].softmax());
                let tolerance = if dtype == DType::F32 { 1e-6 } else { 1e-14 };
                masked.iter().zip(&tame).for_each(|(got, want)| close(&what, got, want, tolerance, tolerance));
                assert!((0..2 * n * n).all(|i| !hidden(i) || (masked[0][i] == 0.0 && masked[1][i] == 0.0)), "{what}");
            }
        }
    }
}

#[test]
fn the_logarithm_of_a_sum_of_exponentials_of_infinite_numbers() {
    for ((device, dtype), kernels) in places().flat_map(|here| [Kernels::Fast, Kernels::Plain].map(|by| (here, by))) {
        for n in [3, 16, 40] {
            let rows = [[-INF, -INF], [-INF, 1.0], [INF, 1.0], [INF, -INF], [f64::NAN, INF], [f64::NAN, -INF]];
            let x = rows.iter().flat_map(|r| [vec![r[0]], vec![r[1]; n - 1]].concat()).collect();
            let x = [tensor(x, [6, n])];
            let got = evaluate_by(kernels.clone(), device, dtype, &x, None, |x| x[0].logsumexp());
            let what = format!("{n} numbers in {dtype} on {device}, kernels {kernels}");
            let value = 1.0 + ((n - 1) as f64).ln();
            close(&what, &got[0], &[-INF, value, INF, INF, f64::NAN, f64::NAN], 1e-6, 0.0);
            let row = |first: f64, others: f64| [vec![first], vec![others; n - 1]].concat();
            let nan = f64::NAN;
            let slopes = [
                row(0.0, 0.0),
                row(0.0, 1.0 / (n - 1) as f64),
                row(nan, 0.0),
                row(nan, 0.0),
                row(nan, nan),
                row(nan, nan),
            ];
            close(&what, &got[1], &slopes.concat(), 1e-6, 0.0);
        }
    }
}

#[test]
fn rows_that_do_not_count_add_nothing_to_the_loss_whatever_they_hold() {
    for (device, dtype) in places() {
        for (n, smoothing) in [(2, 0.0), (2, 0.1), (3, 0.0), (19, 0.0), (19, 0.1), (80, 0.0)] {
            let rows = 20;
            let x = Gen::new(3).normal([rows, n]).to_f64();
            let targets: Vec<i32> = (0..rows).map(|i| if i % 3 == 1 { -1 } else { (i % n) as i32 }).collect();
            // The op runs twice, so that gradients are added too.
            let run = |value: f64| {
                let counts = |i: usize| targets[i / n] >= 0;
                let x = x.iter().enumerate().map(|(i, &x)| if counts(i) { x } else { value }).collect();
                evaluate(device, dtype, &[tensor(x, [rows, n]), ints(&targets)], None, |x| {
                    x[0].cross_entropy_smoothed(x[1], -1, smoothing) + x[0].cross_entropy_smoothed(x[1], -1, smoothing)
                })
            };
            let tame = run(0.0);
            assert!(
                tame[1].chunks(n).zip(&targets).all(|(d, &t)| t >= 0 || d.iter().all(|&d| d == 0.0)),
                "targets {targets:?}, gradient {:?}",
                tame[1]
            );
            for value in [f64::NAN, INF, -INF, 1e38] {
                assert_eq!(run(value), tame, "{n} classes, {dtype} on {device}, smoothing {smoothing}, {value}");
            }
        }
    }
}

/// The loss of a confident model is small, and so is its gradient at the target: computed as p − 1 it would have no
/// digits.
#[test]
fn the_loss_of_a_sure_model_and_its_gradient_have_their_digits() {
    for (device, dtype) in places() {
        for (n, by, base) in [(2, 20.0, 0.0), (3, 25.0, 1000.0), (19, 17.0, -300.0), (80, 12.0, 0.0), (3, 2.0, 1e4)] {
            let x = (0..n).map(|j| if j == 1 { base + by } else { base - (j % 3) as f64 }).collect::<Vec<_>>();
            let others: Vec<f64> =
                x.iter().map(|x| if *x == base + by { 0.0 } else { (x - base - by).exp() }).collect();
            let sum: f64 = others.iter().sum();
            let mut slopes: Vec<f64> = others.iter().map(|e| e / (1.0 + sum)).collect();
            slopes[1] = -sum / (1.0 + sum);
            let got = evaluate(device, dtype, &[tensor(x, [1, n]), ints(&[1])], None, |x| x[0].cross_entropy(x[1], -1));
            let tolerance = if dtype == DType::F32 { 2e-6 } else { 1e-13 };
            close(&format!("loss of {n} classes, {dtype} on {device}"), &got[0], &[sum.ln_1p()], tolerance, 0.0);
            close(&format!("slope of {n} classes, {dtype} on {device}"), &got[1], &slopes, tolerance, 0.0);
        }
        // A target of probability 0: an infinite loss, with a gradient that reduces it. Of another class that is
        // nothing.
        for kernels in [Kernels::Fast, Kernels::Plain] {
            let loss = |target: i32| {
                let x = [tensor(vec![-INF, 0.0, 0.0], [1, 3]), ints(&[target])];
                evaluate_by(kernels.clone(), device, dtype, &x, None, |x| x[0].cross_entropy(x[1], -1))
            };
            let what = format!("{dtype} on {device}, kernels {kernels}");
            assert_eq!(loss(0), [vec![INF], vec![-1.0, 0.5, 0.5]], "{what}");
            let of_another = loss(1);
            close(&what, &of_another[0], &[2f64.ln()], 1e-6, 0.0);
            close(&what, &of_another[1], &[0.0, -0.5, 0.5], 1e-6, 0.0);
        }
    }
}

type Norm = for<'t> fn(&[Var<'t>]) -> Var<'t>;

const NORMS: [(&str, Norm); 4] = [
    ("layer_norm", |x| x[0].layer_norm(x[1], Some(x[1]), 0.0)),
    ("rms_norm", |x| x[0].rms_norm(x[1], 0.0)),
    ("l2_norm", |x| x[0].l2_norm(0.0) * x[1]),
    ("l2_norm_smooth", |x| x[0].l2_norm_smooth(0.0) * x[1]),
];

/// A row times a power of two has the same norm, and its gradient is divided by it.
#[test]
fn norms_of_huge_and_tiny_rows_are_those_of_ordinary_ones() {
    for (device, dtype) in places() {
        let powers = if dtype == DType::F32 { [0, 70, -70, 120, -110] } else { [0, 600, -600, 1000, -900] };
        let tolerance = if dtype == DType::F32 { 1e-5 } else { 1e-12 };
        for n in [3, 4, 5, 16, 40, 300] {
            let (rows, g) = (40, &mut Gen::new(n as u64));
            let (x, w, u) = (away(g, rows * n), tensor(away(g, n), [n]), tensor(away(g, rows * n), [rows, n]));
            let scale = |i: usize| 2f64.powi(powers[i / n % 5]);
            let wild: Vec<f64> = x.iter().enumerate().map(|(i, x)| x * scale(i)).collect();
            for (name, norm) in NORMS {
                let what = format!("{name} of {n} numbers in {dtype} on {device}");
                let run = |device, dtype, x: &[f64]| {
                    evaluate(device, dtype, &[tensor(x.to_vec(), [rows, n]), w.clone()], Some(&u), norm)
                };
                let (mut got, want, tame) =
                    (run(device, dtype, &wild), run(Device::Cpu, DType::F64, &x), run(device, dtype, &x));
                // The other rows keep every bit.
                for i in (0..rows * n).filter(|&i| powers[i / n % 5] == 0) {
                    assert_eq!([got[0][i], got[1][i]], [tame[0][i], tame[1][i]], "{what}");
                }
                got[1].iter_mut().enumerate().for_each(|(i, d)| *d *= scale(i));
                for (i, part) in ["value", "dx", "dw"].into_iter().enumerate() {
                    close_to_scale(&format!("{what}: {part}"), &got[i], &want[i], tolerance);
                }
            }
        }
    }
}

/// Multiples of the mean's last digit, so that adding the mean does not round.
#[test]
fn a_mean_that_is_large_beside_the_spread_is_subtracted_with_all_its_digits() {
    for (device, dtype) in places() {
        let (mean, place) =
            if dtype == DType::F32 { (8192.0, 2f64.powi(-10)) } else { (2f64.powi(40), 2f64.powi(-12)) };
        let tolerance = if dtype == DType::F32 { 2e-6 } else { 1e-10 };
        for n in [3, 4, 16, 40, 300] {
            let (rows, g) = (40, &mut Gen::new(n as u64));
            let x: Vec<f64> = (0..rows * n).map(|_| place * (g.below(101) as f64 - 50.0)).collect();
            let (w, u) = (tensor(away(g, n), [n]), tensor(away(g, rows * n), [rows, n]));
            // Every other row, so that both kinds are next to each other.
            let far = x.iter().enumerate().map(|(i, x)| x + if i / n % 2 == 0 { mean } else { 0.0 }).collect();
            let run = |device, dtype, x: Vec<f64>| {
                evaluate(device, dtype, &[tensor(x, [rows, n]), w.clone()], Some(&u), |x| {
                    x[0].layer_norm(x[1], None, 1e-9)
                })
            };
            let (got, want) = (run(device, dtype, far), run(Device::Cpu, DType::F64, x));
            for (i, part) in ["value", "dx", "dw"].into_iter().enumerate() {
                close_to_scale(&format!("{n} numbers in {dtype} on {device}: {part}"), &got[i], &want[i], tolerance);
            }
        }
    }
}

#[test]
fn a_row_that_is_no_number_leaves_the_others() {
    for (device, dtype) in places() {
        for n in [3, 4, 40] {
            let (x, w) = (away(&mut Gen::new(1), 40 * n), tensor(vec![1.0; n], [n]));
            for (name, norm) in NORMS {
                let run = |value: Option<f64>| {
                    let mut x = x.clone();
                    x[7 * n] = value.unwrap_or(x[7 * n]);
                    let all = evaluate(device, dtype, &[tensor(x, [40, n]), w.clone()], None, norm);
                    all[..2].iter().flat_map(|x| [&x[..7 * n], &x[8 * n..]].concat()).collect::<Vec<_>>()
                };
                for value in [f64::NAN, INF] {
                    assert_eq!(run(Some(value)), run(None), "{name} of {n} numbers in {dtype} on {device}, {value}");
                }
            }
        }
    }
}

#[test]
fn a_quotient_has_its_gradient_where_squares_overflow() {
    for (device, dtype) in places() {
        let by = if dtype == DType::F32 { 1 } else { 8 };
        for powers in [[100, 80], [-100, -80], [90, 60], [0, 0], [-60, -70]] {
            let [i, j] = powers.map(|p| 2f64.powi(p * by));
            let g = &mut Gen::new(5);
            let (a, b) = (away(g, 70), away(g, 70));
            let times = |x: &[f64], by: f64| tensor(x.iter().map(|x| x * by).collect(), [70]);
            let got = evaluate(device, dtype, &[times(&a, i), times(&b, j)], None, |x| x[0] / x[1]);
            let both = a.iter().zip(&b);
            let want = both.map(|(a, b)| [a / b * (i / j), 1.0 / b / j, -a / (b * b) * (i / j / j)]);
            let (want, tolerance) = (want.collect::<Vec<_>>(), if dtype == DType::F32 { 1e-6 } else { 1e-14 });
            for (k, got) in got.iter().enumerate() {
                let want: Vec<f64> = want.iter().map(|want| want[k]).collect();
                close(&format!("{powers:?}, {k} in {dtype} on {device}"), got, &want, tolerance, 0.0);
            }
        }
    }
}

/// Sums over time: later elements do not affect earlier results, and no tap is multiplied with elements outside its
/// window.
#[test]
fn a_convolution_and_a_running_sum_do_not_look_ahead() {
    for (device, dtype) in places() {
        for (d, taps, t) in [(5, 3, 8), (40, 4, 8), (17, 6, 8), (3, 9, 2), (40, 1, 3), (33, 5, 70)] {
            let g = &mut Gen::new(2);
            let (x, w) = (g.normal([2, t, d]), g.normal([d, taps]));
            let (state, u) = (g.normal([2, taps - 1, d]), g.normal([2, t, d]));
            let run = |x: Vec<f64>, state: Vec<f64>| {
                let all = [tensor(x, [2, t, d]), w.clone(), tensor(state, [2, taps - 1, d])];
                evaluate(device, dtype, &all, Some(&u), |x| x[0].causal_conv1d(x[1], None, x[2]))
            };
            let (x, state) = (x.to_f64(), state.to_f64());
            let tame = run(x.clone(), state.clone());
            let what = format!("{d} channels, {taps} taps, {t} steps, {dtype} on {device}");
            for value in [f64::NAN, INF] {
                // The last step, which only the last tap meets.
                let mut later = x.clone();
                later[(t - 1) * d..t * d].fill(value);
                let got = run(later, state.clone());
                assert_eq!(got[0][..(t - 1) * d], tame[0][..(t - 1) * d], "{what}");
                for i in (0..d * taps).filter(|i| i % taps < taps - 1) {
                    assert_eq!(got[2][i], tame[2][i], "{what}: tap {}", i % taps);
                }
                if taps > 1 {
                    // The first of the state, which only the first tap meets.
                    let mut early = state.clone();
                    early[..d].fill(value);
                    let got = run(x.clone(), early);
                    assert_eq!(got[0][d..], tame[0][d..], "{what}");
                    for i in (0..d * taps).filter(|i| i % taps > 0) {
                        assert_eq!(got[2][i], tame[2][i], "{what}: tap {}", i % taps);
                    }
                }
            }
            let sum = |x: Vec<f64>| evaluate(device, dtype, &[tensor(x, [2, t, d])], None, |x| x[0].cumsum(1));
            let mut later = x.clone();
            later[(t - 1) * d..t * d].fill(f64::NAN);
            assert_eq!(sum(later)[0][..(t - 1) * d], sum(x)[0][..(t - 1) * d], "{what}");
        }
    }
}

/// The same for integers that the device itself has moved.
#[test]
fn an_index_out_of_range_is_the_same_error_everywhere() {
    let complaint = |device, f: for<'t> fn(&[Var<'t>]) -> Var<'t>, id: i32| {
        let x = [Gen::new(1).normal([3, 5]), ints(&[1, id, 2])];
        let run = || evaluate(device, DType::F32, &x, None, f);
        let why = panic::catch_unwind(panic::AssertUnwindSafe(run)).expect_err("an id that is not there");
        why.downcast_ref::<String>().unwrap().clone()
    };
    let formulas: [for<'t> fn(&[Var<'t>]) -> Var<'t>; 4] = [
        |x| x[0].embedding(x[1]),
        |x| x[0].gather(x[1]),
        |x| x[0].cross_entropy(x[1], -1),
        |x| x[0].embedding(Var::concat(&[x[1].narrow(0, 1, 2), x[1]], 0).reshape([5, 1])),
    ];
    for (f, id) in formulas.into_iter().flat_map(|f| [-7, 7, i32::MAX, i32::MIN].map(|id| (f, id))) {
        let want = complaint(Device::Cpu, f, id);
        assert!(want.contains(&id.to_string()), "{want}");
        for device in all() {
            assert_eq!(complaint(device, f, id), want);
        }
    }
}

/// Where an angle has no digits for turns any angle will do, but no larger number.
#[test]
fn an_angle_less_whole_turns_is_within_half_a_turn() {
    let x: Vec<f64> = (0..200).map(|i| 10f64.powf(f64::from(i) / 6.0) * if i % 2 == 0 { 1.0 } else { -1.0 }).collect();
    for (device, dtype) in places() {
        let y = evaluate(device, dtype, &[tensor(x.clone(), [200])], None, |x| x[0].wrap()).swap_remove(0);
        let most = if dtype == DType::F32 { f64::from(std::f32::consts::PI) } else { PI };
        assert!(y.iter().all(|y| y.abs() <= most), "{dtype} on {device}: {y:?}");
    }
}
