//! The lengths of sequences: one length for all, or a range from which each draws its own.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{fmt, str::FromStr};

/// A length or a range of lengths, both ends included: `32` or `3-40`, in flags and in configuration files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Len {
    /// The longest.
    pub max: usize,
    /// The shortest; equal to `max` for a single length.
    pub min: usize,
}

impl Len {
    /// Whether all sequences are equally long.
    pub fn is_one(self) -> bool {
        self.min == self.max
    }
}

impl From<usize> for Len {
    fn from(len: usize) -> Len {
        Len { max: len, min: len }
    }
}

impl fmt::Display for Len {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        if self.is_one() { self.max.fmt(f) } else { f.pad(&format!("{}-{}", self.min, self.max)) }
    }
}

impl FromStr for Len {
    type Err = String;

    fn from_str(text: &str) -> Result<Len, String> {
        let whole = |s: &str| s.parse::<usize>().map_err(|_| format!("length '{text}': expected one as 32, or 3-40"));
        let (min, max) = text.split_once('-').unwrap_or((text, text));
        let (min, max) = (whole(min)?, whole(max)?);
        if min > max { Err(format!("length '{text}': expected the shorter one first")) } else { Ok(Len { max, min }) }
    }
}

impl Serialize for Len {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if self.is_one() { s.serialize_u64(self.max as u64) } else { s.collect_str(self) }
    }
}

impl<'de> Deserialize<'de> for Len {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Len, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Len;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a length as 32, or a range as \"3-40\"")
            }

            fn visit_i64<E: de::Error>(self, n: i64) -> Result<Len, E> {
                let len = usize::try_from(n).map_err(|_| E::invalid_value(de::Unexpected::Signed(n), &self))?;
                Ok(len.into())
            }

            fn visit_u64<E: de::Error>(self, n: u64) -> Result<Len, E> {
                let len = usize::try_from(n).map_err(|_| E::invalid_value(de::Unexpected::Unsigned(n), &self))?;
                Ok(len.into())
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Len, E> {
                text.parse().map_err(E::custom)
            }
        }
        d.deserialize_any(Visitor)
    }
}
