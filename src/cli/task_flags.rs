//! The flags of each task, of which every one is a key of the configuration's `[task]`.

use super::{number, whole};
use clap::Args;
use serde::{Serialize, Serializer};
use toml::Table;

/// The flags that are given, under their names in `[task]`.
pub(super) fn options(flags: &impl Serialize) -> Table {
    Table::try_from(flags).expect("flags are numbers, names and switches")
}

/// A switch that is off says nothing.
fn off(given: &bool) -> bool {
    !given
}

/// A switch that turns off what it is named after in `[task]`.
fn turned<S: Serializer>(given: &bool, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_bool(!given)
}

/// Of parity.
#[derive(Args, Clone, Debug, Default, Serialize)]
#[command(next_help_heading = "The task")]
pub(super) struct ParityFlags {
    /// Controlled parity: exactly K ones in each sequence, at random positions [default: each bit a fair coin]
    #[arg(long, value_name = "K", value_parser = whole)]
    num_ones: Option<i64>,
    /// Count the ones modulo M, not 2 [default: 2]
    #[arg(long, value_name = "M", value_parser = whole)]
    modulus: Option<i64>,
}

/// Of Dyck words.
#[derive(Args, Clone, Debug, Default, Serialize)]
#[command(next_help_heading = "The task")]
pub(super) struct DyckFlags {
    /// How many types of brackets there are.
    #[arg(long, value_name = "K", value_parser = whole)]
    types: Option<i64>,
    /// How many brackets are open at most.
    #[arg(long, value_name = "D", value_parser = whole)]
    depth: Option<i64>,
}

/// Of associative recall.
#[derive(Args, Clone, Debug, Default, Serialize)]
#[command(next_help_heading = "The task")]
pub(super) struct MqarFlags {
    /// The layout: zoology or published; zoology has many queries at random gaps, published "key | value" and one query at
    /// the end.
    #[arg(long, value_name = "NAME", value_parser = ["zoology", "published"])]
    layout: Option<String>,
    /// zoology: how many tokens there are; half of them keys, half of them values.
    #[arg(long, value_name = "V", value_parser = whole)]
    vocab: Option<i64>,
    /// zoology: how many pairs a sequence has; the same at every length [default: a sixteenth of the length]
    #[arg(long, value_name = "M", value_parser = whole)]
    pairs: Option<i64>,
    /// zoology: random tokens between queries, not zeros.
    #[arg(long, hide_short_help = true)]
    #[serde(skip_serializing_if = "off")]
    random_non_queries: bool,
    /// published: how many different keys there are.
    #[arg(long, value_name = "N", value_parser = whole)]
    keys: Option<i64>,
    /// published: how many different values there are.
    #[arg(long, value_name = "N", value_parser = whole)]
    values: Option<i64>,
    /// published: a key may come again in a sequence; its last value counts.
    #[arg(long, hide_short_help = true)]
    #[serde(rename = "unique_keys", skip_serializing_if = "off", serialize_with = "turned")]
    repeated_keys: bool,
    /// published: every key is asked for at the end; else one.
    #[arg(long)]
    #[serde(skip_serializing_if = "off")]
    all_queries: bool,
}

/// Of two sets.
#[derive(Args, Clone, Debug, Default, Serialize)]
#[command(next_help_heading = "The task")]
pub(super) struct DisjointFlags {
    /// disjoint: how many different elements there are.
    #[arg(long, value_name = "V", value_parser = whole)]
    elements: Option<i64>,
    /// disjoint: the size of the smaller set; the length decides the other's.
    #[arg(long, value_name = "M", value_parser = whole)]
    small: Option<i64>,
    /// disjoint: which set comes first: the small one, the large one, or either.
    #[arg(long, value_name = "NAME", value_parser = ["small", "large", "either"])]
    first: Option<String>,
}

/// Of tasks that can be read several times.
#[derive(Args, Clone, Debug, Default, Serialize)]
#[command(next_help_heading = "The task")]
pub(super) struct RepeatFlag {
    /// How often pairs or sets are read before the queries; 2: 'just read twice' [default: 1]
    #[arg(long, value_name = "N", value_parser = whole)]
    repeat: Option<i64>,
}

/// Of word problems of groups.
#[derive(Args, Clone, Debug, Default, Serialize)]
#[command(next_help_heading = "The task")]
pub(super) struct GroupFlags {
    /// Groups: which elements are tokens: all, swaps (of two things), three (moving at most three things).
    #[arg(long, value_name = "NAME", value_parser = ["all", "swaps", "three"])]
    moves: Option<String>,
}

/// Of arithmetic.
#[derive(Args, Clone, Debug, Default, Serialize)]
#[command(next_help_heading = "The task")]
pub(super) struct ArithmeticFlags {
    /// modular_arithmetic_with_brackets: with multiplication.
    #[arg(long)]
    #[serde(skip_serializing_if = "off")]
    mult: bool,
}

/// Of questions about a window of bits.
#[derive(Args, Clone, Debug, Default, Serialize)]
#[command(next_help_heading = "The task")]
pub(super) struct WindowFlags {
    /// Windows: how many bits it is asked about.
    #[arg(long, value_name = "N", value_parser = whole)]
    window: Option<i64>,
    /// Windows: about how many of the largest windows it is asked; 0: all.
    #[arg(long, value_name = "K", value_parser = whole)]
    asked: Option<i64>,
    /// Windows: each sequence has its own probability of a one.
    #[arg(long, hide_short_help = true)]
    #[serde(skip_serializing_if = "off")]
    uneven: bool,
    /// Windows: a curriculum that begins with this window.
    #[arg(long, value_name = "N", value_parser = whole)]
    grow_from: Option<i64>,
    /// Windows: the window may grow by one every so many steps.
    #[arg(long, value_name = "STEPS", value_parser = whole, hide_short_help = true)]
    grow_every: Option<i64>,
    /// Windows: the accuracy that it takes to grow; 0: none.
    #[arg(long, value_name = "X", value_parser = number, hide_short_help = true)]
    grow_at: Option<f64>,
}

/// Of in-context languages.
#[derive(Args, Clone, Debug, Default, Serialize)]
#[command(next_help_heading = "The task")]
pub(super) struct IcllFlags {
    /// icll: how many letters there are.
    #[arg(long, value_name = "N", value_parser = whole)]
    letters: Option<i64>,
    /// icll: the most states of an automaton.
    #[arg(long, value_name = "N", value_parser = whole)]
    nodes: Option<i64>,
    /// icll: the most edges of a state.
    #[arg(long, value_name = "N", value_parser = whole, hide_short_help = true)]
    edges: Option<i64>,
    /// icll: the longest string.
    #[arg(long, value_name = "N", value_parser = whole, hide_short_help = true)]
    string: Option<i64>,
}

/// Of text.
#[derive(Args, Clone, Debug, Default, Serialize)]
#[command(next_help_heading = "The task")]
pub(super) struct TextFlags {
    /// Text files in UTF-8, whose bytes are the tokens [default: Alice in Wonderland, which comes along]
    #[arg(long, value_name = "FILE", num_args = 1..)]
    text: Option<Vec<String>>,
    /// text: the part at its end that is not trained on but evaluated.
    #[arg(long, value_name = "PART", value_parser = number)]
    held_out: Option<f64>,
}
