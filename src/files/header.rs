//! Checks of a safetensors header before it is used: names are unique, and sizes are plausible for the file.

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use std::{collections::HashSet, fmt, marker::PhantomData};

/// A JSON object whose keys are unique; its contents are not kept.
struct Once<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Once<V> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_map(Once(PhantomData))
    }
}

impl<'de, V: Deserialize<'de>> Visitor<'de> for Once<V> {
    type Value = Once<V>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        let mut seen = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            if key == "__metadata__" {
                map.next_value::<Option<Once<IgnoredAny>>>()?;
            } else {
                map.next_value::<V>()?;
            }
            if let Some(key) = seen.replace(key) {
                return Err(A::Error::custom(format!("'{key}' occurs twice: expected every name once")));
            }
        }
        Ok(Once(PhantomData))
    }
}

/// Check that no two tensors, and no two metadata entries, have the same name. The reader of the file reports all other
/// errors.
pub fn names_are_unique(bytes: &[u8]) -> Result<(), String> {
    let header = |bytes: &[u8]| {
        let (len, rest) = bytes.split_first_chunk::<8>()?;
        let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
        Some(rest.get(..len)?.to_vec())
    };
    let Some(header) = header(bytes) else { return Ok(()) };
    match serde_json::from_slice::<Once<IgnoredAny>>(&header) {
        Err(e) if e.to_string().contains("occurs twice") => Err(format!("its header: {e}")),
        _ => Ok(()),
    }
}

/// Check that no key of a JSON object occurs twice. The reader of the object reports all other errors.
pub fn keys_are_unique(object: &str) -> Result<(), String> {
    match serde_json::from_str::<Once<IgnoredAny>>(object) {
        Err(e) if e.to_string().contains("occurs twice") => Err(e.to_string()),
        _ => Ok(()),
    }
}

/// An empty tensor needs no bytes, whatever its other axes are; this limits the product of these.
const EMPTY: usize = 1 << 14;

/// Check that the product of a tensor's nonzero axes is at most the file's number of bytes or [`EMPTY`].
pub fn size_is_plausible(shape: &[usize], bytes: usize) -> Result<(), String> {
    let filled = shape.iter().filter(|&&n| n > 0).try_fold(1usize, |all, &n| all.checked_mul(n));
    if filled.is_some_and(|n| n <= bytes.max(EMPTY)) {
        return Ok(());
    }
    Err(format!("its axes are {shape:?} in a file of {bytes} bytes: too large, though one of them is 0"))
}
