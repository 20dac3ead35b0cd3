//! The causes of what differs under the preload.

use super::run::WAYS;

/// A difference that a person has explained.
pub(crate) struct Cause {
    pub(crate) suite: &'static str,
    pub(crate) test: &'static str,
    /// Names of ways; a difference in another way stays unexplained.
    pub(crate) ways: &'static [&'static str],
    pub(crate) why: &'static str,
}

const SMALL: &[&str] = &["threshold:4K", "hardened, 4K"];

pub(crate) const CAUSES: [Cause; 2] = [
    Cause {
        suite: "glibc",
        test: "tst-malloc-backtrace",
        ways: SMALL,
        why: "the test writes to the word before a freed piece of 4096 bytes and expects glibc to abort. At this threshold \
              the piece is the preload's and has no header: the write hits a guard page or another area, so the \
              program ends by SIGSEGV.",
    },
    Cause {
        suite: "glibc",
        test: "tst-safe-linking",
        ways: SMALL,
        why: "the test overwrites glibc's list of freed pieces and expects the next `malloc` of 256K to notice it. The preload \
              serves that size, and glibc does not look at the list. With the default threshold the \
              arena is only made at that moment, which asks glibc for memory.",
    },
];

/// Returns the cause of a difference in one way.
pub(crate) fn of(suite: &str, test: &str, way: usize) -> Option<&'static Cause> {
    let name = WAYS.get(way)?.name;
    CAUSES.iter().find(|cause| cause.suite == suite && cause.test == test && cause.ways.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_names_ways_that_there_are_and_says_why() {
        for Cause { test, ways, why, .. } in CAUSES {
            assert!(!ways.is_empty() && why.ends_with('.') && !why.contains('|'), "{test}");
            assert!(ways.iter().all(|way| WAYS.iter().skip(1).any(|known| known.name == *way)), "{test}");
        }
        assert!(of("no suite", "no test", 1).is_none() && of("glibc", "tst-malloc", 99).is_none());
    }
}
