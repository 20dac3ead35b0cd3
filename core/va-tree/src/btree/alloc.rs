//! Allocations: the lowest fit and the highest, each whole or as far as one step of its row goes.

use super::path::Path;
use super::search::{Found, Search, Wanted};
use super::{BTree, Key};
use crate::{Fit, FreeIndex};
use va_base::{AllocError, Platform, Request, Va};

impl<K: Key, const F: usize, P: Platform, const L: usize, const I: usize> BTree<K, F, P, L, I> {
    /// Cuts `size` pages from a hole that a search found, or fails and changes nothing.
    #[inline]
    pub(super) fn take_found(&mut self, found: &Found, path: &mut Path, size: u64) -> Result<Va, AllocError> {
        self.reserve_holes(self.ledger.bound_after_take())?;
        self.cut(found, path, size);
        self.check();
        Ok(self.va(found.at))
    }

    /// Allocates the lowest fit of a request whose class is not whole. `None` after one step of its row, if it needs more.
    #[cold]
    pub(super) fn alloc_in_step(
        &mut self,
        wanted: &Wanted,
        request: &Request,
    ) -> Result<Option<Va>, AllocError> {
        let mut path = Path::new();
        let mut search = self.find_lowest(wanted, &mut path);
        let begun = wanted.class().filter(|&class| self.row_classes.has(class));
        if let Search::NeedsRow = search {
            search = self.find_in_steps(wanted, &mut path, Self::STEP_NODES);
        } else if let Some(class) = begun {
            // Until a class is whole, each change costs more.
            let _whole = self.step_row(class, Self::STEP_NODES);
        }
        match search {
            Search::Found(found) => self.take_found(&found, &mut path, wanted.size).map(Some),
            Search::Nothing => Err(self.no_space(request)),
            Search::NeedsRow => Ok(None),
        }
    }

    /// Allocates the highest fit. `None` if more than `nodes` nodes lack the row that it needs: so many have it then.
    pub(super) fn try_alloc_highest(
        &mut self,
        request: &Request,
        nodes: usize,
    ) -> Result<Option<Va>, AllocError> {
        let class = self.wanted(request).class().filter(|&class| !self.whole_classes.has(class));
        // Rows are for trees of two inner levels and more.
        let rowless = class.filter(|_| self.height > 1);
        let mut holes = if rowless.is_some() { Self::ROWLESS_HOLES } else { usize::MAX };
        let mut at = self.highest_within(request, &mut holes);
        if holes == 0
            && let Some(class) = rowless
        {
            if self.step_row(class, nodes) == Some(false) {
                return Ok(None);
            }
            holes = usize::MAX;
            at = self.highest_within(request, &mut holes);
        }
        let at = at.ok_or_else(|| self.no_space(request))?;
        let (start, size) = (K::UNIT.floor(at) - self.base, request.size().get());
        let mut path = Path::new();
        let found =
            self.find_enclosing(start, start + size, &mut path).ok_or_else(|| self.no_space(request))?;
        let fit = Fit::of(start, start + size, found.start, found.end);
        self.reserve_holes(self.ledger.bound_after_cut(fit))?;
        self.cut(&found, &mut path, size);
        self.check();
        Ok(Some(at))
    }
}
