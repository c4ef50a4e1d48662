//! Kernels of the simple ops at sizes where several blocks, chunks and tiles take part, with odd tails, and at size
//! zero: against the CPU, in f64, f32 and bf16, values and gradients; and twice, bit for bit.
#![allow(clippy::unwrap_used)]

mod device;

use device::{device, is_checked, place, rounded};
use tapezoo::{
    autograd::{Gen, Op, Tape, Var},
    error::quietly,
    ops::{
        arith::*, conv::*, cumsum::*, embed::*, gated_skip::*, linear::*, logsumexp::*, loss::*, movement::*, norm::*,
        permute::*, reduce::*, softmax::*, triangular::*,
    },
    tensor::{DType, Device, Shape, Tensor},
};

type Case = (Box<dyn Op>, Vec<Tensor>);
type Run = Vec<Option<Vec<f64>>>;

/// Values of all outputs, then gradients of all inputs; every gradient is contributed to twice.
fn run(device: Device, case: &dyn Fn(&mut Gen) -> Case, dtype: DType) -> Run {
    let tape = Tape::new(device);
    tape.poison(true);
    let (op, inputs) = case(&mut Gen::new(1));
    let (again, _) = case(&mut Gen::new(1));
    let leaf = |x: &Tensor| {
        if x.dtype() == DType::I32 { tape.constant(x) } else { tape.leaf(&place(x, tape.cx(), dtype, false)) }
    };
    let x: Vec<_> = inputs.iter().map(leaf).collect();
    let (y, z) = (tape.apply_dyn(op, &x), tape.apply_dyn(again, &x));
    // The same numbers in every type.
    let seed = |y: Var, mut g: Gen| rounded(&g.normal(y.shape())).to_device_as(tape.cx(), y.dtype());
    let seeds = y.iter().chain(&z).zip((0..).map(Gen::new)).map(|(&y, g)| (y, seed(y, g)));
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
        / largest(&mut b.iter().map(|b| if b.is_finite() { b.abs() } else { 0.0 })).max(0.2)
}

fn check(name: &str, case: impl Fn(&mut Gen) -> Case) {
    let Some(device) = device() else { return };
    // Accesses are checked once in single precision, as f64 accesses the same, and in bf16, of which packs are wider.
    let types = [(DType::F64, 1e-11), (DType::F32, 2e-5), (DType::BF16, 3e-2)];
    for (dtype, tolerance) in types.into_iter().filter(|of| !is_checked() || of.0 != DType::F64) {
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
        if !is_checked() {
            assert_eq!(got, run(device, &case, dtype), "{name} in {dtype}: twice the same, two results");
        }
    }
}

/// Normal elements, away from zero.
fn away(g: &mut Gen, shape: impl Into<Shape>) -> Tensor {
    g.tensor(shape, |g| g.uniform(0.5, 2.0) * if g.coin() { 1.0 } else { -1.0 })
}

fn pair(op: impl Op, a: &[usize], b: &[usize], g: &mut Gen) -> Case {
    (Box::new(op), vec![away(g, a), away(g, b)])
}

#[test]
fn layers_and_skips() {
    check("a layer", |g| (Box::new(Linear { bias: true }), vec![g.normal([1100, 3]), g.normal([6, 3]), g.normal([6])]));
    for (rows, n) in [(1100, 7), (2, 900), (0, 4), (3, 0)] {
        check("a gated skip", |g| {
            (Box::new(GatedSkip), vec![g.normal([rows, n]), g.normal([n]), g.normal([rows, n]), g.normal([rows, n])])
        });
    }
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
        for from_end in [false, true] {
            let name = format!("cumsum {shape:?} {axis} from its end {from_end}");
            check(&name, |g| (Box::new(Cumsum { axis, from_end }), vec![g.normal(shape)]));
        }
        check(&format!("logsumexp {shape:?}"), |g| (Box::new(Logsumexp), vec![g.normal(shape)]));
    }
}

