//! A model's weights as a safetensors file, under their path names.

use super::{Model, ModelConfig};
use crate::{
    error::{Error, Result, brief},
    files::{
        self,
        tensors::{Numbers, Tensors, of_file},
        whole::write,
    },
    tensor::{DType, Shape, Tensor},
};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use std::{collections::HashMap, path::Path};

/// The name of the running statistics that a model evaluates by, in files.
pub(super) const STATISTICS: &str = "statistics";

/// The tensors of a file.
struct Read {
    /// The weights, in the order of the model's parameters.
    weights: Tensor,
    /// The running statistics, if the model has any.
    statistics: Option<Tensor>,
    /// The names of the tensors that the model does not have.
    others: Vec<String>,
}

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
        // Statistics are f64 beside weights of any type.
        let double = file.iter().any(|(name, tensor)| name != STATISTICS && tensor.dtype == Dtype::F64);
        let dtype = if double { DType::F64 } else { DType::F32 };
        // A configuration may ask for more than the file has: its weights are counted before there is room for them.
        let blocks = config.layers;
        if blocks > file.len() {
            return Err(broken(format!("{} tensors, and its configuration has {blocks} layers", file.len())));
        }
        let hollow = Model::hollow(&config, dtype).map_err(|e| not_ours(e.to_string()))?;
        let asked = hollow.params().entries().iter().map(|e| e.shape.len()).sum::<usize>();
        let asked = asked + hollow.statistics().map_or(0, Tensor::len);
        let there = file.values().map(|tensor| tensor.dims.iter().product::<usize>()).sum::<usize>();
        if asked != there {
            return Err(broken(format!("{there} weights, and a model of its configuration has {asked}")));
        }
        let mut model = Model::new(&config, 0, dtype).map_err(|e| not_ours(e.to_string()))?;
        let read = model.read(&file, path)?;
        none_left(&read.others, path)?;
        model.put(read);
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
        let read = self.read(&file, path)?;
        none_left(&read.others, path)?;
        self.put(read);
        Ok(())
    }

    /// As [`Model::load`], but the file may have more; gives the names of tensors that the model does not have.
    pub(crate) fn load_known(&mut self, path: &Path) -> Result<Vec<String>> {
        let bytes = files::read(path, files::tensors())?;
        let (file, _) = of_file(&bytes).map_err(|what| Error::format(path, what))?;
        let read = self.read(&file, path)?;
        Ok(self.put(read))
    }

    /// What the file at `path` has for this model.
    fn read(&self, file: &Tensors, path: &Path) -> Result<Read> {
        let broken = |what: String| Error::format(path, what);
        let copy = |name: &str, shape: &Shape, into: &mut Tensor, first: usize| {
            let there = file.get(name);
            let there = there
                .ok_or_else(|| broken(format!("no tensor '{name}', so these are the weights of another model")))?;
            if there.dims != shape.dims() {
                return Err(broken(format!("'{name}' is {:?}, and in the model {shape}", there.dims)));
            }
            let range = first..first + shape.len();
            match (there.dtype, there.numbers(), into.dtype()) {
                (Dtype::F32, Some(Numbers::F32(x)), DType::F32) => into.host_mut()[range].copy_from_slice(&x),
                (Dtype::F64, Some(Numbers::F64(x)), DType::F64) => into.host_mut()[range].copy_from_slice(&x),
                (other, _, own) => return Err(broken(format!("'{name}' has numbers of {other:?}, not {own}"))),
            }
            Ok(())
        };
        let like = |own: &Tensor| Tensor::zeros(own.shape(), own.dtype());
        let (entries, mut weights) = (self.params().entries(), like(self.params().flat()));
        for e in entries {
            copy(&e.name, &e.shape, &mut weights, e.offset)?;
        }
        let mut statistics = self.statistics().map(like);
        if let Some(into) = &mut statistics {
            copy(STATISTICS, &into.shape(), into, 0)?;
        }
        let ours = |name: &str| entries.iter().any(|e| e.name == name) || statistics.is_some() && name == STATISTICS;
        let others = file.keys().filter(|name| !ours(name)).cloned().collect();
        Ok(Read { weights, statistics, others })
    }

    /// Take what a file has, and give the names of the tensors that this model does not have.
    fn put(&mut self, read: Read) -> Vec<String> {
        self.params_mut().replace(read.weights);
        for (name, own) in self.buffers() {
            if let (STATISTICS, Some(read)) = (name, &read.statistics) {
                own.clone_from(read);
            }
        }
        read.others
    }

    /// The parameters, and the running statistics of a published model, as a safetensors file, with this entry
    /// `tapezoo` in its metadata.
    pub(crate) fn to_safetensors(&self, about: &Value) -> std::result::Result<Vec<u8>, String> {
        let flat = self.params().flat().to_host();
        let (dtype, bytes, size) = (stored(flat.dtype()), flat.bytes(), flat.dtype().bytes());
        let mut tensors = Vec::new();
        for e in self.params().entries() {
            let data = &bytes[e.offset * size..(e.offset + e.shape.len()) * size];
            let view = TensorView::new(dtype, e.shape.dims().to_vec(), data).map_err(|e| e.to_string())?;
            tensors.push((e.name.clone(), view));
        }
        if let Some(own) = self.statistics() {
            let view = TensorView::new(stored(own.dtype()), own.shape().dims().to_vec(), own.bytes());
            tensors.push((STATISTICS.into(), view.map_err(|e| e.to_string())?));
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
