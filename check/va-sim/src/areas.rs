//! Which area is where: areas by their start, each with a value, and the areas of a space by their state.
//!
//! # Theory
//! All that follows a space from outside asks this: its reference model, a replay of a trace, a film of one. They
//! share this answer, and differ in the values. Areas do not overlap, so the areas in a range are neighbours, and the
//! highest of them is the last that starts below the end of the range. A query is one lookup in a sorted map.
//!
//! # Invariants
//! - **AM1 apart** the areas of a map are not empty and do not overlap.

use std::collections::BTreeMap;
use std::fmt;
use va_base::{InvariantViolation, Va};

/// An area with its value: first address, bytes, value.
pub type Placed<T> = (u64, u64, T);

/// Areas that left a map, the highest first.
pub type Removed<T> = Vec<Placed<T>>;

/// Areas by their start, each with a value; and the sum of their bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AreaMap<T = ()>(BTreeMap<u64, (u64, T)>, u64);

/// The reason why an area was not inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsertError {
    /// It has no bytes.
    Empty {
        /// Its first address.
        start: u64,
    },
    /// It overlaps an area of the map.
    Overlap {
        /// Its first address.
        start: u64,
        /// Its bytes.
        size: u64,
        /// First address and bytes of the highest area that it overlaps.
        held: (u64, u64),
    },
}

impl fmt::Display for InsertError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Empty { start } => write!(f, "the area at {start:#x} has no bytes"),
            Self::Overlap { start, size, held: (at, bytes) } => {
                write!(f, "{size:#x} bytes at {start:#x} overlap the {bytes:#x} bytes at {at:#x}")
            }
        }
    }
}

impl std::error::Error for InsertError {}

impl<T> Default for AreaMap<T> {
    fn default() -> Self {
        Self(BTreeMap::new(), 0)
    }
}

impl<T> AreaMap<T> {
    /// Returns the number of areas.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if there is no area.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the bytes of all areas. O(1).
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.1
    }

    /// Iterates over the areas, the lowest first.
    #[must_use]
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Placed<&T>> {
        self.0.iter().map(|(&start, (size, value))| (start, *size, value))
    }

    /// Returns the bytes and the value of the area that starts at `start`.
    #[must_use]
    pub fn get(&self, start: u64) -> Option<(u64, &T)> {
        self.0.get(&start).map(|(size, value)| (*size, value))
    }

    /// Inserts an area.
    ///
    /// # Errors
    /// If it is empty, or overlaps another. The map is unchanged then.
    pub fn insert(&mut self, start: u64, size: u64, value: T) -> Result<(), InsertError> {
        if size == 0 {
            return Err(InsertError::Empty { start });
        }
        if let Some((at, bytes, _)) = self.overlap(start, size) {
            return Err(InsertError::Overlap { start, size, held: (at, bytes) });
        }
        self.put(start, size, value);
        Ok(())
    }

    /// Inserts an area, and returns the areas that it overlaps, which leave the map. An empty area has no effect.
    pub fn replace(&mut self, start: u64, size: u64, value: T) -> Removed<T> {
        if size == 0 {
            return Vec::new();
        }
        let gone = self.take_overlaps(start, size);
        self.put(start, size, value);
        gone
    }

    fn put(&mut self, start: u64, size: u64, value: T) {
        self.0.insert(start, (size, value));
        self.1 = self.1.wrapping_add(size);
    }

    /// Removes the area that starts at `start`, and returns its bytes and its value; `None` if there is none.
    pub fn remove(&mut self, start: u64) -> Option<(u64, T)> {
        let gone = self.0.remove(&start)?;
        self.1 = self.1.wrapping_sub(gone.0);
        Some(gone)
    }

    /// Returns the highest area that overlaps `[start, start + size)`.
    #[must_use]
    pub fn overlap(&self, start: u64, size: u64) -> Option<Placed<&T>> {
        let (&at, (bytes, value)) = self.0.range(..start.saturating_add(size)).next_back()?;
        (at.saturating_add(*bytes) > start).then_some((at, *bytes, value))
    }

    /// Removes the areas that overlap `[start, start + size)`, and returns them, the highest first.
    pub fn take_overlaps(&mut self, start: u64, size: u64) -> Removed<T> {
        let mut gone = Vec::new();
        while let Some((at, ..)) = self.overlap(start, size) {
            gone.extend(self.remove(at).map(|(bytes, value)| (at, bytes, value)));
        }
        gone
    }

    /// Returns the area that contains `at`, or is next above it.
    #[must_use]
    pub fn at_or_above(&self, at: u64) -> Option<Placed<&T>> {
        let above = || self.0.range(at..).next().map(|(&start, (size, value))| (start, *size, value));
        self.overlap(at, 1).or_else(above)
    }

    /// Removes all areas, and returns them, the lowest first.
    pub fn take(&mut self) -> impl DoubleEndedIterator<Item = Placed<T>> + use<T> {
        std::mem::take(self).0.into_iter().map(|(start, (size, value))| (start, size, value))
    }

    /// Checks AM1 with a full walk.
    ///
    /// # Errors
    /// The first area that is empty, or begins before the end of the one below it.
    pub fn validate(&self) -> Result<(), InvariantViolation> {
        let mut next = 0;
        for (start, size, _) in self.iter() {
            InvariantViolation::check(start >= next && size > 0, "AM1", Va::new(start), next, start)?;
            next = start.saturating_add(size);
        }
        Ok(())
    }
}

