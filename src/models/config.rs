//! The sizes of a model.

use super::{Capabilities, Mixer, published::Defect};
use crate::{
    error::{Error, Result, bytes, number},
    tensor::available,
};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// The position information that a model gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Positions {
    /// None, apart from the order in which the mixer sees the tokens.
    #[default]
    None,
    /// A learned vector for each position is added to the embedding. Positions past the training length keep their
    /// random initial values.
    Learned,
    /// Sines and cosines of the position are added to the embedding (Vaswani et al. 2017).
    Sinusoidal,
    /// Queries and keys are rotated by their position (Su et al. 2021).
    Rope,
}

impl fmt::Display for Positions {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Positions::None => "none",
            Positions::Learned => "learned",
            Positions::Sinusoidal => "sinusoidal",
            Positions::Rope => "rope",
        })
    }
}

/// The range of a transition's eigenvalues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Eigenvalues {
    /// From 0 to 1: a state decays or stays.
    #[default]
    #[serde(rename = "0..1")]
    Positive,
    /// From −1 to 1: a state can also flip its sign, which parity needs (Grazzi et al. 2025, arXiv 2411.12537, theorem
    /// 1). RWKV-7's, which is not symmetric, reaches below −1.
    #[serde(rename = "-1..1")]
    Signed,
}

impl Eigenvalues {
    /// s, the length of the range: an eigenvalue a in (0, 1) becomes s a − (s − 1), or, where it is 1 − β, 1 − s β.
    pub fn stretch(self) -> f64 {
        match self {
            Eigenvalues::Positive => 1.0,
            Eigenvalues::Signed => 2.0,
        }
    }
}

impl fmt::Display for Eigenvalues {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Eigenvalues::Positive => "0..1",
            Eigenvalues::Signed => "-1..1",
        })
    }
}

impl FromStr for Eigenvalues {
    type Err = String;
    fn from_str(s: &str) -> std::result::Result<Eigenvalues, String> {
        match s {
            "0..1" => Ok(Eigenvalues::Positive),
            "-1..1" => Ok(Eigenvalues::Signed),
            _ => Err(format!("unknown eigenvalues '{s}': expected 0..1 or -1..1")),
        }
    }
}

/// Which of the two models with this name is built.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Variant {
    /// The mixer in this crate's decoder.
    #[default]
    Clean,
    /// The model of the published experiment, defects included ([`super::published`]).
    Published,
}

fn is_default<T: Default + PartialEq>(x: &T) -> bool {
    *x == T::default()
}

/// The sizes of a model. A mixer reads the sizes that it uses.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelConfig {
    /// Which mixer: a name of [`super::names`], or any name for one of your own ([`super::Model::with_mixer`]).
    pub mixer: String,
    /// Number of blocks.
    pub layers: usize,
    /// D, the width of the residual stream.
    pub width: usize,
    /// H, the number of heads.
    pub heads: usize,
    /// K = V, the width of a head; H K may differ from D. The LSTMs have H K units.
    pub head_dim: usize,
    /// Hidden width of the MLP of each block; 0: no MLP.
    pub mlp: usize,
    /// N: complex states of the LRU; states per channel of Mamba, S4D and LSSL and per head of Mamba-2 and Mamba-3; the
    /// polynomials of LMU; the slots of GSA; the averages per channel of SeqBoat.
    pub state: usize,
    /// W, the width of the causal convolutions of DeltaNet and its kin, Mamba, Mamba-2, sLSTM, mLSTM, TTT and Titans;
    /// 0: none.
    pub conv: usize,
    /// E / D in Mamba.
    pub expand: usize,
    /// R, the rank of Δ in Mamba; 0: D / 16, rounded up.
    pub dt_rank: usize,
    /// Smallest initial |λ| of the LRU.
    pub r_min: f64,
    /// Largest initial |λ| of the LRU.
    pub r_max: f64,
    /// n, the number of delta-rule steps per token in DeltaProduct.
    pub householders: usize,
    /// The range of the transitions' eigenvalues, in Mamba, Mamba-2 and the delta rules.
    pub eigenvalues: Eigenvalues,
    /// Position information.
    pub positions: Positions,
    /// N: n-gram heads for n = 1 … N behind the first block's mixer ([`super::ngram`]); 0: none.
    #[serde(skip_serializing_if = "is_default")]
    pub ngram: usize,
    /// Standard deviation of all initial weights; if absent, each layer has its own rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub init_std: Option<f64>,
    /// The mixer in the clean decoder, or the model as published.
    #[serde(skip_serializing_if = "is_default")]
    pub variant: Variant,
    /// Defects that a published model is built without.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<Defect>,
    /// Start each training batch from the final state of the batch before, as the published code does on MQAR.
    /// Evaluation always starts from zeros.
    #[serde(skip_serializing_if = "is_default")]
    pub carry_state: bool,
    /// Number of different tokens.
    pub vocab: usize,
    /// Number of outputs.
    pub classes: usize,
    /// The longest sequence, for positions that are learned or tabulated.
    pub max_len: usize,
}

impl Default for ModelConfig {
    fn default() -> ModelConfig {
        ModelConfig {
            mixer: "lstm".into(),
            layers: 2,
            width: 32,
            heads: 4,
            head_dim: 8,
            mlp: 64,
            state: 16,
            conv: 4,
            expand: 2,
            dt_rank: 0,
            r_min: 0.0,
            r_max: 1.0,
            householders: 2,
            eigenvalues: Eigenvalues::Positive,
            positions: Positions::None,
            ngram: 0,
            init_std: None,
            variant: Variant::Clean,
            without: vec![],
            carry_state: false,
            vocab: 2,
            classes: 2,
            max_len: 256,
        }
    }
}

