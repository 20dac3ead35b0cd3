//! Any bytes, read as a table of areas, measured and drawn.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vmlab_view::fuzz(data));
