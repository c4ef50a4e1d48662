//! The emulator's counters, on kernels whose counts are known by hand.

use crate::{
    TENSOR_CORE,
    machine::{Arg, Launch, Machine, ORDERS, launch, machine},
    ramp,
};
use tapezoo::cuda::{
    counters::{self, Counts},
    emulator::{self, Order},
};

const COUNTERS: &str = include_str!("../../cuemu/tests/counters.cu");

/// The counts of `kernel`, which are the same in all orders, and y.
fn counted(m: &Machine, kernel: &str, l: Launch, n: Option<i32>) -> (Counts, Vec<f32>) {
    let runs = ORDERS.map(|order| {
        m.set(false, order);
        emulator::count(true);
        let module = m.module(COUNTERS, "counters.cu");
        let (mut x, mut y) = (ramp(2048), vec![0f32; 2048]);
        let mut args = vec![Arg::F32(&mut x), Arg::F32(&mut y)];
        args.extend(n.map(Arg::Int));
        m.run(&module, kernel, l, &mut args).unwrap();
        drop(args);
        let mut launches = emulator::counted();
        assert_eq!(launches.len(), 1);
        let (name, counts) = launches.remove(0);
        assert_eq!(name, kernel);
        (counts, y)
    });
    let counts = runs.each_ref().map(|run| run.0);
    assert_eq!(counts, [counts[0]; ORDERS.len()], "{kernel}");
    let [first, ..] = runs;
    first
}

#[test]
fn global_memory_is_read_in_sectors() {
    let Some(m) = machine() else { return };
    // kernel, blocks, threads: requests, sectors, the least, bytes touched
    for (kernel, blocks, threads, want) in [
        ("copy", 2, 256, [32, 128, 128, 4096]),
        ("copy", 1, 48, [4, 12, 12, 384]),
        ("copy_16_bytes", 1, 64, [4, 64, 64, 2048]),
        ("copy_32_bytes", 1, 32, [4, 128, 64, 2048]), // each half of a sector in an access of its own
        ("not_aligned", 1, 32, [2, 9, 8, 256]),
        ("strided", 1, 32, [2, 36, 8, 256]),
        ("broadcast", 1, 32, [2, 5, 5, 132]),
        ("sum", 1, 32, [2, 5, 5, 132]),
    ] {
        let (c, _) = counted(&m, kernel, launch(blocks, threads), None);
        assert_eq!([c.global_requests, c.sectors, c.least_sectors, c.touched_bytes], want, "{kernel}");
        assert_eq!([c.blocks, c.threads, c.dynamic_shared], [u64::from(blocks), u64::from(threads), 0]);
        assert_eq!([c.shared_requests, c.divergent, c.functions, c.barriers], [0; 4], "{kernel}");
    }
}

#[test]
fn words_in_one_bank_wait_for_one_another() {
    let Some(m) = machine() else { return };
    for (kernel, read) in [("transpose", 32), ("transpose_padded", 1)] {
        let (c, y) = counted(&m, kernel, launch(1, 1024), None);
        let got = [c.shared_requests, c.wavefronts, c.least_wavefronts, c.barriers, c.sectors, c.least_sectors];
        assert_eq!(got, [64, 32 + 32 * read, 64, 1, 256, 256], "{kernel}");
        let wanted: Vec<f32> = (0..1024).map(|i| ((i % 32) * 32 + i / 32) as f32).collect();
        assert_eq!(y[..1024], wanted, "{kernel}");
    }
    // Written and read in these strides; 0 is one element for all.
    for (kernel, stride, wavefronts, least) in [
        ("words", 1, 2, 2),
        ("words", 2, 4, 2),
        ("words", 32, 64, 2),
        ("words", 0, 2, 2),
        ("pairs", 1, 4, 4),
        ("pairs", 2, 8, 4),
        ("quads", 1, 8, 8),
        ("quads", 2, 16, 8),
        ("quads", 0, 8, 8),
    ] {
        let at = Launch { shared: 16384, ..launch(1, 32) };
        let (c, _) = counted(&m, kernel, at, Some(stride));
        assert_eq!(
            [c.wavefronts, c.least_wavefronts, c.dynamic_shared],
            [wavefronts, least, 16384],
            "{kernel} {stride}"
        );
    }
    let (c, _) = counted(&m, "halves", launch(1, 32), None);
    assert_eq!([c.wavefronts, c.least_wavefronts, c.barriers], [2, 2, 0]);
}

