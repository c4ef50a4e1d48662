//! The figures of a section: scores over evaluation length, the loss and each score over training.

use super::{
    load::Run,
    plot::{Figure, Line, Point},
    scale::{Axis, Scale, short},
    section::{Section, Series, slug},
};
use crate::{
    tasks::{BITS, Language, Len, Moves, Tasks},
    train::table::{fraction, mean, number},
};
use std::collections::{BTreeMap, BTreeSet};

/// The most points of a curve: where there are more, each is the mean of several.
const MOST_POINTS: usize = 400;

/// The figures of a section.
#[derive(Default)]
pub struct Figures {
    /// Each score at the end, over evaluation length; none where there is one length.
    pub over_length: Vec<Figure>,
    /// The loss over training steps.
    pub loss: Option<Figure>,
    /// How many recorded steps a point of the loss is the mean of.
    pub loss_window: usize,
    /// For each score, over training steps, one figure a length; none where only the end was evaluated.
    pub over_steps: Vec<(String, Vec<Figure>)>,
}

impl Figures {
    /// Every figure.
    pub fn all(&self) -> impl Iterator<Item = &Figure> {
        self.over_length.iter().chain(&self.loss).chain(self.over_steps.iter().flat_map(|s| &s.1))
    }
}

/// Draw a section.
pub fn figures(section: &Section) -> Figures {
    let (lens, scores) = (section.lens(), section.scores());
    let mut figures = Figures::default();
    if lens.len() > 1 {
        figures.over_length = scores.iter().filter_map(|score| over_length(section, score, &lens)).collect();
    }
    (figures.loss, figures.loss_window) = loss(section);
    for score in &scores {
        let curves: Vec<Figure> = lens.iter().filter_map(|&len| over_steps(section, score, len)).collect();
        if !curves.is_empty() {
            figures.over_steps.push((score.clone(), on_one_scale(curves)));
        }
    }
    figures
}

/// The score of guessing, where it does not depend on the way of guessing.
pub(super) fn guess(task: Option<&Tasks>, score: &str) -> Option<f64> {
    match (task?, score) {
        (Tasks::Parity(task), "accuracy") if task.num_ones.is_none() && task.modulus == 2 => Some(0.5),
        (Tasks::Disjoint(_), "accuracy") => Some(0.5),
        (Tasks::Window(task), "accuracy" | "largest") if !task.uneven => Some(0.5),
        // Of products 0 is the most frequent, which a constant answer uses; where a sum is the answer, only of short ones.
        (Tasks::Arithmetic(task), "scaled") if !task.mult => Some(0.0),
        (Tasks::Arithmetic(task), "accuracy") if !task.mult => {
            Some(if task.language == Language::Parity { 0.5 } else { 0.2 })
        }
        // Any element is as likely as another once every one can be a move.
        (task @ Tasks::Group(group), "accuracy") if group.moves == Moves::All => Some(1.0 / task.classes() as f64),
        _ => None,
    }
}

fn over_length(section: &Section, score: &str, lens: &[Len]) -> Option<Figure> {
    // Ranges have no one place on a scale of lengths; side by side they do.
    let in_a_row = lens.iter().any(|len| !len.is_one());
    let place = |len: Len| {
        let i = lens.iter().position(|l| *l == len)?;
        Some(if in_a_row { i as f64 } else { len.max as f64 })
    };
    let line = |s: &Series| {
        let point = |&len: &Len| {
            let values = s.ends(score, len);
            let about = |said: String| format!("{} at length {len}: {score} {said}", s.label);
            summary(place(len)?, &values, text_of(score), about)
        };
        Line { label: s.label.clone(), style: s.style, points: lens.iter().filter_map(point).collect() }
    };
    let lines = some(section.series.iter().map(line));
    let ticks: Vec<(f64, String)> = lens.iter().filter_map(|&len| Some((place(len)?, len.to_string()))).collect();
    let (first, last) = (ticks.first()?.0, ticks.last()?.0);
    let x = if in_a_row {
        Axis { scale: Scale::Linear, lo: first - 0.3, hi: last + 0.3, ticks }
    } else {
        Axis { scale: Scale::Log, lo: first, hi: last, ticks }
    };
    let guess = guess(section.task.as_ref(), score);
    (!lines.is_empty()).then(|| Figure {
        name: format!("{}-{}", section.slug, slug(score)),
        title: format!("{} over evaluation length", capital(score)),
        x_label: if in_a_row { "evaluation length" } else { "evaluation length (log scale)" }.into(),
        x,
        y: score_axis(score, &lines, guess),
        guess,
        trained: section.train_len.and_then(place),
        lines,
    })
}

