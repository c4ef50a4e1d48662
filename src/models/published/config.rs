//! Which published model, of what size, and without which of its defects.

use super::{find, parameters::STD};
use crate::{
    error::{Error, Result},
    models::{ModelConfig, Positions},
};
use serde::{Deserialize, Serialize};

/// A defect that a published model can be built without.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Defect {
    /// Only the diagonal of the memory matrix is read. Without the defect: the whole matrix.
    Diagonal,
    /// Keys have any length, so that the gate 1 − β k² can be negative. Without the defect: φ(k) is divided by its
    /// norm.
    RawKeys,
    /// The convolution looks ahead. Without the defect: it is causal.
    Lookahead,
    /// BatchNorm over batch and time. Without the defect: LayerNorm.
    BatchNorm,
    /// A token is a single number, its index. Without the defect: a one-hot vector.
    ScalarTokens,
}

impl Defect {
    /// The models that have this defect.
    fn models(self) -> &'static [&'static str] {
        match self {
            Defect::Diagonal => &["linear_transformer", "delta_net"],
            Defect::RawKeys => &["delta_net"],
            Defect::Lookahead => &["mamba"],
            Defect::BatchNorm | Defect::ScalarTokens => &["lru"],
        }
    }
}

/// Its name in configuration files.
fn defect_name(defect: Defect) -> String {
    serde_json::to_value(defect).ok().and_then(|v| Some(v.as_str()?.to_string())).unwrap_or_default()
}

/// The sizes of a published model, under the names of the published code. A model reads the sizes that it uses.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Which model: a name of [`names`](super::names).
    pub model: String,
    /// Number of blocks.
    pub n_layers: usize,
    /// Width of the residual stream; of the LRU, the number of its complex states.
    pub h_dim: usize,
    /// Hidden width of the MLPs.
    pub mlp_dim: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Number of heads.
    pub n_heads: usize,
    /// Steps in a block of the quasi-LSTM.
    pub block_length: usize,
    /// Width of the residual stream of the LRU.
    pub d_model: usize,
    /// States per channel of Mamba.
    pub d_state: usize,
    /// Width of Mamba's convolution.
    pub d_conv: usize,
    /// Mamba's inner width over its model width.
    pub expand: usize,
    /// Rank of Mamba's Δ.
    pub dt_rank: usize,
    /// Number of classes.
    pub output_size: usize,
    /// Number of different tokens.
    pub num_input_classes: usize,
    /// The longest sequence, where positions are learned.
    pub max_seq_len: usize,
    /// Positions in place of the published ones.
    pub positions: Option<Positions>,
    /// Standard deviation of the initial weights: of Mamba only those of its embedding and head, and none of the LRU.
    pub std: f64,
    /// Defects that are left out.
    pub without: Vec<Defect>,
}

impl Default for Config {
    /// The sizes in the notebook behind the poster's figures, for bit parity at up to 256 tokens.
    fn default() -> Config {
        Config {
            model: "lstm".into(),
            n_layers: 2,
            h_dim: 4,
            mlp_dim: 8,
            head_dim: 4,
            n_heads: 4,
            block_length: 8,
            d_model: 128,
            d_state: 8,
            d_conv: 3,
            expand: 2,
            dt_rank: 1,
            output_size: 2,
            num_input_classes: 2,
            max_seq_len: 256,
            positions: None,
            std: STD,
            without: vec![],
        }
    }
}

impl Config {
    /// The published model of this mixer at these sizes. `width` is the width of the residual stream, `d_model` in the
    /// LRU. A size that a model does not read may be 0.
    pub fn of(c: &ModelConfig) -> Config {
        let lru = c.mixer == "lru";
        Config {
            model: c.mixer.clone(),
            n_layers: c.layers,
            h_dim: if lru { c.state } else { c.width },
            mlp_dim: if lru || c.mixer == "mamba" { c.mlp.max(1) } else { c.mlp },
            head_dim: c.head_dim,
            n_heads: c.heads,
            block_length: c.max_len.min(8),
            d_model: c.width,
            d_state: c.state,
            d_conv: if c.mixer == "mamba" { c.conv } else { c.conv.max(1) },
            expand: c.expand,
            dt_rank: c.rank(),
            output_size: c.classes,
            num_input_classes: c.vocab,
            max_seq_len: c.max_len,
            positions: Some(c.positions),
            std: c.init_std.unwrap_or(STD),
            without: c.without.clone(),
        }
    }

    /// Whether the model is built with this defect.
    pub(super) fn has(&self, defect: Defect) -> bool {
        !self.without.contains(&defect)
    }

    /// D, the inner width of the mixers with heads.
    pub(super) fn inner(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Refuse sizes that no model can have.
    ///
    /// # Errors
    /// Names the value and what was expected.
    pub fn check(&self) -> Result<()> {
        find(&self.model)?;
        let sizes = [
            ("n_layers", self.n_layers),
            ("h_dim", self.h_dim),
            ("mlp_dim", self.mlp_dim),
            ("head_dim", self.head_dim),
            ("n_heads", self.n_heads),
            ("block_length", self.block_length),
            ("d_model", self.d_model),
            ("d_state", self.d_state),
            ("d_conv", self.d_conv),
            ("expand", self.expand),
            ("dt_rank", self.dt_rank),
            ("output_size", self.output_size),
            ("num_input_classes", self.num_input_classes),
            ("max_seq_len", self.max_seq_len),
        ];
        if let Some((name, n)) = sizes.iter().find(|(_, n)| *n == 0 || *n > 1 << 16) {
            return Err(Error::config(format!("{name} = {n}: expected a number from 1 to {}", 1 << 16)));
        }
        if self.model == "lstm" && self.n_heads == 1 && self.head_dim != self.h_dim {
            let (k, width) = (self.head_dim, self.h_dim);
            let what = "with one head the published lstm has no map back to the width";
            return Err(Error::config(format!("head_dim = {k}: {what}; expected {width}, as h_dim")));
        }
        let widest = sizes[1..].iter().map(|x| x.1).chain([self.inner(), self.expand * self.h_dim]).max().unwrap_or(0);
        if self.n_layers.saturating_mul(widest).saturating_mul(self.h_dim.max(self.d_model)) > 1 << 26 {
            let layers = self.n_layers;
            return Err(Error::config(format!("{layers} layers of width {widest}: too large for a published model")));
        }
        for defect in &self.without {
            let models = defect.models();
            if !models.contains(&self.model.as_str()) {
                let what = format!("without = {}: {} has no such defect", defect_name(*defect), self.model);
                return Err(Error::config(format!("{what}; of the published models, these do: {}", models.join(", "))));
            }
        }
        if self.model == "lru" && self.positions.is_some_and(|p| p != Positions::None) {
            return Err(Error::config("positions: the published lru has none, as it embeds no tokens"));
        }
        Ok(())
    }
}
