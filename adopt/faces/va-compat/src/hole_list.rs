//! A sorted list of holes, for sets that have few.
//!
//! # Theory
//! To look at each of some dozen holes in a row takes less time than one change of a tree. So a set begins as a list,
//! which is either a part of the value or a vector.
//!
//! # Cost
//! O(n) a call, for n holes.
//! # Source
//! Our own.

use alloc::vec::Vec;

/// The free units `[start, end)`.
pub(crate) type Hole = (u64, u64);

/// The outcome of a change of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Changed {
    /// It is done.
    Yes,
    /// It is not possible: some unit is free already, or not free.
    No,
    /// It needs one more hole than the list can have; nothing has changed.
    Full,
}

/// The memory of a list.
pub trait HoleMemory {
    /// The most holes.
    const MAX: usize;

    /// Returns the holes, in order.
    fn holes(&self) -> &[Hole];

    /// Returns the holes, to change them in place.
    fn holes_mut(&mut self) -> &mut [Hole];

    /// Inserts a hole. Returns false if there is no room, or the global allocator fails.
    fn insert(&mut self, at: usize, hole: Hole) -> bool;

    /// Removes a hole.
    fn remove(&mut self, at: usize);
}

/// Up to `N` holes inside the value.
#[derive(Clone, Debug)]
pub struct Inline<const N: usize> {
    holes: [Hole; N],
    len: usize,
}

impl<const N: usize> Inline<N> {
    pub(crate) const NEW: Self = Self { holes: [(0, 0); N], len: 0 };
}

impl<const N: usize> HoleMemory for Inline<N> {
    const MAX: usize = N;

    #[inline]
    fn holes(&self) -> &[Hole] {
        &self.holes[..self.len]
    }

    #[inline]
    fn holes_mut(&mut self) -> &mut [Hole] {
        &mut self.holes[..self.len]
    }

    #[inline]
    fn insert(&mut self, at: usize, hole: Hole) -> bool {
        if self.len == N {
            return false;
        }
        self.holes.copy_within(at..self.len, at + 1);
        self.holes[at] = hole;
        self.len += 1;
        true
    }

    #[inline]
    fn remove(&mut self, at: usize) {
        self.holes.copy_within(at + 1..self.len, at);
        self.len -= 1;
    }
}

/// Up to `N` holes in a vector.
#[derive(Clone, Debug)]
pub struct Listed<const N: usize>(Vec<Hole>);

impl<const N: usize> Listed<N> {
    pub(crate) const NEW: Self = Self(Vec::new());
}

impl<const N: usize> HoleMemory for Listed<N> {
    const MAX: usize = N;

    #[inline]
    fn holes(&self) -> &[Hole] {
        &self.0
    }

    #[inline]
    fn holes_mut(&mut self) -> &mut [Hole] {
        &mut self.0
    }

    #[inline]
    fn insert(&mut self, at: usize, hole: Hole) -> bool {
        let has_room = self.0.len() < N && self.0.try_reserve(1).is_ok();
        if has_room {
            self.0.insert(at, hole);
        }
        has_room
    }

    #[inline]
    fn remove(&mut self, at: usize) {
        self.0.remove(at);
    }
}

/// Adds `[start, end)`, which is not empty, and merges it with what it touches.
pub(crate) fn add(list: &mut impl HoleMemory, start: u64, end: u64) -> Changed {
    let at = list.holes().partition_point(|hole| hole.0 < start);
    let below = at.checked_sub(1).map(|below| list.holes()[below].1);
    let above = list.holes().get(at).copied();
    if below.is_some_and(|below| below > start) || above.is_some_and(|above| above.0 < end) {
        return Changed::No;
    }
    match (below == Some(start), above.filter(|above| above.0 == end)) {
        (true, Some((_, above_end))) => {
            list.holes_mut()[at - 1].1 = above_end;
            list.remove(at);
        }
        (true, None) => list.holes_mut()[at - 1].1 = end,
        (false, Some(_)) => list.holes_mut()[at].0 = start,
        (false, None) => {
            if !list.insert(at, (start, end)) {
                return Changed::Full;
            }
        }
    }
    Changed::Yes
}

/// Takes `[start, end)`, which is not empty.
pub(crate) fn take(list: &mut impl HoleMemory, start: u64, end: u64) -> Changed {
    let at = list.holes().partition_point(|hole| hole.0 <= start);
    match at.checked_sub(1).map(|at| (at, list.holes()[at])) {
        Some((at, hole)) if end <= hole.1 => cut(list, at, start, end),
        _ => Changed::No,
    }
}

/// Takes `[start, end)` of hole `at`, which has all of it.
#[inline]
pub(crate) fn cut(list: &mut impl HoleMemory, at: usize, start: u64, end: u64) -> Changed {
    let hole = list.holes()[at];
    match (start == hole.0, end == hole.1) {
        (true, true) => list.remove(at),
        (true, false) => list.holes_mut()[at].0 = end,
        (false, true) => list.holes_mut()[at].1 = start,
        (false, false) => {
            if !list.insert(at + 1, (end, hole.1)) {
                return Changed::Full;
            }
            list.holes_mut()[at].1 = start;
        }
    }
    Changed::Yes
}

/// Returns the lowest multiple of `2^align_log2` from which on `len` units are free within `[low, high)`, and its hole.
#[inline]
pub(crate) fn lowest(holes: &[Hole], len: u64, align_log2: u32, window: Hole) -> Option<(usize, u64)> {
    let align = 1u64.checked_shl(align_log2)?;
    holes.iter().enumerate().find_map(|(at, &(start, end))| {
        let first = start.max(window.0).checked_next_multiple_of(align)?;
        (first.checked_add(len)? <= end.min(window.1)).then_some((at, first))
    })
}

/// Returns the first unit of the smallest hole of at least `len` units, of equal ones the lowest, and the hole.
#[inline]
pub(crate) fn best(holes: &[Hole], len: u64) -> Option<(usize, u64)> {
    let (mut best, mut size) = (None, u64::MAX);
    for (at, &(start, end)) in holes.iter().enumerate() {
        if end - start >= len && end - start < size {
            (best, size) = (Some((at, start)), end - start);
            if size == len {
                break;
            }
        }
    }
    best
}

/// Returns the first unit that `padding` permits of the hole in which the fewest units are left above it, at least `len`;
/// of equal ones the lowest.
pub(crate) fn best_aligned(
    holes: impl Iterator<Item = Hole>,
    len: u64,
    align: u64,
    padding: impl Fn(u64) -> Option<u64>,
    is_by_size: bool,
) -> Option<u64> {
    let mut best: Option<(u64, u64)> = None;
    for (start, end) in holes {
        // A hole has at least its size less `align - 1` above the first multiple: no later one can be better.
        if is_by_size && best.is_some_and(|(usable, _)| end - start > usable.saturating_add(align - 1)) {
            break;
        }
        let first = padding(start).and_then(|units| start.checked_add(units));
        let usable = first.and_then(|first| Some((end.checked_sub(first)?, first)));
        if let Some(usable) = usable.filter(|&(usable, _)| usable >= len) {
            best = Some(best.map_or(usable, |best| best.min(usable)));
        }
    }
    best.map(|(_, first)| first)
}
