//! Signals that ask a process to end: the first has every run write a checkpoint and stop, a later one ends the process
//! at once. Work that does not come to a stop by itself, such as a long step, is abandoned soon after the first.
//!
//! `timeout` and some batch systems signal a process and then its group, so that one request arrives twice. A signal
//! that comes within `ONE_REQUEST` of the first is the same request.

use crate::error::{Error, Result};
use signal_hook::{
    consts::{SIGHUP, TERM_SIGNALS},
    flag,
    low_level::{exit, signal_name},
};
use std::{
    fs,
    io::{self, Write},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// How long the runs have to come to a stop. Batch systems and people give a process two seconds.
const PATIENCE: Duration = Duration::from_millis(1400);

/// How long after the first signal another one asks for the same thing.
const ONE_REQUEST: Duration = Duration::from_millis(300);

/// How often signals are looked for.
const POLL: Duration = Duration::from_millis(20);

/// The signal that came, or 0. A program has one set of signals, so this is one for all its runs.
static CAME: AtomicUsize = AtomicUsize::new(0);
/// Whether a signal came since this flag was last read.
static AGAIN: AtomicBool = AtomicBool::new(false);

/// The message when the runs do not come to a stop in time.
type LastWords = Box<dyn FnOnce(Signal) + Send>;
static LAST_WORDS: Mutex<Option<LastWords>> = Mutex::new(None);

/// A signal that ended a program before its work was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal(u8);

impl Signal {
    /// The exit status that shells give to a process which this signal ended.
    pub fn status(self) -> u8 {
        128 + self.0
    }

    /// Its name, such as "SIGTERM".
    pub fn name(self) -> &'static str {
        signal_name(self.0.into()).unwrap_or("a signal")
    }
}

/// From now on, catch the signals that ask a process to end. A process that does not end by itself then says its last
/// words ([`at_the_latest`]) and ends.
///
/// # Errors
/// When the system refuses.
pub fn catch() -> Result<()> {
    // A process that was started with `nohup` is to outlive its terminal.
    let hangup = (!ignored(SIGHUP)).then_some(&SIGHUP);
    for &signal in TERM_SIGNALS.iter().chain(hangup) {
        let number = usize::try_from(signal).unwrap_or_default();
        flag::register(signal, &AGAIN)
            .and_then(|_| flag::register_usize(signal, &CAME, number))
            .map_err(|e| Error::Config(format!("signal {signal} cannot be caught: {e}")))?;
    }
    at_the_latest(|signal| {
        // A failure is ignored: there may be no reader.
        let _ = writeln!(io::stderr(), "error: {}: ended before any run began", signal.name());
    });
    let spawned = thread::Builder::new().spawn(|| {
        let signal = loop {
            thread::sleep(POLL);
            if let Some(signal) = came() {
                break signal;
            }
        };
        let first = Instant::now();
        thread::sleep(ONE_REQUEST);
        AGAIN.store(false, Ordering::Relaxed);
        loop {
            thread::sleep(POLL);
            if AGAIN.load(Ordering::Relaxed) {
                exit(came().unwrap_or(signal).status().into());
            }
            if first.elapsed() < PATIENCE {
                continue;
            }
            // The lock is kept: a thread that comes to its end now waits until the process ends.
            let mut words = LAST_WORDS.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(words) = words.take() {
                // They may wait for a disk, and a later signal must not.
                let _ = thread::Builder::new().spawn(move || {
                    loop {
                        thread::sleep(POLL);
                        if AGAIN.load(Ordering::Relaxed) {
                            exit(came().unwrap_or(signal).status().into());
                        }
                    }
                });
                words(signal);
                exit(signal.status().into());
            }
        }
    });
    spawned.map_err(|e| Error::Config(format!("no thread could be started: {e}; is there no memory?"))).map(drop)
}

/// Whether a signal was ignored when this process began.
fn ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Set the words to say when a signal came and its time is up. The process then ends, whatever it is doing.
pub fn at_the_latest(words: impl FnOnce(Signal) + Send + 'static) {
    *LAST_WORDS.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(words));
}

/// All work is done, or has come to a stop: from here on the process ends by itself.
pub fn at_an_end() {
    *LAST_WORDS.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

/// The signal that came since [`catch`].
pub fn came() -> Option<Signal> {
    match CAME.load(Ordering::Relaxed) {
        0 => None,
        number => Some(Signal(u8::try_from(number).unwrap_or_default())),
    }
}
