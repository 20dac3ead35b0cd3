//! The memory of a hardened allocator: one reservation, of which everything is a wall that is not an area.
//!
//! # Theory
//! ```text
//!   |  tags: 8 bytes a page  |            window            |  not yet        one reservation
//!                            |..[#|==area==|#]....[#|=|#]...|                 # no access, whoever touches it faults
//! ```
//! A **room** is the pages of an area and a page without access on both sides. How access is denied, the kernel decides:
//! **markers** (`MADV_GUARD_INSTALL`, Linux 6.13) live in the page tables and split no mapping, so that there may be millions. The
//! window is readable and writable as a whole then, a room that closes is marked throughout, and stays so until other
//! rooms open there. Elsewhere it is **protection** (`mprotect`): nothing is accessible but open rooms, each of which splits a
//! mapping, so they are bounded.
//!
//! To close a room drops its pages, in both: what was in it is gone before anybody can have its addresses.
//!
//! # Invariants
//! - **HD2 walled** what was an area once can be touched only while it is in an open room, and the pages on both sides of an open
//!   room cannot be touched. (Where the system refuses to close a room, its pages are zeros at least; such rooms are counted.
//!   A retired room is closed as far as the system allows, and not written to.)
//!
//! # Locking
//! None. The window grows under the lock of the allocator.

use super::tag::{PAGES_MAX, Tag};
use crate::PAGE_BYTES;
use crate::error::CreateError;
use crate::os::{Call, Errno, Os, Span};
use crate::records::Host;
use core::ptr::{NonNull, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicU64, Ordering};
use va_base::VaRange;

/// What is tried, the largest first.
const LADDER_LOG2: [u32; 9] = [40, 38, 36, 34, 32, 30, 28, 26, 25];
const LEAST_BYTES: usize = 1 << LADDER_LOG2[LADDER_LOG2.len() - 1];
const BASE_ALIGN: usize = 2 << 20;
const TAG_BYTES: usize = 8;
/// Pages of the smallest window.
const LEAST_PAGES: u64 = (LEAST_BYTES / PAGE_BYTES) as u64;
/// Pages that are asked about at a time.
const ASKED: usize = 512;

const _: () = assert!((1u64 << LADDER_LOG2[0]) / PAGE_BYTES as u64 <= PAGES_MAX);

/// How access is denied.
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

    /// All addresses, walls included.
    pub(crate) fn range(&self) -> VaRange {
        VaRange::from_pages(self.page - 1, self.page + self.pages + 1).unwrap_or_default()
    }

    fn span(&self) -> Span {
        Span { at: address(self.page), bytes: address(self.pages) }
    }

    fn walls(&self) -> [Span; 2] {
        [self.page - 1, self.page + self.pages].map(|page| Span { at: address(page), bytes: PAGE_BYTES })
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
    first: u64,
    pages: u64,
    wall: Wall,
    // Atomic; grows under the lock of the allocator.
    /// Pages of the window, from the first.
    open: AtomicU64,
}

