//! Text that fits a terminal.

use crate::error::brief;
use std::io::{self, IsTerminal};

/// The columns of a line where there is no terminal.
pub const WIDTH: usize = 80;

/// How wide standard output is: the columns of the terminal, or [`WIDTH`].
pub fn columns() -> usize {
    terminal_size::terminal_size_of(io::stdout()).map_or(WIDTH, |size| size.0.0.into())
}

/// Whether standard output is a terminal.
pub fn is_there() -> bool {
    io::stdout().is_terminal()
}

/// The first of these names, in quotes, and how many more there are.
pub fn few(names: &[String], most: usize) -> String {
    let first: Vec<String> = names.iter().take(most).map(|name| format!("'{}'", brief(name, 80))).collect();
    let more = names.len().saturating_sub(most);
    first.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
}

/// Break lines of more than so many columns between words. The rest of a line stands below its second column, the one
/// behind its widest gap. Where that column is too far to the right, the gaps are narrowed, and the rest stands a little
/// to the right of the line's beginning. What stands behind a gap is not broken where a line has room for it, and a word
/// that is longer than a line never.
pub fn fit(text: &str, columns: usize) -> String {
    text.lines().map(|line| broken(line, columns) + "\n").collect()
}

/// The text in lines that fit, for a terminal; for a file or another program as it is.
pub fn shown(text: &str) -> String {
    if is_there() { fit(text, columns()) } else { text.into() }
}

fn broken(line: &str, columns: usize) -> String {
    let width = |text: &str| text.chars().count();
    if width(line) <= columns {
        return line.into();
    }
    // Each word with the number of spaces before it.
    let (mut words, mut gap) = (vec![], 0);
    for word in line.split(' ') {
        if word.is_empty() {
            gap += 1;
        } else {
            words.push((gap, word));
            gap = 1;
        }
    }
    let indent = words.first().map_or(0, |first| first.0);
    let (mut at, mut widest, mut below) = (0, 1, indent);
    for (i, (gap, word)) in words.iter().enumerate() {
        at += gap;
        if i > 0 && *gap > widest {
            (widest, below) = (*gap, at);
        }
        at += width(word);
    }
    if below > columns / 2 {
        below = indent + 2;
        words.iter_mut().skip(1).for_each(|word| word.0 = word.0.min(3));
    }
    let (mut text, mut at) = (String::new(), 0);
    for (i, &(mut gap, word)) in words.iter().enumerate() {
        let behind = words[i + 1..].iter().take_while(|next| gap > 1 && next.0 == 1);
        let whole = width(word) + behind.map(|next| 1 + width(next.1)).sum::<usize>();
        let needs = if below + whole <= columns { whole } else { width(word) };
        if at > 0 && at + gap + needs > columns {
            text.push('\n');
            (gap, at) = (below, 0);
        }
        text += &" ".repeat(gap);
        text += word;
        at += gap + width(word);
    }
    text
}
