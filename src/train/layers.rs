//! TOML tables laid over each other: a preset, a file, flags, and in a sweep a point of its grid.

use toml::{Table, Value};

/// Lay `top` over `base`: what it sets holds for every model, whatever `base` had for single ones.
pub fn layer(base: &mut Table, top: Table) {
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
pub fn merge(base: &mut Table, top: Table) {
    // The options of another task mean nothing to this one.
    let task = |table: &Table| table.get("task").and_then(|task| task.get("name")).cloned();
    if task(&top).is_some_and(|name| task(base) != Some(name)) {
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
/// number, and so does not count.
pub fn difference(a: &Table, b: &Table) -> Option<(String, String, String)> {
    let said = |value: Option<&Value>| value.map_or("absent".into(), Value::to_string);
    let keys = a.keys().chain(b.keys().filter(|key| !a.contains_key(*key)));
    keys.filter(|key| *key != "checkpoint_every").find_map(|key| match (a.get(key), b.get(key)) {
        (Some(Value::Table(a)), Some(Value::Table(b))) => {
            difference(a, b).map(|(inner, a, b)| (format!("{key}.{inner}"), a, b))
        }
        (a, b) => (a != b).then(|| (key.clone(), said(a), said(b))),
    })
}
