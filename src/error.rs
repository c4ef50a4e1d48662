//! The errors that a user can meet, and what to do about them.

use std::{any::Any, cell::Cell, io, panic, path::PathBuf, sync::Once};

/// Every error that a flag, a file or a number can cause. Misuse of tensors in a formula panics instead.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A flag or a configuration that is not valid; the message names the value and what was expected.
    #[error("{0}")]
    Config(String),
    /// A file that cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file whose contents are not what they should be.
    #[error("{}: {what}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The message: what was found, and what was expected.
        what: String,
    },
    /// Training met a number that is not finite.
    #[error("step {step}: {what}")]
    NotFinite {
        /// The step, from 1.
        step: usize,
        /// The message: which number was not finite, and the first op that made it so.
        what: String,
    },
    /// A signal asked the process to end.
    #[error("interrupted after step {step}")]
    Interrupted {
        /// The last step taken.
        step: usize,
    },
    /// A device that is missing or failed.
    #[error("{0}")]
    Device(String),
}

impl Error {
    /// A [`Error::Config`] with this message.
    pub fn config(message: impl Into<String>) -> Error {
        Error::Config(message.into())
    }

    /// The message for a terminal: [`printable`], and short enough to read even if it quotes a long text from a file.
    pub fn shown(&self) -> String {
        const LINES: usize = 8;
        const WIDTH: usize = 800;
        const WORD: usize = 200;
        let text = self.to_string();
        let line = |line: &str| cut(&words(line, WORD), WIDTH);
        printable(&text.trim_end().lines().take(LINES).map(line).collect::<Vec<_>>().join("\n"))
    }

