//! The flags of each task, of which every one is a key of the configuration's `[task]`.

use super::{number, whole};
use clap::Args;
use toml::{Table, Value};

/// Of parity.
#[derive(Args, Clone, Debug, Default)]
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
#[derive(Args, Clone, Debug, Default)]
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
#[derive(Args, Clone, Debug, Default)]
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
    random_non_queries: bool,
    /// published: how many different keys there are.
    #[arg(long, value_name = "N", value_parser = whole)]
    keys: Option<i64>,
    /// published: how many different values there are.
    #[arg(long, value_name = "N", value_parser = whole)]
    values: Option<i64>,
    /// published: a key may come again in a sequence; its last value counts.
    #[arg(long, hide_short_help = true)]
    repeated_keys: bool,
    /// published: every key is asked for at the end; else one.
    #[arg(long)]
    all_queries: bool,
}

/// Of two sets.
#[derive(Args, Clone, Debug, Default)]
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
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "The task")]
pub(super) struct RepeatFlag {
    /// How often pairs or sets are read before the queries; 2: 'just read twice' [default: 1]
    #[arg(long, value_name = "N", value_parser = whole)]
    repeat: Option<i64>,
}

/// Of word problems of groups.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "The task")]
pub(super) struct GroupFlags {
    /// Groups: which elements are tokens: all, swaps (of two things), three (moving at most three things).
    #[arg(long, value_name = "NAME", value_parser = ["all", "swaps", "three"])]
    moves: Option<String>,
}

/// Of arithmetic.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "The task")]
pub(super) struct ArithmeticFlags {
    /// modular_arithmetic_with_brackets: with multiplication.
    #[arg(long)]
    mult: bool,
}

/// Of questions about a window of bits.
#[derive(Args, Clone, Debug, Default)]
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

impl TaskFlags for WindowFlags {
    fn options(&self) -> Table {
        table([
            ("window", self.window.map(Value::from)),
            ("asked", self.asked.map(Value::from)),
            ("uneven", on(self.uneven, true)),
            ("grow_from", self.grow_from.map(Value::from)),
            ("grow_every", self.grow_every.map(Value::from)),
            ("grow_at", self.grow_at.map(Value::from)),
        ])
    }
}

/// Of in-context languages.
#[derive(Args, Clone, Debug, Default)]
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

impl TaskFlags for IcllFlags {
    fn options(&self) -> Table {
        table([
            ("letters", self.letters.map(Value::from)),
            ("nodes", self.nodes.map(Value::from)),
            ("edges", self.edges.map(Value::from)),
            ("string", self.string.map(Value::from)),
        ])
    }
}

/// Of text.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "The task")]
pub(super) struct TextFlags {
    /// Text files in UTF-8, whose bytes are the tokens [default: Alice in Wonderland, which comes along]
    #[arg(long, value_name = "FILE", num_args = 1..)]
    text: Option<Vec<String>>,
    /// text: the part at its end that is not trained on but evaluated.
    #[arg(long, value_name = "PART", value_parser = number)]
    held_out: Option<f64>,
}

impl TaskFlags for TextFlags {
    fn options(&self) -> Table {
        table([("text", self.text.clone().map(Value::from)), ("held_out", self.held_out.map(Value::from))])
    }
}

/// The flags that are given, under their names in `[task]`.
pub(super) trait TaskFlags {
    fn options(&self) -> Table;
}

/// A table of what there is.
fn table<const N: usize>(given: [(&str, Option<Value>); N]) -> Table {
    given.into_iter().filter_map(|(key, value)| Some((key.to_string(), value?))).collect()
}

/// A switch: nothing where it is off.
fn on(given: bool, value: bool) -> Option<Value> {
    given.then_some(Value::Boolean(value))
}

impl TaskFlags for ParityFlags {
    fn options(&self) -> Table {
        table([("num_ones", self.num_ones.map(Value::from)), ("modulus", self.modulus.map(Value::from))])
    }
}

impl TaskFlags for DyckFlags {
    fn options(&self) -> Table {
        table([("types", self.types.map(Value::from)), ("depth", self.depth.map(Value::from))])
    }
}

impl TaskFlags for MqarFlags {
    fn options(&self) -> Table {
        table([
            ("layout", self.layout.clone().map(Value::from)),
            ("vocab", self.vocab.map(Value::from)),
            ("pairs", self.pairs.map(Value::from)),
            ("keys", self.keys.map(Value::from)),
            ("values", self.values.map(Value::from)),
            ("random_non_queries", on(self.random_non_queries, true)),
            ("unique_keys", on(self.repeated_keys, false)),
            ("all_queries", on(self.all_queries, true)),
        ])
    }
}

impl TaskFlags for DisjointFlags {
    fn options(&self) -> Table {
        table([
            ("elements", self.elements.map(Value::from)),
            ("small", self.small.map(Value::from)),
            ("first", self.first.clone().map(Value::from)),
        ])
    }
}

impl TaskFlags for RepeatFlag {
    fn options(&self) -> Table {
        table([("repeat", self.repeat.map(Value::from))])
    }
}

impl TaskFlags for GroupFlags {
    fn options(&self) -> Table {
        table([("moves", self.moves.clone().map(Value::from))])
    }
}

impl TaskFlags for ArithmeticFlags {
    fn options(&self) -> Table {
        table([("mult", on(self.mult, true))])
    }
}
