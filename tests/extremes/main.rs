//! Every core and every mixer at the edges of its inputs: gates that are shut or wide open, keys that are zero or all the
//! same, numbers that are huge, tiny or not numbers, sequences and batches of nothing, and sizes on both sides of every
//! switch between kernels.
//!
//! Two properties, for all forms, in both precisions, on the CPU and on the emulated device:
//!
//! - **A form is the recurrence**: values, last states and gradients are those of the recurrent form in double precision, to
//!   the rounding of the numbers that go in, and no number is lost. What a form may be off by is measured: by what the
//!   reference makes of inputs that are off by a rounding (`judge.rs`).
//! - **What comes later never reaches what came before**: whatever is at step t of some sequences, the steps before it and
//!   the other sequences keep every bit.
//!
//! Sizes shrink when a case fails. `PROPTEST_CASES` multiplies the work; `EXTREMES=gated_delta` runs the cores with this in
//! their names.
#![allow(clippy::unwrap_used)]

mod cores;
#[path = "../device/mod.rs"]
mod device;
mod draw;
mod judge;
mod mixers;

use draw::Size;
use judge::Core;
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use tapezoo::{
    autograd::Gen,
    tensor::{DType, Device},
};

/// A core or mixer by name, drawn at some size.
type Draw = Box<dyn Fn(&mut Gen, Size) -> Core>;

/// `n` cases of each core, unless `PROPTEST_CASES` says how many.
fn check(
    draws: Vec<(&str, Draw)>,
    n: u32,
    sizes: fn() -> BoxedStrategy<Size>,
    property: fn(&Core, u64) -> Result<(), String>,
) {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok());
    let wanted = std::env::var("EXTREMES").unwrap_or_default();
    let config = ProptestConfig {
        cases: asked.unwrap_or(n),
        failure_persistence: None,
        max_shrink_iters: 300,
        ..ProptestConfig::default()
    };
    let mut failures = vec![];
    if let Ok(n) = std::env::var("EXTREMES_SURVEY") {
        for (name, draw) in draws.into_iter().filter(|(name, _)| name.contains(&wanted)) {
            let mut runner = TestRunner::new(config.clone());
            for seed in 0..n.parse().unwrap() {
                let size = sizes().new_tree(&mut runner).unwrap().current();
                let core = draw(&mut Gen::new(seed), size);
                if let Err(why) = property(&core, seed) {
                    println!("SURVEY {name} | {why} | {}", core.what);
                }
            }
        }
        return;
    }
    for (name, draw) in draws.into_iter().filter(|(name, _)| name.contains(&wanted)) {
        let outcome = TestRunner::new(config.clone()).run(&(sizes(), any::<u64>()), |(size, seed)| {
            let core = draw(&mut Gen::new(seed), size);
            property(&core, seed).map_err(|why| TestCaseError::fail(format!("{name}, {}: {why}", core.what)))
        });
        if let Err(why) = outcome {
            failures.push(why.to_string());
        }
    }
    assert!(failures.is_empty(), "{} of the cores fail:\n\n{}", failures.len(), failures.join("\n"));
}

/// Every form in both precisions on the CPU.
fn on_the_cpu(core: &Core, seed: u64) -> Result<(), String> {
    judge::same(core, seed, &[(Device::Cpu, DType::F64), (Device::Cpu, DType::F32)])
}

/// The same emulated.
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
    check(cores::all(), 40, draw::sizes, on_the_cpu);
}

#[test]
fn a_form_of_a_mixer_is_its_recurrence() {
    check(mixers::all(), 12, draw::sizes, on_the_cpu);
}

#[test]
fn what_comes_later_never_reaches_what_came_before() {
    check(cores::all(), 40, draw::sizes, later_on_the_cpu);
    check(mixers::all(), 12, draw::sizes, later_on_the_cpu);
}

#[test]
fn emulated_cores_are_their_recurrence() {
    if device::device().is_some() {
        check(cores::all(), 4, draw::small, emulated);
    }
}

#[test]
fn emulated_mixers_are_their_recurrence() {
    if device::device().is_some() {
        check(mixers::all(), 1, draw::small, emulated);
    }
}

#[test]
fn what_comes_later_never_reaches_what_came_before_emulated() {
    if device::device().is_some() {
        check(cores::all(), 3, draw::small, later_emulated);
        check(mixers::all(), 1, draw::small, later_emulated);
    }
}
