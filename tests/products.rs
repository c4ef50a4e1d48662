//! Matrix products against sums in double precision: any sizes, strides and offsets within larger memory; and with
//! operands rounded to bf16, where the processor has such products.

mod device;
mod program;

use approx::relative_eq;
use half::bf16;
use program::program;
use proptest::{prelude::*, sample::select};
use tapezoo::{
    autograd::{Tape, Var},
    kernels::gemm::{Epilogue, Mat, Products, gemm_as},
    tensor::{DType, Device, Tensor},
    train::{Trainer, config::TrainConfig},
};

/// Whether this processor has bf16 products; a test without them reports that it was skipped.
fn has_bf16(test: &str) -> bool {
    let found = Products::Bf16.check_processor();
    if let Err(why) = &found {
        device::skipped(&format!("{test}: {why}"));
    }
    found.is_ok()
}

/// A matrix within larger memory.
#[derive(Clone, Debug)]
struct Within {
    memory: Vec<f32>,
    mat: Mat,
}

impl Within {
    /// Elements of about 1 in the matrix, NaN everywhere else: a read outside the matrix would make a result NaN.
    fn new(rows: usize, cols: usize, layout: Layout, seed: usize) -> Within {
        let Layout { transposed, gap, step } = layout;
        let (r, c) = if transposed { (cols, rows) } else { (rows, cols) };
        let mat = Mat { rows: r, cols: c, rs: c * step + gap, cs: step };
        let mat = if transposed { mat.t() } else { mat };
        let mut memory = vec![f32::NAN; r * (c * step + gap) + 3];
        for i in 0..rows {
            for j in 0..cols {
                let x = (seed + 1) * 7919 + i * 104_729 + j * 1_299_709;
                memory[i * mat.rs + j * mat.cs] = (x % 2003) as f32 / 1000.0 - 1.0;
            }
        }
        Within { memory, mat }
    }

    fn at(&self, i: usize, j: usize) -> f32 {
        self.memory[i * self.mat.rs + j * self.mat.cs]
    }

    fn parts(&self) -> (&[f32], Mat) {
        (&self.memory, self.mat)
    }
}

#[derive(Clone, Copy, Debug)]
struct Layout {
    transposed: bool,
    /// Stride between rows.
    gap: usize,
    /// Stride within a row.
    step: usize,
}

fn layout() -> impl Strategy<Value = Layout> {
    let steps = prop_oneof![8 => Just(1usize), 1 => Just(2)];
    (any::<bool>(), prop_oneof![2 => Just(0usize), 1 => 1..5usize], steps).prop_map(|(transposed, gap, step)| Layout {
        transposed,
        gap,
        step,
    })
}

/// Around the sizes of vectors and tiles.
fn size() -> impl Strategy<Value = usize> {
    let edges = [6, 8, 12, 16, 24, 32, 48, 64, 80, 128];
    prop_oneof![0..6usize, (select(edges.to_vec()), 0..4usize).prop_map(|(n, d)| n + d - 1)]
}

/// Common sizes of k, and some that exceed one pass.
fn steps() -> impl Strategy<Value = usize> {
    prop_oneof![6 => size(), 1 => 250..260usize, 1 => 510..780usize]
}

