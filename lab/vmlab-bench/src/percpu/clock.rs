//! The CPU time of a thread, which excludes the time of other threads.

use rustix::time::{ClockId, clock_gettime};

/// A point in CPU time.
#[derive(Clone, Copy, Debug)]
pub struct Moment(f64);

impl Moment {
    /// Returns the current time. A system call: some hundred nanoseconds.
    pub fn now() -> Self {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        Self(now.tv_sec as f64 * 1e9 + now.tv_nsec as f64)
    }

    /// Returns the nanoseconds since.
    pub fn elapsed_ns(self) -> f64 {
        Self::now().0 - self.0
    }
}
