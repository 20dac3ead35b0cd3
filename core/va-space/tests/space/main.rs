//! Spaces against their reference model: scripts, stress, injected faults, contexts, magazines.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use va_base::{Request, Va, VaRange};
use va_sim::machine::SimMachine;
use va_sim::small::Small;
use va_space::config::{Linux69, OneLock52, Standard};
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

// The space is compiled for each set of policies: tests use these where the numbers are not what they test.
/// Standard, where a few dozen pages reach every limit.
type Tiny = Small<Standard, 60, { u64::MAX }>;
/// The same with purges in slices of three areas.
type Sliced = Small<Standard, 60, 3>;
type TinyLinux = Small<Linux69, 60, { u64::MAX }>;
type TinyOneLock = Small<OneLock52, 60, { u64::MAX }>;

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
