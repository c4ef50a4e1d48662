//! A value as the text that its `Display` writes and its `FromStr` reads.

use serde::{Deserialize, Deserializer, Serializer, de::Error};
use std::{fmt::Display, str::FromStr};

pub fn serialize<T: Display, S: Serializer>(value: &T, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(value)
}

pub fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(d: D) -> Result<T, D::Error> {
    String::deserialize(d)?.parse().map_err(D::Error::custom)
}

pub mod option {
    use super::*;

    pub fn serialize<T: Display, S: Serializer>(value: &Option<T>, s: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => s.collect_str(value),
            None => s.serialize_none(),
        }
    }

    pub fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(d: D) -> Result<Option<T>, D::Error> {
        super::deserialize(d).map(Some)
    }
}
