//! Shared by the tests of the CUDA backend: the device they run on, and the report of skipped tests.
#![allow(dead_code, reason = "not every test file needs all of it")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};
use tapezoo::{
    autograd::{Gen, Kernels, Op, Tape, Var},
    ops::in_f32,
    tensor::{Cx, DType, Device, Tensor},
};

/// The emulator, or the device that `TAPEZOO_TEST_DEVICE` names; `None` where there is no C++ compiler, which is
/// reported at the end.
pub fn device() -> Option<Device> {
    let name = std::env::var("TAPEZOO_TEST_DEVICE").unwrap_or_else(|_| "emulated".into());
    let device = name.parse().unwrap_or_else(|e| panic!("TAPEZOO_TEST_DEVICE={name}: {e}"));
    match Tape::open(device) {
        Ok(_) => Some(device),
        Err(why) if device == Device::Emulated => {
            skipped(&why);
            None
        }
        Err(why) => panic!("{why}"),
    }
}

/// Count this test as skipped. The output of passing tests is not shown, so the number of skipped tests and the reason
/// are printed at the end of the process.
pub fn skipped(why: &str) {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    static WHY: Mutex<String> = Mutex::new(String::new());
    extern "C" fn report() {
        let (n, why) = (COUNT.load(Ordering::SeqCst), WHY.lock().unwrap_or_else(PoisonError::into_inner));
        eprintln!("{n} test{} SKIPPED: {why}", if n == 1 { "" } else { "s" });
    }
    unsafe extern "C" {
        safe fn atexit(f: extern "C" fn()) -> i32;
    }
    *WHY.lock().unwrap_or_else(PoisonError::into_inner) = why.into();
    if COUNT.fetch_add(1, Ordering::SeqCst) == 0 {
        atexit(report);
    }
}

/// The tests that launch kernels, `tests/cuda.rs` and `tests/cuda_….rs`, by name: the latest of cargo's binaries beside
/// this one. They are run again as separate processes, with other settings of the emulator.
pub fn kernel_tests() -> BTreeMap<String, PathBuf> {
    let here = std::env::current_exe().expect("a test has a path");
    let mut latest = BTreeMap::new();
    for path in fs::read_dir(here.parent().expect("in a directory")).into_iter().flatten().flatten().map(|f| f.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Some((stem, hash)) = name.rsplit_once('-') else { continue };
        let kernels = stem == "cuda" || (stem.starts_with("cuda_") && !["cuda_checked", "cuda_errors"].contains(&stem));
        if !kernels || hash.contains('.') || !root().join(format!("tests/{stem}.rs")).exists() {
            continue;
        }
        let Ok(time) = path.metadata().and_then(|m| m.modified()) else { continue };
        match latest.get(stem) {
            Some((newest, _)) if *newest >= time => {}
            _ => drop(latest.insert(stem.to_string(), (time, path.clone()))),
        }
    }
    assert!(latest.contains_key("cuda"), "the tests to run are not built: cargo test --no-run");
    latest.into_iter().map(|(stem, (_, path))| (stem, path)).collect()
}

/// The repository; `TAPEZOO_ROOT` where the tests run on another machine than they were built on.
pub fn root() -> PathBuf {
    std::env::var_os("TAPEZOO_ROOT").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from)
}

/// One of these binaries, to be run on the emulator with its checks on, threads and blocks in this order.
pub fn checked(binary: &Path, order: &str, cases: usize) -> Command {
    let mut command = Command::new(binary);
    command
        .current_dir(root())
        .env("TAPEZOO_TEST_DEVICE", "emulated")
        .env("TAPEZOO_EMU_CHECK", "1")
        .env("TAPEZOO_EMU_ORDER", order)
        .env("TAPEZOO_CASES", cases.to_string())
        .env("RUST_BACKTRACE", "0")
        .args(["--test-threads", "1"]);
    command
}

/// Whether the emulator checks every access, as for [`checked`].
pub fn is_checked() -> bool {
    std::env::var_os("TAPEZOO_EMU_CHECK").is_some_and(|on| on == "1")
}

