//! Every kernel with the emulator's checks on (races, bounds, alignment, divergent barriers, reads of uninitialised
//! memory), with threads and blocks forward and in two random orders: the tests of the kernels, run again as separate
//! processes.

mod device;

use device::{checked, kernel_tests, side_by_side, skipped};
use std::time::Instant;
use tapezoo::cuda::emulator;

#[test]
fn every_kernel_passes_the_checks_in_any_order() {
    check(|name| name == "cuda", &["follows_the_cpu_in_single"]);
}

#[test]
#[ignore = "a minute or two; .ci/run does it"]
fn every_type_and_size_passes_the_checks_in_any_order() {
    check(|_| true, &[]);
}

/// Run the tests of these files; of these names, if any are given.
fn check(wanted: impl Fn(&str) -> bool, names: &[&str]) {
    if let Err(why) = emulator::libraries() {
        return skipped(&why);
    }
    let tests = kernel_tests();
    let tests = tests.iter().filter(|(name, _)| wanted(name));
    let runs: Vec<_> =
        ["forward", "random"].into_iter().flat_map(|o| tests.clone().map(move |(n, p)| (n, p, o))).collect();
    let failures: Vec<String> = side_by_side(&runs, |(name, binary, order)| {
        let start = Instant::now();
        let ran = checked(binary, order, 3)
            .env("TAPEZOO_EMU_SEED", "7")
            .args(names)
            .output()
            .map_err(|e| format!("{name}: {e}"));
        println!("{name}, {order}: {:.1} s", start.elapsed().as_secs_f64());
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        ran.map(|r| {
            let fine = r.status.success();
            (!fine).then(|| format!("{name}, {order}:\n{}{}", text(&r.stdout), text(&r.stderr)))
        })
        .unwrap_or_else(Some)
    })
    .into_iter()
    .flatten()
    .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
