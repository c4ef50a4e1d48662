//! The configured number of parts that a training batch is computed in.

use crate::{error::brief, tasks::Len};
use std::{fmt, str::FromStr};
use toml::Value;

/// The fewest sequences that are worth a part of their own: many kernels compute four side by side.
pub const SEQUENCES: usize = 4;

/// A number, or one that follows from the size of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub enum Parts {
    /// Parts of about as many tokens as [`tokens_at_once`](crate::models::tokens_at_once) says of the model.
    Auto,
    /// This number of parts.
    Count(usize),
}

impl Parts {
    /// The number for a batch of so many sequences of these lengths. By default each part has about `at_once` tokens,
    /// whose values stay in the caches from the forward pass to the backward pass; four sequences or more; and a
    /// gradient of its own, so there are not too many. Sequences of several lengths are in four parts at least: the more,
    /// the less of a part is padding.
    pub fn of(self, batch: usize, len: Len, at_once: usize) -> usize {
        const MOST: usize = 16;
        let least = if len.is_one() { 1 } else { 4 };
        match self {
            Parts::Auto => (batch.saturating_mul(len.max) / at_once).max(least).min(batch / SEQUENCES).clamp(1, MOST),
            Parts::Count(n) => n,
        }
    }
}

impl FromStr for Parts {
    type Err = String;

    fn from_str(s: &str) -> Result<Parts, String> {
        match s.parse() {
            Ok(0) => Err("micro_batches 0: expected at least 1, or auto".into()),
            Ok(n) => Ok(Parts::Count(n)),
            Err(_) if s == "auto" => Ok(Parts::Auto),
            Err(_) => Err(format!("micro_batches {}: expected a whole number from 1 on, or auto", brief(s, 80))),
        }
    }
}

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Parts::Auto => f.write_str("auto"),
            Parts::Count(n) => write!(f, "{n}"),
        }
    }
}

impl TryFrom<Value> for Parts {
    type Error = String;

    fn try_from(value: Value) -> Result<Parts, String> {
        value.as_str().map_or_else(|| value.to_string(), String::from).parse()
    }
}

impl From<Parts> for Value {
    fn from(parts: Parts) -> Value {
        let count = match parts {
            Parts::Auto => None,
            Parts::Count(n) => i64::try_from(n).ok(),
        };
        count.map_or_else(|| Value::String(parts.to_string()), Value::Integer)
    }
}
