//! Compares the exact indexes with each other, on every shipped trace.

use va_base::{AllocError, PAGE_SIZE, VaRange};
use va_certify::Certified;
use va_sim::platform::HeapPlatform;
use va_tree::rb::Exact;
use va_tree::{BTreeIndex, RbIndex};
use vmlab_machine::kernel_extent;
use vmlab_replay::index_kind::{IndexKind, Visitor};
use vmlab_replay::{Call, Differs, Replay, default_window};
use vmlab_trace::shipped::TRACES;
use vmlab_trace::vmallocinfo::Table;
use vmlab_trace::{Trace, decompress};

#[test]
fn the_exact_indexes_return_the_same_address_each_time_and_the_kernels_up_to_page_alignment() {
    struct Calls<'a>(&'a Trace, VaRange);
    impl Visitor for Calls<'_> {
        type Out = (Vec<Call>, Vec<Differs>, u64);
        fn visit<I: va_tree::FreeIndex>(self, make: impl Fn() -> Result<I, AllocError>) -> Self::Out {
            let table = Table::default();
            let mut replay = Replay::new(make().unwrap(), self.1, &table);
            replay.run(self.0);
            replay.index.validate().unwrap();
            let tally = &replay.tally;
            let differ = tally.columns.differ();
            (replay.calls, replay.tally.first_differences, differ)
        }
    }
    // Each call with its certificate, as well.
    let (heap, extent) = (HeapPlatform::default(), kernel_extent());
    for shipped in &TRACES {
        let name = shipped.name;
        let trace = Trace::read(decompress(shipped.trace).unwrap());
        let window = default_window(&trace);
        let calls = || Calls(&trace, window);
        let btree = || BTreeIndex::new(extent, window, heap.clone()).map(Certified::new);
        let rb = || RbIndex::<Exact, _>::new(extent, window, heap.clone()).map(Certified::new);
        let (btree, differences, count) = calls().visit(btree);
        // A different answer is freed, and so appears among the calls: equal calls mean equal answers.
        assert!(btree == calls().visit(rb).0, "{name}");
        assert!(btree == IndexKind::Btree.visit(extent, window, calls()).0, "{name}");
        if name.ends_with("smp1") {
            assert_eq!(differences.len() as u64, count, "{name}: all differences are kept");
            assert!(differences.iter().all(|differs| differs.align > PAGE_SIZE), "{name}: {differences:?}");
        }
    }
}
