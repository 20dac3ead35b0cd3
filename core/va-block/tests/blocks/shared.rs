//! Checks that generic code can share blocks: they are `Send` and `Sync` without bounds of the caller.

use va_base::Machine;
use va_block::config::Standard;
use va_block::{Blocks, Config, EarlyBlocks, Lane};
use va_sim::machine::SimMachine;

fn is_send<T: Send>() {}

fn is_shared<T: Send + Sync>() {}

/// Compiles only if it holds for every machine and every policy.
fn shared<M: Machine + Clone + 'static, C: Config>() {
    is_shared::<Blocks<M, C>>();
    is_shared::<EarlyBlocks<M, C>>();
    is_send::<Lane<'static, M, C>>();
}

#[test]
fn generic_code_shares_it() {
    shared::<&SimMachine, Standard>();
}
