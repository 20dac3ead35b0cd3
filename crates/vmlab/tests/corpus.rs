//! The saved inputs of fuzzing, as plain tests.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;
use std::path::Path;

fn run(target: &str, body: fn(&[u8])) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut count = 0;
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        // The harness shows this when the body panics.
        println!("{}", path.display());
        body(&fs::read(&path).unwrap());
        count += 1;
    }
    assert!(count >= 10, "{count} saved inputs");
}

#[test]
fn saved_inputs_are_read_and_replayed_without_harm() {
    run("trace_text", vmlab::trace::fuzz);
}

#[test]
fn saved_tables_of_areas_are_read_measured_and_drawn_without_harm() {
    run("vmallocinfo_text", vmlab::map::read::fuzz);
}
