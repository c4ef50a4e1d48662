//! Samples as text: tokens above, targets below, a dot where there is none.

use super::{IGNORE, Len, Task};
use crate::rng;

/// The first `n` sequences that training with this seed draws, in batches of `batch`, where no curriculum changes the
/// task or its lengths; in lines of at most `width` columns, with a heading. `remark` is its last line, if it is not empty.
pub fn samples(task: &dyn Task, len: Len, seed: u64, batch: usize, n: usize, width: usize, remark: &str) -> String {
    let mut text = format!("{}, training length {len}, seed {seed}\n{}\n", task.title(), task.legend());
    text += remark;
    let (mut tokens, mut targets) = (vec![0; batch * len.max], vec![0; batch * len.max]);
    for first in (0..n).step_by(batch) {
        let mut rng = rng::stream(seed, "train", (first / batch) as u64);
        task.fill_range(&mut rng, len, &mut tokens, &mut targets);
        for (x, y) in tokens.chunks_exact(len.max).zip(targets.chunks_exact(len.max)).take(n - first) {
            text += &format!("\n{}", sample(task, x, y, width));
        }
    }
    text
}

/// One sequence, in lines of at most `width` columns; tokens after the last target are left out.
pub fn sample(task: &dyn Task, tokens: &[i32], targets: &[i32], width: usize) -> String {
    let end = targets.iter().rposition(|&y| y != IGNORE).map_or(tokens.len(), |last| last + 1);
    let above: Vec<String> = tokens[..end].iter().map(|&x| task.token(x as usize)).collect();
    let below: Vec<String> =
        targets[..end].iter().map(|&y| if y == IGNORE { "·".into() } else { task.class(y as usize) }).collect();
    let column = above.iter().chain(&below).map(|s| s.chars().count()).max().unwrap_or(1) + 1;
    let per_line = (width / column).max(1);
    let line = |cells: &[String]| {
        let text: String = cells.iter().map(|c| format!("{c:>column$}")).collect();
        format!("{}\n", text.trim_end())
    };
    above.chunks(per_line).zip(below.chunks(per_line)).map(|(x, y)| line(x) + &line(y)).collect::<Vec<_>>().join("\n")
}
