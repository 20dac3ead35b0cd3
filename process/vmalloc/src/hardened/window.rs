//! The memory of a hardened allocator: one reservation, in which everything but the areas is inaccessible.
//!
//! # Theory
//! ```text
//!   |  granules: 2 bytes each  |  tags: 8 bytes a page  |            window            |  not yet    one reservation
//!                                                       |..[#|==area==|#]....[#|=|#]...|                 # . no access
//! ```
//! A **room** is the pages of an area and an inaccessible page (a wall) on both sides. The method that denies access
//! depends on the kernel. **Markers** (`MADV_GUARD_INSTALL`, Linux 6.13) are stored in the page tables and split no
//! mapping, so millions are possible. Then granules of 32 KiB are opened and marked as a whole, and rooms open and
//! close in them; see [`granules`](super::granules). Other kernels need **protection** (`mprotect`): only open rooms
//! are accessible. Each of them splits a mapping, so their number is bounded.
//!
//! In both, closing a room releases its pages: its contents are gone before its addresses are reused.
//!
//! # Invariants
//! - **HD2 walled** a page of the window is accessible only while it is in an open room. (If the system fails to close
//!   a room, its pages are at least zeros. Such rooms are counted, and from then on a room that opens is cleared first.
//!   A retired room is closed as far as the system allows, and not written to. Between the two calls that open and mark
//!   a granule, all of it is accessible. Marking first would give the closed window around it page tables, which every
//!   fork copies.)
//!
//! # Locking
//! None. The window grows under the lock of the allocator.

mod changed;
mod contents;
mod released;

use super::granules::{Closed, Entry, GRANULE_PAGES, Granule, TABLE, inner};
use super::tag::{PAGES_MAX, Tag};
use crate::PAGE_BYTES;
use crate::error::CreateError;
use crate::frontier::Frontier;
use core::ops::Range;
use core::ptr::{NonNull, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use released::tags_bytes;
use va_base::VaRange;
use vmalloc_os::os::{Call, Errno, Os, Span};
use vmalloc_os::records::Host;

/// The sizes of a reservation that are tried, as powers of two of bytes, the largest first.
const LADDER_LOG2: [u32; 9] = [40, 38, 36, 34, 32, 30, 28, 26, 25];
const LEAST_BYTES: usize = 1 << LADDER_LOG2[LADDER_LOG2.len() - 1];
const BASE_ALIGN: usize = 2 << 20;
const TAG_BYTES: usize = 8;
const GRANULE_BYTES: usize = 2;
/// Pages of the smallest window.
const LEAST_PAGES: u64 = (LEAST_BYTES / PAGE_BYTES) as u64;
/// Pages whose residence one system call reports.
const ASKED: usize = 512;

const _: () = assert!((1u64 << LADDER_LOG2[0]) / PAGE_BYTES as u64 <= PAGES_MAX);

/// The method that denies access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wall {
    /// Markers in the page tables.
    Markers,
    /// The protection of mappings.
    Protection,
}

/// Pages that their holder owns exclusively, and the page on each side of them. Dropping a room leaks its addresses.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a room that is dropped is lost"]
pub(crate) struct Room {
    page: u64,
    pages: u64,
}

impl Room {
    /// Claims a room.
    ///
    /// # Safety
    /// Its pages, and those beside it, are in the window, and their previous owner has released them.
    pub(crate) unsafe fn claim(page: u64, pages: u64) -> Self {
        Self { page, pages }
    }

    /// Returns the first page.
    pub(crate) fn page(&self) -> u64 {
        self.page
    }

    /// Returns the number of usable pages.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// Adds the pages above it.
    pub(crate) fn extend(&mut self, above: Self) {
        self.pages += above.pages;
    }

    /// Returns the usable pages.
    pub(super) fn all(&self) -> Range<u64> {
        self.page..self.page + self.pages
    }

    /// Returns all addresses, walls included.
    pub(crate) fn range(&self) -> VaRange {
        Self::range_of(self.page, self.pages)
    }

    /// Returns all addresses of a room with these pages.
    pub(crate) fn range_of(page: u64, pages: u64) -> VaRange {
        VaRange::from_pages(page - 1, page + pages + 1).unwrap_or_default()
    }

    pub(super) fn span(&self) -> Span {
        Span { at: address(self.page), bytes: address(self.pages) }
    }
}

/// Returns the address of a page, or the bytes of a number of pages.
pub(crate) const fn address(page: u64) -> usize {
    page as usize * PAGE_BYTES
}

fn pointer(at: usize) -> *mut u8 {
    with_exposed_provenance_mut(at)
}

