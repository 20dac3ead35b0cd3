//! A page table made of `mmap`: the frame at each page of a reserved range, and the pages to be unmapped.
//!
//! # Theory
//! A word for each page of the range records the kernel's mapping there. An unmapped page is **stale** first: its
//! mapping stays, and its address is not reused, until a flush unmaps it. A flush is one call for all stale pages
//! without a live page between them. That call is the flush of the space above.
//!
//! ```text
//!   words     7 8 9 . 2 s s . s s s . 4 5     numbers: frames;  s: stale;  .: nothing
//!   kernel    |===|.|=|===|.|=====|.|==|
//!   a flush             |---------|           one call
//! ```
//! Each run of consecutive frames is one mapping of the kernel, of which a process may have `vm.max_map_count`. The
//! words yield the exact number of the table's mappings. It does not exceed a quarter of that limit.
//!
//! # Invariants
//! - **VW1 words** a word records the kernel's mapping at its page.
//! - **VW2 counted** the count of mappings is one more than the number of adjacent words that do not continue each
//!   other.
//!
//! # Locking
//! `mappings`, under which words change and `mmap` is called (the kernel serializes these calls, too). Words are read
//! without a lock.
//! # Source
//! Our own; `man 2 mmap`. Linux's counterparts: page tables, `vunmap_range_noflush`, `flush_tlb_kernel_range`.

use super::os::{File, MapOs, Span, VmapCall};
use crate::PAGE_BYTES;
use core::ops::Range;
use core::ptr::with_exposed_provenance;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use va_base::{Va, VaRange};
use va_map::{Entries, Leaf, PageTable, PageTableError, Protection, Stopped};
use vmalloc_os::lock::Mutex;
use vmalloc_os::os::Errno;

/// The stale runs from which on a flush is due: a batch that is still in the CPU's caches costs the kernel less
/// (`results/vmap.md`).
const STALE_RUNS_MAX: u64 = 64;
/// The page is mapped: for a caller, or stale.
const PRESENT: u64 = 1;
/// The page is to be unmapped by a flush.
const STALE: u64 = 2;
const WRITABLE: u64 = 4;
const FRAME_AT: u32 = 8;

/// The protection of a mapping that may be written to; that of others is 0.
pub(super) const WRITE: Protection = Protection(WRITABLE as u32);

/// The call that failed when a table was made, and its error.
pub(super) type CallFailed = (VmapCall, Errno);

pub(super) struct Table<V: MapOs> {
    // Constant after `new`.
    pub(super) os: V,
    pub(super) file: File,
    window: Span,
    first: u64,
    pages: u64,
    words: Span,
    /// The limit of mappings.
    limit: u64,
    // Under its lock.
    mappings: Mutex<Mappings>,
    // Atomic, hint only.
    /// Set if a flush failed, and is to be tried again. Protocol PR-HINT.
    failed: AtomicBool,
}

struct Mappings {
    /// The number of the kernel's mappings in the range (VW2).
    count: u64,
    /// A range that contains all stale pages.
    stale: Range<u64>,
    stale_pages: u64,
    /// Runs that became stale since all stale pages were flushed.
    stale_runs: u64,
    calls: u64,
}

/// The counts that a table reports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    pub(super) count: u64,
    pub(super) limit: u64,
    pub(super) stale_pages: u64,
    pub(super) flush_calls: u64,
}

