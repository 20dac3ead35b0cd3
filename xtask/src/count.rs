//! Counts of tests, from the output of `cargo test` and `cargo nextest`.

use std::ops::AddAssign;

/// Tests that were run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Tests {
    /// Passed.
    pub(crate) passed: u64,
    /// Failed.
    pub(crate) failed: u64,
}

impl AddAssign for Tests {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

impl Tests {
    /// Adds the counts of a line, if it is one that closes a run.
    ///
    /// `test result: ok. 12 passed; 0 failed; ...` closes each binary of `cargo test`;
    /// `Summary [ 0.1s] 45 tests run: 44 passed (2 slow), 1 failed, 0 skipped` closes the run of `cargo nextest`.
    pub(crate) fn read(&mut self, line: &str) {
        // At the beginning of the line: nextest shows, indented, the output of a failed test.
        let rest = if let Some(rest) = line.strip_prefix("test result: ") {
            rest
        } else if let (true, Some((_, rest))) =
            (line.trim_start().starts_with("Summary ["), line.split_once(" run: "))
        {
            rest
        } else {
            return;
        };
        self.passed += number_before(rest, "passed");
        // A test that runs out of time has failed as well.
        self.failed += number_before(rest, "failed") + number_before(rest, "timed out");
    }
}

/// Returns the number in front of a word, 0 if there is none.
fn number_before(text: &str, word: &str) -> u64 {
    let Some((before, _)) = text.split_once(word) else { return 0 };
    before.split_whitespace().next_back().and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (u64, u64) {
        let mut tests = Tests::default();
        text.lines().for_each(|line| tests.read(line));
        (tests.passed, tests.failed)
    }

    #[test]
    fn the_closing_lines_of_cargo_test_are_added() {
        let text = "running 2 tests\ntest a ... ok\n\n\
            test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
            test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n";
        assert_eq!(read(text), (15, 2));
    }

    #[test]
    fn the_summary_of_nextest_is_read() {
        assert_eq!(read("     Summary [   0.1s] 45 tests run: 45 passed, 0 skipped"), (45, 0));
        assert_eq!(
            read("     Summary [   9.1s] 45 tests run: 41 passed (2 slow), 4 failed, 3 skipped"),
            (41, 4)
        );
        assert_eq!(
            read("     Summary [   9.1s] 5 tests run: 3 passed, 1 failed, 1 timed out, 0 skipped"),
            (3, 2)
        );
        assert_eq!(read("     Summary [   9.1s] 3/45 tests run: 2 passed, 1 failed, 0 skipped"), (2, 1));
    }

    #[test]
    fn what_tests_themselves_print_does_not_count() {
        assert_eq!(read("I have 7 passed, 3 failed\n"), (0, 0));
        assert_eq!(read("    test result: FAILED. 0 passed; 1 failed; 0 ignored\n"), (0, 0));
    }
}
