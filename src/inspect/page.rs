//! The page: one file that holds its data, style and script.

use super::Inspection;
use crate::{error::Result, report::plot};
use maud::{DOCTYPE, PreEscaped, html};

/// The part of the script that paints numbers; the pages of [`book`](crate::book) have it too.
pub const PAINT: &str = include_str!("paint.js");

/// The script, in the order of its parts: numbers, colours, figures, the tape's picture, words, the page.
const SCRIPT: [&str; 6] = [
    include_str!("data.js"),
    PAINT,
    include_str!("draw.js"),
    include_str!("graph.js"),
    include_str!("tell.js"),
    include_str!("page.js"),
];

/// The page around this data.
///
/// # Errors
/// When the page cannot be made.
pub fn page(i: &Inspection, data: &str) -> Result<String> {
    let names: Vec<&str> = i.runs.iter().map(|r| r.0.name.as_str()).collect();
    // No text in the data may end the script, or hide its end.
    Ok(around(&format!("tapezoo: {}", names.join(" beside ")), &data.replace('<', "\\u003c")))
}

/// The page around data in which no '<' is left.
pub fn around(title: &str, data: &str) -> String {
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(plot::CSS)) (PreEscaped(include_str!("page.css"))) }
            }
            body {
                header { h1 {} p #task {} }
                nav #strip aria-label="The sequence" {}
                main #runs { noscript { p { "This page draws its figures with JavaScript." } } }
                section #graphs {}
                footer { p { "← and → step through the sequence, Home and End go to its ends, the space bar plays it. A click on a cell picks the numbers in the equations; so do the arrows where Tab has led to a figure. The address names the step, the block and the head." } }
                script type="application/json" #data { (PreEscaped(data)) }
                script { (PreEscaped("(() => {\n")) @for part in SCRIPT { (PreEscaped(part)) } (PreEscaped("})();")) }
            }
        }
    };
    markup.into_string()
}
