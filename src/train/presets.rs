//! The presets, and how the layers of a configuration are laid over one another, as TOML tables.

use crate::{
    error::{Error, Result, brief, did_you_mean},
    files, tasks,
};
use std::{io::ErrorKind, path::Path};
use toml::{Table, Value};

/// The presets by name: `configs/*.toml` and those of the state-tracking comparison below it. One with a key `preset`
/// is laid over that one.
pub const PRESETS: [(&str, &str); 25] = [
    ("default", include_str!("../../configs/default.toml")),
    ("published", include_str!("../../configs/published.toml")),
    ("dyck", include_str!("../../configs/dyck.toml")),
    ("mqar", include_str!("../../configs/mqar.toml")),
    ("zoology", include_str!("../../configs/zoology.toml")),
    ("published-mqar", include_str!("../../configs/published-mqar.toml")),
    ("disjoint", include_str!("../../configs/disjoint.toml")),
    ("icll", include_str!("../../configs/icll.toml")),
    ("window", include_str!("../../configs/window.toml")),
    ("text", include_str!("../../configs/text.toml")),
    ("groups", include_str!("../../configs/groups.toml")),
    ("arithmetic", include_str!("../../configs/arithmetic.toml")),
    ("state-tracking", include_str!("../../configs/state_tracking/models.toml")),
    ("state-tracking-repo", include_str!("../../configs/state_tracking/repo.toml")),
    ("parity-repo", include_str!("../../configs/state_tracking/parity-repo.toml")),
    ("arithmetic-repo", include_str!("../../configs/state_tracking/arithmetic-repo.toml")),
    ("brackets-repo", include_str!("../../configs/state_tracking/brackets-repo.toml")),
    ("parity-paper", include_str!("../../configs/state_tracking/parity-paper.toml")),
    ("arithmetic-paper", include_str!("../../configs/state_tracking/arithmetic-paper.toml")),
    ("brackets-paper", include_str!("../../configs/state_tracking/brackets-paper.toml")),
    ("state-tracking-reduced", include_str!("../../configs/state_tracking/reduced.toml")),
    ("parity-reduced", include_str!("../../configs/state_tracking/parity-reduced.toml")),
    ("arithmetic-reduced", include_str!("../../configs/state_tracking/arithmetic-reduced.toml")),
    ("brackets-reduced", include_str!("../../configs/state_tracking/brackets-reduced.toml")),
    ("groups-reduced", include_str!("../../configs/state_tracking/groups-reduced.toml")),
];

/// The preset that a kind of task begins with: the first that has it, or the default.
pub fn preset_of(kind: &str) -> &'static str {
    let has = |text: &str| {
        text.parse::<Table>().is_ok_and(|own| own.get("task").and_then(|task| task.get("name")?.as_str()) == Some(kind))
    };
    PRESETS.iter().find(|(_, text)| has(text)).map_or("default", |preset| preset.0)
}

/// The preset of a task that `--task` takes by name, and its `[task]`.
///
/// # Errors
/// When there is no such task.
pub fn task_of(name: &str) -> Result<(&'static str, Table)> {
    let all = tasks::named();
    let Some(task) = all.iter().find(|t| t.name == name) else {
        let names: Vec<&str> = all.iter().map(|t| t.name).collect();
        let near = did_you_mean(name, names.iter().copied());
        return Err(Error::Config(format!(
            "'{}': no such task{near}; expected one of {}",
            brief(name, 80),
            names.join(", ")
        )));
    };
    let own = [("name", task.kind)].into_iter().chain(task.option);
    Ok((preset_of(task.kind), own.map(|(key, value)| (key.to_string(), value.into())).collect()))
}

/// A value without the quotes of a string.
pub(crate) fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), String::from)
}

/// A value as a file has it, to be named in a message.
pub(crate) fn said(value: &Value) -> String {
    brief(&value.to_string(), 80)
}

pub(super) fn preset_names() -> String {
    let names = PRESETS.map(|(name, _)| name);
    format!("one of {}", names.join(", "))
}

/// A preset as a table, with the defaults of [`ModelConfig`](crate::models::ModelConfig) where it does not say.
///
/// # Errors
/// When there is no such preset.
pub fn preset_table(name: &str) -> Result<Table> {
    let (name, text) = PRESETS.into_iter().find(|p| p.0 == name).ok_or_else(|| {
        let near = did_you_mean(name, PRESETS.iter().map(|p| p.0));
        Error::Config(format!("unknown preset '{}'{near}: expected {}", brief(name, 80), preset_names()))
    })?;
    let own: Table = text.parse().map_err(|e| Error::Config(format!("preset '{name}': {e}")))?;
    let mut table = match own.get("preset").and_then(Value::as_str) {
        Some(base) => preset_table(base)?,
        None => Table::new(),
    };
    merge(&mut table, own);
    table.insert("preset".into(), name.into());
    Ok(table)
}

/// A TOML file as a table.
///
/// # Errors
/// When it cannot be read, or is not TOML.
pub(crate) fn read(path: &Path) -> Result<Table> {
    read_up_to(path, files::CONFIG)
}