impl ModelConfig {
    /// H K, the inner width of the mixers with heads.
    pub fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    /// R, or its default.
    pub fn rank(&self) -> usize {
        if self.dt_rank == 0 { self.width.div_ceil(16) } else { self.dt_rank }
    }

    /// Refuse sizes that no model can have.
    ///
    /// # Errors
    /// Names the value and what was expected.
    pub fn check(&self) -> Result<()> {
        super::find(&self.mixer)?;
        self.check_sizes()
    }

    /// The same, whatever the mixer.
    pub(super) fn check_sizes(&self) -> Result<()> {
        let sizes = [
            ("layers", self.layers, 1 << 10),
            ("width", self.width, 1 << 16),
            ("heads", self.heads, 1 << 10),
            ("head_dim", self.head_dim, 1 << 14),
            ("state", self.state, 1 << 14),
            ("expand", self.expand, 1 << 8),
            ("householders", self.householders, 1 << 6),
            ("vocab", self.vocab, 1 << 24),
            ("classes", self.classes, 1 << 24),
            ("max_len", self.max_len, 1 << 24),
        ];
        for (name, value, most) in sizes {
            if value == 0 || value > most {
                return Err(Error::config(format!("{name} = {value}: expected a number from 1 to {most}")));
            }
        }
        let may_be_none = [
            ("mlp", self.mlp, 1 << 18),
            ("conv", self.conv, 1 << 10),
            ("dt_rank", self.dt_rank, 1 << 14),
            ("ngram", self.ngram, 16),
        ];
        for (name, value, most) in may_be_none {
            if value > most {
                return Err(Error::config(format!("{name} = {value}: expected a number from 0 to {most}")));
            }
        }
        if !(0.0 <= self.r_min && self.r_min < self.r_max && self.r_max <= 1.0) {
            let [lo, hi] = [self.r_min, self.r_max].map(number);
            return Err(Error::config(format!("r_min = {lo}, r_max = {hi}: expected 0 ≤ r_min < r_max ≤ 1")));
        }
        if let Some(std) = self.init_std.filter(|s| !(s.is_finite() && *s >= 0.0)).map(number) {
            return Err(Error::config(format!("init_std = {std}: expected a standard deviation, 0 or more")));
        }
        if self.positions == Positions::Sinusoidal && self.width % 2 == 1 {
            return Err(Error::config(format!("width = {}: sinusoidal positions need an even width", self.width)));
        }
        if self.positions == Positions::Rope && self.head_dim % 2 == 1 {
            return Err(Error::config(format!("head_dim = {}: rope needs an even head_dim", self.head_dim)));
        }
        let counts = [("positions = rope", self.positions == Positions::Rope), ("ttt", self.mixer == "ttt")];
        if let Some((what, _)) = counts.iter().find(|of| of.1 && self.carry_state) {
            let why = "it counts the tokens of each batch from 0, and the carried state has counted on";
            return Err(Error::Config(format!("carry_state: {what} cannot go on from the batch before: {why}")));
        }
        if self.variant == Variant::Clean && !self.without.is_empty() {
            return Err(Error::config("without: only variant = \"published\" has defects to be built without"));
        }
        if self.variant == Variant::Published && self.eigenvalues == Eigenvalues::Signed {
            return Err(Error::config("eigenvalues = -1..1: the published models have no such choice"));
        }
        if self.variant == Variant::Published && self.ngram > 0 {
            return Err(Error::config(format!("ngram = {}: the published models have no n-gram heads", self.ngram)));
        }
        Ok(())
    }

    /// Refuse tables of positions that do not fit in memory.
    ///
    /// # Errors
    /// Names their sizes and the settings to change.
    pub fn check_tables(&self) -> Result<()> {
        // With rotations each block has a table of its own.
        let (row, tables) = match self.positions {
            Positions::Sinusoidal => (self.width, 1),
            Positions::Rope => (self.head_dim, self.layers),
            Positions::None | Positions::Learned => (0, 0),
        };
        // While the table is built, it exists in both precisions.
        let asked = [row, tables, 2 * size_of::<f64>()].into_iter().fold(self.max_len, usize::saturating_mul);
        if asked <= 1 << 26 || asked <= available() {
            return Ok(());
        }
        let (len, positions, [asked, there]) = (self.max_len, self.positions, [asked, available()].map(bytes));
        Err(Error::config(format!(
            "positions {positions}: a table of {len} times {row} asks for {asked}, and {there} are available; lower the \
             lengths or max_len"
        )))
    }

    /// Refuse a setting that this mixer does not support.
    ///
    /// # Errors
    /// Names the setting, and the mixers that support it.
    pub fn check_capabilities(&self, mixer: &dyn Mixer) -> Result<()> {
        let has = mixer.capabilities();
        let others = |by: fn(Capabilities) -> bool| super::names_with(by).join(", ");
        let mixer = &self.mixer;
        if self.positions == Positions::Rope && !has.rope {
            return Err(Error::config(format!(
                "positions = rope: the mixer must compare queries with keys, and {mixer} does not; these do: {}",
                others(|c| c.rope)
            )));
        }
        if self.eigenvalues == Eigenvalues::Signed && !has.eigenvalues {
            return Err(Error::config(format!(
                "eigenvalues = -1..1: {mixer} has no such choice; the range can be chosen only of {}",
                others(|c| c.eigenvalues)
            )));
        }
        Ok(())
    }
}
