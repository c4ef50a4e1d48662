//! Every kernel equals the definition of its op, the formula or the plain loops of a primitive: values and gradients, on
//! the CPU, in both precisions, of sizes from 1 on.
//!
//! Other tests compare the rest: `empty.rs` sizes of 0, `extremes` infinite, NaN and saturated inputs, `cuda.rs` a device
//! and bf16.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use tapezoo::{
    check::{Checked, OpCase},
    ops::OPS,
};

/// Assert that a check holds for every op.
fn each(check: impl Fn(OpCase) -> Checked) -> Result<(), TestCaseError> {
    OPS.iter().try_for_each(|entry| check(entry.into())).map_err(TestCaseError::fail)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(28))]

    #[test]
    fn every_kernel_computes_what_defines_its_op(seed in any::<u64>(), uses in 1..3u64) {
        each(|op| op.kernels(seed, uses))?;
    }

    /// The same in single precision, with small sizes.
    #[test]
    fn what_defines_an_op_does_so_in_either_precision(seed in any::<u64>()) {
        each(|op| op.precisions(seed))?;
    }
}

/// Kernels are compared on the samples that they accept: of thirty samples like those above each kernel accepts some.
#[test]
fn every_kernel_runs_where_it_is_forced() {
    each(|op| op.forced(30)).unwrap();
}

/// An op is a primitive or has a formula, but not both.
#[test]
fn every_op_is_defined_once() {
    each(|op| op.definition()).unwrap();
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
