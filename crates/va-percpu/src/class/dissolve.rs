//! Room that slabs hold unused is bounded: sparse slabs become objects of the engine, and holes are filled before slabs
//! are made.
//!
//! # Theory
//! A slab with one slot in use keeps 63 from all other classes and from what is larger. To the
//! engine a slab is an object. Each of its slots may be one too: a mark where each slot in use
//! begins, and clear bits where the others are.
//!
//! ```text
//!   slab of 8 slots    M U U U U U U U U U U U U U U U       one mark; slots 1 and 4 are in use
//!   dissolved          . . M U . . . . M U . . . . . .       two marks, three runs of zeros
//! ```
//!
//! Two sums say whether there is a need: bytes of slots not in use, and bytes of holes, which are free and in no wholly
//! free page. Each is *much* if it is more than 1 in [`SHARE`] of the bytes of all chunks, and more than [`LITTLE`].
//! Before a slab is made, and before a chunk is:
//!
//! - if much is in slots not in use, sparse slabs are dissolved;
//! - if much is in holes, no slab is made, and the object comes from the engine, the lowest hole first. If it finds no
//!   hole, so will others of its size, and slabs are made again: one, then three, then seven, until an object finds a
//!   hole.
//!
//! A hand goes round over the granules of all chunks. It dissolves slabs that are at least as free
//! as the average slab, and whose runs of free slots are on average as long as what is asked for.
//! Elsewhere it would gain holes that fit nothing. A search that finds none is not repeated for as
//! many slabs that are made, up to 63.
//!
//! # Cost
//! A call looks at no more than [`GRANULES_MOST`] granules and dissolves no more than [`SLABS_MOST`] slabs, each up to
//! 32 changes of a page. For a chunk that is made, at most [`CHUNKS_MOST`] others are looked through.
//!
//! # Source
//! None in Linux, whose per-CPU memory has no slabs; docs/decisions/0024-slabs-that-dissolve.md has the figures.

use super::{ALL_FREE, Class, SLOTS, Slab};
use crate::config::Config;
use crate::engine::Want;
use crate::geometry::UNIT_BYTES_MIN;
use crate::store::{Store, Taken};

/// One byte of so many is not much.
const SHARE: u64 = 16;
/// Nor are so many bytes: a slab of each class, nearly.
const LITTLE: u64 = UNIT_BYTES_MIN as u64;
/// Chunks that are looked through for each one that would be made.
const CHUNKS_MOST: u32 = 8;
/// Granules that one call looks at.
const GRANULES_MOST: u32 = 1024;
/// Slabs that one call dissolves.
const SLABS_MOST: u32 = 8;
/// Slabs at most that are made without a look at what there is.
const UNSEEN_MOST: u8 = 63;

/// The outcome of one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Dissolved {
    /// Slabs were dissolved: there may be room.
    Some,
    /// None was, and there is more to look at.
    Searching,
    /// Little is in slots not in use, or enough was looked at.
    Nothing,
}

impl<C: Config> Store<C> {
    fn is_much(&self, bytes: u64) -> bool {
        bytes > LITTLE && bytes * SHARE > self.bytes()
    }

    /// Returns true if a slab of a class should be made, since none has room; otherwise the engine allocates the
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

    /// Notes whether an object that could have come from a slab found a hole.
    pub(crate) fn note_single(&mut self, class: Class, taken: Taken) {
        let room = &mut self.classes.room[class.at()];
        (room.slabs, room.first) = if taken.broke { longer(room.first) } else { (0, 0) };
    }

    /// Dissolves sparse slabs, if much is in slots not in use. `looked` counts granules looked at for one request, from
    /// 0 on.
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
                    // The hand may have stopped inside a slab that was not there before.
                    u32::from(of.class - of.back)
                }
            };
            *looked += step;
            let cursor = self.classes.cursor.saturating_add(step);
            self.classes.cursor = if self.classes.split(cursor).0 < self.rows().end { cursor } else { 0 };
        }
        if count > 0 { Dissolved::Some } else { Dissolved::Searching }
    }

    /// A granule. `None` if there is none of that number, or no slab was ever made in the chunk.
    fn slab_at(&self, row: u32, granule: u32) -> Option<Slab> {
        let chunk = self.chunk(row);
        (chunk.is_in_use() && chunk.sliced && granule < self.classes.granules())
            .then(|| *self.classes.rows.at(row, granule))
    }

    /// Makes objects of the engine of the slots in use of a slab, and gives it the others.
    pub(crate) fn dissolve_slab(&mut self, class: Class, row: u32, granule: u32, free: u64) {
        self.classes.end(class, row << self.classes.shift | granule);
        self.classes.used[class.at()] -= u64::from((!free).count_ones());
        self.split_at(row, granule * SLOTS, class.0, free);
    }
}

#[cfg(all(test, not(loom)))]
impl<C: Config> Store<C> {
    /// The chunk and the first granule of a slab of a class that has no free slot.
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

/// One more than twice as many as before.
fn longer(first: u8) -> (u8, u8) {
    let more = (first * 2 + 1).min(UNSEEN_MOST);
    (more, more)
}

impl Slab {
    /// At least so many slots are free, not all, and their runs are on average as long as what is asked for.
    fn is_sparse(&self, least: u32, want: Want) -> bool {
        let (slots, runs) = (self.free.count_ones(), (self.free & !(self.free << 1)).count_ones());
        self.free != ALL_FREE && slots >= least && slots * u32::from(self.class) >= runs * want.bits
    }
}
