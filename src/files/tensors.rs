//! Tensors of a safetensors file as numbers.

use super::header::names_are_unique;
use crate::error::brief;
use bytemuck::Pod;
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
            Dtype::F32 => Numbers::F32(numbers(self.data)),
            Dtype::F64 => Numbers::F64(numbers(self.data)),
            Dtype::BF16 => Numbers::F32(each(self.data, |bits| bf16::from_bits(bits).to_f32())),
            Dtype::F16 => Numbers::F32(each(self.data, |bits| f16::from_bits(bits).to_f32())),
            Dtype::I32 => Numbers::I64(each(self.data, |x: i32| x.into())),
            Dtype::I64 => Numbers::I64(numbers(self.data)),
            _ => return None,
        })
    }
}

impl Numbers {
    /// The numbers in the precision that `of` rounds to.
    pub fn to<T>(&self, of: impl Fn(f64) -> T) -> Vec<T> {
        match self {
            Numbers::F32(x) => x.iter().map(|x| of(f64::from(*x))).collect(),
            Numbers::F64(x) => x.iter().map(|x| of(*x)).collect(),
            Numbers::I64(x) => x.iter().map(|x| of(*x as f64)).collect(),
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

/// The numbers that these bytes encode.
fn numbers<T: Pod>(data: &[u8]) -> Vec<T> {
    each(data, |x| x)
}

/// The numbers that these bytes are, each widened.
fn each<T: Pod, W>(data: &[u8], wide: impl Fn(T) -> W) -> Vec<W> {
    data.chunks_exact(size_of::<T>()).map(|bytes| wide(bytemuck::pod_read_unaligned(bytes))).collect()
}
