//! A hardened allocator with an owner. It is created in its own records, and dropped with its owner.

use super::granules::Granules;
use super::places::Places;
use super::quarantine::{Held, Quarantine};
use super::secret::{Canary, Draw};
use super::warm::Warm;
use super::window::{Wall, Window};
use super::{Hard, State};
use crate::PAGE_BYTES;
use crate::arena::room;
use crate::empty::{empty_value, write_empty};
use crate::error::CreateError;
use crate::options::{Hardened, Walls};
use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use va_base::Platform;
use vmalloc_os::fork;
use vmalloc_os::lock::Mutex;
use vmalloc_os::os::{Call, Os};
use vmalloc_os::records::Host;

/// The parameters of a hardened allocator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) arena_bytes_max: usize,
    /// Bytes of warm rooms.
    pub(crate) cache_bytes_max: usize,
    /// Bytes of the window at first.
    pub(crate) window_bytes: usize,
    pub(crate) quarantine_bytes_max: usize,
    pub(crate) quarantine_areas_max: usize,
    /// The method that denies access; `None` for the best one that the system supports.
    pub(crate) wall: Option<Wall>,
    /// The seed of keys in place of the system's random numbers.
    pub(crate) seed: Option<u64>,
}

impl Plan {
    pub(crate) fn new(arena_bytes_max: usize, cache_bytes_max: usize, hardened: Hardened) -> Self {
        let Hardened { window_bytes, quarantine_bytes_max, quarantine_areas_max, walls } = hardened;
        let wall = match walls {
            Walls::Best => None,
            Walls::Protection => Some(Wall::Protection),
        };
        Self {
            arena_bytes_max,
            cache_bytes_max,
            window_bytes,
            quarantine_bytes_max,
            quarantine_areas_max,
            wall,
            seed: None,
        }
    }
}

/// An owning handle of an allocator, which frees it when dropped.
pub(crate) struct Owned<O: Os> {
    hard: NonNull<Hard<O>>,
}

// SAFETY: shared access to the allocator is by its lock and atomics only.
unsafe impl<O: Os> Send for Owned<O> {}
// SAFETY: as before.
unsafe impl<O: Os> Sync for Owned<O> {}

impl<O: Os> Owned<O> {
    /// Creates an allocator on a system.
    pub(crate) fn new(os: O, plan: Plan) -> Result<Self, CreateError> {
        let most = room(&os, plan.arena_bytes_max)?;
        fork::prepare_for_forks();
        let host =
            Host::open(os).map_err(|(call, errno)| CreateError::CallFailed { call, errno, bytes: 0 })?;
        let made = Self::make(host, most, plan);
        if made.is_err() {
            // SAFETY: nothing in the records is used any more.
            unsafe { host.close() };
        }
        made
    }

    fn make(host: Host<O>, most: usize, plan: Plan) -> Result<Self, CreateError> {
        let pages = |bytes: usize| (bytes / PAGE_BYTES) as u64;
        let [canary, draw] = keys(host.os(), plan.seed)?;
        let place = host.alloc_place().ok_or(CreateError::NoRecords)?;
        let link = host.alloc_place().ok_or(CreateError::NoRecords)?;
        let ring = match plan.quarantine_areas_max {
            0 => &mut [],
            areas => host.alloc_meta::<Held>(areas).ok_or(CreateError::NoRecords)?,
        };
        write_empty!(Hard<O>, place);
        // SAFETY: written above, and not shared yet.
        let hard: &mut Hard<O> = unsafe { &mut *place.as_ptr() };
        hard.window = Window::reserve(host, most, pages(plan.window_bytes), plan.wall)?;
        let state = hard.state.get_mut();
        if !state.places.init(hard.window.extent(), host) {
            hard.window.unmap_unused();
            return Err(CreateError::NoRecords);
        }
        state.draw = Draw::new(draw);
        // A quarter of the mappings that the process may have.
        state.granules = Granules::new(host.os().mappings_max() / 4);
        state.quarantine = Quarantine::new(ring, pages(plan.quarantine_bytes_max));
        state.warm.allow(pages(plan.cache_bytes_max));
        hard.host = host;
        hard.canary = Canary::new(canary);
        // Each room splits a mapping into three, so it adds two. Three quarters of the limit are left to the program.
        hard.rooms_max = host.os().mappings_max() / 8;
        // SAFETY: the link was allocated for this. The allocator stays valid until `drop` unregisters it.
        unsafe { fork::register(place, link) };
        Ok(Self { hard: place })
    }

    /// Allocates memory for a value in the allocator's records, for as long as it lives.
    pub(crate) fn alloc_place<T>(&self) -> Option<NonNull<T>> {
        self.host.alloc_place()
    }
}

impl<O: Os> State<O> {
    const EMPTY: Self = Self {
        places: Places::EMPTY,
        granules: Granules::new(0),
        draw: Draw::new([0; 2]),
        quarantine: Quarantine::new(&mut [], 0),
        warm: Warm::new(0),
        keep: None,
        live: 0,
        live_pages: 0,
        retired_pages: 0,
        purged: 0,
        hits: 0,
    };
}

impl<O: Os> Hard<O> {
    empty_value!(Self {
        host: Host::NOWHERE,
        window: Window::nothing(),
        canary: Canary::new([0; 2]),
        rooms_max: 0,
        state: Mutex::new(State::EMPTY),
        frees: AtomicU64::new(0),
        asked: AtomicU64::new(0),
        failed: AtomicU64::new(0),
    });
}

/// Returns the keys of the canaries and of the addresses.
fn keys(os: &impl Os, seed: Option<u64>) -> Result<[[u64; 2]; 2], CreateError> {
    if let Some(seed) = seed {
        return Ok([[seed, 0], [seed, 1]]);
    }
    let mut keys = [[0; 2]; 2];
    for key in &mut keys {
        *key =
            os.random().map_err(|errno| CreateError::CallFailed { call: Call::Random, errno, bytes: 16 })?;
    }
    Ok(keys)
}

impl<O: Os> Deref for Owned<O> {
    type Target = Hard<O>;

    #[inline(always)]
    fn deref(&self) -> &Hard<O> {
        // SAFETY: it lives until its owner is dropped.
        unsafe { self.hard.as_ref() }
    }
}

impl<O: Os> Drop for Owned<O> {
    fn drop(&mut self) {
        fork::unregister(self.hard);
        let host = self.host;
        // SAFETY: by the contract of `Vmalloc` no area is in use; no other reference to the allocator exists.
        unsafe { self.window.unmap() };
        // All else that the allocator has is in the records.
        const { assert!(!core::mem::needs_drop::<Hard<O>>()) };
        // SAFETY: the allocator was the last value in these records.
        unsafe { host.close() };
    }
}
