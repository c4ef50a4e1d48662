//! The pages.

use super::{
    cores::{self, Core},
    cost::{self, Cost},
    equations::{self, Row},
    prose::{self, Part},
    tracks,
};
use crate::{
    exercises::EXERCISES,
    inspect::{
        page::{self as inspector, PAINT},
        view,
    },
    models::{self, About, Family, UNKNOWN},
    report::{mathml::math, plot},
};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use std::{collections::BTreeMap, ops::RangeInclusive};

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

/// The script that has the inspector's page, with a place for its data.
pub fn inspector() -> String {
    let page = inspector::around("The inspector", "@DATA@");
    format!("'use strict';\nwindow.inspectorPage = {};\n", serde_json::json!(page))
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
                @if trains { script src="engine.js" defer {} script src="inspector.js" defer {} }
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
            p {
                "Where its eigenvalues are the same for every token, or real and not negative, no parity is possible at any "
                "length; products of reflections permute. Some mixers have a switch, " code { "--eigenvalues -1..1" } ", with "
                "which their states can flip. What can be learned is another matter than what can be expressed: "
                code { "docs/state_tracking.md" } " has what training found."
            }
            p { a href="tour.html" { "A guided tour of eight stops" } " leads from a counter to a rotation. "
                a href="table.html" { "A table" } " has all mixers beside one another. "
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

/// A table of all mixers, by the kind of their state.
pub fn table() -> String {
    let main = html! {
        header.top { nav aria-label="Pages" { a href="index.html" { "The annotated zoo" } a href="tour.html" { "The tour" } } }
        main #main tabindex="-1" {
            h1 { "All mixers in one table" }
            p {
                "H heads have keys of K and values of V channels, N is the number of states, P that of Mamba-2's and Mamba-3's "
                "channels for each head, E that of Mamba's inner channels, D the width, n the steps of a token, C a stretch, "
                "and t the tokens so far. A step's multiplications are those beside the projections. "
                code { "tapezoo models" } " prints the same."
            }
            @for family in Family::present() {
                @let members: Vec<&str> = models::names().into_iter().filter(|n| about(n).family == family).collect();
                h2 { (family.title()) }
                div.scroll tabindex="0" role="region" aria-label=(family.title()) { table {
                    tr { @for head in ["mixer", "transition", "eigenvalues", "state", "a step", "forms"] { th scope="col" { (head) } } }
                    @for mixer in members { tr {
                        th scope="row" { a href=(file(mixer)) { (name(mixer)) } }
                        td { (PreEscaped(math(about(mixer).transition))) }
                        td { (words(about(mixer).eigenvalues)) }
                        td { (PreEscaped(math(about(mixer).state))) }
                        td { (PreEscaped(math(about(mixer).cost))) }
                        td { (forms(mixer)) }
                    } }
                } }
            }
        }
    };
    around("All mixers in one table: the annotated zoo", &main, false)
}

/// The forms of a mixer.
fn forms(mixer: &str) -> String {
    let forms = models::forms(&models::ModelConfig { mixer: mixer.into(), ..Default::default() }).unwrap_or_default();
    forms.iter().map(|form| form.kind()).collect::<Vec<_>>().join(", ")
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

/// A file with equations and the code that computes them, as a page shows it.
struct File<'a> {
    source: &'a str,
    parts: Vec<Part>,
    /// How many lines its documentation has.
    head: usize,
    rows: Vec<Row>,
    /// The lines of each row.
    links: Vec<Vec<RangeInclusive<usize>>>,
    shapes: Vec<Vec<(String, String)>>,
    /// What the places of its rows and lines begin with: "eq-" and "L".
    places: [&'static str; 2],
}

impl File<'_> {
    fn new<'a>(source: &'a str, places: [&'static str; 2]) -> File<'a> {
        let (parts, head) = prose::parts(source);
        let blocks = parts.iter().filter_map(|part| if let Part::Equations(block) = part { Some(block) } else { None });
        let rows: Vec<Row> = blocks.flat_map(|block| equations::rows(block)).collect();
        let links = equations::links(source, &rows);
        let shapes = equations::shapes_of(&rows, &equations::shapes(source));
        File { source, parts, head, rows, links, shapes, places }
    }

    /// The lines of the op that compute each row, where the op calls what it computes by a name that one row has.
    fn lines_in(&self, core: Option<&File>) -> Vec<Vec<RangeInclusive<usize>>> {
        let mut all = vec![vec![]; self.rows.len()];
        for mark in core.iter().flat_map(|core| equations::marks(core.source)) {
            if let [one] = equations::named(&self.rows, mark.name)[..] {
                all[one].push(mark.line);
            }
        }
        all.iter().map(|lines: &Vec<usize>| equations::ranges(lines)).collect()
    }
}

/// The page of a mixer.
pub fn page(mixer: &str, trains: bool) -> String {
    let about = about(mixer);
    let file_of = File::new(models::source(mixer).unwrap_or_default(), ["eq-", "L"]);
    let core = cores::of(mixer);
    let op = core.map(|core| File::new(core.source, ["op-eq-", "P"]));
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
                    (documentation(&file_of, &file_of.lines_in(op.as_ref())))
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
            section #op aria-labelledby="h-op" { h2 #h-op { "In one op, and backwards" } (backwards(core, op.as_ref())) }
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

/// The op that runs the recurrence over a sequence, and how a gradient comes back through it.
fn backwards(core: Option<&Core>, op: Option<&File>) -> Markup {
    let Some((core, op)) = core.zip(op) else {
        return html! { p {
            "No op has this recurrence as a whole. The tape records the lines above as they run, and the gradient is what it "
            "finds on the way back through them, from the last token to the first: each product, sum or function has a "
            "derivative of its own in " code { "src/ops/primitives" } "."
        } };
    };
    let marked: Vec<usize> = equations::marks(op.source).iter().map(|mark| mark.line).collect();
    html! {
        p {
            "Over a sequence the other forms run the op " code { (core.op) } ". Its formula, below, is its definition. "
            "Backwards the tape goes through the formula's lines from the last step to the first, and each op in a line has "
            "a derivative of its own, down to those in " code { "src/ops/primitives" } ". A kernel that computes the op "
            "faster must give this gradient: " code { "cargo test --test kernels" } "."
        }
        div.pair {
            div { (documentation(op, &vec![vec![]; op.rows.len()])) }
            div {
                p.soft { code { "src/ops/" (core.file) } ", the lines of the formula." }
                (code(op, &cores::functions(op.source, &marked)))
            }
        }
    }
}

/// The documentation of a file, its equations linked with the code; `elsewhere` are the lines in the op's file.
fn documentation(file_of: &File, elsewhere: &[Vec<RangeInclusive<usize>>]) -> Markup {
    let page = |name: &str| models::names().contains(&name).then(|| file(name));
    let text = |text: &str| PreEscaped(prose::inline(text, &page));
    let mut from = 0;
    let mut blocks = vec![];
    for part in &file_of.parts {
        let n = if let Part::Equations(block) = part { equations::rows(block).len() } else { 0 };
        blocks.push(from..from + n);
        from += n;
    }
    html! {
        @for (part, rows) in file_of.parts.iter().zip(blocks) {
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
                Part::Equations(_) => {
                    ol.equations { @for i in rows { (equation(file_of, i, &elsewhere[i])) } }
                },
            }
        }
    }
}

/// A row of equations.
fn equation(file_of: &File, i: usize, elsewhere: &[RangeInclusive<usize>]) -> Markup {
    let (row, lines, [eq, l]) = (&file_of.rows[i], &file_of.links[i], file_of.places);
    let label = row.label(i);
    let (columns, remarks): (Vec<&String>, Vec<&String>) = row.remarks.iter().partition(|remark| is_equation(remark));
    let all = [spelled(l, lines), spelled("P", elsewhere)].concat().join(",");
    html! {
        li id={ (eq) (i + 1) } class=[row.goes_on.then_some("on")] data-lines=[Some(all).filter(|all| !all.is_empty())] {
            div.row {
                @if !row.text.contains(['=', '←']) { span { (words(&row.text)) } } @else {
                    @for clause in clauses(&row.text) { div.scroll { (PreEscaped(math(clause))) } }
                }
                @for column in columns { div.scroll { (PreEscaped(math(column))) } }
                @if let Some(label) = &label { " " span.number { (label) } }
            }
            div.notes {
                @if let Some(place) = row.number.as_deref().filter(|number| Some(*number) != label.as_deref()) {
                    span { (words(place.trim_matches(['(', ')']))) }
                }
                @for remark in remarks { span { (remarked(remark)) } }
                @for (symbols, shape) in &file_of.shapes[i] { span.shape { i { (symbols) } " " code { (shape) } } }
                @if let Some(first) = lines.first() { a.lines href={ "#" (l) (first.start()) } { (named(lines)) } }
                @if let Some(first) = elsewhere.first() {
                    a.lines href={ "#P" (first.start()) } { "in one op: " (named(elsewhere)) }
                }
            }
        }
    }
}

/// The equations of a row, with the comma or semicolon behind each.
fn clauses(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive(",  ").flat_map(|part| part.split_inclusive(";  ")).map(str::trim)
}

/// Whether a column beside an equation is another one, of a symbol with an index, a matrix, or a gradient.
fn is_equation(column: &str) -> bool {
    let left = column.split_once(" = ").or_else(|| column.split_once(" ← ")).map_or("", |sides| sides.0);
    !left.contains(' ') && (left.contains('_') || left.starts_with(|c: char| c.is_uppercase() || c == 'd'))
}

/// A remark: mathematics, where it looks like some, or words.
fn remarked(remark: &str) -> Markup {
    let is_math = |part: &str| part.contains(['=', '←', '∈', '≤', 'Σ', '_']) || part.chars().count() == 1;
    html! { @for (i, part) in remark.split("; ").enumerate() {
        @if i > 0 { "; " }
        @if is_math(part) { span.scroll { (PreEscaped(math(part))) } } @else { (words(part)) }
    } }
}

/// "L49-55" and "L60-60".
fn spelled(prefix: &str, lines: &[RangeInclusive<usize>]) -> Vec<String> {
    lines.iter().map(|range| format!("{prefix}{}-{}", range.start(), range.end())).collect()
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

/// Some of the code of a file, line by line: ranges of lines from 0.
fn code(file_of: &File, ranges: &[RangeInclusive<usize>]) -> Markup {
    let lines: Vec<&str> = file_of.source.lines().collect();
    let [eq, l] = file_of.places;
    let of = |range: &RangeInclusive<usize>| {
        let shown = range.clone().filter(|&i| i < lines.len());
        shown.skip_while(|&i| lines[i].trim().is_empty()).collect::<Vec<usize>>()
    };
    let marks = equations::marks(file_of.source);
    let computed = |line: usize| {
        let mut rows: Vec<usize> = (marks.iter().filter(|mark| mark.line == line))
            .flat_map(|mark| equations::named(&file_of.rows, mark.name))
            .collect();
        rows.dedup();
        rows
    };
    html! {
        pre.source tabindex="0" role="region" aria-label="The code" { code { @for (n, range) in ranges.iter().enumerate() {
            @if n > 0 { span.line { "…\n" } }
            @for i in of(range) {
                span.line id={ (l) (i + 1) } data-n=(i + 1) {
                    span.gutter { @for row in computed(i + 1) {
                        a.back href={ "#" (eq) (row + 1) } title=(file_of.rows[row].text)
                            aria-label={ "computes " (file_of.rows[row].text) } {
                            (file_of.rows[row].label(row).unwrap_or_default().trim_matches(['(', ')']).trim_start_matches("eq. "))
                        }
                    } }
                    @let (code, comment) = lines[i].find("//").map_or((lines[i], ""), |at| lines[i].split_at(at));
                    (code) @if !comment.is_empty() { span.comment { (comment) } }
                    "\n"
                }
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
    html! {
        dl.facts {
            div { dt { "transition A" sub { "t" } } dd { (PreEscaped(math(about.transition))) } }
            div { dt { "its eigenvalues" } dd { (words(about.eigenvalues)) } }
            div { dt { "state of a block, in numbers" } dd { (PreEscaped(math(about.state))) } }
            div { dt { "multiplications of a step, beside projections" } dd { (PreEscaped(math(about.cost))) } }
            div { dt { "forms" } dd { (forms(mixer)) } }
            div { dt { "paper" } dd { (words(about.source)) } }
        }
        p.soft {
            "H heads of width K = V, N states, D channels; t tokens so far. All forms give the same values, states and "
            "gradients."
        }
        (measured(mixer))
    }
}

/// Time and memory as measured, beside those of the parent.
fn measured(mixer: &str) -> Markup {
    let lines = [Some(mixer), about(mixer).parent.map(|p| p.0)];
    let lines: Vec<(String, Vec<Cost>)> =
        lines.into_iter().flatten().map(|mixer| (name(mixer), cost::of(mixer))).collect();
    let Some(first) = lines[0].1.first() else {
        return html! { p.soft {
            "Time and memory of this mixer are not measured yet; " code { "cargo run --release --example scaling -- --data "
            "src/book/cost.tsv" } " measures those that are missing."
        } };
    };
    let (form, [build, processor]) = (first.form, first.place);
    let lines: Vec<_> = lines.into_iter().filter(|line| !line.1.is_empty()).collect();
    html! {
        div.measured { @for figure in cost::figures(&lines) { div { (figure.inline()) } } }
        p { @for (style, line) in lines.iter().enumerate() { span.key { span class={ "dot s" (style) } {} (line.0) } " " } }
        p.soft {
            "One block of width 16, batch 1, one thread, in the form " (form) ": the fastest of some steps, and the memory by "
            "which the process has grown. Measured with " (build) " on " (processor) "."
        }
    }
}

fn tracked(mixer: &str) -> Markup {
    let (spectrum, mut shown) = (view::of(mixer).map(|view| view.spectrum), tracks::of(mixer).peekable());
    let mut untested = tracks::untested(mixer).peekable();
    html! {
        @if let Some(text) = tracks::buys(mixer) { p { (words(&text)) } }
        @if let Some(sentence) = spectrum { p { (words(sentence)) } }
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

/// The settings of the model that a page trains.
pub fn settings(mixer: &str) -> String {
    format!(
        "models = [\"{mixer}\"]\nseed = 0\nsteps = 1000\nbatch = 16\ntrain_len = 16\neval_lens = [16, 32, 64]\n\
         eval_batches = 2\neval_batch = 32\nlr = 1e-2\nwarmup = 50\nmicro_batches = 1\ndevice = \"cpu\"\n\n\
         [model]\nlayers = 1\nwidth = 16\nheads = 2\nhead_dim = 8\nmlp = 32\n"
    )
}

/// The equations of the inspector's views of these mixers, as mathematics.
fn mathematics(mixers: &[Option<&str>]) -> String {
    let of = |mixer: &&str| {
        let equations = view::of(mixer).map_or(&[][..], |view| view.equations).iter();
        (mixer.to_string(), equations.map(|(symbols, _)| math(symbols)).collect::<Vec<_>>())
    };
    let all: BTreeMap<String, Vec<String>> = mixers.iter().flatten().map(of).collect();
    serde_json::json!(all).to_string().replace('<', "\\u003c")
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
            details #inspector {
                summary { "Step through it: the inspector of this model" @if parent.is_some() { ", and of its parent where that is shown" } }
                p.soft {
                    "Every quantity of the block at every bit, and the equations with their numbers. It shows the weights as "
                    "they are now: train first, or look at how a model begins."
                }
                iframe #frame title="The inspector of the model above" {}
            }
        }
        script type="application/json" #equations-set { (PreEscaped(mathematics(&[Some(mixer), parent]))) }
        noscript { p { "Training needs JavaScript." } }
    }
}
