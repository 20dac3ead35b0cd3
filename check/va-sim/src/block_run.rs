//! Calls to blocks: one language for property tests and fuzzing, and the functions that run them.
//!
//! # Theory
//! There are two runs. [`beside_model`] compares blocks with [`BlockModel`]: the same addresses, errors and counts.
//! [`with_lanes`] has no model, since the model has no lanes, slices, late flushes and injected failures. It checks
//! that nothing is allocated twice or too early, nothing is lost, and every wrong call fails. Both run on a machine
//! that records stale translations. Policies are those of `va-block`, with blocks and thresholds so small that a few
//! dozen calls reach every limit.

use crate::block_model::{BlockModel, Shares};
use crate::machine::{Flushing, SimMachine};
use crate::model::ModelIndex;
use crate::platform::HeapPlatform;
use crate::space_model::SpaceModel;
use va_base::{Align, PAGE_SIZE, Pages, Platform, Va, VaRange};
use va_block::config::{Hashed, Linux64, OneMap, Standard};
use va_block::{BlockError, Blocks, Config, Lane, UnmapError};
use va_space::config as spaces;
use va_space::{Purge, VmapSpace};
use va_tree::FreeIndex;

/// Wraps the policies of a space so that a purge is one slice and frequent.
macro_rules! tiny_space {
    ($name:ident, $of:ty) => {
        #[doc = concat!("[`", stringify!($of), "`], purged in one slice, and often.")]
        #[derive(Clone, Copy, Debug)]
        pub struct $name;
        impl va_space::Config for $name {
            type Base = $of;
            type Index<P: Platform + Clone + Send> = <$of as va_space::Config>::Index<P>;
            type Zone = <$of as va_space::Config>::Zone;
            type Decay = <$of as va_space::Config>::Decay;
            type Lookup<P: va_base::Machine> = <$of as va_space::Config>::Lookup<P>;
            const SLICE_AREAS: u64 = u64::MAX;
            fn lazy_max(_cpus: u32) -> Pages {
                Pages::new(300)
            }
        }
    };
}

tiny_space!(TinySpace, spaces::Standard);
tiny_space!(TinySpaceLinux, spaces::Linux69);
tiny_space!(TinySpaceOneLock, spaces::OneLock52);

/// Wraps the policies of blocks so that a few dozen calls reach every limit.
macro_rules! tiny {
    ($name:ident, $of:ty, $space:ty, $spread:ty, $slice:expr) => {
        #[doc = concat!("[`", stringify!($of), "`] with blocks of 128 pages, collected often, ", stringify!($slice), " blocks a slice.")]
        #[derive(Clone, Copy, Debug)]
        pub struct $name;
        impl Config for $name {
            type Base = $of;
            type Space = $space;
            type Spread = $spread;
            const SLICE_BLOCKS: u32 = $slice;
            const REPORT_PAGES: u64 = 5;
            fn block_pages(_cpus: u32) -> u64 {
                128
            }
            fn dead_max(_cpus: u32) -> Pages {
                Pages::new(100)
            }
        }
    };
}

tiny!(Tiny, Standard, TinySpace, Hashed, u32::MAX);
tiny!(TinyLinux, Linux64, TinySpaceLinux, Hashed, u32::MAX);
tiny!(TinyOneMap, Linux64, TinySpaceOneLock, OneMap, u32::MAX);
tiny!(Sliced, Standard, TinySpace, Hashed, 1);

/// First page of every window.
const FIRST: u64 = 0xffff_c900_0000_0000 >> va_base::PAGE_SHIFT;
/// Pages that a window has at most.
pub const PAGES_MAX: u64 = 1500;
/// Pages of the largest mapping that a block meets.
const SMALL: u64 = 64;

/// A call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// Allocates pages.
    Alloc {
        /// The CPU that calls.
        cpu: u32,
        /// Number of pages.
        pages: u64,
    },
    /// Frees a mapping.
    Free {
        /// The CPU that calls.
        cpu: u32,
        /// The number of a live mapping.
        n: usize,
    },
    /// Frees again the mapping that was freed last.
    Again {
        /// The CPU that calls.
        cpu: u32,
    },
    /// Frees a live mapping with another count.
    Miscount {
        /// Its number.
        n: usize,
        /// The count.
        pages: u64,
    },
    /// Frees any address.
    Wild {
        /// Position in bytes from the first page.
        byte: u64,
        /// The count.
        pages: u64,
    },
    /// Looks an address up.
    Find {
        /// The page, from the first.
        page: u64,
    },
    /// Flushes all that was freed.
    Aliases,
    /// Releases blocks to the space.
    Shrink,
    /// Purges the space.
    Purge(Purge),
}