#[cfg(test)]
std::thread_local! {
    /// Called by this thread between the look at a granule and the use of a tag.
    pub(super) static AT_TAG: core::cell::RefCell<Option<Box<dyn Fn()>>> = const { core::cell::RefCell::new(None) };
}

/// The memory of a hardened allocator.
pub(crate) struct Window<O: Os> {
    // Constant after `reserve`.
    host: Host<O>,
    reserved: Span,
    tags: usize,
    granules: usize,
    first: u64,
    pages: u64,
    wall: Wall,
    // Atomic; grows under the lock of the allocator.
    /// Pages of the window, from the first.
    open: Frontier,
    // Atomic, independent of other fields.
    /// A hint: set while no granules are to be closed that would split a mapping. Protocol PR-HINT.
    crowded: AtomicBool,
    /// Set once pages outside of rooms may be accessible, because the system failed to close them. Protocol PR-LOCK.
    leaky: AtomicBool,
    /// The addresses above the window are released. Changed under the lock of the allocator. Protocol PR-LOCK.
    closed: AtomicBool,
}

impl<O: Os> Window<O> {
    /// A window without pages.
    pub(crate) const fn nothing() -> Self {
        Self {
            host: Host::NOWHERE,
            reserved: Span { at: 0, bytes: 0 },
            tags: 0,
            granules: 0,
            first: 0,
            pages: 0,
            wall: Wall::Markers,
            open: Frontier::none(),
            crowded: AtomicBool::new(false),
            leaky: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        }
    }

    /// Reserves at most `most` bytes, at least those of the smallest window, and opens at most `pages` of them.
    pub(crate) fn reserve(
        host: Host<O>,
        most: usize,
        pages: u64,
        wall: Option<Wall>,
    ) -> Result<Self, CreateError> {
        let mut failed = Errno::NOMEM;
        let own = Some(most & !(BASE_ALIGN - 1))
            .filter(|&bytes| bytes >= LEAST_BYTES && bytes < 1 << LADDER_LOG2[0]);
        let ladder = LADDER_LOG2.iter().map(|log2| 1usize << log2).filter(|&bytes| bytes <= most);
        for bytes in own.into_iter().chain(ladder) {
            let count = (bytes / PAGE_BYTES) as u64;
            let tags = tags_bytes(count);
            let granules = granules_bytes(count);
            let whole = granules + tags + bytes + BASE_ALIGN;
            let at = match host.os().reserve(whole) {
                Ok(at) => at,
                Err(errno) => {
                    failed = errno;
                    continue;
                }
            };
            let base = (at + granules + tags).next_multiple_of(BASE_ALIGN);
            let mut window = Self {
                host,
                reserved: Span { at, bytes: whole },
                tags: base - tags,
                granules: base - tags - granules,
                first: (base / PAGE_BYTES) as u64,
                pages: count,
                wall: wall.unwrap_or(Wall::Markers),
                open: Frontier::none(),
                crowded: AtomicBool::new(false),
                leaky: AtomicBool::new(false),
                closed: AtomicBool::new(false),
            };
            return match window.set_up(pages, wall) {
                Ok(()) => Ok(window),
                Err(error) => {
                    window.unmap_unused();
                    Err(error)
                }
            };
        }
        Err(CreateError::CallFailed { call: Call::Reserve, errno: failed, bytes: LEAST_BYTES })
    }

    /// Makes the window as large as the system allows, and detects the available walls.
    fn set_up(&mut self, pages: u64, wall: Option<Wall>) -> Result<(), CreateError> {
        let failure =
            |(errno, want)| CreateError::CallFailed { call: Call::Commit, errno, bytes: address(want) };
        if wall.is_none() && self.is_locked() {
            self.wall = Wall::Protection;
        }
        let mut want = pages.clamp(LEAST_PAGES, self.pages);
        // Where writable memory is charged, the window may have to be smaller, since all its tags are charged.
        while let Err((errno, _)) = self.grow(want) {
            if want == LEAST_PAGES {
                return Err(failure((errno, want)));
            }
            want = (want / 2).max(LEAST_PAGES);
        }
        if wall.is_some() || self.wall == Wall::Protection {
            return Ok(());
        }
        let (os, around) = (self.host.os(), self.granules_span(&(0..TABLE)));
        // SAFETY: no room is at the first page, nor made yet. A core file has all of a marked mapping: so it is
        // separate.
        let _apart = unsafe { os.commit(around) };
        // SAFETY: as before.
        if unsafe { os.guard(Span { bytes: PAGE_BYTES, ..around }) }.is_err() {
            self.wall = Wall::Protection;
        }
        // SAFETY: as before. If it fails, there are two more mappings.
        let _as_before = unsafe { os.reset(around) };
        Ok(())
    }

