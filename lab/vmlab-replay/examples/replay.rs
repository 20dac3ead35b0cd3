//! Replays a trace of a real kernel on two indexes of holes, and compares every address with the kernel's.
//!
//! `cargo run -p vmlab-replay --example replay` uses the boot of a Linux 6.12 that is in `vmlab-trace`.

use va_tree::FreeIndex;
use vmlab_machine::kernel_extent;
use vmlab_replay::index_kind::{IndexKind, Visitor};
use vmlab_replay::{Replay, Tally, default_window};
use vmlab_trace::shipped::TRACES;
use vmlab_trace::vmallocinfo::Table;
use vmlab_trace::{Trace, decompress};

struct Run<'a> {
    trace: &'a Trace,
    table: &'a Table,
}

impl Visitor for Run<'_> {
    type Out = Result<Tally, Box<dyn std::error::Error>>;

    fn visit<I: FreeIndex>(self, make: impl Fn() -> Result<I, va_base::AllocError>) -> Self::Out {
        let mut replay = Replay::new(make()?, default_window(self.trace), self.table);
        replay.run(self.trace);
        replay.index.validate()?;
        Ok(replay.tally)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let shipped = &TRACES[0];
    let trace = Trace::read(decompress(shipped.trace)?);
    let table = Table::read(shipped.vmallocinfo);
    println!("{}: {} allocations", shipped.name, trace.allocs());
    for kind in [IndexKind::RbLinux, IndexKind::Btree] {
        let run = Run { trace: &trace, table: &table };
        let tally = kind.visit(kernel_extent(), default_window(&trace), run)?;
        println!(
            "{}: {} at the kernel's address, {} lower",
            kind.name(),
            tally.columns.equal,
            tally.columns.lower
        );
        if tally.columns.equal != trace.allocs() {
            return Err("an address differs, on one CPU".into());
        }
    }
    Ok(())
}
