//! The conditions under which a file is read, and the errors for files that do not meet them.

use super::*;
use crate::texts::contains;

#[test]
fn a_tensor_that_is_missing_too_much_or_misshapen_is_named() {
    // How often the error blames the one tensor that was changed.
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
            // A file may lack tensors without effect, filters if it lacks all of them, and biases if it lacks both of a pair.
            let idle = [".post_l0.bias", ".conv1d.bias"];
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
                // For an LSTM whose width is not its number of units, the missing tensor is the map back.
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
        let all: Vec<u16> = (0..3 * D * D).map(|i| i as u16).collect();
        let square = (dtype, vec![D, D], vec![0; 2 * D * D]);
        let tensors = [
            ("in_proj_weight", (dtype, vec![3 * D, D], bytemuck::cast_slice(&all).to_vec())),
            ("out_proj.weight", square),
        ];
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
            let data: Vec<f64> = f64s(&data).into_iter().map(|x| x + i as f64).collect();
            let data = bytemuck::cast_slice(&data).to_vec();
            stack.insert(name.replace("layers.0.", &format!("model.layers.{layer}.attn.")), (dtype, dims, data));
        }
        // Tensors beside a layer do not belong to it.
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
fn layers_of_two_modules_are_not_taken_as_those_of_one() {
    let fixture = fixture("fla_gpt_bias");
    let own = fixture.layers();
    // The first layer is without a bias, the second with one: no module has both.
    let mut two = own.clone();
    two.retain(|name, _| !name.ends_with("_proj.bias"));
    two.extend(own.iter().map(|(name, tensor)| (name.replace("layers.0.", "layers.1."), tensor.clone())));
    let said = fixture.with(&two).map(drop).unwrap_err().to_string();
    for word in ["layer 1 has 'q_proj.bias', and layer 0 has not", "--blocks"] {
        assert!(said.contains(word), "no {word} in: {said}");
    }
}

#[test]
fn a_stack_of_lstms_comes_in_by_its_numbers_and_goes_out_as_layers() {
    let fixture = fixture("torch_lstm");
    let own = fixture.layers();
    let stack = own.iter().flat_map(|(name, tensor)| {
        let bare = name.strip_prefix("layers.0.").unwrap();
        [0, 1].map(|i| (bare.replace("_l0", &format!("_l{i}")), tensor.clone()))
    });
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("stack.safetensors");
    fs::write(&path, written(&stack.collect())).unwrap();
    let layers = Layers::read(&path, &Wanted::of(Package::Torch, "lstm")).unwrap();
    assert_eq!(layers.len(), 2);
    let mut model = layers.model(&layers.config(&ModelConfig { mlp: 0, ..ModelConfig::default() }), 0).unwrap();
    // In one nn.LSTM the second layer would get h alone, and here it gets the stream.
    contains(export(&model, Package::Torch, "").map(drop).unwrap_err().to_string(), "--prefix with {}");
    let names = |model: &Model| read(&export(model, Package::Torch, "layers.{}.").unwrap().bytes).into_keys().collect();
    let before: Vec<String> = names(&model);
    assert!(
        before.contains(&"layers.1.weight_ih_l0".into()) && !before.iter().any(|name| name.contains("post")),
        "{before:?}"
    );
    // A map behind one of them is one behind both: a module is named for all.
    let entry = model.params().entries().iter().find(|e| e.name == "blocks.1.mixer.b_post").unwrap().offset;
    model.params_mut().flat_mut().host_mut::<f64>()[entry] = 2.0;
    let after: Vec<String> = names(&model);
    for i in 0..2 {
        assert!(after.contains(&format!("layers.{i}.post_l0.bias")), "{after:?}");
    }
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
        ("empty", vec![], "not a whole safetensors file"),
        ("text", b"no tensors here at all".to_vec(), "not a whole safetensors file"),
        ("cut", good[..good.len() - 8].to_vec(), "not a whole safetensors file"),
        ("long header", u64::MAX.to_le_bytes().to_vec(), "not a whole safetensors file"),
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
