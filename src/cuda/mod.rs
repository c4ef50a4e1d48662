//! CUDA below the tensors: devices by name, their memory, launches of the kernels in `.cu` files, and matrix products.
//!
//! [`Gpu`] is one stream of one device. It calls three libraries that are looked for at run time: the driver, the
//! run-time compiler NVRTC, and cuBLAS. Without them everything else works as before. This module sees addresses and
//! element types, and no tensors; what an op sees of a device is [`tensor::Cuda`](struct@crate::tensor::Cuda).
//!
//! A [`Device::Emulated`] device is the same code over stand-ins for the three libraries, which run the kernels on
//! the CPU: that is how kernels are tested and debugged on a machine without a GPU.
//!
//! The stream remembers the first failure ([`Gpu::fault`]): a kernel that fails, a launch that is refused, or memory that
//! runs out. The failure panics with what happened, and the training loop makes an
//! [`Error::Device`](crate::error::Error::Device) of it.
//!
//! # Panics
//! The functions of this module also panic where their arguments do not fit.
//!
//! In a build without the feature `cuda` there is no [`Gpu`], and nothing above it knows: to open a device is an error.

#[doc(hidden)]
pub mod counters;
mod device;
#[cfg(feature = "cuda")]
mod gpu;
#[cfg(not(feature = "cuda"))]
#[path = "without.rs"]
mod gpu;
mod launch;
mod module;
mod tiles;
mod view;

pub use device::Device;
#[cfg(feature = "cuda")]
#[doc(hidden)]
pub use gpu::emulator;
#[doc(hidden)]
pub use gpu::{Block, Gpu, Graph, Mark, Pinned, ahead};
#[cfg(feature = "cuda")]
#[doc(hidden)]
pub use gpu::{cache, compile, locate};
pub use launch::{Arg, Launch, in_packs};
pub use module::Module;
#[doc(hidden)]
pub use module::{PRELUDE, TILES};
#[doc(hidden)]
pub use tiles::Tiles;
#[doc(hidden)]
pub use view::View;

use std::sync::Arc;

/// Run `f` on this device (none: the CPU); its panic over a fault of the device, or a lack of memory, becomes an error.
///
/// # Errors
/// When the device failed, or there is not enough memory: what happened.
pub fn guarded<R>(gpu: Option<Arc<Gpu>>, f: impl FnOnce() -> R) -> crate::error::Result<R> {
    let Some(gpu) = gpu else { return crate::error::within_memory(f) };
    match crate::error::quietly(f) {
        Ok(done) => Ok(done),
        Err(message) => match gpu.fault() {
            Some(fault) => Err(crate::error::Error::Device(fault.into())),
            None => panic!("{message}"),
        },
    }
}
