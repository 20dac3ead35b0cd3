//! A test that a recorder gets the values of the statistics.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use vmalloc::{Mappings, Options, Protection, Vmalloc};

type Values = Arc<Mutex<BTreeMap<String, f64>>>;

/// A recorder that stores the last value of each metric.
#[derive(Default)]
struct Notes(Values);

struct Cell {
    values: Values,
    name: String,
}

impl Notes {
    fn cell(&self, key: &Key) -> Arc<Cell> {
        let labels: Vec<String> =
            key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        Arc::new(Cell { values: self.0.clone(), name: format!("{}/{}", labels.join(","), key.name()) })
    }

    fn take(&self) -> BTreeMap<String, f64> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Cell {
    fn note(&self, value: f64) {
        self.values.lock().unwrap().insert(self.name.clone(), value);
    }
}

impl CounterFn for Cell {
    fn increment(&self, _value: u64) {}

    fn absolute(&self, value: u64) {
        self.note(value as f64);
    }
}

impl GaugeFn for Cell {
    fn increment(&self, _value: f64) {}

    fn decrement(&self, _value: f64) {}

    fn set(&self, value: f64) {
        self.note(value);
    }
}

impl Recorder for Notes {
    fn describe_counter(&self, _key: KeyName, _unit: Option<Unit>, _description: SharedString) {}

    fn describe_gauge(&self, _key: KeyName, _unit: Option<Unit>, _description: SharedString) {}

    fn describe_histogram(&self, _key: KeyName, _unit: Option<Unit>, _description: SharedString) {}

    fn register_counter(&self, key: &Key, _metadata: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.cell(key))
    }

    fn register_gauge(&self, key: &Key, _metadata: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.cell(key))
    }

    fn register_histogram(&self, _key: &Key, _metadata: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

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
