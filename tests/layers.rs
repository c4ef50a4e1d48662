//! Modules know those before them alone, in the order that the crate's front page gives, and those of `train` in the
//! order that its page gives. No two know each other, but for named pairs.
#![allow(clippy::unwrap_used)]

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

/// The modules that `prefix`, such as `crate::`, is followed by, comments left out.
fn known(text: &str, prefix: &str) -> Vec<String> {
    let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let mut found = vec![];
    for part in code.join("\n").split(prefix).skip(1) {
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

/// The level of each module, from a page that has them in order.
fn levels(page: &Path) -> HashMap<String, usize> {
    let page = fs::read_to_string(page).unwrap();
    let order = page.lines().skip_while(|line| !line.contains('←')).take_while(|line| line.starts_with("//! "));
    // The order ends with a sentence.
    let order: String = order.map(|line| format!("{} ", &line[4..])).collect();
    let order = order.split('.').next().unwrap().to_string();
    let of = |(i, modules): (usize, &str)| modules.split(',').map(|m| (m.trim().to_string(), i)).collect::<Vec<_>>();
    order.split('←').enumerate().flat_map(of).collect()
}

/// Assert that the files of a folder know no module above their own, and that no two modules know each other except
/// `pairs`. Returns the number of files.
fn check(folder: &Path, page: &str, prefixes: &[&str], pairs: &[(&str, &str)]) -> usize {
    let (level, mut seen) = (levels(&folder.join(page)), 0);
    let mut known_by: HashMap<(String, String), PathBuf> = HashMap::new();
    files(folder, &mut |path| {
        let inside = path.strip_prefix(folder).unwrap();
        let part = inside.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs");
        let Some(own) = level.get(part) else { return };
        seen += 1;
        let text = fs::read_to_string(path).unwrap();
        // In a folder of its own, `super` is the module itself.
        let prefixes = prefixes.iter().filter(|&&prefix| prefix != "super::" || inside.iter().count() == 1);
        for module in prefixes.flat_map(|prefix| known(&text, prefix)) {
            let Some(there) = level.get(&module) else { continue };
            assert!(there <= own, "{} knows {module}, which stands above it", path.display());
            if module != part {
                known_by.insert((part.to_string(), module), path.into());
            }
        }
    });
    for ((a, b), path) in &known_by {
        let back =
            known_by.get(&(b.clone(), a.clone())).filter(|_| !pairs.contains(&(a, b)) && !pairs.contains(&(b, a)));
        assert!(back.is_none(), "{} knows {b}, and {} knows {a}", path.display(), back.unwrap().display());
    }
    seen
}

#[test]
fn modules_know_those_before_them_alone() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let seen = [
        check(&src, "lib.rs", &["crate::"], &[("ops", "kernels")]),
        // A configuration is refused for lack of memory, and how much it takes depends on the configuration.
        check(&src.join("train"), "mod.rs", &["super::", "train::"], &[("capacity", "config")]),
    ];
    assert!(seen[0] > 100 && seen[1] > 20, "{seen:?} files have a place in an order");
}

/// A mixer is one file that is read at a sitting.
#[test]
fn the_file_of_a_mixer_has_at_most_150_lines() {
    // The number of lines, rounded up, and the reason for them.
    let longer = [("mlstm", 215, "the whole block of the xLSTM, and a parallel form with a stabiliser")];
    for name in tapezoo::models::names() {
        let lines = tapezoo::models::source(name).unwrap().lines().count();
        let (least, most) = longer.iter().find(|l| l.0 == name).map_or((60, 150), |l| (151, l.1));
        assert!((least..=most).contains(&lines), "src/models/{name}.rs has {lines} lines, expected {least} to {most}");
    }
}
