//! What came of an experiment, for people and for programs.

pub mod table;
