//! Modules know those before them alone, in the order that the crate's front page gives.
#![allow(clippy::unwrap_used)]

use std::{collections::HashMap, fs, path::Path};

/// The modules that `crate::` is followed by, comments left out.
fn known(text: &str) -> Vec<String> {
    let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let mut found = vec![];
    for part in code.join("\n").split("crate::").skip(1) {
        let Some(group) = part.strip_prefix('{') else {
            found.push(part.to_string());
            continue;
        };
        let (mut depth, mut outer) = (1, String::new());
        for c in group.chars() {
            depth += i32::from(c == '{') - i32::from(c == '}');
            match depth {
                0 => break,
                1 => outer.push(c),
                _ => {}
            }
        }
        found.extend(outer.split(',').map(String::from));
    }
    let name = |path: &String| path.trim().chars().take_while(|&c| c.is_alphanumeric() || c == '_').collect();
    found.iter().map(name).collect()
}

fn files(dir: &Path, each: &mut impl FnMut(&Path)) {
    for path in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            files(&path, each);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            each(&path);
        }
    }
}

#[test]
fn modules_know_those_before_them_alone() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let page = fs::read_to_string(src.join("lib.rs")).unwrap();
    let order = page.lines().find(|line| line.contains('←')).unwrap().trim_start_matches("//!").trim_end_matches('.');
    let levels = order.split('←').enumerate();
    let level: HashMap<&str, usize> =
        levels.flat_map(|(i, of)| of.split(',').map(move |module| (module.trim(), i))).collect();
    let mut seen = 0;
    files(&src, &mut |path| {
        let part = path.strip_prefix(&src).unwrap().iter().next().unwrap().to_str().unwrap();
        let Some(own) = level.get(part.trim_end_matches(".rs")) else { return };
        seen += 1;
        for module in known(&fs::read_to_string(path).unwrap()) {
            let above = level.get(module.as_str()).is_some_and(|there| there > own);
            assert!(!above, "{} knows {module}, which stands above it", path.display());
        }
    });
    assert!(seen > 100, "{seen} files have a place in '{order}'");
}
