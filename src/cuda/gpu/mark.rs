//! Time as the device sees it: marks in its stream, and how far apart it passed them.

use super::{Gpu, lock};
use cudarc::driver::{CudaEvent, sys};

/// Launches between two marks each, by the kernel's name.
pub(super) type Launches = Vec<(&'static str, Mark, Mark)>;

/// A place in a stream's work: a CUDA event.
pub struct Mark(CudaEvent);

impl Gpu {
    /// Mark the end of what was asked for so far.
    #[track_caller]
    pub fn mark(&self) -> Mark {
        let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
        Mark(self.check("marking the stream", self.stream.record_event(Some(flags))))
    }

    /// Do `work`, and wait: the name of every kernel that it launches, with its seconds, in their order.
    #[track_caller]
    pub fn each_launch(&self, work: impl FnOnce()) -> Vec<(&'static str, f64)> {
        *lock(&self.launches) = Some(vec![]);
        work();
        let launches = lock(&self.launches).take().unwrap_or_default();
        launches.iter().map(|(kernel, from, to)| (*kernel, self.seconds(from, to))).collect()
    }

    pub(super) fn times_launches(&self) -> bool {
        lock(&self.launches).is_some()
    }

    /// A kernel was launched after this mark.
    pub(super) fn launched(&self, kernel: &'static str, from: Mark) {
        let to = self.mark();
        if let Some(launches) = &mut *lock(&self.launches) {
            launches.push((kernel, from, to));
        }
    }

    /// Wait until the device has passed both marks: the seconds from one to the other, to half a microsecond.
    #[track_caller]
    pub fn seconds(&self, from: &Mark, to: &Mark) -> f64 {
        f64::from(self.check("waiting for a mark", from.0.elapsed_ms(&to.0))) * 1e-3
    }
}
