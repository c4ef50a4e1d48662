//! The parts that all pages share: the style sheet, the script, and the frame of a page.

use super::prose;
use crate::{inspect::page::PAINT, report::plot};
use maud::{DOCTYPE, Markup, PreEscaped, html};

/// The style sheet of all pages.
pub fn style() -> String {
    format!("{}{}", plot::CSS, include_str!("book.css"))
}

/// The script of all pages.
pub fn script() -> String {
    let parts =
        [PAINT, include_str!("wasm.js"), include_str!("lab.js"), include_str!("tour.js"), include_str!("book.js")];
    format!("'use strict';\n(() => {{\n{}}})();\n", parts.join("\n"))
}

/// A whole page of this main part. With scripts it has the library, and these files beside it.
pub fn around(head: &str, main: &Markup, scripts: Option<&[String]>) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (head) }
                link rel="stylesheet" href="book.css";
            }
            body {
                a.skip href="#main" { "Skip to the page" }
                (main)
                footer { p {
                    "Made by tapezoo " (env!("CARGO_PKG_VERSION")) " from the files of its mixers. Links to papers "
                    "lead out of the site; all else works without a network."
                } }
                @if let Some(more) = scripts {
                    script src="engine.js" defer {}
                    script src="inspector.js" defer {}
                    @for file in more { script src=(file) defer {} }
                }
                script src="book.js" defer {}
            }
        }
    }
    .into_string()
}

/// Text without links to other mixers.
pub fn words(text: &str) -> Markup {
    PreEscaped(prose::inline(text, &|_| None))
}

/// The note on a page of a site that was made without the library.
pub fn no_library() -> Markup {
    html! { aside { p {
        "This site was made without the library for the browser, so its pages train no model. To have it: "
        code { "rustup target add wasm32-unknown-unknown" } ", " code { "scripts/web.sh" } ", and make the site again."
    } } }
}
