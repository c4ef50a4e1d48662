//! The page of a mixer.

use super::{
    annotated::{File, code, documentation},
    backwards::{self, PAGE},
    cores::{self, Core},
    cost::{self, Cost},
    equations,
    frame::{around, no_library, words},
    lab::{lab, trained_file},
    lists::forms,
    tracks,
    tree::{about, family, file, name, order, title},
};
use crate::{
    autograd::Called,
    inspect::view,
    models::{self, About, LETTERS},
    report::mathml::math,
};
use maud::{Markup, PreEscaped, html};

/// The page of a mixer, whose forms call these ops. It trains models where it has `scripts`: files with trained weights,
/// of this mixer and its parent.
pub fn page(mixer: &str, calls: &[Called], scripts: Option<&[String]>) -> String {
    let about = about(mixer);
    let file_of = File::new(models::source(mixer).unwrap_or_default(), ["eq-", "L"]);
    let mut own = file_of.ops(calls, &format!("src/models/{mixer}.rs"));
    let core = cores::of(mixer);
    let op = core.map(|core| File::new(core.source, ["op-eq-", "P"]));
    let inside = op.as_ref().zip(core).map(|(op, core)| op.ops(calls, &format!("src/ops/{}", core.file)));
    if let Some((op, core)) = op.as_ref().zip(core) {
        // Where the mixer's own lines call a function alone, the op's lines say what it computes.
        let in_op = file_of.lines_in(Some(op));
        for (own, lines) in own.iter_mut().zip(in_op).filter(|row| row.0.is_empty()) {
            *own = backwards::ops(calls, &format!("src/ops/{}", core.file), op.source, &lines);
        }
    }
    let order = order();
    let at = order.iter().position(|name| *name == mixer).unwrap_or(0);
    let title = title(mixer, about);
    let main = html! {
        header.top {
            nav aria-label="Pages" {
                a href="index.html" { "The annotated zoo" }
                a href="tour.html" { "The tour" }
                @if let Some(before) = at.checked_sub(1).map(|i| order[i]) {
                    a rel="prev" href=(file(before)) { "← " (name(before)) }
                }
                @if let Some(after) = order.get(at + 1) { a rel="next" href=(file(after)) { (name(after)) " →" } }
            }
        }
        main #main tabindex="-1" {
            h1 { (title) }
            p.lead { (about.line.split_once(": ").map_or(about.line, |line| line.1)) }
            nav.sections aria-label="On this page" {
                a href="#equations" { "Equations" } a href="#code" { "Code" } a href="#op" { "Backwards" }
                a href="#tree" { "Family" } a href="#facts" { "State and cost" } a href="#tracks" { "What it tracks" }
                a href="#try" { "Try it" }
            }
            div.pair {
                section #equations aria-labelledby="h-equations" {
                    h2 #h-equations { "Equations" }
                    (documentation(&file_of, &own, &file_of.lines_in(op.as_ref())))
                }
                section #code aria-labelledby="h-code" {
                    h2 #h-code { "The code that computes them" }
                    p.soft {
                        code { "src/models/" (mixer) ".rs" } ". What stands before a line is the number of the equation that "
                        "it computes, and leads back to it."
                    }
                    (code(&file_of, &[file_of.head..=file_of.source.lines().count()]))
                }
            }
            section #op aria-labelledby="h-op" { h2 #h-op { "In one op, and backwards" } (in_one_op(core, op.as_ref(), &inside.unwrap_or_default())) }
            section #tree aria-labelledby="h-tree" { h2 #h-tree { "Family" } (family(mixer)) }
            section #facts aria-labelledby="h-facts" { h2 #h-facts { "State and cost" } (facts(mixer, about)) }
            section #tracks aria-labelledby="h-tracks" {
                h2 #h-tracks { "What it can and cannot track" }
                (tracked(mixer))
            }
            section #try aria-labelledby="h-try" {
                h2 #h-try { "Train it here" }
                @if let Some(scripts) = scripts {
                    (lab(mixer, scripts.contains(&trained_file(mixer))))
                } @else { (no_library()) }
            }
        }
    };
    around(&format!("{title}: the annotated zoo"), &main, scripts)
}

