//! Layers of other packages: each fixture was made by that package's own module (`scripts/exchange_fixtures.py`), with
//! random weights, an input and what the module makes of it.

#![allow(clippy::unwrap_used)]

mod close;
mod program;

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
    bytes.as_chunks::<8>().0.iter().map(|x| f64::from_le_bytes(*x)).collect()
}

/// A fixture: its name, the file, and what it says of itself.
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

    /// A file with these tensors; what comes of it.
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
    // Every mapping has been through this.
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
        assert_eq!(said.split(", and h through").next().unwrap(), fixture.module, "{}", fixture.name);
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

/// Sizes at which every module can be, with all of them different where it can.
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

#[test]
fn a_tensor_that_is_missing_too_much_or_misshapen_is_named() {
    // How often the odd one of all tensors is told from the others.
    let (mut blamed, mut all) = (0, 0);
    for fixture in fixtures() {
        let (name, own) = (&fixture.name, fixture.layers());
        let refused = |tensors: &Tensors, tensor: &str, words: &[&str]| {
            let said = match fixture.with(tensors) {
                Ok(_) => panic!("{name}: taken, in spite of '{tensor}'"),
                Err(said) => said,
            };
            for word in [&[&format!("'{tensor}'"), "nothing is taken"][..], words].concat() {
                assert!(said.contains(word), "{name}: no {word} in: {said}");
            }
            // Nothing else is wrong.
            assert_eq!(said.lines().count(), 3, "{name}: {said}");
        };
        let mut other = own.clone();
        other.insert("layers.0.mine".into(), (Dtype::F64, vec![1], vec![0; 8]));
        refused(&other, "layers.0.mine", &["not understood", "[1]"]);
        for (tensor, (dtype, dims, data)) in &own {
            // A file may lack what does nothing, and filters if it lacks all of them.
            let idle = [".post_l0.", ".bias_ih_l0", ".bias_hh_l0", "proj_bias", "out_proj.bias", ".conv1d.bias"];
            let qkv_bias = name == "fla_gpt_bias" && tensor.ends_with("_proj.bias");
            let mut without = own.clone();
            without.remove(tensor);
            if !idle.iter().any(|part| tensor.contains(part)) || qkv_bias {
                let said = fixture.with(&without).err().unwrap_or_default();
                let called = tensor.replace("g_norm.weight", "g_norm_swish_gate.weight");
                let ours = if name == "fla_gla_apart" { &called } else { tensor };
                assert!(said.contains(&format!("missing: '{ours}', expected [")), "{name}: {tensor}: {said}");
            }
            // The one filter of a layer may have any width.
            let only_filter = fixture.package != Package::Fla && tensor.contains(".conv1d.") && dims.len() == 3;
            for axis in 0..dims.len() - usize::from(only_filter) {
                let mut longer = dims.clone();
                longer[axis] += 1;
                let mut misshapen = own.clone();
                let bytes = vec![0; 8 * longer.iter().product::<usize>()];
                misshapen.insert(tensor.clone(), (*dtype, longer.clone(), bytes));
                let said = fixture.with(&misshapen).err().unwrap_or_else(|| panic!("{name}: {tensor} {longer:?}"));
                // Of an LSTM with another width than units it is the map back that is missing.
                let map = name == "torch_lstm" && said.contains("missing: 'layers.0.post_l0.weight'");
                let named = map || said.contains(&format!("'{tensor}'")) && said.contains("expected [");
                assert!(named, "{name}: {tensor} {longer:?}: {said}");
                blamed += usize::from(said.contains(&format!("'{tensor}' is {longer:?}, expected [")));
                all += 1;
            }
            let mut integers = own.clone();
            integers.insert(tensor.clone(), (Dtype::I64, dims.clone(), data.clone()));
            refused(&integers, tensor, &["of I64", "F32"]);
        }
    }
    assert!(blamed * 100 > all * 95, "{blamed} of {all}");
}

/// A fixture by its name.
fn fixture(name: &str) -> Fixture {
    fixtures().into_iter().find(|f| f.name == name).unwrap()
}

