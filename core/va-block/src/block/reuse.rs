//! The path of pages from freed to reusable: note what a flush will cover, then recycle what it covered.
//!
//! # Theory
//! Noting copies the bits of `gone` that no flush covers yet into `flushed`, before the flush begins. Recycling clears
//! the marks of those alone, after the flush has ended. A mapping freed in between has a bit in `gone` and none in
//! `flushed`: it waits for the next flush. A block is in at most one flush at a time, so one word is enough
//! (docs/decisions/0009-reuse-in-blocks.md).
//!
//! A strip is recycled at once. Carries find the mappings that end in it ([`ends_inside`]); only the one that ends
//! elsewhere is walked.

use super::{Block, PAGES_MAX, place_of};
use crate::config::Config;
use crate::strip::STRIP_PAGES;
use va_base::sync::atomic::Ordering;

/// A hull of pages of one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hull {
    pub(crate) low: u32,
    pub(crate) high: u32,
}

impl Hull {
    pub(crate) const EMPTY: Self = Self { low: u32::MAX, high: 0 };

    pub(crate) fn is_empty(self) -> bool {
        self.low >= self.high
    }

    fn cover(&mut self, low: u32, high: u32) {
        self.low = self.low.min(low);
        self.high = self.high.max(high);
    }
}

impl Block {
    /// Notes that a flush will cover what was freed by now and not noted before, and adds it to `hull`. Queue lock.
    pub(crate) fn note_flushed(&self, hull: &mut Hull) {
        for (index, strip) in self.strips.iter().enumerate() {
            let flushed = strip.flushed();
            let fresh = strip.gone().bits() & !flushed;
            if fresh == 0 {
                continue;
            }
            let first = index as u32 * STRIP_PAGES;
            let (low, high) = (first + fresh.trailing_zeros(), first + fresh.ilog2());
            hull.cover(low, high + self.size_from(high).unwrap_or(1));
            strip.set_flushed(flushed | fresh);
        }
    }

    /// Returns whether mappings were freed that are not noted, and that no flush covers which has begun. Those that
    /// this call counts must be in the next flush. Queue lock, and that of the collection.
    pub(crate) fn claim_uncovered(&self) -> bool {
        let unnoted = self.unnoted();
        // As many as before are the same ones: they remain until they are noted, and then `uncover` is called.
        let covered = self.covered.load(Ordering::Relaxed);
        self.covered.store(unnoted, Ordering::Relaxed);
        unnoted != covered
    }

    /// Forgets what flushes cover, when all that is dead was noted. The same locks.
    pub(crate) fn uncover(&self) {
        self.covered.store(0, Ordering::Relaxed);
    }

    /// Recycles what a flush covered that has ended; returns the number of pages. Owner only.
    pub(crate) fn recycle<C: Config>(&self) -> u32 {
        let mut pages = 0;
        for (index, strip) in self.strips.iter().enumerate() {
            let flushed = strip.flushed();
            if flushed == 0 {
                continue;
            }
            let (inside, tails) =
                if C::ROUND_UP { (0, 0) } else { ends_inside(flushed, strip.marks().tails()) };
            let all = strip.marks().heads() == flushed;
            // All at once: from each head up to its tail.
            let freed = ((u64::from(tails) << 1).wrapping_sub(u64::from(inside))) as u32;
            strip.unmark(inside, tails);
            strip.set_free(strip.free() | freed);
            pages += freed.count_ones();
            for head in ones(flushed & !inside) {
                pages += self.recycle_one::<C>(index as u32 * STRIP_PAGES + head);
            }
            if all {
                strip.forget_all();
            } else {
                strip.forget(flushed);
            }
            strip.set_flushed(0);
        }
        self.loosen_fit();
        pages
    }

    /// Clears one mapping and frees its pages.
    fn recycle_one<C: Config>(&self, head: u32) -> u32 {
        let Some(size) = self.size_from(head) else { return 0 };
        let ((first, head_bit), (last, tail_bit)) = (place_of(head), place_of(head + size - 1));
        self.strips[first].unmark(1 << head_bit, 0);
        self.strips[last].unmark(0, 1 << tail_bit);
        self.set_free_between(head, head + C::consumed(size), true);
        C::consumed(size)
    }

    /// Returns whether every mapping was freed. Exact for the owner. Without the lock of a lane that recycles, it may
    /// take a live block for a dead one, and no dead one for live.
    pub(crate) fn is_dead(&self) -> bool {
        self.strips.iter().all(|strip| strip.living() == 0)
    }

