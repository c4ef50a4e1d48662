//! Kernels: each compiled for the device by NVRTC, and loaded once.

use super::{Gpu, Turn, cache::Cache, lock};
use crate::{
    cuda::{Device, Module, module::Key},
    dtype::DType,
};
use cudarc::{
    driver::{result, sys},
    nvrtc::{result as nvrtc, sys as nvrtc_sys},
};
use std::{
    collections::HashMap,
    ffi::CString,
    sync::{Arc, Mutex},
};

/// A module on a device. The driver's handles belong to the device's primary context and are never unloaded.
#[derive(Clone, Copy)]
struct Loaded(sys::CUmodule);
// SAFETY: a handle to something that the driver guards itself.
unsafe impl Send for Loaded {}

/// A module, once it is loaded. Who holds its lock compiles it: others that want the same one wait, and those that want
/// another do not.
type Slot = Arc<Mutex<Option<Loaded>>>;

/// What NVRTC compiles at once: a kernel for an element type, or, in emulation, all kernels of its file, whose compiler takes
/// longer for two of them than for one file.
#[derive(Clone, Copy)]
pub(super) struct Unit {
    pub(super) device: Device,
    pub(super) module: &'static Module,
    pub(super) kernel: Option<&'static str>,
    dtype: DType,
}

impl Unit {
    /// The unit that has this kernel.
    pub(super) fn new(device: Device, module: &'static Module, kernel: &'static str, dtype: DType) -> Unit {
        Unit { device, module, kernel: Some(kernel).filter(|_| device != Device::Emulated), dtype }
    }

    fn key(&self) -> (Device, Key, Option<&'static str>) {
        (self.device, self.module.key(self.dtype), self.kernel)
    }

    pub(super) fn source(&self) -> String {
        self.kernel.map_or_else(|| self.module.source(self.dtype), |one| self.module.source_of(self.dtype, one))
    }
}

impl PartialEq for Unit {
    fn eq(&self, other: &Unit) -> bool {
        self.key() == other.key()
    }
}

type Slots = HashMap<(Device, Key, Option<&'static str>), Slot>;

static LOADED: Mutex<Option<Slots>> = Mutex::new(None);

impl Gpu {
    /// The kernel's handle; compiles and loads its module the first time.
    #[track_caller]
    pub(super) fn find(&self, module: &'static Module, kernel: &'static str, dtype: DType) -> sys::CUfunction {
        let unit = Unit::new(self.device, module, kernel, dtype);
        let slot = lock(&LOADED).get_or_insert_default().entry(unit.key()).or_default().clone();
        let known = *lock(&slot);
        let handle = known.unwrap_or_else(|| self.load(&unit, &slot));
        let name = CString::new(kernel).expect("a kernel's name has no zero in it");
        // The driver may load it now.
        let _turn = Turn::take();
        // SAFETY: modules are never unloaded.
        let function = unsafe { result::module::get_function(handle.0, name) };
        self.check(&format!("{}: there is no kernel '{kernel}'", module.name), function)
    }

    #[track_caller]
    fn load(&self, unit: &Unit, slot: &Slot) -> Loaded {
        let (Unit { module, dtype, .. }, loaded) = (*unit, lock(slot));
        if let Some(found) = *loaded {
            return found;
        }
        if dtype == DType::BF16 && self.capability < 80 {
            let (major, minor) = (self.capability / 10, self.capability % 10);
            self.fail(format!(
                "device {}: products in bf16 need compute capability 8.0, and this device has {major}.{minor}: --dtype f32 \
                 runs there",
                self.device
            ));
        }
        let image = match compile(&Cache::of_user(), module.name, &unit.source(), &self.arch) {
            Ok(image) => image,
            Err(log) => self.fail(format!("{} for {dtype}: NVRTC: {log}", module.name)),
        };
        // A thread that records has the turn, and may wait for this slot.
        drop(loaded);
        let (_turn, mut loaded) = (Turn::take(), lock(slot));
        *loaded.get_or_insert_with(|| {
            // SAFETY: the image is what NVRTC made for this device.
            let handle = unsafe { result::module::load_data(image.as_ptr().cast()) };
            Loaded(self.check(&format!("loading {}", module.name), handle))
        })
    }
}

/// Such as (13, 0).
pub(super) fn nvrtc_version() -> Result<(i32, i32), String> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both results are ours.
    unsafe { nvrtc_sys::nvrtcVersion(&mut major, &mut minor) }.result().map_err(|e| e.to_string())?;
    Ok((major, minor))
}

