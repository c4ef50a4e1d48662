//! The emulator: stand-ins for the driver, NVRTC and cuBLAS that run kernels on the CPU.
//!
//! Their C++ sources (`cuemu/`, whose README explains them) are part of this program. The first use compiles them
//! into a cache directory that is named by a hash of the sources, so that it takes a C++ compiler but no checkout.
//! Functions of the stand-ins that CUDA has not, such as the text of the last fault, are called here.

use crate::{cuda::counters::Counts, rng::Fnv1a};
use cudarc::driver::sys::CUstream;
use std::{
    env,
    ffi::{CStr, c_char, c_int, c_void},
    fs,
    io::{self, IsTerminal},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
};

macro_rules! sources {
    ($($file:literal),* $(,)?) => { &[$(($file, include_str!(concat!("../../../cuemu/", $file)))),*] };
}

/// Every source, by its path under `cuemu/`.
const SOURCES: &[(&str, &str)] = sources![
    "kernel/abi.h",
    "kernel/count.h",
    "kernel/cuda.h",
    "kernel/intrinsics.h",
    "kernel/module.h",
    "kernel/numeric.h",
    "kernel/tensor.h",
    "machine/check.cpp",
    "machine/compile.cpp",
    "machine/count.cpp",
    "machine/fiber.cpp",
    "machine/fiber.h",
    "machine/grid.cpp",
    "machine/hooks.cpp",
    "machine/launch.cpp",
    "machine/machine.h",
    "machine/memory.cpp",
    "machine/options.cpp",
    "machine/schedule.cpp",
    "machine/tensor.cpp",
    "machine/warp.cpp",
    "driver/cublas.cpp",
    "driver/device.cpp",
    "driver/driver.h",
    "driver/memory.cpp",
    "driver/module.cpp",
    "driver/nvrtc.cpp",
    "driver/record.cpp",
    "driver/stream.cpp",
];

/// The libraries, in the order in which they are linked: name, sources, and the libraries that each needs.
const LIBRARIES: &[(&str, &[&str], &[&str])] = &[
    (
        "cuemu",
        &[
            "check", "compile", "count", "fiber", "grid", "hooks", "launch", "memory", "options", "schedule", "tensor",
            "warp",
        ],
        &[],
    ),
    ("cuda", &["device", "memory", "module", "record", "stream"], &["cuemu"]),
    ("nvrtc", &["nvrtc"], &["cuemu"]),
    ("cublas", &["cublas"], &["cuda", "cuemu"]),
];
const COMPILE: &[&str] = &["-std=c++17", "-O2", "-g", "-fPIC", "-fno-semantic-interposition", "-Wall", "-Wextra", "-c"];
const LINK: &[&str] = &["-shared", "-Wl,-Bsymbolic", "-Wl,-rpath,$ORIGIN"];

/// The directory with the stand-ins `libcuda.so`, `libnvrtc.so` and `libcublas.so`, compiled if they are not there.
/// To be loaded by their absolute paths, before anything looks for libraries of these names.
///
/// # Errors
/// When there is no C++ compiler, or no directory to write to.
pub fn libraries() -> Result<PathBuf, String> {
    static DIRECTORY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    DIRECTORY.get_or_init(find_or_build).clone()
}

fn find_or_build() -> Result<PathBuf, String> {
    if !cfg!(target_os = "linux") {
        return Err("the CUDA emulator is made for Linux alone; use --device cpu".into());
    }
    let dir = cache().join(format!("emulator-{}", hash()));
    if dir.is_dir() {
        return Ok(dir);
    }
    let compiler = compiler()?;
    if io::stderr().is_terminal() {
        eprintln!("compiling the CUDA emulator with {compiler}, once, into {}", dir.display());
    }
    // Complete or not there: made under another name, then renamed. If somebody else was quicker, theirs is as good.
    let partial =
        fs::create_dir_all(cache()).and_then(|()| tempfile::Builder::new().prefix("emulator-").tempdir_in(cache()));
    let partial = partial.map_err(|e| failed(&cache(), e))?;
    build(&compiler, partial.path())?;
    match fs::rename(partial.path(), &dir) {
        Err(e) if !dir.is_dir() => Err(failed(&dir, e)),
        _ => Ok(dir),
    }
}

fn failed(path: &Path, e: io::Error) -> String {
    format!("the emulator cannot be built: {}: {e}", path.display())
}

