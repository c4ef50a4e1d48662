//! Parameters under their published names, and how they start.

use crate::{autograd::Var, models::Init};
use std::collections::BTreeMap;

/// Parameters on a tape by their published names.
pub type Named<'t> = BTreeMap<String, Var<'t>>;

/// The parameters of one part of a model: those whose names begin with a path.
#[derive(Clone)]
pub struct Part<'a, 't> {
    all: &'a Named<'t>,
    path: String,
}

impl<'a, 't> Part<'a, 't> {
    pub(super) fn whole(all: &'a Named<'t>) -> Part<'a, 't> {
        Part { all, path: String::new() }
    }

    /// The parameters below `path.name`.
    pub(super) fn part(&self, name: &str) -> Part<'a, 't> {
        Part { all: self.all, path: format!("{}{name}.", self.path) }
    }

    /// One parameter.
    #[track_caller]
    pub(super) fn get(&self, name: &str) -> Var<'t> {
        let name = format!("{}{name}", self.path);
        match self.all.get(&name) {
            Some(&p) => p,
            None => panic!("the parameter '{name}' is missing"),
        }
    }

    /// torch's `nn.Linear` of this name.
    #[track_caller]
    pub(super) fn linear(&self, name: &str, x: Var<'t>) -> Var<'t> {
        let p = self.part(name);
        x.linear(p.get("weight"), Some(p.get("bias")))
    }

    /// torch's `nn.Linear` without a bias.
    #[track_caller]
    pub(super) fn linear_unbiased(&self, name: &str, x: Var<'t>) -> Var<'t> {
        x.linear(self.part(name).get("weight"), None)
    }

    #[track_caller]
    pub(super) fn layer_norm(&self, name: &str, x: Var<'t>) -> Var<'t> {
        let p = self.part(name);
        x.layer_norm(p.get("weight"), Some(p.get("bias")), 1e-5)
    }
}

/// The initial standard deviation of nearly every published weight.
pub(super) const STD: f64 = 0.02;

/// How the published code initialises its layers.
impl Init {
    /// Weight of this standard deviation, bias zero.
    pub(super) fn linear_std(&mut self, name: &str, out: usize, inp: usize, std: f64) {
        self.scope(name, |i| {
            i.normal("weight", [out, inp], std);
            i.full("bias", [out], 0.0);
        });
    }

    /// Weight and bias uniform in ±1/√in, torch's default.
    pub(super) fn linear_torch(&mut self, name: &str, out: usize, inp: usize, bias: bool) {
        let bound = (inp as f64).powf(-0.5);
        self.scope(name, |i| {
            i.uniform_always("weight", [out, inp], bound);
            if bias {
                i.custom("bias", [out], |g, _| g.uniform(-bound, bound));
            }
        });
    }

    /// Gain one, bias zero.
    pub(super) fn norm(&mut self, name: &str, width: usize) {
        self.scope(name, |i| {
            i.full("weight", [width], 1.0);
            i.full("bias", [width], 0.0);
        });
    }
}