fn read_up_to(path: &Path, bytes: u64) -> Result<Table> {
    let text = files::read_text(path, bytes).map_err(|e| match e {
        Error::Io { source, .. } if source.kind() == ErrorKind::NotFound => {
            Error::format(path, "does not exist; expected a TOML file, such as the config.toml of a run directory")
        }
        other => other,
    })?;
    text.parse().map_err(|e: toml::de::Error| Error::format(path, Error::config(e.to_string()).shown()))
}

/// As [`read`], of a file that a run has left.
pub(crate) fn read_run(path: &Path) -> Result<Table> {
    read_up_to(path, files::RECORD).map(of_run)
}

/// Bring the table of an earlier version up to date in three things. Before batches were computed in parts by default,
/// they were in one part and the file had no key for it; some keys had other names; and some were left out where they had
/// their default, which may not be what a preset has for single models.
pub(crate) fn of_run(mut table: Table) -> Table {
    // A table with both names is refused when the configuration is read.
    let _ = rename(&mut table);
    let defaults = [("label_smoothing", 0.0.into()), ("grad_noise", 0.0.into()), ("kernels", "fast".into())];
    for (key, value) in [("micro_batches", Value::Integer(1))].into_iter().chain(defaults) {
        table.entry(key).or_insert(value);
    }
    table
}

/// A key that had another name in earlier versions.
pub(super) struct OldName {
    pub old: &'static str,
    pub new: &'static str,
    /// The meaning of the key, in words.
    pub what: &'static str,
}

const OLD_NAMES: [OldName; 2] = [
    OldName { old: "min_lr", new: "min_lr_fraction", what: "a fraction of lr, not a learning rate" },
    OldName { old: "shards", new: "micro_batches", what: "the parts that a batch is computed in" },
];

/// Give keys, at the top or of single models, the names that they have now, and return those that had old names.
///
/// # Errors
/// When a table has both names.
pub(super) fn rename(table: &mut Table) -> std::result::Result<Vec<&'static OldName>, String> {
    let mut found = vec![];
    for name @ OldName { old, new, .. } in &OLD_NAMES {
        if !table.contains_key(*old) {
            continue;
        }
        if table.contains_key(*new) {
            return Err(format!("{old} and {new} are the same setting; remove {old}"));
        }
        // The key keeps its place: the order of keys is the order of messages.
        let renamed = |(key, value): (String, Value)| (if key == *old { (*new).into() } else { key }, value);
        *table = std::mem::take(table).into_iter().map(renamed).collect();
        found.push(name);
    }
    if let Some(Value::Table(per_model)) = table.get_mut("per_model") {
        for (name, own) in per_model.iter_mut() {
            if let Value::Table(own) = own {
                found.extend(rename(own).map_err(|what| format!("per_model.{name}: {what}"))?);
            }
        }
    }
    Ok(found)
}

/// Lay `top` over `base`. A key of `top` holds for every model, even where `base` had a value for single models.
pub(super) fn layer(base: &mut Table, top: Table) {
    if let Some(Value::Table(per_model)) = base.get_mut("per_model") {
        for (_, own) in per_model.iter_mut() {
            if let Value::Table(own) = own {
                forget(own, &top);
            }
        }
    }
    merge(base, top);
}

/// Remove from `own` the keys that `top` has.
fn forget(own: &mut Table, top: &Table) {
    for (key, value) in top {
        match (own.get_mut(key), value) {
            (Some(Value::Table(own)), Value::Table(top)) => forget(own, top),
            _ => drop(own.remove(key)),
        }
    }
}

/// Put `top` into `base`, table by table.
pub(crate) fn merge(base: &mut Table, top: Table) {
    // The options of another task mean nothing to this one.
    let task = |table: &Table| table.get("task").and_then(|task| task.get("name")).cloned();
    if let (Some(new), Some(old)) = (task(&top), task(base))
        && new != old
    {
        base.remove("task");
    }
    for (key, value) in top {
        match (base.get_mut(&key), value) {
            (Some(Value::Table(base)), Value::Table(top)) => merge(base, top),
            (_, value) => drop(base.insert(key, value)),
        }
    }
}

/// The first key in which two configurations differ, with both values. How often a checkpoint is made changes no
/// number, and so does not count; nor does where a text is whose checksum is the same.
pub(crate) fn difference(a: &Table, b: &Table) -> Option<(String, String, String)> {
    let said = |value: Option<&Value>| value.map_or("absent".into(), said);
    let keys = a.keys().chain(b.keys().filter(|key| !a.contains_key(*key)));
    let moved = a.contains_key("checksum") && a.get("checksum") == b.get("checksum");
    keys.filter(|key| *key != "checkpoint_every" && !(moved && *key == "text")).find_map(|key| {
        match (a.get(key), b.get(key)) {
            (Some(Value::Table(a)), Some(Value::Table(b))) => {
                difference(a, b).map(|(inner, a, b)| (format!("{key}.{inner}"), a, b))
            }
            (a, b) => (a != b).then(|| (key.clone(), said(a), said(b))),
        }
    })
}
