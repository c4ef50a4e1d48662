//! Tensors of a safetensors file as numbers.

use super::header::names_are_unique;
use crate::{error::brief, tensor::Real};
use half::{bf16, f16};
use safetensors::{
    SafeTensors,
    tensor::{Dtype, TensorView},
};
use std::collections::{BTreeMap, HashMap};

/// The tensors of a file by name.
pub type Tensors<'a> = BTreeMap<String, Tensor<'a>>;

/// A tensor as the file has it: of a whole model few may be taken.
pub struct Tensor<'a> {
    /// Its axes.
    pub dims: Vec<usize>,
    /// Its type.
    pub dtype: Dtype,
    data: &'a [u8],
}

/// Half precision is widened to single, which changes no number; integers are widened to 64 bits.
pub enum Numbers {
    F32(Vec<f32>),
    F64(Vec<f64>),
    I64(Vec<i64>),
}

impl Tensor<'_> {
    /// Its type, if that is none of a model's.
    pub fn foreign(&self) -> Option<String> {
        let ours = matches!(self.dtype, Dtype::F32 | Dtype::F64 | Dtype::BF16 | Dtype::F16);
        (!ours).then(|| brief(&format!("{:?}", self.dtype), 40))
    }

    /// Its numbers, in the precision that it was written in or more; of another type there are none.
    pub fn numbers(&self) -> Option<Numbers> {
        Some(match self.dtype {
            Dtype::F32 => Numbers::F32(each(self.data, f32::from_le_bytes)),
            Dtype::F64 => Numbers::F64(each(self.data, f64::from_le_bytes)),
            Dtype::BF16 => Numbers::F32(each(self.data, |x| bf16::from_le_bytes(x).to_f32())),
            Dtype::F16 => Numbers::F32(each(self.data, |x| f16::from_le_bytes(x).to_f32())),
            Dtype::I32 => Numbers::I64(each(self.data, |x| i32::from_le_bytes(x).into())),
            Dtype::I64 => Numbers::I64(each(self.data, i64::from_le_bytes)),
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
            Numbers::I64(x) => x.iter().map(|x| T::of(*x as f64)).collect(),
        }
    }
}

/// The tensors of a file, and its metadata.
///
/// # Errors
/// When it is no such file, or has a name twice.
pub fn of_file<'a>(bytes: &'a [u8]) -> Result<(Tensors<'a>, HashMap<String, String>), String> {
    let broken = |e| format!("not a whole safetensors file: {e}");
    names_are_unique(bytes)?;
    let file = SafeTensors::deserialize(bytes).map_err(broken)?;
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(broken)?;
    let tensor = |view: TensorView<'a>| Tensor { dims: view.shape().to_vec(), dtype: view.dtype(), data: view.data() };
    let tensors = file.tensors().into_iter().map(|(name, view)| (name, tensor(view))).collect();
    Ok((tensors, header.metadata().clone().unwrap_or_default()))
}

/// The numbers of `N` bytes each.
fn each<const N: usize, T>(data: &[u8], number: impl Fn([u8; N]) -> T) -> Vec<T> {
    data.as_chunks().0.iter().map(|bytes| number(*bytes)).collect()
}
