//! The progress of a program that does one thing after another: a bar, or where there is no terminal a line every half
//! minute.

use crate::{
    error::printable,
    train::progress::{EVERY, duration, left},
};
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    io::{self, Write},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
};

/// Do this work with a bar of this style, which is gone at its end.
pub(super) fn with_bar<R>(template: &str, work: impl FnOnce(&ProgressBar) -> R) -> R {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(0).with_style(style);
    if !bar.is_hidden() {
        let done = work(&bar);
        bar.finish_and_clear();
        return done;
    }
    thread::scope(|scope| {
        let (ends, ended) = mpsc::channel::<()>();
        let bar = &bar;
        scope.spawn(move || {
            let mut before = (String::new(), 0);
            while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                let now = (bar.message(), bar.position());
                let since = if before.0 == now.0 { before.1 } else { 0 };
                // Nobody may be there to read it.
                let _ = writeln!(io::stderr(), "{}", printable(&line(&now, since, bar.length().unwrap_or(0))));
                before = now;
            }
        });
        // The end of the work, also by a panic, ends the thread.
        let _ends = ends;
        work(bar)
    })
}

/// How it stands: what is done, so many steps of all, of which so many were done half a minute ago.
fn line((doing, at): &(String, u64), before: u64, all: u64) -> String {
    let doing = if doing.is_empty() { "working" } else { doing };
    if all == 0 {
        return format!("{at} done, now {doing}");
    }
    let rest = left(EVERY, at.saturating_sub(before) as f64, all.saturating_sub(*at) as f64);
    format!("{doing}: {at} of {all}{}", rest.map_or(String::new(), |rest| format!("; about {} left", duration(rest))))
}
