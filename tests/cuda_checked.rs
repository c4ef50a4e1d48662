//! Every kernel with the emulator's checks on (races, bounds, alignment, divergent barriers, reads of uninitialised
//! memory): the tests of the kernels, run again as separate processes. Threads and blocks are in a random order here;
//! forward they run, without the checks, as the tests that they are.

mod device;

use device::{checked, kernel_tests, side_by_side, skipped};
use std::time::Instant;
use tapezoo::cuda::emulator;

#[test]
fn every_kernel_passes_the_checks() {
    check(|name| name == "cuda", &["follows_the_cpu_in_single"]);
}

#[test]
#[ignore = "minutes; .ci/kernels runs it"]
fn every_type_and_size_passes_the_checks() {
    check(|_| true, &[]);
}

/// Run the tests of these files; of these names, if any are given.
fn check(wanted: impl Fn(&str) -> bool, names: &[&str]) {
    if let Err(why) = emulator::libraries() {
        return skipped(&why);
    }
    let tests = kernel_tests();
    let tests = tests.iter().filter(|(name, _)| wanted(name));
    let runs: Vec<_> = tests.collect();
    let failures: Vec<String> = side_by_side(&runs, |(name, binary)| {
        let start = Instant::now();
        let ran = checked(binary, "random", 3).env("TAPEZOO_EMU_SEED", "7").args(names).output();
        println!("{name}: {:.1} s", start.elapsed().as_secs_f64());
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        match ran {
            Ok(r) if r.status.success() => None,
            Ok(r) => Some(format!("{name}:\n{}{}", text(&r.stdout), text(&r.stderr))),
            Err(e) => Some(format!("{name}: {e}")),
        }
    })
    .into_iter()
    .flatten()
    .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
