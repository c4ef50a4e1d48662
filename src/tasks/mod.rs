//! Tasks: each writes tokens, and a target for each token.
//!
//! To add one: a file with a struct that implements [`Task`] (its fields are its options in configuration files), its
//! `mod` and `pub use`, and a line in the list `tasks!` below. `--task` then takes the name, with the first preset that
//! has this task, or with the default preset; and a test of all tasks covers it. A task of your own crate needs no
//! place here: [`Trainer::with`](crate::train::Trainer::with) trains on it, and [`add`] gives it a name for
//! configurations and the program.

mod arithmetic;
mod batch;
mod counts;
mod disjoint;
mod dyck;
mod group;
mod icll;
mod len;
mod mqar;
#[doc(hidden)]
pub mod numpy;
mod own;
mod parity;
#[doc(hidden)]
pub mod show;
mod text;
mod window;

pub use arithmetic::{Arithmetic, Language};
pub use batch::Batch;
pub use counts::Counts;
pub use disjoint::{Disjoint, First};
pub use dyck::Dyck;
pub use group::{Group, GroupName, Moves};
pub use icll::{Automaton, Icll};
pub use len::Len;
pub use mqar::{Layout, Mqar};
pub use own::{Own, add};
pub use parity::Parity;
pub use text::Text;
pub use window::{Question, Window};

use crate::rng::Rng;
use rand::RngExt;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::sync::Arc;

/// Marks a position without a target: it counts neither in the loss nor in the accuracy.
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

    /// The meaning of the targets, in a few words.
    fn legend(&self) -> String;
    /// A token as a person would write it.
    fn token(&self, id: usize) -> String {
        id.to_string()
    }
    /// A target as a person would write it.
    fn class(&self, id: usize) -> String {
        id.to_string()
    }

    /// Whether the options are valid.
    ///
    /// # Errors
    /// A sentence with the option that is not valid, and what was expected.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// Whether sequences of this length exist.
    ///
    /// # Errors
    /// A sentence that says which lengths exist, and what else can be changed.
    fn check_len(&self, _len: usize) -> Result<(), String> {
        Ok(())
    }

    /// `(step, rest)`: the lengths that exist have this remainder when divided by the step. A range leaves out the
    /// others.
    fn grid(&self) -> (usize, usize) {
        (1, 0)
    }

    /// Whether sequences of all lengths of a range exist that are on the [grid](Task::grid).
    ///
    /// # Errors
    /// As [`Task::check_len`].
    fn check_lens(&self, len: Len) -> Result<(), String> {
        // Most tasks limit the shortest or the longest length alone, so the two ends suffice.
        let (shortest, longest) = self.ends(len).unwrap_or((len.max, len.max));
        let named = |t: usize| move |why| if len.is_one() { why } else { format!("length {t}: {why}") };
        self.check_len(longest).map_err(named(longest))?;
        self.check_len(shortest).map_err(named(shortest))
    }

    /// Whether there is what the task reads, and enough of it for sequences of these lengths.
    ///
    /// # Errors
    /// A sentence that says what is missing.
    fn check_data(&self, _train: Len, _evaluation: &[Len]) -> Result<(), String> {
        Ok(())
    }

    /// The stages of a curriculum, of which the last is this task; none: it is trained on from the start.
    fn stages(&self) -> Option<Stages> {
        None
    }

    /// The task that writes the sequences of an evaluation; this one if `None`.
    fn to_evaluate(&self) -> Option<Box<dyn Task>> {
        None
    }

    /// The shortest and the longest of these lengths that are on the [grid](Task::grid), if there are any.
    fn ends(&self, len: Len) -> Option<(usize, usize)> {
        let (step, rest) = self.grid();
        let on = |t: &usize| t % step == rest;
        Some(((len.min..=len.max).find(on)?, (len.min..=len.max).rev().find(on)?))
    }

    /// The lengths of a range that exist.
    fn existing(&self, len: Len) -> Vec<usize> {
        (len.min..=len.max).filter(|&t| self.check_len(t).is_ok()).collect()
    }

    /// Options that change nothing, or leave nothing to learn, at these lengths (the first is the training length): the
    /// name of each, and the rest of a sentence that begins with it.
    fn without_effect(&self, _lens: &[Len]) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// Write a batch: `tokens` and `targets` are `[batch, len]`, row-major, and hold old contents.
    ///
    /// Everything random comes from `rng`. A task whose sequences are shorter than `len` pads them with any token
    /// and the target [`IGNORE`].
    fn fill(&self, rng: &mut Rng, len: usize, tokens: &mut [i32], targets: &mut [i32]);

    /// Write a batch `[batch, len.max]` of sequences of several lengths, uniform over the lengths of the range that
    /// exist; the rest of each row is padding.
    fn fill_range(&self, rng: &mut Rng, len: Len, tokens: &mut [i32], targets: &mut [i32]) {
        if len.is_one() {
            return self.fill(rng, len.max, tokens, targets);
        }
        let lens = self.existing(len);
        for (x, y) in tokens.chunks_exact_mut(len.max).zip(targets.chunks_exact_mut(len.max)) {
            let t = lens[rng.random_range(0..lens.len())];
            let ((x, rest), (y, ignored)) = (x.split_at_mut(t), y.split_at_mut(t));
            self.fill(rng, t, x, y);
            rest.fill(0);
            ignored.fill(IGNORE);
        }
    }

    /// The tokens of a text; `None` if it is to be read as [`Task::token`] writes them.
    fn read(&self, _text: &str) -> Option<Vec<i32>> {
        None
    }

    /// The targets of a given sequence; `None` if only [`Task::fill`] knows them.
    fn label(&self, _tokens: &[i32]) -> Option<Vec<i32>> {
        None
    }

    /// The probability of each class at every position `[batch, len.max, classes]` of the sequences that
    /// [`Task::fill_range`] writes from the same `rng`, zeros where there is no target; none where a target is certain.
    /// An evaluation then counts a class as right that is possible, and [`Counts::distance`].
    fn truth(&self, _rng: &mut Rng, _len: Len, _batch: usize) -> Option<Vec<f32>> {
        None
    }

    /// Whether an evaluation counts [`Counts::bits`].
    fn counts_bits(&self) -> bool {
        false
    }

    /// The metrics of this task besides the accuracy, with short names. More is better, but of [`BITS`] and [`TVD`]. Those of
    /// this crate are from 0 to 1, but for [`BITS`] and, from −1, "scaled"; those of a task of one's own are finite.
    fn metrics(&self, _counts: &Counts) -> Vec<(&'static str, f64)> {
        Vec::new()
    }
}

