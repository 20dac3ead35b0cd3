//! Rows of records, all of one length, that the platform lends slab by slab and that never move.
//!
//! # Theory
//! Every chunk needs the same: words of bitmap, a row for its engine, one for slabs. Row `r` of each kind belongs to chunk `r`. The
//! first slab has [`FIRST`] rows, each further one as many as there are already, so that 32 slabs are always enough and the
//! place of a row is a shift away. Rows of chunks destroyed are used again; slabs go back when all is dropped.
//!
//! # Invariants
//! - **PW1 rows-lent**  the slabs lent hold exactly the rows that there are said to be.

use va_base::{Broken, Platform, Record, Va};

/// Rows of the first slab: the first chunk and the reserved one.
const FIRST: u32 = 2;
/// Most slabs.
const SLABS_MAX: usize = 30;

/// Rows of `T`.
pub(crate) struct Rows<T: Record> {
    /// Records of a row.
    len: u32,
    slabs: [&'static mut [T]; SLABS_MAX],
    lent: usize,
}

/// A slab that was lent and is not yet in use.
pub(crate) struct Spare<T: Record>(&'static mut [T]);

impl<T: Record> Rows<T> {
    /// No rows, of `len` records each.
    pub(crate) fn new(len: u32) -> Self {
        Self { len: len.max(1), slabs: core::array::from_fn(|_| Default::default()), lent: 0 }
    }

    /// Rows of which slab `slab` is made.
    fn rows_of(slab: usize) -> u32 {
        if slab == 0 { FIRST } else { FIRST << (slab - 1) }
    }

    /// Rows that there are.
    pub(crate) fn count(&self) -> u32 {
        Self::counted(self.lent)
    }

    /// Rows that there will be with one more slab.
    pub(crate) fn count_after(&self) -> u32 {
        Self::counted(self.lent + 1)
    }

    fn counted(lent: usize) -> u32 {
        if lent == 0 { 0 } else { FIRST << (lent - 1) }
    }

    /// Asks for the next slab. `None` if the platform refuses or there can be no more.
    pub(crate) fn lend<P: Platform>(lent: usize, len: u32, platform: &P) -> Option<Spare<T>> {
        if lent == SLABS_MAX {
            return None;
        }
        let records = usize::try_from(u64::from(Self::rows_of(lent)) * u64::from(len)).ok()?;
        platform.lend_slab(records).filter(|slab| slab.len() >= records).map(Spare)
    }

    /// What [`lend`](Self::lend) must be told to lend the next slab.
    pub(crate) fn next(&self) -> (usize, u32) {
        (self.lent, self.len)
    }

    /// Uses a slab.
    pub(crate) fn add(&mut self, spare: Spare<T>) {
        self.slabs[self.lent] = spare.0;
        self.lent += 1;
    }

    /// Which slab, and where in it.
    #[inline]
    fn place(&self, row: u32) -> (usize, usize) {
        let (slab, row) = Self::split(row);
        (slab, row * self.len as usize)
    }

    /// Which slab, and which of its rows.
    #[inline]
    fn split(row: u32) -> (usize, usize) {
        // Slab 0 has rows 0 and 1, slab n those whose highest bit is bit n.
        let slab = (row | 1).ilog2();
        let before = (1 << slab) & !1;
        (slab as usize, (row - before) as usize)
    }

    /// A row.
    #[inline]
    pub(crate) fn row(&self, row: u32) -> &[T] {
        let (slab, at) = self.place(row);
        &self.slabs[slab][at..at + self.len as usize]
    }

    /// A row.
    #[inline]
    pub(crate) fn row_mut(&mut self, row: u32) -> &mut [T] {
        let (slab, at) = self.place(row);
        &mut self.slabs[slab][at..at + self.len as usize]
    }

    /// A record of a row.
    #[inline(always)]
    pub(crate) fn at(&self, row: u32, nth: u32) -> &T {
        let (slab, at) = self.place(row);
        &self.slabs[slab][at + nth as usize]
    }

    /// A record of a row.
    #[inline(always)]
    pub(crate) fn at_mut(&mut self, row: u32, nth: u32) -> &mut T {
        let (slab, at) = self.place(row);
        &mut self.slabs[slab][at + nth as usize]
    }

    /// Hands all slabs back.
    pub(crate) fn give_back<P: Platform>(&mut self, platform: &P) {
        for slab in &mut self.slabs[..self.lent] {
            platform.take_back_slab(core::mem::take(slab));
        }
        self.lent = 0;
    }

    /// Checks PW1.
    pub(crate) fn validate(&self, rows: u32) -> Result<(), Broken> {
        let (count, lent) = (self.count(), self.slabs[..self.lent].iter().enumerate());
        let held = lent
            .map(|(slab, lent)| (lent.len() as u64 / u64::from(self.len)).min(Self::rows_of(slab).into()));
        let held: u64 = held.sum();
        Broken::unless(count == rows, "PW1", Va::new(0), rows.into(), count.into())?;
        Broken::unless(held == u64::from(rows), "PW1", Va::new(0), rows.into(), held)
    }
}

/// The highest bit of a row says in which slab it is.
const _: () = assert!(FIRST == 2);

impl<T: Record> Spare<T> {
    /// Hands the slab back unused.
    pub(crate) fn give_back<P: Platform>(self, platform: &P) {
        platform.take_back_slab(self.0);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::bitmap::Word;
    use crate::testing::Heap;

    #[test]
    fn pw1_every_row_has_its_own_place() {
        let heap = Heap::default();
        let mut rows: Rows<Word> = Rows::new(3);
        for _ in 0..6 {
            let (lent, len) = rows.next();
            let spare = Rows::lend(lent, len, &heap).unwrap();
            rows.add(spare);
        }
        assert_eq!(rows.count(), 64);
        rows.validate(64).unwrap();
        for row in 0..64 {
            rows.row_mut(row).fill(Word(u64::from(row)));
        }
        assert!((0..64).all(|row| rows.row(row) == [Word(u64::from(row)); 3]));
        rows.give_back(&heap);
        assert_eq!(heap.lent(), 0);
        assert_eq!(rows.validate(64).unwrap_err().rule, "PW1");
    }

    #[test]
    fn a_refused_slab_leaves_what_there_was() {
        let heap = Heap::default();
        heap.refuse_after(1);
        let mut rows: Rows<Word> = Rows::new(1);
        let (lent, len) = rows.next();
        rows.add(Rows::lend(lent, len, &heap).unwrap());
        let (lent, len) = rows.next();
        assert!(Rows::<Word>::lend(lent, len, &heap).is_none());
        rows.validate(2).unwrap();
    }
}