/// y = start + alpha a b, with the memory around y unchanged; `start` 0: zero, 1: y, 2: a row.
fn agrees(
    products: Products,
    (m, k, n): (usize, usize, usize),
    layouts: [Layout; 3],
    start: usize,
    alpha: f32,
) -> Result<(), TestCaseError> {
    let rounded = |x: f32| match products {
        Products::F32 => f64::from(x),
        Products::Bf16 => bf16::from_f32(x).to_f64(),
    };
    let (a, b) = (Within::new(m, k, layouts[0], 1), Within::new(k, n, layouts[1], 2));
    let before = Within::new(m, n, layouts[2], 3);
    let row: Vec<f32> = (0..n).map(|j| j as f32 / 7.0 - 1.0).collect();
    let compute = || {
        let mut y = before.clone();
        let start = [Epilogue::Set, Epilogue::Add, Epilogue::Bias(&row)][start];
        gemm_as(products, start, alpha, a.parts(), b.parts(), (&mut y.memory, y.mat));
        y
    };
    let y = compute();
    let mut outside = before.clone();
    for i in 0..m {
        for (j, &row) in row.iter().enumerate() {
            let terms = (0..k).map(|p| f64::from(alpha) * rounded(a.at(i, p)) * rounded(b.at(p, j)));
            let (sum, size) = terms.fold((0.0, 0.0), |(sum, size): (f64, f64), x| (sum + x, size + x.abs()));
            let from = [0.0, before.at(i, j), row][start].into();
            let bound = f64::from(f32::EPSILON) * (2.0 * f64::abs(from) + (k + 2) as f64 * size);
            let got = f64::from(y.at(i, j));
            let error = (got - from - sum).abs();
            prop_assert!(error <= bound, "y[{i}, {j}] = {got}, off by {error:e} of at most {bound:e}");
            if products == Products::Bf16 {
                // Rounding to eight bits moves each operand by at most 2⁻⁸ of itself, and so their product by 2⁻⁷.
                let exact = (0..k).map(|p| f64::from(alpha) * f64::from(a.at(i, p)) * f64::from(b.at(p, j)));
                let (sum, size) = exact.fold((0.0, 0.0), |(sum, size): (f64, f64), x| (sum + x, size + x.abs()));
                let (error, bound) = ((got - from - sum).abs(), bound + (2f64.powi(-7) + 2f64.powi(-16)) * size);
                prop_assert!(error <= bound, "y[{i}, {j}] = {got}, {error:e} of at most {bound:e} from exact");
            }
            outside.memory[i * y.mat.rs + j * y.mat.cs] = y.memory[i * y.mat.rs + j * y.mat.cs];
        }
    }
    let bits = |y: &Within| y.memory.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    prop_assert_eq!(bits(&y), bits(&outside), "memory around y was written to");
    prop_assert_eq!(bits(&y), bits(&compute()), "not the same bits again");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn product_is_the_sum_of_products(
        (m, k, n) in (size(), steps(), size()),
        layouts in [layout(), layout(), layout()],
        start in 0..3usize,
        alpha in select(vec![1.0f32, -1.0, 0.3]),
    ) {
        agrees(Products::F32, (m, k, n), layouts, start, alpha)?;
    }

    #[test]
    fn product_in_bf16_is_that_of_rounded_operands(
        (m, k, n) in (size(), steps(), size()),
        layouts in [layout(), layout(), layout()],
        start in 0..3usize,
        alpha in select(vec![1.0f32, -1.0, 0.3]),
    ) {
        if Products::Bf16.check_processor().is_ok() {
            agrees(Products::Bf16, (m, k, n), layouts, start, alpha)?;
        }
    }
}

/// The shapes with their own kernels: narrow ones with rows of four and more, tall ones transposed.
#[test]
fn narrow_and_tall_products() {
    let plain = Layout { transposed: false, gap: 0, step: 1 };
    let transposed = Layout { transposed: true, ..plain };
    for m in [16, 17, 35, 48, 127] {
        for k in [3, 4, 5, 8, 16, 17, 33, 65] {
            for n in 1..=9 {
                for start in 0..3 {
                    agrees(Products::F32, (m, k, n), [plain, transposed, plain], start, 1.0).expect("x wᵀ");
                    agrees(Products::F32, (k, m, n), [transposed, plain, plain], start, 1.0).expect("gᵀ x");
                    agrees(Products::F32, (n, m, k), [transposed, plain, plain], start, 1.0).expect("gᵀ x of few rows");
                }
            }
        }
    }
}

/// A linear layer's backward pass takes many rows in parts, and gives the gradients of a product and a sum, also where
/// dx is added to another gradient.
#[test]
fn linear_in_parts_is_linear() {
    for (rows, i, o) in [(600, 200, 60), (513, 4, 300), (1000, 129, 130), (1024, 64, 256)] {
        let wave = |n: usize, f: f64| (0..n).map(|x| (f * x as f64).sin() as f32).collect::<Vec<_>>();
        let (x, w) = (Tensor::from_vec(wave(rows * i, 0.3), [rows, i]), Tensor::from_vec(wave(o * i, 0.7), [o, i]));
        let b = Tensor::from_vec(wave(o, 0.9), [o]);
        let run = |layer: bool, twice: bool| {
            let tape = Tape::default();
            let (x, w, b) = (tape.leaf(&x), tape.leaf(&w), tape.leaf(&b));
            let y = if layer { x.linear(w, Some(b)) } else { x.matmul_t(w) + b };
            let c = Tensor::from_vec(wave(y.shape().len(), 1.1), y.shape());
            let loss = (y * tape.constant(&c)).sum();
            tape.backward(if twice { loss + x.square().sum() } else { loss });
            let grad = |v: Var<'_>| v.grad().expect("a gradient").to_f64();
            [y.value().to_f64(), grad(x), grad(w), grad(b)]
        };
        for twice in [false, true] {
            let (ours, want) = (run(true, twice), run(false, twice));
            for (what, (a, b)) in ["y", "dx", "dw", "db"].iter().zip(ours.iter().zip(&want)) {
                let size = b.iter().fold(0.0, |m: f64, b| m.max(b.abs()));
                let off = a.iter().zip(b).map(|(a, b)| (a - b).abs());
                let error = off.fold(0.0, |m: f64, e| if e.is_nan() { f64::INFINITY } else { m.max(e) });
                assert!(
                    error <= 1e-5 * size,
                    "{what} of {rows} x {i} x {o}, twice {twice}: off by {error:e} of {size}"
                );
            }
        }
    }
}

