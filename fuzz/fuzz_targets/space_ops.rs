//! Any calls of a space: beside its reference model, or with magazines, failures and late flushes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| va_sim::space_fuzz::space_ops(data));
