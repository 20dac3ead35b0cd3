//! The memory of a hardened allocator: one reservation, of which everything is a wall that is not an area.
//!
//! # Theory
//! ```text
//!   |  granules: 4 bytes each  |  tags: 8 bytes a page  |            window            |  not yet        one reservation
//!                                                       |..[#|==area==|#]....[#|=|#]...|                 # . no access
//! ```
//! A **room** is the pages of an area and a page without access on both sides. How access is denied, the
//! kernel decides: **markers** (`MADV_GUARD_INSTALL`, Linux 6.13) live in the page tables and split no
//! mapping, so that there may be millions. Granules of 128 KiB are opened and marked as a whole then, in
//! which rooms open and close; see [`granules`](super::granules). Elsewhere it is **protection**
//! (`mprotect`): nothing is accessible but open rooms, each of which splits a mapping, so they are bounded.
//!
//! To close a room drops its pages, in both: what was in it is gone before anybody can have its addresses.
//!
//! # Invariants
//! - **HD2 walled** a page of the window can be touched only while it is in an open room. (Where the system
//!   refuses to close a room, its pages are zeros at least. Such rooms are counted, and from then on a room
//!   that opens is cleared first. A retired room is closed as far as the system allows, and not written to.
//!   For the moment between the two calls that open and mark a granule, all of it can be touched. To mark
//!   first would give the closed window around it pages of its own to account for, which every fork copies.)
//!
//! # Locking
//! None. The window grows under the lock of the allocator.

mod released;

use super::granules::{Closed, Entry, GRANULE_PAGES, Granule, TABLE, inner};
use super::tag::{PAGES_MAX, Tag};
use crate::PAGE_BYTES;
use crate::error::CreateError;
use crate::os::{Call, Errno, Os, Span};
use crate::records::Host;
use core::ops::Range;
use core::ptr::{NonNull, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use released::tags_bytes;
use va_base::VaRange;

/// The sizes that are tried, as powers of two of bytes, the largest first.
const LADDER_LOG2: [u32; 9] = [40, 38, 36, 34, 32, 30, 28, 26, 25];
const LEAST_BYTES: usize = 1 << LADDER_LOG2[LADDER_LOG2.len() - 1];
const BASE_ALIGN: usize = 2 << 20;
const TAG_BYTES: usize = 8;
const GRANULE_BYTES: usize = 4;
/// Pages of the smallest window.
const LEAST_PAGES: u64 = (LEAST_BYTES / PAGE_BYTES) as u64;
/// Pages that are asked about at a time.
const ASKED: usize = 512;

const _: () = assert!((1u64 << LADDER_LOG2[0]) / PAGE_BYTES as u64 <= PAGES_MAX);

/// The method by which access is denied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wall {
    /// By markers in the page tables.
    Markers,
    /// By the protection of mappings.
    Protection,
}

/// Pages that nobody else has, and the page on each side of them. Whoever drops one loses the addresses.
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
    /// Its pages, and those beside it, are in the window, and were taken from whoever had them.
    pub(crate) unsafe fn claim(page: u64, pages: u64) -> Self {
        Self { page, pages }
    }

    /// The first page.
    pub(crate) fn page(&self) -> u64 {
        self.page
    }

    /// Pages that can be used.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// The pages that can be used.
    pub(super) fn all(&self) -> Range<u64> {
        self.page..self.page + self.pages
    }

    /// All addresses, walls included.
    pub(crate) fn range(&self) -> VaRange {
        VaRange::from_pages(self.page - 1, self.page + self.pages + 1).unwrap_or_default()
    }

    pub(super) fn span(&self) -> Span {
        Span { at: address(self.page), bytes: address(self.pages) }
    }
}

/// The address of a page, or the bytes of a number of pages.
pub(crate) const fn address(page: u64) -> usize {
    page as usize * PAGE_BYTES
}

fn pointer(at: usize) -> *mut u8 {
    with_exposed_provenance_mut(at)
}

