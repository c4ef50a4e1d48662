//! The equations of a mixer's file, row by row, and the lines of its code that compute each.
//!
//! A row is linked with a line where a reader could say why: the function's documentation names the equation's number,
//! or the line binds the symbol on the equation's left (`let beta = …` for β_t). Only functions that the mixer's step
//! calls count, since the step is the definition. Where nothing is certain there is no link.

use std::ops::RangeInclusive;

/// A row of a block of equations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The equation, or several with two spaces between them.
    pub text: String,
    /// Whether it goes on with the row before.
    pub goes_on: bool,
    /// What stands beside it.
    pub remarks: Vec<String>,
    /// Its number, as the file has it: "(1)", "(eq. 16, 17)".
    pub number: Option<String>,
}

/// The rows of a block.
pub fn rows(block: &str) -> Vec<Row> {
    block.lines().filter(|line| !line.trim().is_empty()).map(row).collect()
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

    /// Its equations: the symbols on the left without indices, "β" or "S", and the right side.
    fn clauses(&self) -> Vec<(Vec<String>, &str)> {
        let mut clauses = vec![];
        for clause in self.text.split(",  ").flat_map(|part| part.split(";  ")) {
            let Some((left, right)) = clause.split_once(" = ").or_else(|| clause.split_once(" ← ")) else { continue };
            let mut depth = 0;
            let parts = left.split(|c: char| {
                depth += i32::from(matches!(c, '{' | '(')) - i32::from(matches!(c, '}' | ')'));
                c == ',' && depth == 0
            });
            let symbol = |part: &str| {
                let part = part.trim().trim_matches(['[', ']']).trim_start_matches("ln ").trim_start_matches("both: ");
                part.split(['_', '^', '(']).next().unwrap_or_default().to_string()
            };
            clauses.push((parts.map(symbol).collect(), right));
        }
        clauses
    }

    /// The number of the file where it is short, or a letter for its place; none for a row that goes on.
    pub fn label(&self, place: usize) -> Option<String> {
        let own = self.number.clone().filter(|number| number.chars().count() <= 12 && !self.numbers().is_empty());
        let letter = || char::from_u32(u32::from('a') + place as u32).filter(|_| !self.goes_on && place < 26);
        own.or_else(|| letter().map(|letter| format!("({letter})")))
    }
}

/// What a symbol may be called in the code.
fn names(symbol: &str) -> Vec<String> {
    const LETTERS: [(&str, &[&str]); 27] = [
        ("α", &["alpha"]),
        ("β", &["beta"]),
        ("γ", &["gamma"]),
        ("δ", &["delta"]),
        ("Δ", &["dt", "delta"]),
        ("ε", &["eps"]),
        ("η", &["eta"]),
        ("θ", &["theta"]),
        ("κ", &["kappa"]),
        ("λ", &["lambda"]),
        ("μ", &["mu"]),
        ("ν", &["nu"]),
        ("ξ", &["xi", "asked"]),
        ("π", &["pi"]),
        ("ρ", &["rho"]),
        ("φ", &["phi"]),
        ("ω", &["omega"]),
        ("ℓ", &["lr", "rate"]),
        ("Ā", &["a_bar"]),
        ("B̄", &["b_bar"]),
        ("K̃", &["keys"]),
        ("Ṽ", &["values"]),
        ("ĩ", &["i", "i_pre"]),
        ("f̃", &["f", "f_pre"]),
        ("M", &["m", "momentum"]),
        ("S'", &["faded", "s"]),
        ("κᵀ", &["kappa"]),
    ];
    let spelled = LETTERS.iter().find(|pair| pair.0 == symbol).map_or(&[][..], |pair| pair.1);
    let plain = symbol.trim_matches(['\'', '\u{302}', '\u{303}', '\u{304}']);
    let own = Some(plain.to_lowercase()).filter(|name| name.is_ascii() && !name.is_empty() && spelled.is_empty());
    spelled.iter().map(|&name| name.into()).chain(own).collect()
}

/// A function of a file: lines are counted from 0.
struct Function<'a> {
    name: &'a str,
    docs: String,
    first: usize,
    last: usize,
    /// Whether it is of the implementation of `Mixer`.
    of_mixer: bool,
}

