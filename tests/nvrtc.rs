//! Every kernel through the real NVRTC, which needs neither a GPU nor a driver: it must compile for sm_75, sm_80 and sm_90
//! without spills to memory, and a table lists its registers and shared memory.
//!
//! It takes minutes: `cargo test --test nvrtc -- --ignored`. Where NVRTC is not found it says so and passes. It is
//! looked for in the directories of `TAPEZOO_CUDA_LIBS`, in `target/nvrtc` (where `.ci/kernels` puts pip's package) and in
//! the active Python environment. The table is written to `target/nvrtc.txt`.

#![allow(clippy::unwrap_used)]

mod device;
mod texts;

use cudarc::nvrtc::{result as nvrtc, sys};
use device::{side_by_side, skipped};
use std::{
    collections::{BTreeMap, HashMap},
    ffi::CString,
    fs,
    path::{Path, PathBuf},
};
use tapezoo::{
    cuda::{Module, cache::Cache, compile::compile as image},
    kernels,
    tensor::DType,
};
use texts::contains;

/// The targets: single and half precision for the oldest and the newest device that we support; double precision, which
/// only checks gradients, once. Without `TAPEZOO_TARGETS=all` the first three alone, which have every kernel in every
/// precision, and for both devices.
const TARGETS: [(DType, &str); 5] = [
    (DType::F32, "sm_75"),
    (DType::BF16, "sm_90"),
    (DType::F64, "sm_90"),
    (DType::F32, "sm_90"),
    (DType::BF16, "sm_80"),
];
/// Threads per block for kernels without `__launch_bounds__`: no more are launched.
const THREADS: usize = 256;
/// Registers of a multiprocessor, for one block.
const REGISTERS: usize = 65536;
/// Shared memory that a kernel may have without asking the driver.
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

/// Files under `src/` with this ending.
fn sources(ending: &str) -> Vec<PathBuf> {
    let (mut files, mut folders) = (vec![], vec![device::root().join("src")]);
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == ending) {
                files.push(path);
            }
        }
    }
    files
}

/// Every module of the crate, as its Rust source declares it: `Module::new("NAME", &[include_str!("FILE"), …])`.
fn modules() -> Vec<Module> {
    let mut found = BTreeMap::new();
    let mut covered = vec![];
    for path in sources("rs") {
        let text = fs::read_to_string(&path).unwrap();
        for declared in text.split("Module::new(").skip(1) {
            let Some((parts, _)) = declared.split_once("])") else { continue };
            let quoted: Vec<&str> = parts.split('"').skip(1).step_by(2).collect();
            let Some(name) = quoted.first().filter(|name| name.ends_with(".cu")) else { continue };
            let files = quoted[1..].iter().filter(|q| q.ends_with(".cu") || q.ends_with(".cuh"));
            let files: Vec<_> = files.map(|q| path.parent().unwrap().join(q).canonicalize().unwrap()).collect();
            // Its kernels are made from the formulas of elementwise.rs.
            let parts = if *name == kernels::elementwise::MODULE.name {
                kernels::elementwise::MODULE.parts
            } else {
                files.iter().map(|f| &*fs::read_to_string(f).unwrap().leak()).collect::<Vec<_>>().leak()
            };
            covered.extend(files);
            found.insert(name.to_string(), Module::new(name.to_string().leak(), parts));
        }
    }
    for path in sources("cu") {
        assert!(covered.contains(&path.canonicalize().unwrap()), "{} is in no module", path.display());
    }
    found.into_values().collect()
}

