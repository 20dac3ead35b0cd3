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
use va_base::Platform;

/// Slabs lent outside the lock, which [`Store::grow`] uses.
pub(crate) struct More<C: Config> {
    rows: Option<Lent<C>>,
    places: Option<&'static mut [Place]>,
    nodes: Option<&'static mut [Fits]>,
}

/// Slabs that [`Store::grow`] left empty.
#[must_use]
pub(crate) struct Old {
    pub(super) places: Option<&'static mut [Place]>,
    pub(super) nodes: Option<&'static mut [Fits]>,
}

impl Old {
    pub(crate) fn give_back<P: Platform>(self, platform: &P) {
        if let Some(places) = self.places.filter(|slab| !slab.is_empty()) {
            platform.take_back_slab(places);
        }
        if let Some(nodes) = self.nodes.filter(|slab| !slab.is_empty()) {
            platform.take_back_slab(nodes);
        }
    }
}

struct Lent<C: Config> {
    chunks: Spare<Chunk<C::Engine>>,
    words: Spare<Word>,
    blocks: Spare<<C::Engine as HintEngine>::Block>,
    slabs: Option<Spare<Slab>>,
}

/// What [`Store::grow`] would need, if anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Need {
    rows: Option<[(usize, u32); 4]>,
    places: Option<usize>,
    nodes: Option<usize>,
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
            Some([chunks, words, blocks, slabs]) => {
                let chunks = Rows::lend(chunks.0, chunks.1, platform)?;
                let Some(words) = Rows::lend(words.0, words.1, platform) else {
                    chunks.give_back(platform);
                    return None;
                };
                let Some(blocks) = Rows::lend(blocks.0, blocks.1, platform) else {
                    chunks.give_back(platform);
                    words.give_back(platform);
                    return None;
                };
                let wanted = C::CLASS_WORDS > 0;
                let slabs = if wanted { Rows::lend(slabs.0, slabs.1, platform) } else { None };
                if slabs.is_none() && wanted {
                    chunks.give_back(platform);
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
            rows.chunks.give_back(platform);
            rows.words.give_back(platform);
            rows.blocks.give_back(platform);
            if let Some(slabs) = rows.slabs {
                slabs.give_back(platform);
            }
        }
        Old { places: self.places, nodes: self.nodes }.give_back(platform);
    }
}

impl<C: Config> Store<C> {
    /// What must be lent before one more chunk can be made.
    pub(crate) fn need(&self) -> Need {
        let full = self.unused == NIL && self.begun == self.chunks.count();
        let rows =
            full.then(|| [self.chunks.next(), self.words.next(), self.blocks.next(), self.classes.next()]);
        let count = if full { self.chunks.count_after() } else { self.chunks.count() };
        let nodes = if C::Engine::BY_FITS { self.forest.wanted(count) } else { None };
        Need { rows, places: self.lookup.wanted(self.grains()), nodes }
    }

    /// Uses what was lent, and returns what is not in use any more.
    pub(crate) fn grow(&mut self, more: More<C>) -> Old {
        if let Some(rows) = more.rows {
            self.chunks.add(rows.chunks);
            self.words.add(rows.words);
            self.blocks.add(rows.blocks);
            if let Some(slabs) = rows.slabs {
                self.classes.add(slabs);
            }
        }
        Old {
            places: more.places.map(|places| self.lookup.move_to(places)),
            nodes: more.nodes.map(|nodes| self.forest.move_to(nodes)),
        }
    }
}
