//! The pages.

use super::{
    equations::{self, Row},
    prose::{self, Part},
    tracks,
};
use crate::{
    exercises::EXERCISES,
    inspect::{page::PAINT, view},
    models::{self, About, Family, UNKNOWN},
    report::{mathml::math, plot},
};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use std::ops::RangeInclusive;

/// The file of a mixer's page.
pub fn file(mixer: &str) -> String {
    format!("{mixer}.html")
}

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

/// Its usual name.
fn title(mixer: &str, about: &About) -> String {
    let short = about.line.split(':').next().unwrap_or(mixer);
    view::of(mixer).map_or(short, |view| view.title).to_string()
}

fn about(mixer: &str) -> &'static About {
    models::about(mixer).unwrap_or(&UNKNOWN)
}

/// The mixers that change this one, or the first of each tree.
fn below(parent: Option<&str>) -> Vec<&'static str> {
    models::names().into_iter().filter(|name| about(name).parent.map(|p| p.0) == parent).collect()
}

/// All mixers in the order of the tree, from the top.
fn order() -> Vec<&'static str> {
    fn walk(parent: Option<&str>, all: &mut Vec<&'static str>) {
        for name in below(parent) {
            all.push(name);
            walk(Some(name), all);
        }
    }
    let mut all = vec![];
    walk(None, &mut all);
    all
}

fn colour(about: &About) -> usize {
    Family::ALL.iter().position(|&f| f == about.family).unwrap_or(6)
}

/// The usual name of a mixer.
pub fn name(mixer: &str) -> String {
    title(mixer, about(mixer))
}

/// Text without links to other mixers.
pub fn words(text: &str) -> Markup {
    PreEscaped(prose::inline(text, &|_| None))
}

/// What is around every page.
pub fn around(head: &str, main: &Markup, trains: bool) -> String {
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
                @if trains { script src="engine.js" defer {} }
                script src="book.js" defer {}
            }
        }
    }
    .into_string()
}

/// A link to a mixer, with the term in which it differs from its parent.
fn entry(mixer: &str, here: bool) -> Markup {
    let about = about(mixer);
    let term = about.parent.map(|p| p.1);
    html! {
        span class={ "dot s" (colour(about)) } {}
        @if here {
            b aria-current="page" { (title(mixer, about)) } " " span.here { "you are here" }
        } @else {
            a href=(file(mixer)) { (title(mixer, about)) }
        }
        @if let Some(term) = term { " " span.term { (term) } }
    }
}

fn tree(parent: Option<&str>) -> Markup {
    let names = below(parent);
    html! {
        @if !names.is_empty() {
            ul { @for name in names { li { (entry(name, false)) (tree(Some(name))) } } }
        }
    }
}

/// The first page.
pub fn index(trains: bool) -> String {
    let main = html! {
        main #main tabindex="-1" {
            h1 { "The annotated zoo" }
            p.lead {
                (models::names().len()) " sequence mixers, from LSTM to Mamba-3. Each page has the equations of one, "
                "the code that computes them beside them, what it can and cannot track with the test that shows it"
                @if trains {
                    ", and the model itself: type bits and see its states, press train and watch parity being learned"
                }
                "."
            }
            @if !trains { (no_library()) }
            p {
                "A mixer is the part of a model that combines tokens. It carries a state from token to token, "
                (PreEscaped(math("S_t = A_t S_{t-1} + B_t")))
                ", and what it can track depends on the transition " (PreEscaped(math("A_t")))
                ": with eigenvalues between 0 and 1 a state fades or stays; at −1 it flips, which parity needs; a "
                "complex pair turns it."
            }
            p { a href="tour.html" { "A guided tour of eight stops" } " leads from a counter to a rotation. "
                a href="exercises.html" { (EXERCISES.len()) " exercises" } " are for who wants to write it all once." }
            div.halves { section {
            h2 { "The family tree" }
            p { "Each mixer stands below the one that it changes, with the one term in which it differs." }
            div.tree { (tree(None)) }
            } section {
            h2 { "By the kind of state" }
            @for family in Family::present() {
                @let members: Vec<&str> = models::names().into_iter().filter(|n| about(n).family == family).collect();
                h3 { span class={ "dot s" (members.first().map_or(6, |name| colour(about(name)))) } {} (family.title()) }
                ul.plain { @for name in members {
                    li { a href=(file(name)) { (title(name, about(name))) } " " span.term {
                        (about(name).line.split_once(": ").map_or("", |line| line.1))
                    } }
                } }
            }
            } }
        }
    };
    around("The annotated zoo", &main, trains)
}

