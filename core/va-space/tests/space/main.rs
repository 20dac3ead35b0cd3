//! Spaces against their reference model: scripts, stress, injected faults, contexts, magazines.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::marker::PhantomData;
use va_base::{Machine, Pages, Platform, Request, Va, VaRange};
use va_sim::machine::SimMachine;
use va_space::config::{self, Order};
use va_space::{Config, VmapSpace};

mod context;
mod failure;
mod faults;
mod fit;
mod leave;
mod magazine;
mod model;
mod notes;
mod points;
mod reshape;
mod script;
mod shared;
mod stress;
mod supply;

/// The policies `C`, with slices of `SLICE` areas, and a threshold that a test may set by [`lazy`]. The space is compiled
/// for each set of policies: so tests that differ in the threshold alone have the same set.
struct Set<C, const SLICE: u64>(PhantomData<C>);

type Standard = Set<config::Standard, { <config::Standard as Config>::SLICE_AREAS }>;
/// Standard, where one purge is one slice, as the model has it: a request that ends one early may get another, equally
/// good address.
type Whole = Set<config::Standard, { u64::MAX }>;
type Linux69 = Set<config::Linux69, { u64::MAX }>;
type OneLock52 = Set<config::OneLock52, { u64::MAX }>;

/// More CPUs than a test has.
const MANY: u32 = 1 << 20;

/// Returns the number of CPUs online with which a purge is due above so many pages.
const fn lazy(pages: u32) -> u32 {
    MANY + pages
}

impl<C: Config, const SLICE: u64> Config for Set<C, SLICE> {
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

/// The first page of these spaces.
const FIRST: u64 = 0xf_ffc9_0000_0000;

/// Returns a range of pages, counted from the first page of the space.
fn pages(first: u64, end: u64) -> VaRange {
    VaRange::from_pages(FIRST + first, FIRST + end).unwrap()
}

fn space<C: Config>(machine: &SimMachine, size: u64) -> VmapSpace<&SimMachine, C> {
    VmapSpace::new(pages(0, size), pages(0, size), machine).unwrap()
}

fn ask(size: u64) -> Request {
    Request::pages(size).unwrap()
}

/// Returns the address of a page of the space.
fn at(page: u64) -> Va {
    Va::from_page(FIRST + page)
}
