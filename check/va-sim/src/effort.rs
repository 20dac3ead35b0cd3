//! The effort of a test: a fifth of its operations in a quick run, and all in a full one.
//!
//! Tests are compiled without optimisation, which takes a sixth of the time, and run several times as long. So the tests
//! of random operations, and of random cases, do a fifth of them. `VMALLOC_TESTS=full` makes them do all; `cargo xtask ci
//! --full`, `mutate` and `soak` set it, and optimise.

use std::ops::Div;
use std::sync::OnceLock;

/// Returns true if tests do all of their operations.
#[must_use]
pub fn is_full() -> bool {
    static FULL: OnceLock<bool> = OnceLock::new();
    *FULL.get_or_init(|| std::env::var("VMALLOC_TESTS").is_ok_and(|tests| tests == "full"))
}

/// Returns how many of `all` operations or cases a test does.
#[must_use]
pub fn some<N: Div<Output = N> + From<u8>>(all: N) -> N {
    if is_full() { all } else { all / N::from(5) }
}

/// Returns the distance of the cases that a test tries, of which neighbours are alike: each in a full run. It has no
/// common factor with the sizes of nodes.
#[must_use]
pub fn stride() -> usize {
    if is_full() { 1 } else { 5 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_run_does_a_fifth() {
        assert_eq!(some(1000u64), if is_full() { 1000 } else { 200 });
    }
}