/// The first steps of every model with bf16 products stay close to single precision; and Linear and Matmul read the
/// setting from the tape.
#[test]
fn training_in_bf16_follows_single_precision() {
    if !has_bf16("training_in_bf16_follows_single_precision") {
        return;
    }
    let config = |model: &str, products: &str| {
        let text = format!(
            "models = [\"{model}\"]\nproducts = \"{products}\"\nbatch = 16\ntrain_len = 12\neval_lens = [12]\n\
            device = \"cpu\"\nsteps = 10\nwarmup = 0\nlr = 1e-3\n\
            [model]\nwidth = 32\nheads = 2\nhead_dim = 16\nmlp = 64\nstate = 16"
        );
        TrainConfig::load(None, text.parse().expect("TOML")).expect("a configuration")
    };
    for model in tapezoo::models::names() {
        let losses = |products| {
            let cfg = config(model, products);
            let mut trainer = Trainer::new(&cfg.for_model(model).expect("a model"), 0).expect("a trainer");
            (0..10).map(|_| trainer.step().expect("a step").loss).collect::<Vec<_>>()
        };
        let (single, half) = (losses("f32"), losses("bf16"));
        assert_ne!(single, half, "{model}: rounding changes nothing, so there was none");
        for (step, (a, b)) in single.iter().zip(&half).enumerate() {
            assert!(
                relative_eq!(a, b, epsilon = 0.0, max_relative = 2e-2),
                "{model}, step {}: loss {b} in bf16, {a} in f32",
                step + 1
            );
        }
    }
}

/// Invalid settings are refused, with a remedy.
#[test]
fn bf16_needs_the_cpu_and_single_precision() {
    let refused = |more: &str| {
        let text = format!("products = \"bf16\"\n{more}");
        TrainConfig::load(None, text.parse().expect("TOML")).expect_err("should be refused").to_string()
    };
    let device = refused("device = \"emulated\"");
    assert!(device.contains("products bf16: expected the device cpu") && device.contains("emulated"), "{device}");
    let dtype = refused("device = \"cpu\"\ndtype = \"f64\"");
    assert!(dtype.contains("products bf16: expected dtype f32"), "{dtype}");
    let unknown =
        TrainConfig::load(None, "products = \"f16\"".parse().expect("TOML")).expect_err("unknown").to_string();
    assert!(unknown.contains("'f16'") && unknown.contains("bf16"), "{unknown}");
    assert!(Products::Bf16.check(Device::Cpu, DType::F32).is_ok());
    if let Err(why) = Products::Bf16.check_processor() {
        assert!(why.contains("avx512_bf16") && why.contains("expected products f32"), "{why}");
    }
}

/// A run directory records its kind of products, and a resumed run keeps it.
#[test]
fn products_are_kept_by_a_run_directory() {
    if !has_bf16("products_are_kept_by_a_run_directory") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("out");
    let run = |flags: &[&str]| {
        let small = "--models lstm --steps 3 --train-len 6 --batch 2 --eval-lens 6 --device cpu";
        let flags = small.split(' ').chain(flags.iter().copied());
        let ran = program("parity").args(flags).output().expect("a run");
        (ran.status.code(), String::from_utf8_lossy(&ran.stderr).into_owned())
    };
    let path = out.to_str().expect("a path");
    assert_eq!(run(&["--products", "bf16", "--out", path]).0, Some(0));
    let kept = std::fs::read_to_string(out.join("config.toml")).expect("config.toml");
    assert!(kept.contains("products = \"bf16\""), "{kept}");
    assert_eq!(run(&["--resume", path]).0, Some(0));
    let (status, why) = run(&["--resume", path, "--products", "f32"]);
    assert!(status == Some(2) && why.contains("products is \"bf16\" there"), "{why}");
}
