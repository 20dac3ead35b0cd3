//! Checks that generic code can share per-CPU memory: it is `Send` and `Sync` without bounds of the caller.

use va_base::Machine;
use va_percpu::config::Standard;
use va_percpu::{Backend, Config, EarlyPercpu, PercpuSpace};
use va_sim::machine::SimMachine;
use va_sim::percpu::SimChunks;

fn is_shared<T: Send + Sync>() {}

/// Compiles only if it holds for every machine, every policy and every backend that is shared itself.
fn shared<M: Machine + 'static, B: Backend + Send + Sync + 'static, C: Config>() {
    is_shared::<PercpuSpace<M, B, C>>();
    is_shared::<EarlyPercpu<M, B, C>>();
}

#[test]
fn generic_code_shares_it() {
    shared::<&SimMachine, SimChunks, Standard>();
}