/// `f` of each, two at a time or as many as there are processors; results in the order of `items`.
pub fn side_by_side<T: Sync, R: Send>(items: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(vec![]));
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..processors {
            scope.spawn(|| {
                while let i = next.fetch_add(1, Ordering::SeqCst)
                    && let Some(item) = items.get(i)
                {
                    let result = f(item);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((i, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, result)| result).collect()
}

/// `x` for a run in `dtype` on `cx`, f32 in place of bf16 if `in_f32`. The CPU's inputs are rounded to bf16 as well;
/// integers stay unchanged.
pub fn place(x: &Tensor, cx: &Cx, dtype: DType, in_f32: bool) -> Tensor {
    match (x.dtype(), if in_f32 { dtype.real() } else { dtype }) {
        (DType::I32, _) => x.clone(),
        (_, DType::BF16) if cx.device() == Device::Cpu => rounded(x),
        (_, dtype) => x.to_device_as(cx, dtype),
    }
}

/// To bf16 and back.
pub fn rounded(x: &Tensor) -> Tensor {
    let round = |x: f64| {
        let u = (x as f32).to_bits();
        f32::from_bits((u + 0x7fff + ((u >> 16) & 1)) & 0xffff_0000)
    };
    Tensor::from_vec(x.to_f64().into_iter().map(round).collect(), x.shape())
}

/// ‖a − b‖ / ‖b‖, NaN counting as infinite.
pub fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    let d = norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied()).max(1e-2);
    if d.is_nan() { f64::INFINITY } else { d }
}

/// The CPU and, if available, the device.
pub fn all() -> Vec<Device> {
    [Some(Device::Cpu), device()].into_iter().flatten().collect()
}

/// The value of a formula of these inputs, on this device and in this type, and the gradients of those that are not
/// integers, for the cotangent `u` of its value, or ones.
pub fn evaluate(
    device: Device,
    dtype: DType,
    inputs: &[Tensor],
    u: Option<&Tensor>,
    f: impl for<'t> Fn(&[Var<'t>]) -> Var<'t>,
) -> Vec<Vec<f64>> {
    evaluate_by(Kernels::Fast, device, dtype, inputs, u, f)
}

/// The same, computed by these kernels.
pub fn evaluate_by(
    kernels: Kernels,
    device: Device,
    dtype: DType,
    inputs: &[Tensor],
    u: Option<&Tensor>,
    f: impl for<'t> Fn(&[Var<'t>]) -> Var<'t>,
) -> Vec<Vec<f64>> {
    let tape = Tape::new(device).with_kernels(kernels);
    tape.poison(true);
    let there = |x: &Tensor| if x.dtype() == DType::I32 { x.clone() } else { x.to_device_as(tape.cx(), dtype) };
    let place = |x: &Tensor| if x.dtype() == DType::I32 { tape.constant(x) } else { tape.leaf(&there(x)) };
    let x: Vec<Var> = inputs.iter().map(place).collect();
    let y = f(&x);
    let ones = Tensor::full(y.shape(), DType::F64, 1.0);
    let value = y.value().to_f64();
    tape.backward_from([(y, there(u.unwrap_or(&ones)).to_device_as(tape.cx(), y.dtype()))]);
    let grads = x.iter().filter(|x| x.dtype() != DType::I32).map(|x| x.grad().expect("a gradient").to_f64());
    std::iter::once(value).chain(grads).collect()
}

/// Values of the outputs and gradients of the inputs; without cotangents of the outputs that `without` names.
fn run_op(device: Device, op: Box<dyn Op>, x: &[Tensor], dtype: DType, without: Option<usize>) -> Vec<Vec<f64>> {
    let tape = Tape::new(device);
    tape.poison(true);
    let f32s = in_f32(op.name());
    let placed = x.iter().enumerate().map(|(i, x)| place(x, tape.cx(), dtype, f32s.contains(&i)));
    let x: Vec<_> = placed.map(|x| tape.leaf(&x)).collect();
    let y = tape.apply_dyn(op, &x);
    let mut all: Vec<Vec<f64>> = y.iter().map(|y| y.value().to_f64()).collect();
    let seeds = y
        .iter()
        .enumerate()
        .filter(|(i, _)| Some(*i) != without)
        .map(|(i, y)| (*y, place(&Gen::new(100 + i as u64).normal(y.shape()), tape.cx(), dtype, false)));
    tape.backward_from(seeds.collect::<Vec<_>>());
    all.extend(x.iter().map(|x| x.grad().map_or(vec![], |g| g.to_f64())));
    all
}

/// The device in double and single precision against the CPU in double.
pub fn follows(what: &str, op: &dyn Fn() -> Box<dyn Op>, x: &[Tensor], outputs: usize) {
    let Some(device) = device() else { return };
    let types = [(DType::F64, 1e-10), (DType::F32, 1e-4), (DType::BF16, 6e-2)];
    for without in (0..outputs).map(Some).chain([None]).rev() {
        let want = run_op(Device::Cpu, op(), x, DType::F64, without);
        for (dtype, tolerance) in types.into_iter().take(if without.is_none() { 3 } else { 1 }) {
            let got = run_op(device, op(), x, dtype, without);
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                assert_eq!(got.len(), want.len(), "{what}: {i}");
                let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
                let off = norm(&mut got.iter().zip(want).map(|(a, b)| a - b));
                let off = off / norm(&mut want.iter().copied()).max(1e-2);
                assert!(off <= tolerance, "{what} in {dtype}, without {without:?}: result {i} is off by {off:.1e}");
            }
        }
    }
}
