//! How the numbers fit on a page: in 16 bits where 32 are too many, and where that does not do, those of the first heads,
//! columns or channels alone. No equation of a view sums over one of these, so that what is left is whole.

use super::{
    Inspection,
    trace::{Series, Trace},
    view::{self, View},
};

/// About how many bytes of numbers a page may have: with what is around them it stays below 5 MB.
const BUDGET: usize = 4_200_000;

/// Which letters (see [`view::Quantity::axes`]) are cut, in this order, and what they count.
const CUT: [(char, &str); 3] = [('h', "head"), ('j', "column"), ('d', "channel")];

/// What is kept of a trace.
#[derive(Default)]
pub struct Fit {
    /// From how many numbers on a tensor is written in 16 bits; 0: none is.
    halves: usize,
    /// How many indices of a letter are kept.
    keep: Vec<(char, usize)>,
}

impl Fit {
    /// As much of all runs as fits.
    pub fn of(i: &Inspection) -> Fit {
        let tensors: Vec<(&str, &Series)> =
            (i.runs.iter()).flat_map(|(source, trace)| named(trace, view::of(&source.model.config().mixer))).collect();
        let mut fit = Fit::default();
        let sizes = |fit: &Fit| -> Vec<usize> {
            let steps = |s: &Series| s.data.len() / s.width().max(1);
            tensors.iter().map(|(axes, s)| steps(s) * fit.shape(axes, s).iter().product::<usize>()).collect()
        };
        let fits = |fit: &Fit| sizes(fit).iter().sum::<usize>() * 8 / 3 <= BUDGET;
        for (letter, _) in CUT {
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

    /// What is kept of a tensor.
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

    /// Whether a tensor of so many numbers is written in 16 bits.
    pub fn is_half(&self, numbers: usize) -> bool {
        self.halves > 0 && numbers >= self.halves
    }

    /// What of a run is not on the page, in a sentence; nothing if all is.
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

/// The letters of the axes of a tensor; none of a mixer without a view.
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

/// How many indices a letter has in a tensor.
fn extent(letter: char, axes: &str, series: &Series) -> Option<usize> {
    axes.chars().position(|l| l == letter).and_then(|at| series.shape.get(at)).copied()
}

/// From how many numbers on a tensor is written in 16 bits, so that all fit in the budget; 0: none is.
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
