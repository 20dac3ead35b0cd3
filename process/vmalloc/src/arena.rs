//! The arena: address space reserved once, of which the lower end of each zone is accessible.
//!
//! # Theory
//! ```text
//!   |  words: 8 bytes a page  |  small zone  |          huge zone           |    one reservation, PROT_NONE
//!   |= rw =|      |== rw ==|  |= rw =|       |===== rw =====|               |
//!          ^               ^         ^ frontiers            ^ words and pages advance together, in steps
//! ```
//! There is a small and a huge zone for each node of CPUs (`arena/zones.rs`), each with a frontier of its own.
//!
//! A mapping for each allocation costs microseconds and stops all threads that map. A protection for each splits
//! mappings until the process reaches its limit of mappings. Here one `mprotect` a step of 2 to 64 MiB moves the
//! frontier, below which everything is readable and writable, and its neighbour mapping merges. A reservation costs no
//! memory; where overcommit is denied (mode 2), only memory below the frontier is charged; `mlockall` populates no more
//! than that.
//!
//! # Invariants
//! - **AR1 frontier** pages of a zone below its frontier, and their words, are readable and writable, except clean
//!   pages of an arena that was shut, and pages that were released. The frontier never moves back.
//! - **AR2 sole** the holder of a [`Run`] owns its pages exclusively. They are below the frontier, and no other run,
//!   cached item, dirty run or live area contains any of them.
//! # Locking
//! A frontier is moved under the lock of its zone and read without one.
//! # Source
//! Our own; Linux has its window (`VMALLOC_START`) from boot. Figures: `docs/decisions/0011-process-arena.md`.

mod released;
mod zones;

