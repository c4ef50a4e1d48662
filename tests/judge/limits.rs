//! Made fixtures at limits where the result is known: keys of −∞ as padding, and rates of nothing.

use super::made::made;
use serde_json::json;
use std::collections::BTreeMap;
use tapezoo::{
    autograd::Gen,
    tensor::{DType, Device, Tensor},
    verify::{
        Fixture, Place, check, recurrent,
        specs::{Spec, specs},
        tolerance,
    },
};

fn spec(op: &str) -> &'static Spec {
    specs().find(|spec| spec.op == op).unwrap()
}

/// This fixture with other tensors, and the results of the recurrent form on them.
fn with(f: &Fixture, tensors: BTreeMap<String, Tensor>) -> Fixture {
    let mut new = f.clone();
    new.tensors = tensors;
    completed(new)
}

fn completed(mut new: Fixture) -> Fixture {
    let results = recurrent(&new).unwrap();
    assert!(results.values().all(|x| x.to_f64().iter().all(|x| x.is_finite())), "{}: the reference", new.op);
    new.tensors.extend(results);
    new
}

/// All forms, in both precisions.
fn forms_agree(f: &Fixture, what: &str) {
    for dtype in [DType::F64, DType::F32] {
        for c in check(f, Place::new(Device::Cpu, dtype), tolerance(dtype)).unwrap() {
            assert!(c.passes(tolerance(dtype)), "{what}, {dtype} {} {}: {:.1e}", c.form, c.tensor, c.error);
        }
    }
}

/// Steps from this one on, of [B, T, ..].
fn from(x: &Tensor, begin: usize) -> Tensor {
    let t = x.shape().at(1);
    let inner = x.len() / (x.shape().at(0) * t);
    let rows = x.to_f64().chunks(t * inner).flat_map(|row| row[begin * inner..].to_vec()).collect();
    Tensor::from_vec::<f64>(rows, x.shape().with(1, t - begin))
}

#[test]
fn leading_keys_of_minus_infinity_are_not_there() {
    for (op, key) in [("lightnet", "in.k"), ("abc", "in.s")] {
        let all = (0..20).map(|seed| made(&mut Gen::new(seed), spec(op)));
        let long: Vec<Fixture> = all.filter(|f| f.tensor(key).unwrap().shape().at(1) >= 3).collect();
        assert!(long.len() > 5);
        for (i, f) in long.iter().enumerate() {
            let t = f.tensor(key).unwrap().shape().at(1);
            // Of a single step nothing depends on the keys: their gradient is 0, to rounding.
            let begin = 1 + i % (t - 2);
            let short = with(f, f.tensors.iter().map(|(name, x)| (name.clone(), from(x, begin))).collect());
            let mut tensors = f.tensors.clone();
            let inner = f.tensor(key).unwrap().shape().dims()[2..].iter().product::<usize>();
            let padding = |i: usize| i / inner % t < begin;
            let keys = f.tensor(key).unwrap().to_f64().into_iter().enumerate();
            let keys = keys.map(|(i, x)| if padding(i) { f64::NEG_INFINITY } else { x }).collect();
            tensors.insert(key.into(), Tensor::from_vec::<f64>(keys, f.tensor(key).unwrap().shape()));
            let padded = with(f, tensors);
            forms_agree(&padded, &format!("{op}, {begin} of {t} steps are padding"));
            for (name, want) in short.tensors.iter().filter(|(name, _)| !name.starts_with("in.")) {
                let got = from(padded.tensor(name).unwrap(), begin);
                let off = got.to_f64().iter().zip(want.to_f64()).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(off < 1e-12, "{op}, {begin} of {t} steps are padding, {name}: off by {off}");
            }
        }
    }
}

