//! CUDA: the emulator so far.

pub mod emulator;
