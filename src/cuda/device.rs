//! Devices by name.

use super::Gpu;
use std::{fmt, str::FromStr, sync::OnceLock};

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
    /// The device that `auto` stands for on this machine, and the reason: CUDA if there is a device and its libraries are found.
    pub fn auto() -> &'static (Device, String) {
        static CHOICE: OnceLock<(Device, String)> = OnceLock::new();
        CHOICE.get_or_init(|| match Gpu::open(Device::Cuda(0)) {
            Ok(gpu) => (Device::Cuda(0), format!("auto: cuda:0, as there is {}", gpu.name())),
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
