//! Training batches, made when a step asks for them, or some steps ahead by a thread of their own.
//!
//! Batch n is a function of the seed and n, so who makes it, and when, changes no bit of it.

use super::config::TrainConfig;
use crate::{
    error::within_memory,
    rng,
    tasks::{Batch, Task},
};
use std::{
    mem,
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

/// How many batches are ready at most.
const AHEAD: usize = 4;

/// Steps over which making a batch is compared with the rest of a step.
const TRIAL: usize = 20;

/// Making batches must be at least this part of a step for a thread of its own to pay.
const PAYS: f64 = 0.02;

/// The training batches of one run in order.
pub struct Data {
    cfg: TrainConfig,
    task: Arc<dyn Task>,
    /// Whether the task of a batch depends on the steps before it: then none is made ahead.
    waits: bool,
    seed: u64,
    /// The number of the next batch, from 0.
    next: usize,
    ahead: Option<Ahead>,
    trial: Option<Trial>,
}

/// The cost of the first steps, which shows whether a thread pays.
struct Trial {
    since: Instant,
    making: Duration,
    left: usize,
}

/// A thread that fills the batches it is sent, and sends them back in order.
struct Ahead {
    empty: SyncSender<Batch>,
    full: Receiver<Batch>,
}

impl Data {
    /// The batches from number `next` on.
    pub fn new(cfg: &TrainConfig, task: Arc<dyn Task>, seed: u64, next: usize) -> Data {
        Data { cfg: cfg.clone(), task, waits: false, seed, next, ahead: None, trial: None }
    }

    /// Make the batches to come from this stage of the task, until the next one is given. It belongs before the first
    /// batch.
    pub fn go_on_with(&mut self, stage: Arc<dyn Task>) {
        (self.task, self.waits) = (stage, true);
    }

    /// Put the next batch into `batch`. No tape may hold what was in it.
    pub fn next(&mut self, batch: &mut Batch) {
        // Where there is no clock, as in a browser, nobody asks for a trial.
        let start = self.trial.as_ref().map(|_| Instant::now());
        let ready = self.ahead.as_ref().and_then(|ahead| ahead.full.recv().ok());
        match (ready, &self.ahead) {
            (Some(ready), Some(ahead)) => {
                let old = mem::replace(batch, ready);
                // If the thread is gone, so is the need for this batch: the next one is made here.
                let _ = ahead.empty.send(old);
            }
            _ => fill(batch, &self.cfg, &*self.task, self.seed, self.next),
        }
        self.next += 1;
        if let Some(start) = start {
            self.count(start.elapsed());
        }
    }

    /// There is a core to spare: if making batches takes long enough, leave it to a thread from now on.
    pub fn ahead_if_it_pays(&mut self) {
        self.trial = (!self.waits).then(|| Trial { since: Instant::now(), making: Duration::ZERO, left: TRIAL });
    }

    /// Leave making batches to a thread from now on.
    pub fn ahead(&mut self) {
        if self.waits {
            return;
        }
        let (empty, to_fill) = sync_channel::<Batch>(AHEAD + 1);
        let (filled, full) = sync_channel(AHEAD + 1);
        let (cfg, task, seed, first) = (self.cfg.clone(), self.task.clone(), self.seed, self.next);
        let spawned = thread::Builder::new().spawn(move || {
            for index in first.. {
                let Ok(mut batch) = to_fill.recv() else { return };
                // Then the thread that needs the batch makes it, and reports the error.
                if within_memory(|| fill(&mut batch, &cfg, &*task, seed, index)).is_err() {
                    return;
                }
                if filled.send(batch).is_err() {
                    return;
                }
            }
        });
        if spawned.is_err() {
            return;
        }
        // The channels have room for these and the one in use, so that nobody waits to send.
        for _ in 0..AHEAD {
            let _ = empty.send(Batch::new(self.cfg.batch, self.cfg.train_len_of(&*self.task, self.next + 1)));
        }
        self.ahead = Some(Ahead { empty, full });
    }

    /// Count the time that a batch took, and decide when enough of them have been made.
    fn count(&mut self, took: Duration) {
        let Some(trial) = &mut self.trial else { return };
        trial.making += took;
        trial.left -= 1;
        if trial.left == 0 {
            let pays = trial.making.as_secs_f64() > PAYS * trial.since.elapsed().as_secs_f64();
            self.trial = None;
            if pays {
                self.ahead();
            }
        }
    }
}

/// Put batch `index` into `batch`; a curriculum changes how long its sequences are.
fn fill(batch: &mut Batch, cfg: &TrainConfig, task: &dyn Task, seed: u64, index: usize) {
    let len = cfg.train_len_of(task, index + 1);
    if len != batch.lens() {
        *batch = Batch::new(cfg.batch, len);
    }
    batch.fill(task, rng::stream(seed, "train", index as u64));
}
