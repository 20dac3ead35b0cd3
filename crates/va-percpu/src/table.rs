//! One record a row, in one slab that moves when it grows.
//!
//! # Theory
//! What is small and read by every call: a row is found with one comparison and one addition, where [`Rows`](crate::rows::Rows), which
//! never move, take a dozen instructions. Growing copies what there is, under the lock: so there are at least twice as many rows
//! afterwards, and a copy costs less than one more chunk.
//!
//! # Invariants
//! - **PT1 table-holds**  there is a record for each row that may be in use.

use va_base::{Broken, Platform, Record, Va};

/// A record for each row.
pub(crate) struct Table<T: Record> {
    records: &'static mut [T],
}

impl<T: Record> Table<T> {
    /// No rows.
    pub(crate) fn new() -> Self {
        Self { records: Default::default() }
    }

    /// A row.
    #[inline(always)]
    pub(crate) fn one(&self, row: u32) -> &T {
        &self.records[row as usize]
    }

    /// A row.
    #[inline(always)]
    pub(crate) fn one_mut(&mut self, row: u32) -> &mut T {
        &mut self.records[row as usize]
    }

    /// Asks for a slab of so many rows. `None` if the platform refuses.
    pub(crate) fn lend<P: Platform>(rows: u32, platform: &P) -> Option<&'static mut [T]> {
        platform.lend_slab(rows as usize).filter(|slab| slab.len() >= rows as usize)
    }

    /// Moves into a slab, and returns the old one.
    pub(crate) fn move_to(&mut self, slab: &'static mut [T]) -> &'static mut [T] {
        let (same, new) = slab.split_at_mut(self.records.len());
        same.copy_from_slice(self.records);
        new.fill(T::EMPTY);
        core::mem::replace(&mut self.records, slab)
    }

    /// Hands the slab back.
    pub(crate) fn give_back<P: Platform>(&mut self, platform: &P) {
        let records = core::mem::take(&mut self.records);
        if !records.is_empty() {
            platform.take_back_slab(records);
        }
    }

    /// Checks PT1.
    pub(crate) fn validate(&self, rows: u32) -> Result<(), Broken> {
        let held = self.records.len() as u64;
        Broken::unless(held >= u64::from(rows), "PT1", Va::new(0), rows.into(), held)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::bitmap::Word;
    use crate::testing::Heap;

    #[test]
    fn pt1_rows_keep_what_they_hold_when_the_table_grows() {
        let heap = Heap::default();
        let mut table: Table<Word> = Table::new();
        for rows in [2, 4, 8] {
            let before = table.records.len() as u32;
            let old = table.move_to(Table::lend(rows, &heap).unwrap());
            if !old.is_empty() {
                heap.take_back_slab(old);
            }
            table.validate(rows).unwrap();
            assert!((0..before).all(|row| *table.one(row) == Word(u64::from(row) + 7)));
            assert!((before..rows).all(|row| *table.one(row) == Word(0)));
            (0..rows).for_each(|row| *table.one_mut(row) = Word(u64::from(row) + 7));
        }
        assert_eq!(table.validate(table.records.len() as u32 + 1).unwrap_err().rule, "PT1");
        table.give_back(&heap);
        assert_eq!(heap.lent(), 0);
    }
}
