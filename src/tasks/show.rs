//! Samples as a person would draw them: tokens above, targets below them, a dot where none counts.

use super::{IGNORE, Task};

/// The widest a line may be.
const WIDTH: usize = 80;

/// One sequence, in lines of at most 80 columns; what is behind the last target is left out.
pub fn sample(task: &dyn Task, tokens: &[i32], targets: &[i32]) -> String {
    let end = targets.iter().rposition(|&y| y != IGNORE).map_or(tokens.len(), |last| last + 1);
    let above: Vec<String> = tokens[..end].iter().map(|&x| task.token(x as usize)).collect();
    let below: Vec<String> =
        targets[..end].iter().map(|&y| if y == IGNORE { "·".into() } else { task.class(y as usize) }).collect();
    let width = above.iter().chain(&below).map(|s| s.chars().count()).max().unwrap_or(1) + 1;
    let per_line = (WIDTH / width).max(1);
    let line = |cells: &[String]| {
        let text: String = cells.iter().map(|c| format!("{c:>width$}")).collect();
        format!("{}\n", text.trim_end())
    };
    above.chunks(per_line).zip(below.chunks(per_line)).map(|(x, y)| line(x) + &line(y)).collect::<Vec<_>>().join("\n")
}
