//! Element types: `f32` to train, `f64` to check, `bf16` to train on a GPU, `i32` for tokens and targets.

use std::{fmt, str::FromStr};

/// The element type of a tensor, known at run time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// 32-bit floating point, in which models train.
    #[default]
    F32,
    /// 64-bit floating point, in which gradients are checked.
    F64,
    /// 32-bit integers: tokens, targets, indices.
    I32,
    /// 16-bit floating point with the exponent of `f32`; on CUDA devices only, and computed with in `f32`.
    BF16,
}

impl DType {
    /// The size of an element.
    pub fn bytes(self) -> usize {
        match self {
            DType::F32 | DType::I32 => 4,
            DType::F64 => 8,
            DType::BF16 => 2,
        }
    }

    /// The type that sums and states of this type are computed in.
    pub fn real(self) -> DType {
        if self == DType::BF16 { DType::F32 } else { self }
    }

    /// The largest number of this type that is finite.
    pub fn largest(self) -> f64 {
        match self {
            DType::F32 => f32::MAX.into(),
            DType::F64 => f64::MAX,
            DType::I32 => i32::MAX.into(),
            DType::BF16 => f32::from_bits(0x7f7f_0000).into(),
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::I32 => "i32",
            DType::BF16 => "bf16",
        })
    }
}

impl FromStr for DType {
    type Err = String;
    fn from_str(s: &str) -> Result<DType, String> {
        match s {
            "f32" => Ok(DType::F32),
            "f64" => Ok(DType::F64),
            "bf16" => Ok(DType::BF16),
            _ => Err(format!(
                "unknown dtype '{s}': expected f32 (to train), f64 (to check) or bf16 (to train on a CUDA device)"
            )),
        }
    }
}
