//! From an address to its chunk: a table of grains, hashed.
//!
//! # Theory
//! First units begin at multiples of a grain, a power of two, and are whole grains; so an address belongs to the chunk that has
//! its grain. The table has a place for each grain of each chunk, at most half of them in use; a place in use is found from
//! where its grain hashes, going forward until an empty one.
//!
//! # Invariants
//! - **PL1 found**  the table holds the grains of all chunks and nothing else, each where a search finds it.

use va_base::Record;

/// A grain and its chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    grain: u64,
    chunk: u32,
}

const NOBODY: u32 = u32::MAX;

impl Record for Place {
    // No address has this grain: so whoever finds a grain has found its chunk.
    const EMPTY: Self = Self { grain: u64::MAX, chunk: NOBODY };
}

/// The table.
pub(crate) struct Lookup {
    /// As lent; the first `size` of them are the table.
    places: &'static mut [Place],
    /// A power of two, or 0.
    size: usize,
    used: u32,
    /// 64 less the bits of `size`.
    shift: u32,
}

impl Lookup {
    /// Nobody is known.
    pub(crate) fn new() -> Self {
        Self { places: Default::default(), size: 0, used: 0, shift: 63 }
    }

    /// How many places there must be before `more` grains can be added, if there are too few.
    pub(crate) fn wanted(&self, more: u32) -> Option<usize> {
        let want = ((self.used + more) as usize * 2).next_power_of_two().max(16);
        (want > self.size).then_some(want)
    }

    /// Moves into `places` and returns the old ones. A platform may lend more than asked for: a power of two is used.
    pub(crate) fn move_to(&mut self, places: &'static mut [Place]) -> &'static mut [Place] {
        places.fill(Place::EMPTY);
        let old_size = self.size;
        self.size =
            if places.len().is_power_of_two() { places.len() } else { places.len().next_power_of_two() / 2 };
        self.shift = u64::BITS - self.size.trailing_zeros();
        let old = core::mem::replace(&mut self.places, places);
        for place in old[..old_size].iter().filter(|place| place.chunk != NOBODY) {
            let at = self.end_of(place.grain);
            self.places[at] = *place;
        }
        old
    }

    #[inline]
    fn home(&self, grain: u64) -> usize {
        (grain.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    /// Where `grain` is, or the empty place where it would be.
    #[inline]
    fn end_of(&self, grain: u64) -> usize {
        let mask = self.size - 1;
        let mut at = self.home(grain) & mask;
        while self.places[at].chunk != NOBODY && self.places[at].grain != grain {
            at = (at + 1) & mask;
        }
        at
    }

    /// The chunk of a grain.
    #[inline]
    pub(crate) fn find(&self, grain: u64) -> Option<u32> {
        let mask = self.size.wrapping_sub(1);
        let mut at = self.home(grain) & mask;
        loop {
            // There is none in an empty table.
            let place = self.places.get(at)?;
            if place.grain == grain {
                return Some(place.chunk);
            }
            if place.chunk == NOBODY {
                return None;
            }
            at = (at + 1) & mask;
        }
    }

    /// Adds grains from `first` on, for which there is room (see [`wanted`](Self::wanted)).
    pub(crate) fn add(&mut self, first: u64, count: u32, chunk: u32) {
        for grain in first..first + u64::from(count) {
            let at = self.end_of(grain);
            self.places[at] = Place { grain, chunk };
            self.used += 1;
        }
    }

    /// Forgets grains.
    pub(crate) fn remove(&mut self, first: u64, count: u32) {
        let mask = self.size - 1;
        for grain in first..first + u64::from(count) {
            let mut hole = self.end_of(grain);
            self.used -= u32::from(self.places[hole].chunk != NOBODY);
            let mut at = hole;
            loop {
                at = (at + 1) & mask;
                if self.places[at].chunk == NOBODY {
                    break;
                }
                // What was put behind the hole because it was full moves into it.
                let home = self.home(self.places[at].grain) & mask;
                if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                    self.places[hole] = self.places[at];
                    hole = at;
                }
            }
            self.places[hole] = Place::EMPTY;
        }
    }

    /// Grains known.
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// Takes the table apart.
    pub(crate) fn take(&mut self) -> &'static mut [Place] {
        (self.used, self.size) = (0, 0);
        core::mem::take(&mut self.places)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::vec;
    use std::vec::Vec;

    fn grown(lookup: &mut Lookup, more: u32) {
        if let Some(places) = lookup.wanted(more) {
            lookup.move_to(Vec::leak(vec![Place::EMPTY; places + 3]));
        }
    }

    #[test]
    fn what_was_added_is_found_until_it_is_removed() {
        let mut lookup = Lookup::new();
        let mut twin = BTreeMap::new();
        let mut state = 1u64;
        for step in 0..20_000u32 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let grain = (state >> 40) % 600 * 3;
            if twin.contains_key(&grain) {
                lookup.remove(grain, 3);
                (grain..grain + 3).for_each(|grain| assert!(twin.remove(&grain).is_some()));
            } else {
                grown(&mut lookup, 3);
                lookup.add(grain, 3, step);
                twin.extend((grain..grain + 3).map(|grain| (grain, step)));
            }
            assert_eq!(lookup.used() as usize, twin.len());
            if step % 97 == 0 {
                assert!((0..1810).all(|grain| lookup.find(grain) == twin.get(&grain).copied()));
            }
        }
    }
}
