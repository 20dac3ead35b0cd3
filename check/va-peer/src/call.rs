//! The calls of a thread, and its own memory.
//!
//! # Theory
//! A thread sets its CPU ([`enter`]) before it calls. Under our policies it then owns a magazine and a lane, so that
//! its pairs take no shared lock. A thread that moves to another CPU parks those of the first, and uses them again when
//! it returns. Under Linux's policies there are none.

use crate::host::{Host, Lockings, Work};
use crate::peer::{self, Count, Peer, Policy, Settings, Space};
use self_cell::self_cell;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use va_base::{PAGE_SIZE, Request, Va, VaRange};
use va_block::config::{Linux64, Standard};
use va_block::{Config, Lane};
use va_space::{Magazine, Purge, SpaceError};
use va_tree::Congruent;

/// A thread's cache of a space, so that its pairs take no shared lock: areas, and a block to cut pages from.
struct ThreadCache<'s> {
    magazine: Magazine<'s, Host, <Standard as Config>::Space>,
    lane: Lane<'s, Host, Standard>,
}

impl<'s> ThreadCache<'s> {
    fn new(space: &'s Space<Standard>, cpu: u32) -> Result<Self, SpaceError> {
        Ok(Self {
            magazine: space.magazine(cpu)?,
            lane: space.blocks().lane(cpu).map_err(|_| SpaceError::NoTable)?,
        })
    }
}

self_cell!(
    /// The cache, and a share in its space.
    struct Own {
        owner: Arc<Space<Standard>>,
        #[not_covariant]
        dependent: ThreadCache,
    }
);

/// The memory of a thread.
enum Context {
    /// It has no CPU yet.
    Outside,
    /// Its magazine, those that it has on other CPUs, and the CPU.
    Magazine { own: Own, parked: Vec<(u32, Own)>, cpu: u32 },
    /// All magazines that a space can have are in use: it has none.
    Shared { space: Arc<Space<Standard>>, cpu: u32 },
    /// Linux's policies.
    Linux { space: Arc<Space<Linux64>>, cpu: u32 },
}

/// Frees requested, with the feature `count`.
static FREES: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static CONTEXT: RefCell<Context> = const { RefCell::new(Context::Outside) };
}

/// The extent of a purge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// As in a drain.
    Drain,
    /// All, and the pools are emptied.
    Full,
    /// No CPU translates freed addresses afterwards.
    Aliases,
    /// Pools alone.
    Shrink,
}

/// Replaces the space by an empty one. `None` if the settings or the machine do not allow it.
pub fn start(policy: Policy, settings: &Settings) -> Option<()> {
    leave();
    peer::start(policy, settings)
}

/// Assigns this thread to CPU `cpu`. Does nothing while there is no space.
pub fn enter(cpu: u32) {
    let Some((peer, _)) = peer::current() else { return };
    CONTEXT.with_borrow_mut(|context| {
        let before = std::mem::replace(context, Context::Outside);
        *context = match peer {
            Peer::Linux(space) => Context::Linux { space, cpu },
            Peer::Standard(space) => before.moved(space, cpu),
        };
    });
}

/// Ends the use of the library by this thread: its cache is released to the space.
pub fn leave() {
    CONTEXT.set(Context::Outside);
}

impl Context {
    /// Returns the same thread on another CPU, with the magazine that it had there or a new one.
    fn moved(self, space: Arc<Space<Standard>>, cpu: u32) -> Self {
        let mut parked = match self {
            Self::Magazine { own, mut parked, cpu } if Arc::ptr_eq(own.borrow_owner(), &space) => {
                parked.push((cpu, own));
                parked
            }
            Self::Magazine { .. } | Self::Outside | Self::Shared { .. } | Self::Linux { .. } => Vec::new(),
        };
        if let Some(at) = parked.iter().position(|&(parked, _)| parked == cpu) {
            let (_, own) = parked.swap_remove(at);
            return Self::Magazine { own, parked, cpu };
        }
        match Own::try_new(space.clone(), |space| ThreadCache::new(space, cpu)) {
            Ok(own) => Self::Magazine { own, parked, cpu },
            Err(_) => Self::Shared { space, cpu },
        }
    }

    /// Releases all that the thread caches.
    fn drain(&mut self) {
        if let Self::Magazine { own, parked, .. } = self {
            drain(own);
            parked.iter_mut().for_each(|(_, own)| drain(own));
        }
    }

    #[inline(always)]
    fn alloc(&mut self, request: &Request) -> Option<Va> {
        // One branch to the usual case; all else is a separate function.
        let Self::Magazine { own, .. } = self else { return self.alloc_without(*request) };
        match own.with_dependent_mut(|_, cache| cache.magazine.alloc(request)) {
            Ok(area) => Some(area.start()),
            Err(error) => self.alloc_after(*request, error),
        }
    }

