//! Any sequence of operations, on every index and its reference model.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| va_sim::fuzz::index_ops(data));
