//! The emulator's cooperative launches: blocks that wait for each other, and the reports when they do so wrongly.

use super::machine::{Arg, Launch, Machine, ORDERS, launch, machine};

const GRID: &str = include_str!("../../cuemu/tests/grid.cu");
const BLOCKS: usize = 5;
const THREADS: usize = 64;
const ROUNDS: usize = 4;

/// The elements after all rounds, or the fault.
fn ring(m: &Machine, source: &str, l: Launch, absent: i32, meet: i32) -> Result<Vec<f32>, String> {
    let n = (l.grid.0 * l.block.0) as usize;
    let (mut x, mut y): (Vec<f32>, _) = ((0..n).map(|i| i as f32).collect(), vec![f32::NAN; n]);
    let (mut all, mut count) = (vec![f32::NAN; n * ROUNDS], vec![0]);
    let mut args = [
        Arg::F32(&mut x),
        Arg::F32(&mut y),
        Arg::F32(&mut all),
        Arg::I32(&mut count),
        Arg::Int(ROUNDS as i32),
        Arg::Int(absent),
        Arg::Int(meet),
    ];
    m.run(&m.module(source, "grid.cu"), "ring", l, &mut args)?;
    Ok(y)
}

fn together() -> Launch {
    Launch { together: true, ..launch(BLOCKS as u32, THREADS as u32) }
}

#[test]
fn blocks_meet_in_every_order() {
    let Some(m) = machine() else { return };
    let n = BLOCKS * THREADS;
    let mut want: Vec<f32> = (0..n).map(|i| i as f32).collect();
    for _ in 0..ROUNDS {
        want = (0..n).map(|i| want[i] + want[(i + THREADS) % n]).collect();
    }
    for (check, order) in [false, true].into_iter().flat_map(|check| ORDERS.map(|order| (check, order))) {
        m.set(check, order);
        let got = ring(&m, GRID, together(), -1, 1).unwrap_or_else(|e| panic!("check {check}, {order:?}: {e}"));
        assert_eq!(got, want, "check {check}, {order:?}");
    }
}

#[test]
fn a_meeting_needs_its_barriers() {
    let Some(m) = machine() else { return };
    for (at, _) in GRID.match_indices("__syncthreads();  // needed") {
        let mutant = format!("{}{}{}", &GRID[..at], " ".repeat(16), &GRID[at + 16..]);
        for order in ORDERS {
            m.set(true, order);
            let report = ring(&m, &mutant, together(), -1, 1).expect_err("not noticed");
            assert!(report.contains("race on device memory"), "{order:?}: {report}");
        }
    }
}

#[test]
fn those_who_wait_for_ever_are_reported() {
    let Some(m) = machine() else { return };
    for (check, order) in [false, true].into_iter().flat_map(|check| ORDERS.map(|order| (check, order))) {
        m.set(check, order);
        let says = |l: Launch, absent: i32, what: &str| {
            let report = ring(&m, GRID, l, absent, 1).expect_err(&format!("{order:?}: not noticed: {what}"));
            assert!(report.contains(what), "{order:?}: {report}");
        };
        says(together(), 2, "all blocks wait for one another");
        says(Launch { together: false, ..together() }, -1, "not cooperative");
        says(Launch { together: true, ..launch(100_000, 64) }, -1, "TOO_LARGE");
    }
    m.set(true, ORDERS[0]);
    let report = ring(&m, GRID, together(), -1, 0).expect_err("not noticed");
    assert!(report.contains("uninitialised") || report.contains("race on device memory"), "{report}");
}
