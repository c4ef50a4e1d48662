//! Device errors are reported in a sentence. On the emulator, each case in its own process, because a failed device
//! stays failed.

#![allow(clippy::unwrap_used)]

mod device;
mod program;

use program::program;
use std::process::{Command, Output};
use tapezoo::{
    args,
    autograd::{Gen, Tape},
    cuda::{Launch, Module, emulator, guarded},
    ops::delta::DeltaRule,
    tensor::{Cx, DType, Device, Shape, Tensor},
};

/// Run the test `name` of this file alone, with these variables set.
fn child(name: &str, vars: &[(&str, &str)]) {
    if let Err(why) = emulator::libraries() {
        return device::skipped(&why);
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]).env("TAPEZOO_CHILD", name).envs(vars.iter().copied());
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |b: Vec<u8>| String::from_utf8_lossy(&b).into_owned();
    assert!(status.success(), "{}{}", text(stdout), text(stderr));
}

fn is_child(name: &str) -> bool {
    std::env::var("TAPEZOO_CHILD").is_ok_and(|child| child == name)
}

/// A tape on the emulator, if it is available here.
fn emulated() -> Option<Tape> {
    Tape::open(Device::Emulated).inspect_err(|why| device::skipped(why)).ok()
}

/// The device's error when `f` runs.
fn fault<R>(tape: &Tape, f: impl FnOnce() -> R) -> String {
    match guarded(tape.cx().gpu(), f) {
        Ok(_) => panic!("there should have been a fault"),
        Err(e) => e.to_string(),
    }
}

fn names(message: &str, words: &[&str]) {
    for word in words {
        assert!(message.contains(word), "no '{word}' in: {message}");
    }
}

static BAD: Module = Module::new(
    "tests/bad.cu",
    &["extern \"C\" __global__ void past_the_end(S* x, i64 n) { if (thread() == 0) x[n] = 1.0; }\n\
       extern \"C\" __global__ void harmless(S* x, i64 n, real a) { if (thread() < n) x[thread()] = a; }\n\
       extern \"C\" __global__ void with_its_own(S* x) {\n\
           __shared__ float own[1024];\n\
           own[threadIdx.x] = threadIdx.x;\n\
           __syncthreads();\n\
           x[threadIdx.x] = own[blockDim.x - 1 - threadIdx.x];\n\
       }\n"],
);
static BROKEN: Module =
    Module::new("tests/broken.cu", &["extern \"C\" __global__ void broken(S* x) { x[0] = nothing; }\n"]);

#[test]
fn out_of_memory_says_how_much_was_asked_for_and_is_there() {
    const NAME: &str = "out_of_memory_says_how_much_was_asked_for_and_is_there";
    if !is_child(NAME) {
        return child(NAME, &[("TAPEZOO_EMU_MEMORY", "1M")]);
    }
    let Some(tape) = emulated() else { return };
    let held = Tensor::zeros([50_000], DType::F32).to_device(tape.cx());
    // Free buffers of other sizes are given up before memory is said to have run out.
    let spare = Tensor::zeros([150_000], DType::F32).to_device(tape.cx());
    tape.cx().pool().put(spare);
    let other = Tensor::zeros([160_000], DType::F32).to_device(tape.cx());
    let message = fault(&tape, || Tensor::zeros([1 << 20], DType::F32).to_device(tape.cx()));
    names(&message, &["out of memory", "4.0 MiB asked for", "free of 1.0 MiB", "0.8 MiB in use"]);
    drop((held, other));
}

#[test]
fn a_kernel_fault_names_the_kernel_its_launch_and_the_place() {
    const NAME: &str = "a_kernel_fault_names_the_kernel_its_launch_and_the_place";
    if !is_child(NAME) {
        return child(NAME, &[("TAPEZOO_EMU_CHECK", "1")]);
    }
    let Some(tape) = emulated() else { return };
    let Cx::Cuda(cu) = tape.cx() else { panic!("not a CUDA device") };
    let mut x = Tensor::zeros([3], DType::F32).to_device(tape.cx());
    let message = fault(&tape, || {
        cu.launch(&BAD, "past_the_end", DType::F32, Launch::blocks(1, 32), args![&mut x, 3usize]);
    });
    names(&message, &["past_the_end", "tests/bad.cu", "block [32, 1, 1]", "bad.cu:1"]);
    // The device refuses further work, with an error.
    names(&fault(&tape, || x.to_f64()), &["past_the_end"]);
}

