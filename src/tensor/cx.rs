//! Where buffers live and ops run, chosen at run time.

use super::{Cores, Cuda, DType, Device, pool::Cpu, products::Products};
use crate::cuda::Gpu;
use std::sync::Arc;

/// The device an op runs on, with what it needs there.
///
/// Ops match on it, and nothing above them does: another device is another variant, and the compiler then
/// lists every op that has no kernel for it.
pub enum Cx {
    /// Host memory: one thread, and idle cores where an op shares its work.
    Cpu(Cpu),
    /// Device memory, one stream.
    Cuda(Cuda),
}

impl Cx {
    /// Open a device.
    ///
    /// # Errors
    /// When it is not there, or what it needs is not: what, and where it was looked for.
    pub fn open(device: Device) -> Result<Cx, String> {
        Cx::open_with(device, Products::F32)
    }

    /// Open a device, for products like these on the CPU.
    ///
    /// # Errors
    /// As [`Cx::open`], and when there are no such products.
    pub fn open_with(device: Device, products: Products) -> Result<Cx, String> {
        products.check(device, DType::F32)?;
        Ok(match device {
            Device::Cpu => Cx::Cpu(Cpu::new(products)?),
            Device::Cuda(_) | Device::Emulated => Cx::Cuda(Cuda::open(device)?),
        })
    }

    /// Which device this is.
    pub fn device(&self) -> Device {
        match self {
            Cx::Cpu(_) => Device::Cpu,
            Cx::Cuda(cuda) => cuda.gpu().device(),
        }
    }

    /// The stream that ops run on, if it is one of a CUDA device.
    pub fn gpu(&self) -> Option<Arc<Gpu>> {
        match self {
            Cx::Cpu(_) => None,
            Cx::Cuda(cuda) => Some(cuda.gpu().clone()),
        }
    }

    /// Compute on these cores besides, when they are idle.
    pub(crate) fn share(&mut self, cores: &Cores) {
        if let Cx::Cpu(cpu) = self {
            cpu.share(cores);
        }
    }

    /// A step is over: see [`Pool::end_step`](super::Pool::end_step).
    pub fn end_step(&self) {
        match self {
            Cx::Cpu(cpu) => cpu.end_step(),
            Cx::Cuda(cuda) => cuda.pool().end_step(),
        }
    }

    /// The pool that buffers come from and go back to.
    pub fn pool(&self) -> std::cell::RefMut<'_, super::Pool> {
        match self {
            Cx::Cpu(cpu) => cpu.pool(),
            Cx::Cuda(cuda) => cuda.pool(),
        }
    }
}
