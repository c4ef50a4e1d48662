//! The programs, as subcommands of `tapezoo`.

#![allow(dead_code)] // Few tests need all of it.

use std::process::Command;

/// One of them, by its name there or by that of its own program.
pub fn program(name: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tapezoo"));
    command.arg(name);
    command
}

/// What an error says of a key of the configuration where this command line sets it by a flag: `train_len 7` is then
/// `--train-len 7`.
pub fn as_typed(line: &str, words: &str) -> String {
    let (key, rest) = words.split_at(words.find([' ', ':']).unwrap_or(words.len()));
    let flag = format!("--{}", key.replace('_', "-"));
    let typed = line.split(' ').any(|word| word == flag);
    if typed { format!("{flag}{}", rest.replacen(" =", "", 1)) } else { words.into() }
}