#[test]
fn half_precision_is_widened_and_single_stays() {
    let fixture = fixture("fla_gla");
    let numbers = |to: fn(f64) -> Vec<u8>, dtype: Dtype| -> Tensors {
        let tensor = |(name, (_, dims, data)): (String, (Dtype, Vec<usize>, Vec<u8>))| {
            (name, (dtype, dims, f64s(&data).into_iter().flat_map(to).collect()))
        };
        fixture.layers().into_iter().map(tensor).collect()
    };
    type Way = (Dtype, fn(f64) -> Vec<u8>, fn(f64) -> f64);
    let ways: [Way; 3] = [
        (Dtype::F32, |x| (x as f32).to_le_bytes().into(), |x| f64::from(x as f32)),
        (Dtype::BF16, |x| bf16::from_f64(x).to_le_bytes().into(), |x| bf16::from_f64(x).to_f64()),
        (Dtype::F16, |x| f16::from_f64(x).to_le_bytes().into(), |x| f16::from_f64(x).to_f64()),
    ];
    let whole = fixture.read(&fixture.path).unwrap();
    let whole = whole.model(&fixture.config(&whole), 0).unwrap();
    for (dtype, to, value) in ways {
        let layers = fixture.with(&numbers(to, dtype)).unwrap();
        assert_eq!(layers.dtype(), DType::F32, "{dtype:?}");
        let model = layers.model(&fixture.config(&layers), 0).unwrap();
        for ((name, got), (_, exact)) in mixers(&model).into_iter().zip(mixers(&whole)) {
            let want: Vec<u64> = exact.into_iter().map(|x| value(f64::from_bits(x)).to_bits()).collect();
            assert_eq!(got, want, "{dtype:?} {name}");
        }
    }
}