#[test]
fn movement() {
    let orders: &[(&[usize], &[usize])] = &[
        (&[70, 45], &[1, 0]),
        (&[3, 40, 33], &[0, 2, 1]),
        (&[33, 40, 3], &[2, 1, 0]),
        (&[2, 37, 3, 16], &[0, 2, 1, 3]),
        (&[2, 37, 3, 16], &[0, 2, 3, 1]),
        (&[9, 2, 8, 3, 11], &[4, 3, 0, 1, 2]),
        (&[9, 2, 8, 3, 11], &[2, 3, 4, 1, 0]),
        (&[2, 9, 3, 8, 11], &[0, 1, 2, 3, 4]),
        (&[3, 0, 9], &[2, 0, 1]),
        (&[1, 50, 1], &[1, 2, 0]),
    ];
    for (shape, order) in orders {
        let op = || -> Box<dyn Op> {
            match **order {
                [a, b] => Box::new(Permute::new([a, b])),
                [a, b, c] => Box::new(Permute::new([a, b, c])),
                [a, b, c, d] => Box::new(Permute::new([a, b, c, d])),
                [a, b, c, d, e] => Box::new(Permute::new([a, b, c, d, e])),
                _ => unreachable!(),
            }
        };
        check(&format!("permute {shape:?} {order:?}"), |g| (op(), vec![g.normal(*shape)]));
    }
    for &(shape, axis) in AXES {
        let n = shape[axis];
        for (start, len) in [(0, n), (n / 3, n / 2), (n, 0)] {
            let name = format!("narrow {shape:?} axis {axis} {start} {len}");
            check(&name, |g| (Box::new(Narrow { axis, start, len }), vec![g.normal(shape)]));
        }
        check(&format!("concat {shape:?} axis {axis}"), |g| {
            let part = |g: &mut Gen, n| g.normal(Shape::new(shape).with(axis, n));
            (Box::new(Concat { axis }), vec![part(g, n), part(g, 0), part(g, 7)])
        });
    }
    for (shape, diag) in [([3, 33, 40], 0), ([3, 40, 33], -2), ([2, 20, 50], 40), ([2, 20, 50], -40), ([2, 0, 3], 0)] {
        check(&format!("tril {shape:?} {diag}"), |g| (Box::new(Tril { diag }), vec![g.normal(shape)]));
    }
}

/// [rows, n] of many short rows, of warps, of blocks, and of nothing.
const ROWS: &[[usize; 2]] = &[[1500, 1], [900, 3], [300, 33], [37, 512], [5, 513], [3, 1300], [0, 5], [5, 0]];

/// Rows whose entries the kernels of norms take by packs of 16 bytes: a few threads, a warp and a block each, and in f32
/// more than a block has in registers.
const PACKED: &[[usize; 2]] = &[[500, 8], [90, 64], [70, 1024], [5, 2056]];

#[test]
fn softmaxes() {
    for &[rows, n] in ROWS {
        check(&format!("softmax {rows} {n}"), |g| (Box::new(Softmax), vec![g.normal([rows, n])]));
        let loss = |ignore_index: i32, all: bool| {
            let name = format!("cross_entropy {rows} {n} ignoring {ignore_index}, all {all}");
            check(&name, |g| {
                let targets = g.ints([rows], n.max(1));
                // No target is a class of rows without classes.
                let host =
                    targets.host::<i32>().iter().map(|&t| if all || n == 0 { ignore_index } else { t }).collect();
                (
                    Box::new(CrossEntropy { ignore_index, smoothing: 0.1 }),
                    vec![g.normal([rows, n]), Tensor::from_vec(host, [rows])],
                )
            });
        };
        loss(-100, false);
        loss(0, false);
        loss(-1, true);
    }
    for ([b, t, s], offset) in
        [([2, 70, 70], 0), ([3, 40, 50], 10), ([1, 3, 700], 600), ([5, 9, 9], 100), ([2, 0, 4], 0)]
    {
        check(&format!("causal_softmax {t} {s} {offset}"), |g| {
            (Box::new(CausalSoftmax { offset }), vec![g.normal([b, t, s])])
        });
    }
}