/// The op that runs the recurrence over a sequence, and how a gradient comes back through it.
fn in_one_op(core: Option<&Core>, op: Option<&File>, ops: &[Vec<&str>]) -> Markup {
    let Some((core, op)) = core.zip(op) else {
        return html! { p {
            "No op has this recurrence as a whole. The tape records the lines above as they run, and the gradient is what it "
            "finds on the way back through them, from the last token to the first. Each product, sum or function has "
            a href=(PAGE) { "a derivative of its own" } "; the rows above lead to those of their lines."
        } };
    };
    let marked: Vec<usize> = equations::marks(op.source).iter().map(|mark| mark.line).collect();
    html! {
        p {
            "Over a sequence the other forms run the op " code { (core.op) } ". Its formula, below, is its definition. "
            "Backwards the tape goes through the formula's lines from the last step to the first, and each op in a line has "
            a href=(PAGE) { "a derivative of its own" } ", to which the rows lead. A kernel that computes the op faster must "
            "give this gradient: " code { "cargo test --test kernels" } "."
        }
        div.pair {
            div { (documentation(op, ops, &vec![vec![]; op.rows.len()])) }
            div {
                p.soft { code { "src/ops/" (core.file) } ", the lines of the formula." }
                (code(op, &cores::functions(op.source, &marked)))
            }
        }
    }
}

fn facts(mixer: &str, about: &About) -> Markup {
    html! {
        dl.facts {
            div { dt { "transition A" sub { "t" } } dd { (PreEscaped(math(about.transition))) } }
            div { dt { "its eigenvalues" } dd { (words(about.eigenvalues)) } }
            div { dt { "state of a block, in numbers" } dd { (PreEscaped(math(about.state))) } }
            div { dt { "order of the multiplications of a step, beside projections" } dd { (PreEscaped(math(about.cost))) } }
            div { dt { "forms" } dd { (forms(mixer)) } }
            div { dt { "paper" } dd { (words(about.source)) } }
        }
        p.soft {
            (LETTERS) " All forms give the same values, states and gradients."
        }
        (measured(mixer))
    }
}

/// The command that measures time and memory.
const COMMAND: &str = "cargo run --release --example scaling -- --data src/book/cost.tsv";

/// Time and memory as measured, beside those of the parent.
fn measured(mixer: &str) -> Markup {
    let lines = [Some(mixer), about(mixer).parent.map(|p| p.0)];
    let mut lines: Vec<(String, Vec<Cost>)> =
        lines.into_iter().flatten().map(|mixer| (name(mixer), cost::of(mixer))).collect();
    let Some(first) = lines[0].1.first() else {
        return html! { p.soft {
            "Time and memory of this mixer are not measured yet: " code { (COMMAND) } " measures what is missing."
        } };
    };
    let [build, processor] = first.place;
    lines.retain(|line| !line.1.is_empty());
    html! {
        div.measured { @for figure in cost::figures(&lines) { div { (figure.inline()) } } }
        p { @for (style, (name, costs)) in lines.iter().enumerate() {
            span.key { span class={ "dot s" (style) } {} (name) ", " (costs[0].form) } " "
        } }
        p.soft {
            "One block of width 16, batch 1, one thread, each in its fastest form: the fastest of some steps, and the memory by "
            "which the process has grown. Measured by " code { (COMMAND) } " with " (build) " on " (processor) "."
        }
    }
}

fn tracked(mixer: &str) -> Markup {
    let (view, mut shown) = (view::of(mixer), tracks::of(mixer).peekable());
    let mut untested = tracks::untested(mixer).peekable();
    html! {
        @if let Some(text) = tracks::buys(mixer) { p { (words(&text)) } }
        @match view {
            Some(view) if view.eigenvalues == view::Spectrum::None => p { "Of eigenvalues: " (words(view.spectrum)) },
            Some(view) => p { "Of the eigenvalues that " code { "tapezoo inspect" } " draws: " (words(view.spectrum)) },
            None => {}
        }
        @if shown.peek().is_some() {
            h3 { "Tested" }
            ul.shown { @for one in shown { li {
                p { (one.fact) }
                p.soft { "Shown by " code { "cargo test --test expressivity " (one.test) } }
            } } }
        }
        @if untested.peek().is_some() {
            h3 { "Theory, without a test" }
            ul.shown { @for one in untested { li { p { (words(one.why)) } } } }
        }
        p.soft {
            "This is about what the mixer can express in one layer, at any length, and not about what it learns. Where the "
            "text says nothing else, weights are set by hand and sequences have 100,000 random bits. Recall is to give back "
            "the value that was stored under a key; what is said of it is arithmetic and not measured."
        }
    }
}
