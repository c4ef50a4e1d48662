//! Reading a golden fixture: one safetensors file with inputs, outputs, cotangents and gradients of one op.

use crate::{
    error::{Error, Result, brief},
    files::{
        self,
        header::{keys_are_unique, size_is_plausible},
        tensors::{self, Numbers, of_file},
    },
    tensor::{DType, MAX_RANK, Shape, Tensor},
};
use safetensors::Dtype;
use serde_json::Value as Json;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// The contents of a fixture file. Floating-point tensors are `f64`, integers `i32`.
#[derive(Clone)]
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
    /// Read a file and check its format. The op's tensors and attributes are checked when it is run.
    ///
    /// # Errors
    /// When it cannot be read, is truncated or corrupted, or lacks `op`. The error names the file and what was
    /// expected.
    pub fn read(path: &Path) -> Result<Fixture> {
        let bad = |what: String| Error::format(path, what);
        let bytes = files::read(path, files::tensors())?;
        let (stored, meta) = of_file(&bytes).map_err(bad)?;
        let op =
            meta.get("op").ok_or_else(|| bad("its metadata has no 'op': expected the name of an operation".into()))?;
        let attrs = match meta.get("attrs") {
            None => Default::default(),
            Some(text) => {
                keys_are_unique(text).map_err(|e| bad(format!("its metadata 'attrs': {e}")))?;
                let Ok(Json::Object(map)) = serde_json::from_str(text) else {
                    let shown = brief(text, 60);
                    return Err(bad(format!("its metadata 'attrs' is '{shown}': expected a JSON object")));
                };
                map
            }
        };
        let mut tensors = BTreeMap::new();
        for (name, stored) in stored {
            let of = |why: String| bad(format!("tensor '{}': {why}", brief(&name, 60)));
            if !["in.", "out.", "ct.", "grad."].iter().any(|p| name.starts_with(p)) {
                return Err(of("expected a name that begins with in., out., ct. or grad.".into()));
            }
            size_is_plausible(&stored.dims, bytes.len()).map_err(of)?;
            let tensor = decode(&stored).map_err(of)?;
            let result = !name.starts_with("in.");
            if result && tensor.dtype() == DType::I32 {
                return Err(of("integers: expected floating-point numbers (F64)".into()));
            }
            tensors.insert(name, tensor);
        }
        let source = meta.get("source").cloned().unwrap_or_default();
        Ok(Fixture { path: path.into(), op: op.clone(), source, attrs, tensors })
    }

    /// A fixture without a file.
    #[doc(hidden)]
    pub fn new(op: &str, attrs: Json, tensors: BTreeMap<String, Tensor>) -> Fixture {
        let attrs = attrs.as_object().cloned().unwrap_or_default();
        Fixture { path: op.into(), op: op.into(), source: String::new(), attrs, tensors }
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

    /// A tensor with this shape.
    ///
    /// # Errors
    /// When it is missing or has another shape.
    pub fn shaped(&self, name: &str, shape: Shape) -> Result<&Tensor> {
        let t = self.tensor(name)?;
        if t.shape() == shape {
            return Ok(t);
        }
        Err(self.bad(format!("tensor '{name}' has shape {}: expected {shape}", t.shape())))
    }

    /// Check that the integers of a tensor are in 0..n, or `ignored`. Kernels on a device do not check this.
    ///
    /// # Errors
    /// Names the integer and the range.
    pub fn within(&self, name: &str, n: usize, ignored: Option<i32>) -> Result<()> {
        let wrong = |&id: &i32| Some(id) != ignored && usize::try_from(id).map_or(true, |id| id >= n);
        match self.tensor(name)?.host::<i32>().iter().find(|id| wrong(id)) {
            None => Ok(()),
            Some(id) => {
                let but = ignored.map_or(String::new(), |i| format!(" and is not the ignored {i}"));
                Err(self.bad(format!("tensor '{name}': {id} is outside 0..{n}{but}")))
            }
        }
    }

    /// Check that all attributes are among these, or have a value at which they change nothing.
    ///
    /// # Errors
    /// Names the attribute, and the known ones.
    pub fn know(&self, attrs: &[&str]) -> Result<()> {
        let is = |value: &Json, json: &str| serde_json::from_str(json).is_ok_and(|json: Json| equal(&json, value));
        let neutral = |name: &str, value: &Json| {
            NEUTRAL.iter().any(|&(op, n, v)| (op == self.op || op == "*") && n == name && is(value, v))
        };
        match self.attrs.iter().find(|&(name, value)| !attrs.contains(&name.as_str()) && !neutral(name, value)) {
            None => Ok(()),
            Some((name, value)) => {
                let known = if attrs.is_empty() { "none".into() } else { attrs.join(", ") };
                let (name, value) = (brief(name, 60), brief(&value.to_string(), 60));
                let op = &self.op;
                Err(self.bad(format!("attribute '{name}' ({value}): op '{op}' has no such attribute; it has {known}")))
            }
        }
    }

    fn attr<T>(&self, name: &str, expected: &str, read: impl Fn(&Json) -> Option<T>) -> Result<T> {
        let value = self.attrs.get(name);
        let shown = value.map_or("absent".into(), |v| brief(&v.to_string(), 60));
        value.and_then(read).ok_or_else(|| self.bad(format!("attribute '{name}' is {shown}: expected {expected}")))
    }

    /// Check that an attribute, if present, agrees with the tensors.
    ///
    /// # Errors
    /// When it does not agree.
    pub fn agrees(&self, name: &str, value: &Json) -> Result<()> {
        if !self.attrs.contains_key(name) {
            return Ok(());
        }
        self.attr(name, &value.to_string(), |v| equal(v, value).then_some(()))
    }

    /// All attributes together.
    ///
    /// # Errors
    /// When they do not match `T`. The error names the attribute.
    pub fn attributes<T: serde::de::DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_value(Json::Object(self.attrs.clone()))
            .map_err(|e| self.bad(format!("its attributes: {}", brief(&e.to_string(), 300))))
    }

    /// A number attribute.
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

    /// An integer attribute, with a default.
    ///
    /// # Errors
    /// When it is something else.
    pub fn integer_or(&self, name: &str, default: i32) -> Result<i32> {
        let read = |v: &Json| v.as_f64().filter(|x| *x == f64::from(*x as i32)).map(|x| x as i32);
        if self.attrs.contains_key(name) { self.attr(name, "a whole number of 32 bits", read) } else { Ok(default) }
    }

    /// A size attribute.
    ///
    /// # Errors
    /// When it is absent or something else.
    pub fn size(&self, name: &str) -> Result<usize> {
        self.attr(name, "a whole number from 1", |v| {
            // A JSON writer may write 4 as 4.0.
            let whole = |x: f64| (x.fract() == 0.0 && (1.0..=9e15).contains(&x)).then_some(x as u64);
            v.as_u64().or_else(|| whole(v.as_f64()?)).filter(|&n| n > 0).and_then(|n| usize::try_from(n).ok())
        })
    }

    /// A boolean attribute, with a default.
    ///
    /// # Errors
    /// When it is something else.
    pub fn flag(&self, name: &str, default: bool) -> Result<bool> {
        if self.attrs.contains_key(name) { self.attr(name, "true or false", Json::as_bool) } else { Ok(default) }
    }

    /// An attribute that is a list of two numbers, with a default.
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

    /// A string attribute, with a default.
    ///
    /// # Errors
    /// When it is something else.
    pub fn word(&self, name: &str, default: &str) -> Result<String> {
        let read = |v: &Json| v.as_str().map(str::to_owned);
        if self.attrs.contains_key(name) { self.attr(name, "a string", read) } else { Ok(default.into()) }
    }
}