fn loss(section: &Section) -> (Option<Figure>, usize) {
    let line = |s: &Series| curve(s, |r| r.loss.clone(), short, "loss");
    let mut lines = some(section.series.iter().map(line));
    let most = lines.iter().map(|l| l.points.len()).max().unwrap_or(0);
    let window = most.div_ceil(MOST_POINTS).max(1);
    lines.iter_mut().filter(|_| window > 1).for_each(|l| l.points = thin(&l.points, window, &l.label));
    let Some((lo, hi)) = extent(&lines).filter(|_| most > 1) else { return (None, window) };
    let lo_log = lines.iter().flat_map(|l| &l.points).map(|p| p.lo).filter(|&x| x > 0.0).fold(hi, f64::min);
    let log = hi > 20.0 * lo.max(f64::MIN_POSITIVE) && lo_log < hi;
    let y = if log { Axis::log(lo_log / 1.15, hi * 1.15) } else { Axis::linear(lo.min(0.0), hi * 1.03, 5) };
    let figure = Figure {
        name: format!("{}-loss", section.slug),
        title: format!("Training loss in nats{}", if log { " (log scale)" } else { "" }),
        x_label: "training step".into(),
        x: step_axis(&lines),
        y,
        guess: None,
        trained: None,
        lines,
    };
    (Some(figure), window)
}

fn over_steps(section: &Section, score: &str, len: Len) -> Option<Figure> {
    let of = |r: &Run| -> BTreeMap<usize, f64> {
        r.evaluations.iter().filter_map(|(&step, m)| Some((step, *m.get(score)?.get(&len)?))).collect()
    };
    let what = format!("{score} at length {len}");
    let lines = some(section.series.iter().map(|s| curve(s, of, text_of(score), &what)));
    let guess = guess(section.task.as_ref(), score);
    lines.iter().any(|l| l.points.len() > 1).then(|| Figure {
        name: format!("{}-{}-at-{len}", section.slug, slug(score)),
        title: format!("{} at length {len}", capital(score)),
        x_label: "training step".into(),
        x: step_axis(&lines),
        y: score_axis(score, &lines, guess),
        guess,
        trained: None,
        lines,
    })
}

/// Figures beside each other are compared, so they share their axes.
fn on_one_scale(mut figures: Vec<Figure>) -> Vec<Figure> {
    let lo = figures.iter().map(|f| f.y.lo).fold(f64::INFINITY, f64::min);
    let top = figures.iter().map(|f| f.y.hi).fold(f64::NEG_INFINITY, f64::max);
    let hi = figures.iter().map(|f| f.x.hi).fold(0.0, f64::max);
    let longest = figures.iter().find(|f| f.x.hi == hi).map(|f| f.x.clone());
    for figure in &mut figures {
        figure.y = Axis::linear(lo, top, 6);
        longest.iter().for_each(|x| figure.x = x.clone());
    }
    figures
}