fn functions<'a>(lines: &[&'a str]) -> Vec<Function<'a>> {
    let mut found = vec![];
    let mut of_mixer = false;
    for (at, line) in lines.iter().enumerate() {
        if line.starts_with("impl") {
            of_mixer = line.starts_with("impl Mixer");
        }
        let bare = line.trim_start();
        let indent = line.len() - bare.len();
        let Some(rest) =
            ["pub fn ", "pub(super) fn ", "pub(crate) fn ", "fn "].iter().find_map(|f| bare.strip_prefix(f))
        else {
            continue;
        };
        let name = rest.split(['<', '(']).next().unwrap_or_default();
        let ends = |line: &str| line.starts_with(&" ".repeat(indent)) && line[indent..].starts_with('}');
        let last = match bare.ends_with('}') {
            true => at,
            false => (at + 1..lines.len()).find(|&i| ends(lines[i])).unwrap_or(at),
        };
        let mut docs: Vec<&str> =
            lines[..at].iter().rev().map_while(|line| line.trim_start().strip_prefix("///")).map(str::trim).collect();
        docs.reverse();
        found.push(Function { name, docs: docs.join(" "), first: at, last, of_mixer });
    }
    found
}

impl Function<'_> {
    /// The numbers of the equations that its documentation says it computes.
    fn equations(&self) -> Vec<usize> {
        let said = self.docs.split_once("quation").or_else(|| self.docs.split_once("(eq. "));
        let first = self.docs.starts_with('(').then_some(("", self.docs.as_str()));
        let Some((_, rest)) = said.or(first) else { return vec![] };
        let rest = rest.trim_start_matches('s').trim_start();
        let end = rest.find([':', '.']).unwrap_or(rest.len()).min(rest.find(" for ").unwrap_or(rest.len()));
        let words: Vec<&str> = rest[..end].split_whitespace().map(|w| w.trim_matches(['(', ')', ','])).collect();
        let mut all: Vec<usize> = vec![];
        let mut range = false;
        for word in words {
            match word.parse() {
                Ok(n) if range => {
                    let from = all.last().map_or(n, |last| last + 1);
                    all.extend(from..=n);
                    range = false;
                }
                Ok(n) => all.push(n),
                Err(_) if word == "to" => range = true,
                Err(_) if word == "and" => {}
                Err(_) => break,
            }
        }
        all
    }
}

/// The identifiers of a text.
fn identifiers(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty())
}

/// The line on which the statement that begins here ends.
fn end_of_statement(lines: &[&str], first: usize, last: usize) -> usize {
    let mut depth = 0;
    for (at, line) in lines.iter().enumerate().take(last + 1).skip(first) {
        let code = line.split("//").next().unwrap_or_default();
        depth += code.chars().map(|c| i32::from("([{".contains(c)) - i32::from(")]}".contains(c))).sum::<i32>();
        if depth <= 0 && code.trim_end().ends_with(';') {
            return at;
        }
    }
    first
}

/// What a statement binds, and to what, if it binds anything: parts of a tuple or an array one by one.
fn bindings(statement: &str) -> Vec<(&str, &str)> {
    let code = statement.trim().trim_end_matches(';');
    let Some((left, right)) = code.split_once(" = ").or_else(|| code.split_once(" += ")) else { return vec![] };
    if ["if ", "while ", "state."].iter().any(|word| left.starts_with(word)) || left.contains("Some(") {
        return vec![];
    }
    let bound = left.strip_prefix("let ").map_or(left, |bound| bound.split(": ").next().unwrap_or(bound));
    if !bound.chars().all(|c| c.is_alphanumeric() || "_[](), &.*".contains(c)) {
        return vec![];
    }
    paired(bound, right)
}

fn paired<'a>(bound: &'a str, right: &'a str) -> Vec<(&'a str, &'a str)> {
    // Heads are put side by side, which computes nothing.
    let right = match right.find("].map(").filter(|_| right.starts_with('[')) {
        Some(at) if ["head", "permute", "at(x"].iter().any(|word| right[at..].contains(word)) => &right[..=at],
        _ => right,
    };
    match (elements(bound), elements(right)) {
        (Some(lefts), Some(rights)) if lefts.len() == rights.len() => {
            lefts.into_iter().zip(rights).flat_map(|(left, right)| paired(left, right)).collect()
        }
        _ => vec![(bound, right)],
    }
}

