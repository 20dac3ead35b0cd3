//! Policies under which a few dozen pages reach every limit.

use std::marker::PhantomData;
use va_base::{Machine, Pages, Platform};
use va_space::Config;
use va_space::config::Order;

/// The policies `C`, except that a purge is due above `LAZY` pages, and a slice of it handles `SLICE` areas.
#[derive(Clone, Copy, Debug)]
pub struct Small<C, const LAZY: u64, const SLICE: u64>(PhantomData<fn() -> C>);

impl<C: Config, const LAZY: u64, const SLICE: u64> Config for Small<C, LAZY, SLICE> {
    type Index<P: Platform + Clone + Send> = C::Index<P>;
    type Zone = C::Zone;
    type Decay = C::Decay;
    type Lookup<P: Machine> = C::Lookup<P>;
    const NODES_MAX: u32 = C::NODES_MAX;
    const POOL_ON_ONE_NODE: bool = C::POOL_ON_ONE_NODE;
    const POOL_PAGES_MAX: u64 = C::POOL_PAGES_MAX;
    const POOL_TRIES: u32 = C::POOL_TRIES;
    const STEAL: bool = C::STEAL;
    const ORDER: Order = C::ORDER;
    const SLICE_AREAS: u64 = SLICE;
    const FAIL_FAST: bool = C::FAIL_FAST;
    const RECLAIM_FIRST: bool = C::RECLAIM_FIRST;

    fn lazy_max(_cpus: u32) -> Pages {
        Pages::new(LAZY)
    }
}