    #[inline(never)]
    fn alloc_without(&self, request: Request) -> Option<Va> {
        let got = match self {
            Self::Linux { space, cpu } => {
                let got = space.alloc(*cpu, &request);
                space.end();
                got
            }
            Self::Shared { space, cpu } => space.alloc(*cpu, &request),
            Self::Outside | Self::Magazine { .. } => return None,
        };
        got.ok().map(|area| area.start())
    }

    /// Retries a failing request with the cache of this thread: magazines that it has parked, blocks in lanes.
    #[cold]
    fn alloc_after(&mut self, request: Request, error: SpaceError) -> Option<Va> {
        let SpaceError::NoSpace { requested, window, cached, .. } = error else { return None };
        let Self::Magazine { own, parked, .. } = self else { return None };
        if requested.get() > window.len_bytes() / PAGE_SIZE {
            return None;
        }
        let holds = |own: &mut Own| own.with_dependent_mut(|_, cache| cache.lane.holds());
        let in_lanes = holds(own) || parked.iter_mut().any(|(_, own)| holds(own));
        if !in_lanes && (cached.get() == 0 || parked.is_empty()) {
            return None;
        }
        own.with_dependent_mut(|_, cache| cache.lane.park());
        parked.iter_mut().for_each(|(_, own)| drain(own));
        own.with_dependent_mut(|_, cache| cache.magazine.alloc(&request)).ok().map(|area| area.start())
    }

    #[inline(always)]
    fn free(&mut self, at: Va) -> bool {
        let Self::Magazine { own, .. } = self else { return self.free_without(at) };
        own.with_dependent_mut(|_, cache| cache.magazine.free_at(at)).is_ok()
    }

    #[inline(always)]
    fn map(&mut self, pages: u64) -> Option<Va> {
        match self {
            Self::Magazine { own, .. } => own.with_dependent_mut(|_, cache| cache.lane.alloc(pages)).ok(),
            Self::Shared { space, cpu } => space.blocks().alloc(*cpu, pages).ok(),
            Self::Linux { space, cpu } => {
                let got = space.blocks().alloc(*cpu, pages).ok();
                space.end();
                got
            }
            Self::Outside => None,
        }
    }

    #[inline(always)]
    fn unmap(&mut self, at: Va, pages: u64) -> bool {
        match self {
            Self::Magazine { own, .. } => {
                own.with_dependent_mut(|_, cache| cache.lane.free(at, pages)).is_ok()
            }
            Self::Shared { space, cpu } => space.blocks().free(*cpu, at, pages).is_ok(),
            Self::Linux { space, cpu } => space.blocks().free(*cpu, at, pages).is_ok(),
            Self::Outside => false,
        }
    }

    #[inline(never)]
    fn find_without(&self, at: Va) -> Option<VaRange> {
        let seen = match self {
            Self::Linux { space, .. } => space.find_enclosing(at),
            Self::Shared { space, .. } => space.find_enclosing(at),
            Self::Outside | Self::Magazine { .. } => return peer::current()?.0.find(at),
        };
        seen.map(|seen| seen.range)
    }

    #[inline(never)]
    fn free_without(&self, at: Va) -> bool {
        match self {
            Self::Linux { space, .. } => space.free_at(at).is_ok(),
            Self::Shared { space, .. } => space.free_at(at).is_ok(),
            Self::Outside | Self::Magazine { .. } => false,
        }
    }
}

/// Releases the thread's cache.
fn drain(own: &mut Own) {
    own.with_dependent_mut(|_, cache| {
        cache.magazine.drain();
        cache.lane.park();
    });
}

/// Returns the request with these numbers; a window of `[0, 0)` is the default one.
#[inline(always)]
fn request(size: u64, align: u64, start: u64, end: u64) -> Option<Request> {
    let request = Request::new(size, align).ok()?;
    if start | end == 0 {
        return Some(request);
    }
    Some(request.within(VaRange::new(Va::new(start), Va::new(end))?))
}

/// Allocates an area of `size` bytes in `[start, end)`.
#[inline(always)]
pub fn alloc(size: u64, align: u64, start: u64, end: u64) -> Option<Va> {
    let request = request(size, align, start, end)?;
    CONTEXT.with_borrow_mut(|context| context.alloc(&request))
}

/// Frees the area that starts at `at`; `false` if there is none.
#[inline(always)]
pub fn free(at: Va) -> bool {
    if cfg!(feature = "count") {
        FREES.fetch_add(1, Ordering::Relaxed);
    }
    CONTEXT.with_borrow_mut(|context| context.free(at))
}

