//! The family tree of the scheme: each mixer below the one that it changes, with the term in which it differs.

use super::plot::{CSS, document};
use crate::{
    models::{self, About, Family},
    terminal::fit,
};
use maud::{Markup, PreEscaped, html};
use std::ops::Range;

/// The height of a row, and where the first begins.
const ROW: usize = 24;
const TOP: usize = 44;
/// How far a mixer stands to the right of its parent.
const INDENT: usize = 22;
/// Where terms and transitions stand.
const TERM: usize = 300;
const TRANSITION: usize = 590;
const WIDTH: usize = 870;

/// A mixer in its place: depth, and the row of its parent.
struct Node {
    about: &'static About,
    depth: usize,
    parent: Option<usize>,
}

/// The mixers that change `parent`, each followed by those that change it.
fn below(parent: Option<(usize, &str)>, depth: usize, nodes: &mut Vec<Node>) {
    for name in models::names() {
        let Some(about) = models::about(name).filter(|a| a.family != Family::Others) else { continue };
        if about.parent.map(|p| p.0) == parent.map(|p| p.1) {
            nodes.push(Node { about, depth, parent: parent.map(|p| p.0) });
            below(Some((nodes.len() - 1, name)), depth + 1, nodes);
        }
    }
}

/// The tree as text in lines of at most so many columns.
pub fn text(columns: usize) -> String {
    let mut nodes = vec![];
    below(None, 0, &mut nodes);
    let mut text = String::new();
    for (row, node) in nodes.iter().enumerate() {
        // A line goes down at each depth where another child of the same parent follows.
        let goes_on = |depth: usize| {
            let next = nodes[row + 1..].iter().find(|other| other.depth <= depth);
            next.is_some_and(|other| other.depth == depth)
        };
        let lines = |depths: Range<usize>| depths.map(|d| if goes_on(d) { "│  " } else { "   " }).collect::<String>();
        let (before, at) = match node.depth {
            0 => (String::new(), ""),
            depth => (lines(1..depth), if goes_on(depth) { "├─ " } else { "└─ " }),
        };
        let name = node.about.line.split(':').next().unwrap_or_default();
        let said = node.about.parent.map_or(name.into(), |(_, new)| format!("{name}: {new}"));
        let children = lines(1..node.depth + 1) + if goes_on(node.depth + 1) { "│  " } else { "   " };
        for (i, line) in fit(&said, columns.saturating_sub(3 * (node.depth + 1)).max(16)).lines().enumerate() {
            text += &if i == 0 { format!("{before}{at}{line}\n") } else { format!("{children}{line}\n") };
        }
    }
    text + &fit("\nA line says what is new over the mixer above. `tapezoo models NAME` has the rest.", columns)
}

/// The tree as an SVG file.
pub fn file() -> String {
    let mut nodes = vec![];
    below(None, 0, &mut nodes);
    let height = TOP + ROW * (nodes.len() + 2);
    let colour = |family| Family::ALL.iter().position(|&f| f == family).unwrap_or(0);
    let body = html! {
        text.title x="16" y="24" { "The family tree" }
        text.note x=(TERM) y="24" { "what is new" }
        text.note x=(TRANSITION) y="24" { "A_t" }
        @for (row, node) in nodes.iter().enumerate() { (drawn(row, node, colour(node.about.family))) }
        @for (i, family) in Family::ALL.iter().enumerate() {
            @let (x, y) = (16 + (i % 3) * 290, TOP + ROW * nodes.len() + 12 + (i / 3) * 20);
            circle class={ "mark s" (i) } cx=(x) cy=(y - 4) r="5" {}
            text.tick x=(x + 12) y=(y) { (family.title().split([':', '(']).next().unwrap_or_default()) }
        }
    };
    let svg = html! {
        svg.plot xmlns="http://www.w3.org/2000/svg" viewBox={ "0 0 " (WIDTH) " " (height) } width=(WIDTH) height=(height) role="img" {
            title { "The family tree of the mixers" }
            style { (PreEscaped(CSS)) }
            rect.paper width="100%" height="100%" {}
            (body)
        }
    };
    document(&svg)
}

/// A row, and the line from its parent.
fn drawn(row: usize, node: &Node, colour: usize) -> Markup {
    let (x, y) = (22 + node.depth * INDENT, TOP + row * ROW);
    let to = (x - 6, y - 4);
    html! {
        @if let Some(parent) = node.parent {
            path.axis fill="none" d={ "M" (x - INDENT) " " (TOP + parent * ROW + 3) "V" (to.1) "H" (to.0) } {}
        }
        circle class={ "mark s" (colour) } cx=(x) cy=(to.1) r="5" {}
        text x=(x + 12) y=(y) { (node.about.line.split(':').next().unwrap_or_default()) }
        text.tick x=(TERM) y=(y) { (node.about.parent.map_or("", |p| p.1)) }
        text.tick x=(TRANSITION) y=(y) { (node.about.transition) }
    }
}
