//! Spaces against their reference model: scripts, stress, injected faults, contexts, magazines.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use va_base::{Request, Va, VaRange};
use va_sim::machine::SimMachine;
use va_sim::small::{Small, lazy};
use va_space::config;
use va_space::{Config, Magazine, Purge, VmapSpace};

mod aliases;
mod atomic;
mod cached;
mod claims;
mod context;
mod empty;
mod every_nth;
mod failure;
mod faults;
mod fit;
mod leave;
mod magazine;
mod model;
mod notes;
mod overflow;
mod points;
mod purge;
mod reshape;
mod rows;
mod script;
mod shared;
mod shares;
mod stress;
mod supply;
mod watched;

type Standard = Small<config::Standard, { <config::Standard as Config>::SLICE_AREAS }>;
/// Standard, where one purge is one slice, as the model has it: a request that ends one early may get another, equally
/// good address.
type Whole = Small<config::Standard, { u64::MAX }>;
type Linux69 = Small<config::Linux69, { u64::MAX }>;
type OneLock52 = Small<config::OneLock52, { u64::MAX }>;

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

/// Frees areas into the magazine until a round has ended, and completes its batch.
fn complete_round<C: Config>(space: &VmapSpace<&SimMachine, C>, magazine: &mut Magazine<'_, &SimMachine, C>) {
    while space.stats().lazy_pages > space.lazy_pages() {
        let area = space.alloc(0, &ask(64)).unwrap();
        magazine.free(area).unwrap();
    }
    space.purge(Purge::Drain);
}

/// Returns the address of a page of the space.
fn at(page: u64) -> Va {
    Va::from_page(FIRST + page)
}
