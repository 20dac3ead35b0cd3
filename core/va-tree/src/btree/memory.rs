//! The memory of the tree: reserves, donated memory, and shrinking.
//!
//! # Theory
//! The bounds are in `cost`. To shrink, a record at the end of its array moves to a free one, and the references to it
//! change. A key inside a node leads to it again from the root, so a move is O(F log n).
//!
//! Rows are a cache. They must have a record for every inner node that the tree may get. A tree that cannot have those
//! drops its rows instead of failing, unless it must always keep them.

use super::path::{self, Path};
use super::rows::{Classes, Row};
use super::{BTree, Inner, Key, Leaf, cost};
use crate::FreeIndex;
use crate::free_index::copy_state;
use crate::slab::Last;
use crate::supply::{InPlace, PieceWanted, Supplied, Table};
use va_base::{AllocError, Late, Platform, Supply, VaRange};

/// Memory for one table of a [`BTree`].
pub struct BTreeSupply<K: Key, const F: usize>(Of<K, F>);

impl<K: Key, const F: usize> core::fmt::Debug for BTreeSupply<K, F> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("BTreeSupply").finish_non_exhaustive()
    }
}

enum Of<K: Key, const F: usize> {
    Leaves(Supply<Leaf<K, F>>),
    Inners(Supply<Inner<K, F>>),
    Rows(Supply<Row<K, F>>),
}

/// Records that must be reserved.
struct Need {
    leaves: usize,
    inners: usize,
}

impl<K: Key, const F: usize, P: Platform, const L: usize, const I: usize> BTree<K, F, P, L, I> {
    /// Returns the records that `holes` holes need at worst.
    fn need(holes: u64) -> Result<Need, AllocError> {
        let fail = |records| AllocError::NoMeta { records };
        let count = |nodes: u64| usize::try_from(nodes).map_err(|_| fail(usize::MAX));
        let leaves = cost::leaves(holes, F);
        let need = Need { leaves: count(leaves)?, inners: count(cost::inners(leaves, F))? };
        if leaves > cost::leaves_within_height(path::MAX_HEIGHT, F) {
            return Err(fail(need.leaves));
        }
        Ok(need)
    }

    /// Recomputes for how many holes the reserved records are enough, in every shape.
    pub(super) fn count_reserved(&mut self) {
        let mut inners = self.inners.capacity();
        if self.has_rows() {
            inners = inners.min(self.rows.capacity() / self.row_classes.count());
        }
        let leaves = cost::leaves_under(inners as u64, self.leaves.capacity() as u64, F);
        let leaves = leaves.min(cost::leaves_within_height(path::MAX_HEIGHT, F));
        self.ledger.reserved_holes = cost::holes(leaves, F);
    }

    /// Reserves records for `holes` holes, or fails and changes nothing that a caller could observe.
    #[inline]
    pub(super) fn reserve_holes(&mut self, holes: u64) -> Result<(), AllocError> {
        if holes <= self.ledger.reserved_holes { Ok(()) } else { self.reserve_holes_slow(holes) }
    }

    #[cold]
    #[inline(never)]
    fn reserve_holes_slow(&mut self, holes: u64) -> Result<(), AllocError> {
        let need = Self::need(holes)?;
        // Pieces got before a failure stay as spare capacity, and are counted.
        let got = self.leaves.reserve(need.leaves, &self.platform);
        let got = got.and_then(|()| self.inners.reserve(need.inners, &self.platform));
        let got = got.and_then(|()| {
            let rows = self.rows.reserve(need.inners * self.row_classes.count(), &self.platform);
            if rows.is_err() && !self.rows_always {
                self.rows_missed = self.row_classes;
                self.drop_rows();
                return Ok(());
            }
            rows
        });
        self.count_reserved();
        got.map_err(|records| AllocError::NoMeta { records })
    }

    /// Begins the rows of `classes`, in a tree with reserved records for `holes` holes: no inner node has one yet.
    #[cold]
    #[inline(never)]
    pub(super) fn begin_rows(&mut self, classes: Classes, holes: u64) -> Result<(), AllocError> {
        let all = self.row_classes.with(classes);
        let want = Self::need(holes)?.inners * all.count();
        if let Err(records) = self.rows.reserve(want, &self.platform) {
            self.rows_missed = self.rows_missed.with(classes);
            return Err(AllocError::NoMeta { records });
        }
        self.row_classes = all;
        self.rows_missed = self.rows_missed.without(all);
        self.count_whole();
        self.count_reserved();
        Ok(())
    }

    /// Returns the path to leaf or inner node `id`, which contains `key`, and its level; `None` if it is not in the
    /// tree.
    fn path_to(&self, id: u32, key: K, level: impl Fn(usize) -> bool) -> Option<(Path, usize)> {
        let mut path = Path::new();
        self.route(key, &mut path);
        (0..self.height + 1).find(|&at| level(at) && path.node(at) == id).map(|at| (path, at))
    }

