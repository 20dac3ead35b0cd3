//! The hardened profile: mistakes with memory fault, or end the process with a diagnosis.
//!
//! # Theory
//! ```text
//!           random address                                free
//!   free  -----------------> room, open: live ---------------> closed: quarantine --- oldest evicted ---> free
//!                               ^                           |
//!                               |  the same size again      |  its pages, as zeros, moved to another address
//!                               +--------------------- warm room
//! ```
//! | mistake | what happens |
//! |---|---|
//! | a byte past the end, read or written | fault, if the area ends with its page, as its alignment and [resize] let it; else as the next row |
//! | bytes beside the area in its pages, written | the free checks the canary there, and aborts: offset of the first bad byte |
//! | a page or more past the end, or before the start | fault at the next page; farther away, too, except in another area or a warm room, which is zeroed again |
//! | use after free | fault while the area is in quarantine, and after that until its addresses are reused |
//! | double free, free of an address where no area begins | abort, with a diagnosis of the address |
//! | a read of another caller's data | impossible: a new area is zeros, except for the canary beside it |
//!
//! An area's addresses are used once, then stay in the [quarantine](quarantine). Its **pages** do not. Resident pages
//! are overwritten with zeros and moved to a room of the same size at another address, a **warm** room. The next caller
//! that requests this size gets it without a fault. So a pair costs a handful of system calls, and no page faults.
//! Pages that cannot be moved are released, and the next area of the size has page faults.
//!
//! An area that is [resized](resize) grows in place, or its pages move to a new room, and the old one is freed. Its end
//! may then be less than a page before the wall, with a canary in between.
//!
//! [Window](window) has the memory beside an area, [places](places) the choice of addresses, [secret](secret) the
//! random numbers, and [granules](granules) the accessible units of the window.
//!
//! # Invariants
//! - **HD1 first** a tag is live only at the first page of a live area, so one word decides whether a free is valid.
//! - **HD3 tiling** every range that the space has allocated is that of a live area or a warm room, in quarantine,
//!   retired, or in use by a call.
//!
//! SP3 and SP4 are invariants of the workspace (ARCHITECTURE.md). A caller's mistake ends the program here, and is not
//! an error.
//!
//! # Locking
//! One lock, for the addresses. System calls are made without it on the usual path of a pair. Under it granules are
//! opened and closed, which contain no pages but the ends of one large area. System calls are also made under it when
//! the window grows, when an area grows in place, when records are allocated, and when all warm rooms are closed. There
//! are up to 64 warm rooms, with a call or two each. They are closed by a trim, if addresses run out, and with
//! protection if mappings run out. A child of a fork leaks the addresses that other threads of its parent used at that
//! moment, and their pages.
//! # Source
//! Scudo's secondary allocator (areas at the end of their pages, a quarantine without access), FreeBSD's `memguard`
//! and Linux's KFENCE (`mm/kfence`: canaries beside objects, alternating ends) for detection. The moving of pages is
//! our own.

mod changed;
mod diagnosis;
mod fork;
mod granules;
mod info;
mod owned;
mod places;
mod quarantine;
mod released;
mod resize;
mod secret;
mod tag;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_granules;
#[cfg(test)]
mod tests_released;
#[cfg(test)]
mod tests_resize;
mod warm;
mod window;

pub(crate) use diagnosis::{Diagnosis, Fault};
pub(crate) use owned::{Owned, Plan};

use crate::PAGE_BYTES;
use crate::error::{AllocError, FreeError};
use crate::heap::probe;
use core::alloc::Layout;
use core::mem;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use granules::{Closed, Entry, Granules};
use places::{NoPlace, Places};
use quarantine::{Held, Quarantine};
use secret::{Canary, Draw};
use tag::{State as TagState, Tag};
use va_base::VaRange;
use vmalloc_os::lock::Mutex;
use vmalloc_os::os::Os;
use vmalloc_os::records::Host;
use warm::Warm;
use window::{Room, Wall, Window, address, into_pointer};

/// Ranges that are freed at once.
const BATCH: usize = 32;
/// Draws of an address before the next hole is taken.
const TRIES: u32 = 32;
/// The window has this many times its allocated pages, if the reservation allows it.
const SPARSE: u64 = 4;

