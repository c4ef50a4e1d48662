//! The annotated zoo: its pages, without a browser (scripts/book_test.sh opens them in one).

#![allow(clippy::unwrap_used)]

use base64::{Engine, engine::general_purpose::STANDARD};
use indicatif::ProgressBar;
use serde_json::{Value, json};
use std::{collections::BTreeMap, path::Path, process::Command};
use tapezoo::{
    autograd::Tape,
    book::{
        Site, cores, equations,
        lab::{settings, trained},
        prose, tour, tracks,
        tree::file,
    },
    inspect::{trace::trace_model, view},
    models::{self, Model},
    report::mathml::math,
    tensor::{DType, Device, Tensor},
    train::{Trainer, config::TrainConfig},
};

fn site(library: &Path) -> Site {
    Site::new(library, true, &ProgressBar::hidden()).unwrap()
}

fn without() -> BTreeMap<String, String> {
    site(Path::new("no/such/library")).files.into_iter().collect()
}

/// The values of an attribute, in order.
fn attributes<'a>(page: &'a str, name: &str) -> Vec<&'a str> {
    let start = format!(" {name}=\"");
    page.split(start.as_str()).skip(1).map(|rest| rest.split('"').next().unwrap()).collect()
}

#[test]
fn each_mixer_has_its_page_and_every_link_leads_somewhere() {
    let files = without();
    for name in models::names() {
        let page = &files[&file(name)];
        assert!(files["index.html"].contains(&format!("href=\"{}\"", file(name))), "{name} is not in the index");
        for id in ["equations", "code", "op", "tree", "tracks", "try"] {
            assert!(attributes(page, "id").contains(&id), "{name}: no {id}");
        }
        assert!(page.contains("aria-current=\"page\""), "{name} is not in its own tree");
        assert!(page.contains("without the library for the browser"), "{name} does not say what it lacks");
    }
    for (name, page) in files.iter().filter(|file| file.0.ends_with(".html")) {
        let ids = attributes(page, "id");
        let mut once = ids.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), ids.len(), "{name}: an id twice");
        for href in attributes(page, "href") {
            let (to, place) = href.split_once('#').unwrap_or((href, ""));
            if let Some(paper) = to.strip_prefix("https://arxiv.org/abs/") {
                assert!(paper.len() >= 9 && paper.as_bytes()[4] == b'.', "{name}: {href}");
                continue;
            }
            assert!(to.is_empty() || files.contains_key(to), "{name}: {href} leads nowhere");
            let there = if to.is_empty() { page } else { &files[to] };
            assert!(place.is_empty() || attributes(there, "id").contains(&place), "{name}: no {href}");
        }
        for src in attributes(page, "src") {
            assert!(files.contains_key(src), "{name}: {src}");
        }
        assert!(!page.contains("http://") && !page.contains("<img"), "{name} asks the network for something");
    }
}

/// The site, with the part of the library that it embeds, is below its limit of bytes.
#[test]
fn the_pages_are_small_and_the_library_is_in_the_site_once() {
    let dir = tempfile::tempdir().unwrap();
    let library = dir.path().join("library.gz");
    std::fs::write(&library, [&[0x1f, 0x8b][..], &vec![7; (3 << 20) - 2]].concat()).unwrap();
    let site = site(&library);
    assert!(site.notes.is_empty(), "{:?}", site.notes);
    let all: usize = site.files.iter().map(|file| file.1.len()).sum();
    assert!(all < 20_000_000, "{all} bytes");
    for (name, text) in &site.files {
        assert!(text.len() < 5_000_000 || name == "engine.js", "{name}: {} bytes", text.len());
        let trains = name.ends_with(".html")
            && !["index.html", "tour.html", "table.html", "exercises.html", "derivatives.html"]
                .contains(&name.as_str());
        assert_eq!(text.contains("id=\"lab\""), trains, "{name}");
    }
    std::fs::write(&library, b"\0asm").unwrap();
    let refused = Site::new(&library, true, &ProgressBar::hidden()).err().unwrap().to_string();
    assert!(refused.contains("gzip") && refused.contains("scripts/web.sh"), "{refused}");
}

