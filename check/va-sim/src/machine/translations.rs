//! The translations that CPUs may have of pages, in rows of 64: an area is a few words.

use super::Violation;
use std::collections::BTreeMap;
use std::ops::Range;
use va_base::{Va, VaRange};

/// Pages of a row: the bits of a word.
const ROW_PAGES: u64 = 64;

/// Pages that may be translated, a bit for each. The others are clean.
struct Row {
    mapped: u64,
    stale: u64,
    /// Times at which the stale ones were unmapped.
    unmapped: [u64; ROW_PAGES as usize],
}

impl Row {
    const CLEAN: Self = Self { mapped: 0, stale: 0, unmapped: [0; ROW_PAGES as usize] };
}

/// Pages that are not clean, by the numbers of their rows.
#[derive(Default)]
pub(super) struct Translations {
    rows: BTreeMap<u64, Row>,
}

/// Returns the numbers of the rows of a range.
fn numbers(range: VaRange) -> Range<u64> {
    let (first, end) = range.whole_pages();
    first / ROW_PAGES..end.div_ceil(ROW_PAGES)
}

/// Returns the bits of a range in one of its rows.
fn mask(range: VaRange, number: u64) -> u64 {
    let (first, end) = range.whole_pages();
    let low = first.saturating_sub(number * ROW_PAGES);
    let high = (end - number * ROW_PAGES).min(ROW_PAGES);
    u64::MAX << low & u64::MAX >> (ROW_PAGES - high)
}

/// Returns the positions of the bits that are set.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros() as usize)?;
        word &= word - 1;
        Some(bit)
    })
}

impl Translations {
    /// Maps pages, all of which must be clean.
    pub(super) fn map(&mut self, range: VaRange) -> Result<(), Violation> {
        for (&number, row) in self.rows.range(numbers(range)) {
            if let Some(bit) = bits((row.mapped | row.stale) & mask(range, number)).next() {
                let at = Va::from_page(number * ROW_PAGES + bit as u64);
                return Err(Violation { at, stale: row.stale >> bit & 1 == 1 });
            }
        }
        for number in numbers(range) {
            self.rows.entry(number).or_insert(Row::CLEAN).mapped |= mask(range, number);
        }
        Ok(())
    }

    /// Unmaps pages at time `now`: what was translated of them is stale.
    pub(super) fn unmap(&mut self, range: VaRange, now: u64) {
        for (&number, row) in self.rows.range_mut(numbers(range)) {
            let unclean = (row.mapped | row.stale) & mask(range, number);
            row.mapped &= !unclean;
            row.stale |= unclean;
            bits(unclean).for_each(|bit| row.unmapped[bit] = now);
        }
    }

    /// Ends a flush of `range` that began at time `begun`.
    pub(super) fn flush(&mut self, range: VaRange, begun: u64) {
        for (&number, row) in self.rows.range_mut(numbers(range)) {
            for bit in bits(row.stale & mask(range, number)) {
                if row.unmapped[bit] <= begun {
                    row.stale &= !(1 << bit);
                }
            }
        }
    }

    /// Returns the pages in `range` that are mapped or stale.
    pub(super) fn unclean(&self, range: VaRange) -> u64 {
        let unclean = |(&number, row): (&u64, &Row)| (row.mapped | row.stale) & mask(range, number);
        self.rows.range(numbers(range)).map(unclean).map(|word| u64::from(word.count_ones())).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_the_same_pages_in_rows_and_one_by_one() {
        let pages = |first, end| VaRange::from_pages(first, end).unwrap();
        for (first, end) in [(0, 1), (63, 64), (63, 65), (64, 128), (5, 200), (128, 129), (0, 192)] {
            let mut translations = Translations::default();
            translations.map(pages(first, end)).unwrap();
            for page in 0..256 {
                let is_in = (first..end).contains(&page);
                assert_eq!(translations.unclean(pages(page, page + 1)), u64::from(is_in), "{page}");
            }
            assert_eq!(translations.unclean(VaRange::ALL), end - first);
            // The first page of a row, and the last: one is unmapped later than the flush began.
            translations.unmap(pages(first, end), 1);
            translations.unmap(pages(end - 1, end), 3);
            translations.flush(VaRange::ALL, 2);
            let stale = Err(Violation { at: Va::from_page(end - 1), stale: true });
            assert_eq!(translations.map(pages(first, end)), stale);
            translations.flush(pages(end - 1, end), 3);
            assert_eq!(
                (translations.unclean(VaRange::ALL), translations.map(pages(first, end))),
                (0, Ok(()))
            );
        }
    }
}
