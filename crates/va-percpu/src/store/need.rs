//! What must be lent before one more chunk can be made: asked for outside the lock, used within.

use super::Store;
use crate::bitmap::Word;
use crate::chunk::{Chunk, NIL};
use crate::class::Slab;
use crate::config::Config;
use crate::engine::HintEngine;
use crate::lookup::Place;
use crate::rows::{Rows, Spare};
use crate::run::Fits;
use crate::table::Table;
use va_base::Platform;

/// Slabs lent outside the lock, which [`Store::grow`] uses.
pub(crate) struct More<C: Config> {
    rows: Option<Lent<C>>,
    places: Option<&'static mut [Place]>,
    nodes: Option<&'static mut [Fits]>,
}

/// Slabs that [`Store::grow`] left empty.
#[must_use]
pub(crate) struct Old<C: Config> {
    pub(super) chunks: Option<&'static mut [Chunk<C::Engine>]>,
    pub(super) places: Option<&'static mut [Place]>,
    pub(super) nodes: Option<&'static mut [Fits]>,
}

impl<C: Config> Old<C> {
    pub(crate) fn give_back<P: Platform>(self, platform: &P) {
        if let Some(chunks) = self.chunks.filter(|slab| !slab.is_empty()) {
            platform.take_back_slab(chunks);
        }
        if let Some(places) = self.places.filter(|slab| !slab.is_empty()) {
            platform.take_back_slab(places);
        }
        if let Some(nodes) = self.nodes.filter(|slab| !slab.is_empty()) {
            platform.take_back_slab(nodes);
        }
    }
}

struct Lent<C: Config> {
    chunks: &'static mut [Chunk<C::Engine>],
    words: Spare<Word>,
    blocks: Spare<<C::Engine as HintEngine>::Block>,
    slabs: Option<Spare<Slab>>,
}

/// What [`Store::grow`] would need, if anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Need {
    rows: Option<NeedRows>,
    places: Option<usize>,
    nodes: Option<usize>,
}

/// How many rows there will be, and the slabs for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct NeedRows {
    count: u32,
    words: (usize, u32),
    blocks: (usize, u32),
    slabs: Option<(usize, u32)>,
}

impl Need {
    /// Nothing is needed.
    pub(crate) fn is_none(&self) -> bool {
        self.rows.is_none() && self.places.is_none() && self.nodes.is_none()
    }

    /// Asks the platform for it; all or nothing.
    pub(crate) fn lend<C: Config, P: Platform>(&self, platform: &P) -> Option<More<C>> {
        let rows = match self.rows {
            None => None,
            Some(NeedRows { count, words, blocks, slabs }) => {
                let chunks = Table::lend(count, platform)?;
                let Some(words) = Rows::lend(words.0, words.1, platform) else {
                    platform.take_back_slab(chunks);
                    return None;
                };
                let Some(blocks) = Rows::lend(blocks.0, blocks.1, platform) else {
                    platform.take_back_slab(chunks);
                    words.give_back(platform);
                    return None;
                };
                let wanted = slabs.is_some();
                let slabs = slabs.and_then(|slabs| Rows::lend(slabs.0, slabs.1, platform));
                if slabs.is_none() && wanted {
                    platform.take_back_slab(chunks);
                    words.give_back(platform);
                    blocks.give_back(platform);
                    return None;
                }
                Some(Lent { chunks, words, blocks, slabs })
            }
        };
        let mut more = More { rows, places: None, nodes: None };
        if let Some(min) = self.places {
            more.places = platform.lend_slab(min).filter(|slab| slab.len() >= min);
        }
        if let Some(min) = self.nodes.filter(|_| self.places.is_none() == more.places.is_none()) {
            more.nodes = platform.lend_slab(min).filter(|slab| slab.len() >= min);
        }
        let all =
            self.places.is_none() == more.places.is_none() && self.nodes.is_none() == more.nodes.is_none();
        if !all {
            more.give_back(platform);
            return None;
        }
        Some(more)
    }
}

impl<C: Config> More<C> {
    pub(super) fn give_back<P: Platform>(self, platform: &P) {
        if let Some(rows) = self.rows {
            platform.take_back_slab(rows.chunks);
            rows.words.give_back(platform);
            rows.blocks.give_back(platform);
            if let Some(slabs) = rows.slabs {
                slabs.give_back(platform);
            }
        }
        Old::<C> { chunks: None, places: self.places, nodes: self.nodes }.give_back(platform);
    }
}

impl<C: Config> Store<C> {
    /// What must be lent before one more chunk can be made.
    pub(crate) fn need(&self) -> Need {
        let full = self.unused == NIL && self.begun == self.words.count();
        let count = if full { self.words.count_after() } else { self.words.count() };
        // Not for who has no small objects: whoever makes the first slab there asks for what is missing then.
        let classes = C::CLASS_WORDS > 0
            && self.classes.rows() == self.words.count()
            && (self.begun == 0 || self.classes.counts().0 > 0);
        let rows = full.then(|| NeedRows {
            count,
            words: self.words.next(),
            blocks: self.blocks.next(),
            slabs: classes.then(|| self.classes.next()),
        });
        let nodes = if C::Engine::BY_FITS { self.forest.wanted(count) } else { None };
        Need { rows, places: self.lookup.wanted(self.grains()), nodes }
    }

    /// Uses what was lent, and returns what is not in use any more.
    pub(crate) fn grow(&mut self, more: More<C>) -> Old<C> {
        let mut chunks = None;
        if let Some(rows) = more.rows {
            chunks = Some(self.chunks.move_to(rows.chunks));
            self.words.add(rows.words);
            self.blocks.add(rows.blocks);
            if let Some(slabs) = rows.slabs {
                self.classes.add(slabs);
            }
        }
        Old {
            chunks,
            places: more.places.map(|places| self.lookup.move_to(places)),
            nodes: more.nodes.map(|nodes| self.forest.move_to(nodes)),
        }
    }
}