/// A page's model is the one that its settings train: with its weights, a trainer's accuracy is what the script says.
#[test]
fn a_page_opens_with_the_model_that_its_settings_train() {
    let script = trained("lstm").unwrap();
    let (_, json) = script.split_once("(window.trained ??= {}).lstm = ").unwrap();
    let about: Value = serde_json::from_str(json.trim_end_matches(";\n")).unwrap();
    let config: TrainConfig = settings("lstm").parse().unwrap();
    let config = config.for_model("lstm").unwrap();
    let mut model = Model::new(&config.model, 7, DType::F32).unwrap();
    model.load_bytes(&STANDARD.decode(about["weights"].as_str().unwrap()).unwrap(), "the page").unwrap();
    let mut trainer = Trainer::with(&config, model, config.task.shared(), config.seed).unwrap();
    let found: Vec<Value> =
        trainer.evaluate().unwrap().0.into_iter().map(|(len, share)| json!([len.to_string(), share])).collect();
    assert_eq!(about["accuracy"], json!(found));
    assert_eq!(found[0], json!(["16", 1.0]), "an LSTM learns parity of 16 bits");
    let mut other = Model::new(&config.model, 7, DType::F32).unwrap();
    let refused = other.load_bytes(b"no weights", "the page").unwrap_err().to_string();
    assert!(refused.contains("the page"), "{refused}");
}

#[test]
fn what_a_page_trains_can_be_trained() {
    let signed = models::names_with(|has| has.eigenvalues);
    for name in models::names() {
        let ranges: &[&str] = if signed.contains(&name) { &["0..1", "-1..1"] } else { &[] };
        let more = ranges.iter().map(|range| format!("eigenvalues = \"{range}\"\n")).chain([String::new()]);
        for more in more {
            let config: TrainConfig = (settings(name) + &more).parse().unwrap();
            let config = config.for_model(name).unwrap();
            Model::new(&config.model, 0, DType::F32).unwrap();
        }
    }
}

#[test]
fn every_test_that_a_page_names_is_there() {
    let files = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/expressivity")).unwrap();
    let tests: String = files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap()).collect();
    for shown in &tracks::SHOWN {
        let (_, rest) = tests.split_once(&format!("#[test]\nfn {}()", shown.test)).expect(shown.test);
        let (body, _) = rest.split_once("\n}\n").unwrap();
        // A test of a family lists its mixers; one of a single mixer may leave the name to a helper.
        let words: Vec<&str> = body.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        let missing = shown.mixers.iter().find(|mixer| shown.mixers.len() > 2 && !words.contains(mixer));
        assert_eq!(missing, None, "{} does not run it", shown.test);
        assert!(shown.mixers.iter().all(|mixer| models::names().contains(mixer)), "{:?}", shown.mixers);
    }
    for mixer in models::names() {
        let known = tracks::of(mixer).count() + tracks::untested(mixer).count();
        assert!(known > 0, "{mixer}: nothing says what it can and cannot track");
        assert!(tracks::buys(mixer).is_some(), "docs/zoo.md says nothing of {mixer}");
    }
    let untested: Vec<&str> = models::names().into_iter().filter(|mixer| tracks::of(mixer).next().is_none()).collect();
    assert_eq!(untested, [""; 0], "mixers of which no test shows what they can track");
}

#[test]
fn each_stop_of_the_tour_has_its_picture_and_leads_on() {
    let script = include_str!("../src/book/tour.js");
    for stop in &tour::STOPS {
        assert!(script.contains(&format!("\n  {}: {{", stop.picture)), "{}", stop.picture);
        let unknown: Vec<_> = stop.mixers.iter().filter(|mixer| !models::names().contains(mixer)).collect();
        assert!(!stop.mixers.is_empty() && unknown.is_empty(), "{}: {unknown:?}", stop.picture);
    }
}

/// MathML is well-formed, and has every letter, number and sign of the text.
#[test]
fn no_symbol_of_an_equation_is_lost() {
    let same = |c: char| match c {
        '∑' => 'Σ',
        '∏' => 'Π',
        '⊤' => 'T',
        c => c,
    };
    let mut checked = 0;
    for name in models::names() {
        let source = models::source(name).unwrap();
        for row in rows(source) {
            let set = math(&row.text);
            let document = roxmltree::Document::parse(&set).unwrap_or_else(|e| panic!("{name}: {set}: {e}"));
            assert_eq!(document.root_element().attribute("data-source"), Some(row.text.as_str()));
            let shown: String =
                document.descendants().filter(|node| node.is_text()).filter_map(|node| node.text()).collect();
            let sorted = |text: &str| {
                let raised = [('⁰', '0'), ('¹', '1'), ('²', '2'), ('⁴', '4'), ('⁻', '−'), ('ᵀ', 'T'), ('ᴺ', 'N')];
                let plain = |c| raised.iter().find(|pair| pair.0 == c).map_or(same(c), |pair| pair.1);
                let mut all: Vec<char> =
                    text.chars().map(plain).filter(|c| !c.is_whitespace() && !"_^{}()".contains(*c)).collect();
                all.sort_unstable();
                all
            };
            let (shown, text) = (sorted(&shown), sorted(&row.text));
            assert_eq!(shown, text, "{name}: {}", row.text);
            checked += 1;
        }
    }
    assert!(checked > 200, "{checked} rows");
}

