//! Every kernel through the real NVRTC, which needs neither a GPU nor a driver: that it compiles for sm_80 and sm_90,
//! that nothing spills to memory, and how many registers and how much shared memory it takes.
//!
//! Where NVRTC is not found this says so and passes. It is looked for in the directories of `TAPEZOO_CUDA_LIBS`, in
//! `target/nvrtc` (where `.ci/run` puts pip's package) and in the active Python environment.
//! The table: `cargo test --test nvrtc -- --nocapture`.

#![allow(clippy::unwrap_used)]

mod device;

use cudarc::nvrtc::{result as nvrtc, sys};
use std::{
    collections::HashMap,
    ffi::CString,
    fs,
    path::{Path, PathBuf},
};
use tapezoo::{cuda::Module, ops, tensor::DType};

const ARCHITECTURES: [&str; 2] = ["sm_80", "sm_90"];
/// Threads of a block where the kernel does not say: what `Launch` helpers use at most.
const THREADS: usize = 256;
/// Of a multiprocessor, for one block.
const REGISTERS: usize = 65536;
/// What a kernel may use without asking the driver.
const SHARED: usize = 48 << 10;

/// Directories that may hold pip's or a toolkit's NVRTC.
fn directories() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        std::env::var_os("TAPEZOO_CUDA_LIBS").iter().flat_map(std::env::split_paths).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(std::env::var_os).map(PathBuf::from);
    for environment in [root.join("target/nvrtc")].into_iter().chain(active) {
        for python in fs::read_dir(environment.join("lib")).into_iter().flatten().flatten() {
            let nvidia = python.path().join("site-packages/nvidia");
            found.extend([nvidia.join("cu13/lib"), nvidia.join("cuda_nvrtc/lib")]);
        }
    }
    found
}

/// Loads NVRTC by its full path, its builtins first: it opens them by name, where the loader would not look.
fn load() -> bool {
    for dir in directories() {
        for major in ["13", "12"] {
            let library = dir.join(format!("libnvrtc.so.{major}"));
            if !library.exists() {
                continue;
            }
            let files = fs::read_dir(&dir).into_iter().flatten().flatten().map(|f| f.path());
            let builtins = files.filter(|f| f.to_string_lossy().contains(&format!("libnvrtc-builtins.so.{major}")));
            for path in builtins.chain([library.clone()]) {
                // SAFETY: NVIDIA's libraries; their initialisers are as harmless as under any other loader.
                std::mem::forget(unsafe { libloading::Library::new(path) }.unwrap());
            }
            return true;
        }
    }
    // SAFETY: opens the library by name, and closes it again.
    unsafe { sys::is_culib_present() }
}

/// Every `.cu` file under `src/`, with what its module adds to it.
fn modules() -> Vec<Module> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut files, mut folders) = (vec![], vec![root.clone()]);
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "cu") {
                files.push(path);
            }
        }
    }
    files.sort();
    let module = |path: &PathBuf| {
        let name: &'static str = path.strip_prefix(&root).unwrap().to_string_lossy().into_owned().leak();
        // Its kernels are made from the formulas of elementwise.rs.
        if name == ops::elementwise::MODULE.name {
            return Module::new(name, ops::elementwise::MODULE.parts);
        }
        let text: &'static str = fs::read_to_string(path).unwrap().leak();
        Module::new(name, vec![text].leak())
    };
    files.iter().map(module).collect()
}

/// What a kernel takes of a multiprocessor.
#[derive(Debug, Default)]
struct Use {
    registers: usize,
    shared: usize,
    spilled: usize,
    stack: usize,
    threads: usize,
}

