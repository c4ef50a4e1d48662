//! `tapezoo import` and `export`.

use super::*;
use crate::texts::contains;

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
    contains(fs::read_to_string(place.at("page.html")).unwrap(), "after 0 of 3 steps");

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

    // Nothing is written over the files of a run.
    for line in [
        "export run --to fla --prefix layers.{} --out run/gla-seed3/weights.safetensors",
        "inspect --checkpoint run --len 4 --out run/results --json",
        "inspect --checkpoint run --len 4 --out run/gla-seed3/weights.html --json",
        "inspect --checkpoint run --len 4 --out run/config.toml",
    ] {
        place.refuses(line, &["belongs to a run"]);
    }
    #[cfg(unix)]
    {
        let weights = place.at("run/gla-seed3/weights.safetensors");
        std::os::unix::fs::symlink(&weights, place.at("link.safetensors")).unwrap();
        let line = "export run --to fla --prefix layers.{} --out link.safetensors";
        place.refuses(line, &["--out link.safetensors: belongs to a run"]);
    }
    // What stands behind a dot of a page's name belongs to it.
    place.prints("inspect --checkpoint run --len 4 --out lr0.1 --json");
    assert!(["lr0.1", "lr0.1.json", "lr0.1.safetensors"].iter().all(|name| place.at(name).exists()));

    // A configuration may set the seed of what is new.
    let seeded = place.write("seeded.toml", "seed = 5\n");
    let taken = format!("import {file} --from fla --models gla --prefix layers.{{}}. --config {seeded}");
    contains(place.prints(&format!("{taken} --out seeded.safetensors")), "from seed 5");
    contains(place.prints(&format!("{taken} --seed 6 --out seeded.safetensors")), "from seed 6");
    // The layers decide what they are, and a flag is meant to change the file.
    let other = "models = [\"gpt\"]\nseeds = 3\nseed = 5\ndtype = \"f32\"\n[model]\nwidth = 9\nheads = 2\nmlp = 7\n";
    place.write("other.toml", other);
    let taken = taken.replace(&seeded, "other.toml");
    let ran = place.run(&format!("{taken} --seed 6 --mlp 5 --out seeded.safetensors"));
    let right = ["models = [\"gpt\"]", "seeds = 3", "dtype = \"f32\"", "width = 9"];
    for what in right {
        contains(&ran.stderr, format!(": {what} is not taken"));
    }
    assert_eq!((ran.status, ran.stderr.lines().count()), (Some(0), right.len()), "{}", ran.stderr);

    // Import as a file of weights.
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
        (
            format!("import {gpt} --from torch --models gpt --prefix layers.{{}}. --heads 0 --out run"),
            "H = 0 by --heads",
        ),
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
        ("export ours.safetensors --to fla --prefix a.{}.b.{}. --out run".into(), "expected at most one {}"),
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

/// A run that began from other numbers than those that were taken would not be told from the right one.
#[test]
#[cfg(target_os = "linux")]
fn an_import_that_is_cut_off_leaves_no_run() {
    let place = Place::new();
    let line =
        format!("import {} --from fla --models gla --prefix layers.{{}}. --out run", fixture("fla_gla").path.display());
    // No file may be longer than two kilobytes: the configuration is shorter, and the numbers are not.
    let script = format!("ulimit -f 2; exec {} {line}", env!("CARGO_BIN_EXE_tapezoo"));
    let cut = std::process::Command::new("bash").args(["-c", &script]).current_dir(place.0.path()).output().unwrap();
    assert!(!cut.status.success() && place.at("run").is_dir(), "{cut:?}");
    place.refuses("train --resume run", &["run", "config.toml"]);
    place.prints(&format!("{line} --force"));
    place.prints("inspect --checkpoint run --len 4");
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
        (Package::Xlstm, ModelConfig { heads: 4, head_dim: 1, ..small("mlstm") }, "head_dim is 1"),
        (Package::Xlstm, ModelConfig { heads: 8, head_dim: 1, ..small("slstm") }, "head_dim is 1"),
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
    export(&model, Package::Fla, "").map(drop).unwrap();
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