/// The elements of a tuple or an array.
fn elements(text: &str) -> Option<Vec<&str>> {
    let text = text.trim().trim_start_matches("mut ");
    let inside = text.strip_prefix('(').and_then(|t| t.strip_suffix(')'));
    let inside = inside.or_else(|| text.strip_prefix('[').and_then(|t| t.strip_suffix(']')))?;
    let mut depth = 0;
    let mut all = vec![];
    let mut from = 0;
    for (at, c) in inside.char_indices() {
        depth += i32::from("([{".contains(c)) - i32::from(")]}".contains(c));
        if depth < 0 {
            return None;
        }
        if c == ',' && depth == 0 {
            all.push(inside[from..at].trim());
            from = at + 1;
        }
    }
    all.push(inside[from..].trim());
    all.retain(|element| !element.is_empty());
    Some(all)
}

/// Whether what is bound is only another view of what there is.
fn only_moved(right: &str) -> bool {
    const MOVES: [&str; 8] = ["reshape", "permute", "narrow", "dims", "shape", "at", "named", "last"];
    let right = right.trim();
    let path = |text: &str| text.chars().all(|c| c.is_alphanumeric() || "_.[]*&(), ".contains(c));
    if right.starts_with("vec![") || ["at(", "head_first(", "heads_first("].iter().any(|f| right.starts_with(f)) {
        return true;
    }
    let word = |text: &str| text.len() - text.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_').len();
    if path(right) && !right.contains('(') || elements(right).is_some_and(|all| all.iter().all(|e| only_moved(e))) {
        return true;
    }
    let mut rest = &right[word(right)..];
    while let Some(method) = rest.strip_prefix('.') {
        let n = word(method);
        let after = &method[n..];
        if let Some(arguments) = after.strip_prefix('(') {
            let mut depth = 1;
            let end = arguments.char_indices().find(|(_, c)| {
                depth += i32::from("([{".contains(*c)) - i32::from(")]}".contains(*c));
                depth == 0
            });
            let (true, Some((end, _))) = (MOVES.contains(&&method[..n]), end) else { return false };
            rest = &arguments[end + 1..];
        } else {
            rest = after;
        }
    }
    rest.is_empty()
}

/// How much of the right side of an equation a piece of code shows: functions by their names, and symbols.
fn evidence(right: &str, code: &str) -> usize {
    const FUNCTIONS: [(&str, &[&str]); 18] = [
        ("σ(", &["sigmoid"]),
        ("softplus(", &["softplus"]),
        ("tanh", &["tanh"]),
        ("SiLU(", &["silu", "apply"]),
        ("GELU(", &["gelu"]),
        ("ReLU(", &["relu"]),
        ("elu(", &["elu"]),
        ("conv(", &["conv", "conv1d", "apply"]),
        ("softmax", &["softmax"]),
        ("exp(", &["exp", "decay"]),
        ("e^", &["exp", "log"]),
        ("ln ", &["log"]),
        ("max(", &["maximum", "max"]),
        ("Norm(", &["norm"]),
        ("LN(", &["norm"]),
        ("‖", &["l2", "norm"]),
        ("W_", &["linear", "apply", "project"]),
        ("ᵀ", &["matmul", "outer", "recall", "add", "erase", "write"]),
    ];
    // What stands in the braces of an index is no symbol of its own.
    let mut bare = String::new();
    let mut depth = 0;
    for c in right.chars() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if depth == 0 && c != '}' {
            bare.push(c);
        }
    }
    let words: Vec<&str> = identifiers(code).collect();
    let parts: Vec<&str> = words.iter().flat_map(|word| word.split('_')).collect();
    let functions = FUNCTIONS.iter().filter(|f| right.contains(f.0) && f.1.iter().any(|name| parts.contains(name)));
    let mut symbols: Vec<&str> = bare.split(|c: char| !(c.is_alphabetic() || "_^'".contains(c))).collect();
    symbols.iter_mut().for_each(|symbol| *symbol = symbol.split(['_', '^']).next().unwrap_or_default());
    symbols.sort_unstable();
    symbols.dedup();
    let said = |symbol: &str| {
        !matches!(symbol, "" | "p" | "x" | "x'" | "W" | "b" | "s" | "h")
            && names(symbol).iter().any(|name| words.contains(&name.as_str()))
    };
    functions.count() + symbols.iter().filter(|symbol| said(symbol)).count()
}

/// What is not the definition: other forms, and what sets up.
const OTHER: [&str; 7] = ["new", "parallel", "chunked", "chunk", "fused", "scan", "quadratic"];

