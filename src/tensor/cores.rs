//! The cores that have nothing to do.

use crate::error::within_memory;
use std::{
    panic::resume_unwind,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// How many cores have no run to do. Runs side by side share the count, and each borrows from it while it takes a step.
#[derive(Clone, Default)]
pub struct Cores(Arc<AtomicUsize>);

impl Cores {
    /// So many without a run.
    pub fn idle(n: usize) -> Cores {
        Cores(Arc::new(AtomicUsize::new(n)))
    }

    /// All of this machine but one.
    pub fn others() -> Cores {
        Cores::idle(thread::available_parallelism().map_or(0, |n| n.get() - 1))
    }

    /// One more: its last run is done.
    pub fn free(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// As many as there are, up to `most`, until what is returned is dropped.
    fn borrow(&self, most: usize) -> Borrowed<'_> {
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |idle| Some(idle - idle.min(most)));
        Borrowed { cores: self, n: taken.unwrap_or_else(|idle| idle).min(most) }
    }

    /// Work on this thread, and at the same time on every idle core, on `most` threads at most.
    pub fn work(&self, most: usize, work: impl Fn() + Sync) {
        let helpers = self.borrow(most.saturating_sub(1));
        if helpers.n == 0 {
            return work();
        }
        thread::scope(|scope| {
            let helpers: Vec<_> = (0..helpers.n)
                .map_while(|_| thread::Builder::new().spawn_scoped(scope, || within_memory(&work)).ok())
                .collect();
            work();
            for helper in helpers {
                match helper.join() {
                    Ok(Ok(())) => {}
                    // The run of this thread reports that a helper found too little memory.
                    Ok(Err(no_memory)) => panic!("{no_memory}"),
                    Err(panic) => resume_unwind(panic),
                }
            }
        });
    }
}

/// Cores on loan.
struct Borrowed<'a> {
    cores: &'a Cores,
    n: usize,
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        self.cores.0.fetch_add(self.n, Ordering::Relaxed);
    }
}
