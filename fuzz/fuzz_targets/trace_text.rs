//! Any bytes, read as a trace and replayed.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vmlab_replay::fuzz(data));