/// Allocates `pages` pages for a short-lived mapping.
#[inline(always)]
pub fn map(pages: u64) -> Option<Va> {
    CONTEXT.with_borrow_mut(|context| context.map(pages))
}

/// Frees such a mapping; `false` if none of that size starts at `at`.
#[inline(always)]
pub fn unmap(at: Va, pages: u64) -> bool {
    if cfg!(feature = "count") {
        FREES.fetch_add(1, Ordering::Relaxed);
    }
    CONTEXT.with_borrow_mut(|context| context.unmap(at, pages))
}

/// Returns the busy area around `at`.
#[inline(always)]
pub fn find(at: Va) -> Option<VaRange> {
    CONTEXT.with_borrow(|context| {
        let Context::Magazine { own, .. } = context else { return context.find_without(at) };
        own.borrow_owner().find_enclosing(at).map(|seen| seen.range)
    })
}

/// Purges. This thread's cache is released first if pools are to be emptied.
pub fn purge(how: How) {
    let Some((peer, _)) = peer::current() else { return };
    if matches!(how, How::Full | How::Shrink) {
        CONTEXT.with_borrow_mut(Context::drain);
    }
    match how {
        How::Drain => drop(peer.purge(Purge::Drain)),
        How::Full => peer.purge_full(),
        How::Aliases => peer.unmap_aliases(),
        How::Shrink => drop(peer.shrink()),
    }
}

/// Drains if a drain is due on request; returns whether it was due.
pub fn run_work() -> bool {
    let Some((peer, host)) = peer::current() else { return false };
    let due = host.work() == Work::OnRequest && host.take_due();
    if due {
        peer.purge(Purge::Drain);
    }
    due
}

/// Allocates areas at `base + offset`, all or none, and returns the base.
pub fn congruent(areas: &mut [(u64, u64)], align: u64) -> Option<Va> {
    areas.sort_unstable();
    let areas = Congruent::new(areas, align).ok()?;
    let (peer, _) = peer::current()?;
    match peer {
        Peer::Standard(space) => space.alloc_congruent(&areas).ok(),
        Peer::Linux(space) => space.alloc_congruent(&areas).ok(),
    }
}

/// Returns the holes, in address order.
pub fn holes() -> Vec<VaRange> {
    peer::current().map_or_else(Vec::new, |(peer, _)| peer.holes())
}

/// Counts the contents of the space, its flushes, and the locks that it took.
pub fn count() -> Option<(Count, u64, Lockings)> {
    peer::settle();
    let (peer, host) = peer::current()?;
    let lockings = host.lockings();
    Some((peer.count(), host.flushes(), lockings))
}