#[test]
fn indices_powers_and_words_are_set_as_such() {
    for (text, part) in [
        ("S_{t-1}", "<msub><mi>S</mi><mrow><mi>t</mi>"),
        ("S_tᵀ", "<msubsup><mi>S</mi><mrow><mi>t</mi></mrow><mrow><mo>⊤</mo></mrow></msubsup>"),
        ("x²", "<msup><mi>x</mi><mrow><mn>2</mn></mrow></msup>"),
        ("ΔA", "<mrow><mi>Δ</mi><mi>A</mi></mrow>"),
        ("a < b", "&lt;"),
        ("where it is", "<mtext>where</mtext>"),
        ("exp(x)", "<mi>exp</mi>"),
        ("Δ = exp(log_dt)", "<mtext>log_dt</mtext>"),
    ] {
        assert!(math(text).contains(part), "{text}: {}", math(text));
    }
}

#[test]
fn indices_and_powers_in_prose_are_set_as_such() {
    for (text, set) in [
        ("F_t + m_0", "F<sub>t</sub> + m<sub>0</sub>"),
        ("e^(F_t + m_0)", "e<sup>F<sub>t</sub> + m<sub>0</sub></sup>"),
        ("±iθ_j,", "±iθ<sub>j</sub>,"),
        ("softmax_s(ξ·k)", "softmax<sub>s</sub>(ξ·k)"),
        ("ln σ(f̃_s).", "ln σ(f̃<sub>s</sub>)."),
        ("Ā^l B̄", "Ā<sup>l</sup> B̄"),
        ("e^(ln(1 − γ) + ln σ(f))),", "e<sup>ln(1 − γ) + ln σ(f)</sup>),"),
        ("D^½ (I", "D<sup>½</sup> (I"),
        ("2^−2.5, W", "2<sup>−2.5</sup>, W"),
        ("i = e^ĩ overflows", "i = e<sup>ĩ</sup> overflows"),
        ("S^*: a memory", "S<sup>*</sup>: a memory"),
        ("**At first.** m_0 = **", "<b>At first.</b> m<sub>0</sub> = **"),
        // Names of programs stay as they are.
        ("keras_lmu, path_attn.py, standalone_s.py, dt_bias", "keras_lmu, path_attn.py, standalone_s.py, dt_bias"),
    ] {
        assert_eq!(prose::inline(text, &|_| None), set);
    }
}

/// In one scope with the page's own functions, a browser's `history` is gone where one of them has its name.
#[test]
fn no_function_of_a_script_hides_one_of_the_browser() {
    let browsers =
        ["history", "location", "document", "window", "performance", "close", "open", "stop", "find", "name"];
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut scripts = 0;
    for dir in ["src/book", "src/inspect", "src/report"] {
        for entry in std::fs::read_dir(root.join(dir)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|ending| ending != "js") {
                continue;
            }
            scripts += 1;
            let script = std::fs::read_to_string(&path).unwrap();
            for name in browsers {
                let own = [format!("\nfunction {name}("), format!("\nlet {name} "), format!("\nconst {name} ")];
                assert!(!own.iter().any(|own| script.contains(own)), "{}: {name}", path.display());
            }
        }
    }
    assert!(scripts >= 9, "{scripts}");
}

/// All equations of a file, block after block, and the lines that compute each.
fn rows(source: &str) -> Vec<equations::Row> {
    equations::all(&prose::parts(source).0)
}

