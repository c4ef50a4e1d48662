//! A model's weights as a safetensors file, under their path names.

use super::{Model, ModelConfig};
use crate::{
    error::{Error, Result, brief},
    files::{
        self,
        tensors::{Numbers, Tensors, of_file},
        whole::write,
    },
    tensor::{DType, Tensor},
};
use safetensors::tensor::{Dtype, TensorView};
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
        let (file, metadata) = of_file(&bytes).map_err(not_ours)?;
        let about =
            metadata.get("tapezoo").ok_or_else(|| not_ours("it has no entry 'tapezoo' in its metadata".into()))?;
        let config =
            serde_json::from_str::<Value>(about).ok().and_then(|mut all| all.get_mut("model").map(Value::take));
        let config = config.ok_or_else(|| not_ours("no configuration 'model' in its metadata".into()))?;
        let config: ModelConfig = serde_json::from_value(config).map_err(|e| not_ours(e.to_string()))?;
        let double = file.values().any(|tensor| tensor.dtype == Dtype::F64);
        let dtype = if double { DType::F64 } else { DType::F32 };
        // A configuration may ask for more than the file has: its weights are counted before there is room for them.
        let asked = Model::hollow(&config, dtype)?.params().entries().iter().map(|e| e.shape.len()).sum::<usize>();
        let there = file.values().map(|tensor| tensor.dims.iter().product::<usize>()).sum::<usize>();
        if asked != there {
            return Err(broken(format!("{there} weights, and a model of its configuration has {asked}")));
        }
        let mut model = Model::new(&config, 0, dtype)?;
        let (weights, others) = model.weights_of(&file, path)?;
        none_left(&others, path)?;
        model.params_mut().replace(weights);
        Ok(model)
    }

    /// Load the weights that [`Model::save`] or a run has left. The model must have the same parameters, in shape and
    /// type.
    ///
    /// # Errors
    /// When the file cannot be read, or has not exactly the parameters of this model: the error names the first that
    /// differs. The model is then as it was.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        self.load_bytes(&files::read(path, files::tensors())?, path)
    }

    /// As [`Model::load`], from the bytes of such a file; errors say that they are of the file `path`.
    ///
    /// # Errors
    /// As [`Model::load`], but for reading the file.
    pub fn load_bytes(&mut self, bytes: &[u8], path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let (file, _) = of_file(bytes).map_err(|what| Error::format(path, what))?;
        let (weights, others) = self.weights_of(&file, path)?;
        none_left(&others, path)?;
        self.params_mut().replace(weights);
        Ok(())
    }

    /// As [`Model::load`], but the file may have more; gives the names of tensors that the model does not have.
    pub(crate) fn load_known(&mut self, path: &Path) -> Result<Vec<String>> {
        let bytes = files::read(path, files::tensors())?;
        let (file, _) = of_file(&bytes).map_err(|what| Error::format(path, what))?;
        let (weights, others) = self.weights_of(&file, path)?;
        self.params_mut().replace(weights);
        Ok(others)
    }

    /// The weights that the file at `path` has for this model, in the order of its parameters, and the names of the
    /// tensors that it has besides.
    fn weights_of(&self, file: &Tensors, path: &Path) -> Result<(Tensor, Vec<String>)> {
        let broken = |what: String| Error::format(path, what);
        let (entries, flat) = (self.params().entries(), self.params().flat());
        let mut weights = Tensor::zeros(flat.shape(), flat.dtype());
        for e in entries {
            let there = file.get(&e.name);
            let there = there
                .ok_or_else(|| broken(format!("no tensor '{}', so these are the weights of another model", e.name)))?;
            if there.dims != e.shape.dims() {
                return Err(broken(format!("'{}' is {:?}, and in the model {}", e.name, there.dims, e.shape)));
            }
            let range = e.offset..e.offset + e.shape.len();
            match (there.dtype, there.numbers(), flat.dtype()) {
                (Dtype::F32, Some(Numbers::F32(x)), DType::F32) => weights.host_mut()[range].copy_from_slice(&x),
                (Dtype::F64, Some(Numbers::F64(x)), DType::F64) => weights.host_mut()[range].copy_from_slice(&x),
                (other, _, own) => return Err(broken(format!("'{}' has numbers of {other:?}, not {own}", e.name))),
            }
        }
        let others = file.keys().filter(|name| entries.iter().all(|e| e.name != **name)).cloned().collect();
        Ok((weights, others))
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
fn none_left(others: &[String], path: &Path) -> Result<()> {
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
