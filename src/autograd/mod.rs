//! The engine: [`Tape`] records, [`Var`] is a value in a formula, [`Op`] is what can be recorded.

mod gradcheck;
mod kernels;
mod op;
mod profile;
mod sample;
mod tape;
mod var;

pub use gradcheck::{gradcheck, gradcheck_on};
pub use kernels::Kernels;
pub use op::{Candidates, Elements, Grad, In, Kernel, MAX_OUTS, Op, Outs, Primitive, Value, zeroed};
pub use profile::{Cost, Profile};
pub use sample::Gen;
pub use tape::{Called, Culprit, Edge, Graph, GraphNode, Named, Tape};
pub use var::Var;
