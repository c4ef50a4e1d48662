//! A map of two axes: a square for each pair of values, darker where the number is greater, with the number in it.

use super::plot::{LETTER, document, number as n, sheet};
use maud::{Markup, html};

/// The width and the height of a square.
const SQUARE: (f64, f64) = (52.0, 28.0);
/// The height above the squares, for the title and the label of the values down.
const TOP: f64 = 46.0;
/// How opaque the colour is at most, so that the number in it can be read.
const DARKEST: f64 = 0.6;

/// A map.
pub struct Heat {
    /// The name of its file, without the ending.
    pub name: String,
    /// The title.
    pub title: String,
    /// The label of the values across.
    pub x_label: String,
    /// The label of the values down.
    pub y_label: String,
    /// The values across.
    pub x: Vec<String>,
    /// The values down.
    pub y: Vec<String>,
    /// The numbers of the palest and the darkest square: those of all maps that are compared.
    pub range: (f64, f64),
    /// The squares, row by row; none where there is no number.
    pub cells: Vec<Vec<Option<Cell>>>,
}

/// A square of a map.
pub struct Cell {
    /// The number that the colour shows.
    pub value: f64,
    /// The number, as it is written.
    pub text: String,
    /// The text that appears when a reader points at it.
    pub about: String,
}

impl Heat {
    /// The map in a page that has the style sheet of figures.
    pub fn inline(&self) -> Markup {
        self.svg(false)
    }

    /// The map as a file of its own.
    pub fn file(&self) -> String {
        document(&self.svg(true))
    }

    fn svg(&self, alone: bool) -> Markup {
        let wide = |text: &str| text.chars().count() as f64 * LETTER;
        let left = self.y.iter().chain([&self.y_label]).map(|text| wide(text)).fold(0.0, f64::max) + 14.0;
        let widest = self.x.iter().map(|text| wide(text) + 8.0).fold(SQUARE.0, f64::max);
        let (columns, rows) = (self.x.len() as f64, self.y.len() as f64);
        let width = (left + columns * widest).max(wide(&self.title)).max(left + wide(&self.x_label)) + 10.0;
        let height = TOP + rows * SQUARE.1 + 40.0;
        let (lo, hi) = self.range;
        let shade = |x: f64| DARKEST * if hi > lo { 0.1 + 0.9 * (x - lo) / (hi - lo) } else { 0.5 };
        let body = html! {
            text.title x="6" y="17" { (self.title) }
            text.tick.end x=(n(left - 8.0)) y=(n(TOP - 4.0)) { (self.y_label) }
            @for (i, (row, label)) in self.cells.iter().zip(&self.y).enumerate() {
                @let y = TOP + i as f64 * SQUARE.1;
                text.tick.end x=(n(left - 8.0)) y=(n(y + SQUARE.1 / 2.0 + 4.0)) { (label) }
                @for (j, cell) in row.iter().enumerate() {
                    @let x = left + j as f64 * widest;
                    @if let Some(cell) = cell {
                        g {
                            title { (cell.about) }
                            rect.s0.square x=(n(x)) y=(n(y)) width=(n(widest - 2.0)) height=(n(SQUARE.1 - 2.0))
                                fill-opacity=(n(shade(cell.value))) {}
                            text.middle x=(n(x + widest / 2.0 - 1.0)) y=(n(y + SQUARE.1 / 2.0 + 3.5)) { (cell.text) }
                        }
                    }
                }
            }
            @for (j, label) in self.x.iter().enumerate() {
                text.tick.middle x=(n(left + (j as f64 + 0.5) * widest)) y=(n(TOP + rows * SQUARE.1 + 14.0)) { (label) }
            }
            text.tick x=(n(left)) y=(n(TOP + rows * SQUARE.1 + 32.0)) { (self.x_label) }
        };
        sheet(alone, &self.title, (width, height), Some(width), &body)
    }
}