impl Call {
    /// Any six bytes are a call.
    #[must_use]
    pub fn decode([what, cpu, size, odd, low, high]: [u8; 6]) -> Self {
        let value = u16::from_le_bytes([low, high]);
        let (cpu, n, page) = (u32::from(cpu % 4), usize::from(value), u64::from(value) % PAGES_MAX);
        let pages = match (size % 16, u64::from(odd)) {
            (0..=8, value) => 1 + value % 5,
            (9..=12, value) => 6 + value % 59,
            (13 | 14, value) => 65 + value % 80,
            (_, value) => [0, 1 << 52, u64::MAX][value as usize % 3],
        };
        match what % 100 {
            0..=44 => Self::Alloc { cpu, pages },
            45..=79 => Self::Free { cpu, n },
            80 | 81 => Self::Again { cpu },
            82..=84 => Self::Miscount { n, pages },
            85..=88 => {
                let byte = if odd % 5 == 0 { u64::from(value) % PAGE_SIZE } else { 0 };
                Self::Wild { byte: page * PAGE_SIZE + byte, pages }
            }
            89..=93 => Self::Find { page },
            94..=96 => Self::Aliases,
            97 => Self::Shrink,
            98 => Self::Purge(Purge::Full),
            _ => Self::Purge(Purge::Drain),
        }
    }

    /// Returns the calls in bytes, six each.
    pub fn decode_all(bytes: &[u8]) -> impl Iterator<Item = Self> + '_ {
        bytes.as_chunks().0.iter().map(|&code| Self::decode(code))
    }
}

/// Returns a window of so many pages, deliberately not aligned to a block.
#[must_use]
pub fn window(pages: u64) -> VaRange {
    VaRange::from_pages(FIRST + 3, FIRST + 3 + pages).unwrap_or_default()
}

fn range(at: Va, pages: u64) -> VaRange {
    VaRange::from_size(at, pages.saturating_mul(PAGE_SIZE)).unwrap_or_default()
}

/// Live mappings: address and count.
type Out = Vec<(Va, u64)>;

fn mapped(out: &Out) -> u64 {
    out.iter().map(|(_, pages)| pages).sum()
}

#[track_caller]
fn map(machine: &SimMachine, at: Va, pages: u64) {
    machine.map(range(at, pages)).unwrap_or_else(|broken| panic!("{broken}"));
}

fn blocks<C: Config>(machine: &SimMachine, pages: u64) -> Blocks<&SimMachine, C> {
    let space = VmapSpace::new(window(pages), window(pages), machine).map_err(BlockError::from);
    let made = space.and_then(|space| Blocks::new(space, machine));
    made.unwrap_or_else(|error| panic!("{error}"))
}

/// Runs calls on our policies and their reference model, on a window of `pages` pages and `cpus` CPUs.
///
/// # Panics
/// Those of [`beside_model`].
#[inline]
pub fn ours_beside_model(pages: u64, cpus: u32, calls: &[Call]) {
    let index = ModelIndex::new(window(pages), window(pages)).unwrap_or_else(|error| panic!("{error}"));
    beside_model::<Tiny, _>(pages, cpus, index, calls);
}

/// Does the same with Linux's policies.
///
/// # Panics
/// Those of [`beside_model`].
#[inline]
pub fn linux_beside_model(pages: u64, cpus: u32, calls: &[Call]) {
    beside_model::<TinyLinux, _>(pages, cpus, linux::<TinySpaceLinux>(pages), calls);
}

/// Does the same with the policies of Linux when one lock guarded the lookup.
///
/// # Panics
/// Those of [`beside_model`].
#[inline]
pub fn one_map_beside_model(pages: u64, cpus: u32, calls: &[Call]) {
    beside_model::<TinyOneMap, _>(pages, cpus, linux::<TinySpaceOneLock>(pages), calls);
}

fn linux<C: va_space::Config>(pages: u64) -> C::Index<HeapPlatform> {
    let index = C::index(window(pages), window(pages), HeapPlatform::default());
    index.unwrap_or_else(|error| panic!("{error}"))
}

