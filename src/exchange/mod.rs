//! Weights in and out: layers of PyTorch, flash-linear-attention, xlstm and mamba-ssm, under the names that these have.
//!
//! A mixer of this crate and a module of another package compute the same from the same numbers where there is a table
//! for the two: which parameter is made of which tensors, and how. There is one file of tables a package, with what
//! differs. Numbers are moved, and nothing is computed from them, except that xlstm stores the weights of its norms minus
//! one.
//!
//! [`Layers::read`] takes one layer, or several whose names differ by a number:
//!
//! ```no_run
//! use tapezoo::{exchange::{Layers, Package, Wanted}, models::{Model, ModelConfig}};
//!
//! let wanted = Wanted { prefix: "model.layers.{}.attn.", ..Wanted::of(Package::Fla, "gla") };
//! let layers = Layers::read("model.safetensors".as_ref(), &wanted)?;
//! let config = layers.config(&ModelConfig { mlp: 0, ..ModelConfig::default() });
//! let model: Model = layers.model(&config, 0)?; // all but the mixers is new, from seed 0
//! # Ok::<(), tapezoo::error::Error>(())
//! ```
//!
//! Layers are taken whole or not at all: every tensor that is missing, has another shape or is not understood is named,
//! and there is no model. What changes no shape, such as the ε of a norm or an activation, is in no file:
//! [`Layers::module`] is the module, with all of its options, that equals the mixer.

mod fla;
mod mamba;
mod names;
mod problems;
mod read;
mod sizes;
mod table;
mod torch;
mod write;
mod xlstm;

pub use read::{Layers, Wanted};
pub use write::{Exported, export};

use crate::{
    error::{Error, Result, brief, did_you_mean},
    models::{Entry, ModelConfig},
};
use std::{fmt, str::FromStr};
use table::{Row, Table};

/// The package that names and shapes belong to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Package {
    /// PyTorch.
    Torch,
    /// flash-linear-attention.
    Fla,
    /// NX-AI's xlstm.
    Xlstm,
    /// mamba-ssm.
    Mamba,
}

impl Package {
    /// All of them.
    pub const ALL: [Package; 4] = [Package::Torch, Package::Fla, Package::Xlstm, Package::Mamba];

    /// Its name here.
    pub fn name(self) -> &'static str {
        match self {
            Package::Torch => "torch",
            Package::Fla => "fla",
            Package::Xlstm => "xlstm",
            Package::Mamba => "mamba",
        }
    }
}

impl fmt::Display for Package {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Package {
    type Err = String;
    fn from_str(s: &str) -> std::result::Result<Package, String> {
        let found = Package::ALL.into_iter().find(|package| package.name() == s);
        let near = did_you_mean(s, Package::ALL.map(Package::name));
        found.ok_or_else(|| format!("unknown package '{}'{near}: expected torch, fla, xlstm or mamba", brief(s, 40)))
    }
}

fn tables() -> impl Iterator<Item = &'static Table> {
    [torch::TABLES, fla::TABLES, xlstm::TABLES, mamba::TABLES].into_iter().flatten()
}

/// Every mixer that there is a table for, with the module that equals it, made for this configuration.
pub fn equals(config: &ModelConfig) -> Vec<(Package, &'static str, String)> {
    tables().map(|table| (table.package, table.mixer, table.typical_module(config))).collect()
}

/// Mixers that nearly equal a layer of a package, with the difference.
pub fn differs() -> impl Iterator<Item = (Package, &'static str, &'static str)> {
    let of = |package, all: &'static [(&'static str, &'static str)]| {
        all.iter().map(move |(mixer, how)| (package, *mixer, *how))
    };
    of(Package::Fla, fla::DIFFERS).chain(of(Package::Mamba, mamba::DIFFERS))
}

/// The tables of a mixer in a package, for the ways in which its module may keep its weights. We write the first.
fn tables_of(package: Package, mixer: &str) -> Result<Vec<&'static Table>> {
    let found: Vec<&Table> = tables().filter(|table| table.package == package && table.mixer == mixer).collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let mut names: Vec<&str> = tables().filter(|table| table.package == package).map(|table| table.mixer).collect();
    names.dedup();
    if let Some((.., how)) = differs().find(|(whose, nearly, _)| *whose == package && *nearly == mixer) {
        return Err(Error::config(format!("{mixer}: no layer of {package} equals it: {how}")));
    }
    let near = did_you_mean(mixer, names.iter().copied());
    let elsewhere = tables().find(|table| table.mixer == mixer).map(|table| table.package);
    let elsewhere = elsewhere.map(|package| format!("; there is one of {package}")).unwrap_or_default();
    let (mixer, names) = (brief(mixer, 80), names.join(", "));
    Err(Error::config(format!("{mixer}: no layer of {package} equals it{near}; there are {names}{elsewhere}")))
}

/// The parameter of block `i` that a row is about.
fn parameter<'a>(entries: &'a [Entry], i: usize, row: &Row) -> Result<&'a Entry> {
    let name = format!("blocks.{i}.mixer.{}", row.ours);
    let found = entries.iter().find(|entry| entry.name == name);
    found.ok_or_else(|| Error::config(format!("a fault of this program: the model has no '{name}'")))
}