impl<O: Os> Window<O> {
    /// One without pages.
    pub(crate) const fn nothing() -> Self {
        Self {
            host: Host::NOWHERE,
            reserved: Span { at: 0, bytes: 0 },
            tags: 0,
            first: 0,
            pages: 0,
            wall: Wall::Markers,
            open: AtomicU64::new(0),
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
            let tags = (count as usize * TAG_BYTES).next_multiple_of(PAGE_BYTES);
            let whole = tags + bytes + BASE_ALIGN;
            let at = match host.os().reserve(whole) {
                Ok(at) => at,
                Err(errno) => {
                    refused = errno;
                    continue;
                }
            };
            let base = (at + tags).next_multiple_of(BASE_ALIGN);
            let mut window = Self {
                host,
                reserved: Span { at, bytes: whole },
                tags: base - tags,
                first: (base / PAGE_BYTES) as u64,
                pages: count,
                wall: wall.unwrap_or(Wall::Markers),
                open: AtomicU64::new(0),
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

    /// Opens a window as large as is granted, and finds out what walls there are.
    fn set_up(&mut self, pages: u64, wall: Option<Wall>) -> Result<(), CreateError> {
        if wall.is_none() && self.is_locked() {
            self.wall = Wall::Protection;
        }
        let mut want = pages.clamp(LEAST_PAGES, self.pages);
        let bytes = |pages| address(pages);
        let refusal = |(errno, want)| CreateError::Refused { call: Call::Commit, errno, bytes: bytes(want) };
        // Where every page is charged, less.
        while let Err((errno, _)) = self.grow(want) {
            if want == LEAST_PAGES {
                return Err(refusal((errno, want)));
            }
            want = (want / 2).max(LEAST_PAGES);
        }
        if wall.is_some() || self.wall == Wall::Protection {
            return Ok(());
        }
        let probe = Span { at: address(self.first), bytes: PAGE_BYTES };
        // SAFETY: nobody uses the window yet; its first page is never given out without another wall.
        let marked = unsafe { self.host.os().guard(probe) };
        if marked.is_err() {
            self.wall = Wall::Protection;
            let span = Span { at: address(self.first), bytes: address(self.window_pages()) };
            // SAFETY: nobody uses the window yet.
            let shut = unsafe { self.host.os().forbid(span) };
            shut.map_err(|errno| refusal((errno, self.window_pages())))?;
        }
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
        locked && unsafe { os.forbid(probe) }.is_ok()
    }

    /// Unmaps everything.
    ///
    /// # Safety
    /// Nobody uses it, or anything in it, any more.
    pub(crate) unsafe fn unmap(&self) {
        // SAFETY: reserved by `reserve`, and nobody uses it.
        unsafe { self.host.os().unmap(self.reserved) };
    }

    /// Makes the window at least `want` pages, or as many as there are.
    pub(crate) fn grow(&self, want: u64) -> Result<(), (Errno, u64)> {
        let have = self.window_pages();
        let want = want.min(self.pages);
        if want <= have {
            return Ok(());
        }
        let os = self.host.os();
        let rounded = |pages: u64| (pages as usize * TAG_BYTES).next_multiple_of(PAGE_BYTES);
        let tags = Span { at: self.tags + rounded(have), bytes: rounded(want) - rounded(have) };
        if tags.bytes > 0 {
            // SAFETY: the tags of the pages that are added.
            unsafe { os.commit(tags) }.map_err(|errno| (errno, want))?;
        }
        if self.wall == Wall::Markers {
            let span = Span { at: address(self.first + have), bytes: address(want - have) };
            // SAFETY: part of the reservation, and nobody has these pages.
            unsafe { os.commit(span) }.map_err(|errno| (errno, want))?;
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
        if index >= self.window_pages() {
            return None;
        }
        let place = with_exposed_provenance_mut::<u64>(self.tags + index as usize * TAG_BYTES);
        // SAFETY: in the window, so readable and writable until the reservation goes, aligned, and used as an atomic only.
        Some(unsafe { AtomicU64::from_ptr(place) })
    }

    /// What is said of a page.
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

    /// Opens a room: its pages are zeros, those beside it walls. On an error it must be [abandoned](Self::abandon).
    pub(crate) fn open(&self, room: &mut Room) -> Result<(), (Call, Errno)> {
        let os = self.host.os();
        if self.wall == Wall::Protection {
            // SAFETY: the room is the caller's alone.
            return unsafe { os.commit(room.span()) }.map_err(|errno| (Call::Commit, errno));
        }
        // SAFETY: as before.
        unsafe { os.unguard(room.span()) }.map_err(|errno| (Call::Unguard, errno))?;
        // Where nobody ever was, somebody may have written by mistake.
        // SAFETY: as before.
        if unsafe { os.discard(&[room.span()]) }.is_err() {
            self.clear(room);
        }
        for wall in room.walls() {
            // SAFETY: the walls belong to the room.
            unsafe { os.guard(wall) }.map_err(|errno| (Call::Guard, errno))?;
        }
        Ok(())
    }

    /// Closes an open room: its pages go, and whoever touches it faults. `false` if the system refused that; then it is zeros.
    pub(crate) fn close(&self, room: &mut Room) -> bool {
        let os = self.host.os();
        // SAFETY: the room is the caller's alone.
        if self.wall == Wall::Markers && unsafe { os.guard(room.span()) }.is_ok() {
            return true;
        }
        // SAFETY: as before.
        if unsafe { os.discard(&[room.span()]) }.is_err() {
            self.clear(room);
        }
        // SAFETY: as before.
        self.wall == Wall::Protection && unsafe { os.forbid(room.span()) }.is_ok()
    }

    /// Closes a room that could not be opened, and that nobody has written to.
    pub(crate) fn abandon(&self, room: &mut Room) {
        if self.wall == Wall::Markers {
            // SAFETY: the room is the caller's alone. If it is refused, the room is zeros that can be touched, as before it was used.
            let _zeros = unsafe { self.host.os().guard(room.span()) };
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

    fn clear(&self, room: &mut Room) {
        // SAFETY: open, and the caller's alone.
        unsafe { pointer(room.span().at).write_bytes(0, room.span().bytes) };
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

    /// Moves the pages of a room that is to be closed into one that was just opened, of the same size: as
    /// zeros, so that nobody reads in one what was written in the other. Tells how many pages are there now.
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