/// The list of exercises.
pub fn exercises() -> String {
    let main = html! {
        header.top { nav aria-label="Pages" { a href="index.html" { "The annotated zoo" } } }
        main #main tabindex="-1" {
            h1 { "Exercises" }
            p.lead { "What one has written oneself, one has understood: " (EXERCISES.len()) " files with a hole." }
            p {
                "Each is a file in " code { "exercises/" } " of the repository. It begins with what there is to know, and "
                "has a function without a body, for you to write. " code { "tapezoo exercise NAME" } " checks it, against "
                "the project's own ops, against numbers from PyTorch and at the edges, and says in words what is wrong. "
                code { "--hint" } " gives hints one at a time, " code { "--solution" } " the lines of this project that do "
                "it, and " code { "tapezoo exercise" } " alone says what is done and what is next."
            }
            ol { @for exercise in &EXERCISES { li { (exercise.title) " " code.term { (exercise.name) } } } }
        }
    };
    around("Exercises: the annotated zoo", &main, false)
}

fn no_library() -> Markup {
    html! { aside { p {
        "This site was made without the library for the browser, so its pages train no model. To have it: "
        code { "rustup target add wasm32-unknown-unknown" } ", " code { "scripts/web.sh" } ", and make the site again."
    } } }
}

/// The page of a mixer.
pub fn page(mixer: &str, trains: bool) -> String {
    let (about, source) = (about(mixer), models::source(mixer).unwrap_or_default());
    let (parts, head) = prose::parts(source);
    let rows = equations::rows(&models::equations(mixer).unwrap_or_default());
    let links = equations::links(source, &rows);
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
                a href="#equations" { "Equations" } a href="#code" { "Code" } a href="#tree" { "Family" }
                a href="#tracks" { "What it tracks" } a href="#try" { "Try it" }
            }
            div.pair {
                section #equations aria-labelledby="h-equations" {
                    h2 #h-equations { "Equations" }
                    (documentation(&parts, &rows, &links))
                }
                section #code aria-labelledby="h-code" {
                    h2 #h-code { "The code that computes them" }
                    p.soft { code { "src/models/" (mixer) ".rs" } ". A number in brackets leads back to the equation." }
                    (code(source, head, &rows, &links))
                }
            }
            section #tree aria-labelledby="h-tree" { h2 #h-tree { "Family" } (family(mixer)) }
            section #facts aria-labelledby="h-facts" { h2 #h-facts { "State and cost" } (facts(mixer, about)) }
            section #tracks aria-labelledby="h-tracks" {
                h2 #h-tracks { "What it can and cannot track" }
                (tracked(mixer))
            }
            section #try aria-labelledby="h-try" {
                h2 #h-try { "Train it here" }
                @if trains { (lab(mixer)) } @else { (no_library()) }
            }
        }
    };
    around(&format!("{title}: the annotated zoo"), &main, trains)
}

/// The documentation, its first equations linked with the code.
fn documentation(parts: &[Part], rows: &[Row], links: &[Vec<RangeInclusive<usize>>]) -> Markup {
    let first = parts.iter().position(|part| matches!(part, Part::Equations(_)));
    let page = |name: &str| models::names().contains(&name).then(|| file(name));
    let text = |text: &str| PreEscaped(prose::inline(text, &page));
    html! {
        @for (i, part) in parts.iter().enumerate() {
            @match part {
                Part::Text(paragraph) => { p { (text(paragraph)) } },
                Part::List(items) => { ul { @for item in items { li { (text(item)) } } } },
                Part::Table(rows) => { div.scroll tabindex="0" role="region" aria-label="Its forms" { table {
                    @for (i, row) in rows.iter().enumerate() { tr {
                        @for cell in row {
                            @if i == 0 { th scope="col" { (text(cell)) } } @else { td { (text(cell)) } }
                        }
                    } }
                } } },
                Part::Equations(_) if Some(i) == first => { (set(rows, Some(links))) },
                Part::Equations(block) => { (set(&equations::rows(block), None)) },
            }
        }
    }
}

