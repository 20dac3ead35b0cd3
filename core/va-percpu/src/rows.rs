//! Rows of records, all of one length, each in an allocation of its own that never moves.
//!
//! # Theory
//! Every chunk needs the same rows: words of bitmap, a row for its engine, one for slabs. Row `r` of each kind belongs
//! to chunk `r`. A row is allocated when a chunk first uses it, as Linux allocates the bitmaps of a chunk. Rows of
//! destroyed chunks are used again, and all are freed when the space is dropped. A [`Table`] finds them. No row of a
//! unit of 32 KiB is longer than a page of 4 KiB; those of longer units need longer allocations.
//!
//! # Invariants
//! - **PW1 rows-held**  every row that may be in use has its memory.

use crate::table::Table;
use va_base::{InvariantViolation, Meta, Platform, Record, Va, alloc_exact};

/// The records of a row, or none.
pub(crate) struct Row<T: Record>(Meta<&'static mut [T]>);

impl<T: Record> Clone for Row<T> {
    /// Returns a row without memory: memory has one owner.
    fn clone(&self) -> Self {
        Self::EMPTY
    }
}

impl<T: Record> Record for Row<T> {
    const EMPTY: Self = Self(Meta::new(&mut []));
}

impl<T: Record> Row<T> {
    /// Allocates a row of at least `len` records. `None` if the platform has no memory.
    pub(crate) fn alloc<P: Platform>(len: u32, platform: &P) -> Option<Self> {
        alloc_exact(platform, len as usize).map(Self)
    }

    /// Returns whether there is memory.
    pub(crate) fn is_some(&self) -> bool {
        !self.0.is_empty()
    }

    /// Returns the records.
    pub(crate) fn records_mut(&mut self) -> &mut [T] {
        &mut self.0
    }

    /// Frees the memory.
    pub(crate) fn free<P: Platform>(self, platform: &P) {
        if !self.0.is_empty() {
            platform.free_meta(self.0);
        }
    }
}

/// Rows of `T`.
pub(crate) struct Rows<T: Record> {
    /// Records of a row.
    len: u32,
    rows: Table<Row<T>>,
}

impl<T: Record> Rows<T> {
    /// Creates no rows, of `len` records each.
    pub(crate) const fn new(len: u32) -> Self {
        Self { len: if len == 0 { 1 } else { len }, rows: Table::new() }
    }

    /// Returns the number of records of a row.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Returns whether a row has memory.
    #[inline]
    pub(crate) fn holds(&self, row: u32) -> bool {
        self.rows.get(row as usize).is_some_and(Row::is_some)
    }

    /// Uses memory for a row, and returns the row's previous memory.
    pub(crate) fn put(&mut self, row: u32, memory: Row<T>) -> Row<T> {
        core::mem::replace(self.rows.one_mut(row), memory)
    }

    /// Moves the rows into a longer table, and returns the old, now empty one.
    pub(crate) fn move_to(&mut self, rows: Table<Row<T>>) -> Table<Row<T>> {
        self.rows.move_to(rows)
    }

    /// Returns a row.
    #[inline]
    pub(crate) fn row(&self, row: u32) -> &[T] {
        &self.rows.one(row).0[..self.len as usize]
    }

    /// Returns a row mutably.
    #[inline]
    pub(crate) fn row_mut(&mut self, row: u32) -> &mut [T] {
        let len = self.len as usize;
        &mut self.rows.one_mut(row).0[..len]
    }

    /// Returns a record of a row.
    #[inline(always)]
    pub(crate) fn at(&self, row: u32, nth: u32) -> &T {
        &self.rows.one(row).0[nth as usize]
    }

    /// Returns a record of a row mutably.
    #[inline(always)]
    pub(crate) fn at_mut(&mut self, row: u32, nth: u32) -> &mut T {
        &mut self.rows.one_mut(row).0[nth as usize]
    }

    /// Frees all memory.
    pub(crate) fn free<P: Platform>(&mut self, platform: &P) {
        for row in 0..self.rows.len() as u32 {
            self.put(row, Row::EMPTY).free(platform);
        }
        self.rows.free(platform);
    }

    /// Checks that there is an entry for so many rows.
    pub(crate) fn validate_places(&self, rows: u32) -> Result<(), InvariantViolation> {
        self.rows.validate(rows)
    }

    /// Checks PW1, of `used` rows.
    pub(crate) fn validate(&self, used: u32) -> Result<(), InvariantViolation> {
        self.rows.validate(used)?;
        for row in 0..used {
            let held = self.rows.one(row).0.len() as u64;
            InvariantViolation::check(
                held >= self.len.into(),
                "PW1",
                Va::new(row.into()),
                self.len.into(),
                held,
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::bitmap::Word;
    use va_base::LimitedHeap;

    #[test]
    fn pw1_every_row_has_its_own_place() {
        let heap = LimitedHeap::new();
        let mut rows: Rows<Word> = Rows::new(3);
        rows.move_to(Table::alloc(64, &heap).unwrap()).free(&heap);
        for row in 0..64 {
            assert!(!rows.holds(row));
            rows.put(row, Row::alloc(rows.len(), &heap).unwrap()).free(&heap);
        }
        rows.validate(64).unwrap();
        for row in 0..64 {
            rows.row_mut(row).fill(Word(u64::from(row)));
        }
        assert!((0..64).all(|row| rows.row(row) == [Word(u64::from(row)); 3]));
        rows.put(7, Row::EMPTY).free(&heap);
        assert_eq!(rows.validate(64).unwrap_err().rule, "PW1");
        rows.free(&heap);
        assert_eq!(heap.slabs(), 0);
    }
}