    /// Returns true if pages become resident as soon as they are accessible (`mlockall(MCL_FUTURE)`). A window would be
    /// populated as a whole, and locked memory cannot have markers.
    fn is_locked(&self) -> bool {
        let os = self.host.os();
        let probe = Span { at: address(self.first), bytes: PAGE_BYTES };
        // SAFETY: part of the reservation, which is not used yet.
        if unsafe { os.commit(probe) }.is_err() {
            return false;
        }
        let mut seen = [0];
        let locked = os.resident(probe, &mut seen).is_ok() && seen[0] & 1 != 0;
        // SAFETY: as before. If it fails, the first page is an accessible wall.
        let shut = unsafe { os.forbid(probe) }.is_ok();
        locked && shut
    }

    /// Grows the window to at least `want` pages, or to the whole reservation.
    pub(crate) fn grow(&self, want: u64) -> Result<(), (Errno, u64)> {
        let have = self.window_pages();
        let want = want.next_multiple_of(TABLE * GRANULE_PAGES).min(self.pages);
        if want <= have {
            return Ok(());
        }
        if self.is_closed() {
            return Err((Errno::NOMEM, want));
        }
        // From then on the tags of these pages are readable.
        self.open.advance(want, || self.open_tags(have, want)).map_err(|errno| (errno, want))
    }

    /// Makes the tags and the granules' states of the pages from `have` to `want` accessible.
    fn open_tags(&self, have: u64, want: u64) -> Result<(), Errno> {
        for (at, bytes) in [(self.tags, tags_bytes as fn(u64) -> usize), (self.granules, granules_bytes)] {
            let span = Span { at: at + bytes(have), bytes: bytes(want) - bytes(have) };
            if span.bytes > 0 {
                // SAFETY: the tags, or the granules' states, of the added pages.
                unsafe { self.host.os().commit(span) }?;
            }
        }
        Ok(())
    }

    pub(crate) fn wall(&self) -> Wall {
        self.wall
    }

    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Returns the pages of the window.
    pub(crate) fn window_pages(&self) -> u64 {
        self.open.pages()
    }

    /// Returns the range to which the window may grow.
    pub(crate) fn extent(&self) -> VaRange {
        VaRange::from_pages(self.first, self.first + self.pages).unwrap_or_default()
    }

    /// Returns the page of an address in the reservation, and the address's offset in it.
    pub(crate) fn locate(&self, at: usize) -> Option<(u64, usize)> {
        let page = (at / PAGE_BYTES) as u64;
        (page.wrapping_sub(self.first) < self.pages).then_some((page, at % PAGE_BYTES))
    }

    /// Returns the tag of a page, if the page is in the window. The caller owns the area at the page, or prevents that
    /// tags are unmapped meanwhile (`Hard::tags_stay`).
    pub(crate) fn tag(&self, page: u64) -> Option<&AtomicU64> {
        let index = page.wrapping_sub(self.first);
        if index >= self.window_pages() || self.is_released(page) {
            return None;
        }
        #[cfg(test)]
        AT_TAG.with_borrow(|at_tag| at_tag.iter().for_each(|at_tag| at_tag()));
        let place = with_exposed_provenance_mut::<u64>(self.tags + index as usize * TAG_BYTES);
        // SAFETY: in the window, and not unmapped, by this function's contract: readable and writable, aligned, an
        // atomic only.
        Some(unsafe { AtomicU64::from_ptr(place) })
    }

    /// Returns the tag of a page.
    pub(crate) fn get(&self, page: u64) -> Tag {
        // Acquire pairs with `put`.
        Tag::from_bits(self.tag(page).map_or(0, |place| place.load(Ordering::Acquire)))
    }

    /// Stores the tag of a page.
    pub(crate) fn put(&self, page: u64, tag: Tag) {
        if let Some(place) = self.tag(page) {
            // Release: a thread that loads the tag as live also sees the earlier writes to the area's pages.
            place.store(tag.bits(), Ordering::Release);
        }
    }

    /// Returns the number of granules of the window.
    pub(super) fn granules(&self) -> u64 {
        self.window_pages() / GRANULE_PAGES
    }

    pub(super) fn set_crowded(&self, crowded: bool) {
        self.crowded.store(crowded, Ordering::Relaxed);
    }