#[test]
fn a_launch_that_does_not_fit_its_kernel_is_noticed() {
    const NAME: &str = "a_launch_that_does_not_fit_its_kernel_is_noticed";
    if !is_child(NAME) {
        return child(NAME, &[]);
    }
    let Some(tape) = emulated() else { return };
    let Cx::Cuda(cu) = tape.cx() else { panic!("not a CUDA device") };
    let mut x = Tensor::zeros([3], DType::F32).to_device(tape.cx());
    let one = Launch::blocks(1, 32);
    if cfg!(debug_assertions) {
        let wrong = |args: &[tapezoo::cuda::Arg], word: &str| {
            let why = tapezoo::error::quietly(|| cu.launch(&BAD, "harmless", DType::F32, one, args));
            names(&why.unwrap_err(), &[word, "harmless"]);
        };
        wrong(args![&mut x, 3usize], "number of arguments");
        wrong(args![&mut x, 3i32, 1.0], "size of argument 1");
    }
    cu.launch(&BAD, "harmless", DType::F32, one, args![&mut x, 3usize, 1.5]);
    assert_eq!(x.to_f64(), [1.5; 3]);
    let shared = one.shared(300 << 10);
    let message = fault(&tape, || cu.launch(&BAD, "harmless", DType::F32, shared, args![&mut x, 3usize, 1.0]));
    names(&message, &["harmless", "300 KiB of shared memory"]);
}

/// Arrays that a kernel declares count towards what a launch may have without asking, 48 KiB, and towards what the device has.
#[test]
fn a_kernels_own_shared_memory_counts() {
    const NAME: &str = "a_kernels_own_shared_memory_counts";
    if !is_child(NAME) {
        return child(NAME, &[("TAPEZOO_EMU_SHARED", "99k")]);
    }
    let Some(tape) = emulated() else { return };
    let Cx::Cuda(cu) = tape.cx() else { panic!("not a CUDA device") };
    let mut x = Tensor::zeros([4], DType::F32).to_device(tape.cx());
    let mut run = |shared: usize| {
        let launch = Launch::blocks(1, 4).shared(shared);
        cu.launch(&BAD, "with_its_own", DType::F32, launch, args![&mut x]);
        x.to_f64()
    };
    // With its own 4 KiB: none of the limits is exceeded, the first, the first by a byte, none of the second.
    for shared in [44 << 10, (44 << 10) + 1, 48 << 10, 95 << 10] {
        assert_eq!(run(shared), [3.0, 2.0, 1.0, 0.0], "{shared}");
    }
    let message = fault(&tape, || run((95 << 10) + 1));
    names(&message, &["with_its_own", "96 KiB of shared memory", "95 there"]);
}

#[test]
fn a_source_that_does_not_compile_is_named_with_its_line() {
    const NAME: &str = "a_source_that_does_not_compile_is_named_with_its_line";
    if !is_child(NAME) {
        return child(NAME, &[]);
    }
    let Some(tape) = emulated() else { return };
    let Cx::Cuda(cu) = tape.cx() else { panic!("not a CUDA device") };
    let mut x = Tensor::zeros([3], DType::F32).to_device(tape.cx());
    let message = fault(&tape, || cu.launch(&BROKEN, "broken", DType::F32, Launch::blocks(1, 32), args![&mut x]));
    names(&message, &["broken.cu", "nothing"]);
}

