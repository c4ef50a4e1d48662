//! Stand-ins for the driver, NVRTC and cuBLAS that run kernels on the CPU.

use std::path::PathBuf;

/// The directory with the three stand-in libraries.
///
/// # Errors
/// When they cannot be had.
pub fn libraries() -> Result<PathBuf, String> {
    std::env::var_os("TAPEZOO_CUDA_LIBS")
        .map(PathBuf::from)
        .ok_or_else(|| "the emulator's libraries are not there: TAPEZOO_CUDA_LIBS does not say where".into())
}
