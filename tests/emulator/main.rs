//! The emulator itself: results of CUDA's primitives, and reports of its checks; in `counters.rs` its
//! counters, in `driver.rs` its driver, in `grid.rs` blocks that wait for each other.
#![allow(clippy::unwrap_used, clippy::needless_range_loop)]

mod counters;
#[path = "../device/mod.rs"]
mod device;
mod driver;
mod grid;
mod machine;
#[path = "../texts/mod.rs"]
mod texts;

use approx::abs_diff_eq;
use machine::{Arg, Launch, ORDERS, launch, machine};
use tapezoo::cuda::emulator::Order;

const BUGS: &str = include_str!("../../cuemu/tests/bugs.cu");
const GOOD: &str = include_str!("../../cuemu/tests/good.cu");
const TENSOR_CORE: &str = include_str!("../../cuemu/tests/tensor_core.cu");

/// The lines that a report about this kernel may name: those with `// HERE`.
fn marked(kernel: &str) -> usize {
    let from = BUGS.find(&format!(" {kernel}(")).unwrap();
    let here = from + BUGS[from..].find("// HERE").unwrap();
    BUGS[..here].lines().count()
}

fn ramp(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32).collect()
}

/// A vector of irregular numbers.
fn noise(n: usize) -> Vec<f32> {
    (0..n as u64).map(|i| ((i * 2654435761 % 10007) as f32) / 5003.0 - 1.0).collect()
}

#[test]
fn every_planted_bug_is_reported_with_kernel_thread_and_line() {
    let Some(m) = machine() else { return };
    let (x, y) = (&mut ramp(1024)[..], &mut vec![0f32; 256][..]);
    // kernel, launch, arguments ('x' and 'y' as above, 's' a short y), what the report must say
    let cases: &[(&str, Launch, &str, &str)] = &[
        ("missing_barrier", launch(1, 128), "xy", "race on shared memory"),
        ("missing_second_barrier", launch(1, 128), "xy4", "race on shared memory"),
        ("missing_syncwarp", launch(1, 32), "xy", "race on shared memory"),
        ("shuffle_is_no_barrier", launch(1, 32), "xy", "race on shared memory"),
        ("read_past_the_end", launch(1, 256), "sy", "out-of-bounds read of 4 bytes, 4 bytes past the end"),
        ("write_past_the_end", launch(1, 256), "s200", "out-of-bounds write of 4 bytes, 4 bytes past the end"),
        ("read_before_the_start", launch(1, 32), "xy", "4 bytes before the start"),
        ("null_pointer", launch(1, 32), "y0", "null pointer"),
        ("dynamic_shared_too_small", Launch { shared: 252, ..launch(1, 64) }, "y", "byte 252 of dynamic shared"),
        ("array_index", launch(1, 16), "y", "is out of bounds"),
        ("misaligned_vector", launch(1, 32), "xy", "misaligned"),
        ("divergent_barrier", launch(1, 64), "y", "divergent barrier"),
        ("two_barriers", launch(1, 64), "y", "divergent barrier"),
        ("lane_outside_its_mask", launch(1, 64), "y", "is not in its mask"),
        ("mask_names_absent_lanes", launch(1, 64), "y", "exited"),
        ("different_warp_operations", launch(1, 32), "y", "other lanes of mask"),
        ("uninitialised_shared", launch(1, 64), "y", "uninitialised shared memory"),
        ("uninitialised_device", launch(1, 64), "uy", "uninitialised device memory"),
        ("blocks_race_on_a_sum", launch(8, 1), "y", "race on device memory"),
        ("blocks_race_on_neighbours", launch(8, 32), "xy", "race on device memory"),
        ("copy_without_wait", launch(1, 32), "xy", "memory"),
    ];
    for order in ORDERS {
        m.set(true, order);
        let module = m.module(BUGS, "bugs.cu");
        for &(kernel, l, arguments, says) in cases {
            let mut short = vec![0f32; if arguments.contains("200") { 200 } else { 256 }];
            let mut args = vec![];
            for c in arguments.chars().filter(|c| c.is_alphabetic()) {
                args.push(match c {
                    'x' => Arg::F32(unsafe_copy(x)),
                    'y' => Arg::F32(unsafe_copy(y)),
                    's' => Arg::F32(unsafe_copy(&mut short)),
                    _ => Arg::Unwritten(1024),
                });
            }
            match arguments.trim_start_matches(char::is_alphabetic) {
                "0" => args.push(Arg::Null),
                "" => {}
                n => args.push(Arg::Int(n.parse().unwrap())),
            }
            let report = m.run(&module, kernel, l, &mut args).expect_err(&format!("{kernel}, {order:?}: not noticed"));
            assert!(report.starts_with(&format!("{kernel}<<<(")), "{report}");
            assert!(report.contains("block (") && report.contains("thread ("), "{report}");
            // An early cp.async is not a fault by itself: a race with its write, or the read, is.
            assert!(report.contains(says), "{kernel}, {order:?}: {report}");
            let line = marked(kernel);
            let named = |l: usize| report.contains(&format!("bugs.cu:{l}"));
            let near = ["two_barriers", "different_warp_operations", "copy_without_wait", "missing_syncwarp"];
            assert!(named(line) || (near.contains(&kernel) && (line - 5..line).any(named)), "line {line}: {report}");
        }
    }
}

