//! Every kernel equals the definition of its op, the formula or the plain loops of a primitive: values and gradients, on
//! the CPU, in both precisions, of sizes from 1 on.
//!
//! Other tests compare the rest: `empty.rs` sizes of 0, `extremes` infinite, NaN and saturated inputs, `cuda.rs` a device
//! and bf16.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use std::collections::BTreeSet;
use tapezoo::{
    autograd::{Gen, Kernels, Tape, Var},
    ops::OPS,
    tensor::{DType, Tensor},
};

/// The results of an op, and the gradients of its inputs for random cotangents, with one use or several.
type Found = Vec<(String, Vec<f64>)>;

/// Small samples, and half of the time of sizes around the kernels' switches; with tensors of zeros, of equal rows and
/// at the ends of their range among them.
fn draw(seed: u64) -> Gen {
    let g = if large(seed) { Gen::new(seed).around_switches(1 << 12) } else { Gen::new(seed) };
    if seed.is_multiple_of(2) { g } else { g.at_edges() }
}

fn large(seed: u64) -> bool {
    seed % 4 >= 2
}

fn run(kernels: Kernels, sample: fn(&mut Gen) -> tapezoo::ops::Sample, seed: u64, dtype: DType, uses: u64) -> Found {
    run_scaled(kernels, sample, seed, dtype, uses, 1.0).0
}

/// [`run`] with all inputs times a number; and the kernels that ran.
fn run_scaled(
    kernels: Kernels,
    sample: fn(&mut Gen) -> tapezoo::ops::Sample,
    seed: u64,
    dtype: DType,
    uses: u64,
    scale: f64,
) -> (Found, Vec<&'static str>) {
    let scaled = |x: &Tensor| Tensor::from_vec(x.to_f64().into_iter().map(|x| scale * x).collect(), x.shape());
    let real = |x: &Tensor| if x.dtype() == DType::I32 { x.clone() } else { scaled(x).cast(dtype) };
    let tape = Tape::default().with_kernels(kernels);
    tape.poison(true);
    let inputs: Vec<Tensor> = sample(&mut draw(seed)).1.iter().map(real).collect();
    let place = |x: &Tensor| if x.dtype() == DType::I32 { tape.constant(x) } else { tape.leaf(x) };
    let x: Vec<Var> = inputs.iter().map(place).collect();
    let (mut found, mut seeds) = (vec![], vec![]);
    for of in 0..uses {
        for (i, y) in tape.apply_dyn(sample(&mut draw(seed)).0, &x).into_iter().enumerate() {
            seeds.push((y, Gen::new(seed ^ (i as u64 + 10 * of)).normal(y.shape()).cast(y.dtype())));
            found.push((format!("result {i} {}", y.shape()), y.value().to_f64()));
        }
    }
    tape.backward_from(seeds);
    for (i, x) in x.iter().enumerate().filter(|(_, x)| x.dtype() != DType::I32) {
        // For an input that no result depends on, a formula gives no gradient and a kernel gives zeros.
        let zeros = || vec![0.0; x.shape().len()];
        found.push((format!("gradient {i} {}", x.shape()), x.grad().map_or_else(zeros, |g| g.to_f64())));
    }
    (found, tape.ran())
}

/// The names of an op's kernels: each is forced in turn, and computes if it accepts the inputs.
fn each_kernel(sample: fn(&mut Gen) -> tapezoo::ops::Sample, seed: u64) -> Vec<&'static str> {
    let op = sample(&mut draw(seed)).0;
    op.kernels().iter().map(|kernel| kernel.name().unwrap_or(op.name())).collect()
}