/// A block of equations, a row each.
fn set(rows: &[Row], links: Option<&[Vec<RangeInclusive<usize>>]>) -> Markup {
    html! {
        ol.equations { @for (i, row) in rows.iter().enumerate() {
            @let lines = links.map_or(&[][..], |links| &links[i]);
            @let label = if links.is_some() { row.label(i) } else { row.number.clone() };
            @let id = links.map(|_| format!("eq-{}", i + 1));
            li id=[id] class=[row.goes_on.then_some("on")] data-lines=[spelled(lines)] {
                div.row {
                    @for clause in row.text.split_inclusive(",  ") { div.scroll { (PreEscaped(math(clause.trim()))) } }
                    @if let Some(label) = &label { " " span.number { (label) } }
                }
                @if let Some(place) = row.number.as_deref().filter(|number| Some(*number) != label.as_deref()) {
                    div.remark { (words(place.trim_matches(['(', ')']))) }
                }
                @for remark in &row.remarks { div.remark { (remarked(remark)) } }
                @if let Some(first) = lines.first() {
                    a.lines href={ "#L" (first.start()) } { (named(lines)) }
                }
            }
        } }
    }
}

/// A remark: mathematics, where it looks like some, or words.
fn remarked(remark: &str) -> Markup {
    let is_math = |part: &str| part.contains(['=', '←', '∈', '≤', 'Σ', '_']) || part.chars().count() == 1;
    html! { @for (i, part) in remark.split("; ").enumerate() {
        @if i > 0 { "; " }
        @if is_math(part) { span.scroll { (PreEscaped(math(part))) } } @else { (words(part)) }
    } }
}

/// "49-55,60-60".
fn spelled(lines: &[RangeInclusive<usize>]) -> Option<String> {
    let each = lines.iter().map(|range| format!("{}-{}", range.start(), range.end()));
    (!lines.is_empty()).then(|| each.collect::<Vec<_>>().join(","))
}

/// "lines 49–55, 60".
fn named(lines: &[RangeInclusive<usize>]) -> String {
    let each = |range: &RangeInclusive<usize>| match range.start() == range.end() {
        true => range.start().to_string(),
        false => format!("{}–{}", range.start(), range.end()),
    };
    let one = lines.len() == 1 && lines[0].start() == lines[0].end();
    let all: Vec<String> = lines.iter().map(each).collect();
    format!("{} {}", if one { "line" } else { "lines" }, all.join(", "))
}

/// The code below the head of the file, line by line.
fn code(source: &str, head: usize, rows: &[Row], links: &[Vec<RangeInclusive<usize>>]) -> Markup {
    let back = |number: usize| {
        let starts = move |ranges: &Vec<RangeInclusive<usize>>| ranges.iter().any(|range| *range.start() == number);
        links.iter().enumerate().filter(move |(_, ranges)| starts(ranges)).map(|(i, _)| i)
    };
    let label = |i: usize| rows[i].label(i).unwrap_or_default();
    let lines = source.lines().enumerate().skip(head).skip_while(|(_, line)| line.trim().is_empty());
    html! {
        pre.source tabindex="0" role="region" aria-label="The code" { code { @for (i, line) in lines {
            @let number = i + 1;
            span.line id={ "L" (number) } data-n=(number) {
                @let (code, comment) = line.find("//").map_or((line, ""), |at| line.split_at(at));
                (code) @if !comment.is_empty() { span.comment { (comment) } }
                @for i in back(number) {
                    " "
                    a.back href={ "#eq-" (i + 1) } title=(rows[i].text) aria-label={ "computes " (rows[i].text) } {
                        (label(i))
                    }
                }
                "\n"
            }
        } } }
    }
}

/// The way from the first of the tree to this mixer, and those that change it.
fn family(mixer: &str) -> Markup {
    let mut path = vec![mixer];
    while let Some((parent, _)) = about(path[path.len() - 1]).parent {
        path.push(parent);
    }
    path.reverse();
    fn nested(path: &[&str], mixer: &str) -> Markup {
        html! { @if let Some((first, rest)) = path.split_first() {
            ul { li {
                (entry(first, *first == mixer))
                @if *first == mixer { (tree_below(mixer)) } @else { (nested(rest, mixer)) }
            } }
        } }
    }
    fn tree_below(mixer: &str) -> Markup {
        let names = below(Some(mixer));
        html! { @if !names.is_empty() { ul { @for name in names { li { (entry(name, false)) } } } } }
    }
    let siblings: Vec<&str> = match about(mixer).parent {
        Some((parent, _)) => below(Some(parent)).into_iter().filter(|name| *name != mixer).collect(),
        None => vec![],
    };
    html! {
        div.tree { (nested(&path, mixer)) }
        @if !siblings.is_empty() {
            p {
                "Others that change " (name(path[path.len() - 2])) ": "
                @for (i, other) in siblings.iter().enumerate() {
                    @if i > 0 { ", " }
                    a href=(file(other)) { (name(other)) }
                }
                "."
            }
        }
    }
}