/// A hardened allocator.
pub(crate) struct Hard<O: Os> {
    // Constant after `new`.
    host: Host<O>,
    window: Window<O>,
    canary: Canary,
    /// The most rooms that may be open at a time, if each splits a mapping.
    rooms_max: u64,
    // Under its lock.
    state: Mutex<State<O>>,
    // Atomic, independent of each other.
    /// All areas that were ever freed. A counter.
    frees: AtomicU64,
    /// Warm and purged pages when the memory of the system was read last. A counter.
    asked: AtomicU64,
    /// All rooms that the system failed to close. A counter.
    failed: AtomicU64,
}

/// The state of an allocator under its lock.
struct State<O: Os> {
    places: Places<O>,
    granules: Granules,
    draw: Draw,
    quarantine: Quarantine,
    warm: Warm,
    /// The range in which areas are placed once addresses were [released].
    keep: Option<[u64; 2]>,
    live: u64,
    live_pages: u64,
    /// Pages that are never reused, walls included.
    retired_pages: u64,
    purged: u64,
    hits: u64,
}

impl<O: Os> Hard<O> {
    /// Allocates an area of zeros.
    pub(crate) fn alloc(&self, layout: Layout) -> Result<NonNull<u8>, AllocError> {
        self.check_size(layout)?;
        let tag = Tag::live(layout.size(), layout.align());
        let room = self.take(layout, tag)?;
        Ok(self.begin(room, tag, tag))
    }

    /// Checks that an area of that size is possible.
    fn check_size(&self, layout: Layout) -> Result<(), AllocError> {
        let extent = self.window.extent().len_bytes() as usize;
        match layout.size() {
            0 => Err(AllocError::ZeroSize),
            size if size > extent => Err(no_space(layout, extent)),
            _ => Ok(()),
        }
    }

    /// Allocates an open room for the area of a tag.
    fn take(&self, layout: Layout, tag: Tag) -> Result<Room, AllocError> {
        probe(self.host.os(), tag.pages())?;
        self.take_room(layout, tag.pages())
    }

    /// Begins an area in an open room, after an area of the tag `old` that was there, or whose contents are there.
    fn begin(&self, mut room: Room, old: Tag, tag: Tag) -> NonNull<u8> {
        let pattern = self.canary.of(room.page());
        self.window.fill(&mut room, old, tag, pattern);
        self.window.put(room.page(), tag);
        into_pointer(room, tag)
    }

    fn take_room(&self, layout: Layout, pages: u64) -> Result<Room, AllocError> {
        let align = (layout.align() / PAGE_BYTES).max(1) as u64;
        let mut state = self.state.lock();
        if let Some(held) = state.warm.take(pages, align) {
            state.hits += 1;
            state.count_live(pages);
            drop(state);
            // SAFETY: the warm rooms owned it, and `take` removed it.
            let mut room = unsafe { Room::claim(held.page(), held.pages()) };
            // It was accessible, so a stray write may have changed it.
            self.window.clear(&mut room);
            return Ok(room);
        }
        if self.window.wall() == Wall::Protection && state.live + state.warm.rooms() >= self.rooms_max {
            self.cool(&mut state);
            if state.live >= self.rooms_max {
                return Err(AllocError::TooManyGuards { guards_max: self.rooms_max as usize });
            }
        }
        let mut rested = false;
        let (mut room, entry) = loop {
            let error = match self.new_room(&mut state, pages, align) {
                Ok(new) => break new,
                Err(error) => error,
            };
            let helps = match error {
                // Warm rooms and empty bundles hold memory and mappings.
                NoPlace::Failed(..) => !mem::replace(&mut rested, true) && self.rest(&mut state) != [0; 2],
                // First the cached rooms are released, then those in quarantine, the oldest first.
                _ => self.cool(&mut state) || self.relent(&mut state),
            };
            if !helps {
                return Err(no_room(layout, pages, error));
            }
        };
        state.count_live(pages);
        drop(state);
        if let Err(error) = self.window.open(&mut room, entry) {
            self.free_unopened(room);
            let mut state = self.state.lock();
            state.live -= 1;
            state.live_pages -= pages;
            let (call, errno) = error;
            return Err(no_room(layout, pages, NoPlace::Failed(call, errno)));
        }
        Ok(room)
    }

    /// Frees a room that could not be opened.
    fn free_unopened(&self, mut room: Room) {
        self.window.close_unopened(&mut room);
        let mut state = self.state.lock();
        self.leave(&mut state, &mut room, Closed::Whole { shut: true });
        self.free_range(&mut state, &room);
    }

