//! The facts of every mixer, which stand in its file, and the table of them that `--models list` prints.

use super::{Build, any_size, own::all};
use std::fmt::Write;

/// The kind of a mixer's state: a heading of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// Units behind gates that see more than the input.
    Cells,
    /// One number, real or complex, for each state, or a matrix that is the same at every step.
    Scans,
    /// A matrix that fades and adds.
    Memories,
    /// A matrix that also erases.
    DeltaRules,
    /// A layer that is trained while it reads.
    Learners,
    /// The tokens so far.
    Attention,
    /// Mixers whose files do not say.
    Others,
}

impl Family {
    /// All of them but the others, in the order of the table.
    pub const ALL: [Family; 6] =
        [Family::Cells, Family::Scans, Family::Memories, Family::DeltaRules, Family::Learners, Family::Attention];

    /// The families of the mixers that there are.
    pub fn present() -> Vec<Family> {
        let others = all().iter().any(|m| m.2.family == Family::Others).then_some(Family::Others);
        Family::ALL.into_iter().chain(others).collect()
    }

    /// The heading.
    pub fn title(self) -> &'static str {
        match self {
            Family::Cells => "Gated cells",
            Family::Scans => "State spaces: one number for each state, or a fixed matrix",
            Family::Memories => "Matrix memories that fade and add",
            Family::DeltaRules => "Matrix memories that erase before they write (delta rules)",
            Family::Learners => "Memories that learn while they read",
            Family::Attention => "Attention: the state is every token so far",
            Family::Others => "Others",
        }
    }
}

/// Stands in for `ABOUT` where a mixer's file has none.
pub(crate) const UNKNOWN: About = About {
    family: Family::Others,
    line: "not described yet",
    parent: None,
    transition: "?",
    state: "?",
    eigenvalues: "?",
    cost: "?",
    source: "?",
};

/// The facts of a mixer.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// Its family.
    pub family: Family,
    /// Its usual name and what it is, in a few words.
    pub line: &'static str,
    /// The mixer that it changes, and in which term; none for the first of a tree.
    pub parent: Option<(&'static str, &'static str)>,
    /// A_t in S_t = A_t S_{t-1} + B_t.
    pub transition: &'static str,
    /// How many numbers a block's memory has from one token to the next. Four things that are carried beside it do not
    /// count: the last inputs of convolutions, token shifts and Mamba-3's trapezoidal rule; the w of the xLSTMs and of
    /// LightNet, which is 0 before the first token and then 1; the angle φ by which Mamba-3's memory is turned; and the
    /// ages of SeqBoat's tokens.
    pub state: &'static str,
    /// Where the eigenvalues of the transition can be.
    pub eigenvalues: &'static str,
    /// The order of the multiplications of a step, beside those of the projections.
    pub cost: &'static str,
    /// The paper.
    pub source: &'static str,
}

/// The facts of the mixer of this name.
pub fn about(name: &str) -> Option<&'static About> {
    all().iter().find(|m| m.0 == name).map(|m| m.2)
}

/// The names by family, with a line for each.
pub fn lines() -> String {
    let mut text = String::new();
    for family in Family::present() {
        let _ = writeln!(text, "{}", family.title());
        for (name, _, about) in all().iter().filter(|m| m.2.family == family) {
            let _ = writeln!(text, "  {name:<19} {}", about.line);
        }
    }
    text
}

/// The letters of sizes in the facts.
pub const LETTERS: &str = "H heads have keys of K and values of V channels; N: states; P: channels of a head of Mamba-2 and \
                           Mamba-3; E: inner channels of Mamba; D: the width; n: steps of a token; C: a stretch; t: tokens \
                           so far.";

/// The scheme's table: the facts of each mixer below its name.
pub fn table() -> String {
    let mut text = format!("S_t = A_t S_{{t-1}} + B_t. {LETTERS}\n");
    for family in Family::present() {
        let _ = writeln!(text, "\n{}", family.title());
        for (name, build, about) in all().iter().filter(|m| m.2.family == family) {
            text += &entry(name, *build, about);
        }
    }
    text
}

/// The entry of one mixer in [`table`].
pub fn facts(name: &str) -> Option<String> {
    all().iter().find(|m| m.0 == name).map(|(name, build, about)| entry(name, *build, about))
}

fn entry(name: &str, build: Build, about: &About) -> String {
    let forms = any_size(build).map_or(vec![], |mixer| mixer.forms());
    let forms: Vec<&str> = forms.iter().map(|form| form.kind()).collect();
    let About { line, transition, state, eigenvalues, cost, source, .. } = about;
    let facts = [
        format!("A_t          {transition}"),
        format!("eigenvalues  {eigenvalues}"),
        format!("state        {state}"),
        format!("a step       {cost}"),
        format!("forms        {}", forms.join(", ")),
        format!("source       {source}"),
    ];
    let mut text = format!("  {name}  {line}\n");
    facts.iter().for_each(|fact| text.extend(["      ", fact, "\n"]));
    text
}
