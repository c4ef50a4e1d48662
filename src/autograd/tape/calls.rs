//! The lines that call ops, for whoever shows code beside what it computes.

use super::Tape;
use std::panic::Location;

/// A call of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Called {
    /// The op's name.
    pub op: &'static str,
    /// The file that calls it, as the compiler was given it.
    pub file: &'static str,
    /// The line there, from 1.
    pub line: usize,
}

impl Tape {
    /// Note the line of every call of an op from now on, those in formulas too.
    pub fn start_calls(&self) {
        self.calling.set(true);
    }

    /// The calls since [`Tape::start_calls`], in order, each once. The tape notes no more.
    pub fn take_calls(&self) -> Vec<Called> {
        self.calling.set(false);
        std::mem::take(&mut self.record.borrow_mut().calls)
    }

    /// Note a call by the caller's caller.
    #[inline]
    #[track_caller]
    pub(super) fn note_call(&self, op: &'static str) {
        if self.calling.get() {
            let at = Location::caller();
            let call = Called { op, file: at.file(), line: at.line() as usize };
            let calls = &mut self.record.borrow_mut().calls;
            if !calls.contains(&call) {
                calls.push(call);
            }
        }
    }
}