/// Attributes that other libraries have for an op ("*": for every op), and the JSON value at which they change nothing.
const NEUTRAL: &[(&str, &str, &str)] = &[
    ("adam", "amsgrad", "false"),
    ("adam", "maximize", "false"),
    ("adamw", "amsgrad", "false"),
    ("adamw", "maximize", "false"),
    ("cross_entropy", "weight", "null"),
    ("embedding", "padding_idx", "null"),
    ("embedding", "max_norm", "null"),
    ("elu", "alpha", "1.0"),
    ("softplus", "beta", "1.0"),
    ("gelu_tanh", "approximate", "\"tanh\""),
    ("softmax", "dim", "-1"),
    ("log_softmax", "dim", "-1"),
    ("l2_norm", "dim", "-1"),
    ("*", "use_qk_l2norm_in_kernel", "false"),
    ("*", "dropout", "0.0"),
];

fn decode(stored: &tensors::Tensor) -> std::result::Result<Tensor, String> {
    if stored.dims.len() > MAX_RANK {
        return Err(format!("shape {:?}: expected at most {MAX_RANK} axes", stored.dims));
    }
    let shape = Shape::new(&stored.dims);
    match (stored.dtype, stored.numbers()) {
        (Dtype::F32 | Dtype::F64, Some(numbers)) => Ok(Tensor::from_vec(numbers.to(|x| x), shape)),
        (_, Some(Numbers::I64(all))) => {
            let narrow = |x: i64| i32::try_from(x).map_err(|_| format!("{x} does not fit in 32 bits"));
            let all = all.into_iter().map(narrow).collect::<std::result::Result<Vec<i32>, _>>();
            Ok(Tensor::from_vec(all?, shape))
        }
        (other, _) => Err(format!("dtype {other:?}: expected F64, F32, I64 or I32")),
    }
}

/// Whether two values are the same; a JSON writer may write 4 as 4.0.
fn equal(a: &Json, b: &Json) -> bool {
    a == b || a.is_number() && a.as_f64() == b.as_f64()
}
