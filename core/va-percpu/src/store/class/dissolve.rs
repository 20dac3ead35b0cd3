//! A bound on the bytes that slabs hold unused: sparse slabs become objects of the engine, and holes are filled before
//! slabs are created.
//!
//! # Theory
//! A slab with one slot in use withholds 63 from all other classes and from larger objects. To the engine a slab is an
//! object. Each of its slots may become one too: a mark where each slot in use begins, and clear bits for the others.
//!
//! ```text
//!   slab of 8 slots    M U U U U U U U U U U U U U U U       one mark; slots 1 and 4 are in use
//!   dissolved          . . M U . . . . M U . . . . . .       two marks, three runs of zeros
//! ```
//!
//! Two sums decide whether this is needed: bytes of unused slots, and bytes of holes, which are free and in no wholly
//! free page. Each is *much* if it is more than 1 in [`SHARE`] of the bytes of all chunks, and more than [`LITTLE`].
//! Before a slab is created, and before a chunk is:
//!
//! - if much is in unused slots, sparse slabs are dissolved;
//! - if much is in holes, no slab is created, and the engine allocates the object, the lowest hole first. If it finds
//!   no hole, other objects of that size will find none either, and slabs are created again: one, then three, then
//!   seven, until an object finds a hole.
//!
//! A cursor moves round over the granules of all chunks. It dissolves slabs that are at least as free as the average
//! slab, and whose runs of free slots are on average as long as the request. Other slabs would yield holes that fit
//! nothing. After a search that finds none, up to 63 slabs are created before the next search.
//!
//! A slab has objects of 64 requests. If their callers allocate larger objects, too, the 64 may be of several groups
//! that are freed at different times. For example, a memory cgroup has 21 objects of 40 bytes beside 3.5 KiB in larger
//! ones. A slab would have the objects of three cgroups, and keep pages of all three as long as one is there. So while
//! larger objects take more than two pages for the 64 objects of a class, the next 64 come one by one.
//!
//! # Cost
//! A call reads no more than [`GRANULES_MOST`] granules and dissolves no more than [`SLABS_MOST`] slabs, each up to 32
//! changes of a page. Before a chunk is created, at most [`CHUNKS_MOST`] others are searched.
//!
//! # Source
//! None in Linux, whose per-CPU memory has no slabs; docs/decisions/0024-slabs-that-dissolve.md has the figures.

use super::super::{Store, Taken};
use super::{ALL_FREE, Class, SLOTS, Slab};
use crate::bitmap::{self, BIT_BYTES, PAGE_BITS};
use crate::config::Config;
use crate::engine::Want;
use crate::geometry::UNIT_BYTES_MIN;

/// A sum is not much up to one byte in so many.
const SHARE: u64 = 16;
/// Nor is a sum of up to so many bytes: nearly a slab of each class.
const LITTLE: u64 = UNIT_BYTES_MIN as u64;
/// Chunks that are searched before one is created.
const CHUNKS_MOST: u32 = 8;
/// Granules that one call reads.
pub(super) const GRANULES_MOST: u32 = 1024;
/// Slabs that one call dissolves.
pub(super) const SLABS_MOST: u32 = 8;
/// The objects of a slab are far apart if larger ones took so many bits meanwhile: two pages.
const APART_BITS: u64 = 2 * PAGE_BITS as u64;
/// Most slabs that are created without a search for sparse ones.
const UNSEEN_MOST: u8 = 63;

/// The outcome of one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Dissolved {
    /// Slabs were dissolved: there may be room.
    Some,
    /// No slab was dissolved, and more granules can be read.
    Searching,
    /// Few bytes are in unused slots, or enough granules were read.
    Nothing,
}

impl<C: Config> Store<C> {
    fn is_much(&self, bytes: u64) -> bool {
        bytes > LITTLE && bytes * SHARE > self.bytes()
    }

    /// Returns true if a slab of a class should be created, since none has room; otherwise the engine allocates the
    /// object.
    pub(crate) fn wants_slab(&mut self, class: Class, want: Want) -> bool {
        if self.is_much(self.classes.unused_bytes()) {
            let (left, first) = self.classes.pause;
            self.classes.pause = match left.checked_sub(1) {
                Some(left) => (left, first),
                None if self.dissolve(want, &mut 0) == Dissolved::Some => (0, 0),
                None => longer(first),
            };
        }
        if !self.is_much(self.hole_bytes()) {
            return true;
        }
        let room = &mut self.classes.room[class.at()];
        let unseen = room.slabs > 0;
        room.slabs = room.slabs.saturating_sub(1);
        unseen
    }

    /// Returns true if a slab should be created for one object. Not if the objects of the last slab were allocated far
    /// apart: then the next ones come one by one, so that each is near others of its time.
    pub(crate) fn wants_slab_for_one(&mut self, class: Class, want: Want) -> bool {
        let larger = self.classes.larger;
        let pace = &mut self.classes.pace[class.at()];
        if let Some(left) = pace.singles.checked_sub(1) {
            pace.singles = left;
            return false;
        }
        let apart = pace.since.replace(larger).is_some_and(|since| larger.saturating_sub(since) > APART_BITS);
        if apart {
            pace.singles = SLOTS as u8 - 1;
        }
        !apart && self.wants_slab(class, want)
    }

