//! Text of one's own: which byte comes next?
//!
//! Tokens are the bytes of UTF-8 text, 0 to 255, and the target at every position is the byte that follows. The last
//! part of the text, `held_out` of it, is never trained on: the sequences of an evaluation are drawn from it, those of
//! training from all before it. Both begin at any byte.
//!
//! The score is the loss in bits per byte: the mean of −log₂ p over all positions, where p is the probability that the
//! model gives the byte that follows. A model that knows nothing has 8.

use super::{Counts, IGNORE, Len, Task};
use crate::{files, rng::Fnv1a, rng::Rng};
use rand::RngExt;
use serde::{Deserialize, Serialize};
use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

/// The text that is read where no file is named: *Alice's Adventures in Wonderland* (Lewis Carroll, 1865; in the public domain).
const SAMPLE: &str = include_str!("alice.txt");

/// The part of a text that is held out, where nobody says.
const HELD_OUT: f64 = 0.1;

/// Bytes of text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Text {
    /// The files, read one after the other; none: a sample that comes with this crate.
    pub text: Vec<String>,
    /// The part of the text at its end that is held out, between 0 and 1.
    pub held_out: f64,
    /// The checksum of the text, as 16 digits: a run goes on with the same text only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// Whether sequences are drawn from the part that is held out.
    #[serde(skip)]
    evaluates: bool,
}

impl Default for Text {
    fn default() -> Text {
        Text { text: vec![], held_out: HELD_OUT, checksum: None, evaluates: false }
    }
}

/// A text and its checksum.
struct Corpus {
    bytes: Vec<u8>,
    checksum: String,
}

/// The text of these files. A process reads each once: what is trained on does not change under way.
fn corpus(paths: &[String]) -> Result<Arc<Corpus>, String> {
    static READ: Mutex<Vec<(Vec<String>, Arc<Corpus>)>> = Mutex::new(vec![]);
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, corpus)) = read.iter().find(|(of, _)| of == paths) {
        return Ok(corpus.clone());
    }
    let mut bytes = if paths.is_empty() { SAMPLE.as_bytes().to_vec() } else { vec![] };
    for path in paths {
        let more = files::read(Path::new(path), files::tensors()).map_err(|e| e.to_string())?;
        if let Err(e) = std::str::from_utf8(&more) {
            return Err(format!("{path}: byte {} is no UTF-8; expected text", e.valid_up_to()));
        }
        bytes.extend(more);
    }
    let corpus = Arc::new(Corpus { checksum: Fnv1a::of(&bytes).hex(), bytes });
    read.push((paths.to_vec(), corpus.clone()));
    Ok(corpus)
}

impl Text {
    /// The text of these files, with this part of it held out.
    pub fn new(text: Vec<String>, held_out: f64) -> Text {
        Text { text, held_out, ..Text::default() }
    }

    /// How many bytes at the end are held out of so many.
    fn tail(&self, bytes: usize) -> usize {
        (bytes as f64 * self.held_out) as usize
    }

    /// The checksum of the text.
    ///
    /// # Errors
    /// When a file cannot be read, or is no UTF-8: a sentence.
    pub fn read_checksum(&self) -> Result<String, String> {
        corpus(&self.text).map(|corpus| corpus.checksum.clone())
    }
}

impl Task for Text {
    fn name(&self) -> &'static str {
        "text"
    }

    fn vocab(&self) -> usize {
        256
    }

    fn classes(&self) -> usize {
        256
    }

    fn title(&self) -> String {
        let name = |path: &String| Path::new(path).file_name().map_or(path.clone(), |n| n.to_string_lossy().into());
        match &self.text[..] {
            [] => "text, alice.txt".into(),
            [one] => format!("text, {}", name(one)),
            [first, rest @ ..] => format!("text, {} and {} more", name(first), rest.len()),
        }
    }

    fn legend(&self) -> String {
        "the byte that follows".into()
    }

    fn token(&self, id: usize) -> String {
        match u8::try_from(id) {
            Ok(b'\n') => "⏎".into(),
            Ok(b' ') => "␣".into(),
            Ok(byte @ b'!'..=b'~') => char::from(byte).into(),
            _ => format!("{id:02x}"),
        }
    }

    fn class(&self, id: usize) -> String {
        self.token(id)
    }

    fn read(&self, text: &str) -> Option<Vec<i32>> {
        Some(text.bytes().map(i32::from).collect())
    }

    fn check(&self) -> Result<(), String> {
        if self.held_out > 0.0 && self.held_out < 1.0 {
            return Ok(());
        }
        Err(format!("task.held_out {}: expected a part of the text, between 0 and 1", self.held_out))
    }

    fn check_data(&self, train: Len, evaluation: &[Len]) -> Result<(), String> {
        let corpus = corpus(&self.text).map_err(|what| format!("task.text: {what}"))?;
        if let Some(there) = self.checksum.as_ref().filter(|there| **there != corpus.checksum) {
            let what = "it is another text than the one that was recorded, or it has changed";
            return Err(format!("task.text: {what}: its checksum is {}, not {there}", corpus.checksum));
        }
        let (n, tail) = (corpus.bytes.len(), self.tail(corpus.bytes.len()));
        let longest = evaluation.iter().map(|len| len.max).max().unwrap_or(0);
        for (what, has, len) in [("to train on", n - tail, train.max), ("held out", tail, longest)] {
            if has <= len {
                return Err(format!(
                    "task.text: of {n} bytes {has} are {what}, and sequences of {len} need {} or more; expected a longer \
                     text, shorter sequences or another task.held_out than {}",
                    len + 1,
                    self.held_out
                ));
            }
        }
        Ok(())
    }

    fn to_evaluate(&self) -> Option<Box<dyn Task>> {
        Some(Box::new(Text { evaluates: true, ..self.clone() }))
    }

    /// # Panics
    /// When the text cannot be read, or is too short: what [`Task::check_data`] refuses.
    fn fill(&self, rng: &mut Rng, len: usize, tokens: &mut [i32], targets: &mut [i32]) {
        let corpus = corpus(&self.text).unwrap_or_else(|what| panic!("{what}"));
        let (train, tail) = corpus.bytes.split_at(corpus.bytes.len() - self.tail(corpus.bytes.len()));
        let part = if self.evaluates { tail } else { train };
        for (x, y) in tokens.chunks_exact_mut(len).zip(targets.chunks_exact_mut(len)) {
            let start = rng.random_range(0..part.len() - len);
            let bytes = &part[start..=start + len];
            x.iter_mut().zip(bytes).for_each(|(x, &byte)| *x = byte.into());
            y.iter_mut().zip(&bytes[1..]).for_each(|(y, &byte)| *y = byte.into());
        }
    }

    fn label(&self, tokens: &[i32]) -> Option<Vec<i32>> {
        Some(tokens.iter().skip(1).copied().chain((!tokens.is_empty()).then_some(IGNORE)).collect())
    }

    fn counts_bits(&self) -> bool {
        true
    }

    fn metrics(&self, counts: &Counts) -> Vec<(&'static str, f64)> {
        vec![(super::BITS, counts.bits())]
    }
}