/// The arguments of one launch may name a vector only once, but each launch may use it again.
fn unsafe_copy<'a>(v: &mut [f32]) -> &'a mut [f32] {
    Vec::leak(v.to_vec())
}

fn cumulated(x: &[f32], row: usize) -> Vec<f32> {
    let scan = |row: &[f32]| {
        row.iter()
            .scan(0f64, |sum, v| {
                *sum += f64::from(*v);
                Some(*sum as f32)
            })
            .collect::<Vec<_>>()
    };
    x.chunks(row).flat_map(scan).collect()
}

fn close(a: &[f32], b: &[f32], tolerance: f32) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| abs_diff_eq!(a, b, epsilon = tolerance))
}

/// Runs every correct kernel of `source`; names the first that gave a wrong result or faulted.
fn good_kernels(m: &machine::Machine, source: &str) -> Result<(), String> {
    let module = m.module_with(source, "good.cu", &["matmul<double,8>"]);
    let expect = |ok: bool, what: &str| if ok { Ok(()) } else { Err(format!("{what}: wrong result")) };

    let (mut x, mut sum) = (noise(5003), vec![0f32]);
    m.run(&module, "block_sum", launch(3, 256), &mut [Arg::F32(&mut x), Arg::F32(&mut sum), Arg::Int(5003)])?;
    expect(abs_diff_eq!(sum[0], x.iter().sum::<f32>(), epsilon = 1e-2), "block_sum")?;

    let (mut x, mut y) = (noise(3 * 500), vec![f32::NAN; 3 * 500]);
    m.run(&module, "scan_rows", launch(3, 128), &mut [Arg::F32(&mut x), Arg::F32(&mut y), Arg::Int(500)])?;
    expect(close(&y, &cumulated(&x, 500), 1e-3), "scan_rows")?;

    let (rows, cols, inner) = (20usize, 29usize, 33usize);
    let (mut a, mut b, mut c) = (noise(rows * inner), noise(inner * cols), vec![f32::NAN; rows * cols]);
    let product = |i: usize| (0..inner).map(|k| a[i / cols * inner + k] * b[k * cols + i % cols]).sum::<f32>();
    let want: Vec<f32> = (0..rows * cols).map(product).collect();
    let sizes = || [rows, cols, inner].map(|n| Arg::Int(n as i32));
    let l = Launch { grid: (2, 2, 1), block: (16, 16, 1), shared: 1024, ..launch(1, 1) };
    let mut args = vec![Arg::F32(&mut a), Arg::F32(&mut b), Arg::F32(&mut c)];
    args.extend(sizes());
    m.run(&module, "matmul_f32", l, &mut args)?;
    drop(args);
    expect(close(&c, &want, 1e-4), "matmul_f32")?;

    let wide = |v: &[f32]| v.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    let (mut a, mut b, mut c) = (wide(&a), wide(&b), vec![f64::NAN; rows * cols]);
    let l = Launch { grid: (4, 3, 1), block: (8, 8, 1), shared: 512, ..launch(1, 1) };
    let mut args = vec![Arg::F64(&mut a), Arg::F64(&mut b), Arg::F64(&mut c)];
    args.extend(sizes());
    m.run(&module, "matmul<double,8>", l, &mut args)?;
    drop(args);
    expect(c.iter().zip(&want).all(|(a, b)| abs_diff_eq!(*a, f64::from(*b), epsilon = 1e-4)), "matmul<double,8>")?;

    let (mut x, mut y) = (ramp(1024), vec![0f32; 1024]);
    m.run(&module, "warp_transpose", launch(1, 32), &mut [Arg::F32(&mut x), Arg::F32(&mut y)])?;
    expect((0..1024).all(|i| y[i] == x[i % 32 * 32 + i / 32]), "warp_transpose")?;

    let mut y = vec![0f32; 64];
    m.run(&module, "early_exit", launch(1, 64), &mut [Arg::F32(&mut y), Arg::Int(50)])?;
    expect(y.iter().sum::<f32>() == 50.0, "early_exit")?;

    let (mut x, mut h) = ((0..256).collect::<Vec<i32>>(), vec![0; 8]);
    m.run(&module, "histogram", launch(2, 128), &mut [Arg::I32(&mut x), Arg::I32(&mut h), Arg::Int(256)])?;
    expect(h == [32; 8], "histogram")?;

    let mut y = vec![0u16; 256];
    m.run(&module, "halves", launch(1, 256), &mut [Arg::U16(&mut y)])?;
    expect((0..256).all(|i| y[i as usize] == i ^ 1), "halves")
}

#[test]
fn correct_kernels_are_right_in_every_order_and_raise_no_alarm() {
    let Some(m) = machine() else { return };
    for check in [false, true] {
        for order in ORDERS {
            m.set(check, order);
            good_kernels(&m, GOOD).unwrap_or_else(|e| panic!("check {check}, {order:?}: {e}"));
        }
    }
}

