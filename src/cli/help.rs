//! Reading the command line, with the values of presets in `--help`.

use super::say;
use crate::{
    models,
    train::config::{plain, preset_table},
};
use clap::{CommandFactory, FromArgMatches, builder::PossibleValuesParser};
use toml::Value;

/// Read the command line, with these presets' values and the mixers in `--help`; leave with status 2 if it cannot be.
pub fn parse<P: CommandFactory + FromArgMatches>(presets: &[&'static str]) -> P {
    let mut command = P::command();
    let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    command = command.after_help(format!("Models:\n{}\n{examples}", indented(&models::lines())));
    let ids: Vec<String> = command.get_arguments().map(|a| a.get_id().to_string()).collect();
    for id in ids {
        command = command.mut_arg(&id, |arg| {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            // So that -3 is a bad value, and not an unknown flag.
            let valued = arg.get_action().takes_values();
            let arg = if valued { arg.allow_negative_numbers(true) } else { arg };
            let arg = if id == "preset" { arg.value_parser(PossibleValuesParser::new(presets)) } else { arg };
            preset_values(presets, &id).map_or(arg.clone(), |values| arg.help(format!("{help} [{values}]")))
        });
    }
    let matches = command.get_matches();
    if matches.try_contains_id("shards").is_ok_and(|given| given) {
        say("warning", "--shards is the old name of --micro-batches");
    }
    P::from_arg_matches(&matches).unwrap_or_else(|e| e.exit())
}

/// Each line moved to the right, as clap shows a list.
fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

/// "default: 2000, published: 40000"; of presets that all say the same, only the first.
fn preset_values(presets: &[&str], key: &str) -> Option<String> {
    let value = |name: &str| {
        let table = preset_table(name).ok()?;
        let part = |part: &str| table.get(part)?.get(key);
        match table.get(key).or_else(|| part("model")).or_else(|| part("task"))? {
            _ if key == "preset" => None,
            Value::Array(list) => Some(list.iter().map(plain).collect::<Vec<_>>().join(",")),
            other => Some(plain(other)),
        }
    };
    let mut values: Vec<(&str, String)> = presets.iter().filter_map(|name| Some((*name, value(name)?))).collect();
    // A name that stands for several presets has no values of its own.
    let single = presets.iter().filter(|name| preset_table(name).is_ok()).count();
    if values.len() == single && values.iter().all(|v| v.1 == values[0].1) {
        values.truncate(1);
    }
    let text: Vec<String> = values.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    (!text.is_empty()).then(|| text.join(", "))
}
