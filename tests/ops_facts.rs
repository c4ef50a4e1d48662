//! Facts about the basic ops that a gradient check cannot see: values against one-line definitions, invariances.
#![allow(clippy::unwrap_used)]

mod close;

use approx::relative_eq;
use close::all_close;
use proptest::prelude::*;
use tapezoo::{
    autograd::{Gen, Tape, Var},
    models::linear_cut,
    tensor::{DType, Shape, Tensor},
};

/// The value of a formula of the inputs, and its shape.
fn eval(inputs: &[&Tensor], f: impl for<'t> Fn(&[Var<'t>]) -> Var<'t>) -> Tensor {
    let tape = Tape::default();
    tape.poison(true);
    let x: Vec<_> = inputs.iter().map(|x| tape.constant(x)).collect();
    f(&x).value()
}

#[track_caller]
fn close(got: &Tensor, shape: impl Into<Shape>, want: &[f64]) {
    assert_eq!(got.shape(), shape.into());
    all_close(&got.to_f64(), want, 1e-12, "the value");
}

fn ints(v: &[i32], shape: impl Into<Shape>) -> Tensor {
    Tensor::from_vec(v.to_vec(), shape)
}

/// Row r of `n` entries.
fn row(x: &[f64], r: usize, n: usize) -> &[f64] {
    &x[r * n..(r + 1) * n]
}

/// One value per row.
fn by_row(x: &Tensor, f: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let (x, n) = (x.to_f64(), x.shape().last());
    x.chunks(n).map(f).collect()
}

/// One row per row of the input.
fn rows(x: &Tensor, f: impl Fn(usize, &[f64]) -> Vec<f64>) -> Vec<f64> {
    let (x, n) = (x.to_f64(), x.shape().last());
    x.chunks(n).enumerate().flat_map(|(i, x)| f(i, x)).collect()
}

fn naive_softmax(x: &[f64]) -> Vec<f64> {
    let sum: f64 = x.iter().map(|x| x.exp()).sum();
    x.iter().map(|x| x.exp() / sum).collect()
}

/// Parts of a product: W cut (few inputs), the result cut (few rows, or many inputs).
#[test]
fn a_product_in_parts_is_the_product_cut() {
    let g = &mut Gen::new(8);
    let widths = [1, 5, 3];
    for (rows, inputs) in [(20, 4), (3, 4), (20, 30)] {
        let (x, w, b) = (g.normal([2, rows, inputs]), g.normal([9, inputs]), g.normal([9]));
        let weight = g.normal([2, rows, 9]);
        let run = |parts: bool| {
            let tape = Tape::default();
            let v = [&x, &w, &b].map(|x| tape.leaf(x));
            let whole = v[0].linear(v[1], Some(v[2]));
            let cut = || linear_cut(v[0], v[1], Some(v[2]), widths).to_vec();
            let y =
                if parts { cut() } else { vec![whole.narrow(2, 0, 1), whole.narrow(2, 1, 5), whole.narrow(2, 6, 3)] };
            tape.backward((Var::concat(&y, 2) * tape.constant(&weight)).sum());
            let values: Vec<_> = y.iter().map(|y| y.value()).collect();
            values.into_iter().chain(v.map(|x| x.grad().unwrap())).collect::<Vec<_>>()
        };
        for (got, want) in run(true).iter().zip(run(false)) {
            close(got, want.shape(), &want.to_f64());
        }
    }
}

