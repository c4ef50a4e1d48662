//! Tapezoo: a minimal reverse-mode autodiff engine and a zoo of sequence mixers on it.
//!
//! Which file answers which question:
//! - What is a value? [`tensor`]: contiguous tensors, a pool of buffers, devices as a run-time enum.
//! - How does a gradient flow? [`autograd::Tape`]: the forward pass records ops, the backward pass visits them
//!   in reverse.
//! - What is a DeltaNet, a Mamba, an LSTM? [`models`]: one mixer per file, with its equations at the top.
//! - What can be differentiated? [`ops::primitives`]: the whole engine's arithmetic, each primitive with its
//!   derivative, in 1,500 lines of plain loops. [`ops`]: every other op, as a formula over the primitives.
//! - How is it computed fast? [`kernels`]: fast implementations of ops, tested against the formula or the
//!   loops that define the op.
//! - What is learned? [`tasks`]: tokens, and a target for each.
//! - How does it run on a GPU? [`cuda`]: device memory and launches. The `.cu` files are beside the kernels.
//! - What happens inside it at each token? [`inspect`]: a page to step through.
//! - Which tensor of PyTorch, FLA, xlstm or mamba-ssm is which parameter? [`exchange`].
//! - How do they differ, and what can each track? [`book`]: a site, a page for each.
//! - Is a mixer, a task or an op of your own right? [`check`]: gradients, forms, causality, streaming, bounds, kernels.
//! - How is it trained? [`train`]: the loop, the optimiser, the configuration, the files of a run.
//!
//! Modules know those before them, and those on a level with them: available, dtype, error, mat, rng ← files ←
//! cuda ← tensor ← autograd, stamp ← ops, kernels ← models, tasks ← check, exchange, train ← report ← inspect, verify,
//! exercises ← book ← cli.
//! No two know each other, but for ops and kernels: a kernel is of an op, and an op names its kernels. `cuda` has streams,
//! addresses and launches; a tensor is in host memory or in that of a device, and so stands above it.
//!
//! # An example
//! A DeltaNet learns parity, and then reads bits one at a time:
//!
//! ```
//! use tapezoo::{error::Result, train::{Trainer, config::TrainConfig}};
//!
//! let settings: TrainConfig = "batch = 32\ntrain_len = 8\nwarmup = 0".parse()?;
//! let config = settings.for_model("delta_net")?;
//! let mut trainer = Trainer::new(&config, 0)?; // seed 0
//! let losses: Vec<f64> = (0..60).map(|_| Ok(trainer.step()?.loss)).collect::<Result<_>>()?;
//! assert!(losses[59] < losses[0], "from {} to {}", losses[0], losses[59]);
//!
//! let model = trainer.into_model()?;
//! let mut stream = model.stream(); // carries the state, a step a token
//! for bit in [1, 0, 1] {
//!     let logits = stream.next(bit)?; // one for each class
//!     println!("after {bit}: odd, even = {logits:?}");
//! }
//! # Ok::<(), tapezoo::error::Error>(())
//! ```
//!
//! # In a crate of your own
//! - A mixer: [`models::Model::with_mixer`] builds a model of it, [`check::mixer`] says whether it is right.
//! - A task: a struct that implements [`tasks::Task`]. [`train::Trainer::with`] trains any model on it, [`check::task`] says
//!   whether it keeps its promises.
//! - An op: often a function of [`Var`](autograd::Var)s, or else a struct that implements [`autograd::Op`], and
//!   [`autograd::Kernel`] where it is to be fast. [`check::op`] checks both.
//! - The program, with mixers and tasks of yours: [`models::add`] and [`tasks::add`] give them names, for configurations and
//!   for the command line, [`cli::tapezoo()`].
//! - A training loop by hand: [`models::Params::gradient`] and [`train::optimizer::Adam::update`].
//! - Weights in a file: [`models::Model::save`] and [`models::Model::load`]; [`exchange`] with other packages.
//!
//! Without its default features the crate is the engine, the models and the trainer alone. `cuda` adds devices, and
//! `laboratory` the program: [`cli`], [`report`], the pages of [`inspect`], [`book`], [`verify`], and the files of runs and
//! sweeps.
//!
//! `examples/` in the repository has a page on each. In a debug build, this makes the crate as fast as its own tests
//! are:
//! ```toml
//! [profile.dev.package.tapezoo]
//! opt-level = 2
//! ```
//!
//! # Glossary
//! - **cotangent**: the gradient of the loss with respect to an op's output, as the backward pass hands it to the op.
//! - **tape**: the record of the ops of one forward pass; [`Var`](autograd::Var) is a value on it.
//! - **leaf**: a value put on the tape from outside, such as a parameter, for which a gradient is kept.
//! - **op**: a differentiable function of tensors, recorded as one node of the tape.
//! - **primitive**: an op defined by plain loops, with a hand-written derivative.
//! - **formula**: the definition of every other op, in terms of primitives; the tape differentiates it.
//! - **kernel**: a fast implementation of an op, forward and backward, for the shapes, types and devices that it
//!   accepts.
//! - **mixer**: the part of a block that combines tokens: attention, an LSTM, a delta rule …
//! - **step**: one token through a mixer. It defines the mixer.
//! - **state**: the values that a mixer carries from one step to the next.
//! - **carried state**: with `carry_state`, the final state of a training batch, from which the next batch starts.
//! - **form**: a way to compute a mixer over a sequence. All forms give the same values, states and gradients.
//! - **recurrent**: the form that runs one step after another.
//! - **parallel**: the form that computes as many positions at once as the mixer allows, by an associative scan or a
//!   masked product.
//! - **chunked**: the form that works in chunks of C steps: in one op, or, where the mixer has none, in tape ops piece
//!   by piece. On a CPU most of the ops have a fused kernel for small heads.
//! - **fused**: the form, or the kernel, that goes over the whole sequence inside one op: step by step, or, in
//!   attention, by tiles.
//! - **scan**: a recurrence h_t = a_t h_{t-1} + x_t over a sequence; an associative scan computes it in log T rounds.
//!   The form `scan` is one op. Its number C is for Mamba's, which keeps a state every C steps.
//! - **transition**: the linear map from one state to the next. Its eigenvalues decide what the mixer can track.
//! - **decay**: a factor in (0, 1) by which a step multiplies the state.
//! - **gate**: a factor, computed from the input, for how much a step keeps, writes or reads.
//! - **pre-activation**: the argument of a gate's or layer's activation function.
//! - **memory**: a state that is a matrix, written with a key and a value and read with a query.
//! - **delta rule**: a write to a memory that replaces the value under a key: S ← S + β k (v − Sᵀ k)ᵀ.
//! - **normaliser**: the sum of the weights in a memory or cell, by which a read is divided.
//! - **stabiliser**: the running maximum of exponents that is subtracted before exponentials, so that none overflows.
//! - **segment sum**: the sum of the elements after s up to t, for s ≤ t; its exponential is a decay from s to t.
//! - **published**: as the code of the published experiment computes it, defects included.
//! - **fixture**: a file with an op's inputs, outputs and gradients from another implementation.
//! - **floor**: the error of a tensor that rounding alone explains ([`verify`]).
// Code that only one feature uses is compiled without that feature as well.
#![cfg_attr(not(all(feature = "cuda", feature = "laboratory")), allow(dead_code, unused_imports, unreachable_code))]
// The documentation of a module names its private parts too; `--document-private-items` shows them.
#![allow(rustdoc::private_intra_doc_links)]
#![deny(missing_docs)]
#![warn(clippy::unwrap_used)]

pub mod autograd;
pub(crate) mod available;
#[cfg(feature = "laboratory")]
pub mod book;
pub mod check;
#[cfg(feature = "laboratory")]
pub mod cli;
pub mod cuda;
pub(crate) mod dtype;
pub mod error;
pub mod exchange;
#[cfg(feature = "laboratory")]
pub mod exercises;
pub(crate) mod files;
pub mod inspect;
#[doc(hidden)]
pub mod kernels;
pub(crate) mod mat;
pub mod models;
pub mod ops;
#[cfg(feature = "laboratory")]
pub mod report;
pub mod rng;
#[cfg(feature = "laboratory")]
#[doc(hidden)]
pub mod stamp;
pub mod tasks;
pub mod tensor;
#[cfg(feature = "laboratory")]
#[doc(hidden)]
pub mod terminal;
pub mod train;
#[cfg(feature = "laboratory")]
pub mod verify;