/// The compute capabilities that NVRTC compiles for, such as 90.
pub(super) fn targets() -> Result<Vec<i32>, String> {
    let mut n = 0;
    // SAFETY: the number is ours, and the array is as long as it says.
    let found = unsafe {
        nvrtc_sys::nvrtcGetNumSupportedArchs(&mut n).result().and_then(|()| {
            let mut all = vec![0; usize::try_from(n).unwrap_or(0)];
            nvrtc_sys::nvrtcGetSupportedArchs(all.as_mut_ptr()).result().map(|()| all)
        })
    };
    found.map_err(|e| e.to_string())
}

/// The target to compile for on a device of this compute capability: its own machine code; that of a relative which it runs;
/// or, for one that this NVRTC does not know, text that its driver translates.
///
/// # Errors
/// When the device is older than all that NVRTC compiles for.
pub fn target(capability: i32, known: &[i32], nvrtc: (i32, i32)) -> Result<String, String> {
    let older = || known.iter().copied().filter(|k| *k <= capability);
    let oldest = known.iter().min().copied().unwrap_or(0);
    match (older().filter(|k| k / 10 == capability / 10).max(), older().max()) {
        (Some(relative), _) => Ok(format!("sm_{relative}")),
        (None, Some(nearest)) => Ok(format!("compute_{nearest}")),
        (None, None) => Err(format!(
            "its compute capability is {}.{}, and NVRTC {}.{} compiles for {}.{} and newer; TAPEZOO_CUDA_LIBS may name \
             the directories of an older CUDA",
            capability / 10,
            capability % 10,
            nvrtc.0,
            nvrtc.1,
            oldest / 10,
            oldest % 10
        )),
    }
}

/// The binary for this architecture, such as "sm_90", from the cache if it is there; for one such as "compute_90" the
/// text that a driver compiles. It needs NVRTC and no device.
///
/// # Errors
/// The compiler's complaints.
pub fn compile(cache: &Cache, name: &str, source: &str, arch: &str) -> Result<Vec<u8>, String> {
    let options = options(arch);
    cache.get(&[source, &options.join(" "), &version()?], || build(name, source, &options))
}

/// Whether the cache has no binary of this source for this architecture, and NVRTC is there to make it.
pub(super) fn is_missing(cache: &Cache, source: &str, arch: &str) -> bool {
    version().is_ok_and(|version| !cache.has(&[source, &options(arch).join(" "), &version]))
}

fn options(arch: &str) -> [String; 3] {
    [format!("--gpu-architecture={arch}"), "--std=c++17".into(), "-lineinfo".into()]
}

fn version() -> Result<String, String> {
    nvrtc_version().map(|(major, minor)| format!("NVRTC {major}.{minor}"))
}

fn build(name: &str, source: &str, options: &[String]) -> Result<Vec<u8>, String> {
    let c = |s: &str| CString::new(s).map_err(|_| "a source with a zero in it".to_string());
    let program = nvrtc::create_program(&c(source)?, Some(&c(name)?)).map_err(|e| e.to_string())?;
    // SAFETY: the program was just made, and is destroyed once, below.
    let done = unsafe { nvrtc::compile_program(program, options) };
    let image = match done {
        // SAFETY: as above; the program was compiled, and the buffer has the size that NVRTC says.
        Ok(()) => unsafe {
            let text = options.iter().any(|option| option.contains("=compute_"));
            let mut size = 0;
            let asked = match text {
                true => nvrtc_sys::nvrtcGetPTXSize(program, &mut size),
                false => nvrtc_sys::nvrtcGetCUBINSize(program, &mut size),
            };
            let mut image = vec![0u8; size];
            let at = image.as_mut_ptr().cast();
            asked
                .result()
                .and_then(|()| match text {
                    true => nvrtc_sys::nvrtcGetPTX(program, at).result(),
                    false => nvrtc_sys::nvrtcGetCUBIN(program, at).result(),
                })
                .map(|()| image)
                .map_err(|e| e.to_string())
        },
        // SAFETY: as above.
        Err(e) => Err(match unsafe { nvrtc::get_program_log(program) } {
            Ok(log) => log.iter().map(|&c| c as u8 as char).filter(|&c| c != '\0').collect(),
            Err(_) => e.to_string(),
        }),
    };
    // SAFETY: made above, and used no more.
    let _ = unsafe { nvrtc::destroy_program(program) };
    image
}