    /// Returns the state of a granule, which is closed if it is not in the window.
    pub(super) fn granule(&self, at: u64) -> Granule {
        Granule::from_bits(self.granule_place(at).map_or(0, |place| place.load(Ordering::Relaxed)))
    }

    pub(super) fn is_open(&self, at: u64) -> bool {
        self.granule(at).is_open()
    }

    pub(super) fn set_granule(&self, at: u64, granule: Granule) {
        if let Some(place) = self.granule_place(at) {
            place.store(granule.bits(), Ordering::Relaxed);
        }
    }

    fn granule_place(&self, at: u64) -> Option<&AtomicU16> {
        if at >= self.granules() {
            return None;
        }
        let place = with_exposed_provenance_mut::<u16>(self.granules + at as usize * GRANULE_BYTES);
        // SAFETY: in the window: readable and writable until the reservation is unmapped, aligned, an atomic only.
        Some(unsafe { AtomicU16::from_ptr(place) })
    }

    pub(super) fn granules_span(&self, all: &Range<u64>) -> Span {
        let page = self.first + all.start * GRANULE_PAGES;
        Span { at: address(page), bytes: address((all.end - all.start) * GRANULE_PAGES) }
    }

    /// Makes closed granules accessible.
    pub(super) fn open_granules(&self, all: &Range<u64>) -> Result<(), Errno> {
        // SAFETY: part of the reservation; no other room has these pages.
        unsafe { self.host.os().commit(self.granules_span(all)) }
    }

    /// Puts markers in granules without open rooms, except for the pages of `room`.
    pub(super) fn mark_granules(&self, all: &Range<u64>, room: Option<&Room>) -> Result<(), Errno> {
        let Span { at, bytes } = self.granules_span(all);
        let end = at + bytes;
        let room = room.map_or(Span { at: end, bytes: 0 }, Room::span);
        let (from, to) = (room.at.clamp(at, end), (room.at + room.bytes).clamp(at, end));
        for span in [Span { at, bytes: from - at }, Span { at: to, bytes: end - to }] {
            if span.bytes > 0 {
                // SAFETY: as before.
                unsafe { self.host.os().guard(span) }?;
            }
        }
        Ok(())
    }

    /// Closes granules without open rooms. Returns `false` if the system call fails, which leaves them unchanged.
    pub(super) fn close_granules(&self, all: &Range<u64>) -> bool {
        // SAFETY: as before.
        let closed = unsafe { self.host.os().reset(self.granules_span(all)) }.is_ok();
        if !closed {
            self.leaky.store(true, Ordering::Relaxed);
        }
        closed
    }

    /// Opens a room in open granules, with pages of zeros. On an error the caller must call [`close_unopened`](Self::close_unopened).
    pub(crate) fn open(&self, room: &mut Room, entry: Entry) -> Result<(), (Call, Errno)> {
        let os = self.host.os();
        if self.wall == Wall::Protection {
            // SAFETY: the caller owns the room exclusively.
            return unsafe { os.commit(room.span()) }.map_err(|errno| (Call::Commit, errno));
        }
        if entry == Entry::Marked {
            // SAFETY: as before.
            unsafe { os.unguard(room.span()) }.map_err(|errno| (Call::Unguard, errno))?;
        }
        // After a failed close, a stray write that should have faulted may have changed the room.
        // SAFETY: as before.
        if self.leaky.load(Ordering::Relaxed) && unsafe { os.discard(&[room.span()]) }.is_err() {
            self.write_zeros(room.span());
        }
        Ok(())
    }

    /// Closes an open room: its pages are released, and an access faults.
    pub(crate) fn close(&self, room: &mut Room) -> Closed {
        let os = self.host.os();
        if self.wall == Wall::Protection {
            self.empty(room.span());
            // SAFETY: the caller owns the room exclusively.
            return Closed::Whole { shut: unsafe { os.forbid(room.span()) }.is_ok() };
        }
        let own = inner(self, room);
        // A bundle needs all of its granules, so none of them is closed here.
        let is_bundled = own.clone().any(|at| self.granule(at).is_active());
        if own.is_empty() || is_bundled || self.crowded.load(Ordering::Relaxed) {
            return Closed::Whole { shut: self.mark(room.span()) };
        }
        // SAFETY: as before: no other room has a page in these granules.
        match unsafe { os.reset(self.granules_span(&own)) } {
            Ok(()) => Closed::Inner,
            Err(_) => Closed::Whole { shut: self.mark(room.span()) },
        }
    }