#[test]
fn norms() {
    for &[rows, n] in ROWS.iter().chain(PACKED) {
        let x = |g: &mut Gen, inputs: usize| {
            // Far from zero mean: the variance is not E x² − (E x)².
            let x = g.tensor([rows, n], |g| g.gauss() + 3.0);
            std::iter::once(x).chain((1..inputs).map(|_| g.normal([n]))).collect::<Vec<_>>()
        };
        let eps = 0.1;
        check(&format!("layer_norm {rows} {n}"), |g| (Box::new(LayerNorm { eps }), x(g, 3)));
        check(&format!("layer_norm without bias {rows} {n}"), |g| (Box::new(LayerNorm { eps }), x(g, 2)));
        check(&format!("rms_norm {rows} {n}"), |g| (Box::new(RmsNorm { eps }), x(g, 2)));
        // No row in bf16 has the length 4.1, at which the gradient jumps.
        for (eps, smooth) in [(0.1, true), (0.1, false), (4.1, false)] {
            check(&format!("l2_norm {rows} {n} {eps} {smooth}"), |g| (Box::new(L2Norm { eps, smooth }), x(g, 1)));
        }
    }
}

#[test]
fn looking_up() {
    for (v, n, count) in
        [(2, 5, 3000), (3, 33, 700), (100, 16, 1100), (40, 70, 300), (1000, 3, 500), (7, 40, 0), (7, 0, 9)]
    {
        let ids = move |g: &mut Gen| g.ints([count], v);
        check(&format!("embedding {v} {n} {count}"), |g| (Box::new(Embedding), vec![g.normal([v, n]), ids(g)]));
        check(&format!("gather {v} {count}"), |g| (Box::new(Gather), vec![g.normal([count, v]), ids(g)]));
    }
}

#[test]
fn ids_from_outside_are_the_same_error_on_every_device() {
    let Some(device) = device() else { return };
    for wrong in [3i32, -1, i32::MIN] {
        let errors = [Device::Cpu, device].map(|device| {
            let tape = Tape::new(device);
            let ids = tape.constant(&Tensor::from_vec(vec![0, wrong, 1, 2], [2, 2])).reshape([4]);
            let table = tape.leaf(&Gen::new(1).normal([3, 2]));
            let rows = tape.leaf(&Gen::new(1).normal([4, 3]));
            [
                quietly(|| table.embedding(ids).shape()),
                quietly(|| rows.gather(ids).shape()),
                quietly(|| rows.cross_entropy(ids, -100).shape()),
            ]
        });
        assert_eq!(errors[0], errors[1]);
        let said = |why: &Result<Shape, String>| why.as_ref().is_err_and(|why| why.contains(&format!("{wrong} is ")));
        assert!(errors[0].iter().all(said), "{errors:?}");
    }
}

#[test]
fn convolutions() {
    let sizes = [
        (3, 70, 33, 4),
        (2, 9, 5, 1),
        (2, 300, 3, 2),
        (1, 2, 40, 4),
        (2, 70, 48, 3),
        (2, 50, 7, 8),
        (2, 30, 3, 11),
        (2, 3, 2, 17),
        (2, 0, 3, 4),
    ];
    for (b, t, d, w) in sizes {
        for bias in [false, true] {
            check(&format!("conv {b} {t} {d} {w} bias {bias}"), |g| {
                let mut x = vec![g.normal([b, t, d]), g.normal([d, w]), g.normal([b, w - 1, d])];
                if bias {
                    x.push(g.normal([d]));
                }
                (Box::new(CausalConv1d), x)
            });
        }
    }
    // Enough elements for long pieces, with single channels and with packs.
    for d in [70, 72] {
        check(&format!("a large conv of {d}"), |g| {
            (Box::new(CausalConv1d), vec![g.normal([2, 2000, d]), g.normal([d, 4]), g.normal([2, 3, d])])
        });
    }
}

#[test]
fn triangular_systems() {
    for (systems, n, cols) in
        [(3, 33, 40), (2, 64, 64), (1, 160, 3), (40, 5, 32), (3, 1, 1), (0, 4, 2), (3, 0, 2), (2, 3, 0)]
    {
        check(&format!("unit_lower_solve {systems} {n} {cols}"), |g| {
            let scale = 1.0 / (n as f64).sqrt().max(1.0);
            (Box::new(UnitLowerSolve), vec![g.range([systems, n, n], -scale, scale), g.normal([systems, n, cols])])
        });
    }
}
