//! The type that operands of products are rounded to, as an experiment chooses it.

use crate::tensor::{DType, Device, simd};
use std::{fmt, str::FromStr};

/// The type that operands of Linear, Matmul and TrilMatmul in single precision are rounded to; sums are in single
/// precision either way, and so is everything else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Products {
    /// Nothing: single precision.
    #[default]
    F32,
    /// bf16: sixteen bits, eight of them significand. On processors with AVX512-BF16, at twice the speed.
    Bf16,
}

/// Why there are no products in bf16 on this processor.
const NO_BF16: &str = "products bf16: this processor has no AVX512-BF16 (avx512_bf16 among the flags of \
    /proc/cpuinfo), the instructions that multiply such numbers, or TAPEZOO_SIMD forbids them; expected products f32";

impl Products {
    /// Whether this processor has them.
    ///
    /// # Errors
    /// When it has not: which instructions are missing.
    pub fn check_processor(self) -> Result<(), String> {
        #[cfg(target_arch = "x86_64")]
        let available = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512bf16")
            && simd::allows(simd::Level::Avx512);
        #[cfg(not(target_arch = "x86_64"))]
        let available = false;
        if self == Products::F32 || available { Ok(()) } else { Err(NO_BF16.into()) }
    }

    /// Whether models of this type on this device can have them.
    ///
    /// # Errors
    /// When they cannot: why.
    pub fn check(self, device: Device, dtype: DType) -> Result<(), String> {
        match self {
            Products::Bf16 if device != Device::Cpu => {
                Err(format!("products bf16: expected the device cpu, and this runs on {device}"))
            }
            Products::Bf16 if dtype != DType::F32 => {
                Err(format!("products bf16: expected dtype f32, whose operands are rounded, and this has {dtype}"))
            }
            _ => Ok(()),
        }
    }
}

impl FromStr for Products {
    type Err = String;
    fn from_str(s: &str) -> Result<Products, String> {
        match s {
            "f32" => Ok(Products::F32),
            "bf16" => Ok(Products::Bf16),
            _ => Err(format!("unknown products '{s}': expected f32, or bf16 to round operands to it")),
        }
    }
}

impl fmt::Display for Products {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Products::F32 => "f32",
            Products::Bf16 => "bf16",
        })
    }
}
