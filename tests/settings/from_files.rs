//! Weights and names from files: errors name the fault, and no text of a file controls the terminal or a page.

use crate::{SMALL, program::Place, texts::contains};
use safetensors::{
    SafeTensors,
    tensor::{Dtype, TensorView},
};
use std::fs;
use tapezoo::error::{Error, brief, printable};

#[test]
fn weights_that_are_not_finite_or_of_nobody_are_said() {
    let place = Place::new();
    place.warns(&format!("parity {SMALL} --out run"), &[]);
    let path = place.at("run/lstm-seed0/weights.safetensors");
    let good = fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&good).unwrap();
    let write = |change: &dyn Fn(&str, &mut Vec<u8>), more: Option<&str>| {
        let bytes = vec![0; 4];
        let mut all: Vec<(String, Vec<usize>, Vec<u8>)> =
            file.tensors().into_iter().map(|(n, v)| (n, v.shape().to_vec(), v.data().to_vec())).collect();
        all.iter_mut().for_each(|(name, _, data)| change(name, data));
        all.extend(more.map(|name| (name.to_string(), vec![1], bytes)));
        let views = all.iter().map(|(n, s, d)| (n, TensorView::new(Dtype::F32, s.clone(), d).unwrap()));
        fs::write(&path, safetensors::serialize(views, None).unwrap()).unwrap();
    };
    let first = |x: f32| {
        move |name: &str, data: &mut Vec<u8>| {
            if name == "blocks.1.mixer.w_ih" {
                data[..4].copy_from_slice(&x.to_le_bytes());
            }
        }
    };
    let named = ["weights.safetensors", "1 weight is NaN or infinite", "'blocks.1.mixer.w_ih'"];
    for x in [f32::NAN, f32::INFINITY] {
        write(&first(x), None);
        place.warns("inspect --checkpoint run", &[&named]);
    }
    write(&first(1.0), Some("blocks.2.mixer.w\u{1b}[31m"));
    place.warns("inspect --checkpoint run", &[&["weights.safetensors", "'blocks.2.mixer.w\\u001b[31m'", "no such"]]);
    let page = fs::read_to_string(place.at("inspect.html")).unwrap();
    assert!(page.contains("has no such weights"), "the page does not say it");
    // A name that is there twice is ambiguous.
    let (len, rest) = good.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*len) as usize);
    let header = String::from_utf8(header.to_vec()).unwrap();
    let again = "\"norm.w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}";
    let twice = format!("{},{again}}}", header.trim_end().strip_suffix('}').unwrap());
    fs::write(&path, [&(twice.len() as u64).to_le_bytes()[..], twice.as_bytes(), data].concat()).unwrap();
    place.refuses("inspect --checkpoint run", &["weights.safetensors", "'norm.w' occurs twice"]);
}

/// Of a text in many files a run records each: its configuration may be larger than one that a person writes.
#[test]
fn a_long_record_of_a_run_is_read_by_every_program() {
    let place = Place::new();
    place.prints(&format!("parity {SMALL} --out run"));
    let config = fs::read_to_string(place.at("run/config.toml")).unwrap();
    place.write("run/config.toml", config + &"# a line like many others\n".repeat(60_000));
    contains(place.run("parity --resume run").stderr, "nothing left to do");
    for line in
        ["report run", "inspect --checkpoint run --len 4", "export run --to torch --prefix a.{} --out a.safetensors"]
    {
        place.prints(line);
    }
}

/// What a flag says for all models is recorded, where the preset has a value of its own for one of them.
#[test]
fn a_flag_over_a_preset_is_recorded_and_scores_keep_their_order() {
    let place = Place::new();
    let small = "--models delta_net,lstm --seeds 1 --steps 2 --batch 2 --width 8 --heads 2 --head-dim 4 --mlp 8";
    let line =
        format!("state-tracking --task parity --preset reduced {small} --label-smoothing 0 --eval-lens 12,8,100");
    let table = place.prints(&format!("{line} --out run"));
    let config = fs::read_to_string(place.at("run/config.toml")).unwrap();
    assert!(config.contains("label_smoothing = 0.0") && !config.contains("0.02"), "{config}");
    let models = |table: &str| table.lines().filter(|line| line.contains("_")).map(str::to_string).collect::<Vec<_>>();
    // Earlier versions left out what was the default of all models.
    for recorded in [config.clone(), config.replace("label_smoothing = 0.0\n", "")] {
        place.write("run/config.toml", recorded);
        let again = place.run("state-tracking --resume run");
        assert_eq!(again.status, Some(0), "{}", again.stderr);
        contains(&again.stderr, "nothing left to do");
        assert_eq!(models(&again.stdout), models(&table));
    }
    let result = fs::read_to_string(place.at("run/delta_net-seed0/result.json")).unwrap();
    let places = ["\"12\":", "\"8\":", "\"100\":"].map(|len| result.find(len).unwrap());
    assert!(places.is_sorted(), "not in the order of eval_lens: {result}");
}

