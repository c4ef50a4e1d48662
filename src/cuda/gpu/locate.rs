//! Finding and loading the three libraries, before anything calls into them.
//!
//! The driver is where the loader finds it. NVRTC and cuBLAS may lie in a toolkit or in pip's packages, where it does
//! not look: they are loaded by their full paths first, and whoever then asks for them by a name with a version gets
//! those. A toolkit's link without a version, such as `libnvrtc.so`, comes before them if the loader finds it.

use super::{emulator, lock};
use crate::cuda::Device;
use cudarc::driver::{result, sys};
use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::{Mutex, OnceLock},
};

/// Load the libraries for this device; a process has either the real ones or the stand-ins.
pub(super) fn load(device: Device) -> Result<(), String> {
    static LOADED: Mutex<Option<bool>> = Mutex::new(None);
    static REAL: OnceLock<Result<(), String>> = OnceLock::new();
    let wants = device == Device::Emulated;
    let mut emulated = lock(&LOADED);
    match *emulated {
        None if wants => stand_ins()?,
        None => REAL.get_or_init(real).clone()?,
        Some(has) if has == wants => {}
        Some(has) => {
            let (has, what) = if has { ("the emulator", "CUDA") } else { ("CUDA", "the emulator") };
            return Err(format!("device {device}: this process has loaded {has}, and cannot have {what} as well"));
        }
    }
    *emulated = Some(wants);
    Ok(())
}

/// Load NVRTC, which this device's kernels are compiled by, with or without a driver and cuBLAS: to compile takes neither.
pub(super) fn load_compiler(device: Device) -> Result<(), String> {
    let loaded = load(device);
    // SAFETY: opens the library by name, and closes it again.
    let is_there = || unsafe { cudarc::nvrtc::sys::is_culib_present() };
    if !is_there() {
        let of = |family: &[PathBuf], major| {
            Some([find(family, "libnvrtc-builtins", major)?, find(family, "libnvrtc", major)?])
        };
        let alone = families().iter().flat_map(|f| [(f, 13), (f, 12)]).find_map(|(family, major)| of(family, major));
        alone.iter().flatten().try_for_each(|path| open(path))?;
    }
    if is_there() { Ok(()) } else { loaded }
}

fn stand_ins() -> Result<(), String> {
    let dir = emulator::libraries()?;
    for name in ["libcuda.so", "libnvrtc.so", "libcublas.so"] {
        open(&dir.join(name))?;
    }
    present(&[], &[], &[])
}

/// Where containers and distributions put a driver that the loader was not told of. Never a `stubs` directory.
const DRIVERS: [&str; 3] = ["/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/wsl/lib"];

fn real() -> Result<(), String> {
    let mut drivers = named();
    drivers.extend(DRIVERS.map(PathBuf::from));
    if open(Path::new("libcuda.so.1")).is_err() {
        let _ = drivers.iter().find(|dir| open(&dir.join("libcuda.so.1")).is_ok());
    }
    let families = families();
    let newest = newest_libraries(driver().map(|(major, _)| major), oldest_device());
    let mut notes: Vec<String> = vec![];
    for (family, major) in families.iter().flat_map(|f| [(f, 13), (f, 12)]).filter(|(_, major)| *major <= newest) {
        match complete(family, major) {
            Ok(paths) => match paths.iter().try_for_each(|path| open(path)) {
                Ok(()) => break,
                Err(why) => notes.push(why),
            },
            Err(why) => notes.extend(why),
        }
    }
    let missing = named().into_iter().filter(|dir| !dir.is_dir());
    notes.extend(missing.map(|dir| format!("TAPEZOO_CUDA_LIBS names {}, which is no directory", dir.display())));
    present(&drivers, &families.concat(), &notes)
}

/// The CUDA version, as (13, 0), that the driver is for; none if there is no driver.
pub(super) fn driver() -> Option<(i32, i32)> {
    let mut version = 0;
    // SAFETY: the library is there to be called, and the result is ours. This call needs no initialisation.
    let known = unsafe { sys::is_culib_present() && sys::cuDriverGetVersion(&mut version).result().is_ok() };
    known.then_some((version / 1000, version % 1000 / 10))
}

/// The newest CUDA that serves this driver and the oldest of its devices, by compute capability: 13 compiles for 7.5 and
/// newer.
pub fn newest_libraries(driver: Option<i32>, oldest: Option<i32>) -> i32 {
    driver.unwrap_or(i32::MAX).min(if oldest.is_some_and(|capability| capability < 75) { 12 } else { i32::MAX })
}

/// The least compute capability of the devices, such as 75; none if the driver cannot say.
fn oldest_device() -> Option<i32> {
    use sys::CUdevice_attribute as Of;
    let [major, minor] =
        [Of::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, Of::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR];
    // SAFETY: the library is there to be called, and is told to start first.
    unsafe { sys::is_culib_present() }.then(|| result::init().ok()).flatten()?;
    let capability = |ordinal: i32| {
        let device = result::device::get(ordinal).ok()?;
        // SAFETY: the device is one of the driver's.
        let of = |attribute| unsafe { result::device::get_attribute(device, attribute) }.ok();
        Some(10 * of(major)? + of(minor)?)
    };
    (0..result::device::get_count().ok()?).filter_map(capability).min()
}

