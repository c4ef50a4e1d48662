//! Values with names, for whoever wants to look inside a formula.

use super::{Tape, scope_name};
use crate::{autograd::Var, tensor::Tensor};

/// A value that a formula gave a name: [`Var::named`].
pub struct Named {
    /// Where in the model: "blocks.0.mixer".
    pub scope: String,
    /// Its name in the formula.
    pub name: &'static str,
    /// The value; it shares the tape's buffer.
    pub value: Tensor,
}

impl Tape {
    /// Listen to [`Var::named`] from now on.
    pub fn start_naming(&self) {
        self.naming.set(true);
    }

    /// The values named since [`Tape::start_naming`] or the last call of this method, in order. The tape goes on
    /// listening.
    pub fn take_named(&self) -> Vec<Named> {
        let r = &mut *self.record.borrow_mut();
        let named = r.named.drain(..).map(|(name, at, scopes)| Named {
            scope: scope_name(&r.scopes, scopes),
            name,
            value: r.values[at as usize].tensor.clone(),
        });
        named.collect()
    }

    #[cold]
    fn note(&self, v: Var<'_>, name: &'static str) {
        let r = &mut *self.record.borrow_mut();
        r.named.push((name, v.id_on(self), r.scopes.len()));
    }
}

impl<'t> Var<'t> {
    /// The same value, under the name that it has in the paper. Unless the tape listens
    /// ([`Tape::start_naming`]) this is one test of a bool.
    #[inline]
    #[must_use]
    pub fn named(self, name: &'static str) -> Var<'t> {
        if self.tape().naming.get() {
            self.tape().note(self, name);
        }
        self
    }
}
