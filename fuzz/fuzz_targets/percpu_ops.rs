//! Any sequence of calls to per-CPU memory, beside its reference model, under every policy.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| va_sim::percpu::fuzz::percpu_ops(data));