    /// Allocates a room at a random address, with the state of its granules. On an error nothing has changed.
    fn new_room(&self, state: &mut State<O>, pages: u64, align: u64) -> Result<(Room, Entry), NoPlace> {
        let page = self.place(state, pages, align)?;
        // SAFETY: the space has just allocated it.
        let room = unsafe { Room::claim(page, pages) };
        if self.window.wall() == Wall::Protection {
            return Ok((room, Entry::Fresh));
        }
        match state.granules.enter(&self.window, &room) {
            Ok(entry) => Ok((room, entry)),
            Err((call, errno)) => {
                self.free_range(state, &room);
                Err(NoPlace::Failed(call, errno))
            }
        }
    }

    /// Removes a closed room from its granules, which closes the rest of it, and counts it if it is still accessible.
    fn leave(&self, state: &mut State<O>, room: &mut Room, closed: Closed) {
        let shut = match (self.window.wall(), closed) {
            (Wall::Markers, _) => state.granules.leave(&self.window, room, closed),
            (Wall::Protection, Closed::Whole { shut }) => shut,
            (Wall::Protection, Closed::Inner) => true,
        };
        // Checks HD2: a room that stays accessible is zeros, and is counted.
        if !shut {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Frees the addresses of a room.
    fn free_range(&self, state: &mut State<O>, room: &Room) {
        self.free_ranges(state, &[Held::new(room.page(), room.pages())]);
    }

    /// Frees the addresses of closed rooms.
    fn free_ranges(&self, state: &mut State<O>, rooms: &[Held]) {
        let range = |held: &Held| Room::range_of(held.page(), held.pages());
        if self.window.wall() == Wall::Markers {
            rooms.iter().for_each(|held| state.granules.count_freed(&self.window, range(held)));
        }
        state.places.free_ranges(rooms.iter().map(range));
    }

    /// Allocates a random address, after growing the window if necessary.
    fn place(&self, state: &mut State<O>, pages: u64, align: u64) -> Result<u64, NoPlace> {
        let want = (state.places.taken_pages() + pages + 2 + align).saturating_mul(SPARSE);
        if want > self.window.window_pages() {
            // In large steps. If that fails, the window keeps its size, and thus its entropy.
            let most = self.window.extent().len_bytes() / PAGE_BYTES as u64;
            let _full = self.window.grow(want.checked_next_power_of_two().unwrap_or(most).min(most));
        }
        let window = [self.window.first(), self.window.first() + self.window.window_pages()];
        let State { places, draw, granules, keep, .. } = state;
        let markers = self.window.wall() == Wall::Markers;
        // With too many edges, no draws: the room goes to the first hole.
        let crowded = markers && keep.is_none() && granules.is_crowded();
        let (mut range, mut tries) = (keep.unwrap_or(window), if crowded { 0 } else { TRIES });
        let bundled = match keep {
            None if markers => granules.take(&self.window, places, draw, pages, align),
            _ => None,
        };
        let page = match bundled {
            Some(taken) => taken?,
            None => loop {
                match places.take(draw, range, pages, align, tries) {
                    // What areas left elsewhere.
                    Err(_) if range != window => (range, tries) = (window, 0),
                    taken => break taken?,
                }
            },
        };
        self.count_used(granules, page - 1, page + pages + 1);
        Ok(page)
    }

    /// Counts pages that the space has allocated.
    fn count_used(&self, granules: &mut Granules, from: u64, end: u64) {
        if self.window.wall() == Wall::Markers
            && let Some(range) = VaRange::from_pages(from, end)
        {
            granules.count_used(&self.window, range);
        }
    }

    /// Frees the area that begins at an address.
    ///
    /// # Safety
    /// If an area begins there, no reference to it remains.
    pub(crate) unsafe fn free(&self, at: usize) -> Result<(), Fault> {
        // SAFETY: this function's contract.
        let (room, tag) = unsafe { self.claim(at) }?;
        self.check(&room, tag)?;
        self.retire(room, tag);
        Ok(())
    }

    /// Claims the live area that begins at an address. Of several concurrent callers one succeeds.
    ///
    /// # Safety
    /// As [`free`](Self::free).
    unsafe fn claim(&self, at: usize) -> Result<(Room, Tag), Fault> {
        let bad = || Fault::BadFree { address: at, known: self.diagnosis(at) };
        let (page, offset) = self.window.locate(at).ok_or_else(bad)?;
        let tag = self.claim_tag(page, offset).ok_or_else(bad)?;
        // SAFETY: the area was live, and only the claim that changed its tag succeeds (HD1).
        Ok((unsafe { Room::claim(page, tag.pages()) }, tag))
    }

    /// Claims the live area that begins at an offset of a page, by its tag.
    fn claim_tag(&self, page: u64, offset: usize) -> Option<Tag> {
        let _tags = self.tags_stay();
        let place = self.window.tag(page)?;
        let tag = Tag::from_bits(place.load(Ordering::Relaxed));
        if tag.state() != TagState::Live || tag.offset() != offset {
            return None;
        }
        let dead = tag.quarantined(self.frees.fetch_add(1, Ordering::Relaxed) + 1);
        // Checks HD1. Acquire: the writes of the area's owner happen before the following accesses to its pages.
        let take = |tag: &Tag| {
            place.compare_exchange(tag.bits(), dead.bits(), Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        // Another thread may mark a live area as changed at any time.
        [tag, tag.changed()].into_iter().find(take)
    }

    /// Checks the canary of an area, if it is readable.
    fn check(&self, room: &Room, tag: Tag) -> Result<(), Fault> {
        if tag.is_changed() {
            return Ok(());
        }
        match self.window.spoiled(room, tag, self.canary.of(room.page())) {
            None => Ok(()),
            Some(offset) => Err(Fault::Spoiled {
                address: address(room.page()) + tag.offset(),
                bytes: tag.requested_bytes(),
                offset,
            }),
        }
    }

    /// Closes the room of a freed area, and caches its pages in a warm room if that is worthwhile.
    fn retire(&self, mut room: Room, tag: Tag) {
        let pages = room.pages();
        if tag.is_changed() && !self.window.renew(&mut room) {
            return self.retire_changed(room);
        }
        let keeps = !tag.is_changed() && self.may_keep(&room);
        let mut next = if keeps { self.next_room(pages) } else { None };
        let moved = next.as_mut().map_or(0, |next| self.window.move_zeroed(&mut room, next));
        let closed = self.window.close(&mut room);
        if let Some(mut unused) = next.take_if(|_| moved == 0) {
            self.close_and_free(&mut unused);
        }
        let mut state = self.state.lock();
        self.leave(&mut state, &mut room, closed);
        state.live -= 1;
        state.live_pages -= pages;
        state.purged += pages - moved;
        self.let_in(&mut state, Held::new(room.page(), pages));
        let mut surplus = None;
        if let Some(next) = next {
            surplus = state.warm.push(Held::new(next.page(), pages));
        }
        drop(state);
        while let Some(held) = surplus {
            self.cool_one(held);
            surplus = self.state.lock().warm.surplus();
        }
        self.look_around();
    }

    /// Returns true if the pages of a room can and should be cached.
    fn may_keep(&self, room: &Room) -> bool {
        self.window.wall() == Wall::Markers
            && self.host.os().can_move()
            && self.state.lock().warm.admits(room.pages())
            && self.window.is_full(room)
    }

    /// Allocates an open room of that size at another address, for pages that are to be cached.
    fn next_room(&self, pages: u64) -> Option<Room> {
        let mut state = self.state.lock();
        let (mut room, entry) = self.new_room(&mut state, pages, 1).ok()?;
        drop(state);
        if self.window.open(&mut room, entry).is_ok() {
            return Some(room);
        }
        self.free_unopened(room);
        None
    }

    /// Closes an open room that no caller owns, and frees its addresses.
    fn close_and_free(&self, room: &mut Room) {
        let closed = self.window.close(room);
        let mut state = self.state.lock();
        self.leave(&mut state, room, closed);
        self.free_range(&mut state, room);
    }

    /// Adds a closed room to the quarantine, and releases the rooms that it evicts.
    fn let_in(&self, state: &mut State<O>, held: Held) {
        let pages = held.pages() + 2;
        if !state.quarantine.admits(pages) {
            return self.release(state, &[held]);
        }
        while self.evict(state, pages) == BATCH {}
        state.quarantine.push(Held::new(held.page(), pages));
    }

    /// Releases up to [`BATCH`] rooms that the quarantine has no room for beside `pages`, and returns their number.
    fn evict(&self, state: &mut State<O>, pages: u64) -> usize {
        let mut out = [Held::new(0, 0); BATCH];
        let mut count = 0;
        while count < BATCH
            && let Some(old) = state.quarantine.overflow(pages)
        {
            out[count] = Held::new(old.page(), old.pages() - 2);
            count += 1;
        }
        self.release(state, &out[..count]);
        count
    }

    /// Releases the addresses of closed rooms for reuse.
    fn release(&self, state: &mut State<O>, rooms: &[Held]) {
        if rooms.is_empty() {
            return;
        }
        for held in rooms {
            if let Some(place) = self.window.tag(held.page()) {
                place.fetch_or(tag::RELEASED, Ordering::Relaxed);
            }
        }
        self.free_ranges(state, rooms);
    }

    /// Closes the warm rooms. Returns `false` if there were none.
    fn cool(&self, state: &mut State<O>) -> bool {
        let mut any = false;
        while let Some(held) = state.warm.pop() {
            // SAFETY: the warm rooms owned it, and `pop` removed it.
            let mut room = unsafe { Room::claim(held.page(), held.pages()) };
            state.purged += held.pages();
            any = true;
            let closed = self.window.close(&mut room);
            self.leave(state, &mut room, closed);
            self.free_range(state, &room);
        }
        any
    }

    /// Closes a room that was warm.
    fn cool_one(&self, held: Held) {
        // SAFETY: the warm rooms owned it, and it was removed from them.
        let mut room = unsafe { Room::claim(held.page(), held.pages()) };
        self.close_and_free(&mut room);
        self.state.lock().purged += held.pages();
    }

    /// Releases the oldest rooms of the quarantine early. Returns `false` if it is empty.
    fn relent(&self, state: &mut State<O>) -> bool {
        self.evict(state, u64::MAX >> 1) > 0
    }

    /// Returns the tag of the live area that begins at an address.
    pub(crate) fn live(&self, at: usize) -> Result<Tag, FreeError> {
        let Some((page, offset)) = self.window.locate(at) else {
            return Err(FreeError::NotOurs { address: at });
        };
        let tag = self.tag_of(page);
        match tag.state() {
            TagState::Live if tag.offset() == offset => Ok(tag),
            TagState::Quarantined | TagState::Released => {
                Err(FreeError::AlreadyFree { address: at, bytes: address(tag.pages()) })
            }
            TagState::Live | TagState::Never => Err(FreeError::NoArea { address: at }),
        }
    }

    /// Returns the state of an address, for a diagnosis. O(1), under the lock.
    pub(crate) fn diagnosis(&self, at: usize) -> Diagnosis {
        let Some((page, _)) = self.window.locate(at) else { return Diagnosis::Outside };
        let frees = self.frees.load(Ordering::Relaxed);
        let state = self.state.lock();
        let around = state.places.around(page);
        // The area that contains the page comes first, then a former one that began there.
        let area = around.map(|range| range.start().page_floor() + 1);
        for first in area.into_iter().chain([page]) {
            let tag = self.window.get(first);
            let (pages_at, bytes) = (address(first), address(tag.pages()));
            match tag.state() {
                TagState::Live if Some(first) == area => {
                    return Diagnosis::Live { start: pages_at + tag.offset(), bytes: tag.requested_bytes() };
                }
                TagState::Quarantined if Some(first) == area => {
                    return Diagnosis::Quarantined { pages_at, bytes, frees: tag.age(frees) };
                }
                TagState::Released if first == page => {
                    return Diagnosis::Released { bytes, frees: tag.age(frees) };
                }
                TagState::Live | TagState::Quarantined | TagState::Released | TagState::Never => {}
            }
        }
        Diagnosis::Never
    }
}

impl<O: Os> State<O> {
    fn count_live(&mut self, pages: u64) {
        self.live += 1;
        self.live_pages += pages;
    }
}

fn no_room(layout: Layout, pages: u64, why: NoPlace) -> AllocError {
    match why {
        NoPlace::Full { largest_bytes } => no_space(layout, largest_bytes),
        NoPlace::NoRecords => AllocError::NoRecords,
        NoPlace::Failed(call, errno) => AllocError::CallFailed { call, errno, bytes: address(pages) },
    }
}

fn no_space(layout: Layout, largest_bytes: usize) -> AllocError {
    AllocError::NoSpace { requested_bytes: layout.size(), align_bytes: layout.align(), largest_bytes }
}
