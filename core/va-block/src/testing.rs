//! Counters of steps, for tests of slow paths: the duration of a path depends on the machine, the number of steps does
//! not.

use core::cell::Cell;

std::thread_local! {
    static LOOKS: Cell<u64> = const { Cell::new(0) };
}

/// Counts a block that was looked up, or a lane from which a list was followed.
pub(crate) fn look() {
    LOOKS.set(LOOKS.get() + 1);
}

/// Returns the number of blocks that `call` looks up, and of lanes that it passes.
pub(crate) fn looks_of<T>(call: impl FnOnce() -> T) -> (u64, T) {
    let before = LOOKS.get();
    let got = call();
    (LOOKS.get() - before, got)
}