/// TTT's norm of a memory whose squares single precision does not hold.
#[test]
fn ttt_begins_with_numbers_of_any_size() {
    for (eps, size) in [(1e-6, 1e20), (1e-6, 1e-20), (0.0, 1e-15)] {
        let mut tensors = made(&mut Gen::new(5), spec("ttt_linear")).tensors;
        for (name, size) in [("in.s0", 0.0), ("in.c0", size)] {
            let x = tensors[name].to_f64().into_iter().map(|x| size * x).collect();
            tensors.insert(name.into(), Tensor::from_vec::<f64>(x, tensors[name].shape()));
        }
        let mini_batch = tensors["in.row"].len();
        let f = Fixture::new("ttt_linear", json!({"mini_batch": mini_batch, "eps": eps}), tensors);
        forms_agree(&completed(f), &format!("c of {size}, eps {eps}"));
    }
}

/// The input's weight is (e^{ΔA} − 1) / A on both sides of the size below which a series has it.
#[test]
fn s4d_has_the_digits_of_its_input_at_any_rate() {
    for (seed, rate) in (0..).zip([1e-9, 1e-3, 0.05, 0.0999, 0.1001, 0.5, 3.0]) {
        let mut tensors = made(&mut Gen::new(seed), spec("s4d")).tensors;
        for (name, value) in [("log_dt", 0.0), ("log_a_real", f64::ln(rate)), ("a_imag", 0.0), ("d", 0.0)] {
            let shape = tensors[&format!("in.{name}")].shape();
            tensors.insert(format!("in.{name}"), Tensor::from_vec::<f64>(vec![value; shape.len()], shape));
        }
        let f = completed(Fixture::new("s4d", json!({}), tensors));
        let [u, c, y] = ["in.u", "in.c_re", "out.y"].map(|name| f.tensor(name).unwrap().to_f64());
        let (shape, weight) = (f.tensor("in.u").unwrap().shape(), -f64::exp_m1(-rate) / rate);
        let (b, t, d) = (shape.at(0), shape.at(1), shape.at(2));
        for (i, j) in (0..b).flat_map(|i| (0..d).map(move |j| (i, j))) {
            let (mut h, mut size) = (0.0, 1.0f64);
            for s in 0..t {
                let at = (i * t + s) * d + j;
                h = f64::exp(-rate) * h + weight * u[at];
                let want = 2.0 * h * c[j * (c.len() / d)..][..c.len() / d].iter().sum::<f64>();
                size = size.max(want.abs());
                assert!((y[at] - want).abs() < 1e-14 * size, "rate {rate}: off by {:e}", y[at] - want);
            }
        }
    }
}

/// With A = 0 the state is the sum of all inputs, each times Δ.
#[test]
fn s4d_without_a_rate_is_a_sum() {
    for (seed, log_a) in [(1, -60.0), (2, -200.0), (3, -30.0)] {
        let f = made(&mut Gen::new(seed), spec("s4d"));
        let mut tensors = f.tensors.clone();
        for (name, value) in [("in.log_a_real", log_a), ("in.a_imag", 0.0)] {
            let shape = tensors[name].shape();
            tensors.insert(name.into(), Tensor::from_vec::<f64>(vec![value; shape.len()], shape));
        }
        let f = with(&f, tensors);
        forms_agree(&f, &format!("ln −A = {log_a}"));
        let [u, dt, skip, c, y] =
            ["in.u", "in.log_dt", "in.d", "in.c_re", "out.y"].map(|name| f.tensor(name).unwrap().to_f64());
        let shape = f.tensor("in.u").unwrap().shape();
        let (b, t, d, n) = (shape.at(0), shape.at(1), shape.at(2), c.len() / dt.len());
        for (i, j) in (0..b).flat_map(|i| (0..d).map(move |j| (i, j))) {
            let mut sum = 0.0;
            for s in 0..t {
                let at = (i * t + s) * d + j;
                sum += dt[j].exp() * u[at];
                let want = 2.0 * sum * c[j * n..][..n].iter().sum::<f64>() + skip[j] * u[at];
                assert!((y[at] - want).abs() < 1e-9, "ln −A = {log_a}: {} at step {s}, not {want}", y[at]);
            }
        }
    }
}
