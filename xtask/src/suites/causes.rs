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

pub(crate) const CAUSES: [Cause; 0] = [];

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
