//! Where buffers live and ops run, chosen at run time.

use super::pool::Cpu;
use std::{fmt, str::FromStr};

/// A device that can be asked for by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Device {
    /// The processor: buffers are host memory.
    #[default]
    Cpu,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
        }
    }
}

impl FromStr for Device {
    type Err = String;
    fn from_str(s: &str) -> Result<Device, String> {
        match s {
            "cpu" | "auto" => Ok(Device::Cpu),
            _ if s.starts_with("cuda") => {
                Err(format!("device '{s}': this build has no CUDA backend; use --device cpu (or auto, which picks it)"))
            }
            _ => Err(format!("unknown device '{s}': expected auto or cpu")),
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
}

impl Cx {
    /// Open a device.
    pub fn new(device: Device) -> Cx {
        match device {
            Device::Cpu => Cx::Cpu(Cpu::default()),
        }
    }

    /// Which device this is.
    pub fn device(&self) -> Device {
        match self {
            Cx::Cpu(_) => Device::Cpu,
        }
    }

    /// The pool that buffers come from and go back to.
    pub fn pool(&self) -> std::cell::RefMut<'_, super::Pool> {
        match self {
            Cx::Cpu(cpu) => cpu.pool(),
        }
    }
}
