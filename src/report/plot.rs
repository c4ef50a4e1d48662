//! A figure: lines over an axis, each the mean over seeds with a band around it.

use super::{scale::Axis, section::clean};
use maud::{Markup, PreEscaped, html};

/// The size of a figure without its legend, in its own units: those of its text, which is 12 high.
const SIZE: (f64, f64) = (440.0, 280.0);
/// The rectangle that the lines are in: left, top, right, bottom.
const FRAME: (f64, f64, f64, f64) = (48.0, 34.0, 418.0, 236.0);
/// About how wide a letter is.
pub(super) const LETTER: f64 = 6.6;
/// The height of a row of the legend.
const ROW: f64 = 18.0;

/// How many colours `plot.css` has.
const COLOURS: usize = 8;
/// The dashes, in lengths on and off. Lines with the same colour, eight apart, have neither dash nor mark in common.
const DASHES: [&str; 7] = ["none", "7 3", "2 3", "9 3 2 3", "4 2", "13 4", "8 2 2 2 2 2"];
/// The marks: circle, square, triangle, diamond, triangle on its tip, plus, cross.
const MARKS: [&str; 7] = [
    "M-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0 -7.2 0z",
    "M-3.2 -3.2h6.4v6.4h-6.4z",
    "M0 -4.2L4 3H-4z",
    "M0 -4.6L4 0L0 4.6L-4 0z",
    "M0 4.2L4 -3H-4z",
    "M-1.2 -4h2.4v2.8h2.8v2.4h-2.8v2.8h-2.4v-2.8h-2.8v-2.4h2.8z",
    "M-4 -2.4L-2.4 -4L0 -1.6L2.4 -4L4 -2.4L1.6 0L4 2.4L2.4 4L0 1.6L-2.4 4L-4 2.4L-1.6 0z",
];

/// The style sheet of figures: for a page with figures in it, and for a figure alone.
pub const CSS: &str = include_str!("plot.css");

/// A figure.
pub struct Figure {
    /// The name of its file, without the ending.
    pub name: String,
    /// The title.
    pub title: String,
    /// The label of the x axis.
    pub x_label: String,
    /// The x axis.
    pub x: Axis,
    /// The y axis.
    pub y: Axis,
    /// The score of guessing, if it is known.
    pub guess: Option<f64>,
    /// The x that training was at, if it is one of the axis.
    pub trained: Option<f64>,
    /// The lines.
    pub lines: Vec<Line>,
}

/// The line of a series.
pub struct Line {
    /// The label of the series.
    pub label: String,
    /// The number of its colour, dash and mark.
    pub style: usize,
    /// Its points, from left to right.
    pub points: Vec<Point>,
}

/// A point of a line.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Its place on the x axis.
    pub x: f64,
    /// The mean over the seeds.
    pub mean: f64,
    /// The least of the seeds.
    pub lo: f64,
    /// The greatest of the seeds.
    pub hi: f64,
    /// The text that appears when a reader points at it.
    pub about: String,
}

impl Figure {
    /// The figure in a page that has [`CSS`], and the legend elsewhere.
    pub fn inline(&self) -> Markup {
        self.svg(false)
    }

    /// The figure as a file of its own, with its legend and its style.
    pub fn file(&self) -> String {
        document(&self.svg(true))
    }

    fn svg(&self, alone: bool) -> Markup {
        let (columns, column) = self.legend_columns();
        let rows = if alone { self.lines.len().div_ceil(columns) } else { 0 };
        let height = SIZE.1 + if rows > 0 { rows as f64 * ROW + 12.0 } else { 0.0 };
        let body = html! {
            text.title x=(number(FRAME.0)) y="17" { (self.title) }
            (self.axes())
            @for line in &self.lines { g class=(own(line.style)) { (self.band(line)) } }
            @if let Some(guess) = self.guess { (self.guess_line(guess)) }
            @for (i, line) in self.lines.iter().enumerate() { g class=(own(line.style)) { (self.line(line, i)) } }
            @for line in &self.lines { g class=(own(line.style)) { (self.hits(line)) } }
            @for (i, line) in self.lines.iter().enumerate().filter(|_| alone) {
                @let (x, y) = ((i % columns) as f64 * column, (i / columns) as f64 * ROW);
                g transform=(shift(FRAME.0 + x, SIZE.1 + 10.0 + y)) {
                    (swatch(line.style))
                    text.key x="36" y="4" { (line.label) }
                }
            }
        };
        sheet(alone, &self.title, (SIZE.0, height), None, &body)
    }