/// Prints the counts for which the C interface has no field, if the environment requests them (`VA_PEER_COUNTS`). Locks
/// and frees are counted only with the feature `count`.
pub fn print_counts(flushes: u64, lockings: Lockings) {
    if std::env::var_os("VA_PEER_COUNTS").is_some() {
        let Lockings { pool, lazy, free, purge, queue, lookup, collect } = lockings;
        let frees = FREES.load(Ordering::Relaxed);
        eprintln!(
            "va-peer counts: frees={frees} flushes={flushes} pool={pool} lazy={lazy} free={free} purge={purge} \
             queue={queue} lookup={lookup} collect={collect}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::{Mutex, MutexGuard};

    /// The process has one space, so tests run one at a time.
    static TURN: Mutex<()> = Mutex::new(());

    fn begin(policy: Policy, work: Work, nodes: u32) -> MutexGuard<'static, ()> {
        let turn = TURN.lock();
        let settings = Settings { start: 0x10_0000, end: 0x8000_0000, cpus: 1, nodes, work };
        assert_eq!(start(policy, &settings), Some(()));
        enter(0);
        turn
    }

    fn held() -> Count {
        count().map_or_else(Count::default, |(count, ..)| count)
    }

    #[test]
    fn both_policies_alloc_find_and_free() {
        for policy in [Policy::Default, Policy::Linux] {
            let _turn = begin(policy, Work::Here, 2);
            let at = alloc(3 << 12, 1, 0, 0).unwrap();
            assert_eq!(find(at.checked_add(0x2fff).unwrap()), VaRange::from_size(at, 3 << 12));
            assert_eq!([free(at), free(at), free(Va::new(5))], [true, false, false]);
            assert_eq!(find(at), None);
            assert_eq!([alloc(0, 1, 0, 0), alloc(1, 1, 0, 0), alloc(4096, 3, 0, 0)], [None; 3]);
            let high = alloc(1 << 12, 1, 0x4000_0000, 0x5000_0000);
            assert_eq!(high, Some(Va::new(0x4000_0000)), "{policy:?}");
            purge(How::Full);
            assert_eq!((held().busy, held().lazy, held().pooled), (1, 0, 0));
        }
    }

    #[test]
    fn mappings_come_from_blocks_and_large_ones_from_the_space() {
        for (policy, next) in [(Policy::Default, 3), (Policy::Linux, 4)] {
            let _turn = begin(policy, Work::Here, 2);
            let [small, large, above] = [3, 65, 1].map(|pages| map(pages).unwrap());
            // Linux rounds 3 pages up to 4.
            assert_eq!(above.get() - small.get(), next << 12, "{policy:?}");
            assert_eq!(held().busy, 2, "a block, and the large one");
            assert_eq!(
                [unmap(small, 4), unmap(large, 64), unmap(above, 0), unmap(Va::new(3), 1)],
                [false; 4]
            );
            assert_eq!([unmap(small, 3), unmap(large, 65), unmap(small, 3)], [true, true, false]);
            assert_eq!([map(0), map(1 << 40)], [None; 2]);
            assert!(unmap(above, 1));
            purge(How::Full);
            assert_eq!((held().busy, held().lazy, holes().len()), (0, 0, 1), "{policy:?}");
        }
    }

    #[test]
    fn a_request_that_would_fail_gets_the_blocks_in_which_nothing_lives() {
        for policy in [Policy::Default, Policy::Linux] {
            let _turn = begin(policy, Work::Here, 1);
            let all = 0x8000_0000 - 0x10_0000;
            for _ in 0..2 {
                let at = map(1).unwrap();
                // The second of these would fail at once, if the free of the block were not recorded.
                assert_eq!([alloc(all, 4096, 0, 0), alloc(all, 4096, 0, 0)], [None; 2], "{policy:?}");
                assert!(unmap(at, 1));
                let whole = alloc(all, 4096, 0, 0);
                assert_eq!(whole, Some(Va::new(0x10_0000)), "{policy:?}");
                assert!(free(whole.unwrap()));
            }
        }
    }

    #[test]
    fn a_thread_that_moves_finds_its_magazine_again_and_all_of_them_for_what_would_fail() {
        let _turn = begin(Policy::Default, Work::Here, 2);
        let all = 0x8000_0000 - 0x10_0000;
        let halves = [alloc(all / 2, 4096, 0, 0).unwrap(), alloc(all / 2, 4096, 0, 0).unwrap()];
        for (cpu, half) in halves.into_iter().enumerate() {
            enter(cpu as u32);
            assert!(free(half));
        }
        // Each half is lazy in a magazine or a node of another CPU; together they are the whole window.
        enter(0);
        assert_eq!(alloc(all, 4096, 0, 0), Some(Va::new(0x10_0000)));
    }

    #[test]
    fn a_thread_that_exits_retains_and_receives_nothing() {
        let _turn = begin(Policy::Default, Work::Here, 1);
        let at = alloc(1 << 12, 1, 0, 0).unwrap();
        assert!(free(at));
        leave();
        assert_eq!((alloc(1 << 12, 1, 0, 0), free(at)), (None, false));
        peer::current().unwrap().0.purge(Purge::Full);
        assert_eq!((held().lazy, held().pooled, holes().len()), (0, 0, 1));
    }

    #[test]
    fn the_helper_drains_what_is_over_the_threshold() {
        for policy in [Policy::Default, Policy::Linux] {
            let _turn = begin(policy, Work::Helper, 1);
            for _ in 0..200 {
                let at = alloc(1 << 20, 1, 0, 0).unwrap();
                assert!(free(at));
            }
            let (count, flushes, _) = count().unwrap();
            assert!(count.purges > 0 && flushes > 0, "{policy:?}: {count:?}");
            leave();
        }
    }

    #[test]
    fn no_thread_drains_before_it_is_asked() {
        let _turn = begin(Policy::Linux, Work::OnRequest, 1);
        for _ in 0..40 {
            let at = alloc(1 << 20, 1, 0, 0).unwrap();
            assert!(free(at));
        }
        assert_eq!((held().purges, held().lazy), (0, 40));
        assert_eq!([run_work(), run_work()], [true, false]);
        assert_eq!((held().purges, held().lazy), (1, 0));
    }

    #[test]
    fn congruent_areas_have_their_distances_in_any_order() {
        let _turn = begin(Policy::Linux, Work::Here, 1);
        let mut areas = [(8 << 20, 2 << 20), (0, 2 << 20)];
        let base = congruent(&mut areas, 2 << 20).unwrap();
        assert_eq!(base, Va::new(0x8000_0000 - (10 << 20)));
        assert!(free(base) && free(base.checked_add(8 << 20).unwrap()));
        assert_eq!(congruent(&mut [(0, 4096)], 3), None);
    }
}
