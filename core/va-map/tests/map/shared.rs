//! Checks that generic code can share a map: it is `Send` and `Sync` without bounds of the caller.

use va_base::Machine;
use va_block::Config;
use va_block::config::Standard;
use va_map::{EarlyMap, MapSpace, PageTable};
use va_sim::machine::SimMachine;
use va_sim::pages::SimPages;

fn is_shared<T: Send + Sync>() {}

/// Compiles only if it holds for every machine, every policy and every page table that is shared itself.
fn shared<M: Machine + Clone + 'static, C: Config, T: PageTable + Send + Sync + 'static>() {
    is_shared::<MapSpace<M, T, C>>();
    is_shared::<EarlyMap<M, T, C>>();
}

#[test]
fn generic_code_shares_it() {
    shared::<&SimMachine, Standard, &SimPages>();
}
