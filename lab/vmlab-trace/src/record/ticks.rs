//! Times in nanoseconds from a clock of the kernel that counts.
//!
//! # Theory
//! The kernel prints the times of its clocks in microseconds, even those that have nanoseconds. A function that takes
//! 300 ns would take 0 or 1. The clock `x86-tsc` is printed as its count. So the recorder measures this clock against
//! CLOCK_MONOTONIC: it writes two marks some time apart, and knows the time of each. Then each line's count is
//! replaced by the time, with nine digits.
//!
//! Source: `kernel/trace/trace_output.c` (`trace_print_context`) of Linux 6.12.

use rustix::time::{ClockId, clock_gettime};
use std::borrow::Cow;
use std::ops::Range;

/// The characters of a task's name in a line: the hyphen before the process id follows.
const NAME: usize = 16;

/// Returns CLOCK_MONOTONIC, nanoseconds.
pub(super) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Returns the count in a line, and its place. A task's name may be like the rest of a line, but not in its width.
pub(super) fn count(line: &[u8]) -> Option<(u64, Range<usize>)> {
    let mut at = NAME;
    if line.get(at) != Some(&b'-') {
        return None;
    }
    at += 1;
    let digits = |from: usize| from + line[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let blanks = |from: usize| from + line[from..].iter().take_while(|&&byte| byte == b' ').count();
    at = blanks(digits(at));
    if line.get(at) != Some(&b'[') {
        return None;
    }
    at = digits(at + 1);
    if line.get(at) != Some(&b']') {
        return None;
    }
    // The five flags, if they are printed, have no blank.
    at = blanks(at + 1);
    if line[at..].iter().take_while(|byte| byte.is_ascii_digit()).count() < 6 {
        at = blanks(at + line[at..].iter().take_while(|&&byte| byte != b' ').count());
    }
    let end = digits(at);
    let count = std::str::from_utf8(&line[at..end]).ok()?.parse().ok()?;
    (line.get(end) == Some(&b':')).then_some((count, at..end))
}

/// A clock that counts, against nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticks {
    count: u64,
    ns: u64,
    /// Nanoseconds of `counts` counts.
    nanos: u64,
    counts: u64,
}

impl Ticks {
    /// Returns the clock that had two counts at two times; none if it did not run.
    pub(super) fn between(first: (u64, u64), second: (u64, u64)) -> Option<Self> {
        let counts = second.0.checked_sub(first.0).filter(|&counts| counts > 0)?;
        let nanos = second.1.checked_sub(first.1).filter(|&nanos| nanos > 0)?;
        Some(Self { count: first.0, ns: first.1, nanos, counts })
    }

    /// Returns the time of a count.
    pub(super) fn ns(&self, count: u64) -> u64 {
        let scaled = |counts: u64| {
            let ns = u128::from(counts) * u128::from(self.nanos) / u128::from(self.counts);
            u64::try_from(ns).unwrap_or(u64::MAX)
        };
        match count.checked_sub(self.count) {
            Some(later) => self.ns.saturating_add(scaled(later)),
            None => self.ns.saturating_sub(scaled(self.count - count)),
        }
    }

    /// Returns the nanoseconds of a step, rounded up.
    pub(super) fn resolution_ns(&self) -> u64 {
        self.nanos.div_ceil(self.counts)
    }

    /// Returns a line with its time in place of its count. A line without a count stays.
    pub(super) fn timed<'a>(&self, line: &'a [u8]) -> Cow<'a, [u8]> {
        let Some((count, place)) = count(line) else { return Cow::Borrowed(line) };
        let ns = self.ns(count);
        let time = format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
        Cow::Owned([&line[..place.start], time.as_bytes(), &line[place.end..]].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Entry;
    use proptest::prelude::*;

    const LINE: &str =
        "    kworker/u8:3-77      [002] d..1. 123456789012: free_vmap_area_noflush: va_start=0x1000";

    #[test]
    fn a_count_becomes_a_time_and_the_rest_stays() {
        let ticks =
            Ticks::between((123_456_000_000, 7_000_000_000), (123_459_000_000, 7_001_000_000)).unwrap();
        assert_eq!(ticks.resolution_ns(), 1);
        let line = ticks.timed(LINE.as_bytes());
        let text = std::str::from_utf8(&line).unwrap();
        assert_eq!(text, LINE.replace("123456789012", "7.000263004"));
        let entry = Entry::from_text(text).unwrap();
        assert_eq!((entry.ns, entry.cpu, entry.pid), (Some(7_000_263_004), Some(2), Some(77)));
        // Before the first count, and before zero.
        assert_eq!(ticks.ns(123_453_000_000), 6_999_000_000);
        assert_eq!(ticks.ns(0), 0);
        assert_eq!(ticks.ns(u64::MAX), 7_000_000_000 + (u64::MAX - 123_456_000_000) / 3);
        assert_eq!(Ticks::between((5, 1), (5, 9)), None);
        assert_eq!(Ticks::between((5, 9), (6, 9)), None);
        assert_eq!(Ticks::between((6, 8), (5, 9)), None);
    }

    #[test]
    fn a_task_that_is_named_like_a_line_is_no_count() {
        let line = "    a-1 [0] b 5:-12      [001] ..... 99999999: tracing_mark_write: x";
        assert_eq!(count(line.as_bytes()), Some((99_999_999, 37..45)));
        for none in
            ["", "x-1 [0] 5: y", &LINE.replace("789012:", "789012"), &LINE.replace('[', "("), &LINE[..30]]
        {
            assert_eq!(count(none.as_bytes()), None, "{none}");
        }
        let long = LINE.replace("123456789012", "99999999999999999999999");
        assert_eq!(count(long.as_bytes()), None, "more than a number holds");
        // Without the flags, which are an option of the kernel's.
        assert_eq!(
            count(LINE.replace("d..1. ", "").as_bytes()).map(|(count, _)| count),
            Some(123_456_789_012)
        );
    }

    proptest! {
        #[test]
        fn any_line_is_taken(line in proptest::collection::vec(any::<u8>(), 0..80), tail in "[ \\[\\]0-9:.d-]{0,40}") {
            let ticks = Ticks { count: 9, ns: 5, nanos: 7, counts: 2 };
            let _ = ticks.timed(&line);
            let _ = ticks.timed(format!("{:>16}-{tail}", "a").as_bytes());
        }
    }
}