/// Runs calls on blocks and on their reference model, whose space has the index `index`.
///
/// # Panics
/// At the first difference, broken invariant or address that is used again too early.
pub fn beside_model<C: Config, I: FreeIndex>(pages: u64, cpus: u32, index: I, calls: &[Call]) {
    let machine = SimMachine::new(cpus);
    let blocks = blocks::<C>(&machine, pages);
    let mut model = BlockModel::<C, _>::new(SpaceModel::new(index, cpus), cpus);
    let mut out = Out::new();
    let mut last = (Va::ZERO, 1);
    for call in calls {
        match *call {
            Call::Alloc { cpu, pages } => {
                let got = blocks.alloc(cpu, pages);
                assert_eq!(got.ok(), model.alloc(cpu, pages), "{call:?}: {got:?}");
                if let Ok(at) = got {
                    map(&machine, at, pages);
                    out.push((at, pages));
                }
            }
            Call::Free { cpu, n } if !out.is_empty() => {
                let (at, pages) = out.swap_remove(n % out.len());
                machine.unmap(range(at, pages));
                assert_eq!(blocks.free(cpu, at, pages), Ok(()));
                assert_eq!(model.free(cpu, at, pages), Ok(()));
                last = (at, pages);
            }
            Call::Again { cpu } if !out.iter().any(|&(at, _)| at == last.0) => {
                let got = blocks.free(cpu, last.0, last.1);
                assert_eq!(got, model.free(cpu, last.0, last.1));
                assert!(got.is_err());
            }
            Call::Miscount { n, pages } if !out.is_empty() => {
                let (at, right) = out[n % out.len()];
                if pages != right {
                    let got = blocks.free(0, at, pages);
                    assert_eq!(got, model.free(0, at, pages), "{call:?} of {right}");
                    assert!(got.is_err());
                }
            }
            Call::Wild { byte, pages } => {
                let at = Va::new(FIRST * PAGE_SIZE + byte);
                if !out.contains(&(at, pages)) {
                    let got = blocks.free(0, at, pages);
                    assert_eq!(got, model.free(0, at, pages), "{call:?}");
                    assert!(got.is_err());
                }
            }
            Call::Find { page } => {
                let at = Va::from_page(FIRST + page);
                assert_eq!(blocks.find_enclosing(at), model.find_enclosing(at));
            }
            Call::Aliases => {
                assert!(!blocks.unmap_aliases().waiting);
                model.unmap_aliases();
                assert_eq!(machine.unclean(window(pages)), mapped(&out), "something stale is left");
            }
            Call::Shrink => {
                assert!(!blocks.shrink().waiting);
                model.shrink();
            }
            Call::Purge(how) => {
                blocks.space().purge(how);
                model.purge(how);
            }
            Call::Free { .. } | Call::Again { .. } | Call::Miscount { .. } => {}
        }
        let stats = blocks.stats();
        let shares = Shares {
            blocks: stats.blocks,
            free: stats.free_pages.get(),
            live: stats.live_pages.get(),
            dead: stats.dead_pages.get(),
        };
        assert_eq!(shares, model.shares(), "{call:?}");
        assert_eq!(blocks.space().lazy_pages().get(), model.space().lazy_pages());
        assert_eq!(blocks.validate(), Ok(()), "{call:?}");
    }
}

type Lanes<'b, 'm> = [Option<Lane<'b, &'m SimMachine, Sliced>>; 2];

/// The conditions of a machine for [`with_lanes`].
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// Pages of the window.
    pub pages: u64,
    /// Flushes end on request.
    pub late: bool,
    /// Slabs and tables that it allocates before it fails.
    pub allocates: u64,
}

