//! The causes of differences under the preload.

use super::run::WAYS;

/// A difference that a person has explained.
pub(crate) struct Cause {
    pub(crate) suite: &'static str,
    pub(crate) test: &'static str,
    /// Names of configurations; a difference in another one stays unexplained.
    pub(crate) ways: &'static [&'static str],
    pub(crate) why: &'static str,
}

const SMALL: &[&str] = &["threshold:4K", "hardened, 4K"];

/// The two tests differ in the call that forks.
const FORKS: &str = "it is slow, and does not hang: `tst-mallocfork2` ended after 109 s when it was let. The test forks in each of \
                     thousands of signals, and a fork takes 2.8 ms here (`strace -c`). The hardened profile spreads areas \
                     over more page tables, which a fork copies.";

pub(crate) const CAUSES: [Cause; 4] = [
    Cause {
        suite: "glibc",
        test: "tst-malloc-backtrace",
        ways: SMALL,
        why: "the test writes to the word before a freed piece of 4096 bytes and expects glibc to abort. At this threshold \
              the piece is the preload's and has no header: the write hits memory that it may not touch, and \
              the program ends by SIGSEGV.",
    },
    Cause {
        suite: "glibc",
        test: "tst-safe-linking",
        ways: SMALL,
        why: "the test overwrites glibc's list of freed pieces and expects the next `malloc` of 256K to notice it. The preload \
              serves that size, and glibc does not look at the list. With the default threshold the \
              arena is only made at that moment, which asks glibc for memory.",
    },
    Cause { suite: "glibc", test: "tst-mallocfork2", ways: &["hardened, 4K"], why: FORKS },
    Cause { suite: "glibc", test: "tst-mallocfork3", ways: &["hardened, 4K"], why: FORKS },
];

/// Returns the cause of a difference in one configuration.
pub(crate) fn of(suite: &str, test: &str, way: usize) -> Option<&'static Cause> {
    let name = WAYS.get(way)?.name;
    CAUSES.iter().find(|cause| cause.suite == suite && cause.test == test && cause.ways.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_names_existing_configurations_and_a_reason() {
        for Cause { test, ways, why, .. } in CAUSES {
            assert!(!ways.is_empty() && why.ends_with('.') && !why.contains('|'), "{test}");
            assert!(ways.iter().all(|way| WAYS.iter().skip(1).any(|known| known.name == *way)), "{test}");
        }
        assert!(of("no suite", "no test", 1).is_none() && of("glibc", "tst-malloc", 99).is_none());
    }
}
