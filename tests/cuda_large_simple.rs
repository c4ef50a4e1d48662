//! Kernels of the simple ops at sizes where several blocks, chunks and tiles take part, with odd tails, and at size
//! zero: against the CPU, in f64 and f32, values and gradients; and twice, bit for bit.
#![allow(clippy::unwrap_used)]

use tapezoo::{
    autograd::{Gen, Op, Tape},
    ops::{arith::*, reduce::*},
    tensor::{DType, Device, Shape, Tensor},
};

type Case = (Box<dyn Op>, Vec<Tensor>);
type Run = Vec<Option<Vec<f64>>>;

/// The device under test, or none, with the reason said.
fn device() -> Option<Device> {
    let device = std::env::var("TAPEZOO_TEST_DEVICE").unwrap_or_else(|_| "emulated".into()).parse().unwrap();
    match Tape::open(device) {
        Ok(_) => Some(device),
        Err(why) if device == Device::Emulated => {
            eprintln!("SKIPPED, no kernel was run: {why}");
            None
        }
        Err(why) => panic!("{why}"),
    }
}

/// Values of all outputs, then gradients of all inputs; every gradient is contributed to twice.
fn run(device: Device, case: &dyn Fn(&mut Gen) -> Case, dtype: DType) -> Run {
    let tape = Tape::new(device);
    tape.poison(true);
    let place = |x: &Tensor| if x.dtype() == DType::I32 { x.clone() } else { x.to_device_as(tape.cx(), dtype) };
    let (op, inputs) = case(&mut Gen::new(1));
    let (again, _) = case(&mut Gen::new(1));
    let leaf = |x: &Tensor| if x.dtype() == DType::I32 { tape.constant(x) } else { tape.leaf(&place(x)) };
    let x: Vec<_> = inputs.iter().map(leaf).collect();
    let (y, z) = (tape.apply_dyn(op, &x), tape.apply_dyn(again, &x));
    let seeds = (0..).map(Gen::new).zip(y.iter().chain(&z)).map(|(mut g, &y)| (y, place(&g.normal(y.shape()))));
    let mut all: Run = y.iter().map(|y| Some(y.value().to_f64())).collect();
    tape.backward_from(seeds.collect::<Vec<_>>());
    all.extend(x.iter().map(|x| x.grad().map(|g| g.to_f64())));
    all
}

/// The largest difference, against the largest number.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let largest =
        |v: &mut dyn Iterator<Item = f64>| v.fold(0.0, |m: f64, x| if x.is_nan() { f64::INFINITY } else { m.max(x) });
    largest(&mut a.iter().zip(b).map(|(a, b)| if a == b { 0.0 } else { (a - b).abs() }))
        / largest(&mut b.iter().map(|b| if b.is_finite() { b.abs() } else { 0.0 })).max(1e-2)
}

fn check(name: &str, case: impl Fn(&mut Gen) -> Case) {
    let Some(device) = device() else { return };
    for (dtype, tolerance) in [(DType::F64, 1e-11), (DType::F32, 2e-5)] {
        let (got, want) = (run(device, &case, dtype), run(Device::Cpu, &case, dtype));
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            match (got, want) {
                (Some(got), Some(want)) => {
                    let d = distance(got, want);
                    assert!(d <= tolerance, "{name} in {dtype}: value or gradient {i} is off by {d:.1e}");
                }
                (got, want) => assert_eq!(got.is_some(), want.is_some(), "{name}: {i}"),
            }
        }
        assert_eq!(got, run(device, &case, dtype), "{name} in {dtype}: twice the same, two results");
    }
}

/// Normal numbers, away from zero.
fn away(g: &mut Gen, shape: impl Into<Shape>) -> Tensor {
    g.tensor(shape, |g| g.uniform(0.5, 2.0) * if g.coin() { 1.0 } else { -1.0 })
}

fn pair(op: impl Op, a: &[usize], b: &[usize], g: &mut Gen) -> Case {
    (Box::new(op), vec![away(g, a), away(g, b)])
}

#[test]
fn broadcasting() {
    let shapes: &[(&[usize], &[usize])] = &[
        (&[37, 101], &[37, 101]),
        (&[1100, 37], &[37]),
        (&[37], &[2000, 37]),
        (&[3, 700, 5], &[3, 700, 1]),
        (&[2, 1, 33], &[2, 45, 33]),
        (&[3, 1, 70, 1], &[1, 50, 1, 3]),
        (&[5000], &[1]),
        (&[1, 2], &[9000, 1]),
        (&[3, 2, 5, 3, 2], &[2, 1, 3, 1]),
        (&[0, 3], &[1, 3]),
        (&[4, 0], &[4, 1]),
        (&[0], &[]),
    ];
    for (a, b) in shapes {
        check(&format!("add {a:?} {b:?}"), |g| pair(Add, a, b, g));
        check(&format!("sub {a:?} {b:?}"), |g| pair(Sub, a, b, g));
        check(&format!("mul {a:?} {b:?}"), |g| pair(Mul, a, b, g));
        check(&format!("div {a:?} {b:?}"), |g| pair(Div, a, b, g));
    }
    check("affine", |g| (Box::new(Affine { mul: 1.5, add: -0.5 }), vec![g.normal([3001])]));
    check("affine of nothing", |g| (Box::new(Affine { mul: 1.5, add: -0.5 }), vec![g.normal([0])]));
}

/// Shapes and an axis of each.
const AXES: &[(&[usize], usize)] = &[
    (&[5000], 0),
    (&[3, 700], 1),
    (&[700, 3], 0),
    (&[1200, 37], 0),
    (&[3, 530, 5], 1),
    (&[2, 9, 33], 1),
    (&[40, 40], 1),
    (&[3, 1, 5], 1),
    (&[3, 0, 5], 1),
    (&[3, 0], 1),
    (&[0, 4], 1),
];

#[test]
fn reductions() {
    for &(shape, axis) in AXES {
        for mean in [false, true] {
            let name = format!("sum {shape:?} {axis} mean {mean}");
            check(&name, |g| (Box::new(SumAxis { axis, keep: true, mean }), vec![g.normal(shape)]));
        }
        check(&format!("max {shape:?} {axis}"), |g| {
            // With equal maxima: the first gets the gradient.
            let x = g.tensor(shape, |g| (g.gauss() * 2.0).round());
            (Box::new(MaxAxis { axis, keep: false }), vec![x])
        });
        check(&format!("cumsum {shape:?} {axis}"), |g| (Box::new(Cumsum { axis }), vec![g.normal(shape)]));
        check(&format!("logsumexp {shape:?}"), |g| (Box::new(Logsumexp), vec![g.normal(shape)]));
    }
}
