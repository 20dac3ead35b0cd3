//! A hardened allocator that somebody owns: made in its own records, gone with its owner.

use super::granules::Granules;
use super::places::Places;
use super::quarantine::{Held, Quarantine};
use super::secret::{Canary, Draw};
use super::warm::Warm;
use super::window::{Wall, Window};
use super::{Hard, State};
use crate::PAGE_BYTES;
use crate::arena::room;
use crate::error::CreateError;
use crate::fork;
use crate::lock::Mutex;
use crate::os::{Call, Os};
use crate::records::{Host, empty_value, write_empty};
use crate::vmalloc::{Hardened, Walls};
use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use va_base::Platform;

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
    /// The method by which access is denied; `None` for the best that the system has.
    pub(crate) wall: Option<Wall>,
    /// In place of what the system gives for keys.
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

/// The allocator and the right to end it.
pub(crate) struct Owned<O: Os> {
    hard: NonNull<Hard<O>>,
}

// SAFETY: it is shared by its lock and atomics, whoever owns it.
unsafe impl<O: Os> Send for Owned<O> {}
// SAFETY: as before.
unsafe impl<O: Os> Sync for Owned<O> {}

impl<O: Os> Owned<O> {
    /// Makes one on a system.
    pub(crate) fn new(os: O, plan: Plan) -> Result<Self, CreateError> {
        let most = room(&os, plan.arena_bytes_max)?;
        fork::prepare_for_forks();
        let host = Host::open(os).map_err(|(call, errno)| CreateError::Refused { call, errno, bytes: 0 })?;
        let made = Self::make(host, most, plan);
        if made.is_err() {
            // SAFETY: what lived there is gone.
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
        // SAFETY: written a moment ago, and nobody else knows it.
        let hard: &mut Hard<O> = unsafe { &mut *place.as_ptr() };
        hard.window = Window::reserve(host, most, pages(plan.window_bytes), plan.wall)?;
        let state = hard.state.get_mut();
        if !state.places.init(hard.window.extent(), host) {
            // SAFETY: nobody uses it yet.
            unsafe { hard.window.unmap() };
            return Err(CreateError::NoRecords);
        }
        state.draw = Draw::new(draw);
        // A quarter of what there may be.
        state.granules = Granules::new(host.os().mappings_max() / 4);
        state.quarantine = Quarantine::new(ring, pages(plan.quarantine_bytes_max));
        state.warm.allow(pages(plan.cache_bytes_max));
        hard.host = host;
        hard.canary = Canary::new(canary);
        // Each splits a mapping into three; three quarters of what there may be are others'.
        hard.rooms_max = host.os().mappings_max() / 8;
        fork::register(place, link);
        Ok(Self { hard: place })
    }

    /// Takes a place in its own records, for as long as it lives.
    pub(crate) fn alloc_place<T>(&self) -> Option<NonNull<T>> {
        self.host.alloc_place()
    }
}

impl<O: Os> State<O> {
    empty_value!(Self {
        #[cfg(not(loom))]
        places: Places::EMPTY,
        #[cfg(loom)]
        places: Places::empty(),
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
    });
}

impl<O: Os> Hard<O> {
    empty_value!(Self {
        host: Host::NOWHERE,
        window: Window::nothing(),
        canary: Canary::new([0; 2]),
        rooms_max: 0,
        #[cfg(not(loom))]
        state: Mutex::new(State::EMPTY),
        #[cfg(loom)]
        state: Mutex::new(State::empty()),
        frees: AtomicU64::new(0),
        asked: AtomicU64::new(0),
        refused: AtomicU64::new(0),
    });
}

/// The keys of the canaries and of the places.
fn keys(os: &impl Os, seed: Option<u64>) -> Result<[[u64; 2]; 2], CreateError> {
    if let Some(seed) = seed {
        return Ok([[seed, 0], [seed, 1]]);
    }
    let mut keys = [[0; 2]; 2];
    for key in &mut keys {
        *key = os.random().map_err(|errno| CreateError::Refused { call: Call::Random, errno, bytes: 16 })?;
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
        // SAFETY: whoever refers to an area of it has broken his promise; nobody else refers to the allocator.
        unsafe { self.window.unmap() };
        // SAFETY: the owner goes, and this is the only time.
        unsafe { self.hard.drop_in_place() };
        // SAFETY: the allocator was the last that lived there.
        unsafe { host.close() };
    }
}
