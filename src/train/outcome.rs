//! The outcome of one run, as `result.json` and `results.json` have it.

use crate::tasks::Len;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{collections::BTreeMap, fmt};

/// Accuracy over all positions, at each length.
pub type Accuracy = Vec<(Len, f64)>;

/// The other scores of a task ([`Task::metrics`](crate::tasks::Task::metrics)), by name, at each length.
pub type Scores = BTreeMap<String, Accuracy>;

/// The outcome of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunReport {
    /// The mixer, or the name of a variant of it.
    pub model: String,
    /// The seed.
    pub seed: u64,
    /// The form that it was computed in.
    pub form: String,
    /// The device that computed it.
    pub device: String,
    /// The names of the kernels that computed ops. (Records of older versions have only those of ops with several.)
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernels: Vec<String>,
    /// How many parameters the model has.
    pub params: usize,
    /// How many training steps were asked for.
    pub steps: usize,
    /// Training steps in a second, evaluation not counted; 0 if the run stopped.
    pub steps_per_s: f64,
    /// Seconds from the start of this run to its end.
    pub wall_s: f64,
    /// Accuracy over all positions at each length; empty if the run stopped.
    #[serde(serialize_with = "as_object", deserialize_with = "of_object")]
    pub accuracy: Accuracy,
    /// Why the run stopped before its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The task's other scores, each as the accuracy.
    #[serde(flatten, serialize_with = "as_objects", deserialize_with = "of_objects")]
    pub scores: Scores,
}

/// An accuracy as an object: a number for each length.
pub(super) fn as_object<S: Serializer>(accuracy: &Accuracy, s: S) -> std::result::Result<S::Ok, S::Error> {
    s.collect_map(accuracy.iter().map(|(len, a)| (len.to_string(), a)))
}

/// Scores as an object: each as [`as_object`].
pub(super) fn as_objects<S: Serializer>(scores: &Scores, s: S) -> std::result::Result<S::Ok, S::Error> {
    struct Of<'a>(&'a Accuracy);
    impl Serialize for Of<'_> {
        fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
            as_object(self.0, s)
        }
    }
    s.collect_map(scores.iter().map(|(name, of)| (name, Of(of))))
}

/// An accuracy as [`as_object`] wrote it, in the same order.
fn of_object<'de, D: Deserializer<'de>>(d: D) -> std::result::Result<Accuracy, D::Error> {
    struct Visitor;
    impl<'de> de::Visitor<'de> for Visitor {
        type Value = Accuracy;

        fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
            f.write_str("lengths with a number each")
        }

        fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> std::result::Result<Accuracy, A::Error> {
            let mut accuracy = Accuracy::new();
            while let Some((len, a)) = map.next_entry::<String, f64>()? {
                accuracy.push((len.parse::<Len>().map_err(de::Error::custom)?, a));
            }
            Ok(accuracy)
        }
    }
    d.deserialize_map(Visitor)
}

fn of_objects<'de, D: Deserializer<'de>>(d: D) -> std::result::Result<Scores, D::Error> {
    #[derive(Deserialize)]
    struct Of(#[serde(deserialize_with = "of_object")] Accuracy);
    Ok(BTreeMap::<String, Of>::deserialize(d)?.into_iter().map(|(name, of)| (name, of.0)).collect())
}
