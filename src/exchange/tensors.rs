//! Tensors of a safetensors file as numbers.

use crate::{error::brief, files::header::names_are_unique, tensor::Real};
use safetensors::{
    SafeTensors,
    tensor::{Dtype, TensorView},
};
use std::collections::BTreeMap;

/// The tensors of a file by name.
pub type Tensors = BTreeMap<String, Tensor>;

/// A tensor, in the precision that it was written in or more.
pub struct Tensor {
    /// Its axes.
    pub dims: Vec<usize>,
    /// Its numbers; if they are none that a model can have, their type.
    pub numbers: Result<Numbers, String>,
}

/// Half precision is widened to single, which changes no number.
pub enum Numbers {
    F32(Vec<f32>),
    F64(Vec<f64>),
}

impl Numbers {
    /// In this precision.
    pub fn to<T: Real>(&self) -> Vec<T> {
        match self {
            Numbers::F32(x) => x.iter().map(|x| T::of(f64::from(*x))).collect(),
            Numbers::F64(x) => x.iter().map(|x| T::of(*x)).collect(),
        }
    }
}

/// Read a file.
///
/// # Errors
/// When it is no such file.
pub fn of_file(bytes: &[u8]) -> Result<Tensors, String> {
    names_are_unique(bytes)?;
    let file = SafeTensors::deserialize(bytes).map_err(|e| format!("not a safetensors file, or damaged: {e}"))?;
    let tensor = |(name, view): (String, TensorView<'_>)| {
        let data = view.data();
        let numbers = match view.dtype() {
            Dtype::F32 => Ok(Numbers::F32(each(data, f32::from_le_bytes))),
            Dtype::F64 => Ok(Numbers::F64(each(data, f64::from_le_bytes))),
            Dtype::BF16 => Ok(Numbers::F32(each(data, |x| brain(u16::from_le_bytes(x))))),
            Dtype::F16 => Ok(Numbers::F32(each(data, |x| half(u16::from_le_bytes(x))))),
            other => Err(brief(&format!("{other:?}"), 40)),
        };
        (name, Tensor { dims: view.shape().to_vec(), numbers })
    };
    Ok(file.tensors().into_iter().map(tensor).collect())
}

/// The number that these bits are in bf16: the upper half of one in single precision.
fn brain(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The number that these bits are in IEEE's half precision: a sign, five bits of exponent and ten of fraction.
fn half(bits: u16) -> f32 {
    let (exponent, fraction) = (u32::from(bits >> 10 & 31), u32::from(bits & 1023));
    let size = match exponent {
        0 => fraction as f32 * 2f32.powi(-24),            // below the least exponent
        31 => f32::from_bits(255 << 23 | fraction << 13), // infinite, or no number
        _ => f32::from_bits((exponent + 112) << 23 | fraction << 13),
    };
    if bits >> 15 == 1 { -size } else { size }
}

/// The numbers of `N` bytes each.
fn each<const N: usize, T>(data: &[u8], number: impl Fn([u8; N]) -> T) -> Vec<T> {
    data.as_chunks().0.iter().map(|bytes| number(*bytes)).collect()
}
