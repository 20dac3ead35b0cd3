//! Any sequence of operations, on a platform that fails slabs.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| va_sim::fuzz::slab_failure(data));
