//! Where in a file an error is, and what may have been meant.

use crate::{
    error::{Error, did_you_mean},
    files,
    models::ModelConfig,
};
use std::path::Path;
use toml::{
    Table, Value,
    de::{DeTable, DeValue},
};

/// An error about a configuration, with the known name that is most like an unknown one, and with the line of a key
/// that the file sets and no flag.
pub(super) fn explained(e: Error, path: Option<&Path>, flags: &Table) -> Error {
    let (what, of_file) = match e {
        Error::Config(what) => (what, false),
        Error::Format { what, .. } => (what, true),
        other => return other,
    };
    let (what, key) = meant(&what);
    let line = path.and_then(|path| {
        let names = [("unknown model ", "models"), ("unknown preset ", "preset")];
        let name = names.iter().find(|(begin, _)| what.starts_with(begin)).map(|(_, key)| *key);
        let begins = name.or(what.split([' ', ':']).next())?;
        let begins: Vec<String> = begins.split('.').map(String::from).collect();
        let of = |table: &str| [&[table.to_string()], &begins[..]].concat();
        let keys = if key.is_empty() { vec![of("model"), of("task"), begins] } else { vec![key] };
        keys.into_iter().filter(|key| of_file || at(flags, key).is_none()).find_map(|key| line(path, &key))
    });
    match (path, line) {
        (Some(path), Some(line)) => Error::format(path, format!("line {line}: {what}")),
        (Some(path), None) if of_file => Error::format(path, what),
        _ => Error::Config(what),
    }
}

/// The parser's message about a table in the words of the file, and the key that it is about, if it names one.
fn meant(what: &str) -> (String, Vec<String>) {
    let (of, mut key, rest) = match what.strip_prefix("per_model.").and_then(|rest| rest.split_once(": ")) {
        Some((name, rest)) => (format!("per_model.{name}: "), vec!["per_model".to_string(), name.to_string()], rest),
        None => (String::new(), vec![], what),
    };
    let (rest, inside) = match rest.strip_suffix('`').and_then(|rest| rest.rsplit_once(", in `")) {
        Some((rest, inside)) => (rest, inside),
        None => (rest, ""),
    };
    key.extend(inside.split('.').filter(|part| !part.is_empty()).map(String::from));
    let unknown = |what: &str| rest.strip_prefix(what)?.split_once("`, expected ");
    let near = |name: &str, expected: &str| did_you_mean(name, expected.split('`').skip(1).step_by(2));
    if let Some((name, expected)) = unknown("unknown field `") {
        key.push(name.into());
        let table = if inside.is_empty() { String::new() } else { format!(" in [{inside}]") };
        let hint = Some(near(name, expected)).filter(|near| !near.is_empty() || !inside.is_empty());
        let hint = hint.unwrap_or_else(|| of_model(name));
        // With a hint at the name that was meant, the list of all names is not needed.
        let all = if hint.is_empty() { format!(": expected {}", expected.replace('`', "")) } else { hint };
        return (format!("{of}unknown key '{name}'{table}{all}"), key);
    }
    if let Some((name, expected)) = unknown("unknown variant `") {
        let expected = format!("{}: expected {}", near(name, expected), expected.replace('`', ""));
        return (format!("{of}{inside} '{name}'{expected}"), key);
    }
    // The message of an added task names the place itself.
    if inside == "task" && rest.starts_with("the task '") {
        return (format!("{of}{rest}"), key);
    }
    // A message without a place is not the parser's.
    (what.into(), if inside.is_empty() { vec![] } else { key })
}

/// The parser's message in the words of the file, not of Rust.
pub(super) fn plain(mut what: String) -> String {
    for (rust, word) in WORDS {
        what = what.replace(&format!("expected {rust}"), &format!("expected {word}"));
    }
    match what.split_once("expected struct ") {
        Some((before, after)) => {
            let rest = after.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_');
            format!("{before}expected a table{rest}")
        }
        None => what,
    }
}

/// The parser's words for the kinds of values, and those of the file.
const WORDS: [(&str, &str); 9] = [
    ("usize", "a whole number from 0 on"),
    ("u64", "a whole number from 0 on"),
    ("u32", "a whole number from 0 on"),
    ("f64", "a number"),
    ("a sequence", "a list"),
    ("a map", "a table"),
    ("internally tagged enum Tasks", "a table with 'name'"),
    ("variant identifier", "a name"),
    ("string only", "a name"),
];

/// A hint where an unknown key at the top is, or is like, a key of the table `[model]`.
fn of_model(name: &str) -> String {
    let sizes = Table::try_from(ModelConfig::default()).unwrap_or_default();
    let keys = || sizes.keys().map(String::as_str).filter(|key| !super::DERIVED.contains(key));
    if keys().any(|key| key == name) {
        return format!(" (a key of [model]: model.{name})");
    }
    did_you_mean(name, keys()).replace("'?)", "' in [model]?)")
}

fn at<'a>(table: &'a Table, key: &[String]) -> Option<&'a Value> {
    let (last, tables) = key.split_last()?;
    tables.iter().try_fold(table, |table, name| table.get(name)?.as_table())?.get(last)
}

/// The line of a key in a file, counted from 1; none for a pipe, which cannot be read again.
pub(crate) fn line(path: &Path, key: &[String]) -> Option<usize> {
    let text = path.is_file().then(|| files::read_text(path, files::CONFIG).ok())??;
    let document = DeTable::parse(&text).ok()?;
    let (last, tables) = key.split_last()?;
    let table =
        tables.iter().try_fold(document.get_ref(), |table, name| match table.get(name.as_str())?.get_ref() {
            DeValue::Table(table) => Some(table),
            _ => None,
        })?;
    let (name, _) = table.get_key_value(last.as_str())?;
    Some(text[..name.span().start].matches('\n').count() + 1)
}