/// The resources that a kernel takes.
#[derive(Debug, Default)]
struct Use {
    registers: usize,
    shared: usize,
    spilled: usize,
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

/// "ptxas info : Compiling entry function 'NAME' for …", and then its resources. Those of functions that it calls come
/// later and are left out: `careful_forward` of flash.cu spills, and only runs where a sum is not finite.
fn parse(log: &str, ptx: &str) -> HashMap<String, Use> {
    let mut kernels = HashMap::new();
    for part in log.split("Compiling entry function '").skip(1) {
        let (name, rest) = part.split_once('\'').unwrap();
        let mut u = Use {
            registers: before(rest, " registers"),
            shared: before(rest, " bytes smem"),
            spilled: before(rest, " bytes spill stores") + before(rest, " bytes spill loads"),
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

/// The reason why a kernel is not acceptable.
fn objections(u: &Use) -> Vec<String> {
    let mut all = vec![];
    if u.spilled > 0 {
        all.push(format!("spills {} bytes", u.spilled));
    }
    // Registers are allocated in units of eight.
    if u.registers.next_multiple_of(8) * u.threads > REGISTERS {
        all.push(format!("{} registers for {} threads: fewer by __launch_bounds__", u.registers, u.threads));
    }
    if u.shared > SHARED {
        all.push(format!("{} bytes of static shared memory", u.shared));
    }
    all
}

#[test]
#[ignore = "minutes; .ci/kernels runs it"]
fn every_kernel_compiles_and_fits() {
    if !load() {
        return skipped("NVRTC was not found, so it compiled no kernel (pip install nvidia-cuda-nvrtc==13.0.88)");
    }
    let modules = modules();
    assert!(!modules.is_empty());
    let all = std::env::var("TAPEZOO_TARGETS").is_ok_and(|which| which == "all");
    let targets = if all { &TARGETS[..] } else { &TARGETS[..3] };
    let jobs: Vec<_> =
        modules.iter().flat_map(|m| targets.iter().map(move |&(dtype, arch)| (m, dtype, arch))).collect();
    let reports = side_by_side(&jobs, |(m, dtype, arch)| compile(m.name, &m.source(*dtype), arch));
    // For each kernel, its resources for each target.
    let (mut table, mut wrong) = (BTreeMap::<String, BTreeMap<String, Use>>::new(), vec![]);
    for ((module, dtype, arch), report) in jobs.iter().zip(reports) {
        let target = format!("{dtype} {arch}");
        let kernels = report.map(|(log, ptx)| parse(&log, &ptx)).unwrap_or_else(|why| {
            wrong.push(why);
            HashMap::new()
        });
        if kernels.is_empty() {
            wrong.push(format!("{}: no kernel for {target}", module.name));
        }
        for (name, u) in kernels {
            let what = format!("{} {name}", module.name.trim_end_matches(".cu"));
            // Double precision only checks gradients, so spills in its handling of numbers that are not finite do not
            // matter.
            let spills = if *dtype == DType::F64 { 0 } else { u.spilled };
            let u = Use { spilled: spills, ..u };
            wrong.extend(objections(&u).into_iter().map(|why| format!("{what}, {target}: {why}")));
            table.entry(what).or_default().insert(target.clone(), u);
        }
    }
    let mut text = format!("{:44}", "registers of a thread in");
    targets.iter().for_each(|(dtype, arch)| text += &format!("{:>12}", format!("{dtype} {arch}")));
    text += "   threads  shared  spilled\n";
    for (what, uses) in &table {
        text += &format!("{what:44}");
        targets.iter().for_each(|(dtype, arch)| {
            let registers = uses.get(&format!("{dtype} {arch}")).map_or("-".into(), |u| u.registers.to_string());
            text += &format!("{registers:>12}");
        });
        let most = |f: fn(&Use) -> usize| uses.values().map(f).max().unwrap_or(0);
        text += &format!("{:>10}{:>8}{:>9}\n", most(|u| u.threads), most(|u| u.shared), most(|u| u.spilled));
    }
    println!("{text}");
    let target = device::root().join("target");
    fs::create_dir_all(&target).unwrap();
    fs::write(target.join("nvrtc.txt"), &text).unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A device that is newer than NVRTC has a driver that compiles text.
#[test]
#[ignore = "needs NVRTC; .ci/kernels runs it"]
fn a_device_gets_machine_code_or_text() {
    if !load() {
        return skipped("NVRTC was not found");
    }
    let dir = tempfile::tempdir().unwrap();
    let module = Module::new("tests/small.cu", &["extern \"C\" __global__ void small(S* x) { st(x, 1.0); }\n"]);
    let of = |arch: &str| image(&Cache::at(dir.path()), module.name, &module.source(DType::F32), arch).unwrap();
    assert!(of("sm_90").starts_with(b"\x7fELF"));
    let text = of("compute_90");
    assert_eq!(text.last(), Some(&0), "the driver reads up to a zero");
    contains(String::from_utf8_lossy(&text), ".target sm_90");
}

/// The machine code that a device gets has the kernel that it asked for, and no other.
#[test]
#[ignore = "needs NVRTC; .ci/kernels runs it"]
fn of_a_file_one_kernel_is_compiled() {
    if !load() {
        return skipped("NVRTC was not found");
    }
    let text = "template <int N> __device__ void put(S* x) { st(x, N); }\n\
                #define KERNELS(N) KERNEL(put_##N)(S* x) { put<N>(x); } BOUND_KERNEL(bound_##N, 64, N ? 2 : 1)(S* x) { put<N>(x); }\n\
                KERNELS(1)\nKERNELS(2)\n";
    let module = Module::new("tests/two.cu", Vec::leak(vec![text]));
    let names = |source: &str| {
        let (log, ptx) = compile(module.name, source, "sm_90").unwrap();
        let mut names: Vec<String> = parse(&log, &ptx).into_keys().collect();
        names.sort();
        names
    };
    assert_eq!(names(&module.source(DType::F32)), ["bound_1", "bound_2", "put_1", "put_2"]);
    for one in ["bound_1", "bound_2", "put_1", "put_2"] {
        assert_eq!(names(&module.source_of(DType::F32, one)), [one]);
    }
}

/// So that a machine with a GPU, which is lent for minutes, need not compile: `scripts/gpu_check.sh pack` runs this.
#[test]
#[ignore = "fills the directory that TAPEZOO_CUBINS names with the kernels for the device that TAPEZOO_ARCH names"]
fn every_kernel_into_a_cache() {
    let (Ok(to), Ok(arch)) = (std::env::var("TAPEZOO_CUBINS"), std::env::var("TAPEZOO_ARCH")) else { return };
    assert!(load(), "NVRTC was not found");
    let (cache, modules) = (Cache::at(Path::new(&to)), modules());
    let names = side_by_side(&modules, |m| {
        let (log, ptx) = compile(m.name, &m.source(DType::F32), &arch).unwrap();
        parse(&log, &ptx).into_keys().collect::<Vec<_>>()
    });
    let jobs: Vec<_> = modules
        .iter()
        .zip(&names)
        .flat_map(|(m, names)| names.iter().map(move |name| (m, name)))
        .flat_map(|(m, name)| [DType::F32, DType::BF16, DType::F64].map(|dtype| (m, name, dtype)))
        .collect();
    side_by_side(&jobs, |(m, name, dtype)| drop(image(&cache, m.name, &m.source_of(*dtype, name), &arch).unwrap()));
}
