//! Finding and loading the three libraries, before anything calls into them.

use super::emulator;
use crate::tensor::Device;
use std::{path::Path, sync::OnceLock};

/// Load the libraries for this device; a process has either the real ones or the stand-ins.
pub(super) fn load(device: Device) -> Result<(), String> {
    static LOADED: OnceLock<(bool, Result<(), String>)> = OnceLock::new();
    let wants = device == Device::Emulated;
    let (emulated, result) = LOADED.get_or_init(|| (wants, if wants { stand_ins() } else { real() }));
    if *emulated != wants {
        let (has, what) = if *emulated { ("the emulator", "a CUDA device") } else { ("CUDA", "the emulator") };
        return Err(format!("device {device}: this process has loaded {has} already, and cannot have {what} as well"));
    }
    result.clone()
}

fn stand_ins() -> Result<(), String> {
    let dir = emulator::libraries()?;
    for name in ["libcuda.so", "libnvrtc.so", "libcublas.so"] {
        open(&dir.join(name))?;
    }
    present()
}

fn real() -> Result<(), String> {
    present()
}

/// Load a library and keep it: the loader then finds it by name, whoever asks.
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

/// Whether all three libraries are there to be called.
fn present() -> Result<(), String> {
    // SAFETY: these open the libraries by name, and close them again.
    let found = unsafe {
        [
            ("libcuda (the driver)", cudarc::driver::sys::is_culib_present()),
            ("libnvrtc", cudarc::nvrtc::sys::is_culib_present()),
            ("libcublas", cudarc::cublas::sys::is_culib_present()),
        ]
    };
    match found.iter().find(|(_, there)| !there) {
        None => Ok(()),
        Some((name, _)) => Err(format!("CUDA: {name} was not found")),
    }
}
