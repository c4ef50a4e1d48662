//! Ctrl-C and SIGTERM: the first asks every run to write a checkpoint and stop, the second ends the process at once.

use crate::error::{Error, Result};
use signal_hook::{consts::TERM_SIGNALS, flag, low_level::signal_name};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The signal that came, or 0. A program has one set of signals, so this is one for all its runs.
static CAME: AtomicUsize = AtomicUsize::new(0);
/// Whether one came already.
static AGAIN: AtomicBool = AtomicBool::new(false);

/// What ended a program before its work was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal(u8);

impl Signal {
    /// The exit status that shells give to a process which this signal ended.
    pub fn status(self) -> u8 {
        128 + self.0
    }

    /// "SIGTERM".
    pub fn name(self) -> &'static str {
        signal_name(self.0.into()).unwrap_or("a signal")
    }
}

/// From now on, catch the signals that ask a process to end.
///
/// # Errors
/// When the system refuses.
pub fn catch() -> Result<()> {
    for &signal in TERM_SIGNALS {
        let number = usize::try_from(signal).unwrap_or_default();
        // In this order: the second signal finds what the first one set.
        flag::register_conditional_shutdown(signal, 128 + signal, &AGAIN)
            .and_then(|_| flag::register(signal, &AGAIN))
            .and_then(|_| flag::register_usize(signal, &CAME, number))
            .map_err(|e| Error::Config(format!("signal {signal} cannot be caught: {e}")))?;
    }
    Ok(())
}

/// The signal that came since [`catch`].
pub fn came() -> Option<Signal> {
    match CAME.load(Ordering::Relaxed) {
        0 => None,
        number => Some(Signal(u8::try_from(number).unwrap_or_default())),
    }
}