/// A curriculum: a run begins with the first task, and may go on to the next one every so many steps.
#[derive(Clone)]
pub struct Stages {
    /// One task a stage, all with the same tokens and classes; there is one at least.
    pub tasks: Vec<Arc<dyn Task>>,
    /// After how many steps it may go on, and again after as many; at least 1.
    pub every: usize,
    /// It goes on if the accuracy of a stage, and its other metrics of which more is better, are above this; 0: whatever
    /// they are.
    pub accuracy: f64,
}

impl Stages {
    /// Whether who answered so at a stage may go on.
    pub fn passes(&self, stage: usize, counts: &Counts) -> bool {
        let metrics = self.tasks[stage].metrics(counts).into_iter().filter(|(name, _)| !less_is_better(name));
        self.accuracy <= 0.0 || metrics.map(|(_, x)| x).chain([counts.accuracy()]).all(|x| x > self.accuracy)
    }
}

/// The loss in bits of each target, of which less is better.
pub const BITS: &str = "bits_per_byte";

/// The total variation distance of the model's probabilities from the true ones, of which less is better.
pub const TVD: &str = "tvd";

/// Whether less of this score is better.
pub(crate) fn less_is_better(score: &str) -> bool {
    [BITS, TVD].contains(&score)
}

/// Whether the accuracy, or what else a task is judged by, can be this number. One in which guessing is 0 can be below.
pub(crate) fn is_score(name: &str, x: f64) -> bool {
    match name {
        "scaled" => (-1.0..=1.0).contains(&x),
        BITS => (0.0..=counts::MOST_BITS).contains(&x),
        "accuracy" | "precision" | "recall" | "sequences" | "largest" | TVD => (0.0..=1.0).contains(&x),
        // Of a task of one's own.
        _ => x.is_finite(),
    }
}

