//! Mixers that a program adds to those of this crate.

use super::{ALL, About, Build, UNKNOWN};
use std::sync::{PoisonError, RwLock};

/// A mixer by name, with its facts.
pub(super) type Named = (&'static str, Build, &'static About);

/// The facts of one: it has none that this crate knows.
const FACTS: About = About { line: "of this program", ..UNKNOWN };

static OWN: RwLock<Vec<Named>> = RwLock::new(vec![]);

/// Add a mixer of your own by name: configurations, [`Model::new`](super::Model::new) and the program
/// ([`crate::cli::tapezoo()`]) then take it as one of this crate. It belongs at the beginning of `main`.
///
/// ```
/// use tapezoo::{models::{self, gla}, train::{Trainer, config::TrainConfig}};
///
/// models::add("mine", |c, init| Ok(Box::new(gla::Layer::new(c, init)?)));
/// let settings: TrainConfig = "models = [\"mine\", \"lstm\"]\nbatch = 8".parse()?;
/// let loss = Trainer::new(&settings.for_model("mine")?, 0)?.step()?.loss;
/// # assert!(loss.is_finite());
/// # Ok::<(), tapezoo::error::Error>(())
/// ```
///
/// # Panics
/// When there is a mixer of this name, or the name is not of letters, digits, `_` and `-`, as names of files are.
#[track_caller]
pub fn add(name: &'static str, build: Build) {
    let of_a_file = |c: char| c.is_alphanumeric() || "_-".contains(c);
    assert!(!name.is_empty() && name.chars().all(of_a_file), "mixer '{name}': expected letters, digits, '_' and '-'");
    assert!(all().iter().all(|m| m.0 != name), "mixer '{name}': there is one of this name");
    OWN.write().unwrap_or_else(PoisonError::into_inner).push((name, build, &FACTS));
}

/// The mixers of this crate, and behind them those that were added.
pub(super) fn all() -> Vec<Named> {
    let own = OWN.read().unwrap_or_else(PoisonError::into_inner);
    ALL.iter().chain(own.iter()).copied().collect()
}