    /// Changes the reference to the node that moved. `key` lies inside it.
    fn moved(&mut self, from: u32, to: u32, key: K, is_leaf: bool) {
        let Some((path, level)) = self.path_to(from, key, |level| (level == 0) == is_leaf) else {
            self.platform.bug(format_args!("BT1: node {from} is not where its keys are"), None)
        };
        if level == self.height {
            self.root = to;
        } else {
            self.inners.get_mut(path.node(level + 1)).child[path.slot(level + 1)] = to;
        }
    }

    /// Moves the topmost leaf down, or drops it if it is unused.
    fn lower_leaves(&mut self, low: usize) {
        if let Last::Moved { from, to } = self.leaves.move_last(low) {
            // An empty leaf is the root: any key leads there.
            let key = self.leaves.get(to).end[0];
            self.moved(from, to, key, true);
        }
    }

    /// The same for inner nodes.
    fn lower_inners(&mut self, low: usize) {
        if let Last::Moved { from, to } = self.inners.move_last(low) {
            // The first separator lies between two children.
            let key = self.inners.get(to).sep[0];
            self.moved(from, to, key, false);
        }
    }
}

impl<K: Key, const F: usize, P: Platform, const L: usize, const I: usize> Supplied for BTree<K, F, P, L, I> {
    type Supply = BTreeSupply<K, F>;

    fn wanted(&self, areas: u64) -> Option<PieceWanted> {
        // Each area may be one hole more, too.
        let ledger = self.ledger.with_pieces(areas.checked_mul(2)?)?;
        let missed = self.rows_missed.without(self.row_classes);
        if ledger.bound() <= self.ledger.reserved_holes && missed.is_empty() {
            return None;
        }
        let need = Self::need(ledger.bound()).ok()?;
        let rows = need.inners * self.row_classes.with(missed).count();
        let leaves =
            self.leaves.next(need.leaves).map(|next| (Table::Leaves, next, next.bytes::<Leaf<K, F>>()));
        let inners =
            || self.inners.next(need.inners).map(|next| (Table::Inners, next, next.bytes::<Inner<K, F>>()));
        let rows = || self.rows.next(rows).map(|next| (Table::Rows, next, next.bytes::<Row<K, F>>()));
        leaves.or_else(inners).or_else(rows).map(|(table, next, bytes)| PieceWanted { table, next, bytes })
    }

    fn alloc_supply(wanted: PieceWanted, platform: &impl Platform) -> Option<Self::Supply> {
        Some(BTreeSupply(match wanted.table {
            Table::Leaves => Of::Leaves(wanted.next.alloc(platform)?),
            Table::Inners => Of::Inners(wanted.next.alloc(platform)?),
            Table::Rows => Of::Rows(wanted.next.alloc(platform)?),
            Table::Holes | Table::Sizes => return None,
        }))
    }

    fn donate(&mut self, supply: Self::Supply) -> Result<(), Self::Supply> {
        let unused = match supply.0 {
            Of::Leaves(supply) => self.leaves.add(supply).map_err(Of::Leaves),
            Of::Inners(supply) => self.inners.add(supply).map_err(Of::Inners),
            Of::Rows(supply) => self.rows.add(supply).map_err(Of::Rows),
        };
        self.count_reserved();
        unused.map_err(BTreeSupply)
    }

    fn free_supply(supply: Self::Supply, platform: &impl Platform) {
        match supply.0 {
            Of::Leaves(supply) => supply.free(platform),
            Of::Inners(supply) => supply.free(platform),
            Of::Rows(supply) => supply.free(platform),
        }
    }

    fn shrink_counted(&mut self, steps: &mut usize) -> usize {
        // What one more area could need stays, so that a shrinker and an alloc do not take turns.
        let Ok(need) = Self::need(self.ledger.bound_after_take()) else { return 0 };
        let mut freed = 0;
        if !self.rows_always && self.has_rows() && *steps > 0 {
            // A cache: the next request of each class that needs a row builds it again.
            self.drop_rows();
            *steps -= 1;
        }
        if self.rows.used() == 0 {
            // Memory of dropped rows, of a tree without inner nodes, or supplied for rows that are not there yet.
            self.rows.forget_all(need.inners * self.row_classes.count());
            freed += self.rows.free_pieces(steps, &self.platform);
        }
        while let Some(low) = self.leaves.shrink_step(need.leaves, steps, &mut freed, &self.platform) {
            self.lower_leaves(low);
        }
        while let Some(low) = self.inners.shrink_step(need.inners, steps, &mut freed, &self.platform) {
            self.lower_inners(low);
        }
        self.count_reserved();
        self.check();
        freed
    }
}

impl<K: Key, const F: usize, P: Platform, const L: usize, const I: usize> InPlace<P>
    for BTree<K, F, P, L, I>
{
    const EMPTY: Self = Self::of_no_pages(Late::NONE);

    fn init(&mut self, extent: VaRange, default_window: VaRange, platform: P) -> Result<(), AllocError> {
        self.set_platform(platform);
        self.init(extent, default_window)
    }

    fn try_clone(&self, platform: P) -> Result<Self, AllocError> {
        let mut copy = Self::empty(platform);
        if self.first < self.end {
            copy.init(self.extent(), self.default_window)?;
            if self.rows_always {
                copy.add_all_rows()?;
            }
            copy_state(&mut copy, self)?;
        }
        Ok(copy)
    }
}
