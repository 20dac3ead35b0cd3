//! A test that a recorder gets the values of the statistics.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "../../vmalloc-vmap/tests/recorder/mod.rs"]
mod recorder;

use recorder::Notes;
use vmalloc::{Options, Vmalloc};

#[test]
fn a_recorder_gets_the_numbers_of_the_statistics() {
    let memory = Vmalloc::new(Options::default()).unwrap();
    let notes = Notes::default();
    let buffer = memory.buffer(300_000).unwrap();
    metrics::with_local_recorder(&notes, || memory.publish_metrics("test"));
    let (values, stats) = (notes.take(), memory.stats());
    assert_eq!(values["allocator=test/vmalloc_live_bytes"], 74.0 * 4096.0);
    assert_eq!(values["allocator=test/vmalloc_committed_bytes"], stats.committed_bytes as f64);
    drop(buffer);
    memory.trim();
    metrics::with_local_recorder(&notes, || memory.publish_metrics("test"));
    let values = notes.take();
    assert_eq!(values["allocator=test/vmalloc_live_bytes"], 0.0);
    assert!(values["allocator=test/vmalloc_purged_bytes_total"] >= 74.0 * 4096.0);
}
