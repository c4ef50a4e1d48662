//! The sequence on the page: drawn from the task, or given by the user.

use crate::{
    error::{Error, Result},
    rng,
    tasks::{IGNORE, Task},
};

/// The longest sequence; nobody reads a page of more steps.
pub const LONGEST: usize = 1024;

/// Tokens, and their targets where there are any.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    /// The model's input.
    pub tokens: Vec<i32>,
    /// The target of each token.
    pub targets: Vec<Option<usize>>,
}

impl Input {
    /// A sequence drawn from the task.
    ///
    /// # Errors
    /// When the task has no sequence of this length.
    pub fn draw(task: &dyn Task, len: usize, seed: u64) -> Result<Input> {
        check(len, "--len")?;
        task.check_len(len).map_err(|why| Error::Config(format!("--len {len}: {why}")))?;
        let of_its_own = task.to_evaluate();
        let task = of_its_own.as_deref().unwrap_or(task);
        task.check_data(1.into(), &[len.into()]).map_err(Error::Config)?;
        let (mut tokens, mut targets) = (vec![0; len], vec![IGNORE; len]);
        task.fill(&mut rng::stream(seed, "inspect", 0), len, &mut tokens, &mut targets);
        Ok(Input { tokens, targets: targets.into_iter().map(|y| usize::try_from(y).ok()).collect() })
    }

    /// A given sequence: tokens in the task's notation, with or without spaces between them.
    ///
    /// # Errors
    /// When a part of it is not a token. The error says which part, where, and lists tokens.
    pub fn read(task: &dyn Task, text: &str) -> Result<Input> {
        let names: Vec<String> = (0..task.vocab()).map(|i| task.token(i)).collect();
        let mut tokens = task.read(text).unwrap_or_default();
        for word in text.split_whitespace().filter(|_| task.read(text).is_none()) {
            match names.iter().position(|n| n == word) {
                Some(i) => tokens.push(i as i32),
                None => run_together(&names, word, &mut tokens)?,
            }
        }
        if tokens.is_empty() {
            return Err(Error::Config(format!(
                "--input '{text}': no token; expected 1 to {LONGEST} of {}",
                some(&names)
            )));
        }
        check(tokens.len(), "--input")?;
        let targets = task.label(&tokens);
        let targets =
            targets.map_or(vec![None; tokens.len()], |y| y.into_iter().map(|y| usize::try_from(y).ok()).collect());
        Ok(Input { tokens, targets })
    }
}

fn check(len: usize, flag: &str) -> Result<()> {
    if (1..=LONGEST).contains(&len) {
        return Ok(());
    }
    Err(Error::Config(format!("{flag}: a sequence of {len} tokens; expected 1 to {LONGEST}")))
}

/// The first few tokens of the task.
fn some(names: &[String]) -> String {
    let shown: Vec<&str> = names.iter().take(12).map(String::as_str).collect();
    let more = if names.len() > shown.len() { format!(" … ({} in all)", names.len()) } else { String::new() };
    shown.join(" ") + &more
}

/// Split tokens written without spaces, longest match first. Numbers are not split, because they could be cut anywhere.
fn run_together(names: &[String], word: &str, tokens: &mut Vec<i32>) -> Result<()> {
    let refused = |rest: &str| {
        Err(Error::Config(format!("--input: '{rest}' is no token of this task; expected {}", some(names))))
    };
    let numbers = names.iter().any(|n| n.len() > 1 && n.bytes().all(|b| b.is_ascii_digit()));
    if numbers && word.bytes().all(|b| b.is_ascii_digit()) {
        return refused(word);
    }
    let mut rest = word;
    while !rest.is_empty() {
        let fits = |(_, n): &(usize, &String)| !n.is_empty() && rest.starts_with(n.as_str());
        let Some((i, name)) = names.iter().enumerate().filter(fits).max_by_key(|(_, n)| n.len()) else {
            return refused(rest);
        };
        tokens.push(i as i32);
        rest = &rest[name.len()..];
    }
    Ok(())
}
