//! Tensors of a safetensors file as numbers.

use crate::{error::brief, files::header::names_are_unique, tensor::Real};
use safetensors::{
    SafeTensors,
    tensor::{Dtype, TensorView},
};
use std::collections::BTreeMap;

/// The tensors of a file by name.
pub type Tensors<'a> = BTreeMap<String, Tensor<'a>>;

/// A tensor as the file has it: of a whole model few may be taken.
pub struct Tensor<'a> {
    /// Its axes.
    pub dims: Vec<usize>,
    dtype: Dtype,
    data: &'a [u8],
}

/// Half precision is widened to single, which changes no number.
pub enum Numbers {
    F32(Vec<f32>),
    F64(Vec<f64>),
}

impl Tensor<'_> {
    /// Its type, if that is none of a model's.
    pub fn foreign(&self) -> Option<String> {
        let ours = matches!(self.dtype, Dtype::F32 | Dtype::F64 | Dtype::BF16 | Dtype::F16);
        (!ours).then(|| brief(&format!("{:?}", self.dtype), 40))
    }

    /// Its numbers, in the precision that it was written in or more.
    pub fn numbers(&self) -> Option<Numbers> {
        Some(match self.dtype {
            Dtype::F32 => Numbers::F32(each(self.data, f32::from_le_bytes)),
            Dtype::F64 => Numbers::F64(each(self.data, f64::from_le_bytes)),
            Dtype::BF16 => Numbers::F32(each(self.data, |x| brain(u16::from_le_bytes(x)))),
            Dtype::F16 => Numbers::F32(each(self.data, |x| half(u16::from_le_bytes(x)))),
            _ => return None,
        })
    }
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

/// Read a file's header.
///
/// # Errors
/// When it is no such file.
pub fn of_file<'a>(bytes: &'a [u8]) -> Result<Tensors<'a>, String> {
    names_are_unique(bytes)?;
    let file = SafeTensors::deserialize(bytes).map_err(|e| format!("not a safetensors file, or damaged: {e}"))?;
    let tensor = |view: TensorView<'a>| Tensor { dims: view.shape().to_vec(), dtype: view.dtype(), data: view.data() };
    Ok(file.tensors().into_iter().map(|(name, view)| (name, tensor(view))).collect())
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