    /// The same error with quoted text cut short: one line, without long words or control characters.
    #[must_use]
    pub fn in_brief(self) -> Error {
        const WORD: usize = 80;
        const LINE: usize = 500;
        let short = |text: String| brief(&words(&text, WORD), LINE);
        match self {
            Error::Config(what) => Error::Config(short(what)),
            Error::Format { path, what } => Error::Format { path, what: short(what) },
            other => other,
        }
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

/// " (did you mean 'lstm'?)" where some of these names are like the one given, and nothing otherwise: up to three that
/// are a slip of the finger away, or written in another way (DeltaNet), or of which one contains the other.
pub(crate) fn did_you_mean<'a>(given: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    let raw = given;
    let given = &raw.to_lowercase().replace(['-', ' '], "_");
    let far = |name: &'a str| (strsim::damerau_levenshtein(given, name), name);
    let all: Vec<(usize, &str)> = names.into_iter().map(far).collect();
    // Two slips in a long name.
    let slip =
        |&&(far, name): &&(usize, &str)| raw != name && far <= 1 + name.len() / 5 && given.len() <= 2 * name.len();
    let least = all.iter().filter(slip).map(|near| near.0).min();
    let part = |name: &str| given.len() > 2 && (name.contains(given) || name.len() > 2 && given.contains(name));
    let near = |near: &&(usize, &str)| near.1 != raw && (Some(near.0) == least || least != Some(0) && part(near.1));
    let near: Vec<String> = all.iter().filter(near).take(3).map(|(_, name)| format!("'{name}'")).collect();
    match near.split_last() {
        None => String::new(),
        Some((last, [])) => format!(" (did you mean {last}?)"),
        Some((last, others)) => format!(" (did you mean {} or {last}?)", others.join(", ")),
    }
}

/// Text that may come from a file, for a terminal: control characters and characters that change the writing direction
/// are escaped as in JSON (`\u001b`). Newlines and tabs stay.
#[doc(hidden)]
pub fn printable(text: &str) -> String {
    escaped(text, |c| matches!(c, '\n' | '\t'))
}

/// A value from a file, to be named in a message: [`printable`] in one line, of about `most` characters.
#[doc(hidden)]
pub fn brief(text: &str, most: usize) -> String {
    escaped(&cut(text, most), |_| false)
}

/// `text`, with the middle of each word longer than `most` characters left out.
fn words(text: &str, most: usize) -> String {
    text.split(' ').map(|word| cut(word, most)).collect::<Vec<_>>().join(" ")
}

/// A number of things: "1 run", "2 runs".
pub(crate) fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// A number in its short notation: 1e300, not three hundred zeros.
pub(crate) fn number(x: f64) -> String {
    if x == 0.0 || !x.is_finite() || (1e-6..1e16).contains(&x.abs()) { x.to_string() } else { format!("{x:e}") }
}

/// `text`, with its middle left out if it has more than `most` characters.
fn cut(text: &str, most: usize) -> String {
    let all = text.chars().count();
    if all <= most {
        return text.into();
    }
    let (head, tail) = (most * 2 / 3, most / 3);
    let at = |n: usize| text.char_indices().nth(n).map_or(text.len(), |c| c.0);
    format!("{} … {}", &text[..at(head)], &text[at(all - tail)..])
}

/// `text` with control characters escaped, except those that `stays` accepts.
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

/// How the message of a panic begins that reports memory that cannot be had.
pub(crate) const OUT_OF_MEMORY: &str = "out of memory";

/// A number of bytes in readable form: "3.2 GB".
pub(crate) fn bytes(n: usize) -> String {
    let units = ["bytes", "kB", "MB", "GB", "TB", "PB", "EB"];
    let of = (n.max(1).ilog10() / 3) as usize;
    let x = n as f64 / 1000f64.powi(of as i32);
    if of == 0 || x >= 100.0 { format!("{x:.0} {}", units[of]) } else { format!("{x:.1} {}", units[of]) }
}

/// Run `f`, turn a panic into its message, and print nothing: for formulas on sizes that come from a file.
///
/// # Errors
/// When `f` panics: the error is the message.
#[doc(hidden)]
pub fn quietly<R>(f: impl FnOnce() -> R) -> std::result::Result<R, String> {
    caught(|_| true, f).map_err(|payload| text(&*payload).unwrap_or("unknown panic").into())
}

/// Run `f`, and turn the panic of an op that finds too little memory into its message. Any other panic propagates.
///
/// # Errors
/// When there is not enough memory for `f`.
pub(crate) fn within_memory<R>(f: impl FnOnce() -> R) -> Result<R> {
    caught(is_of_memory, f).map_err(|payload| match text(&*payload).filter(|message| is_of_memory(message)) {
        Some(message) => Error::Config(message.into()),
        None => panic::resume_unwind(payload),
    })
}

/// Run `f`, and turn any panic into an error. A panic that is not about memory is a fault of this program, and is also
/// printed.
///
/// # Errors
/// When `f` fails or panics.
pub(crate) fn contained<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    caught(is_of_memory, f).unwrap_or_else(|payload| {
        let message = text(&*payload).unwrap_or("unknown panic");
        Err(Error::Config(if is_of_memory(message) {
            message.into()
        } else {
            format!("a fault of this program: {message}")
        }))
    })
}

fn is_of_memory(message: &str) -> bool {
    message.starts_with(OUT_OF_MEMORY)
}

/// The message of a panic.
fn text(payload: &(dyn Any + Send)) -> Option<&str> {
    payload.downcast_ref::<String>().map(String::as_str).or_else(|| payload.downcast_ref::<&str>().copied())
}

/// Run `f`, and do not print a panic whose message `quiet` accepts.
fn caught<R>(quiet: fn(&str) -> bool, f: impl FnOnce() -> R) -> std::thread::Result<R> {
    thread_local!(static QUIET: Cell<fn(&str) -> bool> = const { Cell::new(|_| false) });
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get()(text(info.payload()).unwrap_or_default()) {
                before(info);
            }
        }));
    });
    let before = QUIET.replace(quiet);
    let outcome = panic::catch_unwind(panic::AssertUnwindSafe(f));
    QUIET.set(before);
    outcome
}
