//! Layers of other packages: each fixture was made by that package's own module (`scripts/exchange_fixtures.py`), with
//! random weights, an input and the module's output.

#![allow(clippy::unwrap_used)]

#[path = "../close/mod.rs"]
mod close;
mod files;
#[path = "../program/mod.rs"]
mod program;
mod programs;
#[path = "../texts/mod.rs"]
mod texts;

use close::all_close;
use half::{bf16, f16};
use program::Place;
use safetensors::{
    SafeTensors,
    tensor::{Dtype, TensorView},
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};
use tapezoo::{
    autograd::{Gen, Tape},
    exchange::{Layers, Package, Wanted, differs, equals, export},
    models::{Bound, Eigenvalues, Form, Init, Model, ModelConfig, Positions, State, find, run},
    tensor::{DType, Shape, Tensor},
};

/// Axes and bytes of tensors by name.
type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/exchange")
}

fn read(bytes: &[u8]) -> Tensors {
    let file = SafeTensors::deserialize(bytes).unwrap();
    let tensor = |(name, t): (String, TensorView)| (name, (t.dtype(), t.shape().to_vec(), t.data().to_vec()));
    file.tensors().into_iter().map(tensor).collect()
}

fn written(tensors: &Tensors) -> Vec<u8> {
    let view = |(name, (dtype, dims, data)): (&String, &(Dtype, Vec<usize>, Vec<u8>))| {
        (name.clone(), TensorView::new(*dtype, dims.clone(), data).unwrap().data().to_vec(), *dtype, dims.clone())
    };
    let all: Vec<_> = tensors.iter().map(view).collect();
    let views =
        all.iter().map(|(name, data, dtype, dims)| (name, TensorView::new(*dtype, dims.clone(), data).unwrap()));
    safetensors::serialize(views, None).unwrap()
}

fn f64s(bytes: &[u8]) -> Vec<f64> {
    bytes.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect()
}

/// A fixture: its name, its file, and its metadata.
struct Fixture {
    name: String,
    path: PathBuf,
    tensors: Tensors,
    package: Package,
    mixer: String,
    module: String,
    settings: Value,
}

fn fixtures() -> Vec<Fixture> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder()).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    let fixture = |path: PathBuf| {
        let bytes = fs::read(&path).unwrap();
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        let about: Value = serde_json::from_str(&metadata.metadata().as_ref().unwrap()["about"]).unwrap();
        let text = |key: &str| about[key].as_str().unwrap().to_string();
        Fixture {
            name: path.file_stem().unwrap().to_str().unwrap().into(),
            tensors: read(&bytes),
            package: text("package").parse().unwrap(),
            mixer: text("mixer"),
            module: text("module"),
            settings: about["settings"].clone(),
            path,
        }
    };
    paths.into_iter().map(fixture).collect()
}

impl Fixture {
    /// The tensors of the layers alone.
    fn layers(&self) -> Tensors {
        self.tensors
            .iter()
            .filter(|(name, _)| name.starts_with("layers."))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect()
    }

    fn heads(&self) -> Vec<(&'static str, usize, &'static str)> {
        let heads = self.settings["heads"].as_u64();
        heads.map(|n| ("heads", usize::try_from(n).unwrap(), "by --heads")).into_iter().collect()
    }

    fn read(&self, path: &Path) -> tapezoo::error::Result<Layers> {
        let prefix = "layers.{}.";
        Layers::read(path, &Wanted { prefix, sizes: &self.heads(), ..Wanted::of(self.package, &self.mixer) })
    }

    /// The result of reading a file with these tensors.
    fn with(&self, tensors: &Tensors) -> Result<Layers, String> {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file.safetensors");
        fs::write(&path, written(tensors)).unwrap();
        self.read(&path).map_err(|e| e.to_string())
    }

    fn config(&self, layers: &Layers) -> ModelConfig {
        let signed = self.settings["eigenvalues"].as_str() == Some("-1..1");
        let eigenvalues = if signed { Eigenvalues::Signed } else { Eigenvalues::Positive };
        layers.config(&ModelConfig { eigenvalues, ..ModelConfig::default() })
    }
}

/// A fixture by its name.
fn fixture(name: &str) -> Fixture {
    fixtures().into_iter().find(|f| f.name == name).unwrap()
}

/// The parameters of a model's mixers, by name, as bits.
fn mixers(model: &Model) -> BTreeMap<String, Vec<u64>> {
    let all = model.params().tensors().filter(|(name, _)| name.contains(".mixer."));
    all.map(|(name, x)| (name.to_string(), x.to_f64().iter().map(|x| x.to_bits()).collect())).collect()
}