#[test]
fn an_access_of_some_lanes_is_divergent() {
    let Some(m) = machine() else { return };
    for (kernel, n, requests, sectors, divergent) in [
        ("halves_of_a_warp", None, 3, 6, 3),
        ("early_return", Some(16), 2, 4, 0),
        ("early_return", Some(40), 4, 10, 0),
        ("first_lane", None, 2, 5, 1),
        ("triangle", None, 33, (1..=32u64).map(|k| (33 - k).div_ceil(8)).sum::<u64>() + 4, 31),
        ("one_place_two_callers", None, 3, 2 + 1 + 4, 1),
        ("one_place_twice", None, 3, 2 + 1 + 4, 1),
    ] {
        let (c, _) = counted(&m, kernel, launch(1, if n == Some(40) { 64 } else { 32 }), n);
        assert_eq!([c.global_requests, c.sectors, c.divergent], [requests, sectors, divergent], "{kernel} {n:?}");
    }
}

#[test]
fn functions_are_counted_once_for_a_warp() {
    let Some(m) = machine() else { return };
    for (kernel, functions) in [("functions", 7), ("doubles", 2), ("integers", 0)] {
        let (c, _) = counted(&m, kernel, launch(2, 64), None);
        assert_eq!(c.functions, 4 * functions, "{kernel}");
    }
}

#[test]
fn tensor_cores_and_copies_are_counted() {
    let Some(m) = machine() else { return };
    m.set(false, Order::Forward);
    emulator::count(true);
    let module = m.module(TENSOR_CORE, "tensor_core.cu");
    let (mut a, mut b, mut c) = (vec![0u16; 128 * 128], vec![0u16; 128 * 128], vec![0f32; 128 * 128]);
    let mut args = vec![Arg::U16(&mut a), Arg::U16(&mut b), Arg::F32(&mut c)];
    args.extend([128; 3].map(Arg::Int));
    m.run(&module, "gemm_bf16", Launch { grid: (2, 2, 1), ..launch(1, 128) }, &mut args).unwrap();
    drop(args);
    let counts = emulator::counted()[0].1;
    let (warps, steps) = (4 * 4, 4);
    assert_eq!(counts.mma, warps * steps * 2 * 8);
    assert_eq!(counts.ldmatrix, warps * steps * 2 * 4);
    assert_eq!(counts.copies, warps * steps * 4);
    assert_eq!(counts.barriers, 4 * steps * 2);
    // Rows of 80 bytes: matrices are read without conflicts, and those that copies write have a few.
    let copied = counts.copies * 4;
    assert_eq!(counts.least_wavefronts, counts.ldmatrix * 4 + copied);
    assert_eq!(counts.shared_requests, counts.ldmatrix + counts.copies);
    assert_eq!(counts.touched_bytes, 128 * 128 * (2 + 2 + 4));
    assert_eq!(counts.divergent, 0);
}

#[test]
fn what_is_not_counted_is_the_same_and_leaves_no_record() {
    let Some(m) = machine() else { return };
    emulator::counted();
    for (kernel, threads) in [("functions", 32), ("triangle", 32), ("transpose", 1024)] {
        let (_, y) = counted(&m, kernel, launch(1, threads), None);
        m.set(false, Order::Forward);
        let module = m.module(COUNTERS, "counters.cu");
        let (mut x, mut plain) = (ramp(2048), vec![0f32; 2048]);
        m.run(&module, kernel, launch(1, threads), &mut [Arg::F32(&mut x), Arg::F32(&mut plain)]).unwrap();
        let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&plain), bits(&y), "{kernel}");
        // A module that was loaded without counters has none.
        emulator::count(true);
        m.run(&module, kernel, launch(1, threads), &mut [Arg::F32(&mut x), Arg::F32(&mut plain)]).unwrap();
        assert_eq!(emulator::counted(), []);
    }
}

#[test]
fn tables_are_as_wide_as_the_terminal_and_times_those_of_an_h100() {
    let all =
        Counts { blocks: 264, threads: 256, touched_bytes: 3_350_000, functions: 132 * 1755, ..Counts::default() };
    let two = [
        ("first".to_string(), all),
        ("first".to_string(), Counts { mma: 132 * 1755, ..all }),
        ("second".to_string(), Counts::default()),
    ];
    for width in [60, 80, 100] {
        let text = counters::tables(&two, width);
        assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
        let row =
            text.lines().filter(|line| line.starts_with("first")).flat_map(|line| line.split_whitespace().skip(1));
        let row: Vec<_> = row.collect();
        assert_eq!(row.len(), 19);
        assert_eq!(row[0], "2");
        // 8 blocks of a multiprocessor at once, and 1, 1, 2 microseconds for a launch.
        assert_eq!(row[14..], ["528", "0.50", "2.000", "1.000", "4.000"]);
    }
}
