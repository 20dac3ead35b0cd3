//! A table of one record a row, contiguous where the platform has such memory, and in pages otherwise.
//!
//! # Theory
//! For records that are small and read by every call: a row of contiguous memory is found with one comparison and one
//! addition. A table that is too short is replaced by one of twice the rows, whose memory is allocated with no lock
//! held. The records move under the lock, which costs less than one more chunk. Each replacement requests contiguous
//! memory first, so a table that went into pages in a shortage is contiguous again afterwards. In pages, [`PagedArray`]
//! finds a row, in about thirty instructions.
//!
//! # Invariants
//! - **PT1 table-holds**  there is a record for each row that may be in use.

use va_base::{InvariantViolation, Meta, PagedArray, Platform, Record, Va, alloc_exact};

/// An array of pages as a record, since it is too large for a field of each table.
struct Pages<T: Record>(PagedArray<T>);

impl<T: Record> Clone for Pages<T> {
    /// Returns an empty array: memory has one owner.
    fn clone(&self) -> Self {
        Self::EMPTY
    }
}

impl<T: Record> Record for Pages<T> {
    const EMPTY: Self = Self(PagedArray::new());
}

/// A record for each row.
pub(crate) struct Table<T: Record> {
    flat: Meta<&'static mut [T]>,
    /// One array, if the platform had no contiguous memory long enough.
    pages: Meta<&'static mut [Pages<T>]>,
}

impl<T: Record> Table<T> {
    /// Creates a table of no rows.
    pub(crate) const fn new() -> Self {
        Self { flat: Meta::new(&mut []), pages: Meta::new(&mut []) }
    }

    /// Returns the number of rows.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        if self.flat.is_empty() {
            self.pages.first().map_or(0, |pages| pages.0.len())
        } else {
            self.flat.len()
        }
    }

    /// Returns a row, if there is one.
    #[inline(always)]
    pub(crate) fn get(&self, row: usize) -> Option<&T> {
        match self.flat.get(row) {
            Some(record) => Some(record),
            None => self.in_pages(row),
        }
    }

    /// Returns a row.
    #[inline(always)]
    pub(crate) fn one(&self, row: u32) -> &T {
        let row = row as usize;
        match self.get(row) {
            Some(record) => record,
            None => &self.flat[row],
        }
    }

    /// Returns a row mutably.
    #[inline(always)]
    pub(crate) fn one_mut(&mut self, row: u32) -> &mut T {
        let row = row as usize;
        if row < self.flat.len() {
            return &mut self.flat[row];
        }
        self.in_pages_mut(row)
    }

    #[cold]
    #[inline(never)]
    fn in_pages(&self, row: usize) -> Option<&T> {
        self.pages.first()?.0.get(u32::try_from(row).ok()?)
    }

    #[cold]
    #[inline(never)]
    fn in_pages_mut(&mut self, row: usize) -> &mut T {
        match self.pages.first_mut().and_then(|pages| pages.0.get_mut(row as u32)) {
            Some(record) => record,
            // Outside of both: an index past the end panics.
            None => &mut self.flat[row],
        }
    }

    /// Allocates a table of empty records for at least so many rows. `None` if the platform has no memory.
    pub(crate) fn alloc<P: Platform>(rows: usize, platform: &P) -> Option<Self> {
        let mut table = Self::new();
        if let Some(mut flat) = alloc_exact(platform, rows) {
            flat.fill(T::EMPTY);
            table.flat = flat;
            return Some(table);
        }
        table.pages = alloc_exact(platform, 1)?;
        table.pages.fill(Pages::EMPTY);
        let whole = table.pages.first_mut().is_some_and(|pages| pages.0.reserve(rows, platform).is_ok());
        if !whole {
            table.free(platform);
            return None;
        }
        for row in 0..table.len() {
            *table.in_pages_mut(row) = T::EMPTY;
        }
        Some(table)
    }

    /// Moves the records into `new`, which is at least as long, and returns the old, now empty table.
    pub(crate) fn move_to(&mut self, new: Self) -> Self {
        let mut old = core::mem::replace(self, new);
        for row in 0..old.len().min(self.len()) as u32 {
            *self.one_mut(row) = core::mem::replace(old.one_mut(row), T::EMPTY);
        }
        old
    }

    /// Frees the memory.
    pub(crate) fn free<P: Platform>(&mut self, platform: &P) {
        let (flat, mut pages) = (core::mem::take(&mut self.flat), core::mem::take(&mut self.pages));
        if !flat.is_empty() {
            platform.free_meta(flat);
        }
        if !pages.is_empty() {
            pages.iter_mut().for_each(|pages| pages.0.clear(platform));
            platform.free_meta(pages);
        }
    }

    /// Checks PT1.
    pub(crate) fn validate(&self, rows: u32) -> Result<(), InvariantViolation> {
        let held = self.len() as u64;
        self.pages.iter().try_for_each(|pages| pages.0.validate())?;
        InvariantViolation::check(held >= u64::from(rows), "PT1", Va::new(0), rows.into(), held)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::bitmap::Word;
    use va_base::LimitedHeap;

    #[test]
    fn pt1_rows_retain_their_entries_when_the_table_grows() {
        let heap = LimitedHeap::new();
        let mut table: Table<Word> = Table::new();
        // From contiguous memory to pages, to more of them, and to contiguous memory again.
        for (rows, bytes) in [(2u32, 1usize << 20), (512, 4096), (2000, 4096), (8000, 4096), (8193, 1 << 20)]
        {
            heap.limit(bytes);
            let before = table.len() as u32;
            table.move_to(Table::alloc(rows as usize, &heap).unwrap()).free(&heap);
            assert_eq!(table.flat.is_empty(), rows as usize * 8 > bytes, "{rows}");
            table.validate(rows).unwrap();
            assert!((0..before).all(|row| *table.one(row) == Word(u64::from(row) + 7)));
            let len = table.len() as u32;
            assert!((before..len).all(|row| *table.one(row) == Word(0)));
            (0..len).for_each(|row| *table.one_mut(row) = Word(u64::from(row) + 7));
        }
        assert!(table.get(table.len()).is_none());
        assert_eq!(table.validate(table.len() as u32 + 1).unwrap_err().rule, "PT1");
        table.free(&heap);
        assert_eq!(heap.slabs(), 0);
    }

    #[test]
    fn a_table_that_cannot_be_allocated_leaves_no_piece() {
        let heap = LimitedHeap::new();
        heap.limit(4096);
        for pieces in 0..5 {
            heap.fail_after(pieces);
            assert!(Table::<Word>::alloc(2000, &heap).is_none());
            assert_eq!(heap.slabs(), 0);
        }
    }
}
