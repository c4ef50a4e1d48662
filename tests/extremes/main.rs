//! Every core, every mixer, every other op (`ops.rs`, `facts.rs`) and the optimiser (`optimizer.rs`) at the edges of
//! their inputs: gates that are shut or wide open, keys that are zero or all the same, elements that are huge, tiny or
//! NaN, empty sequences and batches, ids that are not there, and sizes on both sides of every switch between kernels.
//!
//! Two properties of cores and mixers, for all forms, in both precisions, on the CPU and on the emulated device:
//!
//! - **A form equals the recurrence**: values, last states and gradients are those of the recurrent form in double
//!   precision, to the rounding of the inputs, and no number is lost. The allowed error is measured: it is the change
//!   of the reference when the inputs change by a rounding (`judge.rs`).
//! - **Later steps never affect earlier ones**: whatever is at step t of some sequences, the steps before it and the
//!   other sequences keep every bit.
//!
//! Examples of errors that these properties find:
//!
//! - by the first property: the branch of chunked mLSTM's backward pass in the sign of a number that underflows (forget
//!   gates from 95 on); differences of prefix sums in the parallel gated delta rule and mLSTM (gates of −1e6, −1e9,
//!   −∞); exp(−m) in mLSTM's normaliser (a first input gate of −90); input gates of −∞ (left padding) in mLSTM and
//!   sLSTM; exp(A_log) = ∞ and exp(nu_log) = ∞ in single precision; a score and the maximum of scores in two roundings
//!   (narrow attention, queries of 1e4 and 1e8); recurrent forms of no steps; an sLSTM of no sequences on a device;
//! - by the second: masks that multiply by zero, in all parallel forms, in chunked forms with memories of more than 256
//!   elements, in chunked mLSTM, and in all kernels of memories and attention on a device.
//!
//! Sizes shrink when a case fails. `PROPTEST_CASES=n` tries n cases of each core, `PROPTEST_RNG_SEED=n` other ones;
//! `EXTREMES=delta` selects the cores and mixers with this in their names; `EXTREMES_SURVEY=n` tries n cases even if
//! some fail, and prints the failing ones (`-- --nocapture`).
#![allow(clippy::unwrap_used)]

mod cores;
#[path = "../device/mod.rs"]
mod device;
mod draw;
mod facts;
mod judge;
mod mixers;
mod ops;
mod optimizer;

use draw::Size;
use judge::Core;
use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{RngSeed, TestRunner},
};
use tapezoo::{
    autograd::Gen,
    tensor::{DType, Device},
};

/// A core or mixer by name, drawn at some size.
type Draw = Box<dyn Fn(&mut Gen, Size) -> Core>;

/// `n` cases of each core.
fn check(
    draws: Vec<(&str, Draw)>,
    n: u32,
    sizes: fn() -> BoxedStrategy<Size>,
    property: fn(&Core, u64) -> Result<(), String>,
) {
    let wanted = std::env::var("EXTREMES").unwrap_or_default();
    let draws = draws.into_iter().filter(|(name, _)| name.contains(&wanted));
    each(
        draws,
        n,
        || (sizes(), any::<u64>()),
        |draw, (size, seed)| {
            let core = draw(&mut Gen::new(seed), size);
            property(&core, seed).map_err(|why| format!("{}:\n  {why}", core.what))
        },
    );
}

/// `n` cases of each of these by name, unless `PROPTEST_CASES` says how many.
fn each<'n, X, S: Strategy>(
    all: impl Iterator<Item = (&'n str, X)>,
    n: u32,
    cases: impl Fn() -> S,
    attempt: impl Fn(&X, S::Value) -> Result<(), String>,
) {
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u32>().ok());
    let config = ProptestConfig {
        cases: number("PROPTEST_CASES").unwrap_or(n),
        failure_persistence: None,
        max_shrink_iters: 300,
        // The same cases every time: when one fails, the last change is what made it fail.
        rng_seed: RngSeed::Fixed(number("PROPTEST_RNG_SEED").unwrap_or(20_261_121).into()),
        ..ProptestConfig::default()
    };
    let mut failures = vec![];
    for (name, x) in all {
        let (mut runner, cases) = (TestRunner::new(config.clone()), cases());
        let attempt = |case| attempt(&x, case).map_err(|why| format!("{name}, {why}"));
        if let Some(n) = number("EXTREMES_SURVEY") {
            let drawn: Vec<_> = (0..n).map(|_| cases.new_tree(&mut runner).unwrap().current()).collect();
            drawn.into_iter().filter_map(|case| attempt(case).err()).for_each(|why| println!("FAILS {why}"));
        } else if let Err(why) = runner.run(&cases, |case| attempt(case).map_err(TestCaseError::fail)) {
            failures.push(why.to_string());
        }
    }
    assert!(failures.is_empty(), "{} fail:\n\n{}", failures.len(), failures.join("\n"));
}

/// Every form in both precisions on the CPU.
fn on_the_cpu(core: &Core, seed: u64) -> Result<(), String> {
    judge::same(core, seed, &[(Device::Cpu, DType::F64), (Device::Cpu, DType::F32)])
}

/// Every form on the emulated device.
fn emulated(core: &Core, seed: u64) -> Result<(), String> {
    judge::same(core, seed, &[(Device::Emulated, DType::F64), (Device::Emulated, DType::F32)])
}

fn later_on_the_cpu(core: &Core, seed: u64) -> Result<(), String> {
    judge::later(core, seed, &[(Device::Cpu, DType::F64), (Device::Cpu, DType::F32)])
}

fn later_emulated(core: &Core, seed: u64) -> Result<(), String> {
    judge::later(core, seed, &[(Device::Emulated, DType::F32)])
}

#[test]
fn a_form_of_a_core_is_its_recurrence() {
    check(cores::all(), 48, draw::sizes, on_the_cpu);
}

#[test]
fn a_form_of_a_mixer_is_its_recurrence() {
    check(mixers::all(), 24, draw::sizes, on_the_cpu);
}

#[test]
fn a_form_of_a_model_is_its_recurrence() {
    check(mixers::models(), 8, draw::sizes, on_the_cpu);
}

#[test]
fn what_comes_later_never_reaches_what_came_before() {
    check(cores::all(), 48, draw::sizes, later_on_the_cpu);
    check(mixers::all(), 24, draw::sizes, later_on_the_cpu);
}

#[test]
fn emulated_cores_are_their_recurrence() {
    if device::device().is_some() {
        check(cores::all(), 30, draw::small, emulated);
    }
}

#[test]
fn emulated_mixers_are_their_recurrence() {
    if device::device().is_some() {
        check(mixers::all(), 15, draw::small, emulated);
    }
}

#[test]
fn what_comes_later_never_reaches_what_came_before_emulated() {
    if device::device().is_some() {
        check(cores::all(), 30, draw::small, later_emulated);
        check(mixers::all(), 15, draw::small, later_emulated);
    }
}
