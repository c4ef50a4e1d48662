//! The documentation at the head of a mixer's file, as parts of a page.

use crate::report::mathml::escaped;

/// A part of the documentation.
#[derive(Debug, PartialEq, Eq)]
pub enum Part {
    /// A paragraph.
    Text(String),
    /// A block of equations.
    Equations(String),
    /// A table: its head, and its rows.
    Table(Vec<Vec<String>>),
    /// A list.
    List(Vec<String>),
}

/// The head of a file: its parts, and how many lines it has.
pub fn parts(source: &str) -> (Vec<Part>, usize) {
    let lines: Vec<&str> = source.lines().map_while(|line| line.strip_prefix("//!")).collect();
    let bare = |line: &str| line.strip_prefix(' ').unwrap_or(line).trim_end().to_string();
    let (mut parts, mut at) = (vec![], 0);
    while at < lines.len() {
        let line = bare(lines[at]);
        if line.is_empty() {
            at += 1;
        } else if line.starts_with("```") {
            let block: Vec<String> = lines[at + 1..].iter().map(|l| bare(l)).take_while(|l| l != "```").collect();
            at += block.len() + 2;
            parts.push(Part::Equations(block.join("\n")));
        } else {
            let block: Vec<String> =
                lines[at..].iter().map(|l| bare(l)).take_while(|l| !l.is_empty() && !l.starts_with("```")).collect();
            at += block.len();
            parts.push(part(&block));
        }
    }
    (parts, lines.len())
}

fn part(block: &[String]) -> Part {
    if block[0].starts_with('|') {
        let rows = block.iter().filter(|row| !row.starts_with("|--") && !row.starts_with("| --"));
        let cells = |row: &String| row.trim_matches('|').split('|').map(|cell| cell.trim().to_string()).collect();
        return Part::Table(rows.map(cells).collect());
    }
    if block[0].starts_with("- ") {
        let mut items: Vec<String> = vec![];
        for line in block {
            match (line.strip_prefix("- "), items.last_mut()) {
                (Some(item), _) => items.push(item.into()),
                (None, Some(last)) => *last = format!("{last} {}", line.trim()),
                (None, None) => {}
            }
        }
        return Part::List(items);
    }
    Part::Text(block.join(" "))
}

/// Text with its code, its indices and its papers marked up. `page` knows where a mixer of a name has its page.
pub fn inline(text: &str, page: &dyn Fn(&str) -> Option<String>) -> String {
    let mut out = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let next = rest.find(['`', '[']).into_iter().chain(rest.find("**")).min().unwrap_or(rest.len());
        out += &plain(&rest[..next]);
        rest = &rest[next..];
        if let Some(code) = rest.strip_prefix('`')
            && let Some(end) = code.find('`')
        {
            out += &format!("<code>{}</code>", escaped(&code[..end]));
            rest = &code[end + 1..];
        } else if let Some((bold, after)) = rest.strip_prefix("**").and_then(|rest| rest.split_once("**")) {
            out += &format!("<b>{}</b>", plain(bold));
            rest = after;
        } else if let Some((label, target, after)) = link(rest) {
            let name = target.rsplit("::").next().unwrap_or_default();
            let shown = match label.strip_prefix('`').and_then(|l| l.strip_suffix('`')) {
                Some(code) => format!("<code>{}</code>", escaped(code)),
                None => plain(label),
            };
            out += &page(name).map_or(shown.clone(), |href| format!("<a href=\"{href}\">{shown}</a>"));
            rest = after;
        } else if let Some(c) = rest.chars().next() {
            out += &escaped(&c.to_string());
            rest = &rest[c.len_utf8()..];
        }
    }
    out
}

/// [label](target) or [`label`], and what follows.
fn link(text: &str) -> Option<(&str, &str, &str)> {
    let inside = text.strip_prefix('[')?;
    let end = inside.find(']')?;
    let (label, after) = (&inside[..end], &inside[end + 1..]);
    if let Some(target) = after.strip_prefix('(')
        && (label.starts_with('`')
            || ["super::", "crate::"].iter().any(|begin| target.starts_with(begin))
            || target.split(')').next().is_some_and(|file| file.ends_with(".md")))
    {
        let close = target.find(')')?;
        return Some((label, &target[..close], &target[close + 1..]));
    }
    (label.len() > 2 && label.starts_with('`') && label.ends_with('`')).then(|| (label, label.trim_matches('`'), after))
}

