//! The equations of a file, row by row, the lines of its code that compute each, and the shapes of what they compute.
//!
//! A line of code says which equation it computes, in a comment behind it that begins with names in brackets:
//!
//! ```text
//! let beta = x.linear(p[self.w_beta], None).sigmoid(); // (β_t)
//! let s = s + outer(k, v); // (1) [B, H, K, V]
//! ```
//!
//! The name of an equation is its number in the file's block of equations, or what it begins with: (1) or (S_t) for
//! `S_t = S_{t-1} + k_t v_tᵀ  (1)`. A comment on a line of its own is about the next line of code.

use super::prose::Part;
use std::ops::RangeInclusive;

/// A row of a block of equations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The equation, or several with two spaces between them.
    pub text: String,
    /// Whether it goes on with the row before.
    pub goes_on: bool,
    /// The remarks beside it.
    pub remarks: Vec<String>,
    /// Its number, as the file has it: "(1)", "(eq. 16, 17)".
    pub number: Option<String>,
}

/// The rows of a block.
pub fn rows(block: &str) -> Vec<Row> {
    block.lines().filter(|line| !line.trim().is_empty()).map(row).collect()
}

/// The rows of all blocks of a documentation.
pub fn all(parts: &[Part]) -> Vec<Row> {
    let blocks = parts.iter().filter_map(|part| if let Part::Equations(block) = part { Some(block) } else { None });
    blocks.flat_map(|block| rows(block)).collect()
}

fn row(line: &str) -> Row {
    let (mut text, goes_on) = (line.trim(), line.starts_with(' '));
    let mut number = None;
    if let Some(at) = text.rfind("  (").filter(|_| text.ends_with(')')) {
        let inside = &text[at + 3..text.len() - 1];
        let is_number = inside.starts_with(|c: char| c.is_ascii_digit())
            || ["eq", "section", "figure", "algorithm"].iter().any(|word| inside.starts_with(word));
        if is_number && !inside.contains(" here") {
            number = Some(format!("({inside})"));
            text = text[..at].trim_end();
        }
    }
    let mut columns = text.split("    ").map(str::trim).filter(|column| !column.is_empty());
    let text = columns.next().unwrap_or_default().to_string();
    Row { text, goes_on, remarks: columns.map(Into::into).collect(), number }
}

impl Row {
    /// The numbers in its number.
    fn numbers(&self) -> Vec<usize> {
        let digits = |text: &str| text.trim_end_matches(|c: char| c.is_alphabetic()).parse().ok();
        let number =
            self.number.as_deref().filter(|n| n.starts_with("(eq") || n[1..].starts_with(|c: char| c.is_ascii_digit()));
        let number = number.unwrap_or_default();
        number.split(|c: char| !c.is_alphanumeric() && c != '.').filter_map(digits).filter(|n| *n < 100).collect()
    }

    /// Its equations, those in its remarks too.
    fn clauses(&self) -> impl Iterator<Item = &str> {
        let remarks = self.remarks.iter().filter(|remark| remark.contains(" = ") || remark.contains(" ← "));
        let all = [&self.text].into_iter().chain(remarks);
        all.flat_map(|text| text.split(",  ").flat_map(|part| part.split(";  "))).map(str::trim)
    }

    /// Whether this is a name of the row: its number, or what one of its equations begins with.
    fn is(&self, name: &str) -> bool {
        let goes_on = |c: char| c.is_alphanumeric() || "_^{'·".contains(c) || ('\u{300}'..='\u{36f}').contains(&c);
        let begins = |clause: &str| clause.strip_prefix(name).is_some_and(|rest| !rest.starts_with(goes_on));
        self.number.as_deref().is_some_and(|number| number.trim_matches(['(', ')']) == name)
            || self.clauses().any(|clause| begins(clause.trim_start_matches(['[', '('])))
    }

    /// Whether it is another way to write the row before.
    fn is_other_form(&self) -> bool {
        self.goes_on && self.text.starts_with('=')
    }

    /// The symbols that it computes, without indices: "β", "S".
    fn symbols(&self) -> Vec<&str> {
        let mut all = vec![];
        for clause in self.text.split(",  ").flat_map(|part| part.split(";  ")) {
            let left = clause.split_once(" = ").or_else(|| clause.split_once(" ← ")).map_or("", |sides| sides.0);
            let left = left.split_once(": ").map_or(left, |(_, left)| left);
            // A comma in the braces of an index parts nothing.
            let mut depth = 0;
            let parts = left.split(|c: char| {
                depth += i32::from(matches!(c, '{' | '(')) - i32::from(matches!(c, '}' | ')'));
                c == ',' && depth == 0
            });
            all.extend(parts.map(|part| {
                let part = part.trim().trim_matches(['[', ']']).trim_start_matches("ln ");
                part.split(['_', '^', '(']).next().unwrap_or_default()
            }));
        }
        all.retain(|symbol| !symbol.is_empty());
        all
    }

