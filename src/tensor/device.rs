//! Where buffers live and ops run, chosen at run time.

use super::{dtype::DType, pool::Cpu, products::Products};
use crate::cuda::{Cuda, Gpu};
use std::{
    fmt,
    str::FromStr,
    sync::{Arc, OnceLock},
};

/// A device that can be asked for by name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Device {
    /// The processor: buffers are host memory.
    #[default]
    Cpu,
    /// A CUDA device, by its number.
    Cuda(usize),
    /// The CUDA backend, its kernels run on the processor by stand-ins for CUDA's libraries: for tests and debuggers.
    Emulated,
}

impl Device {
    /// What `auto` stands for on this machine, and why: CUDA if there is a device and its libraries are found.
    pub fn auto() -> &'static (Device, String) {
        static CHOICE: OnceLock<(Device, String)> = OnceLock::new();
        CHOICE.get_or_init(|| match Cuda::open(Device::Cuda(0)) {
            Ok(cuda) => (Device::Cuda(0), format!("auto: cuda:0, as there is {}", cuda.gpu().name())),
            Err(why) => (Device::Cpu, format!("auto: cpu, as there is {}", why.split(';').next().unwrap_or_default())),
        })
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(n) => write!(f, "cuda:{n}"),
            Device::Emulated => f.write_str("emulated"),
        }
    }
}

impl FromStr for Device {
    type Err = String;
    fn from_str(s: &str) -> Result<Device, String> {
        match s {
            "cpu" => Ok(Device::Cpu),
            "auto" => Ok(Device::auto().0),
            "cuda" => Ok(Device::Cuda(0)),
            "emulated" => Ok(Device::Emulated),
            _ => match s.strip_prefix("cuda:").map(str::parse) {
                Some(Ok(n)) => Ok(Device::Cuda(n)),
                Some(Err(_)) => Err(format!("device '{s}': expected a number after 'cuda:', such as cuda:0")),
                None => Err(format!("unknown device '{s}': expected auto, cpu, cuda, cuda:N or emulated")),
            },
        }
    }
}

/// The device an op runs on, with what it needs there.
///
/// Ops match on it, and nothing above them does: another device is another variant, and the compiler then
/// lists every op that has no kernel for it.
pub enum Cx {
    /// Host memory, one thread.
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

    /// The pool that buffers come from and go back to.
    pub fn pool(&self) -> std::cell::RefMut<'_, super::Pool> {
        match self {
            Cx::Cpu(cpu) => cpu.pool(),
            Cx::Cuda(cuda) => cuda.pool(),
        }
    }
}