#[test]
fn every_number_in_half_precision_is_read_as_what_it_is() {
    const D: usize = 148; // 3 D² are more than there are
    type Way = (Dtype, fn(u16) -> f32);
    let ways: [Way; 2] = [(Dtype::F16, |x| f16::from_bits(x).to_f32()), (Dtype::BF16, |x| bf16::from_bits(x).to_f32())];
    for (dtype, value) in ways {
        let all: Vec<u8> = (0..3 * D * D).flat_map(|i| (i as u16).to_le_bytes()).collect();
        let square = (dtype, vec![D, D], vec![0; 2 * D * D]);
        let tensors = [("in_proj_weight", (dtype, vec![3 * D, D], all)), ("out_proj.weight", square)];
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("half.safetensors");
        fs::write(&path, written(&tensors.map(|(name, t)| (name.to_string(), t)).into_iter().collect())).unwrap();
        let sizes = [("heads", 2, "by --heads")];
        let layers = Layers::read(&path, &Wanted { sizes: &sizes, ..Wanted::of(Package::Torch, "gpt") }).unwrap();
        let model = layers.model(&layers.config(&ModelConfig::default()), 0).unwrap();
        let (_, got) = model.params().tensors().find(|(name, _)| name.ends_with("w_qkv")).unwrap();
        for (bits, got) in (0..=u16::MAX).zip(got.to_f64()) {
            let want = f64::from(value(bits));
            assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{dtype:?} {bits:#06x}: {got}");
        }
    }
}

#[test]
fn layers_are_found_by_their_numbers_and_taken_in_the_order_that_is_asked() {
    let fixture = fixture("fla_gla");
    let mut stack = Tensors::new();
    for (i, layer) in [2_usize, 5, 11].into_iter().enumerate() {
        for (name, (dtype, dims, data)) in fixture.layers() {
            let data = f64s(&data).into_iter().flat_map(|x| (x + i as f64).to_le_bytes()).collect();
            stack.insert(name.replace("layers.0.", &format!("model.layers.{layer}.attn.")), (dtype, dims, data));
        }
        // What stands around a layer is not its own.
        stack.insert(format!("model.layers.{layer}.mlp.gate_proj.weight"), (Dtype::F64, vec![1], vec![0; 8]));
    }
    let place = Place::new();
    let path = place.at("model.safetensors");
    fs::write(&path, written(&stack)).unwrap();
    let read = |prefix: &str, blocks: Option<&[usize]>| {
        Layers::read(&path, &Wanted { prefix, blocks, ..Wanted::of(Package::Fla, "gla") })
    };
    let first = |layers: &Layers, i: usize| {
        let model = layers.model(&layers.config(&ModelConfig::default()), 0).unwrap();
        f64::from_bits(mixers(&model)[&format!("blocks.{i}.mixer.norm")][0])
    };
    let all = read("model.layers.{}.attn.", None).unwrap();
    assert_eq!((all.len(), all.left_out().len()), (3, 3));
    let one = first(&all, 0);
    assert_eq!([first(&all, 1), first(&all, 2)], [one + 1.0, one + 2.0]);
    let two = read("model.layers.{}.attn", Some(&[11, 2])).unwrap();
    assert_eq!((two.len(), first(&two, 0), first(&two, 1)), (2, one + 2.0, one));
    assert_eq!(two.left_out().len(), 3 + fixture.layers().len());

    let refused = |prefix, blocks: Option<&[usize]>, words: &[&str]| {
        let said = read(prefix, blocks).err().unwrap_or_else(|| panic!("{prefix} {blocks:?}")).to_string();
        words.iter().for_each(|word| assert!(said.contains(word), "{prefix}: no {word} in: {said}"));
    };
    let hint = "pass --prefix 'model.layers.{}.attn.'";
    refused("", None, &[hint, "not understood: 'model.layers.{}.mlp.gate_proj.weight' (3 of them) [1]"]);
    refused("layers.{}.", None, &[hint]);
    refused(
        "model.layers.{}.attn.",
        Some(&[2, 3]),
        &["missing: 'model.layers.3.attn.q_proj.weight'", "[HK, D] = [8, 6]"],
    );
    refused("model.layers.{}.attn.", Some(&[2, 2]), &["2 is listed twice"]);
    refused("model.layers.2.attn.", Some(&[5]), &["--blocks", "--prefix"]);
    refused("model.{}.{}.", None, &["at most one {}"]);
}

#[test]
fn a_file_that_is_none_or_lies_is_refused_in_words() {
    let place = Place::new();
    let good = fs::read(fixture("fla_gla").path).unwrap();
    let header = |json: &str| [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat();
    let empty = r#""a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}"#;
    let twice = &format!("{{{empty},{empty}}}");
    let wide = r#"{"q_proj.weight":{"dtype":"F32","shape":[0,1099511627776],"data_offsets":[0,0]}}"#;
    let steers = r#"{"\u001b[31mred":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#;
    for (what, bytes, words) in [
        ("empty", vec![], "not a safetensors file"),
        ("text", b"no tensors here at all".to_vec(), "not a safetensors file"),
        ("cut", good[..good.len() - 8].to_vec(), "not a safetensors file"),
        ("long header", u64::MAX.to_le_bytes().to_vec(), "not a safetensors file"),
        ("twice", header(twice), "occurs twice"),
        ("wide", header(wide), "expected [HK, D]"),
        ("steers", header(steers), "not understood: '\\u001b[31mred' [0]"),
    ] {
        let path = place.write("bad.safetensors", &bytes);
        let ran = place.run(&format!("import {path} --from fla --models gla --out run"));
        assert_eq!(ran.status, Some(2), "{what}: {}", ran.stderr);
        assert!(ran.stderr.contains(words) && ran.stderr.contains("bad.safetensors"), "{what}: {}", ran.stderr);
        assert!(!place.at("run").exists(), "{what}");
    }
    let ran = place.run("import nothing.safetensors --from fla --models gla --out run");
    assert!(ran.status == Some(2) && ran.stderr.contains("nothing.safetensors"), "{}", ran.stderr);
}

#[test]
fn a_file_of_ours_is_opened_as_the_model_that_it_says_it_is() {
    let place = Place::new();
    let model = Model::new(&sizes("lstm"), 4, DType::F32).unwrap();
    let path = place.at("model.safetensors");
    model.save(&path).unwrap();
    let again = Model::open(&path).unwrap();
    assert_eq!(again.config(), model.config());
    assert_eq!(again.params().flat().to_f64(), model.params().flat().to_f64());
    let bytes = fs::read(&path).unwrap();
    let with = |from: &str, to: &str| {
        // JSON inside of a JSON text, with blanks in the header for what is shorter.
        let text = String::from_utf8_lossy(&bytes[8..8 + bytes[0] as usize + 256 * bytes[1] as usize]).into_owned();
        assert!(text.contains(from), "{from} in {text}");
        let header = text.replacen(from, to, 1);
        let rest = &bytes[8 + text.len()..];
        let len = (header.len() as u64).to_le_bytes();
        fs::write(&path, [&len[..], header.as_bytes(), rest].concat()).unwrap();
        Model::open(&path).err().map(|e| e.to_string()).unwrap_or_default()
    };
    let n = model.params().len();
    for (from, to, words) in [
        (r#"\"width\":4"#, r#"\"width\":65536"#, format!("{n} weights, and a model of its configuration has")),
        (r#"\"width\":4"#, r#"\"width\":0"#, "width = 0".into()),
        (r#"\"mixer\":\"lstm\""#, r#"\"mixer\":\"gru\""#, "unknown model 'gru'".into()),
        (r#"\"width\":4"#, r#"\"breadth\":4"#, "breadth".into()),
        (r#"\"model\""#, r#"\"medal\""#, "no configuration 'model'".into()),
        (r#""tapezoo""#, r#""tapezap""#, "no entry 'tapezoo'".into()),
        (r#"blocks.0.mixer.w_ih"#, r#"blocks.0.mixer.w_hi"#, "no tensor 'blocks.0.mixer.w_ih'".into()),
    ] {
        let said = with(from, to);
        assert!(said.contains(&words), "{to}: no {words} in: {said}");
    }
}

#[test]
fn a_program_imports_trains_on_looks_inside_and_exports() {
    let place = Place::new();
    let gla = fixture("fla_gla");
    let config = place.write("small.toml", "steps = 3\nbatch = 2\ntrain_len = 4\neval_lens = [4]\nwarmup = 0\n");
    let file = gla.path.display();
    let said = place.prints(&format!(
        "import {file} --from fla --models gla --prefix layers.{{}}. --config {config} --mlp 5 --seed 3 --out run"
    ));
    for word in
        ["width 6, heads 2, head_dim 4", "GatedLinearAttention(hidden_size=6", "'in.0', 'out.0'", "--resume run"]
    {
        assert!(said.contains(word), "no {word} in: {said}");
    }
    place.prints("export run --to fla --prefix layers.{} --out back.safetensors");
    assert_eq!(read(&fs::read(place.at("back.safetensors")).unwrap()), gla.layers());
    place.prints("inspect --checkpoint run --len 4 --out page.html");
    assert!(fs::read_to_string(place.at("page.html")).unwrap().contains("after 0 of 3 steps"));

    let ran = place.run("train --resume run");
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    place.prints("export run --to fla --prefix layers.{} --out trained.safetensors");
    let trained = read(&fs::read(place.at("trained.safetensors")).unwrap());
    assert_eq!(trained.keys().collect::<Vec<_>>(), gla.layers().keys().collect::<Vec<_>>());
    for (name, (_, _, data)) in &trained {
        // Three steps of Adam at 5e-3 move no weight by more than some of them.
        let moved = f64s(data).iter().zip(f64s(&gla.layers()[name].2)).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(moved > 0.0 && moved < 0.1, "{name}: {moved}");
    }

    // As a file.
    place.prints(&format!("import {file} --from fla --models gla --prefix layers.{{}}. --out gla.safetensors"));
    let model = Model::open(place.at("gla.safetensors")).unwrap();
    assert_eq!((model.config().mixer.as_str(), model.config().layers), ("gla", 1));
    place.prints("export gla.safetensors --to fla --prefix layers.{}. --out again.safetensors");
    assert_eq!(read(&fs::read(place.at("again.safetensors")).unwrap()), gla.layers());
}

#[test]
fn every_fixture_goes_in_and_out_by_the_program() {
    let place = Place::new();
    for fixture in fixtures() {
        let Fixture { name, path, package, mixer, settings, .. } = &fixture;
        let heads = settings["heads"].as_u64().map(|n| format!(" --heads {n}")).unwrap_or_default();
        let signed = settings["eigenvalues"].as_str().map(|x| format!(" --eigenvalues {x}")).unwrap_or_default();
        let path = path.display();
        for task in ["parity", "text"] {
            let out = format!("{name}-{task}.safetensors");
            let taken = format!("{path} --from {package} --models {mixer} --prefix layers.{{}}.{heads}{signed}");
            place.prints(&format!("import {taken} --task {task} --out {out}"));
            place.prints(&format!("export {out} --to {package} --prefix layers.{{}}. --out back.safetensors"));
            let again = fixture.with(&read(&fs::read(place.at("back.safetensors")).unwrap())).unwrap();
            let model = Model::open(place.at(&out)).unwrap();
            assert_eq!(mixers(&again.model(model.config(), 0).unwrap()), mixers(&model), "{name}");
        }
    }
}

#[test]
fn what_cannot_be_is_refused_and_nothing_is_written() {
    let place = Place::new();
    let path = |name: &str| fixture(name).path.display().to_string();
    let (gla, gpt) = (path("fla_gla"), path("torch_gpt"));
    place.prints(&format!("import {gla} --from fla --models gla --prefix layers.{{}}. --out ours.safetensors"));
    place.write("not_ours.safetensors", fs::read(&gla).unwrap());
    fs::create_dir(place.at("full")).unwrap();
    place.write("full/mine.txt", "mine");
    let before: Vec<_> = fs::read_dir(place.0.path()).unwrap().map(|e| e.unwrap().path()).collect();
    let fla = format!("import {gla} --from fla --models gla");
    for (line, words) in [
        (format!("{fla} --out run"), "pass --prefix 'layers.{}.'"),
        (format!("{fla} --prefix layers.{{}}. --heads 4 --out run"), "H = 4 by --heads"),
        (format!("{fla} --prefix layers.{{}}. --layers 2 --out run"), "--layers 2: the file has 1"),
        (format!("{fla} --prefix layers.{{}}. --width 7 --out run"), "D = 7 by --width"),
        (format!("{fla} --prefix layers.{{}}. --eigenvalues -1..1 --out run"), "eigenvalues"),
        (format!("{fla} --prefix layers.{{}}. --task paritty --out run"), "did you mean 'parity'"),
        (format!("{fla} --prefix layers.{{}}. --out full"), "is not empty"),
        (format!("{fla} --prefix layers.{{}}. --out {gla}"), "is the file that is read"),
        (format!("{fla} --prefix layers.{{}}. --force --out run.safetensors"), "--force"),
        (
            format!("import {gla} --from fla --models hgrn2 --out run"),
            "no layer of fla equals it: HGRN2Attention has ε = 1e-5",
        ),
        (
            format!("import {gla} --from fla --models lru --out run"),
            "lru: no layer of fla equals it; there are delta_net",
        ),
        (format!("import {gla} --from xlstm --models gla --out run"), "there is one of fla"),
        (format!("import {gla} --from fla --models glaa --out run"), "did you mean 'gla'"),
        (format!("import {gla} --from torhc --models gla --out run"), "'torch'"),
        (format!("import {gpt} --from torch --models gpt --prefix layers.{{}}. --out run"), "pass --heads H"),
        ("export ours.safetensors --to xlstm --out run".into(), "no layer of xlstm equals it"),
        ("export ours.safetensors --to fla --out ours.safetensors".into(), "is the file that is read"),
        ("export not_ours.safetensors --to fla --out run".into(), "no entry 'tapezoo'"),
        ("export nowhere --to fla --out run".into(), "nowhere"),
    ] {
        let ran = place.run(&line);
        assert_eq!(ran.status, Some(2), "{line}: {}", ran.stderr);
        assert!(ran.stderr.contains(words), "{line}: no {words} in: {}", ran.stderr);
        let after: Vec<_> = fs::read_dir(place.0.path()).unwrap().map(|e| e.unwrap().path()).collect();
        assert_eq!(after.len(), before.len(), "{line}");
    }
    assert_eq!(fs::read(place.at("not_ours.safetensors")).unwrap(), fs::read(&gla).unwrap());
}

#[test]
fn a_model_that_no_module_equals_is_not_exported() {
    let small = |mixer: &str| ModelConfig { layers: 1, ..sizes(mixer) };
    for (package, config, words) in [
        (Package::Fla, ModelConfig { positions: Positions::Rope, ..small("delta_net") }, "positions = rope"),
        (Package::Fla, ModelConfig { positions: Positions::None, ..small("gpt") }, "positions = none"),
        (Package::Torch, ModelConfig { positions: Positions::Rope, ..small("gpt") }, "positions = rope"),
        (Package::Torch, ModelConfig { width: 6, ..small("gpt") }, "it is the width, 6"),
        (Package::Mamba, ModelConfig { eigenvalues: Eigenvalues::Signed, ..small("mamba") }, "eigenvalues = -1..1"),
        (Package::Mamba, ModelConfig { conv: 0, ..small("mamba") }, "conv = 0"),
        (Package::Mamba, ModelConfig { width: 5, ..small("mamba2") }, "multiple of the width"),
        (Package::Xlstm, ModelConfig { heads: 3, head_dim: 2, ..small("mlstm") }, "blocks of 4"),
        (Package::Xlstm, ModelConfig { conv: 0, ..small("mlstm") }, "conv = 0"),
        (Package::Fla, ModelConfig { eigenvalues: Eigenvalues::Signed, ..small("rwkv7") }, "eigenvalues = -1..1"),
        (Package::Fla, ModelConfig { layers: 2, ..small("gla") }, "pass --prefix with {}"),
    ] {
        let model = Model::new(&config, 0, DType::F32).unwrap();
        let said = export(&model, package, "").err().unwrap_or_else(|| panic!("{package} {words}")).to_string();
        assert!(said.contains(words), "{package}: no {words} in: {said}");
    }
    // Attention of FLA has no bias behind it.
    let mut model = Model::new(&ModelConfig { positions: Positions::Rope, ..small("gpt") }, 0, DType::F32).unwrap();
    let at = model.params().entries().iter().find(|e| e.name.ends_with("b_o")).unwrap().offset;
    assert!(export(&model, Package::Fla, "").is_ok());
    model.params_mut().flat_mut().host_mut::<f32>()[at] = 1.0;
    let said = export(&model, Package::Fla, "").err().unwrap().to_string();
    assert!(said.contains("'blocks.0.mixer.b_o': expected zeros"), "{said}");
}

#[test]
fn the_page_has_every_table_and_what_has_none() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/weights.md")).unwrap();
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
    let has = |words: [&str; 3]| rows.iter().any(|row| words.iter().all(|word| row.contains(word)));
    for (package, mixer, module) in equals(&ModelConfig::default()) {
        let module = module.split('(').next().unwrap();
        assert!(has([package.name(), mixer, &format!("`{module}`")]), "{package} {mixer} {module}");
    }
    for (package, mixer, how) in differs() {
        let module = how.split(' ').next().unwrap();
        assert!(has([package.name(), mixer, &format!("`{module}`")]), "{package} {mixer} {module}");
        assert!(!equals(&ModelConfig::default()).iter().any(|(p, m, _)| (*p, *m) == (package, mixer)), "{mixer}");
    }
}
