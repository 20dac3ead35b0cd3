//! Runs the saved inputs of fuzzing as plain tests.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;
use std::path::Path;

/// Passes every saved input of a target to its body; returns their number.
fn each(target: &str, body: fn(&[u8])) -> usize {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut count = 0;
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        // The harness prints this if the body panics.
        println!("{}", path.display());
        body(&fs::read(&path).unwrap());
        count += 1;
    }
    count
}

#[test]
fn saved_inputs_are_read_and_replayed_without_harm() {
    let count = each("trace_text", vmlab_replay::fuzz);
    assert!(count >= 10, "{count} saved inputs");
}

#[test]
fn saved_inputs_are_converted_into_every_form_and_read_again() {
    let count =
        each("trace_convert", vmlab_trace::convert::fuzz) + each("trace_text", vmlab_trace::convert::fuzz);
    assert!(count >= 20, "{count} saved inputs");
}

#[test]
fn saved_tables_of_areas_are_read_measured_and_drawn_without_harm() {
    let count = each("vmallocinfo_text", vmlab_view::fuzz);
    assert!(count > 0, "no saved input");
}
