//! Which ops are computed by their kernels, and which by their definitions.

use std::{fmt, str::FromStr};

/// An op that is not computed by its kernel is computed by its formula, or if it is a primitive by its plain loops.
/// (On a device, primitives have no loops and keep their kernels.)
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Kernels {
    /// Every kernel that there is.
    #[default]
    Fast,
    /// No kernel, except where there is no other way: for primitives on a GPU or of i32.
    Plain,
    /// Only the kernels of these names, or of the ops of these names.
    Only(Vec<String>),
    /// All kernels but these.
    Without(Vec<String>),
}

impl Kernels {
    /// Whether an op of this name is computed by this kernel of its. The op's name stands for all of its kernels.
    pub fn has(&self, op: &str, kernel: Option<&str>) -> bool {
        let named = |list: &[String]| list.iter().any(|name| name == op || Some(name.as_str()) == kernel);
        match self {
            Kernels::Fast => true,
            Kernels::Plain => false,
            Kernels::Only(list) => named(list),
            Kernels::Without(list) => !named(list),
        }
    }

    /// The ops and kernels that are named.
    pub fn names(&self) -> &[String] {
        match self {
            Kernels::Fast | Kernels::Plain => &[],
            Kernels::Only(list) | Kernels::Without(list) => list,
        }
    }
}

/// "fast", "plain", "matmul,linear" (these alone) or "fast,-matmul" (all but this).
impl FromStr for Kernels {
    type Err = String;
    fn from_str(s: &str) -> Result<Kernels, String> {
        let names: Vec<&str> = s.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        let owned = |names: &[&str]| names.iter().map(|name| name.trim_start_matches('-').to_owned()).collect();
        match names[..] {
            [] => Err("names no kernel: expected fast, plain, names of ops, or fast,-NAME".into()),
            ["fast"] => Ok(Kernels::Fast),
            ["plain"] => Ok(Kernels::Plain),
            ["fast", ref rest @ ..] if rest.iter().all(|name| name.starts_with('-')) => {
                Ok(Kernels::Without(owned(rest)))
            }
            _ if names.iter().all(|name| !name.starts_with('-') && !["fast", "plain"].contains(name)) => {
                Ok(Kernels::Only(owned(&names)))
            }
            _ => {
                Err(format!("'{s}': expected fast, plain, names of ops (linear,conv), or fast,-NAME,… (all but these)"))
            }
        }
    }
}

impl fmt::Display for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Kernels::Fast => f.write_str("fast"),
            Kernels::Plain => f.write_str("plain"),
            Kernels::Only(list) => f.write_str(&list.join(",")),
            Kernels::Without(list) => write!(f, "fast,-{}", list.join(",-")),
        }
    }
}
