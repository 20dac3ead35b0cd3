//! The path from an address to its chunk: a hash table of grains.
//!
//! # Theory
//! First units begin at multiples of a grain, a power of two, and are whole grains. So an address belongs to the chunk
//! that has its grain. The table has a slot for each grain of each chunk, at most half of them in use. A search begins
//! at the slot that the grain hashes to and goes forward until it finds the grain or an empty slot.
//!
//! # Invariants
//! - **PL1 found**  the table holds the grains of all chunks and nothing else, each where a search finds it.

use crate::table::Table;
use va_base::{Platform, Record};

/// A grain and its chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    grain: u64,
    chunk: u32,
}

const NO_CHUNK: u32 = u32::MAX;

impl Record for Place {
    // No address has this grain, so a grain that is found has a chunk.
    const EMPTY: Self = Self { grain: u64::MAX, chunk: NO_CHUNK };
}

/// The table.
pub(crate) struct Lookup {
    /// The first `size` of them are in use.
    places: Table<Place>,
    /// A power of two, or 0.
    size: usize,
    used: u32,
    /// 64 less the bits of `size`.
    shift: u32,
}

impl Lookup {
    /// Creates an empty table.
    pub(crate) const fn new() -> Self {
        Self { places: Table::new(), size: 0, used: 0, shift: 63 }
    }

    /// Returns the number of slots that the table needs before `more` grains can be added, if it has too few.
    pub(crate) fn wanted(&self, more: u32) -> Option<usize> {
        let want = ((self.used + more) as usize * 2).next_power_of_two().max(16);
        (want > self.size).then_some(want)
    }

    /// Moves the grains into `places` and returns the old slots. A platform may allocate more than requested: a power
    /// of two is used.
    pub(crate) fn move_to(&mut self, places: Table<Place>) -> Table<Place> {
        let old_size = self.size;
        self.size =
            if places.len().is_power_of_two() { places.len() } else { places.len().next_power_of_two() / 2 };
        self.shift = u64::BITS - self.size.trailing_zeros();
        let old = core::mem::replace(&mut self.places, places);
        for at in 0..old_size {
            let place = *old.one(at as u32);
            if place.chunk != NO_CHUNK {
                let at = self.end_of(place.grain);
                *self.place_mut(at) = place;
            }
        }
        old
    }

    #[inline(always)]
    fn place(&self, at: usize) -> &Place {
        self.places.one(at as u32)
    }

    #[inline(always)]
    fn place_mut(&mut self, at: usize) -> &mut Place {
        self.places.one_mut(at as u32)
    }

    #[inline]
    fn home(&self, grain: u64) -> usize {
        (grain.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    /// Returns the slot of `grain`, or the empty slot where it would be.
    #[inline]
    fn end_of(&self, grain: u64) -> usize {
        let mask = self.size - 1;
        let mut at = self.home(grain) & mask;
        while self.place(at).chunk != NO_CHUNK && self.place(at).grain != grain {
            at = (at + 1) & mask;
        }
        at
    }

    /// Returns the chunk of a grain.
    #[inline]
    pub(crate) fn find(&self, grain: u64) -> Option<u32> {
        let mask = self.size.wrapping_sub(1);
        let mut at = self.home(grain) & mask;
        loop {
            // An empty table has none.
            let place = self.places.get(at)?;
            if place.grain == grain {
                return Some(place.chunk);
            }
            if place.chunk == NO_CHUNK {
                return None;
            }
            at = (at + 1) & mask;
        }
    }

    /// Adds grains from `first` on, for which there is room (see [`wanted`](Self::wanted)).
    pub(crate) fn add(&mut self, first: u64, count: u32, chunk: u32) {
        for grain in first..first + u64::from(count) {
            let at = self.end_of(grain);
            *self.place_mut(at) = Place { grain, chunk };
            self.used += 1;
        }
    }

    /// Removes grains.
    pub(crate) fn remove(&mut self, first: u64, count: u32) {
        let mask = self.size - 1;
        for grain in first..first + u64::from(count) {
            let mut hole = self.end_of(grain);
            self.used -= u32::from(self.place(hole).chunk != NO_CHUNK);
            let mut at = hole;
            loop {
                at = (at + 1) & mask;
                if self.place(at).chunk == NO_CHUNK {
                    break;
                }
                // An entry that was put after the hole, because the hole was full, moves into it.
                let home = self.home(self.place(at).grain) & mask;
                if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                    *self.place_mut(hole) = *self.place(at);
                    hole = at;
                }
            }
            *self.place_mut(hole) = Place::EMPTY;
        }
    }

    /// Returns the number of grains.
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// Frees the memory.
    pub(crate) fn free<P: Platform>(&mut self, platform: &P) {
        (self.used, self.size) = (0, 0);
        self.places.free(platform);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use va_base::LimitedHeap;

    fn grown(lookup: &mut Lookup, more: u32, heap: &LimitedHeap) {
        if let Some(places) = lookup.wanted(more) {
            let mut old = lookup.move_to(Table::alloc(places + 3, heap).unwrap());
            old.free(heap);
        }
    }

    #[test]
    fn what_was_added_is_found_until_it_is_removed() {
        let heap = LimitedHeap::new();
        heap.limit(4096);
        let mut lookup = Lookup::new();
        let mut model = BTreeMap::new();
        let mut state = 1u64;
        for step in 0..20_000u32 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let grain = (state >> 40) % 600 * 3;
            if model.contains_key(&grain) {
                lookup.remove(grain, 3);
                (grain..grain + 3).for_each(|grain| assert!(model.remove(&grain).is_some()));
            } else {
                grown(&mut lookup, 3, &heap);
                lookup.add(grain, 3, step);
                model.extend((grain..grain + 3).map(|grain| (grain, step)));
            }
            assert_eq!(lookup.used() as usize, model.len());
            if step % 97 == 0 {
                assert!((0..1810).all(|grain| lookup.find(grain) == model.get(&grain).copied()));
            }
        }
    }
}
