//! Time as the device sees it: marks in its stream, and how far apart it passed them.

use super::Gpu;
use cudarc::driver::{CudaEvent, sys};

/// A place in a stream's work: a CUDA event.
pub struct Mark(CudaEvent);

impl Gpu {
    /// Mark the end of what was asked for so far.
    #[track_caller]
    pub fn mark(&self) -> Mark {
        let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
        Mark(self.check("marking the stream", self.stream.record_event(Some(flags))))
    }

    /// Wait until the device has passed both marks: the seconds from one to the other, to half a microsecond.
    #[track_caller]
    pub fn seconds(&self, from: &Mark, to: &Mark) -> f64 {
        f64::from(self.check("waiting for a mark", from.0.elapsed_ms(&to.0))) * 1e-3
    }
}