    /// The number of the file where it is short, or a letter for its place; none for a row that goes on.
    pub fn label(&self, place: usize) -> Option<String> {
        let own = self.number.clone().filter(|number| number.chars().count() <= 12 && !self.numbers().is_empty());
        let letter = || char::from_u32(u32::from('a') + place as u32).filter(|_| !self.goes_on && place < 26);
        own.or_else(|| letter().map(|letter| format!("({letter})")))
    }
}

/// A line that computes an equation, from 1, and the name by which it calls the equation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark<'a> {
    /// The line.
    pub line: usize,
    /// The name, without its brackets.
    pub name: &'a str,
}

/// The marks of a file.
pub fn marks(source: &str) -> Vec<Mark<'_>> {
    let mut all = vec![];
    let mut above: Vec<&str> = vec![];
    for (i, line) in source.lines().enumerate() {
        let (code, comment) = parts(line);
        above.extend(bracketed(comment).0);
        if !code.trim().is_empty() {
            all.extend(above.drain(..).map(|name| Mark { line: i + 1, name }));
        }
    }
    all
}

/// The code of a line, and the text of the comment behind it; documentation has neither.
fn parts(line: &str) -> (&str, &str) {
    match line.split_once("//") {
        Some((_, rest)) if rest.starts_with(['/', '!']) => ("", ""),
        Some((code, comment)) => (code, comment.trim_start()),
        None => (line, ""),
    }
}

/// The texts in the brackets that a comment begins with, and what follows them.
pub fn bracketed(text: &str) -> (Vec<&str>, &str) {
    let (mut all, mut rest) = (vec![], text);
    while let Some(inside) = rest.strip_prefix('(') {
        let mut depth = 1;
        let close = inside.char_indices().find(|(_, c)| {
            depth += i32::from(*c == '(') - i32::from(*c == ')');
            depth == 0
        });
        let Some((at, _)) = close else { break };
        all.push(&inside[..at]);
        rest = inside[at + 1..].trim_start();
    }
    (all, rest)
}

/// The places of the rows of this name.
pub fn named(rows: &[Row], name: &str) -> Vec<usize> {
    (0..rows.len()).filter(|&i| rows[i].is(name)).collect()
}

/// The lines of a file that compute each row, as ranges of lines from 1.
pub fn links(source: &str, rows: &[Row]) -> Vec<Vec<RangeInclusive<usize>>> {
    let mut lines: Vec<Vec<usize>> = vec![vec![]; rows.len()];
    for mark in marks(source) {
        named(rows, mark.name).into_iter().for_each(|i| lines[i].push(mark.line));
    }
    for i in 1..rows.len() {
        if rows[i].is_other_form() {
            lines[i] = lines[i - 1].clone();
        }
    }
    lines.iter().map(|lines| ranges(lines)).collect()
}

/// Lines in ascending order as ranges.
pub fn ranges(lines: &[usize]) -> Vec<RangeInclusive<usize>> {
    let mut all: Vec<RangeInclusive<usize>> = vec![];
    for &line in lines {
        match all.last_mut() {
            Some(last) if *last.end() + 1 >= line => *last = *last.start()..=line,
            _ => all.push(line..=line),
        }
    }
    all
}

/// The shapes that the documentation of a file says after "Shapes": a symbol, and "[B, T, H, K]".
pub fn shapes(source: &str) -> Vec<(String, String)> {
    let lines: Vec<&str> = source.lines().map_while(|line| line.strip_prefix("//!")).collect();
    let text = lines.join("\n").replace('`', "");
    let said = text.split_once("Shapes").map_or("", |after| after.1);
    let said = said.split("\n\n").next().unwrap_or_default().replace('\n', "");
    let mut rest = said.split_once(": ").map_or("", |said| said.1);
    let mut all = vec![];
    while let Some((before, inside)) = rest.split_once('[') {
        let Some((dims, after)) = inside.split_once(']') else { break };
        let names = before.trim_start_matches([',', ';', ' ']).trim_start_matches("and ").replace(" and ", ", ");
        all.extend(names.split(", ").map(|name| (name.trim().to_string(), format!("[{dims}]"))));
        rest = after;
    }
    all
}

/// The shapes of what each row computes, where another row's before it is different: symbols, and their shape.
pub fn shapes_of(rows: &[Row], shapes: &[(String, String)]) -> Vec<Vec<(String, String)>> {
    let mut before = vec![];
    let mut of_row = |row: &Row| {
        let mut all: Vec<(String, String)> = vec![];
        for symbol in row.symbols() {
            let Some((_, shape)) = shapes.iter().find(|shape| shape.0 == symbol) else { continue };
            match all.iter_mut().find(|one| one.1 == *shape) {
                Some(one) if one.0.split(", ").any(|known| known == symbol) => {}
                Some(one) => one.0 = format!("{}, {symbol}", one.0),
                None => all.push((symbol.to_string(), shape.clone())),
            }
        }
        let dims: Vec<String> = all.iter().map(|one| one.1.clone()).collect();
        let same = dims == before || dims.is_empty();
        if !dims.is_empty() {
            before = dims;
        }
        if same { vec![] } else { all }
    };
    rows.iter().map(&mut of_row).collect()
}