/// A hash of everything that the libraries depend on.
fn hash() -> String {
    let flags = COMPILE.iter().chain(LINK).map(|s| ("", *s));
    let compiler = chosen_compiler().unwrap_or_default();
    let all = SOURCES.iter().copied().chain(flags).chain([("", compiler.as_str())]);
    let mut hash = Fnv1a::default();
    all.flat_map(|(a, b)| [a.as_bytes(), &[0], b.as_bytes()]).for_each(|bytes| hash.add(bytes));
    hash.hex()
}

fn cache() -> PathBuf {
    let dir = |name: &str| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    dir("XDG_CACHE_HOME")
        .or_else(|| dir("HOME").map(|h| h.join(".cache")))
        .unwrap_or_else(env::temp_dir)
        .join("tapezoo")
}

fn chosen_compiler() -> Option<String> {
    env::var("CXX").ok().filter(|s| !s.is_empty())
}

/// The C++ compiler: `$CXX` if it is set, or else g++ or c++, whichever starts first.
fn compiler() -> Result<String, String> {
    let starts = |name: &String| {
        let quiet = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        quiet.is_ok_and(|s| s.success())
    };
    if let Some(given) = chosen_compiler() {
        let why =
            format!("the CUDA emulator needs a C++ compiler, and CXX={given} does not start; unset CXX to use g++");
        return Some(given).filter(starts).ok_or(why);
    }
    ["g++".into(), "c++".into()].into_iter().find(starts).ok_or_else(|| {
        "the CUDA emulator needs a C++ compiler, and neither g++ nor c++ starts; install g++, or use --device cpu"
            .into()
    })
}

/// Write the sources, compile them side by side, link. The headers stay: kernels are compiled with them.
fn build(compiler: &str, dir: &Path) -> Result<(), String> {
    for (file, text) in SOURCES {
        let path = dir.join(file);
        fs::create_dir_all(path.parent().unwrap_or(dir))
            .and_then(|()| fs::write(&path, text))
            .map_err(|e| failed(&path, e))?;
    }
    fs::write(dir.join("compiler"), compiler).map_err(|e| failed(dir, e))?;
    let objects = |library: &str, names: &[&str]| -> Vec<String> {
        let folder = if library == "cuemu" { "machine" } else { "driver" };
        names.iter().map(|name| format!("{folder}/{name}")).collect()
    };
    let mut jobs = vec![];
    for source in LIBRARIES.iter().flat_map(|(library, names, _)| objects(library, names)) {
        let mut job = Command::new(compiler);
        job.current_dir(dir).args(COMPILE).arg(format!("{source}.cpp")).args(["-o", &format!("{source}.o")]);
        jobs.push(job);
    }
    run(jobs)?;
    for (library, names, needs) in LIBRARIES {
        let mut job = Command::new(compiler);
        job.current_dir(dir)
            .args(LINK)
            .arg(format!("-Wl,-soname,lib{library}.so"))
            .args(["-o", &format!("lib{library}.so")]);
        job.args(objects(library, names).iter().map(|o| format!("{o}.o")));
        job.arg("-L.").args(needs.iter().map(|n| format!("-l:lib{n}.so"))).args(["-ldl", "-lpthread"]);
        run(vec![job])?;
    }
    Ok(())
}

/// Run these compilers, as many at a time as there are processors.
fn run(jobs: Vec<Command>) -> Result<(), String> {
    let wait = |child: Child| -> Result<(), String> {
        let done = child.wait_with_output().map_err(|e| e.to_string())?;
        match done.status.success() {
            true => Ok(()),
            false => Err(format!("the emulator does not compile: {}", String::from_utf8_lossy(&done.stderr))),
        }
    };
    let most = std::thread::available_parallelism().map_or(1, usize::from);
    let mut running = std::collections::VecDeque::new();
    let mut result = Ok(());
    for mut job in jobs {
        if running.len() >= most
            && let Some(first) = running.pop_front()
        {
            result = result.and(wait(first));
        }
        let child = job.stdin(Stdio::null()).stderr(Stdio::piped()).stdout(Stdio::null()).spawn();
        running.push_back(child.map_err(|e| format!("the emulator's compiler does not start: {e}"))?);
    }
    running.into_iter().fold(result, |result, child| result.and(wait(child)))
}

/// In which order the threads of a block, and the blocks of a grid, run. A correct kernel does not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The lowest first.
    Forward,
    /// The highest first.
    Reverse,
    /// By this seed.
    Random(u64),
}

/// The options that `TAPEZOO_EMU_CHECK`, `_ORDER`, `_SEED` and `_LATE` set at the start, set anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Report races, accesses out of bounds or misaligned, and reads of what was never written; for modules loaded
    /// and memory allocated from now on.
    pub check: bool,
    /// The order of threads and blocks.
    pub order: Order,
    /// Run asynchronous work not before somebody waits for it.
    pub late: bool,
}

