//! The one space of the process with its blocks, under either policy, and the helper thread that drains it.

use crate::host::{Host, Work};
use parking_lot::Mutex;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use va_base::{Machine, Va, VaRange};
use va_block::config::{Config, Linux64, Standard};
use va_block::{BlockError, Blocks};
use va_space::{Purge, Purged, State, VmapSpace};

/// The default window, as in Linux on x86-64: its last byte is left out.
const WINDOW: (u64, u64) = (0xffff_c900_0000_0000, 0xffff_e8ff_ffff_ffff);
/// Most CPUs of a space.
const CPUS_MAX: u32 = 256;
/// Most nodes of a space.
const NODES_MAX: u32 = va_space::NODES_LIMIT;
/// Variable of the environment that names a policy.
const POLICY_VARIABLE: &str = "VA_PEER_POLICY";

/// A space in this process, and the blocks that are cut from it.
pub(crate) struct Space<C: Config> {
    blocks: Blocks<Host, C>,
    host: Host,
}

impl<C: Config> Space<C> {
    pub(crate) fn blocks(&self) -> &Blocks<Host, C> {
        &self.blocks
    }

    /// Releases blocks, in the middle of a call.
    fn shrink_blocks(&self) -> u64 {
        // Standard drains at once; for Linux the order of drains decides the addresses.
        let shrink = || self.blocks.shrink().blocks * self.blocks.block_pages().get();
        if C::REUSE { shrink() } else { self.host.holding(shrink) }
    }

    fn unmap_aliases(&self) {
        let unmap = || self.blocks.unmap_aliases();
        let _flushed = if C::REUSE { unmap() } else { self.host.holding(unmap) };
        self.end();
    }

    /// Runs the work that waits for the end of a call.
    #[inline]
    pub(crate) fn end(&self) {
        if self.host.take_held() {
            self.purge(Purge::Drain);
        }
    }
}

impl<C: Config> Deref for Space<C> {
    type Target = VmapSpace<Host, C::Space>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        self.blocks.space()
    }
}

/// The policies of the space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// Standard.
    Default,
    /// Linux's from 6.9 to 6.12, bug for bug.
    Linux,
}

impl Policy {
    /// Returns the policy in the environment; `None` if that is no policy.
    pub fn from_environment() -> Option<Self> {
        match std::env::var(POLICY_VARIABLE).as_deref() {
            Err(_) | Ok("" | "default") => Some(Self::Default),
            Ok("linux") => Some(Self::Linux),
            Ok(_) => None,
        }
    }
}

/// The settings of the caller. Zeros mean Linux's values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// First address of the default window; 0: that of x86-64.
    pub start: u64,
    /// Address after its last; 0: that of x86-64.
    pub end: u64,
    /// CPUs online, which decide how much may be lazy; 0: one.
    pub cpus: u32,
    /// Nodes; 0: one for each CPU.
    pub nodes: u32,
    /// The thread that drains.
    pub work: Work,
}

/// The space, and the calls that any thread may make.
#[derive(Clone)]
pub(crate) enum Peer {
    Standard(Arc<Space<Standard>>),
    Linux(Arc<Space<Linux64>>),
}

/// The running state of the process.
struct Running {
    peer: Peer,
    host: Host,
    helper: Option<Helper>,
}

static RUNNING: Mutex<Option<Running>> = Mutex::new(None);

/// Replaces the space of the process by an empty one. Threads that still use the old one retain it until they begin
/// again.
pub(crate) fn start(policy: Policy, settings: &Settings) -> Option<()> {
    let cpus = settings.cpus.max(1);
    let nodes = if settings.nodes == 0 { cpus } else { settings.nodes };
    if cpus > CPUS_MAX || nodes > NODES_MAX {
        return None;
    }
    let or = |asked, usual| if asked == 0 { usual } else { asked };
    let window = VaRange::new(Va::new(or(settings.start, WINDOW.0)), Va::new(or(settings.end, WINDOW.1)))?;
    let host = Host::new(nodes, cpus, settings.work);
    // The helper of the old space ends before the new one begins, so that no measurement includes it.
    drop(RUNNING.lock().take());
    let peer = match policy {
        Policy::Default => Peer::Standard(new_space(window, &host, cpus).ok()?),
        Policy::Linux => Peer::Linux(new_space(window, &host, cpus).ok()?),
    };
    let helper = (settings.work == Work::Helper).then(|| Helper::start(peer.clone(), &host)).flatten();
    *RUNNING.lock() = Some(Running { peer, host, helper });
    Some(())
}

/// Returns the space of the process, if there is one.
pub(crate) fn current() -> Option<(Peer, Host)> {
    let running = RUNNING.lock();
    running.as_ref().map(|running| (running.peer.clone(), running.host.clone()))
}

/// Waits until the helper, if there is one, has nothing to do.
pub(crate) fn settle() {
    let busy = RUNNING.lock().as_ref().and_then(|running| Some(running.helper.as_ref()?.shared.clone()));
    while busy.as_ref().is_some_and(|shared| shared.is_busy()) {
        thread::yield_now();
    }
}

fn new_space<C>(window: VaRange, host: &Host, cpus: u32) -> Result<Arc<Space<C>>, BlockError>
where
    C: Config,
{
    // As in Linux: all addresses except the first page and the last byte.
    let extent = VaRange::new(Va::new(1), Va::MAX).unwrap_or(VaRange::ALL);
    let space = VmapSpace::new(extent, window, host.clone())?;
    let blocks = Blocks::with_cpus(space, host.clone(), cpus)?;
    let space = Arc::new(Space { blocks, host: host.clone() });
    let weak = Arc::downgrade(&space);
    host.set_reclaim(move || weak.upgrade().map_or(0, |space| space.shrink_blocks()));
    Ok(space)
}