/// The lines of a file that compute each row of its first block of equations, as ranges of lines from 1.
pub fn links(source: &str, rows: &[Row]) -> Vec<Vec<RangeInclusive<usize>>> {
    let lines: Vec<&str> = source.lines().collect();
    let all = functions(&lines);
    // The definition: the mixer's step, or where it has none its sequence, which then computes one token.
    let own = |name: &str| (0..all.len()).find(|&i| all[i].of_mixer && all[i].name == name);
    let definition = own("step").or_else(|| own("sequence"));
    // What it calls, and what that calls.
    let mut reached: Vec<usize> = definition.into_iter().collect();
    let mut next = 0;
    while let Some(&i) = reached.get(next) {
        let body = lines[all[i].first + usize::from(all[i].last > all[i].first)..=all[i].last].join("\n");
        for (j, other) in all.iter().enumerate() {
            let called =
                identifiers(&body).any(|word| word == other.name) && body.contains(&format!("{}(", other.name));
            if called && !OTHER.contains(&other.name) && !reached.contains(&j) {
                reached.push(j);
            }
        }
        next += 1;
    }
    let local = |right: &str| {
        let first = identifiers(right.trim_start().trim_start_matches("self.")).next();
        first.is_some_and(|word| all.iter().any(|f| f.name == word))
            && (right.trim_start().starts_with("self.") || !right.trim_start().starts_with('('))
    };
    // What the step gives back is called `out` where it is not called y.
    let out = rows.iter().flat_map(Row::clauses).any(|(symbols, _)| symbols.iter().any(|symbol| symbol == "out"));
    let given_back = if out { "out" } else { "y" };
    let of_row = |row: &Row| {
        let numbers = row.numbers();
        let says = |f: &Function| f.equations().iter().any(|n| numbers.contains(n));
        let (mut in_named, mut elsewhere) = (vec![], vec![]);
        let mut result = false;
        for (symbols, right_side) in row.clauses() {
            let ends = symbols.iter().any(|symbol| symbol == given_back);
            result |= ends;
            let wanted: Vec<String> = symbols.iter().flat_map(|symbol| names(symbol)).collect();
            let mut found: Vec<(usize, bool, RangeInclusive<usize>)> = vec![];
            for f in reached.iter().map(|&i| &all[i]).filter(|f| !ends || says(f)) {
                let mut at = f.first + 1;
                while at < f.last {
                    let end = end_of_statement(&lines, at, f.last);
                    let statement = lines[at..=end].join("\n");
                    for (bound, right) in bindings(&statement) {
                        let wants = identifiers(bound).any(|name| wanted.iter().any(|w| w == name));
                        let score = evidence(right_side, right);
                        if wants && score > 0 && !only_moved(right) && !local(right) {
                            found.push((score, says(f), at + 1..=end + 1));
                        }
                    }
                    at = end + 1;
                }
            }
            let best = found.iter().map(|one| one.0).max().unwrap_or(0);
            for (_, named, range) in found.into_iter().filter(|one| 2 * one.0 > best) {
                let into = if named { &mut in_named } else { &mut elsewhere };
                if !into.contains(&range) {
                    into.push(range);
                }
            }
        }
        if !in_named.is_empty() {
            return in_named;
        }
        // The function that is documented for the fewest equations, this one among them.
        let whole = reached.iter().map(|&i| &all[i]).filter(|f| says(f)).min_by_key(|f| f.equations().len());
        if let Some(f) = whole {
            return vec![f.first + 1..=f.last + 1];
        }
        if !elsewhere.is_empty() {
            elsewhere.sort_by_key(|range| *range.start());
            return elsewhere;
        }
        if !result {
            return vec![];
        }
        // What the definition gives back.
        let output = reached.iter().map(|&i| &all[i]).find(|f| f.name == "output");
        match output {
            Some(f) => vec![f.first + 1..=f.last + 1],
            None => definition.map(|i| last_expression(&lines, &all[i])).into_iter().collect(),
        }
    };
    rows.iter().map(of_row).collect()
}

/// The lines of what a function gives back.
fn last_expression(lines: &[&str], f: &Function) -> RangeInclusive<usize> {
    let mut at = f.first + 1;
    while at < f.last {
        let end = end_of_statement(lines, at, f.last);
        if end == at && !lines[at].split("//").next().unwrap_or_default().trim_end().ends_with(';') {
            break;
        }
        at = end + 1;
    }
    at.min(f.last) + 1..=f.last.max(f.first + 1)
}