/// The functions that the stand-ins have beyond CUDA's.
struct Extras {
    options: extern "C" fn(c_int, c_int, u64, c_int),
    fault: extern "C" fn(*mut c_char, usize) -> usize,
    reset: extern "C" fn(),
    lend: extern "C" fn(*mut c_void, u64, usize),
    memory: extern "C" fn(*mut usize, *mut usize),
    count: extern "C" fn(c_int),
    counted: extern "C" fn(*mut RawCounts, usize) -> usize,
}

/// `Counts` of cuemu/machine/count.cpp.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawCounts {
    kernel: *const c_char,
    counts: Counts,
}

fn extras() -> Result<&'static Extras, String> {
    static EXTRAS: OnceLock<Result<Extras, String>> = OnceLock::new();
    let extras = EXTRAS.get_or_init(|| {
        let dir = libraries()?;
        // SAFETY: our own libraries, whose initialisers only read the environment.
        let open = |name: &str| unsafe { libloading::Library::new(dir.join(name)) }.map_err(|e| format!("{name}: {e}"));
        let (machine, driver) = (open("libcuemu.so")?, open("libcuda.so")?);
        // SAFETY: the signatures are those of the definitions in cuemu/, and the libraries are never unloaded.
        let extras = unsafe {
            Extras {
                options: symbol(&machine, "cuemu_options")?,
                fault: symbol(&driver, "cuemu_fault")?,
                reset: symbol(&driver, "cuemu_reset")?,
                lend: symbol(&driver, "cuemu_lend_on")?,
                memory: symbol(&machine, "cuemu_memory")?,
                count: symbol(&machine, "cuemu_count")?,
                counted: symbol(&machine, "cuemu_counted")?,
            }
        };
        std::mem::forget((machine, driver));
        Ok(extras)
    });
    extras.as_ref().map_err(Clone::clone)
}

/// # Safety
/// `T` is the type of the function of this name.
unsafe fn symbol<T: Copy>(library: &libloading::Library, name: &str) -> Result<T, String> {
    // SAFETY: as promised by the caller.
    unsafe { library.get::<T>(name) }.map(|s| *s).map_err(|e| e.to_string())
}

/// Choose how kernels run from now on.
///
/// # Errors
/// When there is no emulator; as for [`libraries`].
pub fn configure(o: Options) -> Result<(), String> {
    let (order, seed) = match o.order {
        Order::Forward => (0, 1),
        Order::Reverse => (1, 1),
        Order::Random(seed) => (2, seed),
    };
    (extras()?.options)(o.check.into(), order, seed, o.late.into());
    Ok(())
}

/// The last kernel fault: kernel, launch, block, thread, place in the source, and what is wrong.
pub fn fault() -> Option<String> {
    let mut text = vec![0u8; 4096];
    let n = (extras().ok()?.fault)(text.as_mut_ptr().cast(), text.len());
    text.truncate(n.min(text.len() - 1));
    (n > 0).then(|| String::from_utf8_lossy(&text).into_owned())
}

/// Forget a fault. On a device every call after one fails until the process ends; a test may want to go on.
pub fn reset() {
    if let Ok(e) = extras() {
        (e.reset)();
    }
}

/// Tell the emulator that a cached allocation, which starts at `ptr`, now serves `bytes`: what lies beyond is out of
/// bounds, and what it held counts as never written. In its turn on the stream, as it may be recorded with a graph.
pub fn lend(stream: CUstream, ptr: u64, bytes: usize) {
    if let Ok(e) = extras() {
        (e.lend)(stream.cast(), ptr, bytes);
    }
}

/// How many device allocations there are, and their bytes.
pub fn memory() -> (usize, usize) {
    let (mut buffers, mut bytes) = (0, 0);
    if let Ok(e) = extras() {
        (e.memory)(&mut buffers, &mut bytes);
    }
    (buffers, bytes)
}

/// Compile modules for counting from now on, and count what launches of them do; or no more.
pub fn count(on: bool) {
    if let Ok(e) = extras() {
        (e.count)(on.into());
    }
}

/// The launches counted since the last call, with the names of their kernels.
pub fn counted() -> Vec<(String, Counts)> {
    let mut all = vec![];
    let mut one = RawCounts { kernel: std::ptr::null(), counts: Counts::default() };
    while let Ok(e) = extras()
        && (e.counted)(&mut one, 1) == 1
    {
        // SAFETY: a name in a module, and modules are never unloaded.
        let name = unsafe { CStr::from_ptr(one.kernel) };
        all.push((name.to_string_lossy().into_owned(), one.counts));
    }
    all
}