    fn legend_columns(&self) -> (usize, f64) {
        let longest = self.lines.iter().map(|l| l.label.chars().count()).max().unwrap_or(0);
        let column = 36.0 + longest as f64 * LETTER + 14.0;
        let columns = ((SIZE.0 - FRAME.0) / column).floor().max(1.0);
        (columns as usize, column)
    }

    fn axes(&self) -> Markup {
        let (left, top, right, bottom) = FRAME;
        let x = self.x.clone().thinned(right - left, 6.0, |label| label.chars().count() as f64 * LETTER);
        html! {
            @for (y, label) in &self.y.ticks {
                line.grid x1=(number(left)) x2=(number(right)) y1=(self.py(*y)) y2=(self.py(*y)) {}
                text.tick.end x=(number(left - 6.0)) y=(number(self.y_of(*y) + 4.0)) { (label) }
            }
            line.axis x1=(number(left)) x2=(number(right)) y1=(number(bottom)) y2=(number(bottom)) {}
            @for (x, label) in &x.ticks {
                line.axis x1=(self.px(*x)) x2=(self.px(*x)) y1=(number(bottom)) y2=(number(bottom + 4.0)) {}
                @if !label.is_empty() {
                    text.tick.middle x=(self.px(*x)) y=(number(bottom + 17.0)) { (label) }
                }
            }
            text.tick.middle x=(number((left + right) / 2.0)) y=(number(bottom + 34.0)) { (self.x_label) }
            @if let Some(x) = self.trained {
                line.trained x1=(self.px(x)) x2=(self.px(x)) y1=(number(top)) y2=(number(bottom)) {}
                // Beside the line, on the side where there is room.
                @let late = self.x_of(x) > right - 80.0;
                text.note.end[late] x=(number(self.x_of(x) + if late { -4.0 } else { 4.0 })) y=(number(top - 2.0)) { "trained here" }
            }
        }
    }

    fn guess_line(&self, guess: f64) -> Markup {
        let (left, _, right, _) = FRAME;
        html! {
            line.guess x1=(number(left)) x2=(number(right)) y1=(self.py(guess)) y2=(self.py(guess)) {}
            text.note.end x=(number(right)) y=(number(self.y_of(guess) + 13.0)) { "guessing" }
        }
    }

    /// The band from the least to the greatest seed; nothing where a line has only one seed.
    fn band(&self, line: &Line) -> Markup {
        let there = line.points.iter().map(|p| (p.x, p.hi));
        let back = line.points.iter().rev().map(|p| (p.x, p.lo));
        html! {
            @if line.points.iter().any(|p| p.hi > p.lo) {
                polygon class=(format!("band {}", colour(line.style))) points=(self.path(there.chain(back))) {}
            }
        }
    }

    /// A line, and marks on a few of its points: on others than its neighbours.
    fn line(&self, line: &Line, i: usize) -> Markup {
        let n = line.points.len();
        let every = if n <= 12 { 1 } else { n.div_ceil(6) };
        let first = i * every / self.lines.len().max(1);
        html! {
            g class=(colour(line.style)) {
                polyline.line stroke-dasharray=(dash(line.style))
                    points=(self.path(line.points.iter().map(|p| (p.x, p.mean)))) {}
                @for p in line.points.iter().skip(first).step_by(every) {
                    path.mark d=(mark(line.style)) transform=(shift(self.x_of(p.x), self.y_of(p.mean))) {}
                }
            }
        }
    }

