//! A test that a recorder gets the values of the statistics.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod recorder;

use recorder::Notes;
use vmalloc_vmap::{Mappings, Protection};

#[test]
fn a_recorder_gets_the_numbers_of_the_statistics() {
    let notes = Notes::default();
    let mappings = Mappings::new(256 << 20).unwrap();
    let frames = mappings.frames(3).unwrap();
    let view = frames.vmap(&[0, 2], Protection::Read).unwrap();
    metrics::with_local_recorder(&notes, || mappings.publish_metrics("frames"));
    let values = notes.take();
    let of = |name: &str| values[&format!("allocator=frames/vmalloc_vmap_{name}")];
    assert_eq!(
        (of("frames"), of("mapped_bytes"), of("system_mappings")),
        (3.0, 8192.0, view.len() as f64 / 4096.0 + 1.0)
    );
}
