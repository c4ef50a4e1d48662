//! A model's weights as a safetensors file, under their path names.

use super::{Model, ModelConfig};
use crate::{
    error::{Error, Result, brief},
    files::{self, header::names_are_unique, whole::write},
    tensor::DType,
};
use safetensors::{
    SafeTensors,
    tensor::{Dtype, TensorView},
};
use serde_json::{Value, json};
use std::{collections::HashMap, path::Path};

impl Model {
    /// Save the weights as a safetensors file, whole or not at all. Other programs find them under their path names,
    /// such as `blocks.0.mixer.w_ih`; the metadata's entry `tapezoo` has the model's configuration as JSON.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let bytes = self.to_safetensors(&json!({ "model": self.config() }));
        write(path, &bytes.map_err(|what| Error::format(path, what))?)
    }

    /// The model that [`Model::save`] or a finished run has left, with the configuration that its file has.
    ///
    /// # Errors
    /// When the file cannot be read, has no configuration, or has not the weights of a model of it.
    pub fn open(path: impl AsRef<Path>) -> Result<Model> {
        let path = path.as_ref();
        let bytes = files::read(path, files::tensors())?;
        let broken = |what: String| Error::format(path, what);
        let not_ours = |what: String| broken(format!("not the weights of a model: {what}"));
        let (_, metadata) = SafeTensors::read_metadata(&bytes).map_err(|e| not_ours(e.to_string()))?;
        let about = metadata.metadata().as_ref().and_then(|all| all.get("tapezoo"));
        let about = about.ok_or_else(|| not_ours("it has no entry 'tapezoo' in its metadata".into()))?;
        let config =
            serde_json::from_str::<Value>(about).ok().and_then(|mut all| all.get_mut("model").map(Value::take));
        let config = config.ok_or_else(|| not_ours("no configuration 'model' in its metadata".into()))?;
        let config: ModelConfig = serde_json::from_value(config).map_err(|e| not_ours(e.to_string()))?;
        let file = SafeTensors::deserialize(&bytes).map_err(|e| broken(e.to_string()))?;
        let double = file.iter().any(|(_, tensor)| tensor.dtype() == Dtype::F64);
        let dtype = if double { DType::F64 } else { DType::F32 };
        // A configuration may ask for more than the file has: its weights are counted before there is room for them.
        let asked = Model::hollow(&config, dtype)?.params().entries().iter().map(|e| e.shape.len()).sum::<usize>();
        let there = file.iter().map(|(_, tensor)| tensor.shape().iter().product::<usize>()).sum::<usize>();
        if asked != there {
            return Err(broken(format!("{there} weights, and a model of its configuration has {asked}")));
        }
        let mut model = Model::new(&config, 0, dtype)?;
        none_left(model.load_bytes(&bytes, path)?, path)?;
        Ok(model)
    }

    /// Load the weights that [`Model::save`] or a run has left. The model must have the same parameters, in shape and
    /// type.
    ///
    /// # Errors
    /// When the file cannot be read, or has not exactly the parameters of this model: the error names the first that
    /// differs. Some weights may then be loaded already.
    ///
    /// # Panics
    /// When the weights are still on a tape.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        none_left(self.load_known(path)?, path)
    }

    /// As [`Model::load`]; gives the names of tensors that the model does not have.
    pub(crate) fn load_known(&mut self, path: &Path) -> Result<Vec<String>> {
        self.load_bytes(&files::read(path, files::tensors())?, path)
    }

    /// From the bytes of the file at `path`.
    fn load_bytes(&mut self, bytes: &[u8], path: &Path) -> Result<Vec<String>> {
        let broken = |what: String| Error::format(path, what);
        names_are_unique(bytes).map_err(broken)?;
        let file = SafeTensors::deserialize(bytes).map_err(|e| broken(e.to_string()))?;
        let params = self.params_mut();
        let entries = params.entries().to_vec();
        let dtype = params.flat().dtype();
        let mut others: Vec<String> = file.names().into_iter().map(String::from).collect();
        others.retain(|name| entries.iter().all(|e| e.name != *name));
        others.sort_unstable();
        for e in entries {
            let view = file
                .tensor(&e.name)
                .map_err(|_| broken(format!("no tensor '{}', so these are the weights of another model", e.name)))?;
            if view.shape() != e.shape.dims() {
                return Err(broken(format!("'{}' is {:?}, and in the model {}", e.name, view.shape(), e.shape)));
            }
            let range = e.offset..e.offset + e.shape.len();
            let flat = params.flat_mut();
            match (view.dtype(), dtype) {
                (Dtype::F32, DType::F32) => {
                    bytemuck::cast_slice_mut(&mut flat.host_mut::<f32>()[range]).copy_from_slice(view.data());
                }
                (Dtype::F64, DType::F64) => {
                    bytemuck::cast_slice_mut(&mut flat.host_mut::<f64>()[range]).copy_from_slice(view.data());
                }
                (there, _) => return Err(broken(format!("'{}' has numbers of {there:?}, not {dtype}", e.name))),
            }
        }
        Ok(others)
    }

    /// The parameters as a safetensors file, with this entry `tapezoo` in its metadata.
    pub(crate) fn to_safetensors(&self, about: &Value) -> std::result::Result<Vec<u8>, String> {
        let flat = self.params().flat();
        let (dtype, bytes, size) = (stored(flat.dtype()), flat.bytes(), flat.dtype().bytes());
        let mut tensors = Vec::new();
        for e in self.params().entries() {
            let data = &bytes[e.offset * size..(e.offset + e.shape.len()) * size];
            let view = TensorView::new(dtype, e.shape.dims().to_vec(), data).map_err(|e| e.to_string())?;
            tensors.push((e.name.clone(), view));
        }
        // One entry, as several would be written in random order, and equal runs give equal files.
        let metadata = HashMap::from([("tapezoo".to_string(), about.to_string())]);
        safetensors::serialize(tensors, Some(metadata)).map_err(|e| e.to_string())
    }
}

/// Refuse a file that has more tensors than the model.
fn none_left(others: Vec<String>, path: &Path) -> Result<()> {
    match others.first() {
        None => Ok(()),
        Some(name) => Err(Error::format(path, format!("'{}': the model has no such weights", brief(name, 80)))),
    }
}

/// The name of a type in a safetensors file.
pub fn stored(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        DType::I32 => Dtype::I32,
        DType::BF16 => Dtype::BF16,
    }
}