    /// Returns whether there are dead pages that no flush covers yet. Exact for the owner.
    pub(crate) fn has_unflushed(&self) -> bool {
        self.strips.iter().any(|strip| strip.unnoted() != 0)
    }

    /// Returns the number of freed mappings that are not noted. It grows with each free, also while a lane recycles.
    fn unnoted(&self) -> u16 {
        const { assert!(PAGES_MAX <= u16::MAX as u32) };
        self.strips.iter().map(|strip| strip.unnoted().count_ones()).sum::<u32>() as u16
    }

    /// Returns whether there is no mapping at all, not even a dead one. Exact for the owner.
    #[cfg(test)]
    #[cfg(not(loom))]
    pub(crate) fn is_empty(&self) -> bool {
        self.strips.iter().all(|strip| strip.marks().heads() == 0)
    }
}

/// Returns the heads among `heads` whose mappings end in the same word, and their tails. `tails` has all tails of the
/// word.
///
/// A one added at a head runs as a carry through the pages that are no tail. It stops at the first page that is one: a
/// zero among ones, so the carries of several heads do not meet. The carry of a mapping that ends elsewhere leaves the
/// word.
fn ends_inside(heads: u32, tails: u32) -> (u32, u32) {
    let sum = u64::from(!tails) + u64::from(heads);
    let ends = sum as u32 & tails;
    // Only the highest head can be without its tail.
    let outside = if sum >> STRIP_PAGES == 0 { 0 } else { 1 << heads.ilog2() };
    (heads & !outside, ends)
}

/// Returns the positions of the ones of a word, lowest first.
pub(crate) fn ones(mut word: u32) -> impl Iterator<Item = u32> {
    core::iter::from_fn(move || {
        if word == 0 {
            return None;
        }
        let bit = word.trailing_zeros();
        word &= word - 1;
        Some(bit)
    })
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::super::tests::filled;
    use super::*;
    use crate::block::WrongFree;
    use crate::config::Standard;

    #[test]
    fn vb2_tails_are_found_by_carries() {
        // "[]" is a mapping, "=" its pages in between, "|" one of a page.
        let words = |text: &str| {
            let bits = |marks: &str| {
                text.bytes()
                    .enumerate()
                    .filter(|(_, c)| marks.contains(*c as char))
                    .fold(0, |word, (at, _)| word | 1 << at)
            };
            (bits("[|"), bits("]|"))
        };
        for (text, heads) in [
            ("|", 0b1),
            ("[]", 0b1),
            ("[==]", 0b1),
            ("[]|[=]", 0b1101),
            ("..[=].|", 0b100_0100),
            ("[==============================]", 1),
            ("[]............................[]", 1 | 1 << 30),
        ] {
            let (all, tails) = words(text);
            assert_eq!(all, heads, "{text}");
            assert_eq!(ends_inside(heads, tails), (heads, tails), "{text}");
            // A head alone finds the same tail.
            for head in ones(heads) {
                let own = tails & (u32::MAX << head);
                assert_eq!(ends_inside(1 << head, tails), (1 << head, own & own.wrapping_neg()), "{text}");
            }
        }
        let (heads, tails) = words("[].|..........................[=");
        assert_eq!(ends_inside(heads, tails), (0b1001, 0b1010), "the last ends elsewhere");
    }

    #[test]
    fn what_was_not_noted_is_not_recycled() {
        let (block, at) = filled(&[30, 10, 30]);
        let sizes = [30, 10, 30];
        let mut hull = Hull::EMPTY;
        assert!(!block.has_unflushed());
        block.free(at[1], sizes[1]).unwrap();
        assert!(block.has_unflushed());
        block.note_flushed(&mut hull);
        assert!(!block.has_unflushed());
        // Dead, but after the flush began.
        block.free(at[2], sizes[2]).unwrap();
        assert!(block.has_unflushed());
        assert_eq!((hull, block.recycle::<Standard>()), (Hull { low: 30, high: 40 }, 10));
        assert_eq!(block.free(at[2], 30), Err(WrongFree::Twice(30)));
        // "AAA...BBB" + 11 is allocated above, + 10 between.
        assert_eq!(block.carve_anywhere(11, 11, PAGES_MAX), Some(70));
        // The open run is the larger part; the gap remains for requests that fit only there.
        assert_eq!(block.carve(PAGES_MAX - 81, PAGES_MAX - 81), Some(81));
        assert_eq!(block.carve_anywhere(10, 10, PAGES_MAX), Some(30));
        assert_eq!(block.free(30, 10), Ok(()));
    }
}
