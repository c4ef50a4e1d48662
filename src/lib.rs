//! Tapezoo: a minimal reverse-mode autodiff engine and a zoo of sequence mixers on it.
//!
//! Which file answers which question:
//! - What is a value? [`tensor`]: contiguous tensors, a pool of buffers, devices as a run-time enum.
//! - How does a gradient flow? [`autograd::Tape`]: record, then walk back.
//! - What is a DeltaNet, a Mamba, an LSTM? [`models`]: one mixer a file, its equations on top.
//! - What can be differentiated? [`ops::primitives`]: the whole engine's arithmetic, each primitive with its derivative, in
//!   1,500 lines of plain loops. [`ops`]: every other op, a formula over these.
//! - How is it computed fast? [`kernels`]: a kernel for each op, held against what defines it.
//! - What is learned? [`tasks`]: tokens, and a target beside each.
//! - How does it run on a GPU? [`cuda`]: device buffers, and the `.cu` files beside the kernels.
//! - What happens inside it at each token? [`inspect`]: a page to step through.
//! - How is it trained? [`train`]: the loop, the optimiser, the configuration, what a run leaves behind.
//!
//! Modules know those before them, and those on a level with them:
//! error, rng ← tensor, cuda ← autograd, stamp ← ops, kernels ← models, tasks ← train ← report ← inspect, verify ← cli.
//! A tensor is in host memory or in that of a device, so `tensor` and `cuda` are on one level; and an op names its kernels.
#![deny(missing_docs)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

pub mod autograd;
pub mod cli;
pub mod cuda;
pub mod error;
pub mod inspect;
pub mod kernels;
pub mod models;
pub mod ops;
pub mod report;
pub mod rng;
pub mod stamp;
pub mod tasks;
pub mod tensor;
pub mod train;
pub mod verify;