/// The mixers of a model one after the other, each on its own input [B, T, D], in one form.
fn outputs(model: &Model, inputs: &[Tensor], form: Form) -> Vec<Vec<f64>> {
    let (config, tape) = (model.config(), Tape::default());
    let (mut outputs, mut passed) = (vec![], None);
    for (i, x) in inputs.iter().enumerate() {
        let mut init = Init::new(0, None);
        init.layer = i;
        let mixer = find(&config.mixer).unwrap()(config, &mut init).unwrap();
        let prefix = format!("blocks.{i}.mixer.");
        let own = model.params().tensors().filter(|(name, _)| name.starts_with(&prefix));
        let p = Bound::new(own.map(|(_, x)| tape.constant(&x)).collect());
        let mut state = State::zero(mixer.as_ref(), &tape, x.shape().at(0), x.dtype());
        state.passed = passed;
        outputs.push(run(mixer.as_ref(), &p, tape.constant(x), &mut state, form).value().to_f64());
        passed = state.passed;
    }
    outputs
}

#[test]
fn a_layer_of_another_package_and_our_mixer_give_the_same() {
    let all = fixtures();
    assert!(all.len() >= 20, "{} fixtures", all.len());
    for fixture in &all {
        let name = &fixture.name;
        let layers = fixture.read(&fixture.path).unwrap_or_else(|e| panic!("{e}"));
        let model = layers.model(&fixture.config(&layers), 5).unwrap();
        let n = layers.len();
        let tensor = |what: &str, i: usize| {
            let (_, dims, data) = &fixture.tensors[&format!("{what}.{i}")];
            Tensor::from_vec(f64s(data), Shape::from(&dims[..]))
        };
        let inputs: Vec<Tensor> = (0..n).map(|i| tensor("in", i)).collect();
        for form in model.forms() {
            for (i, got) in outputs(&model, &inputs, form).iter().enumerate() {
                // The mixer may have an ε that theirs has not, as beside a sum of gates.
                all_close(got, &tensor("out", i).to_f64(), 1e-9, format_args!("{name} {form} layer {i}"));
            }
        }
        assert_eq!(layers.left_out().len(), 2 * n, "{name}: {:?}", layers.left_out());
    }
    // Every mapping has been tested here.
    for (package, mixer, _) in equals(&ModelConfig::default()) {
        assert!(all.iter().any(|f| f.package == package && f.mixer == mixer), "no fixture of {package} {mixer}");
    }
}

#[test]
fn every_tensor_of_a_fixture_counts_and_so_does_the_order_of_its_numbers() {
    for fixture in fixtures() {
        let (name, own) = (&fixture.name, fixture.layers());
        let tensor = |what: &str, i: usize| {
            let (_, dims, data) = &fixture.tensors[&format!("{what}.{i}")];
            Tensor::from_vec(f64s(data), Shape::from(&dims[..]))
        };
        for (tensor_name, (dtype, dims, data)) in &own {
            let mut numbers: Vec<[u8; 8]> = data.as_chunks::<8>().0.to_vec();
            numbers.reverse();
            let mut turned = own.clone();
            turned.insert(tensor_name.clone(), (*dtype, dims.clone(), numbers.concat()));
            let layers = fixture.with(&turned).unwrap();
            let model = layers.model(&fixture.config(&layers), 0).unwrap();
            let inputs: Vec<Tensor> = (0..layers.len()).map(|i| tensor("in", i)).collect();
            let got = outputs(&model, &inputs, model.default_form()).concat();
            let want: Vec<f64> = (0..layers.len()).flat_map(|i| tensor("out", i).to_f64()).collect();
            let off = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(off > 1e-6, "{name}: {tensor_name} the other way round changes nothing: {off:e}");
        }
    }
}

#[test]
fn the_module_that_is_named_is_the_one_that_made_the_weights() {
    for fixture in fixtures() {
        let layers = fixture.read(&fixture.path).unwrap();
        let said = layers.module(&fixture.config(&layers));
        // What is said about the call is no option of the module.
        let module =
            [", and h through", ", called with"].iter().fold(&said[..], |said, end| said.split(end).next().unwrap());
        assert_eq!(module, fixture.module, "{}", fixture.name);
    }
}

/// FLA and xlstm find the number of channels from a quotient, which they round down and up.
#[test]
fn the_module_that_is_named_has_as_many_channels() {
    for (heads, head_dim) in [(1, 4), (3, 20), (4, 25), (5, 12), (7, 44)] {
        for width in [8, 24, 56, 88, 104, 768] {
            for (package, mixer, key) in
                [(Package::Fla, "delta_net", "expand_k="), (Package::Xlstm, "mlstm", "proj_factor=")]
            {
                let config = ModelConfig { width, heads, head_dim, layers: 1, ..sizes(mixer) };
                let said = export(&Model::new(&config, 0, DType::F32).unwrap(), package, "").unwrap().module;
                let quotient = said.split(key).nth(1).unwrap().split(',').next().unwrap();
                let (inner, of) = quotient.split_once('/').unwrap();
                let inner = inner
                    .trim_matches(['(', ')'])
                    .strip_suffix("-.5")
                    .map_or_else(|| inner.parse().unwrap(), |whole| whole.parse::<f64>().unwrap() - 0.5);
                let channels = width as f64 * (inner / of.parse::<f64>().unwrap());
                let channels = if package == Package::Fla { channels.floor() } else { channels.ceil() };
                assert_eq!(channels, (heads * head_dim) as f64, "{said}");
            }
        }
    }
}