/// NVRTC and cuBLAS with what they load by themselves, in the order in which to open them. All from one place: NVRTC
/// opens its builtins by name, and only those of its own version fit.
///
/// # Errors
/// When one of the two is missing; with what is there, if one is.
pub fn complete(family: &[PathBuf], major: i32) -> Result<Vec<PathBuf>, Option<String>> {
    let find = |stem: &str| find(family, stem, major);
    let alone = |path: PathBuf, other: &str| Some(format!("{} has no {other}.so.{major} beside it", path.display()));
    match (find("libnvrtc"), find("libcublas")) {
        (Some(nvrtc), Some(cublas)) => {
            let all = [find("libnvrtc-builtins"), Some(nvrtc), find("libcublasLt"), Some(cublas)];
            Ok(all.into_iter().flatten().collect())
        }
        (Some(nvrtc), None) => Err(alone(nvrtc, "libcublas")),
        (None, Some(cublas)) => Err(alone(cublas, "libnvrtc")),
        (None, None) => Err(None),
    }
}

/// The library `stem.so.major`, or with more of its version behind that, in the first directory that has it.
pub fn find(family: &[PathBuf], stem: &str, major: i32) -> Option<PathBuf> {
    let name = format!("{stem}.so.{major}");
    family.iter().find_map(|dir| {
        let files = fs::read_dir(dir).ok()?.flatten().map(|e| e.path());
        let fits = |p: &PathBuf| {
            let file = p.file_name().unwrap_or_default().to_string_lossy();
            file == *name || file.starts_with(&format!("{name}."))
        };
        files.filter(fits).min()
    })
}

/// The directories of `TAPEZOO_CUDA_LIBS`.
fn named() -> Vec<PathBuf> {
    env::var_os("TAPEZOO_CUDA_LIBS").map_or(vec![], |list| env::split_paths(&list).collect())
}

/// Directories that exist and may hold the libraries, best first; those of one entry belong together.
fn families() -> Vec<Vec<PathBuf>> {
    let var = |name: &str| env::var_os(name).filter(|v| !v.is_empty());
    let mut families = vec![named()];
    let toolkit = |root: &Path| vec![vec![root.join("lib64"), root.join("lib"), root.join("targets/x86_64-linux/lib")]];
    for root in ["CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"].iter().filter_map(|name| var(name)) {
        families.extend(toolkit(Path::new(&root)));
    }
    families.extend(["/usr/local/cuda", "/opt/cuda"].iter().flat_map(|root| toolkit(Path::new(root))));
    families.extend(environments().iter().flat_map(|env| packages(env)));
    let versions = fs::read_dir("/usr/local").into_iter().flatten().flatten().map(|e| e.path());
    let mut versions: Vec<PathBuf> =
        versions.filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("cuda-"))).collect();
    versions.sort();
    families.extend(versions.iter().rev().flat_map(|root| toolkit(root)));
    families.iter_mut().for_each(|family| family.retain(|dir| dir.is_dir()));
    families.retain(|family| !family.is_empty());
    families
}

/// Python environments: the active ones, and that of every `python3` on the path that is in one.
fn environments() -> Vec<PathBuf> {
    let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(env::var_os).map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let on_path = env::split_paths(&path).filter(|dir| dir.join("python3").exists());
    let theirs =
        on_path.filter_map(|dir| dir.parent().map(Path::to_path_buf)).filter(|p| p.join("pyvenv.cfg").exists());
    active.chain(theirs).collect()
}

/// The directories of pip's CUDA packages in an environment: one for all since CUDA 13, one each before.
pub fn packages(environment: &Path) -> Vec<Vec<PathBuf>> {
    let pythons = fs::read_dir(environment.join("lib")).into_iter().flatten().flatten().map(|e| e.path());
    let pythons = pythons.filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("python3")));
    pythons
        .flat_map(|python| {
            let nvidia = python.join("site-packages/nvidia");
            [vec![nvidia.join("cu13/lib")], vec![nvidia.join("cuda_nvrtc/lib"), nvidia.join("cublas/lib")]]
        })
        .collect()
}

/// Load a library and keep it: the loader then finds it by its name with a version, whoever asks.
fn open(path: &Path) -> Result<(), String> {
    // SAFETY: the libraries of CUDA, and the stand-ins, have no initialiser that could do harm.
    match unsafe { libloading::Library::new(path) } {
        Ok(library) => {
            std::mem::forget(library);
            Ok(())
        }
        Err(e) => Err(format!("{}: {e}", path.display())),
    }
}

/// Whether all three libraries are there to be called; if not, which is missing, where it was looked for, and what
/// was noticed there.
fn present(drivers: &[PathBuf], toolkits: &[PathBuf], notes: &[String]) -> Result<(), String> {
    // SAFETY: these open the libraries by name, and close them again.
    let found = unsafe {
        [
            ("libcuda, the driver,", drivers, sys::is_culib_present()),
            ("libnvrtc, the run-time compiler,", toolkits, cudarc::nvrtc::sys::is_culib_present()),
            ("libcublas", toolkits, cudarc::cublas::sys::is_culib_present()),
        ]
    };
    let Some((name, looked, _)) = found.iter().find(|(_, _, there)| !there) else { return Ok(()) };
    let places: Vec<String> = looked.iter().map(|p| p.display().to_string()).collect();
    Err(format!(
        "no CUDA: {name} was not found by the loader{}{}{}; TAPEZOO_CUDA_LIBS may name the directories that have it, \
         --device cpu needs none",
        if places.is_empty() { "" } else { ", nor in " },
        places.join(", "),
        notes.iter().map(|note| format!(" ({note})")).collect::<String>()
    ))
}