#[test]
fn a_name_with_markup_in_it_is_text_on_the_page() {
    let place = Place::new();
    fs::create_dir(place.at("<!--<script>x")).unwrap();
    place.warns(&format!("parity {SMALL} --out <!--<script>x/run"), &[]);
    place.warns("inspect --checkpoint <!--<script>x/run", &[]);
    let page = fs::read_to_string(place.at("inspect.html")).unwrap();
    let (_, data) = page.split_once("<script id=\"data\" type=\"application/json\">").unwrap();
    let (data, _) = data.split_once("</script>").unwrap();
    assert!(!data.contains('<') && data.contains("\\u003c!--"), "{:?}", data.find('<'));
    let value: serde_json::Value = serde_json::from_str(data).unwrap();
    contains(value["runs"][0]["about"].as_str().unwrap(), "<!--<script>x/run");
}

#[test]
fn nothing_from_a_file_steers_the_terminal_or_fills_it() {
    let place = Place::new();
    let (escape, deep) = ("\\u001b[31m", format!("{}1{}", "[".repeat(70), "]".repeat(70)));
    let (wide, long) = (format!("[{}]", "1, ".repeat(3000)), "x".repeat(5000));
    for text in [
        format!("grid.\"a{escape}\" = [{{ name = \"b{escape}\", lr = 0.1 }}]"),
        format!("grid.\"a{escape}\" = [1]"),
        format!("grid.\"a{escape}\" = 1"),
        format!("\"a{escape}\" = 1"),
        format!("per_model.\"a{escape}\".lr = 1"),
        format!("per_model.a.mixer = \"{escape}\""),
        format!("models = [\"{escape}\"]"),
        format!("preset = \"{escape}\""),
        format!("task.name = \"{escape}\""),
        format!("dtype = \"{escape}\""),
        format!("preset = {deep}"),
        format!("grid = {deep}"),
        format!("grid.lr = {wide}"),
        format!("grid.lr = [{deep}]"),
        format!("micro_batches = {wide}"),
        format!("models = ['{long}']"),
        format!("device = '{long}'"),
        format!("train_len = '{long}'"),
        format!("{long} = 1"),
        format!("steps = {long}"),
        "x = \u{1b}[31m".into(),
    ] {
        let ran = place.run(&place.with_file(&text, "sweep FILE --dry-run"));
        let said = &ran.stderr;
        assert!(!said.contains(|c: char| c.is_control() && c != '\n'), "{text}: {said:?}");
        assert!(said.len() < 1200 && said.lines().count() < 10, "{} bytes of {text:.60}: {said}", said.len());
    }
}

#[test]
fn text_that_is_shown_has_no_control_characters_and_is_short() {
    let text = "a\u{1b}[31m\r\u{9b}2J\u{202e}b\tc\nd\u{7}";
    assert_eq!(printable(text), "a\\u001b[31m\\u000d\\u009b2J\\u202eb\tc\nd\\u0007");
    assert_eq!(brief("a\nb\tü", 80), "a\\nb\\u0009ü");
    assert_eq!(brief(&"é".repeat(100), 9), format!("{} … {}", "é".repeat(6), "é".repeat(3)));
    let long = Error::Config(format!("{}: expected less", "[".repeat(100_000))).shown();
    assert!(long.len() < 250 && long.ends_with("expected less"), "{long}");
    let long = Error::Config(format!("{}: expected less", "[ ".repeat(100_000))).shown();
    assert!(long.len() < 850 && long.ends_with("expected less"), "{long}");
    assert_eq!(Error::Config("line\n".repeat(100)).shown().lines().count(), 8);
    // JSON stays valid JSON.
    let json = serde_json::json!({ "a": text }).to_string();
    let back: serde_json::Value = serde_json::from_str(&printable(&json)).expect("JSON");
    assert_eq!(back["a"], text);
}