/// The memory.
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
    open: AtomicU64,
    // Atomic, alone.
    /// Nothing had better be closed that splits a mapping. Hint only.
    crowded: AtomicBool,
    /// Pages of no room may be accessible: the system refused to close them.
    leaky: AtomicBool,
    /// What is above the window is released. Changed under the lock of the allocator.
    closed: AtomicBool,
}

impl<O: Os> Window<O> {
    /// One without pages.
    pub(crate) const fn nothing() -> Self {
        Self {
            host: Host::NOWHERE,
            reserved: Span { at: 0, bytes: 0 },
            tags: 0,
            granules: 0,
            first: 0,
            pages: 0,
            wall: Wall::Markers,
            open: AtomicU64::new(0),
            crowded: AtomicBool::new(false),
            leaky: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        }
    }

    /// Reserves at most `most` bytes, which are at least those of the smallest, and opens a window of at most `pages`.
    pub(crate) fn reserve(
        host: Host<O>,
        most: usize,
        pages: u64,
        wall: Option<Wall>,
    ) -> Result<Self, CreateError> {
        let mut refused = Errno::NOMEM;
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
                    refused = errno;
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
                open: AtomicU64::new(0),
                crowded: AtomicBool::new(false),
                leaky: AtomicBool::new(false),
                closed: AtomicBool::new(false),
            };
            return match window.set_up(pages, wall) {
                Ok(()) => Ok(window),
                Err(error) => {
                    // SAFETY: nobody uses it yet.
                    unsafe { window.unmap() };
                    Err(error)
                }
            };
        }
        Err(CreateError::Refused { call: Call::Reserve, errno: refused, bytes: LEAST_BYTES })
    }

    /// Makes a window as large as is granted, and finds out what walls there are.
    fn set_up(&mut self, pages: u64, wall: Option<Wall>) -> Result<(), CreateError> {
        let refusal =
            |(errno, want)| CreateError::Refused { call: Call::Commit, errno, bytes: address(want) };
        if wall.is_none() && self.is_locked() {
            self.wall = Wall::Protection;
        }
        let mut want = pages.clamp(LEAST_PAGES, self.pages);
        // Where what can be written is charged, less: there are tags for all of it.
        while let Err((errno, _)) = self.grow(want) {
            if want == LEAST_PAGES {
                return Err(refusal((errno, want)));
            }
            want = (want / 2).max(LEAST_PAGES);
        }
        if wall.is_some() || self.wall == Wall::Protection {
            return Ok(());
        }
        let (os, around) = (self.host.os(), self.granules_span(&(0..TABLE)));
        // SAFETY: no room is at the first page, nor made yet. Apart, since a core file has all of a marked mapping.
        let _apart = unsafe { os.commit(around) };
        // SAFETY: as before.
        if unsafe { os.guard(Span { bytes: PAGE_BYTES, ..around }) }.is_err() {
            self.wall = Wall::Protection;
        }
        // SAFETY: as before. If it is refused, there are two mappings more.
        let _as_before = unsafe { os.reset(around) };
        Ok(())
    }

    /// Tells whether pages are there as soon as they can be touched (`mlockall(MCL_FUTURE)`): a window would be populated as a whole, and
    /// there are no markers in what is locked.
    fn is_locked(&self) -> bool {
        let os = self.host.os();
        let probe = Span { at: address(self.first), bytes: PAGE_BYTES };
        // SAFETY: part of the reservation, which nobody uses yet.
        if unsafe { os.commit(probe) }.is_err() {
            return false;
        }
        let mut seen = [0];
        let locked = os.resident(probe, &mut seen).is_ok() && seen[0] & 1 != 0;
        // SAFETY: as before. If it is refused, the first page is a wall that can be touched.
        let shut = unsafe { os.forbid(probe) }.is_ok();
        locked && shut
    }

    /// Makes the window at least `want` pages, or as many as there are.
    pub(crate) fn grow(&self, want: u64) -> Result<(), (Errno, u64)> {
        let have = self.window_pages();
        let want = want.next_multiple_of(TABLE * GRANULE_PAGES).min(self.pages);
        if want <= have {
            return Ok(());
        }
        if self.is_closed() {
            return Err((Errno::NOMEM, want));
        }
        let os = self.host.os();
        for (at, bytes) in [(self.tags, tags_bytes as fn(u64) -> usize), (self.granules, granules_bytes)] {
            let span = Span { at: at + bytes(have), bytes: bytes(want) - bytes(have) };
            if span.bytes > 0 {
                // SAFETY: what is known of the pages and of the granules that are added.
                unsafe { os.commit(span) }.map_err(|errno| (errno, want))?;
            }
        }
        // Release pairs with the load of `tag`: the tags up to there are readable.
        self.open.store(want, Ordering::Release);
        Ok(())
    }

    pub(crate) fn wall(&self) -> Wall {
        self.wall
    }

    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Pages of the window.
    pub(crate) fn window_pages(&self) -> u64 {
        self.open.load(Ordering::Acquire)
    }

    /// The pages that the window may have at most.
    pub(crate) fn extent(&self) -> VaRange {
        VaRange::from_pages(self.first, self.first + self.pages).unwrap_or_default()
    }

    /// The page of an address in the reservation, and how far into it the address is.
    pub(crate) fn locate(&self, at: usize) -> Option<(u64, usize)> {
        let page = (at / PAGE_BYTES) as u64;
        (page.wrapping_sub(self.first) < self.pages).then_some((page, at % PAGE_BYTES))
    }

    /// The tag of a page, if it is in the window.
    pub(crate) fn tag(&self, page: u64) -> Option<&AtomicU64> {
        let index = page.wrapping_sub(self.first);
        if index >= self.window_pages() || self.is_released(page) {
            return None;
        }
        let place = with_exposed_provenance_mut::<u64>(self.tags + index as usize * TAG_BYTES);
        // SAFETY: in the window, so readable and writable until the reservation goes, aligned, and used as an atomic only.
        Some(unsafe { AtomicU64::from_ptr(place) })
    }

    /// Returns the tag of a page.
    pub(crate) fn get(&self, page: u64) -> Tag {
        // Acquire pairs with `put`.
        Tag::from_bits(self.tag(page).map_or(0, |place| place.load(Ordering::Acquire)))
    }

    /// Says what begins at a page from now on.
    pub(crate) fn put(&self, page: u64, tag: Tag) {
        if let Some(place) = self.tag(page) {
            // Release: whoever sees the area live sees what was done to its pages before.
            place.store(tag.bits(), Ordering::Release);
        }
    }

    /// Granules of the window.
    pub(super) fn granules(&self) -> u64 {
        self.window_pages() / GRANULE_PAGES
    }

    pub(super) fn set_crowded(&self, crowded: bool) {
        self.crowded.store(crowded, Ordering::Relaxed);
    }

    /// The state of a granule; that of one that is not in the window is closed.
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

    fn granule_place(&self, at: u64) -> Option<&AtomicU32> {
        if at >= self.granules() {
            return None;
        }
        let place = with_exposed_provenance_mut::<u32>(self.granules + at as usize * GRANULE_BYTES);
        // SAFETY: in the window, so readable and writable until the reservation goes, aligned, and used as an
        // atomic only.
        Some(unsafe { AtomicU32::from_ptr(place) })
    }

    pub(super) fn granules_span(&self, all: &Range<u64>) -> Span {
        let page = self.first + all.start * GRANULE_PAGES;
        Span { at: address(page), bytes: address((all.end - all.start) * GRANULE_PAGES) }
    }

    /// Makes granules that are closed accessible.
    pub(super) fn open_granules(&self, all: &Range<u64>) -> Result<(), Errno> {
        // SAFETY: part of the reservation, and nobody has these pages, but the caller for a room.
        unsafe { self.host.os().commit(self.granules_span(all)) }
    }

    /// Marks granules in which no room is open, but for those pages that are of one.
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

    /// Closes granules in which no room is open; `false` if the system refused that. Then they stay as they are.
    pub(super) fn close_granules(&self, all: &Range<u64>) -> bool {
        // SAFETY: as before.
        let closed = unsafe { self.host.os().reset(self.granules_span(all)) }.is_ok();
        if !closed {
            self.leaky.store(true, Ordering::Relaxed);
        }
        closed
    }

    /// Opens a room, whose granules are open: its pages are zeros. On an error it must be [abandoned](Self::abandon).
    pub(crate) fn open(&self, room: &mut Room, entry: Entry) -> Result<(), (Call, Errno)> {
        let os = self.host.os();
        if self.wall == Wall::Protection {
            // SAFETY: the room is the caller's alone.
            return unsafe { os.commit(room.span()) }.map_err(|errno| (Call::Commit, errno));
        }
        if entry == Entry::Marked {
            // SAFETY: as before.
            unsafe { os.unguard(room.span()) }.map_err(|errno| (Call::Unguard, errno))?;
        }
        // Somebody may have written by mistake where it should have faulted.
        // SAFETY: as before.
        if self.leaky.load(Ordering::Relaxed) && unsafe { os.discard(&[room.span()]) }.is_err() {
            self.write_zeros(room.span());
        }
        Ok(())
    }

    /// Closes an open room: its pages go, and whoever touches it faults.
    pub(crate) fn close(&self, room: &mut Room) -> Closed {
        let os = self.host.os();
        if self.wall == Wall::Protection {
            self.empty(room.span());
            // SAFETY: the room is the caller's alone.
            return Closed::Whole { shut: unsafe { os.forbid(room.span()) }.is_ok() };
        }
        let own = inner(self, room);
        // A bundle without all of its granules would be none.
        let is_bundled = own.clone().any(|at| self.granule(at).is_active());
        if own.is_empty() || is_bundled || self.crowded.load(Ordering::Relaxed) {
            return Closed::Whole { shut: self.mark(room.span()) };
        }
        // SAFETY: as before: in these granules nobody else has a page.
        match unsafe { os.reset(self.granules_span(&own)) } {
            Ok(()) => Closed::Inner,
            Err(_) => Closed::Whole { shut: self.mark(room.span()) },
        }
    }

    /// Marks part of a room, and drops its pages. `false` if the system refused that; then it is zeros.
    pub(super) fn mark(&self, span: Span) -> bool {
        if span.bytes == 0 {
            return true;
        }
        // SAFETY: part of a room that is the caller's alone.
        let marked = unsafe { self.host.os().guard(span) }.is_ok();
        if !marked {
            self.empty(span);
            self.leaky.store(true, Ordering::Relaxed);
        }
        marked
    }

    /// Makes part of a room zeros, without pages if the system takes them.
    fn empty(&self, span: Span) {
        // SAFETY: part of a room that is the caller's alone.
        if unsafe { self.host.os().discard(&[span]) }.is_err() {
            self.write_zeros(span);
        }
    }

    /// Closes a room that could not be opened, and that nobody has written to.
    pub(crate) fn abandon(&self, room: &mut Room) {
        if self.wall == Wall::Markers {
            // If it is refused, the room is zeros that can be touched.
            let _zeros = self.mark(room.span());
        }
    }

    /// Maps fresh pages over an open room; `false` if the system refuses.
    pub(crate) fn renew(&self, room: &mut Room) -> bool {
        // SAFETY: the room is the caller's alone.
        unsafe { self.host.os().renew(room.span()) }.is_ok()
    }

    /// Takes the pages of a room that is retired, and access to it, as far as the system allows; nothing is written to it.
    pub(crate) fn shut(&self, room: &mut Room) {
        let os = self.host.os();
        // SAFETY: the room is the caller's alone.
        if self.wall == Wall::Markers && unsafe { os.guard(room.span()) }.is_ok() {
            return;
        }
        // SAFETY: as before.
        let _gone = unsafe { os.discard(&[room.span()]) };
        // SAFETY: as before.
        let _shut = unsafe { os.forbid(room.span()) };
    }

    /// Writes zeros over an open room.
    pub(crate) fn clear(&self, room: &mut Room) {
        self.write_zeros(room.span());
    }

    fn write_zeros(&self, span: Span) {
        // SAFETY: part of a room that is open, and the caller's alone.
        unsafe { pointer(span.at).write_bytes(0, span.bytes) };
    }

    /// Tells whether most pages of a room are there, so that it pays to keep them. One that is hardly touched is cheaper dropped, and every
    /// page that is not there would have to be filled.
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
            // What is left cannot make up for what is missing.
            if (full + room.pages - done) * 4 < room.pages * 3 {
                return false;
            }
        }
        true
    }

    /// Moves the pages of a room that is to be closed into one of the same size that was just opened. They become
    /// zeros, so that no owner reads what another wrote. Returns how many are resident there.
    pub(crate) fn hand_over(&self, from: &mut Room, to: &mut Room) -> u64 {
        debug_assert_eq!(from.pages, to.pages, "rooms of one size");
        let mut moved = 0;
        let mut done = 0;
        while done < from.pages {
            let part = (from.pages - done).min(ASKED as u64);
            let Some(count) = self.hand_over_part(from, to, done, part) else { break };
            moved += count;
            done += part;
        }
        moved
    }

    /// The same for some of the pages; `None` where the system refuses.
    fn hand_over_part(&self, from: &mut Room, to: &mut Room, done: u64, part: u64) -> Option<u64> {
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
            // SAFETY: pages of a room that is the caller's alone.
            unsafe { pointer(span.at).write_bytes(0, span.bytes) };
            // SAFETY: as before, and so is the other room; both are in the window.
            unsafe { os.move_pages(span, address(to.page + page)) }.ok()?;
            moved += pages;
            at += run;
        }
        Some(moved)
    }

    /// Writes the canary where nobody asked for bytes.
    pub(crate) fn fill(&self, room: &mut Room, tag: Tag, pattern: [u8; 8]) {
        for (from, to) in slack(room, tag) {
            for at in from..to {
                // SAFETY: in the room, which is open and the caller's alone.
                unsafe { pointer(at).write(pattern[at % 8]) };
            }
        }
    }

    /// The first byte that is not the canary any more, as a distance from the start of the area; those behind its end come first.
    pub(crate) fn spoiled(&self, room: &Room, tag: Tag, pattern: [u8; 8]) -> Option<isize> {
        let start = address(room.page) + tag.offset();
        let [below, behind] = slack(room, tag);
        [behind, below].into_iter().flat_map(|(from, to)| from..to).find_map(|at| {
            // SAFETY: in the room, which is open; whoever writes there at this moment breaks his promise.
            let byte = unsafe { pointer(at).read_volatile() };
            (byte != pattern[at % 8]).then(|| at.cast_signed() - start.cast_signed())
        })
    }

    /// Copies the start of an area to that of another.
    pub(crate) fn copy(&self, from: &Room, tag: Tag, to: &mut Room, into: Tag) {
        let bytes = tag.requested_bytes().min(into.requested_bytes());
        let from = pointer(address(from.page) + tag.offset());
        // SAFETY: both are open, the caller's alone and two; each has that many bytes from its start.
        unsafe {
            pointer(address(to.page) + into.offset()).copy_from_nonoverlapping(from, bytes);
        };
    }
}

/// Bytes of what is known of the granules that so many pages are.
fn granules_bytes(pages: u64) -> usize {
    (pages.div_ceil(GRANULE_PAGES) as usize * GRANULE_BYTES).next_multiple_of(PAGE_BYTES)
}

/// The bytes of a room that nobody asked for: below the area and behind it.
fn slack(room: &Room, tag: Tag) -> [(usize, usize); 2] {
    let page = address(room.page);
    let start = page + tag.offset();
    [(page, start), (start + tag.requested_bytes(), page + address(room.pages))]
}

/// A pointer to the area in a room, which is live from now on.
pub(crate) fn into_pointer(room: Room, tag: Tag) -> NonNull<u8> {
    // SAFETY: no room is at page 0.
    unsafe { NonNull::new_unchecked(pointer(address(room.page) + tag.offset())) }
}