/// The largest difference relative to the largest element of either, or to a tenth where all elements are small (a
/// gradient may be a sum that cancels).
fn off(a: &[f64], b: &[f64]) -> f64 {
    let size = a.iter().chain(b).fold(0.1, |size: f64, x| size.max(x.abs()));
    a.iter().zip(b).fold(0.0, |off: f64, (a, b)| if a == b { off } else { off.max((a - b).abs() / size) })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(28))]

    #[test]
    fn every_kernel_computes_what_defines_its_op(seed in any::<u64>(), uses in 1..3u64) {
        for (name, sample) in OPS {
            let exact = run(Kernels::Plain, *sample, seed, DType::F64, uses);
            // A long recurrence with wide weights is chaotic: it amplifies every rounding, whoever rounds. How much is
            // seen from roundings, and, as these may be lucky, from inputs that are about a rounding larger.
            let rough: Vec<f64> = if large(seed) {
                let single = run(Kernels::Plain, *sample, seed, DType::F32, uses);
                let moved = run_scaled(Kernels::Plain, *sample, seed, DType::F64, uses, 1.0 + 1e-7).0;
                let pairs = single.iter().zip(&moved).zip(&exact);
                pairs.map(|((single, moved), exact)| off(&single.1, &exact.1).max(off(&moved.1, &exact.1))).collect()
            } else {
                vec![]
            };
            if rough.iter().any(|&off| off > 1e-3) {
                continue;
            }
            for (dtype, tolerance) in [(DType::F64, 1e-10), (DType::F32, 2e-4)] {
                for by in each_kernel(*sample, seed) {
                    let kernel = run(Kernels::Only(vec![by.into()]), *sample, seed, dtype, uses);
                    prop_assert_eq!(kernel.len(), exact.len(), "{}: as many results and gradients", name);
                    for (i, ((what, kernel), (_, exact))) in kernel.iter().zip(&exact).enumerate() {
                        prop_assert_eq!(kernel.len(), exact.len(), "{}: the size of {}", name, what);
                        let rough = rough.get(i).filter(|_| dtype == DType::F32).copied().unwrap_or(0.0);
                        let off = off(kernel, exact);
                        prop_assert!(off <= tolerance + 10.0 * rough, "{by} in {dtype}: {what} is {off:.1e} off\n{kernel:?}\n{exact:?}");
                    }
                }
            }
        }
    }

    /// In single precision too, of small sizes.
    #[test]
    fn what_defines_an_op_does_so_in_either_precision(seed in any::<u64>()) {
        for (name, sample) in OPS {
            let seed = seed / 4 * 4 + seed % 2;
            let [double, single] = [DType::F64, DType::F32].map(|dtype| run(Kernels::Plain, *sample, seed, dtype, 1));
            for ((what, double), (_, single)) in double.iter().zip(&single) {
                let off = off(single, double);
                prop_assert!(off <= 2e-4, "{name}: {what} is {off:.1e} off in f32\n{single:?}\n{double:?}");
            }
        }
    }
}

/// A kernel that does not accept its inputs leaves them to the formula, which would then be compared with itself: of
/// thirty samples like those above each kernel accepts some.
#[test]
fn every_kernel_runs_where_it_is_forced() {
    for (name, sample) in OPS {
        let (mut forced, mut ran) = (BTreeSet::new(), BTreeSet::new());
        for seed in 0..30 {
            for by in each_kernel(*sample, seed) {
                forced.insert(by);
                if !ran.contains(by) {
                    ran.extend(run_scaled(Kernels::Only(vec![by.into()]), *sample, seed, DType::F64, 1, 1.0).1);
                }
            }
        }
        let never: Vec<_> = forced.difference(&ran).collect();
        assert!(never.is_empty(), "{name}: {never:?} did not run, of {forced:?}");
    }
}

/// An op is a primitive or has a formula, but not both.
#[test]
fn every_op_is_defined_once() {
    for (name, sample) in OPS {
        let (op, inputs) = sample(&mut Gen::new(1));
        let tape = Tape::default().with_kernels(Kernels::Plain);
        let x: Vec<Var> = inputs.iter().map(|x| tape.constant(x)).collect();
        let formula = op.formula(&x).is_some();
        assert_ne!(op.primitive().is_some(), formula, "{name}: a primitive and a formula, or neither");
    }
}

/// The engine's arithmetic stays as short as the crate's front page says.
#[test]
fn the_primitives_are_as_short_as_the_front_page_says() {
    let lines = |path: &std::path::Path| std::fs::read_to_string(path).unwrap().lines().count();
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = std::fs::read_dir(root.join("src/ops/primitives")).unwrap();
    let total: usize = files.map(|file| lines(&file.unwrap().path())).sum();
    let page = std::fs::read_to_string(root.join("src/lib.rs")).unwrap();
    let (before, _) = page.split_once(" lines of plain loops").unwrap();
    let said: usize = before.rsplit(' ').next().unwrap().replace(',', "").parse().unwrap();
    assert!(total <= said && said < total + 100, "{total} lines, and the front page says {said}");
}