impl Tasks {
    /// See that there is what the task reads, and record which it was.
    ///
    /// # Errors
    /// As [`Task::check_data`].
    pub fn load(&mut self, train: Len, evaluation: &[Len]) -> Result<(), String> {
        self.check_data(train, evaluation)?;
        if let Tasks::Text(text) = self {
            text.checksum = Some(text.read_checksum()?);
        }
        Ok(())
    }
}

/// A task by the name that `--task` takes.
#[derive(Clone, Copy, Debug)]
pub struct Named {
    /// The name.
    pub name: &'static str,
    /// The name of the kind of task, as configurations have it.
    pub kind: &'static str,
    /// The option of that kind which the name stands for, and its value.
    pub option: Option<(&'static str, &'static str)>,
}

macro_rules! tasks {
    ($($kind:literal = $Task:ident $(by $option:ident: $($name:literal = $value:literal)+)?;)*) => {
        /// All tasks; in a configuration file, `task.name` picks one, and the other keys of `[task]` are its fields.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "name", remote = "Self")]
        pub enum Tasks {
            $(#[doc = concat!("[`", stringify!($Task), "`].")] #[serde(rename = $kind)] $Task($Task),)*
            /// A task that was [added](add).
            #[serde(skip)]
            Own(Own),
        }

        impl Tasks {
            /// The task alone, for a [`Trainer`](crate::train::Trainer).
            pub fn shared(&self) -> Arc<dyn Task> {
                match self {
                    $(Tasks::$Task(task) => Arc::new(task.clone()),)*
                    Tasks::Own(own) => own.task.clone(),
                }
            }
        }

        impl std::ops::Deref for Tasks {
            type Target = dyn Task;
            fn deref(&self) -> &(dyn Task + 'static) {
                match self {
                    $(Tasks::$Task(task) => task,)*
                    Tasks::Own(own) => &*own.task,
                }
            }
        }

        /// The kinds, each with the names that stand for one of its options: the name, the option and its value.
        const KINDS: &[(&str, &[[&str; 3]])] =
            &[$(($kind, &[$($([$name, stringify!($option), $value]),+)?])),*];
    };
}

// A kind of task, or `by` an option of it several tasks with names of their own.
tasks! {
    "parity" = Parity;
    "dyck" = Dyck;
    "mqar" = Mqar;
    "disjoint" = Disjoint;
    "text" = Text;
    "icll" = Icll;
    "window" = Window by question: "window_parity" = "parity" "delayed_match" = "match";
    "group" = Group by group: "s3" = "s3" "s4" = "s4" "s5" = "s5" "a5" = "a5" "z60" = "z60" "a4xz5" = "a4xz5";
    "arithmetic" = Arithmetic by language:
        "last_parity" = "parity"
        "modular_arithmetic" = "modular_arithmetic"
        "modular_arithmetic_with_brackets" = "modular_arithmetic_with_brackets";
}

impl Serialize for Tasks {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if let Tasks::Own(own) = self { own.serialize(s) } else { Tasks::serialize(self, s) }
    }
}

impl<'de> Deserialize<'de> for Tasks {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Tasks, D::Error> {
        if own::names().is_empty() {
            return Tasks::deserialize(d);
        }
        let options = toml::Table::deserialize(d)?;
        match Own::read(&options).map_err(de::Error::custom)? {
            Some(own) => Ok(Tasks::Own(own)),
            None => Tasks::deserialize(options).map_err(de::Error::custom),
        }
    }
}

/// Every task that has a name.
pub fn named() -> Vec<Named> {
    let of_kind = |&(kind, options): &(&'static str, &'static [[&'static str; 3]])| {
        let whole = options.is_empty().then_some(Named { name: kind, kind, option: None });
        let parts = options.iter().map(move |&[name, key, value]| Named { name, kind, option: Some((key, value)) });
        whole.into_iter().chain(parts)
    };
    let own = own::names().into_iter().map(|name| Named { name, kind: name, option: None });
    KINDS.iter().flat_map(of_kind).chain(own).collect()
}
