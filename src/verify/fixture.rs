//! Reading a golden fixture: one safetensors file with inputs, outputs, cotangents and gradients of one op.

use crate::{
    error::{Error, Result},
    tensor::{Shape, Tensor},
};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value as Json;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// The contents of a fixture file. Floating-point tensors are `f64`, integers `i32`.
pub struct Fixture {
    /// The file.
    pub path: PathBuf,
    /// Which op.
    pub op: String,
    /// Who computed it.
    pub source: String,
    attrs: serde_json::Map<String, Json>,
    /// By name: `in.q`, `out.o`, `ct.o`, `grad.q`.
    pub tensors: BTreeMap<String, Tensor>,
}

impl Fixture {
    /// Read and check a file's form; what its op needs is checked when it is run.
    ///
    /// # Errors
    /// When it cannot be read, is truncated or corrupted, or lacks `op`: names the file and what was expected.
    pub fn read(path: &Path) -> Result<Fixture> {
        let bytes = std::fs::read(path).map_err(Error::io(path))?;
        let bad = |what: String| Error::format(path, what);
        let corrupt = |e| bad(format!("not a whole safetensors file: {e}"));
        let file = SafeTensors::deserialize(&bytes).map_err(corrupt)?;
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(corrupt)?;
        let empty = Default::default();
        let meta = header.metadata().as_ref().unwrap_or(&empty);
        let op =
            meta.get("op").ok_or_else(|| bad("its metadata has no 'op': expected the name of an operation".into()))?;
        let attrs = match meta.get("attrs") {
            None => Default::default(),
            Some(text) => match serde_json::from_str(text) {
                Ok(Json::Object(map)) => map,
                _ => return Err(bad(format!("its metadata 'attrs' is {text:?}: expected a JSON object"))),
            },
        };
        let mut tensors = BTreeMap::new();
        for (name, view) in file.tensors() {
            if !["in.", "out.", "ct.", "grad."].iter().any(|p| name.starts_with(p)) {
                return Err(bad(format!("tensor '{name}': expected a name that begins with in., out., ct. or grad.")));
            }
            let tensor = decode(view.dtype(), view.shape(), view.data())
                .map_err(|why| bad(format!("tensor '{name}': {why}")))?;
            tensors.insert(name, tensor);
        }
        let source = meta.get("source").cloned().unwrap_or_default();
        Ok(Fixture { path: path.into(), op: op.clone(), source, attrs, tensors })
    }

    /// The file's name.
    pub fn name(&self) -> String {
        self.path.file_name().map_or_else(|| self.path.display().to_string(), |n| n.to_string_lossy().into_owned())
    }

    /// An error about this file.
    pub fn bad(&self, what: impl Into<String>) -> Error {
        Error::format(&self.path, what)
    }

    /// Whether there is a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The tensor of this name.
    ///
    /// # Errors
    /// When there is none.
    pub fn tensor(&self, name: &str) -> Result<&Tensor> {
        self.tensors
            .get(name)
            .ok_or_else(|| self.bad(format!("tensor '{name}' is missing, which op '{}' needs", self.op)))
    }

    fn attr<T>(&self, name: &str, expected: &str, read: impl Fn(&Json) -> Option<T>) -> Result<T> {
        let value = self.attrs.get(name);
        let shown = value.map_or("absent".into(), |v| v.to_string());
        value.and_then(read).ok_or_else(|| self.bad(format!("attribute '{name}' is {shown}: expected {expected}")))
    }

    /// All attributes together.
    ///
    /// # Errors
    /// When they are not what `T` has: names the attribute.
    pub fn attributes<T: serde::de::DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_value(Json::Object(self.attrs.clone())).map_err(|e| self.bad(format!("its attributes: {e}")))
    }

    /// A number among the attributes.
    ///
    /// # Errors
    /// When it is absent or something else.
    pub fn number(&self, name: &str) -> Result<f64> {
        self.attr(name, "a number", Json::as_f64)
    }

    /// As [`Fixture::number`], with a default.
    ///
    /// # Errors
    /// When it is something else.
    pub fn number_or(&self, name: &str, default: f64) -> Result<f64> {
        if self.attrs.contains_key(name) { self.number(name) } else { Ok(default) }
    }

    /// A size among the attributes.
    ///
    /// # Errors
    /// When it is absent or something else.
    pub fn size(&self, name: &str) -> Result<usize> {
        self.attr(name, "a whole number from 1", |v| {
            v.as_u64().filter(|&n| n > 0).and_then(|n| usize::try_from(n).ok())
        })
    }

    /// A yes or no among the attributes, with a default.
    ///
    /// # Errors
    /// When it is something else.
    pub fn flag(&self, name: &str, default: bool) -> Result<bool> {
        if self.attrs.contains_key(name) { self.attr(name, "true or false", Json::as_bool) } else { Ok(default) }
    }

    /// A list of two numbers among the attributes, with a default.
    ///
    /// # Errors
    /// When it is something else.
    pub fn pair(&self, name: &str, default: [f64; 2]) -> Result<[f64; 2]> {
        let read = |v: &Json| match v.as_array()?.as_slice() {
            [a, b] => Some([a.as_f64()?, b.as_f64()?]),
            _ => None,
        };
        if self.attrs.contains_key(name) { self.attr(name, "a list of two numbers", read) } else { Ok(default) }
    }

    /// A word among the attributes, with a default.
    ///
    /// # Errors
    /// When it is something else.
    pub fn word(&self, name: &str, default: &str) -> Result<String> {
        let read = |v: &Json| v.as_str().map(str::to_owned);
        if self.attrs.contains_key(name) { self.attr(name, "a string", read) } else { Ok(default.into()) }
    }
}

fn decode(dtype: Dtype, shape: &[usize], data: &[u8]) -> std::result::Result<Tensor, String> {
    if shape.len() > crate::tensor::MAX_RANK {
        return Err(format!("shape {shape:?}: expected at most {} axes", crate::tensor::MAX_RANK));
    }
    fn words<const N: usize>(data: &[u8]) -> impl Iterator<Item = [u8; N]> {
        data.chunks_exact(N).map(|c| std::array::from_fn(|i| c[i]))
    }
    let shape = Shape::new(shape);
    Ok(match dtype {
        Dtype::F64 => Tensor::from_vec(words(data).map(f64::from_le_bytes).collect::<Vec<_>>(), shape),
        Dtype::F32 => {
            Tensor::from_vec(words(data).map(|w| f64::from(f32::from_le_bytes(w))).collect::<Vec<_>>(), shape)
        }
        Dtype::I32 => Tensor::from_vec(words(data).map(i32::from_le_bytes).collect::<Vec<_>>(), shape),
        Dtype::I64 => {
            let narrow = |w| {
                i32::try_from(i64::from_le_bytes(w))
                    .map_err(|_| format!("{} does not fit in 32 bits", i64::from_le_bytes(w)))
            };
            Tensor::from_vec(words(data).map(narrow).collect::<std::result::Result<Vec<i32>, _>>()?, shape)
        }
        other => return Err(format!("dtype {other:?}: expected F64, F32, I64 or I32")),
    })
}