/// Runs calls on blocks that are collected slice by slice, for two CPUs with a lane each and two that share a queue.
///
/// # Panics
/// If a page is allocated twice or too early, or is lost, or a wrong call is not rejected.
#[inline]
pub fn with_lanes(conditions: Conditions, calls: &[Call]) {
    let Conditions { pages: total, late, allocates } = conditions;
    let machine = SimMachine::new(3);
    let flushing = if late { Flushing::OnRequest } else { Flushing::AtOnce };
    machine.set_flushing(flushing);
    let blocks = blocks::<Sliced>(&machine, total);
    machine.fail_after(allocates, allocates);
    let mut lanes: Lanes<'_, '_> = [blocks.lane(0).ok(), blocks.lane(1).ok()];
    let mut out = Out::new();
    for call in calls {
        match *call {
            Call::Alloc { cpu, pages } => {
                let got = match lanes.get_mut(cpu as usize).and_then(Option::as_mut) {
                    Some(lane) => lane.alloc(pages),
                    None => blocks.alloc(cpu, pages),
                };
                if let Ok(at) = got {
                    map(&machine, at, pages);
                    out.push((at, pages));
                }
            }
            Call::Free { cpu, n } if !out.is_empty() => {
                let (at, pages) = out.swap_remove(n % out.len());
                machine.unmap(range(at, pages));
                assert_eq!(free(&blocks, &mut lanes, cpu, at, pages), Ok(()));
                let again = blocks.free(cpu, at, pages);
                let rejected = matches!(again, Err(UnmapError::Twice { .. } | UnmapError::NotMapped { .. }));
                assert!(rejected, "{again:?}");
            }
            Call::Miscount { n, pages } if !out.is_empty() => {
                let (at, right) = out[n % out.len()];
                if pages != right {
                    assert!(free(&blocks, &mut lanes, 0, at, pages).is_err(), "{call:?} of {right}");
                }
            }
            Call::Wild { byte, pages } => {
                let at = Va::new(FIRST * PAGE_SIZE + byte);
                if !out.contains(&(at, pages)) {
                    assert!(free(&blocks, &mut lanes, 1, at, pages).is_err(), "{call:?}");
                }
            }
            // A lane is created, dropped or parked.
            Call::Find { page } if page % 3 == 0 => {
                lanes[0] = match lanes[0].take() {
                    Some(_) => None,
                    None => blocks.lane(0).ok(),
                };
            }
            Call::Find { .. } => lanes[1].iter_mut().for_each(Lane::park),
            Call::Aliases => {
                let first = blocks.unmap_aliases();
                machine.complete_flushes();
                if first.waiting {
                    // In the second call, all flushes end at once.
                    machine.set_flushing(Flushing::AtOnce);
                    assert!(!blocks.unmap_aliases().waiting);
                    machine.set_flushing(flushing);
                }
                assert_eq!(machine.unclean(window(total)), mapped(&out), "something stale is left");
            }
            Call::Shrink => {
                blocks.shrink();
            }
            Call::Purge(how) => {
                machine.complete_flushes();
                blocks.tick();
                blocks.space().purge(how);
            }
            Call::Free { .. } | Call::Again { .. } | Call::Miscount { .. } => machine.complete_flushes(),
        }
        check(&blocks, &out);
    }
    // All pages are freed, whatever the machine fails, and the space is whole.
    drop(lanes);
    machine.fail_after(0, 0);
    machine.set_flushing(Flushing::AtOnce);
    machine.complete_flushes();
    for (at, pages) in out {
        machine.unmap(range(at, pages));
        assert_eq!(blocks.free(2, at, pages), Ok(()));
    }
    blocks.shrink();
    assert_eq!(blocks.stats().blocks, 0);
    blocks.space().purge(Purge::Full);
    assert_eq!(blocks.space().stats().holes, 1);
    assert_eq!(machine.unclean(window(total)), 0);
    assert_eq!(blocks.validate(), Ok(()));
}

#[inline]
fn free(
    blocks: &Blocks<&SimMachine, Sliced>,
    lanes: &mut Lanes<'_, '_>,
    cpu: u32,
    at: Va,
    pages: u64,
) -> Result<(), UnmapError> {
    match lanes.get_mut(cpu as usize).and_then(Option::as_mut) {
        Some(lane) => lane.free(at, pages),
        None => blocks.free(cpu, at, pages),
    }
}

/// Counts and a few lookups.
#[inline]
fn check(blocks: &Blocks<&SimMachine, Sliced>, out: &Out) {
    assert_eq!(blocks.validate(), Ok(()));
    let small = || out.iter().filter(|&&(_, pages)| pages <= SMALL);
    assert_eq!(blocks.stats().live_pages.get(), small().map(|(_, pages)| pages).sum());
    for &(at, pages) in small().take(5) {
        let range = range(at, pages);
        let above = blocks.find_enclosing(range.end().align_down(Align::PAGE));
        assert_eq!(above.filter(|seen| seen.start() == at), None);
        assert_eq!(blocks.find_enclosing(Va::new(range.end().get() - 1)), Some(range));
    }
}