    /// Invisible marks over the lines that show their number when pointed at, at no more than `MOST` points of each
    /// line.
    fn hits(&self, line: &Line) -> Markup {
        const MOST: usize = 40;
        let every = line.points.len().div_ceil(MOST).max(1);
        html! {
            @for p in line.points.iter().step_by(every) {
                circle.hit cx=(self.px(p.x)) cy=(self.py(p.mean)) r="6" { title { (p.about) } }
            }
        }
    }

    fn path(&self, points: impl Iterator<Item = (f64, f64)>) -> String {
        points.map(|(x, y)| format!("{},{}", self.px(x), self.py(y))).collect::<Vec<_>>().join(" ")
    }

    fn x_of(&self, x: f64) -> f64 {
        FRAME.0 + self.x.at(x) * (FRAME.2 - FRAME.0)
    }

    fn y_of(&self, y: f64) -> f64 {
        FRAME.3 - self.y.at(y) * (FRAME.3 - FRAME.1)
    }

    fn px(&self, x: f64) -> String {
        number(self.x_of(x))
    }

    fn py(&self, y: f64) -> String {
        number(self.y_of(y))
    }
}

/// The SVG element around a figure of this size: in a page that has [`CSS`], where it is no wider than `most` pixels,
/// or alone in a file, where it is half as large again.
pub(super) fn sheet(alone: bool, title: &str, size: (f64, f64), most: Option<f64>, body: &Markup) -> Markup {
    let view = format!("0 0 {} {}", number(size.0), number(size.1));
    let (width, height) = (number(size.0 * 1.5), number(size.1 * 1.5));
    html! {
        @if alone {
            svg.plot xmlns="http://www.w3.org/2000/svg" viewBox=(view) width=(width) height=(height) role="img" {
                title { (title) }
                style { (PreEscaped(CSS)) }
                rect.paper width="100%" height="100%" {}
                (body)
            }
        } @else {
            svg.plot viewBox=(view) style=[most.map(|most| format!("max-width: {}px", number(most)))] role="img"
                aria-label=(title) { (body) }
        }
    }
}

/// A figure as a file.
pub(super) fn document(svg: &Markup) -> String {
    format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{}\n", svg.0)
}

/// The legend of a page: the same entries as in the figures' own, each of which can be hidden ([`hiding`]).
pub fn legend<'a>(entries: impl Iterator<Item = (&'a str, usize)>) -> Markup {
    html! {
        ul.legend {
            @for (label, style) in entries {
                li { label {
                    input.{"show " (own(style))} type="checkbox" checked;
                    " "
                    svg.plot viewBox="0 0 30 12" width="30" height="12" aria-hidden="true" {
                        g transform="translate(0 6)" { (swatch(style)) }
                    }
                    " " (clean(label))
                } }
            }
        }
    }
}

/// The style sheet by which a legend's boxes hide the lines of their series, in the figures of the same `.group`.
pub fn hiding(styles: usize) -> String {
    let rule = |style| {
        let own = own(style);
        format!(".group:has(.show.{own}:not(:checked)) g.{own} {{ display: none }}\n")
    };
    (0..styles).map(rule).collect()
}

/// The class of one series.
fn own(style: usize) -> String {
    format!("own{style}")
}

/// A piece of a line, 30 wide, with its mark.
fn swatch(style: usize) -> Markup {
    html! {
        g class=(colour(style)) {
            line.line stroke-dasharray=(dash(style)) x1="0" x2="30" y1="0" y2="0" {}
            path.mark d=(mark(style)) transform="translate(15 0)" {}
        }
    }
}

fn colour(style: usize) -> String {
    format!("s{}", style % COLOURS)
}

fn dash(style: usize) -> &'static str {
    DASHES[style % DASHES.len()]
}

fn mark(style: usize) -> &'static str {
    MARKS[style % MARKS.len()]
}

fn shift(x: f64, y: f64) -> String {
    format!("translate({} {})", number(x), number(y))
}

/// At most two decimals, and no trailing zeros.
pub(super) fn number(x: f64) -> String {
    let text = format!("{x:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".into() } else { text.into() }
}