use crate::PAGE_BYTES;
use crate::error::CreateError;
use crate::frontier::Frontier;
use crate::options::HugePages;
use crate::page_word::{PAGES_MAX, Word};
use core::ptr::{NonNull, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use released::{PAGES, WORDS};
use va_base::VaRange;
use vmalloc_os::os::{Call, Errno, Huge, Os, Span};
use vmalloc_os::records::Host;
use zones::Layout;
pub(crate) use zones::{HUGE, KINDS, NODES, SMALL, ZONES};

/// Runs that a purge handles at a time.
pub(crate) const BATCH: usize = 64;
/// The sizes of an arena that are tried, as powers of two of bytes, the largest first.
const LADDER_LOG2: [u32; 9] = [40, 38, 36, 34, 32, 30, 28, 26, 25];
/// Pages of the largest.
pub(crate) const PAGES_MOST: u64 = (1u64 << LADDER_LOG2[0]) / PAGE_BYTES as u64;
/// Bytes of the smallest.
const LEAST_BYTES: usize = 1 << LADDER_LOG2[LADDER_LOG2.len() - 1];
/// The alignment of the first page: a huge page.
const BASE_ALIGN: usize = 2 << 20;
/// The least number of pages by which the frontier moves, and the most unless a request needs more.
const STEP_PAGES_MIN: u64 = 512;
const STEP_PAGES_MAX: u64 = 16_384;
const WORD_BYTES: usize = 8;
/// Pages whose residence one system call reports.
const ASKED_PAGES: usize = 512;
/// Pages of a huge page.
pub(crate) const HUGE_PAGES: u64 = (BASE_ALIGN / PAGE_BYTES) as u64;

/// Pages of the arena that their holder owns exclusively (AR2). Dropping a run leaks its pages, unless another
/// structure records them.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "pages that are dropped are lost"]
pub(crate) struct Run {
    page: u64,
    pages: u64,
}

impl Run {
    /// A run of no pages.
    pub(crate) const NOTHING: Self = Self { page: 0, pages: 0 };

    /// Claims pages.
    ///
    /// # Safety
    /// The pages are below the frontier, and their previous owner has released them (AR2).
    #[inline(always)]
    pub(crate) unsafe fn claim(page: u64, pages: u64) -> Self {
        Self { page, pages }
    }

    #[inline(always)]
    pub(crate) fn page(&self) -> u64 {
        self.page
    }

    #[inline(always)]
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    #[inline(always)]
    pub(crate) fn end(&self) -> u64 {
        self.page + self.pages
    }

    pub(crate) fn range(&self) -> VaRange {
        VaRange::from_pages(self.page, self.end()).unwrap_or_default()
    }

    fn span(&self) -> Span {
        Span { at: address(self.page), bytes: address(self.pages) }
    }
}

fn span_of(range: VaRange) -> Span {
    Span { at: range.start().get() as usize, bytes: range.len_bytes() as usize }
}

/// Returns the address of a page, or the bytes of a number of pages.
#[inline(always)]
pub(crate) const fn address(page: u64) -> usize {
    page as usize * PAGE_BYTES
}

/// Returns a pointer to a page of an arena.
#[inline(always)]
pub(crate) fn pointer(page: u64) -> *mut u8 {
    with_exposed_provenance_mut(address(page))
}

/// Returns the most bytes an arena may have: the caller's limit, and at most half of the process's address space limit.
pub(crate) fn room(os: &impl Os, bytes_max: usize) -> Result<usize, CreateError> {
    let bytes = bytes_max.min(os.address_limit().map_or(usize::MAX, |limit| limit / 2));
    if bytes < LEAST_BYTES {
        return Err(CreateError::TooSmall { bytes, least_bytes: LEAST_BYTES });
    }
    Ok(bytes)
}

/// The arena of one allocator.
// In this order, because the fields that each cached pair reads are the first 48 bytes.
#[repr(C)]
pub(crate) struct Arena<O: Os> {
    // Constant after `reserve`.
    first: u64,
    /// Pages of the small zone of node 0, the lowest one.
    small: u64,
    /// Pages below the huge zone of node 0, the highest one.
    below_huge: u64,
    /// The address that the word of page 0 would have; it wraps.
    words_at_0: usize,
    // Atomic; moved under the locks of the zones.
    /// The frontier of each zone.
    committed: [Frontier; ZONES],
    // Constant after `reserve`.
    host: Host<O>,
    reserved: Span,
    words: usize,
    pages: u64,
    /// Pages of each zone of another node: a power of two, or 0 if there are no other nodes.
    noded: u64,
    huge_pages: HugePages,
    // Atomic; changed under the locks of the zones.
    /// Pages below all frontiers. Protocol PR-HINT.
    committed_all: AtomicU64,
    /// Set once the addresses above the frontiers are released. They are mapped again when a frontier moves. Written
    /// under the locks of all zones. Protocol PR-LOCK.
    closed: AtomicBool,
    /// The parts above the frontiers that the system did not unmap then. Protocol PR-LOCK.
    kept: AtomicU64,
    /// Pages below a frontier in whose place other mappings may be. Protocol PR-LOCK.
    torn: AtomicU64,
    /// Set once clean pages may be inaccessible, so that a caller must `commit` them first. Read and written under the
    /// zone's lock. Protocol PR-LOCK.
    shut: AtomicBool,
}

impl<O: Os> Arena<O> {
    /// An arena without pages.
    pub(crate) const fn nothing() -> Self {
        Self {
            host: Host::NOWHERE,
            reserved: Span { at: 0, bytes: 0 },
            words: 0,
            words_at_0: 0,
            first: 0,
            pages: 0,
            small: 0,
            below_huge: 0,
            noded: 0,
            huge_pages: HugePages::Never,
            committed: [const { Frontier::none() }; ZONES],
            committed_all: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            kept: AtomicU64::new(0),
            torn: AtomicU64::new(0),
            shut: AtomicBool::new(false),
        }
    }

    /// Reserves the largest arena of the ladder that has at most `most` bytes, which must be at least those of the
    /// smallest.
    pub(crate) fn reserve(host: Host<O>, most: usize, huge_pages: HugePages) -> Result<Self, CreateError> {
        let mut failed = None;
        // The caller's size is tried first, if it is no step of the ladder.
        let own = Some(most & !(BASE_ALIGN - 1))
            .filter(|&bytes| bytes >= LEAST_BYTES && bytes < 1 << LADDER_LOG2[0]);
        let ladder = LADDER_LOG2.iter().map(|log2| 1usize << log2).filter(|&bytes| bytes <= most);
        for bytes in own.into_iter().chain(ladder) {
            let pages = (bytes / PAGE_BYTES) as u64;
            let words = (pages as usize * WORD_BYTES).next_multiple_of(PAGE_BYTES);
            let whole = words + bytes + BASE_ALIGN;
            match host.os().reserve(whole) {
                Ok(at) => {
                    let base = (at + words).next_multiple_of(BASE_ALIGN);
                    let Layout { small, below_huge, noded } = Layout::new(pages, huge_pages);
                    let arena = Self {
                        host,
                        reserved: Span { at, bytes: whole },
                        words: base - words,
                        words_at_0: (base - words).wrapping_sub(base / PAGE_BYTES * WORD_BYTES),
                        first: (base / PAGE_BYTES) as u64,
                        pages,
                        small,
                        below_huge,
                        noded,
                        huge_pages,
                        committed: [const { Frontier::none() }; ZONES],
                        committed_all: AtomicU64::new(0),
                        closed: AtomicBool::new(false),
                        kept: AtomicU64::new(0),
                        torn: AtomicU64::new(0),
                        shut: AtomicBool::new(false),
                    };
                    arena.advise_all();
                    return Ok(arena);
                }
                Err(errno) => failed = Some(errno),
            }
        }
        let errno = failed.unwrap_or(Errno::NOMEM);
        Err(CreateError::CallFailed { call: Call::Reserve, errno, bytes: LEAST_BYTES })
    }

    /// Returns the words of some pages of a zone: the whole pages that are committed when the frontier moves from one
    /// to the other.
    fn words_between(&self, zone: usize, from: u64, to: u64) -> Span {
        let first = self.extent(zone).start().page_floor();
        let word = |pages: u64| {
            (self.words + (first - self.first + pages) as usize * WORD_BYTES).next_multiple_of(PAGE_BYTES)
        };
        Span { at: word(from), bytes: word(to) - word(from) }
    }

    /// Advises the system whether to use huge pages for a range of a zone. Errors are ignored: a system without huge
    /// pages works without the advice.
    fn advise(&self, zone: usize, span: Span) {
        if self.huge_pages == HugePages::System {
            return;
        }
        let huge = if self.has_huge_pages(zone) { Huge::Yes } else { Huge::No };
        // SAFETY: part of the reservation; the advice does not change its contents.
        let _failed = unsafe { self.host.os().advise(span, huge) };
    }

    /// Returns the pages of the arena.
    pub(crate) fn whole(&self) -> VaRange {
        VaRange::from_pages(self.first, self.first + self.pages).unwrap_or_default()
    }

    #[inline(always)]
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Returns the number of pages of a zone below its frontier.
    pub(crate) fn committed_pages(&self, zone: usize) -> u64 {
        self.committed[zone].pages()
    }

    /// Returns the number of pages of all zones below their frontiers, a moment ago.
    pub(crate) fn committed_all(&self) -> u64 {
        self.committed_all.load(Ordering::Relaxed)
    }

    /// Returns the first page above the frontier of a zone.
    pub(crate) fn frontier(&self, zone: usize) -> u64 {
        self.extent(zone).start().page_floor() + self.committed_pages(zone)
    }

    /// Returns the page of an address in the arena, and the address's offset in it.
    #[inline(always)]
    pub(crate) fn locate(&self, at: usize) -> Option<(u64, usize)> {
        let page = (at / PAGE_BYTES) as u64;
        (page.wrapping_sub(self.first) < self.pages).then_some((page, at % PAGE_BYTES))
    }

    /// Returns the word of a page, if the page is below the frontier.
    #[inline(always)]
    pub(crate) fn word(&self, page: u64) -> Option<&AtomicU64> {
        let index = page.wrapping_sub(self.first);
        let (zone, below) = self.place_of(index);
        // The words below the frontier are readable. Checks AR1.
        if index - below >= self.committed[zone].pages() {
            return None;
        }
        let place =
            with_exposed_provenance_mut::<u64>(self.words_at_0.wrapping_add(page as usize * WORD_BYTES));
        // SAFETY: below the frontier, so readable and writable until the arena is unmapped, aligned, and used as an
        // atomic only.
        Some(unsafe { AtomicU64::from_ptr(place) })
    }

    /// Stores the new state of a run that the caller owns.
    #[inline(never)]
    pub(crate) fn put(&self, page: u64, word: Word) {
        if let Some(place) = self.word(page) {
            // Release: a thread that loads the word as live also sees the earlier writes to the area's pages.
            place.store(word.bits(), Ordering::Release);
        }
    }

    /// Stores the new state of a run as [`put`](Self::put) does, without a check of the frontier: a run is below it
    /// (AR2).
    #[inline(always)]
    pub(crate) fn put_run(&self, run: &Run, word: Word) {
        debug_assert!(self.word(run.page).is_some(), "AR2: a run is above the frontier");
        let place = with_exposed_provenance_mut(self.words_at_0.wrapping_add(run.page as usize * WORD_BYTES));
        // SAFETY: the word of a page below the frontier (AR2): readable and writable until the arena is unmapped,
        // aligned, and used as an atomic only.
        unsafe { AtomicU64::from_ptr(place) }.store(word.bits(), Ordering::Release);
    }

    /// Returns the word of a page; all zeros if it has none.
    #[inline(never)]
    pub(crate) fn get(&self, page: u64) -> Word {
        // Acquire pairs with `put`.
        self.word(page).map_or(Word::from_bits(0), |place| Word::from_bits(place.load(Ordering::Acquire)))
    }

    /// Makes clean pages below the frontier of a zone inaccessible, under the zone's lock. Returns `false` if the
    /// system call fails.
    pub(crate) fn shut(&self, clean: VaRange) -> bool {
        self.shut.store(true, Ordering::Relaxed);
        // SAFETY: clean pages have no owner, and a caller that takes them calls `commit` first.
        unsafe { self.host.os().forbid(span_of(clean)) }.is_ok()
    }

    /// Makes a range of a zone accessible, and moves the zone's frontier at least to the end of that range. Called
    /// under the zone's lock.
    pub(crate) fn commit(&self, range: VaRange) -> Result<(), (Errno, usize)> {
        let (start, end) = range.whole_pages();
        let zone = self.zone_of(end - 1);
        let (first, last) = self.extent(zone).whole_pages();
        let have = self.committed_pages(zone);
        let want = (end - first).min(last - first);
        let shut = self.shut.load(Ordering::Relaxed);
        if shut && start < first + have {
            let below = Span { at: address(start), bytes: address(end.min(first + have) - start) };
            // SAFETY: the pages' part of the reservation.
            unsafe { self.host.os().commit(below) }.map_err(|errno| (errno, below.bytes))?;
        }
        if want <= have {
            return Ok(());
        }
        let step = if shut || self.closed.load(Ordering::Relaxed) {
            0
        } else {
            (have / 4).clamp(STEP_PAGES_MIN, STEP_PAGES_MAX)
        };
        let eager = want.next_multiple_of(STEP_PAGES_MIN).max(have + step).min(last - first);
        // Tries a whole step first. Where every page is charged, a step can fail; then only the needed pages.
        match self.commit_to(zone, have, eager) {
            Err(_) if eager > want => self.commit_to(zone, have, want),
            done => done,
        }
        .map_err(|errno| (errno, address(want - have)))
    }

    fn commit_to(&self, zone: usize, have: u64, want: u64) -> Result<(), Errno> {
        self.committed[zone].advance(want, || self.open(zone, have, want))?;
        self.committed_all.fetch_add(want - have, Ordering::Relaxed);
        Ok(())
    }

    /// Makes the pages of a zone from `have` to `want` accessible, and their words.
    fn open(&self, zone: usize, have: u64, want: u64) -> Result<(), Errno> {
        let first = self.extent(zone).start().page_floor();
        // Whole pages of words; those up to `have` were committed, rounded up.
        let words = self.words_between(zone, have, want);
        if words.bytes > 0 {
            self.allow_access(zone, WORDS, words)?;
        }
        let pages = Span { at: address(first + have), bytes: address(want - have) };
        if let Err(errno) = self.allow_access(zone, PAGES, pages) {
            if self.closed.load(Ordering::Relaxed) && !self.is_kept(zone, WORDS) {
                _ = self.unmap_part(words);
            }
            return Err(errno);
        }
        Ok(())
    }

    /// Makes the lower end of a part of a zone above its frontier readable and writable.
    fn allow_access(&self, zone: usize, part: usize, span: Span) -> Result<(), Errno> {
        let os = self.host.os();
        if !self.closed.load(Ordering::Relaxed) || self.is_kept(zone, part) {
            // SAFETY: part of the reservation.
            return unsafe { os.commit(span) };
        }
        // SAFETY: it was part of the reservation; foreign mappings that were made there since stay.
        unsafe { os.map_at(span) }?;
        if part == PAGES {
            self.advise(zone, span);
        }
        Ok(())
    }

    /// Writes zeros to the bytes `[from, to)` of a run.
    pub(crate) fn zero(&self, run: &mut Run, from: usize, to: usize) {
        let (from, to) = (from.min(address(run.pages)), to.min(address(run.pages)));
        // SAFETY: inside the run.
        let start = unsafe { pointer(run.page).add(from) };
        // SAFETY: the run's pages are writable (AR1) and exclusively owned (AR2).
        unsafe { start.write_bytes(0, to.saturating_sub(from)) };
    }

    /// Copies the bytes `[start, end)` of a run to the same offsets of another.
    pub(crate) fn copy(&self, from: &Run, to: &mut Run, start: usize, end: usize) {
        let end = end.min(address(from.pages.min(to.pages)));
        let start = start.min(end);
        // SAFETY: inside the run.
        let source = unsafe { pointer(from.page).add(start) };
        // SAFETY: inside the run.
        let place = unsafe { pointer(to.page).add(start) };
        // SAFETY: both are readable and writable (AR1), and two runs have no page in common (AR2).
        unsafe { place.copy_from_nonoverlapping(source, end - start) };
    }

    /// Releases the pages of runs to the system. An error carries the number of runs already released.
    pub(crate) fn discard(&self, runs: &mut [Run]) -> Result<(), (usize, Errno)> {
        let mut spans = [Span { at: 0, bytes: 0 }; BATCH];
        let mut done = 0;
        for part in runs.chunks(spans.len()) {
            for (span, run) in spans.iter_mut().zip(part) {
                *span = run.span();
            }
            // SAFETY: below the frontier (AR1) and exclusively owned (AR2).
            let gone = unsafe { self.host.os().discard(&spans[..part.len()]) };
            gone.map_err(|(more, errno)| (done + more, errno))?;
            done += part.len();
        }
        Ok(())
    }

    /// Chooses whether a child of a fork inherits the pages of a run or reads zeros.
    pub(crate) fn inherit(&self, run: &Run, inherited: bool) -> Result<(), Errno> {
        // SAFETY: below the frontier (AR1) and exclusively owned (AR2).
        unsafe { self.host.os().inherit(run.span(), inherited) }
    }

    /// Moves the pages of `from` to the start of `to`, whose pages must be untouched. An error carries the number of
    /// pages moved.
    pub(crate) fn move_pages(&self, from: &mut Run, to: &mut Run) -> Result<(), (u64, Errno)> {
        let pages = from.pages;
        self.move_some(from, to, pages)
    }

    /// Moves the first `pages` of `from`, as [`move_pages`](Self::move_pages) moves all.
    pub(crate) fn move_some(&self, from: &mut Run, to: &mut Run, pages: u64) -> Result<(), (u64, Errno)> {
        debug_assert!(pages <= from.pages && pages <= to.pages);
        debug_assert!(from.end() <= to.page || to.end() <= from.page, "AR2: two runs have a page in common");
        let span = Span { bytes: address(pages), ..from.span() };
        // SAFETY: both below the frontier (AR1), exclusively owned (AR2), and disjoint.
        let moved = unsafe { self.host.os().move_pages(span, address(to.page)) };
        moved.map_err(|stopped| ((stopped.bytes / PAGE_BYTES) as u64, stopped.errno))
    }

    /// Returns true if less than one in `share` of a run's pages is resident. Returns `false` if the system does not
    /// report residence.
    pub(crate) fn is_sparse(&self, run: &Run, share: u64) -> bool {
        self.resident_pages(run, run.pages.div_ceil(share)).is_some_and(|pages| pages * share < run.pages)
    }

    /// Returns the number of resident pages of a run, or any number of at least `enough`. Returns `None` if the system
    /// does not report it.
    pub(crate) fn resident_pages(&self, run: &Run, enough: u64) -> Option<u64> {
        self.resident_in(run.range(), enough)
    }

    /// Returns the number of resident pages of a range, as [`resident_pages`](Self::resident_pages) does. The caller
    /// need not own the range.
    pub(crate) fn resident_in(&self, range: VaRange, enough: u64) -> Option<u64> {
        let mut seen = [0; ASKED_PAGES];
        let ((mut page, end), mut resident) = (range.whole_pages(), 0);
        while page < end && resident < enough {
            let pages = (end - page).min(ASKED_PAGES as u64);
            let span = Span { at: address(page), bytes: address(pages) };
            self.host.os().resident(span, &mut seen).ok()?;
            resident += seen[..pages as usize].iter().filter(|&&page| page & 1 == 1).count() as u64;
            page += pages;
        }
        Some(resident)
    }

    /// Returns true if [`move_pages`](Self::move_pages) may succeed.
    pub(crate) fn can_move(&self) -> bool {
        self.host.os().can_move()
    }

    /// Moves `from` to the start of `to`, as a separate mapping. An error states whether `to` is still usable.
    pub(crate) fn remap(&self, from: &mut Run, to: &mut Run) -> Result<(), (Errno, bool)> {
        debug_assert!(from.pages <= to.pages);
        debug_assert!(from.end() <= to.page || to.end() <= from.page, "AR2: two runs have a page in common");
        // SAFETY: both below the frontier (AR1), exclusively owned (AR2), and disjoint.
        let moved = unsafe { self.host.os().remap(from.span(), address(to.page)) };
        moved.map_err(|errno| {
            if errno != Errno::NOMEM {
                return (errno, true);
            }
            let hole = Span { bytes: address(from.pages), ..to.span() };
            // SAFETY: the span is the run's; `mend` does not map over a mapping that another caller made there.
            (errno, unsafe { self.host.os().mend(hole) })
        })
    }

    /// Maps fresh pages over a run.
    pub(crate) fn renew(&self, run: &mut Run) -> Result<(), Errno> {
        // SAFETY: below the frontier (AR1) and exclusively owned (AR2).
        unsafe { self.host.os().renew(run.span()) }?;
        self.advise(self.zone_of(run.page), run.span());
        Ok(())
    }

    /// Sets the memory policy of the first `bytes` bytes of a run on another run. Returns `false` if there is none to
    /// preserve, or the system call fails.
    pub(crate) fn keep_policy(&self, from: &Run, bytes: usize, to: &mut Run) -> bool {
        // SAFETY: both below the frontier (AR1), and exclusively owned (AR2).
        unsafe { self.host.os().keep_policy(Span { bytes, ..from.span() }, to.span()) }
    }
}

const _: () = assert!(PAGES_MOST <= PAGES_MAX);

/// Converts a run into an area: returns a pointer to its first byte.
#[inline(always)]
pub(crate) fn into_pointer(run: Run) -> NonNull<u8> {
    // SAFETY: no run is at page 0.
    unsafe { NonNull::new_unchecked(pointer(run.page)) }
}

#[cfg(test)]
mod tests;