#[test]
fn every_barrier_that_is_taken_away_is_missed() {
    let Some(m) = machine() else { return };
    let needed: Vec<usize> = GOOD.match_indices("();  // needed").map(|(i, _)| i).collect();
    assert!(needed.len() >= 8, "{needed:?}");
    for at in needed {
        let start = GOOD[..at].rfind("__sync").unwrap();
        let mutant = format!("{}{}{}", &GOOD[..start], " ".repeat(at + 3 - start), &GOOD[at + 3..]);
        for order in ORDERS {
            m.set(true, order);
            let line = GOOD[..at].lines().count();
            assert!(good_kernels(&m, &mutant).is_err(), "good.cu:{line} without its barrier, {order:?}: not noticed");
        }
    }
}

#[test]
fn warp_operations_follow_the_manual() {
    let Some(m) = machine() else { return };
    for check in [false, true] {
        for order in ORDERS {
            m.set(check, order);
            let module = m.module(GOOD, "good.cu");
            let mut y = vec![0i32; 16 * 32];
            m.run(&module, "warp_operations", launch(1, 32), &mut [Arg::I32(&mut y)]).unwrap();
            let thirds = (0..32).step_by(3).fold(0u32, |mask, lane| mask | 1 << lane) as i32;
            for lane in 0..32i32 {
                let want = [
                    5,
                    (lane & !7) + 1,
                    if lane < 3 { lane } else { lane - 3 },
                    if lane % 16 < 3 { lane } else { lane - 3 },
                    if lane + 3 > 31 { lane } else { lane + 3 },
                    lane ^ 7,
                    thirds,
                    1,
                    0,
                    31 * 16,
                    62,
                    if lane < 16 { lane ^ 1 } else { lane ^ 2 },
                    10,
                    1,
                    0,
                    lane ^ 1,
                ];
                let got: Vec<i32> = y.iter().skip(lane as usize).step_by(32).copied().collect();
                assert_eq!(got, want, "lane {lane}, check {check}, {order:?}");
            }
        }
    }
}

fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

#[test]
fn tensor_cores_multiply() {
    let Some(m) = machine() else { return };
    let (rows, cols, inner) = (100usize, 70usize, 104usize);
    let half = |v: Vec<f32>| v.into_iter().map(to_bf16).collect::<Vec<u16>>();
    let (mut a, mut b) = (half(noise(rows * inner)), half(noise(cols * inner)));
    let value = |h: u16| f32::from_bits(u32::from(h) << 16);
    let product = |i: usize| (0..inner).map(|k| value(a[i / cols * inner + k]) * value(b[i % cols * inner + k])).sum();
    let want: Vec<f32> = (0..rows * cols).map(product).collect();
    let mut run = |source: &str, check, order| {
        m.set(check, order);
        let module = m.module(source, "tensor_core.cu");
        let mut c = vec![f32::NAN; rows * cols];
        let mut args = vec![Arg::U16(&mut a), Arg::U16(&mut b), Arg::F32(&mut c)];
        args.extend([rows, cols, inner].map(|n| Arg::Int(n as i32)));
        m.run(&module, "gemm_bf16", Launch { grid: (2, 2, 1), ..launch(1, 128) }, &mut args)?;
        drop(args);
        if close(&c, &want, 1e-4) { Ok(()) } else { Err("wrong result".to_string()) }
    };
    for order in ORDERS {
        run(TENSOR_CORE, false, order).unwrap();
        run(TENSOR_CORE, true, order).unwrap();
    }
    // Without the wait, a copy that lands late is noticed; without either barrier, a race is.
    let no_wait = TENSOR_CORE.replace("cuemu::cp_async_wait(1);", "");
    assert!(run(&no_wait, true, Order::Forward).is_err() && run(&no_wait, false, Order::Forward).is_err());
    for (at, barrier) in TENSOR_CORE.match_indices("__syncthreads();") {
        let mutant = format!("{}{}", &TENSOR_CORE[..at], &TENSOR_CORE[at + barrier.len()..]);
        for order in ORDERS {
            assert!(run(&mutant, true, order).is_err(), "barrier at byte {at}, {order:?}");
        }
    }
}

/// `cargo test --test emulator -- --ignored --nocapture speed`
#[test]
#[ignore = "a measurement"]
fn speed() {
    let Some(m) = machine() else { return };
    for check in [false, true] {
        m.set(check, Order::Forward);
        let module = m.module(GOOD, "good.cu");
        for kernel in ["barriers", "shuffles"] {
            let mut best = f64::INFINITY;
            for _ in 0..10 {
                let start = std::time::Instant::now();
                let mut args = [Arg::F32(&mut vec![0.0; 64 * 128]), Arg::Int(100)];
                m.run(&module, kernel, launch(64, 128), &mut args).unwrap();
                best = best.min(start.elapsed().as_secs_f64());
            }
            let each = best * 1e9 / (64.0 * 128.0 * 100.0);
            println!("{kernel}, {}: {each:.1} ns a thread", if check { "checked" } else { "plain" });
        }
    }
}