impl Peer {
    /// Releases the blocks without live mappings, and purges everything.
    pub(crate) fn purge_full(&self) {
        match self {
            Self::Standard(space) => {
                space.shrink_blocks();
                space.purge(Purge::Full);
            }
            Self::Linux(space) => {
                space.shrink_blocks();
                space.purge(Purge::Full);
                space.end();
            }
        }
    }

    /// Flushes all freed addresses.
    pub(crate) fn unmap_aliases(&self) {
        match self {
            Self::Standard(space) => space.unmap_aliases(),
            Self::Linux(space) => space.unmap_aliases(),
        }
    }

    pub(crate) fn purge(&self, how: Purge) -> Purged {
        match self {
            Self::Standard(space) => space.purge(how),
            Self::Linux(space) => space.purge(how),
        }
    }

    /// Runs the work of a helper that was woken: under our policies no more than is due.
    fn drain(&self) -> Purged {
        match self {
            Self::Standard(space) => space.drain(),
            Self::Linux(space) => space.purge(Purge::Drain),
        }
    }

    pub(crate) fn shrink(&self) -> u64 {
        match self {
            Self::Standard(space) => space.shrink(),
            Self::Linux(space) => space.shrink(),
        }
    }

    pub(crate) fn find(&self, at: Va) -> Option<VaRange> {
        let seen = match self {
            Self::Standard(space) => space.find_enclosing(at),
            Self::Linux(space) => space.find_enclosing(at),
        };
        seen.map(|seen| seen.range)
    }

    /// Returns the counts. Exact while no other thread calls.
    pub(crate) fn count(&self) -> Count {
        match self {
            Self::Standard(space) => {
                // A collection of dead pages is for blocks what a purge is for areas.
                let held = count(&**space);
                Count { purges: held.purges + space.blocks().stats().flushes, ..held }
            }
            Self::Linux(space) => count(&**space),
        }
    }

    /// Returns the holes, in address order: the gaps between areas. Exact while no other thread calls.
    pub(crate) fn holes(&self) -> Vec<VaRange> {
        match self {
            Self::Standard(space) => holes(&**space),
            Self::Linux(space) => holes(&**space),
        }
    }
}

/// The contents of a space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Count {
    /// Busy areas.
    pub busy: u64,
    /// Lazy areas, those in magazines among them.
    pub lazy: u64,
    /// Their pages.
    pub lazy_pages: u64,
    /// Flushed areas in pools and magazines.
    pub pooled: u64,
    /// Holes.
    pub holes: u64,
    /// Bytes of the largest.
    pub largest_bytes: u64,
    /// Passes of the purge, and collections in blocks that flushed.
    pub purges: u64,
    /// Areas that they settled.
    pub purged: u64,
}

fn count<P: Machine + Clone, C: va_space::Config>(space: &VmapSpace<P, C>) -> Count {
    let stats = space.stats();
    let pooled = stats.pooled_areas + stats.cached_areas;
    let of = |state| space.areas().filter(|seen| seen.state == state).count() as u64;
    Count {
        busy: of(State::Busy),
        lazy: of(State::Idle).saturating_sub(pooled),
        lazy_pages: stats.lazy_pages.get(),
        pooled,
        holes: stats.holes,
        largest_bytes: stats.largest_hole.checked_bytes().unwrap_or(u64::MAX),
        purges: stats.purges,
        purged: stats.purged_areas,
    }
}

/// Returns the gaps between areas: holes and areas tile the extent, and no two holes touch.
fn holes<P: Machine + Clone, C: va_space::Config>(space: &VmapSpace<P, C>) -> Vec<VaRange> {
    let extent = space.extent();
    let (mut holes, mut at) = (Vec::new(), extent.start());
    let ends = space.areas().map(|seen| seen.range).chain(VaRange::new(extent.end(), extent.end()));
    for area in ends {
        holes.extend(VaRange::new(at, area.start()).filter(|hole| !hole.is_empty()));
        at = area.end();
    }
    holes
}

/// A thread that drains when it is woken, and ends when it is dropped.
struct Helper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    host: Host,
    stop: AtomicBool,
    /// Set before a drain is taken, so that a waiting thread never finds both flags clear.
    working: AtomicBool,
}

impl Shared {
    fn is_busy(&self) -> bool {
        self.host.is_due() || self.working.load(Ordering::SeqCst)
    }
}

impl Helper {
    fn start(peer: Peer, host: &Host) -> Option<Self> {
        let shared = Arc::new(Shared {
            host: host.clone(),
            stop: AtomicBool::new(false),
            working: AtomicBool::new(false),
        });
        let theirs = shared.clone();
        let work = move || {
            // SeqCst on the flags: a waiting thread reads two of them, and relies on their order.
            while !theirs.stop.load(Ordering::SeqCst) {
                theirs.working.store(true, Ordering::SeqCst);
                let due = theirs.host.take_due();
                if due {
                    peer.drain();
                }
                theirs.working.store(false, Ordering::SeqCst);
                if !due {
                    thread::park();
                }
            }
        };
        let thread = thread::Builder::new().name("va-peer drain".into()).spawn(work).ok()?;
        host.set_helper(thread.thread().clone());
        Some(Self { shared, thread: Some(thread) })
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It ends with its purge; a panic was printed already.
            let _ended = thread.join();
        }
    }
}
