//! `tapezoo sample`: a model of text goes on by itself.

use super::{KernelsFlag, fail, number, say, whole};
use crate::{
    error::{Error, Result, bytes, contained, printable},
    inspect::source::{self, Source},
    models::Stream,
    rng::{self, Rng},
    tasks::Tasks,
    terminal,
};
use clap::Parser;
use rand::RngExt;
use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    time::Instant,
};

/// Have a model that was trained on text go on with a prompt, byte by byte
///
/// The text streams from the carried state: one step a byte, and no more memory however long it gets, but for the cache
/// of attention and of n-gram heads. At the end standard error says how many bytes a second that was. A state and
/// weights that are the same give the same text with the same seed.
#[derive(Parser)]
#[command(name = "sample", version = crate::stamp::version(), after_help = EXAMPLES)]
pub(super) struct Sample {
    /// A run that `train --text` left with --out: DIR, or DIR/MODEL-seedS where it holds several
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// The text to go on with [default: a new line]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// How many bytes to write; a terminal gets them as characters, a file as they are
    #[arg(long, value_name = "N", value_parser = whole, default_value = "500")]
    tokens: i64,
    /// Logits are divided by this: below 1 the likely becomes likelier; 0: the likeliest byte each time
    #[arg(long, value_name = "X", value_parser = number, default_value = "1", allow_negative_numbers = true)]
    temperature: f64,
    /// Draw from the K likeliest bytes only [default: from all]
    #[arg(long, value_name = "K", value_parser = whole)]
    top_k: Option<i64>,
    /// Another seed, another text
    #[arg(long, value_name = "S", value_parser = whole, default_value = "0")]
    seed: i64,
    #[command(flatten)]
    switch: KernelsFlag,
}

const EXAMPLES: &str = "\
Examples:
  tapezoo train --text book.txt --models lstm --out runs/book
  tapezoo sample runs/book
  tapezoo sample runs/book --prompt 'Alice was' --tokens 2000 --temperature 0.7
  tapezoo sample runs/book --top-k 1 --prompt 'The Queen'

Exit status: 0 when the text is written, 1 when it stopped before its end, 2 when a value cannot be.";

pub(super) fn run(args: &Sample) -> ExitCode {
    let source = match contained(|| opened(args)) {
        Ok(source) => source,
        Err(e) => return fail(&e, 2),
    };
    source.doubts.iter().for_each(|what| say("warning", what));
    contained(|| stream(args, &source)).map_or_else(|e| fail(&e, 1), |()| ExitCode::SUCCESS)
}

/// The run, if it can go on with this prompt for so long.
fn opened(args: &Sample) -> Result<Source> {
    if args.temperature < 0.0 {
        return Err(Error::Config(format!("--temperature {}: expected 0 or more", args.temperature)));
    }
    if args.top_k == Some(0) {
        return Err(Error::config("--top-k 0: expected at least 1"));
    }
    // The last byte drawn is not read.
    let read =
        (prompt(args).len().saturating_add(usize::try_from(args.tokens).unwrap_or(usize::MAX))).saturating_sub(1);
    let source = source::checkpoint_for(&args.run, read)?;
    if !matches!(source.config.task, Tasks::Text(_)) {
        let what = "only a model of text can go on by itself; expected a run of `tapezoo train --text FILE --out DIR`";
        return Err(Error::Config(format!("{}: it has learned {}; {what}", source.name, source.config.task.title())));
    }
    source.check(0)?;
    match source.model.stream().left().filter(|&max| max < read) {
        None => Ok(source),
        Some(max) => {
            let (name, n) = (&source.name, args.tokens);
            let what = format!("it has positions for {max} tokens, not {read}; lower --tokens {n} or shorten --prompt");
            Err(Error::Config(format!("{name}: {what}")))
        }
    }
}

fn prompt(args: &Sample) -> &str {
    args.prompt.as_deref().filter(|text| !text.is_empty()).unwrap_or("\n")
}

fn stream(args: &Sample, source: &Source) -> Result<()> {
    let kernels = args.switch.kernels.as_ref().unwrap_or(&source.config.kernels).clone();
    let (mut text, mut stream) =
        (Utf8 { escapes: terminal::is_there(), begun: vec![] }, Stream::with_kernels(&source.model, kernels));
    let mut rng = rng::stream(args.seed.unsigned_abs(), "sample", 0);
    let prompt = prompt(args);
    let mut open = args.prompt.is_none() || text.write(prompt.as_bytes())?;
    let tokens: Vec<i32> = prompt.bytes().map(i32::from).collect();
    let mut logits = stream.read(&tokens)?;
    let (start, mut written) = (Instant::now(), 0);
    while open && written < args.tokens {
        let byte = draw(&logits, args, &mut rng)?;
        open = text.write(&[byte])?;
        written += 1;
        if written < args.tokens {
            logits = stream.next(byte.into())?;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let open = text.finish()?;
    if open && written > 0 {
        let state = bytes(stream.state_bytes());
        let rate = written as f64 / seconds.max(1e-9);
        // Nobody may be there to read it.
        let _ =
            writeln!(io::stderr(), "{written} tokens in {seconds:.1} s: {rate:.0} tokens/s, from a state of {state}");
    }
    Ok(())
}

/// A byte by its probability.
fn draw(logits: &[f64], args: &Sample, rng: &mut Rng) -> Result<u8> {
    if let Some(x) = logits.iter().find(|x| !x.is_finite()) {
        return Err(Error::Config(format!("a logit is {x}: the model cannot say which byte is likely")));
    }
    let mut likeliest: Vec<usize> = (0..logits.len()).collect();
    likeliest.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    let k = if args.temperature == 0.0 { 1 } else { args.top_k.map_or(usize::MAX, |k| k.unsigned_abs() as usize) };
    likeliest.truncate(k);
    let weight = |i: &usize| ((logits[*i] - logits[likeliest[0]]) / args.temperature.max(f64::MIN_POSITIVE)).exp();
    let sum: f64 = likeliest.iter().map(weight).sum();
    let mut at = rng.random_range(0.0..1.0) * sum;
    let drawn = likeliest.iter().find(|i| {
        at -= weight(i);
        at < 0.0
    });
    Ok(u8::try_from(*drawn.unwrap_or(&likeliest[0])).unwrap_or_default())
}

/// Standard output. A terminal gets whole characters: what is none becomes U+FFFD, and what would steer it is escaped. A
/// file or a pipe gets the bytes as they are.
struct Utf8 {
    escapes: bool,
    /// The beginning of a character.
    begun: Vec<u8>,
}

impl Utf8 {
    /// Write what is whole by now; false if nobody reads any more.
    fn write(&mut self, bytes: &[u8]) -> Result<bool> {
        if !self.escapes {
            return put(bytes);
        }
        self.begun.extend(bytes);
        let mut text = String::new();
        loop {
            match std::str::from_utf8(&self.begun) {
                Ok(rest) => {
                    text += rest;
                    self.begun.clear();
                    break;
                }
                Err(e) => {
                    let valid: Vec<u8> = self.begun.drain(..e.valid_up_to()).collect();
                    text += &String::from_utf8_lossy(&valid);
                    let Some(wrong) = e.error_len() else { break };
                    self.begun.drain(..wrong);
                    text.push('\u{fffd}');
                }
            }
        }
        put(printable(&text).as_bytes())
    }

    /// The rest, and the end of the line.
    fn finish(self) -> Result<bool> {
        put((String::from_utf8_lossy(&self.begun).into_owned() + "\n").as_bytes())
    }
}

fn put(bytes: &[u8]) -> Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(Error::io("standard output")(e)),
    }
}
