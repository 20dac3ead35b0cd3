//! A backend without pages, which records which are populated.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use va_base::Va;
use va_percpu::{Backend, BackendError, Geometry};

/// End of chunks.
const TOP: u64 = 0x7000_0000_0000;

/// Chunks that are numbers, the highest free address first, and their populated pages.
///
/// It panics for an invalid request: to populate twice, to depopulate pages that are not populated, or to destroy a
/// chunk with populated pages. It also panics if a page is populated again before its old content is flushed.
#[derive(Debug)]
pub struct SimChunks {
    chunks: Mutex<BTreeMap<u64, Chunk>>,
    left: AtomicU64,
    /// Requests that fail before all are granted again, and those that failed.
    denials_left: AtomicU64,
    denials: AtomicU64,
    asked: AtomicU64,
    woken: AtomicU64,
    /// The words of 4 bytes that are not zero, by address in the first unit, if contents are modelled.
    written: Option<Mutex<BTreeSet<u64>>>,
}

#[derive(Debug, Default)]
struct Chunk {
    populated: BTreeSet<u32>,
    /// Depopulated and not flushed since.
    stale: BTreeSet<u32>,
}

impl Default for SimChunks {
    fn default() -> Self {
        Self {
            chunks: Mutex::default(),
            left: AtomicU64::new(u64::MAX),
            denials_left: AtomicU64::new(u64::MAX),
            denials: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            woken: AtomicU64::new(0),
            written: None,
        }
    }
}

impl SimChunks {
    /// Creates chunks that model what is in them: populated pages begin with garbage.
    #[must_use]
    pub fn with_contents() -> Self {
        Self { written: Some(Mutex::default()), ..Self::default() }
    }

    /// Notes that a caller wrote to an object in any unit.
    pub fn write(&self, at: Va, bytes: u32) {
        if let Some(written) = &self.written {
            written.lock().extend(words(at.get(), bytes));
        }
    }

    /// Grants `count` chunks and populations more, and fails the rest; `u64::MAX` fails none.
    pub fn fail_after(&self, count: u64) {
        self.fail_some(count, u64::MAX);
    }

    /// Grants `granted` chunks and populations more, fails the next `count`, and grants all later ones.
    pub fn fail_some(&self, granted: u64, count: u64) {
        self.denials_left.store(count, Ordering::Relaxed);
        self.left.store(granted, Ordering::Relaxed);
    }

    /// Returns the requests that failed so far.
    pub fn denials(&self) -> u64 {
        self.denials.load(Ordering::Relaxed)
    }

    /// Returns the chunks and populations requested so far, including failed ones.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// Returns how often the balance was requested.
    pub fn woken(&self) -> u64 {
        self.woken.load(Ordering::Relaxed)
    }

    /// Returns the chunks that exist.
    pub fn chunks(&self) -> usize {
        self.chunks.lock().len()
    }

    /// Returns the populated pages of all of them.
    pub fn populated(&self) -> usize {
        self.chunks.lock().values().map(|chunk| chunk.populated.len()).sum()
    }

    /// Returns true if every page of the bytes is populated, or `None` if there is no chunk of this backend.
    pub fn is_populated(&self, base: Va, bytes: Range<u32>) -> Option<bool> {
        let chunks = self.chunks.lock();
        let chunk = chunks.get(&base.get())?;
        Some((bytes.start / 4096..bytes.end.div_ceil(4096)).all(|page| chunk.populated.contains(&page)))
    }

    /// Returns the pages of existing chunks that were depopulated and not flushed.
    pub fn stale(&self) -> usize {
        self.chunks.lock().values().map(|chunk| chunk.stale.len()).sum()
    }

    fn grant(&self) -> Result<(), BackendError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let less = |left: u64| if left == u64::MAX { Some(left) } else { left.checked_sub(1) };
        let take = |left: &AtomicU64| left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
        if !take(&self.left) && take(&self.denials_left) {
            self.denials.fetch_add(1, Ordering::Relaxed);
            return Err(BackendError);
        }
        Ok(())
    }
}

impl Backend for SimChunks {
    const BY_PAGE: bool = true;

    fn create(&self, geometry: &Geometry) -> Result<Va, BackendError> {
        self.grant()?;
        let stride =
            u64::from(geometry.unit_bytes()).max(u64::from(geometry.sizes().atom)).next_power_of_two();
        let mut chunks = self.chunks.lock();
        let mut base = TOP - stride;
        while chunks.contains_key(&base) {
            base -= stride;
        }
        chunks.insert(base, Chunk::default());
        Ok(Va::new(base))
    }

    fn destroy(&self, _geometry: &Geometry, base: Va) {
        let gone = self.chunks.lock().remove(&base.get());
        assert!(gone.is_some_and(|chunk| chunk.populated.is_empty()), "{base} was destroyed populated");
    }

    fn populate(&self, geometry: &Geometry, base: Va, pages: Range<u32>) -> Result<(), BackendError> {
        self.grant()?;
        assert!(pages.start < pages.end && pages.end <= geometry.unit_pages());
        let mut chunks = self.chunks.lock();
        let chunk = chunks.get_mut(&base.get()).expect("a chunk that exists");
        for page in pages {
            self.write(Va::new(base.get() + u64::from(page) * 4096), 4096);
            assert!(chunk.populated.insert(page), "page {page} of {base} was populated twice");
            assert!(
                !chunk.stale.contains(&page),
                "page {page} of {base} is populated, and translated as before"
            );
        }
        Ok(())
    }

    fn depopulate(&self, _geometry: &Geometry, base: Va, pages: Range<u32>) {
        let mut chunks = self.chunks.lock();
        let chunk = chunks.get_mut(&base.get()).expect("a chunk that exists");
        for page in pages {
            assert!(chunk.populated.remove(&page), "page {page} of {base} was not populated");
            chunk.stale.insert(page);
        }
    }

    fn flush(&self, _geometry: &Geometry, base: Va, pages: Range<u32>) {
        let mut chunks = self.chunks.lock();
        let chunk = chunks.get_mut(&base.get()).expect("a chunk that exists");
        chunk.stale.retain(|page| !pages.contains(page));
    }

    fn wake(&self) {
        self.woken.fetch_add(1, Ordering::Relaxed);
    }

    fn zero(&self, _geometry: &Geometry, base: Va, off: u32, bytes: u32) {
        if let Some(written) = &self.written {
            let mut written = written.lock();
            for word in words(base.get() + u64::from(off), bytes) {
                written.remove(&word);
            }
        }
    }

    /// `None` if contents are not modelled.
    fn is_zero(&self, _geometry: &Geometry, base: Va, off: u32, bytes: u32) -> Option<bool> {
        let at = base.get() + u64::from(off);
        let written = self.written.as_ref()?;
        Some(written.lock().range(at..at + u64::from(bytes)).next().is_none())
    }
}

/// Returns the addresses of the words of 4 bytes of an object.
fn words(at: u64, bytes: u32) -> impl Iterator<Item = u64> {
    (0..u64::from(bytes.div_ceil(4))).map(move |word| at + word * 4)
}
