//! The CPU time of a thread, which excludes the time of other threads.

use rustix::time::{ClockId, clock_gettime};

/// A point in CPU time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment(f64);

impl Moment {
    /// Returns the current time. A system call: some hundred nanoseconds.
    pub(super) fn now() -> Self {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        Self(now.tv_sec as f64 * 1e9 + now.tv_nsec as f64)
    }

    /// Returns the nanoseconds since.
    pub(super) fn elapsed_ns(self) -> f64 {
        Self::now().0 - self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeping_takes_no_time_and_work_does() {
        let begun = Moment::now();
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(begun.elapsed_ns() < 40e6);
        let mut sum = 0u64;
        while begun.elapsed_ns() < 1e6 {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(sum > 0);
    }
}
