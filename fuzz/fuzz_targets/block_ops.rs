//! Any sequence of calls to blocks, beside their reference model, and with lanes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| va_sim::fuzz::block_ops(data));