/// Text without code: papers by their numbers become links, x_t becomes x with an index, and e^(x) a power.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let chars: Vec<char> = text.chars().collect();
    let mut at = 0;
    while at < chars.len() {
        let before = at.checked_sub(1).map(|i| chars[i]);
        let starts = !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '.');
        if let Some(n) = arxiv(&chars[at..]).filter(|_| starts) {
            let id: String = chars[at..at + n].iter().collect();
            out += &format!("<a href=\"https://arxiv.org/abs/{id}\">{id}</a>");
            at += n;
        } else if let Some((n, index)) = index(&chars[at..]).filter(|_| starts) {
            out += &format!("{}<sub>{}</sub>", escaped(&chars[at].to_string()), plain(&index));
            at += n;
        } else if let Some((n, power)) = power(&chars[at..]) {
            out += &format!("<sup>{}</sup>", plain(&power));
            at += n;
        } else if let Some(index) = of_a_word(&chars, at) {
            out += &format!("<sub>{index}</sub>");
            at += 2;
        } else {
            out += &escaped(&chars[at].to_string());
            at += 1;
        }
    }
    out
}

/// Whether a character is drawn over the one before it.
fn is_mark(c: char) -> bool {
    ('\u{300}'..='\u{36f}').contains(&c)
}

/// The one letter or digit that is the index of a word, as in softmax_s: names of programs go on behind theirs.
fn of_a_word(chars: &[char], at: usize) -> Option<char> {
    let (before, next) = (*chars.get(at.checked_sub(1)?)?, *chars.get(at + 1)?);
    let goes_on = match chars.get(at + 2) {
        Some('.') => chars.get(at + 3).is_some_and(|c| c.is_alphanumeric()),
        Some(&c) => c.is_alphanumeric() || c == '_',
        None => false,
    };
    let is = chars[at] == '_' && (before.is_alphabetic() || is_mark(before)) && next.is_alphanumeric() && !goes_on;
    is.then_some(next)
}

/// An exponent, in brackets or a number or letters: how many characters it has, and what it is.
fn power(chars: &[char]) -> Option<(usize, String)> {
    let close = match chars.get(..2)? {
        ['^', '('] => ')',
        ['^', '{'] => '}',
        ['^', '*'] => return Some((2, "*".into())),
        ['^', ..] => {
            let sign = usize::from(matches!(chars[1], '−' | '-'));
            let digit = |i: usize| chars.get(i).is_some_and(char::is_ascii_digit);
            let goes_on =
                |i: usize| chars[i].is_alphanumeric() || is_mark(chars[i]) || (chars[i] == '.' && digit(i + 1));
            let end = (1 + sign..chars.len()).find(|&i| !goes_on(i)).unwrap_or(chars.len());
            return (end > 1 + sign).then(|| (end, chars[1..end].iter().collect()));
        }
        _ => return None,
    };
    // The bracket that closes the first one, behind those that are in between.
    let mut open = 0usize;
    let end = (1..chars.len()).find(|&i| {
        open += usize::from(chars[i] == chars[1]);
        open -= usize::from(chars[i] == close);
        open == 0
    })?;
    Some((end + 1, chars[2..end].iter().collect()))
}

/// The length of the number of a paper, 2411.12537, at the start.
fn arxiv(chars: &[char]) -> Option<usize> {
    let n = chars.iter().take_while(|c| c.is_ascii_digit() || **c == '.').count();
    let text: String = chars[..n].iter().collect();
    let text = text.trim_end_matches('.');
    let (month, number) = text.split_once('.')?;
    (month.len() == 4 && (4..=5).contains(&number.len()) && !number.contains('.')).then_some(text.len())
}

/// A letter with an index: how many characters both have, and the index.
fn index(chars: &[char]) -> Option<(usize, String)> {
    let (&letter, rest) = chars.split_first()?;
    if !letter.is_alphabetic() || rest.first() != Some(&'_') {
        return None;
    }
    if rest.get(1) == Some(&'{') {
        let end = rest.iter().position(|&c| c == '}')?;
        return Some((end + 2, rest[2..end].iter().collect()));
    }
    let n = rest[1..].iter().take_while(|c| c.is_alphanumeric() && **c != 'ᵀ').count();
    (n > 0).then(|| (n + 2, rest[1..=n].iter().collect()))
}
