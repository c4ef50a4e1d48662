//! From a model's mixers to a file.

use super::{
    Package,
    names::Names,
    parameter,
    read::check_prefix,
    sizes::Sizes,
    table::{Absent, Table, either},
    tables_of,
};
use crate::{
    error::{Error, Result},
    models::{Model, weights::stored},
    tensor::{Element, Real},
    with_real,
};
use safetensors::tensor::TensorView;
use std::collections::HashMap;

/// A file of another package's layers.
pub struct Exported {
    /// The safetensors file.
    pub bytes: Vec<u8>,
    /// The module that each of the layers is, as Python makes it.
    pub module: String,
    /// How many tensors there are.
    pub tensors: usize,
    /// The parameters of the model that are in no mixer, which have no counterpart.
    pub left_out: Vec<String>,
}

/// The mixers of a model under the names that a package has for them, behind `prefix`, with `{}` for the number of the
/// block.
///
/// # Errors
/// When no module of the package computes what the mixers do, or two blocks would have the same names.
pub fn export(model: &Model, package: Package, prefix: &str) -> Result<Exported> {
    check_prefix(prefix)?;
    let (config, names) = (model.config(), Names::new(prefix));
    let table = tables_of(package, &config.mixer)?[0];
    if let Some(what) = table.cannot(config) {
        return Err(Error::config(what));
    }
    // Numbers in the tensors' own names do not serve: the layers of such a stack pass on other values than our blocks
    // do.
    if config.layers > 1 && !prefix.contains("{}") {
        let what = "their tensors would have the same names; pass --prefix with {} for the number, as 'layers.{}.'";
        return Err(Error::config(format!("{} blocks: {what}", config.layers)));
    }
    let params = model.params().flat().to_host();
    let dtype = params.dtype();
    let tensors = with_real!(dtype, T => tensors(model, params.host::<T>(), table, &names))?;
    let module = (table.module)(config, &|name| tensors.iter().any(|tensor| tensor.0 == names.of(name, 0)));
    let fault = |e: safetensors::SafeTensorError| Error::config(format!("a fault of this program: {e}"));
    let mut views = vec![];
    for (name, dims, bytes) in &tensors {
        views.push((name, TensorView::new(stored(dtype), dims.clone(), bytes).map_err(fault)?));
    }
    // Tools of PyTorch read files of this format only.
    let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
    let bytes = safetensors::serialize(views, Some(metadata)).map_err(fault)?;
    let others = model.params().entries().iter().filter(|e| !e.name.contains(".mixer.")).map(|e| e.name.clone());
    Ok(Exported { bytes, module, tensors: tensors.len(), left_out: others.collect() })
}

/// A tensor's name, axes and bytes.
type Written = (String, Vec<usize>, Vec<u8>);

/// Every tensor of every block.
fn tensors<T: Real + Element>(model: &Model, params: &[T], table: &Table, names: &Names) -> Result<Vec<Written>> {
    let (config, sizes) = (model.config(), Sizes::of(model.config()));
    let (mut all, mut idle) = (vec![], true);
    for i in 0..config.layers {
        for row in table.rows.iter().filter(|row| row.is_in(i, Some(config.conv))) {
            let entry = parameter(model.params().entries(), i, row)?;
            let x = &params[entry.offset..entry.offset + entry.shape.len()];
            if row.absent == Absent::Idle && x != row.without::<T>(entry.shape.dims()) {
                idle = false;
                if row.theirs.is_empty() {
                    let (name, package, mixer) = (&entry.name, table.package, table.mixer);
                    let what = format!("the layer of {package} that is {mixer} has no such thing");
                    return Err(Error::config(format!("'{name}': expected zeros; {what}")));
                }
            }
            all.push((i, row, row.theirs_of(x, &sizes)));
        }
    }
    // A tensor that has no effect in any layer is written for none: all layers are of one module.
    let mut tensors = vec![];
    for (i, row, parts) in all.into_iter().filter(|(_, row, _)| row.absent != Absent::Idle || !idle) {
        for ((either_of, shape), part) in row.theirs.iter().zip(parts) {
            let name = names.of(either(either_of).next().unwrap_or_default(), i);
            let dims = sizes.shape(shape).unwrap_or_default();
            tensors.push((name, dims, bytemuck::cast_slice(&part).to_vec()));
        }
    }
    Ok(tensors)
}
