//! Tasks that a program adds to those of this crate.

use super::{KINDS, Task};
use serde::{Serialize, Serializer, de::DeserializeOwned};
use std::sync::{Arc, PoisonError, RwLock};
use toml::Table;

/// From options to a task.
type Read = fn(Table) -> Result<Arc<dyn Task>, toml::de::Error>;

static OWN: RwLock<Vec<(&'static str, Read)>> = RwLock::new(vec![]);

/// Add a task of your own by its name, the one that [`Task::name`] gives: `--task` and configurations then take it as one
/// of this crate, with the default preset. Its fields are its options, keys of `[task]` in a configuration file; one
/// without `#[serde(default)]` must be set there. It belongs at the beginning of `main`.
///
/// ```
/// use tapezoo::{rng::Rng, tasks::{self, Task}, train::{Trainer, config::TrainConfig}};
///
/// /// Repeat the token that was so many steps ago.
/// #[derive(serde::Deserialize)]
/// #[serde(deny_unknown_fields)]
/// struct Delay { steps: usize }
///
/// impl Task for Delay {
///     fn name(&self) -> &'static str { "delay" }
///     fn vocab(&self) -> usize { 2 }
///     fn classes(&self) -> usize { 2 }
///     fn legend(&self) -> String { format!("the bit {} steps ago", self.steps) }
///     fn fill(&self, rng: &mut Rng, len: usize, tokens: &mut [i32], targets: &mut [i32]) {
///         use rand::RngExt;
///         for (x, y) in tokens.chunks_mut(len).zip(targets.chunks_mut(len)) {
///             x.fill_with(|| rng.random_range(0..2));
///             for t in 0..len {
///                 y[t] = if t < self.steps { tasks::IGNORE } else { x[t - self.steps] };
///             }
///         }
///     }
/// }
///
/// tasks::add::<Delay>("delay");
/// let settings: TrainConfig = "batch = 8\n[task]\nname = \"delay\"\nsteps = 3".parse()?;
/// let loss = Trainer::new(&settings.for_model("lstm")?, 0)?.step()?.loss;
/// # assert!(loss.is_finite());
/// # assert_eq!(settings.to_toml()?.parse::<TrainConfig>()?, settings);
/// # Ok::<(), tapezoo::error::Error>(())
/// ```
///
/// # Panics
/// When there is a task of this name.
#[track_caller]
pub fn add<T: Task + DeserializeOwned + 'static>(name: &'static str) {
    let there = super::named().iter().any(|task| task.name == name) || KINDS.iter().any(|kind| kind.0 == name);
    assert!(!there, "task '{name}': there is one of this name");
    let read: Read = |options| Ok(Arc::new(options.try_into::<T>()?));
    OWN.write().unwrap_or_else(PoisonError::into_inner).push((name, read));
}

/// The names of the tasks that were added.
pub(super) fn names() -> Vec<&'static str> {
    OWN.read().unwrap_or_else(PoisonError::into_inner).iter().map(|own| own.0).collect()
}

/// A task that was added, with its options.
#[derive(Clone)]
pub struct Own {
    /// As a configuration has them, the name among them.
    options: Table,
    pub(super) task: Arc<dyn Task>,
}

impl Own {
    /// The task of a configuration's `[task]`; none if its name is not of one that was added.
    ///
    /// # Errors
    /// When an option is missing, unknown or not valid.
    pub(super) fn read(options: &Table) -> Result<Option<Own>, String> {
        let name = options.get("name").and_then(toml::Value::as_str).unwrap_or_default();
        let own = OWN.read().unwrap_or_else(PoisonError::into_inner);
        let Some(&(name, read)) = own.iter().find(|own| own.0 == name) else { return Ok(None) };
        let mut fields = options.clone();
        fields.remove("name");
        let task = read(fields).map_err(|e| refused(name, &e))?;
        match task.name() == name {
            true => Ok(Some(Own { options: options.clone(), task })),
            false => Err(format!("the task '{name}' gives itself the name '{}'", task.name())),
        }
    }
}

/// Why a task cannot be made of the options of a configuration.
fn refused(name: &str, e: &toml::de::Error) -> String {
    let missing = e.message().strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'));
    missing.map_or_else(
        || e.to_string().trim_end().to_string(),
        |option| {
            format!(
                "the task '{name}' needs its option '{option}': set '{option}' under [task] in a file for --config, or \
                 give the field a default in the task's source, with #[serde(default)]"
            )
        },
    )
}

impl std::fmt::Debug for Own {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        self.options.fmt(f)
    }
}

impl PartialEq for Own {
    fn eq(&self, other: &Own) -> bool {
        self.options == other.options
    }
}

impl Serialize for Own {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.options.serialize(s)
    }
}