/// NVRTC's report: its log, and the PTX, which has the launch bounds.
fn compile(name: &str, source: &str, arch: &str) -> Result<(String, String), String> {
    let c = |s: &str| CString::new(s).unwrap();
    let program = nvrtc::create_program(&c(source), Some(&c(name))).unwrap();
    let options = [&format!("--gpu-architecture={arch}"), "--std=c++17", "--ptxas-options=-v"];
    let text =
        |v: Vec<std::ffi::c_char>| -> String { v.iter().map(|&c| c as u8 as char).filter(|&c| c != '\0').collect() };
    // SAFETY: the program was just made, and is destroyed at the end.
    unsafe {
        let done = nvrtc::compile_program(program, &options);
        let log = text(nvrtc::get_program_log(program).unwrap());
        let ptx =
            done.map_err(|_| format!("{name} for {arch}: {log}")).map(|()| text(nvrtc::get_ptx(program).unwrap()));
        nvrtc::destroy_program(program).unwrap();
        Ok((log, ptx?))
    }
}

/// The number in front of `unit`.
fn before(text: &str, unit: &str) -> usize {
    let number = |head: &str| head.trim_end().rsplit(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok());
    text.split_once(unit).and_then(|(head, _)| number(head)).unwrap_or(0)
}

/// "ptxas info : Compiling entry function 'NAME' for …", and then what it takes.
fn parse(log: &str, ptx: &str) -> HashMap<String, Use> {
    let mut kernels = HashMap::new();
    for part in log.split("Compiling entry function '").skip(1) {
        let (name, rest) = part.split_once('\'').unwrap();
        let mut u = Use {
            registers: before(rest, " registers"),
            shared: before(rest, " bytes smem"),
            spilled: before(rest, " bytes spill stores") + before(rest, " bytes spill loads"),
            stack: before(rest, " bytes stack frame"),
            threads: THREADS,
        };
        if let Some(entry) = ptx.split(&format!(".entry {name}(")).nth(1) {
            let head = entry.split('{').next().unwrap_or("");
            if let Some((_, bound)) = head.split_once(".maxntid") {
                u.threads = bound.trim_start().split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap();
            }
        }
        kernels.insert(name.to_string(), u);
    }
    kernels
}

#[test]
fn every_kernel_compiles_and_fits() {
    if !load() {
        device::skipped("NVRTC was not found, no kernel was compiled by it (pip install nvidia-cuda-nvrtc==13.0.88)");
        return;
    }
    let modules = modules();
    assert!(!modules.is_empty());
    let mut wrong = vec![];
    println!(
        "{:42} {:>5} {:>6} {:>9} {:>8} {:>6} {:>6}",
        "kernel", "type", "arch", "registers", "shared", "stack", "spill"
    );
    for module in &modules {
        for dtype in [DType::F32, DType::BF16, DType::F64] {
            for arch in ARCHITECTURES {
                let (log, ptx) = match compile(module.name, &module.source(dtype), arch) {
                    Ok(done) => done,
                    Err(why) => {
                        wrong.push(why);
                        continue;
                    }
                };
                let mut kernels: Vec<_> = parse(&log, &ptx).into_iter().collect();
                kernels.sort_by(|a, b| a.0.cmp(&b.0));
                if kernels.is_empty() {
                    wrong.push(format!("{}: no kernel in it for {dtype}, {arch}: {log}", module.name));
                }
                for (name, u) in kernels {
                    let what = format!("{}: {name}", module.name.trim_end_matches(".cu"));
                    println!(
                        "{what:42} {:>5} {arch:>6} {:>9} {:>8} {:>6} {:>6}",
                        dtype.to_string(),
                        u.registers,
                        u.shared,
                        u.stack,
                        u.spilled
                    );
                    // Double is there to check gradients by; nobody waits for it.
                    if u.spilled > 0 && dtype != DType::F64 {
                        wrong.push(format!("{what} in {dtype} for {arch} spills {} bytes", u.spilled));
                    }
                    if u.registers * u.threads > REGISTERS {
                        wrong.push(format!(
                            "{what} in {dtype} for {arch}: {} registers for {} threads; fewer by __launch_bounds__",
                            u.registers, u.threads
                        ));
                    }
                    if u.shared > SHARED {
                        wrong.push(format!("{what} in {dtype} for {arch}: {} bytes of static shared memory", u.shared));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
