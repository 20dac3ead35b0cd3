//! The saved inputs of fuzzing, as plain tests.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;
use std::path::Path;

/// Returns every saved input of a fuzz target, with its name.
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut inputs = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        inputs.push((path.display().to_string(), fs::read(&path).unwrap()));
    }
    inputs.sort();
    assert!(inputs.len() >= 10, "{target} has {} saved inputs", inputs.len());
    inputs
}

fn run(target: &str, body: fn(&[u8])) {
    for (name, input) in corpus(target) {
        // The harness shows this when the body panics.
        println!("{name}");
        body(&input);
    }
}

#[test]
fn every_index_equals_its_model_on_saved_inputs() {
    run("index_ops", va_sim::fuzz::index_ops);
}

#[test]
fn a_space_holds_its_promises_on_saved_inputs() {
    run("space_ops", va_sim::space_fuzz::space_ops);
}

#[test]
fn sp3_and_sp4_hold_on_saved_inputs_when_slabs_fail() {
    run("slab_failure", va_sim::fuzz::slab_failure);
}

#[test]
fn per_cpu_memory_holds_its_promises_on_saved_inputs() {
    run("percpu_ops", va_sim::percpu::fuzz::percpu_ops);
}

#[test]
fn vb1_to_vb7_hold_on_saved_inputs() {
    run("block_ops", va_sim::fuzz::block_ops);
}
