//! Checks that generic code can share a space: it is `Send` and `Sync` without bounds of the caller.

use crate::Standard;
use va_base::Machine;
use va_sim::machine::SimMachine;
use va_space::{Config, EarlySpace, Magazine, VmapSpace};

fn is_send<T: Send>() {}

fn is_shared<T: Send + Sync>() {}

/// Compiles only if it holds for every machine and every policy.
fn shared<M: Machine + Clone + 'static, C: Config>() {
    is_shared::<VmapSpace<M, C>>();
    is_shared::<EarlySpace<M, C>>();
    is_send::<Magazine<'static, M, C>>();
}

#[test]
fn generic_code_shares_it() {
    shared::<&SimMachine, Standard>();
}
