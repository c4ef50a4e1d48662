//! A page to step through a model, token by token.
//!
//! [`source`] trains a model or reads one, [`input`] draws or reads a sequence, [`trace()`](trace::trace) runs the
//! model over it and keeps every value that a mixer names ([`Var::named`](crate::autograd::Var::named)), [`view`] says
//! which values are shown of each mixer, [`weights`] which parameters, [`eigen`] adds the eigenvalues of its transition, [`fit`] chooses the part
//! that fits on a page, [`shown`] says what the page says of a run, [`data`] packs it, and [`page`] writes the page.
//!
//! Without the feature `laboratory` there are the sequence, the trace, the views and the eigenvalues, and no page.

#[cfg(feature = "laboratory")]
pub(crate) mod data;
#[doc(hidden)]
pub mod eigen;
#[cfg(feature = "laboratory")]
pub(crate) mod fit;
#[cfg(feature = "laboratory")]
pub(crate) mod graph;
#[doc(hidden)]
pub mod input;
#[cfg(feature = "laboratory")]
mod inspection;
#[cfg(feature = "laboratory")]
pub(crate) mod page;
#[doc(hidden)]
pub mod shown;
#[cfg(feature = "laboratory")]
#[doc(hidden)]
pub mod source;
#[doc(hidden)]
pub mod trace;
#[doc(hidden)]
pub mod view;
#[doc(hidden)]
pub mod weights;

#[cfg(feature = "laboratory")]
pub use inspection::{Inspection, beside, same_task};