fn facts(mixer: &str, about: &About) -> Markup {
    let forms = models::forms(&models::ModelConfig { mixer: mixer.into(), ..Default::default() }).unwrap_or_default();
    let forms: Vec<&str> = forms.iter().map(|form| form.kind()).collect();
    html! {
        dl.facts {
            div { dt { "transition A" sub { "t" } } dd { (PreEscaped(math(about.transition))) } }
            div { dt { "its eigenvalues" } dd { (words(about.eigenvalues)) } }
            div { dt { "state of a block, in numbers" } dd { (PreEscaped(math(about.state))) } }
            div { dt { "multiplications of a step, beside projections" } dd { (PreEscaped(math(about.cost))) } }
            div { dt { "forms" } dd { (forms.join(", ")) } }
            div { dt { "paper" } dd { (words(about.source)) } }
        }
        p.soft {
            "H heads of width K = V, N states, D channels; t tokens so far. All forms give the same values, states and "
            "gradients."
        }
    }
}

fn tracked(mixer: &str) -> Markup {
    let (spectrum, mut shown) = (view::of(mixer).map(|view| view.spectrum), tracks::of(mixer).peekable());
    let none = shown.peek().is_none();
    html! {
        @if let Some(sentence) = spectrum { p { (words(sentence)) } }
        @if none {
            p { "No test of the repository sets its weights by hand to show a limit." }
        } @else {
            ul.shown { @for one in shown { li {
                p { (one.fact) }
                p.soft { "Shown by " code { "cargo test --test expressivity " (one.test) } }
            } } }
            p.soft {
                "The weights are set by hand, so this is what the mixer can express and not what it learns. Sequences "
                "have 100,000 random bits where nothing else is said."
            }
        }
    }
}

/// The settings of the model that a page trains.
pub fn settings(mixer: &str) -> String {
    format!(
        "models = [\"{mixer}\"]\nseed = 0\nsteps = 1000\nbatch = 16\ntrain_len = 16\neval_lens = [16, 32, 64]\n\
         eval_batches = 2\neval_batch = 32\nlr = 1e-2\nwarmup = 50\nmicro_batches = 1\ndevice = \"cpu\"\n\n\
         [model]\nlayers = 1\nwidth = 16\nheads = 2\nhead_dim = 8\nmlp = 32\n"
    )
}

/// Where the model is trained, and beside it its parent: the script fills it.
fn lab(mixer: &str) -> Markup {
    let parent = about(mixer).parent.map(|p| p.0);
    let signed = models::names_with(|has| has.eigenvalues);
    let any_signed = [Some(mixer), parent].iter().flatten().any(|name| signed.contains(name));
    let panel = |mixer: &str, hidden: bool| {
        html! {
            div.panel data-settings=(settings(mixer)) data-signed[signed.contains(&mixer)] hidden[hidden] {
                h3 { (name(mixer)) }
                dl.meters {
                    div { dt { "step" } dd.step { "0" } }
                    div { dt { "loss" } dd.loss { "–" } }
                    @for len in [16, 32, 64] { div { dt { "right at " (len) } dd data-len=(len) { "–" } } }
                }
                canvas.curve role="img" aria-label="The loss over the steps" width="600" height="90" {}
                p.told role="status" {}
                p.wrong role="alert" {}
                div.seen {}
            }
        }
    };
    html! {
        p {
            "One block of this mixer, of width 16, learns parity: after each bit, is the number of ones so far even (1) "
            "or odd (0)? It is the library itself that runs in this page. It trains on sequences of 16 bits; those of "
            "32 and 64 show whether it has found the rule."
        }
        form #lab {
            div.controls {
                button #train type="button" { "Train" }
                button #restart type="button" disabled { "Start over" }
                @if any_signed { label { input #signed type="checkbox" checked; " eigenvalues from −1 to 1" } }
                @if let Some(parent) = parent {
                    label { input #beside type="checkbox"; " beside its parent, " (name(parent)) }
                }
                label { "seed " input #seed type="number" min="0" max="9999" value="0"; }
            }
            label for="bits" { "Type bits, and see what the model does with each" }
            input #bits type="text" inputmode="numeric" autocomplete="off" spellcheck="false" value="0110100110010110";
            label.place { "look at bit " input #place type="range" min="1" max="16" value="16"; }
            div.panels {
                (panel(mixer, false))
                @if let Some(parent) = parent { (panel(parent, true)) }
            }
        }
        noscript { p { "Training needs JavaScript." } }
    }
}
