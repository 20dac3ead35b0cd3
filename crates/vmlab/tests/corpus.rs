//! The saved inputs of fuzzing, as plain tests.

use std::fs;
use std::path::Path;

#[test]
fn saved_inputs_are_read_and_replayed_without_harm() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/trace_text");
    let mut count = 0;
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        // The harness shows this when the body panics.
        println!("{}", path.display());
        vmlab::trace::fuzz(&fs::read(&path).unwrap());
        count += 1;
    }
    assert!(count >= 10, "{count} saved inputs");
}