/// `verify` with these flags and variables: its status and its standard error.
fn verify(flags: &[&str], vars: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = program("verify");
    let output = command.args(flags).arg("no-such-file.safetensors").envs(vars.iter().copied()).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_device_that_is_not_there_is_an_error() {
    for (name, word) in [("gpu", "expected auto, cpu"), ("cuda:x", "expected a number"), ("cuda:-1", "a number")] {
        let (status, said) = verify(&["--device", name], &[]);
        assert_eq!(status, Some(2), "{said}");
        names(&said, &[name, word]);
    }
    let (status, said) = verify(&["--device", "cuda"], &[]);
    assert_eq!(status, Some(2), "{said}");
    if !said.contains("no-such-file") {
        // Without CUDA: which library was not found, and where it was looked for.
        names(&said, &["error: no CUDA: lib", "was not found by the loader", "TAPEZOO_CUDA_LIBS", "--device cpu"]);
        let (_, said) = verify(&["--device", "cuda"], &[("TAPEZOO_CUDA_LIBS", "/not/there")]);
        names(&said, &["nor in /not/there", "TAPEZOO_CUDA_LIBS names /not/there, which is no directory"]);
    }
    if Tape::open(Device::Emulated).is_ok() {
        let (status, said) = verify(&["--device", "emulated"], &[("TAPEZOO_EMU_NO_DEVICE", "1")]);
        assert_eq!(status, Some(2), "{said}");
        names(&said, &["error: device emulated", "NO_DEVICE"]);
        let (status, said) = verify(&["--device", "emulated"], &[("TAPEZOO_EMU_DRIVER", "12040")]);
        assert_eq!(status, Some(2), "{said}");
        names(&said, &["error: device emulated", "driver is for CUDA 12.4", "NVRTC 13.0", "TAPEZOO_CUDA_LIBS"]);
    }
}

#[test]
fn what_an_older_device_cannot_do_is_said() {
    const NAME: &str = "what_an_older_device_cannot_do_is_said";
    if !is_child(NAME) {
        // The stand-in for NVRTC compiles for 7.5 and newer.
        return ["70", "75", "80"]
            .iter()
            .for_each(|old| child(NAME, &[("TAPEZOO_EMU_CAPABILITY", old), ("TAPEZOO_EMU_SHARED", "64k")]));
    }
    let capability = std::env::var("TAPEZOO_EMU_CAPABILITY").unwrap();
    let tape = match Tape::open(Device::Emulated) {
        Ok(_) if capability == "70" => panic!("NVRTC compiles nothing for it"),
        Ok(tape) => tape,
        Err(why) => return names(&why, &["7.0", "7.5 and newer", "TAPEZOO_CUDA_LIBS"]),
    };
    let gpu = tape.cx().gpu().unwrap();
    let harmless = |dtype: DType, shared: usize| {
        let at = Launch::blocks(1, 32).shared(shared);
        let x = tape.cx().pool().get(dtype, Shape::new(&[1]));
        move || gpu.launch(&BAD, "harmless", dtype, at, args![&x, 0usize, 1.0])
    };
    let told = match &*capability {
        "75" => fault(&tape, harmless(DType::BF16, 0)),
        _ => fault(&tape, harmless(DType::F64, 65 << 10)),
    };
    let words = if capability == "75" {
        ["bf16", "8.0", "7.5", "--dtype f32"]
    } else {
        ["harmless", "65 KiB", "64 there", "--dtype f32"]
    };
    names(&told, &words);
}

/// A block of a GeForce has 99 KiB of shared memory, of an A100 163: less than tiles of 64 take in double precision.
#[test]
fn in_double_precision_tiles_are_as_small_as_the_device_needs() {
    const NAME: &str = "in_double_precision_tiles_are_as_small_as_the_device_needs";
    if !is_child(NAME) {
        return ["99k", "163k"].iter().for_each(|shared| child(NAME, &[("TAPEZOO_EMU_SHARED", shared)]));
    }
    let on = |tape: Tape| -> Vec<Vec<f64>> {
        let g = &mut Gen::new(4);
        let shapes: [&[usize]; 5] = [&[1, 70, 1, 8], &[1, 70, 1, 8], &[1, 70, 1, 9], &[1, 70, 1], &[1, 1, 8, 9]];
        let x = shapes.map(|shape| g.range(shape, 0.0, 0.5));
        let x = x.map(|x| tape.leaf(&x.to_device_as(tape.cx(), DType::F64)));
        let o = tape.apply_dyn(Box::new(DeltaRule { chunk: 64, scale: 1.0 }), &x)[0];
        tape.backward(o.sum());
        let gradients = x.iter().filter_map(|x| x.grad()).map(|g| g.to_f64());
        std::iter::once(o.value().to_f64()).chain(gradients).collect()
    };
    let Some(tape) = emulated() else { return };
    let (got, want) = (on(tape), on(Tape::open(Device::Cpu).unwrap()));
    assert_eq!((got.len(), want.len()), (6, 6));
    let far = got.iter().flatten().zip(want.iter().flatten()).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(far < 1e-10, "off by {far:.1e}");
}
