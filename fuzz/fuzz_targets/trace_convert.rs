//! Any bytes, converted into every form.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vmlab_trace::convert::fuzz(data));
