//! A recorder of the crate `metrics` for tests, which stores the last value of each metric.

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

type Values = Arc<Mutex<BTreeMap<String, f64>>>;

/// The recorder.
#[derive(Default)]
pub(crate) struct Notes(Values);

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

    /// Removes and returns the values, each by its labels and its name.
    pub(crate) fn take(&self) -> BTreeMap<String, f64> {
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
