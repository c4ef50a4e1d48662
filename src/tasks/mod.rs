//! What is learned: a task writes tokens, and a target beside each.
//!
//! To add one: a file with a struct that implements [`Task`] (its fields are its options in configuration files),
//! and its name in [`Tasks`].

mod parity;

pub use parity::Parity;

use crate::{rng::Rng, tensor::Tensor};
use serde::{Deserialize, Serialize};

/// The target of a position that counts neither in the loss nor in the accuracy.
pub const IGNORE: i32 = -100;

/// A source of sequences with a target class at every position.
pub trait Task: Send + Sync {
    /// The name in flags, files and tables.
    fn name(&self) -> &'static str;
    /// How many different tokens there are: tokens are `0..vocab`.
    fn vocab(&self) -> usize;
    /// How many different targets there are: targets are `0..classes`, or [`IGNORE`].
    fn classes(&self) -> usize;
    /// A name for these options, for the line below a table: "parity with 12 ones".
    fn title(&self) -> String {
        self.name().into()
    }

    /// Whether sequences of this length exist.
    ///
    /// # Errors
    /// A sentence with the length, and which ones do exist.
    fn check_len(&self, _len: usize) -> Result<(), String> {
        Ok(())
    }

    /// Write a batch: `tokens` and `targets` are `[batch, len]`, row-major, old contents in them.
    ///
    /// Everything random comes from `rng`. A task whose sequences are shorter than `len` pads them with any token
    /// and the target [`IGNORE`].
    fn fill(&self, rng: &mut Rng, len: usize, tokens: &mut [i32], targets: &mut [i32]);
}

/// All tasks; in a configuration file, `task.name` picks one, and the other keys of `[task]` are its fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "lowercase")]
pub enum Tasks {
    /// The parity of a string of bits.
    Parity(Parity),
}

impl std::ops::Deref for Tasks {
    type Target = dyn Task;
    fn deref(&self) -> &(dyn Task + 'static) {
        match self {
            Tasks::Parity(task) => task,
        }
    }
}

/// Tokens and targets, `[batch, len]` each, refilled in place at every step.
pub struct Batch {
    /// What the model reads.
    pub tokens: Tensor,
    /// What it should say at each position.
    pub targets: Tensor,
    len: usize,
}

impl Batch {
    /// Room for `batch` sequences of `len` tokens.
    pub fn new(batch: usize, len: usize) -> Batch {
        let zeros = || Tensor::from_vec(vec![0i32; batch * len], [batch, len]);
        Batch { tokens: zeros(), targets: zeros(), len }
    }

    /// The next sequences of `rng`.
    ///
    /// # Panics
    /// When a tape still holds the old ones.
    pub fn fill(&mut self, task: &dyn Task, mut rng: Rng) {
        task.fill(&mut rng, self.len, self.tokens.host_mut(), self.targets.host_mut());
    }
}