/// The areas of a space that are not free in its index, with a value for each state.
#[derive(Clone, Debug)]
pub struct SpaceAreas<B = (), L = (), P = ()> {
    /// Allocated.
    pub busy: AreaMap<B>,
    /// Freed, and not yet purged.
    pub lazy: AreaMap<L>,
    /// Purged, and cached in a pool.
    pub pooled: AreaMap<P>,
}

impl<B, L, P> Default for SpaceAreas<B, L, P> {
    fn default() -> Self {
        Self { busy: AreaMap::default(), lazy: AreaMap::default(), pooled: AreaMap::default() }
    }
}

impl<B, L, P> SpaceAreas<B, L, P> {
    /// Makes the busy area at `start` lazy, and returns its value; `None` if there is none.
    pub fn free(&mut self, start: u64, lazy: impl FnOnce(&B) -> L) -> Option<B> {
        let (size, value) = self.busy.remove(start)?;
        self.lazy.replace(start, size, lazy(&value));
        Some(value)
    }

    /// Removes the areas that overlap `[start, start + size)`: the busy ones, the lazy ones and the pooled ones, each
    /// with the highest first.
    pub fn take_overlaps(&mut self, start: u64, size: u64) -> (Removed<B>, Removed<L>, Removed<P>) {
        let Self { busy, lazy, pooled } = self;
        (busy.take_overlaps(start, size), lazy.take_overlaps(start, size), pooled.take_overlaps(start, size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Rng;

    #[test]
    fn am1_an_area_is_inserted_if_it_has_bytes_and_overlaps_none() {
        let mut map = AreaMap::default();
        assert_eq!(map.insert(0x2000, 0x1000, 'a'), Ok(()));
        assert_eq!(map.insert(0x3000, 0x1000, 'b'), Ok(()));
        assert_eq!(map.insert(0x5000, 0, 'c'), Err(InsertError::Empty { start: 0x5000 }));
        for (start, size, held) in [
            (0x1000, 0x1001, (0x2000, 0x1000)),
            (0x3fff, 1, (0x3000, 0x1000)),
            (0, u64::MAX, (0x3000, 0x1000)),
            (0x2800, 0x10, (0x2000, 0x1000)),
        ] {
            let error = InsertError::Overlap { start, size, held };
            assert_eq!(map.insert(start, size, 'd'), Err(error));
        }
        let error = map.insert(0x3fff, 1, 'd').unwrap_err().to_string();
        assert_eq!(error, "0x1 bytes at 0x3fff overlap the 0x1000 bytes at 0x3000");
        assert_eq!((map.len(), map.bytes(), map.get(0x2000)), (2, 0x2000, Some((0x1000, &'a'))));
        assert_eq!(
            (map.remove(0x2001), map.remove(0x2000), map.remove(0x2000)),
            (None, Some((0x1000, 'a')), None)
        );
        assert_eq!(map.validate(), Ok(()));
        // On purpose: an area inside another, and an empty one.
        for broken in [[(0, (9, ())), (4, (1, ()))], [(0, (1, ())), (4, (0, ()))]] {
            let map = AreaMap(BTreeMap::from(broken), 0);
            assert_eq!(map.validate().unwrap_err().rule, "AM1");
        }
    }

    #[test]
    fn an_area_at_the_end_of_the_space_ends_there() {
        let mut map = AreaMap::default();
        map.insert(u64::MAX - 0xfff, 0x2000, ()).unwrap();
        assert!(map.overlap(u64::MAX - 1, 1).is_some() && map.overlap(0, u64::MAX).is_some());
        assert_eq!(map.replace(u64::MAX - 0x1fff, u64::MAX, ()), [(u64::MAX - 0xfff, 0x2000, ())]);
        assert_eq!(map.validate(), Ok(()));
    }

    /// A map beside an array of bytes, each with the number of its area.
    #[test]
    fn am1_a_map_answers_as_an_array_does() {
        const BYTES: u64 = 64;
        let mut rng = Rng::new(7);
        let (mut map, mut array) = (AreaMap::default(), [None; BYTES as usize]);
        for number in 0..20_000u32 {
            let start = rng.below(BYTES);
            let size = rng.below(9).min(BYTES - start);
            let range = start as usize..(start + size) as usize;
            let mut seen: Vec<u32> = array[range.clone()].iter().flatten().copied().collect();
            seen.dedup();
            seen.reverse();
            let numbers =
                |gone: Vec<Placed<u32>>| gone.into_iter().map(|(.., number)| number).collect::<Vec<_>>();
            if size > 0 {
                assert_eq!(map.overlap(start, size).map(|(.., number)| *number), seen.first().copied());
            }
            match rng.below(4) {
                0 => {
                    let inserted = map.insert(start, size, number).is_ok();
                    assert_eq!(inserted, size > 0 && seen.is_empty());
                    if inserted {
                        array[range].fill(Some(number));
                    }
                }
                1 => {
                    let gone = numbers(map.replace(start, size, number));
                    assert_eq!(gone, if size > 0 { seen } else { Vec::new() });
                    forget(&mut array, &gone);
                    array[range].fill(Some(number));
                }
                2 if size > 0 => {
                    let gone = numbers(map.take_overlaps(start, size));
                    assert_eq!(gone, seen);
                    forget(&mut array, &gone);
                }
                _ => {
                    let gone = map.remove(start);
                    let at = start as usize;
                    let begins = array[at].filter(|_| at == 0 || array[at - 1] != array[at]);
                    assert_eq!(gone.map(|(_, number)| number), begins);
                    forget(&mut array, begins.as_slice());
                }
            }
            let next = array[start as usize..].iter().flatten().next().copied();
            assert_eq!(map.at_or_above(start).map(|(.., number)| *number), next);
            assert_eq!(map.bytes(), array.iter().flatten().count() as u64);
            assert_eq!(map.validate(), Ok(()));
        }
    }

    fn forget(array: &mut [Option<u32>], gone: &[u32]) {
        for byte in array {
            *byte = byte.filter(|number| !gone.contains(number));
        }
    }

    #[test]
    fn an_area_is_in_one_state() {
        let mut areas = SpaceAreas::<u8, u16, ()>::default();
        areas.busy.insert(0x1000, 0x1000, 3).unwrap();
        areas.busy.insert(0x2000, 0x1000, 4).unwrap();
        assert_eq!(areas.free(0x1000, |&value| u16::from(value) + 10), Some(3));
        assert_eq!(areas.free(0x1000, |_| 0), None);
        areas.pooled.insert(0x3000, 0x1000, ()).unwrap();
        let gone = areas.take_overlaps(0x1800, 0x2000);
        assert_eq!(gone, (vec![(0x2000, 0x1000, 4)], vec![(0x1000, 0x1000, 13)], vec![(0x3000, 0x1000, ())]));
        assert!(areas.busy.is_empty() && areas.lazy.take().next().is_none());
    }
}
