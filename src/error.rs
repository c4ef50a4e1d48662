//! What can go wrong for a user, and what to do about it.

use std::{io, path::PathBuf};

/// Everything that a flag, a file or a number can do wrong. Misuse of tensors in a formula is a panic instead.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A flag or a configuration that makes no sense; the message names the value and what was expected.
    #[error("{0}")]
    Config(String),
    /// A file that cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file whose contents are not what they should be.
    #[error("{}: {what}", path.display())]
    Format {
        /// Which file.
        path: PathBuf,
        /// What was found, and what was expected.
        what: String,
    },
    /// Training met a number that is not finite.
    #[error("step {step}: {what}")]
    NotFinite {
        /// The step, from 1.
        step: usize,
        /// What was not finite, and the first op that made it so.
        what: String,
    },
    /// A signal asked the process to end.
    #[error("interrupted after step {step}")]
    Interrupted {
        /// The last step taken.
        step: usize,
    },
    /// A device that is not there, or failed.
    #[error("{0}")]
    Device(String),
}

impl Error {
    /// A [`Error::Config`] with this message.
    pub fn config(message: impl Into<String>) -> Error {
        Error::Config(message.into())
    }

    /// The message for a terminal: [`printable`], and of a length that can be read, whatever a file has in it.
    pub fn shown(&self) -> String {
        const LINES: usize = 8;
        const WIDTH: usize = 800;
        let text = self.to_string();
        let lines: Vec<String> = text.trim_end().lines().take(LINES).map(|line| cut(line, WIDTH)).collect();
        printable(&lines.join("\n"))
    }

    /// A [`Error::Io`] about this file; for `map_err`.
    pub fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        |source| Error::Io { path, source }
    }

    /// A [`Error::Format`] about this file.
    pub fn format(path: impl Into<PathBuf>, what: impl Into<String>) -> Error {
        Error::Format { path: path.into(), what: what.into() }
    }
}

/// Text that may come from a file, for a terminal: characters that would steer it, or turn the direction of writing, as
/// JSON writes them (`\u001b`). Ends of lines and tabs stay.
pub fn printable(text: &str) -> String {
    escaped(text, |c| matches!(c, '\n' | '\t'))
}

/// A value from a file, to be named in a message: [`printable`] in one line, of about `most` characters.
pub fn brief(text: &str, most: usize) -> String {
    escaped(&cut(text, most), |_| false)
}

/// `text`, without its middle if it has more than `most` characters.
fn cut(text: &str, most: usize) -> String {
    let all = text.chars().count();
    if all <= most {
        return text.into();
    }
    let (head, tail) = (most * 2 / 3, most / 3);
    let at = |n: usize| text.char_indices().nth(n).map_or(text.len(), |c| c.0);
    format!("{} … {}", &text[..at(head)], &text[at(all - tail)..])
}

/// `text` with what steers a terminal escaped, but for what `stays`.
fn escaped(text: &str, stays: fn(char) -> bool) -> String {
    let turns = |c| matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' if !stays(c) => shown += "\\n",
            _ if (c.is_control() || turns(c)) && !stays(c) => shown += &format!("\\u{:04x}", u32::from(c)),
            _ => shown.push(c),
        }
    }
    shown
}

/// A result with the crate's error.
pub type Result<T> = std::result::Result<T, Error>;

/// Run `f`, turning a panic into its message, and print nothing: for formulas on sizes that came from a file.
///
/// # Errors
/// When `f` panics: the message.
pub fn quietly<R>(f: impl FnOnce() -> R) -> std::result::Result<R, String> {
    use std::{cell::Cell, panic, sync::Once};
    thread_local!(static QUIET: Cell<bool> = const { Cell::new(false) });
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                before(info);
            }
        }));
    });
    QUIET.set(true);
    let outcome = panic::catch_unwind(panic::AssertUnwindSafe(f));
    QUIET.set(false);
    outcome.map_err(|payload| match payload.downcast::<String>() {
        Ok(message) => *message,
        Err(payload) => payload.downcast_ref::<&str>().map_or("unknown panic".into(), |m| (*m).into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_from_a_file_steers_a_terminal_or_fills_it() {
        let text = "a\u{1b}[31m\r\u{9b}2J\u{202e}b\tc\nd\u{7}";
        assert_eq!(printable(text), "a\\u001b[31m\\u000d\\u009b2J\\u202eb\tc\nd\\u0007");
        assert_eq!(brief("a\nb\tü", 80), "a\\nb\\u0009ü");
        assert_eq!(brief(&"é".repeat(100), 9), format!("{} … {}", "é".repeat(6), "é".repeat(3)));
        let long = Error::Config(format!("{}: expected less", "[".repeat(100_000))).shown();
        assert!(long.len() < 1000 && long.ends_with("expected less"), "{long}");
        assert_eq!(Error::Config("line\n".repeat(100)).shown().lines().count(), 8);
        // What is JSON stays JSON.
        let json = serde_json::json!({ "a": text }).to_string();
        let back: serde_json::Value = serde_json::from_str(&printable(&json)).expect("JSON");
        assert_eq!(back["a"], text);
    }
}
