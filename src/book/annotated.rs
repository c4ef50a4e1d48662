//! A file of the code as a page shows it: its equations, and beside them the lines that compute each.

use super::{
    backwards,
    equations::{self, Row},
    frame::words,
    prose::{self, Part},
    tree::{all, file},
};
use crate::{autograd::Called, report::mathml::math};
use maud::{Markup, PreEscaped, html};
use std::ops::RangeInclusive;

/// A file with equations and the code that computes them, as a page shows it.
pub struct File<'a> {
    /// The whole text.
    pub source: &'a str,
    parts: Vec<Part>,
    /// How many lines its documentation has.
    pub head: usize,
    /// The rows of its equations.
    pub rows: Vec<Row>,
    /// The lines of each row.
    links: Vec<Vec<RangeInclusive<usize>>>,
    shapes: Vec<Vec<(String, String)>>,
    /// The prefixes of the ids of its rows and lines: "eq-" and "L".
    places: [&'static str; 2],
}

impl File<'_> {
    /// The file with this text.
    pub fn new<'a>(source: &'a str, places: [&'static str; 2]) -> File<'a> {
        let (parts, head) = prose::parts(source);
        let rows = equations::all(&parts);
        let links = equations::links(source, &rows);
        let shapes = equations::shapes_of(&rows, &equations::shapes(source));
        File { source, parts, head, rows, links, shapes, places }
    }

    /// The ops in the lines of each row, of those that the mixer calls; the file is at this path.
    pub fn ops(&self, calls: &[Called], path: &str) -> Vec<Vec<&'static str>> {
        self.links.iter().map(|lines| backwards::ops(calls, path, self.source, lines)).collect()
    }

    /// The lines of the op that compute each row, where the op calls what it computes by a name that one row has.
    pub fn lines_in(&self, core: Option<&File>) -> Vec<Vec<RangeInclusive<usize>>> {
        let mut all = vec![vec![]; self.rows.len()];
        for mark in core.iter().flat_map(|core| equations::marks(core.source)) {
            if let [one] = equations::named(&self.rows, mark.name)[..] {
                all[one].push(mark.line);
            }
        }
        all.iter().map(|lines: &Vec<usize>| equations::ranges(lines)).collect()
    }
}

/// The documentation of a file, its equations linked with the code, and with the derivatives of the ops there;
/// `elsewhere` are the lines in the op's file.
pub fn documentation(file_of: &File, ops: &[Vec<&str>], elsewhere: &[Vec<RangeInclusive<usize>>]) -> Markup {
    let page = |name: &str| all().contains(&name).then(|| file(name));
    let text = |text: &str| PreEscaped(prose::inline(text, &page));
    let mut rows = 0..file_of.rows.len();
    html! {
        @for part in &file_of.parts {
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
                Part::Equations(block) => {
                    @let n = equations::rows(block).len();
                    ol.equations { @for i in rows.by_ref().take(n) { (equation(file_of, i, &ops[i], &elsewhere[i])) } }
                },
            }
        }
    }
}

/// A row of equations.
fn equation(file_of: &File, i: usize, ops: &[&str], elsewhere: &[RangeInclusive<usize>]) -> Markup {
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
                @if !ops.is_empty() { span { "backwards: " (backwards::links(ops)) } }
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
pub fn code(file_of: &File, ranges: &[RangeInclusive<usize>]) -> Markup {
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
                            (file_of.rows[row].label(row).unwrap_or("·".into()).trim_matches(['(', ')']).trim_start_matches("eq. "))
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