#[test]
fn every_equation_has_its_lines_and_every_mark_its_equation() {
    let (mut in_all, mut wrong) = (0, vec![]);
    for name in models::names() {
        let source = models::source(name).unwrap();
        let (rows, head) = (rows(source), prose::parts(source).1);
        for mark in equations::marks(source) {
            let said = equations::named(&rows, mark.name).len();
            if said != 1 {
                wrong.push(format!("{name}.rs:{}: ({}) is the name of {said} equations", mark.line, mark.name));
            }
        }
        for (row, lines) in rows.iter().zip(equations::links(source, &rows)) {
            if lines.is_empty() || lines.iter().any(|range| *range.start() <= head) {
                wrong.push(format!("{name}.rs: {}: computed by {lines:?}", row.text));
            }
            in_all += 1;
        }
    }
    for core in &cores::CORES {
        let (rows, marks) = (rows(core.source), equations::marks(core.source));
        assert!(!marks.is_empty(), "ops/{}", core.file);
        let strays = marks.iter().filter(|mark| equations::named(&rows, mark.name).is_empty());
        wrong.extend(strays.map(|mark| format!("ops/{}:{}: ({}) names no equation", core.file, mark.line, mark.name)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(in_all > 200, "{in_all} equations");
}

/// The code that a row is linked with.
fn linked(source: &str, row: usize) -> String {
    let lines: Vec<&str> = source.lines().collect();
    let links = equations::links(source, &rows(source));
    links[row].iter().flat_map(|range| &lines[range.start() - 1..*range.end()]).map(|line| line.trim()).collect()
}

#[test]
fn a_mark_names_an_equation_by_its_number_or_its_beginning() {
    let file = |code: &str| {
        format!(
            "//! ```text\n//! β_t = σ(w x_t)    s = 1\n//! [q, k] = W x\n//! S_t = S_{{t-1}} + k vᵀ    (1)\n//!     = other\n//! ```\n{code}"
        )
    };
    for (line, row, computes) in [
        ("let beta = 1; // (β_t)", 0, true),
        ("let beta = 1; // (β)", 0, false),
        ("// (β_t)\nlet beta = 1;", 0, true),
        ("/// (β_t)\nlet beta = 1;", 0, false),
        ("let q = 1; // see (q)", 1, false),
        ("let q = 1; // (q) [B, T]", 1, true),
        ("let k = 1; // (k)", 1, false),
        ("let s = 1; // (β_t) (1)", 2, true),
        ("let s = 1; // (S_t)", 2, true),
        ("let s = 1; // (1)", 3, true),
        ("let s = 1; // (2)", 2, false),
    ] {
        assert_eq!(!linked(&file(line), row).is_empty(), computes, "{line}: {row}");
    }
    assert_eq!(linked(models::source("lstm").unwrap(), 4), "let c = f * c + i * g; // (5)");
}

/// The op that a page names for a mixer is the op that its model runs.
#[test]
fn the_op_of_a_page_is_the_one_that_the_mixer_runs() {
    for name in models::names() {
        // Two blocks, since some mixers change with the depth.
        let config: TrainConfig = settings(name).replace("layers = 1", "layers = 2").parse().unwrap();
        let model = Model::new(&config.for_model(name).unwrap().model, 0, DType::F32).unwrap();
        let tape = Tape::new(Device::Cpu);
        let p = model.params().bind(&tape);
        let tokens = tape.constant(&Tensor::from_vec(vec![0, 1, 1, 0], [1, 4]));
        model.forward(&p, tokens, model.default_form());
        let ran: Vec<&str> = tape.graph(&[]).nodes.iter().map(|node| node.op).collect();
        let own = cores::of(name).map(|core| core.op);
        for core in &cores::CORES {
            let calls = own == Some(core.op) || own == Some("gated_delta_rule") && core.op == "erase_write";
            let runs = ran.contains(&core.op);
            assert!(own != Some(core.op) || runs, "{name} runs no {}: {ran:?}", core.op);
            assert!(!runs || calls || own.is_some(), "{name} runs {}", core.op);
        }
    }
}

/// The shapes of a page are those of a run.
#[test]
fn the_shapes_beside_the_equations_are_those_of_a_run() {
    let (mut checked, mut wrong) = (0, vec![]);
    for name in models::names() {
        let source = models::source(name).unwrap();
        let shapes = equations::shapes(source);
        let all = rows(source);
        let shown = equations::shapes_of(&all, &shapes).iter().filter(|one| !one.is_empty()).count();
        if shown < 2 {
            wrong.push(format!("{name}: {shown} rows have a shape: {shapes:?}"));
        }
        let config: TrainConfig = settings(name).parse().unwrap();
        let config = config.for_model(name).unwrap();
        let model = Model::new(&config.model, 0, DType::F32).unwrap();
        let trace = trace_model(&model, &config.kernels, &[0, 1, 1], &|| ()).unwrap();
        let c = &config.model;
        let one = |letter: &str| match letter {
            "B" | "T" => 1,
            "H" => c.heads,
            "M" if name == "mom" => 5,
            "M" => c.state,
            "K" | "V" | "P" => c.head_dim,
            "D" => c.width,
            "N" => c.state,
            "E" => c.expand * c.width,
            _ => letter.parse().unwrap_or(0),
        };
        let size = |product: &str| product.split(' ').map(one).product::<usize>();
        for quantity in view::of(name).map_or(&[][..], |view| view.quantities) {
            let Some((_, shape)) = shapes.iter().find(|one| one.0 == quantity.symbol) else { continue };
            let Some(series) = trace.layers[0].get(quantity.name) else { continue };
            let letters: Vec<&str> = shape.trim_matches(['[', ']']).split(", ").collect();
            // A view shows the query once for each memory, and of two weights the one that counts.
            if matches!((name, quantity.symbol), ("mom", "q" | "o") | ("seqboat", "π")) {
                continue;
            }
            let said: usize = letters.iter().map(|letter| size(letter)).product();
            if said > 0 {
                checked += 1;
                if said != series.width() {
                    wrong.push(format!("{name}: {} {shape}, and {:?} a step", quantity.symbol, series.shape));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 60, "{checked} quantities");
}

fn book(args: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_tapezoo")).arg("book").args(args).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_program_writes_the_site_and_says_what_it_lacks() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("new/site");
    let (out, library) = (out.to_str().unwrap(), dir.path().join("none.gz"));
    let refused = book(&["--out", out, "--library", library.to_str().unwrap()]);
    assert!(refused.0 == Some(2) && refused.2.contains("scripts/web.sh"), "{refused:?}");
    assert!(!Path::new(out).exists());
    std::fs::write(&library, [0x1f, 0x8b, 8]).unwrap();
    let written = book(&["--out", out, "--library", library.to_str().unwrap()]);
    assert!(written.0 == Some(0) && written.1.contains("index.html"), "{written:?}");
    assert!(Path::new(out).join("engine.js").is_file());
    // A second build gives the same bytes.
    let first = std::fs::read(Path::new(out).join("lstm.html")).unwrap();
    book(&["--out", out, "--library", library.to_str().unwrap()]);
    assert_eq!(std::fs::read(Path::new(out).join("lstm.html")).unwrap(), first);
    let there = dir.path().join("file");
    std::fs::write(&there, "mine").unwrap();
    let refused = book(&["--out", there.to_str().unwrap()]);
    assert!(refused.0 == Some(2) && refused.2.contains("is a file; expected a directory"), "{refused:?}");
    assert_eq!(std::fs::read_to_string(there).unwrap(), "mine");
}

/// Each row of equations with lines leads to the derivatives of the ops in them, and each derivative is shown.
#[test]
fn rows_lead_to_the_derivatives_of_their_ops() {
    let site = site(Path::new("none"));
    let text = |name: &str| &site.files.iter().find(|file| file.0 == name).unwrap().1;
    let derivatives = text("derivatives.html");
    for (op, said) in [
        ("matmul", "da[j] += dy[i] * b[k]"),
        ("sigmoid", "sigmoid(x), sigmoid(x) * sigmoid(-x)"),
        ("mul", "g * b, g * a"),
        ("sum_axis", "impl Terms for SumAxis"),
        ("unit_lower_solve", "dr_j = dx_j"),
        ("delta_rule", "fn formula"),
        ("layer_norm", "centred.square()"),
        ("rms_norm", "centre: false"),
        ("softmax", "fn normalised"),
    ] {
        let entry = derivatives.split_once(&format!("id=\"{op}\"")).unwrap().1.split_once("</section>").unwrap().0;
        assert!(entry.contains(said), "{op}: {entry}");
    }
    for name in models::names() {
        let page = text(&format!("{name}.html"));
        let rows: Vec<&str> =
            page.split("<li id=\"eq-").skip(1).map(|row| row.split("</li>").next().unwrap()).collect();
        let linked = rows.iter().filter(|row| row.contains("href=\"#L")).count();
        let backwards = rows.iter().filter(|row| row.contains("derivatives.html#")).count();
        // A fixed matrix, or the place where the state comes from, has no derivative.
        assert!(backwards > 1 && linked <= backwards + 2, "{name}: {backwards} of {linked} rows have a derivative");
    }
    // β = s σ(W x) is a product and a function.
    let page = text("delta_net.html");
    let beta = page.split("<li id=\"eq-").find(|row| row.starts_with("2\"")).unwrap();
    assert!(beta.contains("derivatives.html#linear") && beta.contains("derivatives.html#sigmoid"), "{beta}");
}
