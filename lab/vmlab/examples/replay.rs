//! Replays a trace of a real kernel on two indexes of holes, and compares every address with the kernel's.
//!
//! `cargo run -p vmlab --example replay` uses the boot of a Linux 6.12 that is in this crate.

use va_tree::FreeIndex;
use vmlab::index_kind::{IndexKind, Visitor};
use vmlab::replay::{Replay, Tally, default_window};
use vmlab::shipped::TRACES;
use vmlab::trace::Trace;
use vmlab::trace::vmallocinfo::Table;
use vmlab_machine::kernel_extent;

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
    let trace = Trace::read(flate2::read::GzDecoder::new(shipped.trace));
    let table = Table::read(shipped.vmallocinfo);
    println!("{}: {} allocations", shipped.name, trace.allocs());
    for kind in [IndexKind::RbLinux, IndexKind::Btree] {
        let run = Run { trace: &trace, table: &table };
        let tally = kind.visit(kernel_extent(), default_window(&trace), run)?;
        println!("{}: {} at the kernel's address, {} lower", kind.name(), tally.equal, tally.lower);
        if tally.equal != trace.allocs() {
            return Err("an address differs, on one CPU".into());
        }
    }
    Ok(())
}