#[test]
fn what_is_exported_is_what_was_imported_bit_for_bit() {
    for fixture in fixtures() {
        let name = &fixture.name;
        let layers = fixture.read(&fixture.path).unwrap();
        let model = layers.model(&fixture.config(&layers), 1).unwrap();
        let file = export(&model, fixture.package, "layers.{}.").unwrap();
        let tensors = read(&file.bytes);
        assert_eq!(file.tensors, tensors.len());
        // Of modules that keep their weights in several ways we write one.
        if !["fla_gla_apart", "xlstm_slstm_cuda"].contains(&name.as_str()) {
            let theirs = fixture.layers();
            assert_eq!(tensors.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>(), "{name}");
            for (tensor, (dtype, dims, data)) in &tensors {
                let (other, of, there) = &theirs[tensor];
                assert_eq!((dtype, dims), (other, of), "{name}: {tensor}");
                // A weight that is kept less one is rounded as the package rounds it.
                let norm = fixture.package == Package::Xlstm && tensor.ends_with("norm.weight");
                if norm {
                    let effective = |data| f64s(data).into_iter().map(|w| 1.0 + w).collect::<Vec<f64>>();
                    assert_eq!(effective(data), effective(there), "{name}: {tensor}");
                } else {
                    assert_eq!(data, there, "{name}: {tensor}");
                }
            }
        }
        let again = fixture.with(&tensors).unwrap().model(model.config(), 2).unwrap();
        assert_eq!(mixers(&again), mixers(&model), "{name}");
    }
}

/// Sizes that every module can have, all of them different where it can.
fn sizes(mixer: &str) -> ModelConfig {
    let square = ["gpt", "lightnet", "path", "rwkv7", "slstm"].contains(&mixer);
    let width = if square { 8 } else { 4 };
    let config = ModelConfig { mixer: mixer.into(), layers: 3, width, heads: 2, head_dim: 4, ..ModelConfig::default() };
    ModelConfig { state: 3, conv: 5, dt_rank: 7, expand: 3, householders: 3, mlp: 0, ..config }
}

#[test]
fn our_own_weights_come_back_bit_for_bit_whatever_they_are() {
    for dtype in [DType::F32, DType::F64] {
        for (package, mixer, _) in equals(&ModelConfig::default()) {
            let rope = (package, mixer) == (Package::Fla, "gpt");
            let positions = if rope { Positions::Rope } else { Positions::None };
            let config = ModelConfig { positions, ..sizes(mixer) };
            let mut model = Model::new(&config, 0, dtype).unwrap();
            let mut g = Gen::new(7);
            for entry in model.params().entries().to_vec() {
                // One is taken off the norms of xlstm, and FLA's attention has no bias behind it.
                let value = |g: &mut Gen| match entry.name.rsplit('.').next().unwrap() {
                    "norm" => 0.5 + g.uniform(0.0, 3.0),
                    "b_o" if rope => 0.0,
                    _ => g.gauss(),
                };
                let range = entry.offset..entry.offset + entry.shape.len();
                match dtype {
                    DType::F32 => {
                        let flat = model.params_mut().flat_mut().host_mut::<f32>();
                        flat[range].iter_mut().for_each(|x| *x = value(&mut g) as f32);
                    }
                    _ => {
                        let flat = model.params_mut().flat_mut().host_mut::<f64>();
                        flat[range].iter_mut().for_each(|x| *x = value(&mut g));
                    }
                }
            }
            let file = export(&model, package, "a.{}.b").unwrap();
            let place = tempfile::tempdir().unwrap();
            let path = place.path().join("layers.safetensors");
            fs::write(&path, &file.bytes).unwrap();
            let heads = [("heads", 2, "by --heads")];
            let wanted = Wanted { prefix: "a.{}.b", sizes: &heads, ..Wanted::of(package, mixer) };
            let layers = Layers::read(&path, &wanted).unwrap();
            assert_eq!((layers.len(), layers.dtype(), layers.left_out().len()), (3, dtype, 0));
            let again = layers.model(&layers.config(&config), 9).unwrap();
            assert_eq!(mixers(&again), mixers(&model), "{package} {mixer} {dtype}");
            let around = model.params().entries().iter().filter(|e| !e.name.contains(".mixer.")).count();
            assert_eq!(file.left_out.len(), around, "{package} {mixer}");
        }
    }
}
