//! The policies: Linux's and ours.

use crate::engine::HintEngine;
use crate::run::RunIndex;
use crate::scan::{AsInLinux, Corrected, Rules, ScanHints};

/// The largest class of small objects that is possible, in words.
pub(crate) const CLASS_WORDS_MAX: u32 = 16;

/// The measure by which a chunk is put into a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotBy {
    /// The longest free run that the engine reports for it.
    Contig,
    /// All free bytes in it, as in Linux before 5.2: chunks are tried that hold no run long enough.
    FreeBytes,
}

/// The policies of a space. Numbers of pages are of one unit.
pub trait Config: 'static {
    /// The engine that finds room in a chunk.
    type Engine: HintEngine;
    /// The measure by which a chunk is put into a list (patch 4 of the series of 2019).
    const SLOT_BY: SlotBy = SlotBy::Contig;
    /// True if a chunk moves to a list that is not searched when a search in one of the three lists of shortest runs
    /// fails in it. A free in the chunk moves it back (patch 5).
    const RELEGATE: bool = true;
    /// The balance is due below so many spare pages.
    const SPARE_PAGES_LOW: u32 = 2;
    /// The balance leaves so many spare pages.
    const SPARE_PAGES_HIGH: u32 = 4;
    /// Objects of up to so many words of 4 bytes come from slabs, if they fit; 0: none do. At most 16.
    const CLASS_WORDS: u32 = 0;
    /// Bytes of memory, over all units, that a [`Magazine`](crate::Magazine) may hold, from
    /// [`MAGAZINE_BYTES_MIN`](crate::MAGAZINE_BYTES_MIN) to [`MAGAZINE_BYTES_MAX`](crate::MAGAZINE_BYTES_MAX) of one
    /// unit; 0: it caches nothing.
    const CACHE_BYTES: u32 = 0;
}

/// Linux 5.14 to 6.12, offset for offset.
#[derive(Debug)]
pub enum Linux612 {}
impl Config for Linux612 {
    type Engine = ScanHints<AsInLinux>;
}

/// Linux's hints, with the chunk hint corrected.
#[derive(Debug)]
pub struct Scan<R = Corrected>(core::marker::PhantomData<R>);
impl<R: Rules> Config for Scan<R> {
    type Engine = ScanHints<R>;
}

/// Exact runs: the lowest chunk with room first, and the lowest address in it.
#[derive(Debug)]
pub enum Runs {}
impl Config for Runs {
    type Engine = RunIndex;
}

/// Standard: exact runs, objects of up to 64 bytes from slabs, and magazines that cache.
#[derive(Debug)]
pub enum Standard {}
impl Config for Standard {
    type Engine = RunIndex;
    const CLASS_WORDS: u32 = CLASS_WORDS_MAX;
    const CACHE_BYTES: u32 = 256 << 10;
}
