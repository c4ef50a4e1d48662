//! Does a task keep what it promises?

use super::Checked;
use crate::{
    rng,
    tasks::{IGNORE, Len, Task, show},
};
use std::collections::BTreeSet;

/// Run all checks of a task at a length or a range of lengths: its options and names, its sequences and its targets.
///
/// ```
/// use tapezoo::{check, tasks::{Len, Parity}};
///
/// check::task(&Parity::default(), 16)?;
/// check::task(&Parity { num_ones: Some(3), ..Parity::default() }, Len { min: 3, max: 40 })?;
/// # Ok::<(), String>(())
/// ```
///
/// - Options and lengths are valid, and there is the data that it reads.
/// - Every token and class has a name of its own, and the task a legend.
/// - Tokens are in `0..vocab`, and targets in `0..classes` or [`IGNORE`]; one at least is a target.
/// - A seed gives the same sequences again, and another seed gives others.
/// - [`Task::label`], where there is one, gives the targets.
/// - A sample is no wider than 80 columns.
///
/// # Errors
/// When one does not hold: which, and of what.
pub fn task(task: &dyn Task, len: impl Into<Len>) -> Checked {
    let (len, name) = (len.into(), task.name());
    let of = |why: String| format!("{name} at length {len}: {why}");
    task.check().map_err(|why| format!("{name}: {why}"))?;
    if len.min == 0 {
        return Err(of("expected a length of at least 1".into()));
    }
    task.check_lens(len).map_err(of)?;
    task.check_data(len, &[len]).map_err(of)?;
    names(task)?;
    let (x, y) = batch(task, 1, 6, len);
    in_bounds(task, &x, &y).map_err(of)?;
    if batch(task, 1, 6, len) != (x.clone(), y.clone()) {
        return Err(of("the same seed gives other sequences".into()));
    }
    // A short sequence may be the same by chance, many are not.
    let [one, other] = [1, 2].map(|seed| batch(task, seed, 200, len).0);
    if one == other {
        return Err(of("another seed gives the same sequences".into()));
    }
    if y.iter().all(|&y| y == IGNORE) {
        return Err(of("there is no target".into()));
    }
    for (x, y) in x.chunks(len.max).zip(y.chunks(len.max)) {
        let text = show::sample(task, x, y, 80);
        if let Some(wide) = text.lines().find(|line| line.chars().count() > 80) {
            return Err(of(format!("a sample has a line of more than 80 columns: {wide}")));
        }
        // Of a padded sequence only the task knows the length, and of the last token of a text what follows.
        let Some(label) = task.label(x).filter(|_| len.is_one()) else { continue };
        let end = x.len().saturating_sub(1);
        let agrees = |i: usize| label[i] == y[i] || i == end && label[i] == IGNORE;
        if label.len() != y.len() || !(0..y.len()).all(agrees) {
            return Err(of(format!("{x:?} is labelled {label:?}, not {y:?}")));
        }
    }
    Ok(())
}

/// A task's title, legend, and the names of its tokens and classes.
fn names(task: &dyn Task) -> Checked {
    let (name, title) = (task.name(), task.title());
    if task.legend().is_empty() {
        return Err(format!("{name}: the legend is empty"));
    }
    if title.is_empty() || title.chars().count() >= 60 {
        return Err(format!("{name}: expected a title of 1 to 59 characters, got '{title}'"));
    }
    let tokens: Vec<String> = (0..task.vocab()).map(|id| task.token(id)).collect();
    let classes: Vec<String> = (0..task.classes()).map(|id| task.class(id)).collect();
    for (all, of) in [(tokens, "token"), (classes, "class")] {
        let mut seen = BTreeSet::from([String::new()]);
        if let Some(again) = all.into_iter().find(|one| !seen.insert(one.clone())) {
            return Err(format!("{name}: a {of} has no name of its own, but '{again}'"));
        }
    }
    Ok(())
}

/// Tokens and targets are as many as the task says.
///
/// # Errors
/// When one is not: which.
pub fn in_bounds(task: &dyn Task, x: &[i32], y: &[i32]) -> Checked {
    let outside = |n: usize| move |&&id: &&i32| !usize::try_from(id).is_ok_and(|id| id < n);
    if let Some(token) = x.iter().find(outside(task.vocab())) {
        return Err(format!("token {token}: expected 0..{}", task.vocab()));
    }
    match y.iter().filter(|&&y| y != IGNORE).find(outside(task.classes())) {
        Some(target) => Err(format!("target {target}: expected 0..{}, or {IGNORE}", task.classes())),
        None => Ok(()),
    }
}

/// The tokens and targets of `b` sequences.
pub fn batch(task: &dyn Task, seed: u64, b: usize, len: impl Into<Len>) -> (Vec<i32>, Vec<i32>) {
    let len = len.into();
    // No task writes this number, so that a position left out is outside of the bounds.
    let (mut tokens, mut targets) = (vec![-7; b * len.max], vec![-7; b * len.max]);
    task.fill_range(&mut rng::stream(seed, "train", 0), len, &mut tokens, &mut targets);
    (tokens, targets)
}
