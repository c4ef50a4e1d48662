//! The help of a training program: in `--help` every flag with the presets' values, in `-h` a first look.

use super::say;
use crate::{
    models,
    train::config::{plain, preset_table},
};
use clap::{
    ArgMatches, Command,
    builder::{PossibleValue, PossibleValuesParser},
};
use toml::{Table, Value};

/// The names that a program's `--preset` takes, and the preset that each stands for; none where that depends on the
/// task.
pub(super) type Presets = &'static [(&'static str, &'static str)];

/// The lines of `-h` about the flags that matter first; the others are in `--help`.
const FIRST: [(&str, &str); 17] = [
    ("task", "What is learned"),
    ("text", "Text files of your own, byte by byte"),
    ("models", "Which mixers to train, separated by commas, or all"),
    ("preset", "The numbers to start from; other flags change them"),
    ("config", "A TOML file with numbers to change"),
    ("train_len", "The length of training sequences, or a range: 3-40"),
    ("eval_lens", "The lengths to evaluate at"),
    ("seeds", "How many seeds: runs of each model"),
    ("steps", "Training steps"),
    ("batch", "Sequences in a batch"),
    ("lr", "The learning rate, at its peak"),
    ("layers", "Blocks"),
    ("width", "The width of the residual stream"),
    ("device", "Where to compute: auto, cpu, cuda, cuda:N, emulated"),
    ("jobs", "How many runs go side by side"),
    ("out", "Leave configuration, metrics and weights here"),
    ("resume", "Go on with the runs in this directory"),
];

/// How many presets are too many to give the values of each.
const MANY: usize = 8;

/// The headings of flags of a task, all of which `-h` shows.
const OF_TASKS: &str = "The task";

/// The command of a training program, with these presets' values and the mixers in `--help`, and the flags that matter
/// first in `-h`.
pub(super) fn teach(mut command: Command, presets: Presets) -> Command {
    let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let few: Vec<&str> = examples.lines().take(4).collect();
    command = command
        .after_long_help(format!("Models:\n{}\n{examples}", indented(&models::lines())))
        .after_help(format!("{}\n\n--help explains every flag, and has more examples.", few.join("\n")));
    // Of all presets there are, the values would fill pages.
    let tables: Vec<(&str, Table)> = presets
        .iter()
        .filter(|_| presets.len() < MANY)
        .filter_map(|(shown, name)| Some((*shown, preset_table(name).ok()?)))
        .collect();
    let ids: Vec<String> = command.get_arguments().map(|a| a.get_id().to_string()).collect();
    for id in ids {
        command = command.mut_arg(&id, |arg| {
            let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
            let valued = arg.get_action().takes_values();
            let hidden = arg.is_hide_short_help_set();
            let arg = if id == "preset" { arg.value_parser(names(presets)) } else { arg };
            let own = arg.get_help_heading() == Some(OF_TASKS) && presets.len() < MANY;
            let sentence = FIRST.iter().find(|(first, _)| *first == id).map(|(_, text)| text.to_string());
            let sentence = sentence.or(own.then(|| help.split([';', '[']).next().unwrap_or_default().trim().into()));
            let mut all = preset_values(&tables, &id).map_or(help.clone(), |values| format!("{help} [{values}]"));
            if valued && !arg.get_possible_values().is_empty() {
                let names: Vec<String> = arg.get_possible_values().iter().map(|v| v.get_name().to_string()).collect();
                all += &format!(" [possible values: {}]", names.join(", "));
            }
            let arg = if valued { arg.hide_possible_values(true) } else { arg };
            arg.hide_short_help(hidden || sentence.is_none()).help(sentence.unwrap_or_default()).long_help(all)
        });
    }
    command
}

/// A command whose `-h` has these flags with a short text each, and this below them; `--help` has all there is.
pub(super) fn glance(command: Command, first: &[(&'static str, &'static str)], below: &str) -> Command {
    let all = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let more = "--help explains every flag, and says more.";
    let command = command.after_long_help(all).after_help(format!("{below}\n\n{more}"));
    first.iter().fold(command, |command, (id, text)| {
        command.mut_arg(id, |arg| {
            let long = arg.get_long_help().or(arg.get_help()).cloned().unwrap_or_default();
            arg.help(*text).long_help(long)
        })
    })
}

/// Warn of old names that were used.
pub(super) fn warn_of_old_names(matches: &ArgMatches) {
    for (old, new) in [("shards", "micro-batches"), ("threads", "jobs")] {
        if matches.try_contains_id(old).is_ok_and(|given| given) {
            say("warning", &format!("--{old} is the old name of --{new}"));
        }
    }
}

/// The values of `--preset`. The name that a preset has in configurations is understood too.
fn names(presets: Presets) -> PossibleValuesParser {
    let shown = |name: &str| presets.iter().any(|(shown, _)| *shown == name);
    let value = |&(name, preset): &(&'static str, &'static str)| {
        let value = PossibleValue::new(name);
        if preset.is_empty() || shown(preset) { value } else { value.alias(preset) }
    };
    PossibleValuesParser::new(presets.iter().map(value).collect::<Vec<_>>())
}

/// The preset that is meant by a name that was typed; `default` is that of the task.
pub(super) fn preset_of<'a>(typed: &'a str, presets: Presets, default: &'a str) -> &'a str {
    match presets.iter().find(|(shown, _)| *shown == typed) {
        Some((_, preset)) if !preset.is_empty() => preset,
        _ if typed == "default" => default,
        _ => typed,
    }
}

/// Each line moved to the right, as clap shows a list.
pub(super) fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

/// "default: 2000, published: 40000"; of presets that all say the same, only the first.
fn preset_values(presets: &[(&str, Table)], key: &str) -> Option<String> {
    let value = |table: &Table| {
        let part = |part: &str| table.get(part)?.get(key).cloned();
        match table.get(key).cloned().or_else(|| part("model")).or_else(|| part("task"))? {
            _ if key == "preset" => None,
            Value::Table(_) => None,
            Value::Array(list) => Some(list.iter().map(plain).collect::<Vec<_>>().join(",")),
            other => Some(plain(&other)),
        }
    };
    let mut values: Vec<(&str, String)> =
        presets.iter().filter_map(|(name, table)| Some((*name, value(table)?))).collect();
    if values.len() == presets.len() && values.iter().all(|v| v.1 == values[0].1) {
        values.truncate(1);
    }
    let text: Vec<String> = values.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    (!text.is_empty()).then(|| text.join(", "))
}