/// A norm of a row, forward and backward, with the row alone and among others.
#[test]
fn the_other_rows_do_not_change_the_norm_of_a_row() {
    let g = &mut Gen::new(7);
    for n in [3, 4, 16, 17, 64, 100] {
        let (rows, w) = (37, g.normal([n]).cast(DType::F32));
        let [x, dy] = [(); 2].map(|_| g.normal([rows, n]).cast(DType::F32));
        type Norm = for<'t> fn(Var<'t>, Var<'t>) -> Var<'t>;
        let norms: [Norm; 3] =
            [|x, w| x.layer_norm(w, Some(w), 1e-5), |x, w| x.rms_norm(w, 1e-5), |x, _| x.l2_norm(1e-6)];
        for norm in norms {
            let of = |from: usize, rows: usize| {
                let tape = Tape::default();
                let own = |x: &Tensor| x.window(from * n, [rows, n]);
                let (x, w) = (tape.leaf(&own(&x)), tape.constant(&w));
                let y = norm(x, w);
                tape.backward((y * tape.constant(&own(&dy))).sum());
                [y.value().to_f64(), x.grad().unwrap().to_f64()]
            };
            let all = of(0, rows);
            for r in 0..rows {
                let alone = of(r, 1);
                assert_eq!([row(&all[0], r, n), row(&all[1], r, n)], [&alone[0], &alone[1]], "{n} numbers, row {r}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn movement_ops_put_each_element_where_its_index_says(seed in any::<u64>()) {
        let g = &mut Gen::new(seed);
        let big = if g.coin() { 40 } else { 4 };
        let [a, b, c] = [g.size(big), g.size(4), g.size(big)];
        let x = g.normal([a, b, c]);
        let v = x.to_f64();
        let index = |list: [usize; 3], f: &dyn Fn(usize, usize, usize) -> f64| {
            let mut out = vec![];
            for i in 0..list[0] { for j in 0..list[1] { for k in 0..list[2] { out.push(f(i, j, k)) } } }
            out
        };
        let at = |i: usize, j: usize, k: usize| v[(i * b + j) * c + k];
        close(&eval(&[&x], |x| x[0].permute([1, 0, 2])), [b, a, c], &index([b, a, c], &|i, j, k| at(j, i, k)));
        close(&eval(&[&x], |x| x[0].permute([2, 0, 1])), [c, a, b], &index([c, a, b], &|i, j, k| at(j, k, i)));
        close(&eval(&[&x], |x| x[0].permute([1, 2, 0])), [b, c, a], &index([b, c, a], &|i, j, k| at(k, i, j)));
        close(&eval(&[&x], |x| x[0].transpose(0, 2)), [c, b, a], &index([c, b, a], &|i, j, k| at(k, j, i)));
        let s = g.below(c + 1);
        let n = g.below(c - s + 1);
        close(&eval(&[&x], |x| x[0].narrow(2, s, n)), [a, b, n], &index([a, b, n], &|i, j, k| at(i, j, s + k)));
        close(&eval(&[&x], |x| x[0].narrow(0, a - 1, 1)), [1, b, c], &index([1, b, c], &|_, j, k| at(a - 1, j, k)));
        let diag = g.below(9) as isize - 4;
        close(&eval(&[&x], |x| x[0].tril(diag)), [a, b, c], &index([a, b, c], &|i, j, k| {
            if k as isize > j as isize + diag { 0.0 } else { at(i, j, k) }
        }));
        // Parts that are cut and joined again equal the whole, along every axis.
        for axis in 0..3 {
            let size = x.shape().dims()[axis];
            let cut = g.below(size + 1);
            let whole = eval(&[&x], |x| {
                let (p, q) = (x[0].narrow(axis, 0, cut), x[0].narrow(axis, cut, size - cut));
                Var::concat(&[p, q], axis)
            });
            close(&whole, [a, b, c], &v);
        }
    }

    #[test]
    fn reductions_have_their_definitions(seed in any::<u64>()) {
        let g = &mut Gen::new(seed);
        let [a, b, c] = [g.size(5), g.size(40), g.size(40)];
        let x = g.normal([a, b, c]);
        // The fibres of the axes 1 and 2, as rows.
        let middle = eval(&[&x], |x| x[0].transpose(1, 2));
        let sum = |x: &[f64]| x.iter().sum::<f64>();
        let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len() as f64;
        let max = |x: &[f64]| x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        close(&eval(&[&x], |x| x[0].sum_axis(2, false)), [a, b], &by_row(&x, sum));
        close(&eval(&[&x], |x| x[0].sum_axis(2, true)), [a, b, 1], &by_row(&x, sum));
        close(&eval(&[&x], |x| x[0].sum_axis(1, true)), [a, 1, c], &by_row(&middle, sum));
        close(&eval(&[&x], |x| x[0].mean_axis(2, false)), [a, b], &by_row(&x, mean));
        close(&eval(&[&x], |x| x[0].mean_axis(1, false)), [a, c], &by_row(&middle, mean));
        close(&eval(&[&x], |x| x[0].max_axis(2, false)), [a, b], &by_row(&x, max));
        close(&eval(&[&x], |x| x[0].max_axis(1, true)), [a, 1, c], &by_row(&middle, max));
        close(&eval(&[&x], |x| x[0].sum()), [], &[sum(&x.to_f64())]);
        close(&eval(&[&x], |x| x[0].mean()), [], &[mean(&x.to_f64())]);
        close(&eval(&[&x], |x| x[0].logsumexp()), [a, b], &by_row(&x, |x| x.iter().map(|x| x.exp()).sum::<f64>().ln()));
        let running = |_, x: &[f64]| (0..x.len()).map(|t| sum(&x[..=t])).collect();
        close(&eval(&[&x], |x| x[0].cumsum(2)), [a, b, c], &rows(&x, running));
        close(&eval(&[&x], |x| x[0].cumsum(1).transpose(1, 2)), [a, c, b], &rows(&middle, running));
    }

    #[test]
    fn softmax_has_its_definition_and_forgets_a_shift(seed in any::<u64>()) {
        let g = &mut Gen::new(seed);
        let (t, s) = (g.size(20), g.size(40));
        let (x, offset) = (g.normal([2, t, s]), g.below(5));
        let y = eval(&[&x], |x| x[0].softmax());
        close(&y, [2, t, s], &rows(&x, |_, x| naive_softmax(x)));
        close(&eval(&[&y], |y| y[0].sum_axis(2, false)), [2, t], &vec![1.0; 2 * t]);
        let shifted = eval(&[&x], |x| (x[0] + 1024.0).softmax()).to_f64();
        all_close(&shifted, &y.to_f64(), 1e-12, "shifted");
        close(&eval(&[&x], |x| x[0].log_softmax()), [2, t, s], &y.to_f64().iter().map(|y| y.ln()).collect::<Vec<_>>());
        close(&eval(&[&x], |x| x[0].causal_softmax(offset)), [2, t, s], &rows(&x, |i, x| {
            let seen = s.min(i % t + offset + 1);
            let mut y = naive_softmax(&x[..seen]);
            y.resize(s, 0.0);
            y
        }));
    }

    #[test]
    fn norms_have_their_definitions(seed in any::<u64>()) {
        let g = &mut Gen::new(seed);
        let (b, n, eps) = (g.size(5), g.size(40), 1e-3);
        let (x, w, bias) = (g.normal([b, 2, n]), g.normal([n]), g.normal([n]));
        let (wv, bv) = (w.to_f64(), bias.to_f64());
        let layer = |with_bias: f64| rows(&x, |_, x| {
            let mean = x.iter().sum::<f64>() / n as f64;
            let var = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
            (0..n).map(|i| (x[i] - mean) / (var + eps).sqrt() * wv[i] + with_bias * bv[i]).collect()
        });
        close(&eval(&[&x, &w, &bias], |x| x[0].layer_norm(x[1], Some(x[2]), eps)), [b, 2, n], &layer(1.0));
        close(&eval(&[&x, &w], |x| x[0].layer_norm(x[1], None, eps)), [b, 2, n], &layer(0.0));
        let square = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>();
        close(&eval(&[&x, &w], |x| x[0].rms_norm(x[1], eps)), [b, 2, n], &rows(&x, |_, x| {
            (0..n).map(|i| x[i] / (square(x) / n as f64 + eps).sqrt() * wv[i]).collect()
        }));
        for eps in [1e-12, 2.0] {
            close(&eval(&[&x], |x| x[0].l2_norm(eps)), [b, 2, n], &rows(&x, |_, x| {
                x.iter().map(|v| v / square(x).sqrt().max(eps)).collect()
            }));
        }
        close(&eval(&[&x], |x| x[0].l2_norm_smooth(eps)), [b, 2, n], &rows(&x, |_, x| {
            x.iter().map(|v| v / (square(x) + eps).sqrt()).collect()
        }));
    }

    #[test]
    fn lookups_pick_what_the_index_names(seed in any::<u64>()) {
        let g = &mut Gen::new(seed);
        let (v, d, b, t) = (g.size(9), g.size(20), g.size(4), g.size(4));
        let (w, x, ids) = (g.normal([v, d]), g.normal([b, t, v]), g.ints([b, t], v));
        let picked: Vec<f64> = ids.host::<i32>().iter().flat_map(|&i| row(w.host(), i as usize, d).to_vec()).collect();
        close(&eval(&[&w, &ids], |x| x[0].embedding(x[1])), [b, t, d], &picked);
        let picked: Vec<f64> = ids.host::<i32>().iter().enumerate().map(|(i, &id)| row(x.host(), i, v)[id as usize]).collect();
        close(&eval(&[&x, &ids], |x| x[0].gather(x[1])), [b, t], &picked);
    }

    #[test]
    fn a_convolution_in_two_pieces_with_carried_state_is_the_whole(seed in any::<u64>()) {
        let g = &mut Gen::new(seed);
        let (b, t, d, w) = (g.size(3), g.size(8), g.size(20), g.size(5));
        let (x, taps, bias, state) = (g.normal([b, t, d]), g.normal([d, w]), g.normal([d]), g.normal([b, w - 1, d]));
        let whole = eval(&[&x, &taps, &bias, &state], |x| x[0].causal_conv1d(x[1], Some(x[2]), x[3]));
        // The definition, on the inputs with the state before them.
        let all = eval(&[&state, &x], |x| Var::concat(x, 1)).to_f64();
        let mut want = vec![];
        for i in 0..b { for s in 0..t { for c in 0..d {
            let tap = |j: usize| taps.host::<f64>()[c * w + j] * all[(i * (t + w - 1) + s + j) * d + c];
            want.push(bias.host::<f64>()[c] + (0..w).map(tap).sum::<f64>());
        } } }
        close(&whole, [b, t, d], &want);
        let cut = g.below(t + 1);
        let pieces = eval(&[&x, &taps, &bias, &state], |x| {
            let (first, second) = (x[0].narrow(1, 0, cut), x[0].narrow(1, cut, t - cut));
            let carried = Var::concat(&[x[3], first], 1).narrow(1, cut, w - 1);
            let y = [first.causal_conv1d(x[1], Some(x[2]), x[3]), second.causal_conv1d(x[1], Some(x[2]), carried)];
            Var::concat(&y, 1)
        });
        prop_assert_eq!(pieces.host::<f64>(), whole.host::<f64>());
    }

    #[test]
    fn cross_entropy_is_minus_the_mean_log_softmax_of_the_rows_that_count(seed in any::<u64>()) {
        let g = &mut Gen::new(seed);
        let (n, c) = (g.size(40), g.size(40));
        let (x, mut targets) = (g.normal([n, c]), g.ints([n], c).host::<i32>().to_vec());
        let all = ints(&targets, [n]);
        let picked = eval(&[&x, &all], |x| -x[0].log_softmax().gather(x[1]).mean()).item();
        close(&eval(&[&x, &all], |x| x[0].cross_entropy(x[1], -100)), [], &[picked]);
        // Smoothed targets are a mixture of the target and of every class in turn.
        let s = g.uniform(0.0, 1.0);
        let mixed = eval(&[&x, &all], |x| {
            let every = -x[0].log_softmax().mean();
            (1.0 - s) * x[0].cross_entropy(x[1], -100) + s * every
        });
        close(&eval(&[&x, &all], |x| x[0].cross_entropy_smoothed(x[1], -100, s)), [], &[mixed.item()]);
        // Rows whose target is ignored change nothing, however extreme their logits.
        let wild = g.range([n, c], -1e3, 1e3);
        targets.resize(2 * n, -100);
        let more = ints(&targets, [2 * n]);
        close(&eval(&[&x, &wild, &more], |x| Var::concat(&x[..2], 0).cross_entropy(x[2], -100)), [], &[picked]);
    }
}

#[test]
fn a_maximum_of_something_undefined_is_undefined() {
    let x = Tensor::from_vec(vec![1.0, f64::NAN, 3.0], [3]);
    let all = [
        eval(&[&x], |x| x[0].max_axis(0, false)),
        eval(&[&x], |x| x[0].logsumexp()),
        eval(&[&x], |x| x[0].softmax().sum()),
    ];
    let all = all.map(|y| y.item());
    assert!(all.iter().all(|y| y.is_nan()), "{all:?}");
}

/// dw = Σ g x̂ and db = Σ g over any number of rows, which are computed several at a time, sixteen at a time for rows
/// of four elements.
#[test]
fn gradients_of_norms_weights_are_the_sums_over_all_rows() {
    const EPS: f64 = 1e-5;
    for (rows, n) in [1, 15, 16, 17, 37, 300].into_iter().flat_map(|rows| [(rows, 3), (rows, 4), (rows, 33)]) {
        let g = &mut Gen::new(13);
        let ([x, c], w) = (std::array::from_fn(|_| g.normal([rows, n])), g.normal([n]));
        let mut want = [(); 3].map(|()| vec![0.0; n]);
        for (x, c) in x.host::<f64>().chunks(n).zip(c.host::<f64>().chunks(n)) {
            let mean = |f: &dyn Fn(f64) -> f64| x.iter().map(|&x| f(x)).sum::<f64>() / n as f64;
            let m = mean(&|x| x);
            let (r, r_rms) = ((mean(&|x| (x - m).powi(2)) + EPS).sqrt(), (mean(&|x| x * x) + EPS).sqrt());
            for j in 0..n {
                want[0][j] += c[j] * (x[j] - m) / r;
                want[1][j] += c[j];
                want[2][j] += c[j] * x[j] / r_rms;
            }
        }
        for (dtype, allowed) in [(DType::F64, 1e-12), (DType::F32, 1e-5)] {
            let tape = Tape::default();
            tape.poison(true);
            let [x, c] = [&x, &c].map(|x| tape.constant(&x.cast(dtype)));
            let [w, b, v] = [&w; 3].map(|w| tape.leaf(&w.cast(dtype)));
            tape.backward(((x.layer_norm(w, Some(b), EPS) + x.rms_norm(v, EPS)) * c).sum());
            for (name, (d, want)) in ["dw", "db", "dw of RMS"].iter().zip([w, b, v].iter().zip(&want)) {
                for (got, want) in d.grad().unwrap().to_f64().iter().zip(want) {
                    let off = (got - want).abs();
                    assert!(
                        off < allowed * (rows as f64).sqrt(),
                        "{name} of {rows} x {n} in {dtype}: {got}, not {want}"
                    );
                }
            }
        }
    }
}

/// A skip connection and the function after it as one op equal their parts: rows narrow and wide, few and many.
#[test]
fn a_skip_in_one_op_is_its_formula() {
    skip("gated_skip", |y, d, x, z, fused| if fused { y.gated_skip(d, x, z) } else { (y + d * x) * z.silu() });
}

fn skip(name: &str, formula: impl for<'t> Fn(Var<'t>, Var<'t>, Var<'t>, Var<'t>, bool) -> Var<'t>) {
    for (rows, n) in [(1, 1), (513, 1), (70, 8), (3, 171), (2, 600)] {
        let g = &mut Gen::new(7);
        let [y, x, z, c] = std::array::from_fn(|_| g.normal([rows, n]));
        let d = g.normal([n]);
        for dtype in [DType::F64, DType::F32] {
            let run = |fused: bool, wanted: [bool; 4], added: bool| {
                let tape = Tape::default();
                tape.poison(true);
                let inputs = [&y, &d, &x, &z].map(|t| t.cast(dtype));
                let vars: [_; 4] =
                    std::array::from_fn(|i| if wanted[i] { tape.leaf(&inputs[i]) } else { tape.constant(&inputs[i]) });
                let [y, d, x, z] = vars;
                let o = formula(y, d, x, z, fused);
                // Gradients are written first or added to others, except z's.
                let others =
                    if added { [y, d, x].map(|x| x.square().sum()).into_iter().reduce(|a, b| a + b) } else { None };
                let loss = (o * tape.constant(&c.cast(dtype))).sum();
                tape.backward(others.map_or(loss, |others| loss + others));
                let grads = vars.map(|v| v.grad().map_or(vec![], |g| g.to_f64()));
                (o.value().to_f64(), grads)
            };
            for (only, added) in [0, 1, 2, 3].into_iter().flat_map(|only| [(only, false), (only, true)]) {
                let (_, alone) = run(true, std::array::from_fn(|i| i == only), added);
                let (_, grads) = run(true, [true; 4], added);
                assert_eq!(
                    alone[only], grads[only],
                    "{name}: gradient {only} of {rows} x {n} in {dtype}, wanted alone"
                );
            }
            let [first, added] = [false, true].map(|added| (run(true, [true; 4], added), run(false, [true; 4], added)));
            let pairs = [&first, &added].into_iter().flat_map(|((o, grads), (o_want, grads_want))| {
                std::iter::once((o, o_want)).chain(grads.iter().zip(grads_want))
            });
            for (what, (a, b)) in ["o", "dy", "dd", "dx", "dz"].iter().cycle().zip(pairs) {
                let size = b.iter().fold(1.0, |m: f64, b| m.max(b.abs()));
                // NaN counts as an infinite error.
                let off = a.iter().zip(b).map(|(a, b)| if a == b { 0.0 } else { (a - b).abs() });
                let error = off.fold(0.0, |m: f64, e| if e.is_nan() { f64::INFINITY } else { m.max(e) });
                let allowed = if dtype == DType::F64 { 1e-13 } else { 3e-6 };
                assert!(
                    error <= allowed * size,
                    "{name}: {what} of {rows} x {n} in {dtype}: off by {error:e} of {size}"
                );
            }
        }
    }
}

/// The gradient of each row of a table [V, N] is the sum of the gradients of its copies, also for few distinct rows and
/// for many, which are summed in other orders: with small integers the bits are the same.
#[test]
fn a_rows_gradient_is_the_sum_of_its_copies() {
    let g = &mut Gen::new(11);
    for (v, n) in [(1, 1), (1, 16), (2, 3), (2, 64), (3, 4), (4, 1), (5, 2), (300, 1)] {
        for count in [1, 15, 16, 31, 33, 67, 1027, 2050] {
            let (ids, c) = (g.ints([count], v), g.ints([count, n], 7).host::<i32>().to_vec());
            let mut want = vec![0.0; v * n];
            for (i, &id) in ids.host::<i32>().iter().enumerate() {
                (0..n).for_each(|j| want[id as usize * n + j] += f64::from(c[i * n + j]));
            }
            let c = Tensor::from_vec(c.iter().map(|&c| c as f32).collect(), [count, n]);
            let dw = table_grad(&Tensor::from_vec(vec![0f32; v * n], [v, n]), &ids, &c);
            assert_eq!(dw.to_f64(), want, "{count} rows of a table [{v}, {n}]");
        }
    }
}

/// Adding many numbers one after another in single precision would lose more digits than this.
#[test]
fn a_rows_gradient_of_many_copies_has_its_digits() {
    let g = &mut Gen::new(12);
    for v in [1, 2, 5] {
        let (ids, c) = (g.ints([200_003], v), g.range([200_003, 1], 0.0, 1.0).cast(DType::F32));
        let mut want = vec![0.0; v];
        ids.host::<i32>().iter().zip(c.to_f64()).for_each(|(&id, c)| want[id as usize] += c);
        let dw = table_grad(&Tensor::from_vec(vec![0f32; v], [v, 1]), &ids, &c).to_f64();
        for (dw, want) in dw.iter().zip(want) {
            assert!(relative_eq!(*dw, want, epsilon = 0.0, max_relative = 5e-7), "{v} kinds: {dw}, not {want}");
        }
    }
}

/// The gradient of a table from which rows were copied and multiplied by c.
fn table_grad(w: &Tensor, ids: &Tensor, c: &Tensor) -> Tensor {
    let tape = Tape::default();
    tape.poison(true);
    let w = tape.leaf(w);
    tape.backward((w.embedding(tape.constant(ids)) * tape.constant(c)).sum());
    w.grad().unwrap()
}

#[test]
fn integers_can_be_moved() {
    let x = ints(&[1, 2, 3, 4, 5, 6], [2, 3]);
    let y = eval(&[&x], |x| Var::concat(&[x[0].narrow(1, 1, 2).transpose(0, 1), x[0].narrow(1, 0, 2)], 0));
    assert_eq!(y.host::<i32>(), [2, 5, 3, 6, 1, 2, 4, 5]);
}
