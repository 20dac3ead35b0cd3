//! Runs the events of a trace through an index, a space or the model of a policy, and compares every address with the
//! kernel's.
//!
//! | module | content |
//! |---|---|
//! | [`engine`] | the loop of all replays, and the comparison of answers |
//! | [`index`] | a replay on an index of holes; [`run`] makes a row of it, and [`timing`] its times |
//! | [`space`] | a replay on a whole space; [`run_space`] makes a row of it |
//! | [`diff`] | a replay on the model of a policy, and the cause of each difference |
//! | [`calls`] | the calls of a core inside a kernel, on the same core here |
//! | [`whatif`] | a trace under another policy, which decides by itself |
//! | [`policy`] | the policies of spaces, by name |
//! | [`percpu`] | a replay inside percpu chunks, whose events and objects are others |
//!
//! Each policy compiles an index and a space. So the crate has no test inside, for which all of it would be compiled
//! once more.

#![deny(clippy::print_stdout, clippy::print_stderr)]
#![warn(missing_debug_implementations)]

pub mod calls;
pub mod diff;
pub mod engine;
pub mod index;
pub mod index_kind;
pub mod percpu;
pub mod policy;
pub mod run;
pub mod run_space;
pub mod space;
pub mod state;
pub mod timing;
pub mod whatif;

/// The version of the rows that `--json` prints.
pub const JSON_VERSION: u32 = 1;

pub use engine::{CHUNK_BYTES, Columns, Differs, Tally, default_window};
pub use index::{Call, Replay};

use std::io::Read;
use va_base::VaRange;
use va_tree::FreeIndex;
use vmlab_machine::kernel_extent;
use vmlab_trace::vmallocinfo::Table;
use vmlab_trace::{Trace, decompress};

/// The body of the fuzz target `trace_text`: for any bytes, reading and replaying them ends with a result.
pub fn fuzz(data: &[u8]) {
    let Ok(input) = decompress(data) else { return };
    // A decompression bomb of a few bytes may expand to gigabytes: limit the input.
    let trace = Trace::read(input.take(1 << 20));
    let table = Table::read(data);
    fuzz_trace(&trace, &table);
    let Ok(input) = decompress(data) else { return };
    diff::fuzz(&diff::recording::Recording::read(input.take(1 << 20)));
    let Ok(input) = decompress(data) else { return };
    let lines = vmlab_trace::calls::read(input.take(1 << 20));
    let _row = lines.and_then(|lines| calls::replay("fuzz", lines));
}

/// Replays a fuzzer's trace on every production index and space, and checks that the counts add up (RP1).
fn fuzz_trace(trace: &Trace, table: &Table) {
    struct Check<'a>(&'a Trace, &'a Table, VaRange);
    impl index_kind::Visitor for Check<'_> {
        type Out = ();
        fn visit<I: FreeIndex>(self, make: impl Fn() -> Result<I, va_base::AllocError>) {
            let Ok(index) = make() else { return };
            let mut replay = Replay::new(index, self.2, self.1);
            replay.run(self.0);
            if let Err(error) = replay.tally.columns.check(self.0.allocs()) {
                panic!("{error}");
            }
            if let Err(broken) = replay.index.validate() {
                panic!("{broken}");
            }
        }
    }
    let window = default_window(trace);
    for kind in index_kind::ALL {
        kind.visit(kernel_extent(), window, Check(trace, table, window));
    }
    run_space::fuzz(trace, table);
}

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