    /// Marks a span of a room, which releases its pages. If the system call fails, zeros it and returns `false`.
    pub(super) fn mark(&self, span: Span) -> bool {
        if span.bytes == 0 {
            return true;
        }
        // SAFETY: part of a room that the caller owns exclusively.
        let marked = unsafe { self.host.os().guard(span) }.is_ok();
        if !marked {
            self.empty(span);
            self.leaky.store(true, Ordering::Relaxed);
        }
        marked
    }

    /// Zeros a span of a room, by releasing its pages if the system call succeeds.
    fn empty(&self, span: Span) {
        // SAFETY: part of a room that the caller owns exclusively.
        if unsafe { self.host.os().discard(&[span]) }.is_err() {
            self.write_zeros(span);
        }
    }

    /// Closes a room that could not be opened, and was not written to.
    pub(crate) fn close_unopened(&self, room: &mut Room) {
        if self.wall == Wall::Markers {
            // If it fails, the room is accessible zeros.
            let _zeros = self.mark(room.span());
        } else {
            // SAFETY: the caller owns the room exclusively.
            let _zeros = unsafe { self.host.os().forbid(room.span()) };
        }
    }

    /// Zeros an open room.
    pub(crate) fn clear(&self, room: &mut Room) {
        self.write_zeros(room.span());
    }

    fn write_zeros(&self, span: Span) {
        // SAFETY: part of an open room that the caller owns exclusively.
        unsafe { pointer(span.at).write_bytes(0, span.bytes) };
    }

    /// Returns true if at least three quarters of a room's pages are resident, so that caching them is worthwhile.
    /// Releasing the pages of a sparse room is cheaper.
    pub(crate) fn is_full(&self, room: &Room) -> bool {
        let mut seen = [0; ASKED];
        let (mut done, mut full) = (0, 0);
        while done < room.pages {
            let part = (room.pages - done).min(ASKED as u64);
            let span = Span { at: address(room.page + done), bytes: address(part) };
            if self.host.os().resident(span, &mut seen[..part as usize]).is_err() {
                return false;
            }
            full += seen[..part as usize].iter().filter(|&byte| byte & 1 != 0).count() as u64;
            done += part;
            // The remaining pages cannot reach the threshold any more.
            if (full + room.pages - done) * 4 < room.pages * 3 {
                return false;
            }
        }
        true
    }

    /// Moves the pages of a room that is to be closed to a newly opened one of the same size. They are zeroed first, so
    /// that no owner reads another's data. Returns the number of resident pages there.
    pub(crate) fn move_zeroed(&self, from: &mut Room, to: &mut Room) -> u64 {
        debug_assert_eq!(from.pages, to.pages, "rooms of one size");
        let mut moved = 0;
        let mut done = 0;
        while done < from.pages {
            let part = (from.pages - done).min(ASKED as u64);
            let Some(count) = self.move_part(from, to, done, part) else { break };
            moved += count;
            done += part;
        }
        moved
    }

    /// Moves some of the pages, as [`move_zeroed`](Self::move_zeroed) does. Returns `None` if a system call fails.
    fn move_part(&self, from: &mut Room, to: &mut Room, done: u64, part: u64) -> Option<u64> {
        let os = self.host.os();
        let mut seen = [0; ASKED];
        let span = Span { at: address(from.page + done), bytes: address(part) };
        let seen = &mut seen[..part as usize];
        os.resident(span, seen).ok()?;
        let there = |byte: &u8| byte & 1 != 0;
        let (mut at, mut moved) = (0, 0);
        while at < seen.len() {
            let run = seen[at..].iter().take_while(|byte| there(byte)).count();
            if run == 0 {
                at += 1;
                continue;
            }
            let (page, pages) = (done + at as u64, run as u64);
            let span = Span { at: address(from.page + page), bytes: address(pages) };
            // SAFETY: pages of a room that the caller owns exclusively.
            unsafe { pointer(span.at).write_bytes(0, span.bytes) };
            // SAFETY: as before, and so is the other room; both are in the window.
            unsafe { os.move_pages(span, address(to.page + page)) }.ok()?;
            moved += pages;
            at += run;
        }
        Some(moved)
    }
}

/// Returns the bytes of the granules' states for that many pages.
fn granules_bytes(pages: u64) -> usize {
    (pages.div_ceil(GRANULE_PAGES) as usize * GRANULE_BYTES).next_multiple_of(PAGE_BYTES)
}

/// Turns a room into a live area: a pointer to the area.
pub(crate) fn into_pointer(room: Room, tag: Tag) -> NonNull<u8> {
    // SAFETY: no room is at page 0.
    unsafe { NonNull::new_unchecked(pointer(address(room.page) + tag.offset())) }
}
