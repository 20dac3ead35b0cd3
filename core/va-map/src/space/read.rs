//! Views of mappings: for callers that read a range with holes, or list all areas.

use super::MapSpace;
use crate::machine::PageTable;
use crate::record::{Entry, Kind};
use va_base::{Machine, PAGE_SIZE, Va, VaRange};
use va_block::Config;

/// A fragment of a range that is read: inside one page, or a hole of any size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece {
    /// Bytes of a page, from `from` on.
    Page {
        /// Number of the page.
        frame: u64,
        /// The first byte of the fragment in the page.
        from: u64,
        /// Bytes.
        bytes: u64,
    },
    /// Bytes without a page; they read as zeros.
    Hole {
        /// Bytes.
        bytes: u64,
    },
}

/// The state of an area at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AreaInfo {
    /// Its address range, guard page included.
    pub range: VaRange,
    /// Its kind.
    pub kind: Kind,
    /// Bytes that were requested; 0 for a block.
    pub requested_bytes: u64,
    /// Bytes that can be used: whole pages, all mapped; 0 for a block.
    pub usable_bytes: u64,
    /// The caller that requested it, in the machine's terms.
    pub caller: u64,
}

impl AreaInfo {
    fn of(entry: &Entry) -> Self {
        Self {
            range: entry.range(),
            kind: entry.kind,
            requested_bytes: entry.requested,
            usable_bytes: entry.usable(),
            caller: entry.caller,
        }
    }
}

impl<P: Machine + Clone, T: PageTable, C: Config> MapSpace<P, T, C> {
    /// Returns the state of the area that starts at `at`, or that `at` is inside.
    ///
    /// # Locks
    /// `records`.
    /// Cost: O(1).
    pub fn info(&self, at: Va) -> Option<AreaInfo> {
        self.record_around(at).as_ref().map(AreaInfo::of)
    }

    /// Returns every area in address order: those with records, blocks, and, as blocks, areas that are being created.
    ///
    /// An area that exists all the time is returned once; one that is created or freed meanwhile may be returned or
    /// not.
    pub fn areas(&self) -> impl Iterator<Item = AreaInfo> + '_ {
        let mut from = self.extent().start();
        core::iter::from_fn(move || {
            let range = self.space().find_above(from)?.range;
            from = range.end();
            Some(self.record_of(range).as_ref().map(AreaInfo::of).unwrap_or(AreaInfo {
                range,
                kind: Kind::Block,
                requested_bytes: 0,
                usable_bytes: 0,
                caller: 0,
            }))
        })
    }

    /// Reports the fragments of `range` in address order, and returns how many bytes of it are mapped. Free and freed
    /// addresses, guard pages, room to grow and areas that are being created are holes. The fragments together have as
    /// many bytes as the range.
    ///
    /// An area may be freed while it is reported: a caller that copies must handle pages that were freed. No lock is
    /// held while `visit` runs.
    ///
    /// # Locks
    /// `records`, again for each area.
    /// Cost: the pages, and the areas.
    pub fn read(&self, range: VaRange, mut visit: impl FnMut(Piece)) -> u64 {
        let (mut at, mut mapped) = (range.start(), 0);
        while at < range.end() {
            let area =
                self.space().find_above(at).map(|seen| seen.range).filter(|area| area.start() < range.end());
            let Some(area) = area else {
                visit(Piece::Hole { bytes: range.end().get() - at.get() });
                break;
            };
            if at < area.start() {
                visit(Piece::Hole { bytes: area.start().get() - at.get() });
                at = area.start();
            }
            let end = area.end().min(range.end());
            mapped += match self.record_of(area) {
                Some(entry) => {
                    let used = entry.part(0, entry.mapped).end().min(end).max(at);
                    let bytes = self.read_pages(at, used, &mut visit);
                    if used < end {
                        visit(Piece::Hole { bytes: end.get() - used.get() });
                    }
                    bytes
                }
                None => self.read_block(at, end, &mut visit),
            };
            at = end;
        }
        mapped
    }

    /// Reports the small mappings of a block.
    fn read_block(&self, mut at: Va, end: Va, visit: &mut impl FnMut(Piece)) -> u64 {
        let (mut mapped, mut hole) = (0, 0);
        while at < end {
            if let Some(small) = self.blocks.find_enclosing(at) {
                if hole > 0 {
                    visit(Piece::Hole { bytes: core::mem::take(&mut hole) });
                }
                let stop = small.end().min(end);
                mapped += self.read_pages(at, stop, visit);
                at = stop;
            } else {
                let next = Va::from_page(at.page_floor() + 1).min(end);
                hole += next.get() - at.get();
                at = next;
            }
        }
        if hole > 0 {
            visit(Piece::Hole { bytes: hole });
        }
        mapped
    }

    /// Reports the pages in the page table.
    fn read_pages(&self, mut at: Va, end: Va, visit: &mut impl FnMut(Piece)) -> u64 {
        let mut mapped = 0;
        while at < end {
            let page = Va::from_page(at.page_floor());
            let (from, bytes) = (at.get() - page.get(), (page.get() + PAGE_SIZE).min(end.get()) - at.get());
            visit(match self.pages().leaf(page) {
                Some(leaf) => {
                    mapped += bytes;
                    let inside = page.page_floor() & ((1 << leaf.pages_log2) - 1);
                    Piece::Page { frame: leaf.first + inside, from, bytes }
                }
                None => Piece::Hole { bytes },
            });
            at = Va::new(at.get() + bytes);
        }
        mapped
    }
}
