//! A page to step through a model, token by token.
//!
//! [`source`] trains a model or reads one, [`input`] draws or reads a sequence, [`trace()`](trace::trace) runs the
//! model over it and keeps every value that a mixer names ([`Var::named`](crate::autograd::Var::named)), [`view`] says
//! which values are shown of each mixer, [`eigen`] adds the eigenvalues of its transition, [`fit`] chooses the part
//! that fits on a page, [`data`] packs it, and [`page`] writes the page.
//!
//! Without the feature `laboratory` there are the sequence, the trace, the views and the eigenvalues, and no page.

#[cfg(feature = "laboratory")]
pub mod data;
pub mod eigen;
#[cfg(feature = "laboratory")]
pub mod fit;
#[cfg(feature = "laboratory")]
pub mod graph;
pub mod input;
#[cfg(feature = "laboratory")]
mod inspection;
#[cfg(feature = "laboratory")]
pub mod page;
#[cfg(feature = "laboratory")]
pub mod source;
pub mod trace;
pub mod view;

#[cfg(feature = "laboratory")]
pub use inspection::{Inspection, same_task};