impl<V: MapOs> Table<V> {
    /// Reserves the largest range of the ladder, at most `most` bytes, and creates the memory file.
    pub(super) fn new(os: V, ladder: &[usize], most: usize, limit: u64) -> Result<Self, CallFailed> {
        let mut failed = (VmapCall::Reserve, Errno::NOMEM);
        for &bytes in ladder.iter().filter(|&&bytes| bytes <= most) {
            match Self::reserve(&os, bytes) {
                Ok((window, words)) => {
                    let file = os.create().map_err(|errno| {
                        // SAFETY: the range is not used yet.
                        unsafe { os.release(window) };
                        // SAFETY: as before.
                        unsafe { os.release(words) };
                        (VmapCall::Create, errno)
                    })?;
                    let (first, pages) = ((window.at / PAGE_BYTES) as u64, (bytes / PAGE_BYTES) as u64);
                    let mappings =
                        Mappings { count: 1, stale: 0..0, stale_pages: 0, stale_runs: 0, calls: 0 };
                    return Ok(Self {
                        os,
                        file,
                        window,
                        first,
                        pages,
                        words,
                        limit,
                        mappings: Mutex::new(mappings),
                        failed: AtomicBool::new(false),
                    });
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    fn reserve(os: &V, bytes: usize) -> Result<(Span, Span), CallFailed> {
        let at = os.reserve(bytes).map_err(|errno| (VmapCall::Reserve, errno))?;
        let window = Span { at, bytes };
        let word_bytes = (bytes / PAGE_BYTES * size_of::<u64>()).next_multiple_of(PAGE_BYTES);
        let words = os.words(word_bytes).map_err(|errno| {
            // SAFETY: the range is not used yet.
            unsafe { os.release(window) };
            (VmapCall::Words, errno)
        })?;
        Ok((window, Span { at: words, bytes: word_bytes }))
    }

    /// Unmaps the range and the words, and closes the file.
    ///
    /// # Safety
    /// The table is not used any more, and no reference to its mappings remains.
    pub(super) unsafe fn end(&self) {
        // SAFETY: this function's contract.
        unsafe { self.os.release(self.window) };
        // SAFETY: as before.
        unsafe { self.os.release(self.words) };
        self.os.close(self.file);
    }

    /// Returns the addresses of the range.
    pub(super) fn extent(&self) -> VaRange {
        VaRange::from_pages(self.first, self.first + self.pages).unwrap_or_default()
    }

    pub(super) fn counts(&self) -> Counts {
        let held = self.mappings.lock();
        Counts {
            count: held.count,
            limit: self.limit,
            stale_pages: held.stale_pages,
            flush_calls: held.calls,
        }
    }

    fn cell(&self, place: u64) -> &AtomicU64 {
        assert!(place < self.pages, "page {place} of {}", self.pages);
        let words = with_exposed_provenance::<AtomicU64>(self.words.at);
        // SAFETY: mapped for as many words as there are pages until `end`.
        let cell = unsafe { words.add(place as usize) };
        // SAFETY: as before; aligned, zeros at first, and used as atomics only.
        unsafe { &*cell }
    }

    /// Returns the indices of the words of a range.
    fn places(&self, range: VaRange) -> Range<u64> {
        let (first, end) = range.whole_pages();
        let place = |page: u64| page.saturating_sub(self.first).min(self.pages);
        place(first)..place(end)
    }

    fn word(&self, place: u64) -> u64 {
        // Acquire pairs with the stores: a thread that loads a mapped page's word can access the page.
        self.cell(place).load(Ordering::Acquire)
    }

    fn span(&self, places: &Range<u64>) -> Span {
        let bytes = |pages: u64| pages as usize * PAGE_BYTES;
        Span { at: self.window.at + bytes(places.start), bytes: bytes(places.end - places.start) }
    }

    /// Returns the number of adjacent words that do not continue each other, from the page below `places` to the page
    /// above.
    fn edges(&self, places: &Range<u64>, word: impl Fn(u64) -> u64) -> u64 {
        let from = places.start.saturating_sub(1);
        let to = (places.end + 1).min(self.pages);
        let pairs = (from + 1..to).filter(|&place| !continues(word(place - 1), word(place)));
        pairs.count() as u64
    }

    /// Unmaps the stale pages in `range`. If a call fails, its pages stay stale, and it is tried again before a flush
    /// counts as completed.
    pub(super) fn flush(&self, range: VaRange) {
        let mut held = self.mappings.lock();
        let places = self.places(range);
        let end = places.end.min(held.stale.end);
        let mut from = places.start.max(held.stale.start);
        while from < end {
            let Some(run) = self.stale_run(from, end) else { break };
            from = run.end;
            held.calls += 1;
            // SAFETY: no page in the run is a caller's, and none becomes so under the lock (VW1); no reference to stale
            // pages exists.
            if unsafe { self.os.unmap(self.span(&run)) }.is_err() {
                // SAFETY: as before.
                unsafe { self.os.mend(self.span(&run)) };
                self.failed.store(true, Ordering::Relaxed);
                continue;
            }
            let before = self.edges(&run, |place| self.word(place));
            for place in run.clone() {
                held.stale_pages -= u64::from(self.word(place) & STALE != 0);
                // Release pairs with `word`.
                self.cell(place).store(0, Ordering::Release);
            }
            held.count = held.count + self.edges(&run, |place| self.word(place)) - before;
        }
        if held.stale_pages == 0 {
            (held.stale, held.stale_runs) = (0..0, 0);
        }
    }

    /// Returns true if enough stale runs exist for a flush.
    pub(super) fn is_due(&self) -> bool {
        self.mappings.lock().stale_runs >= STALE_RUNS_MAX
    }

    /// Returns true if every flush so far succeeded. Tries once more if not.
    pub(super) fn flushed(&self) -> bool {
        if self.failed.swap(false, Ordering::Relaxed) {
            self.flush(self.extent());
        }
        !self.failed.load(Ordering::Relaxed)
    }

    /// Returns the first run of stale pages from `from` on, which ends before a caller's page.
    fn stale_run(&self, from: u64, end: u64) -> Option<Range<u64>> {
        let start = (from..end).find(|&place| self.word(place) & STALE != 0)?;
        let (mut stop, mut place) = (start + 1, start + 1);
        while place < end {
            match self.word(place) {
                0 => {}
                word if word & STALE != 0 => stop = place + 1,
                _ => break,
            }
            place += 1;
        }
        Some(start..stop)
    }

    /// Takes the lock of the table.
    #[cfg(test)]
    pub(super) fn hold(&self) -> impl Drop + '_ {
        self.mappings.lock()
    }

    /// Checks VW2 by a walk over all words; The error has the recorded and the counted mappings.
    #[cfg(test)]
    pub(super) fn check(&self) -> Result<(), (u64, u64)> {
        let held = self.mappings.lock();
        let found = 1 + self.edges(&(0..self.pages), |place| self.word(place));
        let stale = (0..self.pages).filter(|&place| self.word(place) & STALE != 0).count() as u64;
        if (held.count, held.stale_pages) == (found, stale) { Ok(()) } else { Err((held.count, found)) }
    }
}

/// Returns true if the pages of two adjacent words are one mapping.
fn continues(left: u64, right: u64) -> bool {
    let access = WRITABLE | PRESENT;
    match (left, right) {
        (0, 0) => true,
        (0, _) | (_, 0) => false,
        _ => left & access == right & access && (left >> FRAME_AT) + 1 == right >> FRAME_AT,
    }
}

impl<V: MapOs> PageTable for Table<V> {
    // The kernel writes the page-table entries, so there is one size.
    const LEAF_SIZES: &'static [u32] = &[0];

    fn map(&self, at: Va, entries: Entries) -> Result<(), Stopped> {
        let Entries { run, protection, .. } = entries;
        let start = at.page_floor() - self.first;
        let places = start..start + run.pages;
        let access = PRESENT | u64::from(protection.0) & WRITABLE;
        let new = |place: u64| match places.contains(&place) {
            true => (run.first + place - start) << FRAME_AT | access,
            false => self.word(place),
        };
        let mut held = self.mappings.lock();
        let before = self.edges(&places, |place| self.word(place));
        let count = held.count + self.edges(&places, new) - before;
        if count > self.limit {
            return Err(Stopped {
                pages_done: 0,
                why: PageTableError::Limit { wanted: count, limit: self.limit },
            });
        }
        let offset = run.first * PAGE_BYTES as u64;
        // SAFETY: a part of the window that the space allocated to this caller only, and that is not mapped (SP2).
        let mapped = unsafe { self.os.map(self.span(&places), self.file, offset, access & WRITABLE != 0) };
        if let Err(errno) = mapped {
            // SAFETY: as before.
            unsafe { self.os.mend(self.span(&places)) };
            return Err(Stopped { pages_done: 0, why: PageTableError::Other(errno.0) });
        }
        held.count = count;
        for place in places.clone() {
            // Release pairs with `word`. Checks VW1: the word records the mapping made above.
            self.cell(place).store(new(place), Ordering::Release);
        }
        Ok(())
    }

    fn unmap(&self, range: VaRange, gone: &mut dyn FnMut(Leaf)) {
        let mut held = self.mappings.lock();
        let places = self.places(range);
        let mut before = 0;
        for place in places.clone() {
            let word = self.word(place);
            held.stale_runs += u64::from(!continues(before, word));
            before = word;
            if word & PRESENT != 0 && word & STALE == 0 {
                self.cell(place).store(word | STALE, Ordering::Release);
                held.stale_pages += 1;
                gone(Leaf { first: word >> FRAME_AT, pages_log2: 0 });
            }
        }
        held.stale = match held.stale.is_empty() {
            true => places,
            false => held.stale.start.min(places.start)..held.stale.end.max(places.end),
        };
    }

    fn leaf(&self, at: Va) -> Option<Leaf> {
        let place = at.page_floor().checked_sub(self.first).filter(|&place| place < self.pages)?;
        let word = self.word(place);
        (word & PRESENT != 0 && word & STALE == 0).then_some(Leaf { first: word >> FRAME_AT, pages_log2: 0 })
    }
}
