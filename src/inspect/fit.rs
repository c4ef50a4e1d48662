//! How the tensors fit on a page: in 16 bits where 32 are too many, and if that is not enough, with only the first
//! heads, columns or channels. Equations that sum over one of these would not be complete, so that such an axis stays whole.

use super::{
    Inspection,
    trace::{Series, Trace},
    view::{self, View},
};

/// Bytes of tensors that a page may have, about; with the rest the page stays below 5 MB.
const BUDGET: usize = 4_200_000;

/// The axes that are cut, by letter (see [`view::Quantity::axes`]) and in this order, and their names.
const CUT: [(char, &str); 3] = [('h', "head"), ('j', "column"), ('d', "channel")];

/// The part of a trace that the page has.
#[derive(Default)]
pub struct Fit {
    /// Tensors with this many elements or more are written in 16 bits; 0: none are.
    halves: usize,
    /// How many indices of an axis are kept, by letter.
    keep: Vec<(char, usize)>,
}

impl Fit {
    /// The largest part of all runs that fits.
    pub fn of(i: &Inspection) -> Fit {
        let tensors: Vec<(&str, &Series)> =
            (i.runs.iter()).flat_map(|(source, trace)| named(trace, view::of(&source.model.config().mixer))).collect();
        let mut fit = Fit::default();
        let sizes = |fit: &Fit| -> Vec<usize> {
            let steps = |s: &Series| s.data.len() / s.width().max(1);
            tensors.iter().map(|(axes, s)| steps(s) * fit.shape(axes, s).iter().product::<usize>()).collect()
        };
        let fits = |fit: &Fit| sizes(fit).iter().sum::<usize>() * 8 / 3 <= BUDGET;
        // The gates of cells sum over all units of the step before, if the page has their weights.
        let sums = i.runs.iter().any(|(source, trace)| {
            let view = view::of(&source.model.config().mixer);
            !trace.weights.is_empty() && view.is_some_and(|view| view.equations.iter().any(|e| e.1.contains("[d=u]")))
        });
        for (letter, _) in CUT.into_iter().filter(|cut| !(sums && cut.0 == 'd')) {
            let most = tensors.iter().filter_map(|(axes, s)| extent(letter, axes, s)).max().unwrap_or(0);
            for n in (1..most).rev() {
                if fits(&fit) {
                    break;
                }
                fit.keep.retain(|k| k.0 != letter);
                fit.keep.push((letter, n));
            }
        }
        fit.halves = halves(sizes(&fit));
        fit
    }

    fn shape(&self, axes: &str, series: &Series) -> Vec<usize> {
        let kept = |letter: char| self.keep.iter().find(|k| k.0 == letter).map_or(usize::MAX, |k| k.1);
        let letters = axes.chars().map(Some).chain(std::iter::repeat(None));
        series.shape.iter().zip(letters).map(|(&n, letter)| n.min(letter.map_or(n, kept))).collect()
    }

    /// The part of a tensor that is kept.
    pub fn cut(&self, axes: &str, series: &Series) -> Series {
        let shape = self.shape(axes, series);
        let kept = |mut at: usize| {
            series.shape.iter().zip(&shape).rev().all(|(&n, &keep)| {
                let x = at % n;
                at /= n;
                x < keep
            })
        };
        let data = series.data.iter().enumerate().filter(|(i, _)| kept(*i)).map(|(_, &x)| x).collect();
        Series { shape, data }
    }

    /// Whether a tensor of this many elements is written in 16 bits.
    pub fn is_half(&self, numbers: usize) -> bool {
        self.halves > 0 && numbers >= self.halves
    }

    /// A sentence about the part of a run that the page has; empty if it has all.
    pub fn about(&self, trace: &Trace, view: Option<&View>) -> String {
        let cut = |&(letter, n): &(char, usize)| {
            let most = named(trace, view).filter_map(|(axes, s)| extent(letter, axes, s)).max()?;
            let what = CUT.iter().find(|c| c.0 == letter)?.1;
            let those = if n == 1 { format!("{what} 1") } else { format!("{what}s 1 to {n}") };
            (n < most).then(|| format!("{those} of {most}"))
        };
        let cuts: Vec<String> = self.keep.iter().filter_map(cut).collect();
        if cuts.is_empty() {
            return String::new();
        }
        format!(" So that it opens quickly, this page has only {}; the files of --json have all.", cuts.join(", "))
    }
}

/// The letters of a tensor's axes; empty for a mixer without a view.
pub fn axes(view: Option<&View>, name: &str) -> &'static str {
    match view {
        Some(view) if name.contains("eigenvalue") => view.axes(name).unwrap_or("hm"),
        Some(view) => view.axes(name).unwrap_or(""),
        None => "",
    }
}

fn named<'a>(trace: &'a Trace, view: Option<&'a View>) -> impl Iterator<Item = (&'static str, &'a Series)> {
    trace.layers.iter().flatten().map(move |(name, series)| (axes(view, name), series))
}

/// The size of a tensor's axis with this letter.
fn extent(letter: char, axes: &str, series: &Series) -> Option<usize> {
    axes.chars().position(|l| l == letter).and_then(|at| series.shape.get(at)).copied()
}

/// The size from which tensors must be written in 16 bits for all to fit in the budget; 0: none need be.
fn halves(mut sizes: Vec<usize>) -> usize {
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let mut bytes: usize = sizes.iter().map(|n| n * 16 / 3).sum();
    let mut least = 0;
    for n in sizes {
        if bytes <= BUDGET {
            break;
        }
        bytes -= n * 8 / 3;
        least = n;
    }
    least
}