    /// Records whether an object that could have come from a slab found a hole.
    pub(crate) fn note_single(&mut self, class: Class, taken: Taken) {
        let room = &mut self.classes.room[class.at()];
        (room.slabs, room.first) = if taken.broke { longer(room.first) } else { (0, 0) };
    }

    /// Dissolves sparse slabs, if much is in unused slots. `looked` counts the granules read for one request, from 0
    /// on.
    pub(crate) fn dissolve(&mut self, want: Want, looked: &mut u32) -> Dissolved {
        let (free, all) = (self.classes.unused_bytes(), self.classes.bytes());
        let granules = 1 << self.classes.shift;
        if !self.is_much(free) || *looked >= granules * self.rows().end.min(CHUNKS_MOST) {
            return Dissolved::Nothing;
        }
        let least = (free * u64::from(SLOTS) / all).max(1) as u32;
        let end = *looked + GRANULES_MOST;
        let mut count = 0;
        while *looked < end && count < SLABS_MOST {
            let (row, granule) = self.classes.split(self.classes.cursor);
            let step = match self.slab_at(row, granule) {
                None => granules - granule,
                Some(Slab { class: 0, .. }) => 1,
                Some(of) => {
                    if of.is_sparse(least, want) {
                        self.dissolve_slab(Class(of.class.into()), row, granule, of.free);
                        count += 1;
                    }
                    // The cursor may have stopped inside a slab that was created later.
                    u32::from(of.class - of.back)
                }
            };
            *looked += step;
            let cursor = self.classes.cursor.saturating_add(step);
            self.classes.cursor = if self.classes.split(cursor).0 < self.rows().end { cursor } else { 0 };
        }
        if count > 0 { Dissolved::Some } else { Dissolved::Searching }
    }

    /// Returns a granule. `None` if there is none of that number, or no slab was ever created in the chunk.
    fn slab_at(&self, row: u32, granule: u32) -> Option<Slab> {
        let chunk = self.chunk(row);
        (chunk.is_in_use() && chunk.sliced && granule < self.classes.granules())
            .then(|| *self.classes.rows.at(row, granule))
    }

    /// Dissolves the slabs that have bits from an address on, if all of these are free or in unused slots. No slab is
    /// idle.
    pub(crate) fn dissolve_at(&mut self, at: u64, bits: u32) {
        let place = self.place_of(at).filter(|(row, off)| {
            let (chunk, bit) = (self.chunk(*row), off / BIT_BYTES);
            chunk.sliced && off.is_multiple_of(BIT_BYTES) && bit + bits <= chunk.pages * PAGE_BITS
        });
        let Some((row, off)) = place else { return };
        let (bit, end) = (off / BIT_BYTES, off / BIT_BYTES + bits);
        let is_free = |bit| match self.classes.find(row, bit / SLOTS) {
            Some((class, granule, of)) => of.free >> ((bit - granule * SLOTS) / class.0) & 1 != 0,
            None => !bitmap::is_set(self.words.row(row), bit),
        };
        if !(bit..end).all(is_free) {
            return;
        }
        for granule in bit / SLOTS..end.div_ceil(SLOTS) {
            if let Some((class, granule, &mut Slab { free, .. })) = self.classes.find(row, granule) {
                self.dissolve_slab(class, row, granule, free);
            }
        }
    }

    /// Makes objects of the engine of the slots in use of a slab, and gives it the others.
    pub(crate) fn dissolve_slab(&mut self, class: Class, row: u32, granule: u32, free: u64) {
        self.classes.end(class, row << self.classes.shift | granule);
        self.classes.used[class.at()] -= u64::from((!free).count_ones());
        self.split_at(row, granule * SLOTS, class.0, free);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
impl<C: Config> Store<C> {
    /// Returns the chunk and the first granule of a slab of a class that has no free slot.
    pub(crate) fn full_slab(&self, class: u8) -> (u32, u32) {
        let rows = self.rows().filter(|&row| self.chunk(row).sliced);
        let mut all = rows.flat_map(|row| (0..self.classes.granules()).map(move |granule| (row, granule)));
        let full = |at: &(u32, u32)| {
            let of = self.slab_at(at.0, at.1).unwrap_or(<Slab as va_base::Record>::EMPTY);
            of.class == class && of.back == 0 && of.free == 0
        };
        all.find(full).unwrap_or((0, 0))
    }
}

/// Returns one more than twice as many as before.
fn longer(first: u8) -> (u8, u8) {
    let more = (first * 2 + 1).min(UNSEEN_MOST);
    (more, more)
}

impl Slab {
    /// Returns whether at least so many slots are free, not all, and their runs are on average as long as the request.
    fn is_sparse(&self, least: u32, want: Want) -> bool {
        let (slots, runs) = (self.free.count_ones(), (self.free & !(self.free << 1)).count_ones());
        self.free != ALL_FREE && slots >= least && slots * u32::from(self.class) >= runs * want.bits
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn slabs_are_created_after_objects_that_found_no_hole_one_then_three_then_seven() {
        let mut counts = std::vec![(0, 0)];
        for _ in 0..8 {
            counts.push(longer(counts[counts.len() - 1].1));
        }
        assert_eq!(counts[1..], [1, 3, 7, 15, 31, 63, 63, 63].map(|slabs| (slabs, slabs)));
    }
}