/// A number over steps: at each step, over the seeds that recorded it.
fn curve(s: &Series, of: impl Fn(&Run) -> BTreeMap<usize, f64>, text: fn(f64) -> String, what: &str) -> Line {
    let runs: Vec<BTreeMap<usize, f64>> = s.runs.iter().map(|r| of(&r.0)).collect();
    let steps: BTreeSet<usize> = runs.iter().flat_map(|r| r.keys().copied()).collect();
    let point = |&step: &usize| {
        let values: Vec<f64> = runs.iter().filter_map(|r| r.get(&step).copied()).collect();
        summary(step as f64, &values, text, |said| format!("{} at step {step}: {what} {said}", s.label))
    };
    Line { label: s.label.clone(), style: s.style, points: steps.iter().filter_map(point).collect() }
}

/// The point of these seeds; none of no seed.
pub(super) fn summary(
    x: f64,
    values: &[f64],
    text: fn(f64) -> String,
    about: impl Fn(String) -> String,
) -> Option<Point> {
    let mean = mean(values)?;
    let (lo, hi) = values.iter().fold((mean, mean), |(lo, hi), &v| (lo.min(v), hi.max(v)));
    let said = match values.len() {
        1 => text(mean),
        n => format!("{} ({} to {} over {n} seeds)", text(mean), text(lo), text(hi)),
    };
    Some(Point { x, mean, lo, hi, about: about(said) })
}

/// The means of `window` points each, at the last of them.
fn thin(points: &[Point], window: usize, label: &str) -> Vec<Point> {
    let merged = |of: &[Point]| {
        let mean = mean(&of.iter().map(|p| p.mean).collect::<Vec<_>>())?;
        let (lo, hi) = of.iter().fold((mean, mean), |(lo, hi), p| (lo.min(p.lo), hi.max(p.hi)));
        let (first, last) = (of.first()?.x, of.last()?.x);
        let about =
            format!("{label} at steps {first} to {last}: loss {} ({} to {})", short(mean), short(lo), short(hi));
        Some(Point { x: last, mean, lo, hi, about })
    };
    points.chunks(window).filter_map(merged).collect()
}

/// How a score is written.
pub(super) fn text_of(score: &str) -> fn(f64) -> String {
    if score == BITS { |x| number(Some(BITS), x) } else { fraction }
}

/// A score is a share: the axis goes up to 1, and down to what there is. Bits have an axis from 0.
pub(super) fn score_axis(score: &str, lines: &[Line], guess: Option<f64>) -> Axis {
    if score == BITS {
        return Axis::linear(0.0, extent(lines).map_or(1.0, |(_, hi)| hi * 1.03).max(0.1), 6);
    }
    let (lo, hi) = extent(lines).unwrap_or((0.0, 1.0));
    let lo = guess.map_or(lo, |g| lo.min(g)).min(0.9);
    let floor = if lo < 0.0 { lo - 0.03 } else { (lo - 0.03).max(-0.01) };
    // Below the line of guessing there is room for its name.
    let floor = guess.map_or(floor, |g| floor.min(g - 0.13 * (1.0 - g)));
    Axis::linear(floor, hi.max(1.0) + 0.01, 6)
}

fn step_axis(lines: &[Line]) -> Axis {
    let last = lines.iter().filter_map(|l| l.points.last()).map(|p| p.x).fold(1.0, f64::max);
    Axis::linear(0.0, last, 6)
}

fn extent(lines: &[Line]) -> Option<(f64, f64)> {
    let points = || lines.iter().flat_map(|l| &l.points);
    points().next()?;
    Some((
        points().map(|p| p.lo).fold(f64::INFINITY, f64::min),
        points().map(|p| p.hi).fold(f64::NEG_INFINITY, f64::max),
    ))
}

/// The lines that have a point.
pub(super) fn some(lines: impl Iterator<Item = Line>) -> Vec<Line> {
    lines.filter(|l| !l.points.is_empty()).collect()
}

/// The text with a capital first letter.
pub fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let text: String = letters.next().map_or(String::new(), |c| c.to_uppercase().chain(letters).collect());
    text.replace('_', " ")
}
