//! Policies under which a few dozen pages reach every limit.

use std::marker::PhantomData;
use va_base::{Machine, Pages, Platform};
use va_space::Config;

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
    type Base = C;
    type Index<P: Platform + Clone + Send> = C::Index<P>;
    type Zone = C::Zone;
    type Decay = C::Decay;
    type Lookup<P: Machine> = C::Lookup<P>;
    const SLICE_AREAS: u64 = SLICE;

    fn lazy_max(cpus: u32) -> Pages {
        cpus.checked_sub(MANY).map_or_else(|| C::lazy_max(cpus), |pages| Pages::new(pages.into()))
    }
}
