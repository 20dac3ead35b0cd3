//! Policies under which a few dozen pages reach every limit.

use std::marker::PhantomData;
use va_base::{Machine, Pages, Platform};
use va_space::Config;
use va_space::config::Order;

/// The policies `C`, with slices of `SLICE` areas, and a threshold that a test may set by [`lazy`]. The space is
/// compiled for each set of policies: so tests that differ in the threshold alone have the same set.
#[derive(Clone, Copy, Debug)]
pub struct Small<C, const SLICE: u64>(PhantomData<fn() -> C>);

/// More CPUs than a test has.
const MANY: u32 = 1 << 20;

/// Returns the number of CPUs online with which a purge is due above so many pages.
#[must_use]
pub const fn lazy(pages: u32) -> u32 {
    MANY + pages
}

impl<C: Config, const SLICE: u64> Config for Small<C, SLICE> {
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

    fn lazy_max(cpus: u32) -> Pages {
        cpus.checked_sub(MANY).map_or_else(|| C::lazy_max(cpus), |pages| Pages::new(pages.into()))
    }
}
