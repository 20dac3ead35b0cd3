//! The state that every operation reads: the path to the unit, and the mark of units ever used.
//!
//! # Theory
//! ```text
//!   units   | 0 | 1 | 2 |  3 .. ids - 1: never used  | ids: strangers' |
//!                       ^ mark
//! ```
//! The mark is above every unit that any thread touched. A section compares its number with it, so
//! the first thread that comes to a unit passes the slow path once. An object is zeroed below the
//! mark when it is allocated; above it all is zeros, as mapped. One unit more belongs to threads
//! without a number: their registration failed, a seccomp filter came later, or the number is
//! beyond what was reported as possible. They share it, atomically, and no section ever touches it.
//!
//! Where there are no sections at all, threads get numbers in turn, and all operations are atomic ones.
//!
//! # Invariants
//! - **PP1 mark** a unit is touched through an object only below the mark, or if it is the strangers' and they are marked.

use super::Index;
use super::rseq::{self, Area};
use crate::os::thread_number;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// See the head of the module.
#[derive(Debug)]
pub(super) struct Hot {
    // Constant after `new`.
    /// The area of the numbers; `None` if there are no sections.
    pub(super) at: Option<Area>,
    pub(super) index: Index,
    /// Numbers that there can be; the strangers' unit comes behind.
    pub(super) ids: u32,
    // Atomic; they only rise.
    pub(super) mark: AtomicU32,
    strangers: AtomicBool,
}

/// The next step of a thread whose section did not touch its unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Beyond {
    /// The mark was raised: once more.
    Again,
    /// An atomic operation on this unit.
    Unit(u32),
}

impl Hot {
    pub(super) fn new(at: Option<Area>, index: Index, ids: u32) -> Self {
        Self { at, index, ids, mark: AtomicU32::new(0), strangers: AtomicBool::new(false) }
    }

    /// Finds a unit for who is in no section. Checks PP1.
    #[inline(always)]
    pub(super) fn beyond(&self) -> Beyond {
        match self.at {
            Some(at) => self.beyond_mark(at),
            None => Beyond::Unit(self.shard()),
        }
    }

    #[cold]
    fn beyond_mark(&self, at: Area) -> Beyond {
        match rseq::number(at) {
            Some(id) if id < self.ids => {
                self.raise(id);
                Beyond::Again
            }
            _ => Beyond::Unit(self.stranger()),
        }
    }

    /// The unit of this thread now. It may be another thread's, too, by the time it is used.
    #[inline(always)]
    pub(super) fn unit(&self) -> u32 {
        let Some(at) = self.at else { return self.shard() };
        match rseq::number(at) {
            Some(id) if id < self.ids => {
                self.touch(id);
                id
            }
            _ => self.stranger(),
        }
    }

    // Not inlined: it calls the C library, and the loop of a section must not make room for that.
    #[inline(never)]
    fn shard(&self) -> u32 {
        let shard = thread_number();
        let unit = if shard < self.ids { shard } else { shard % self.ids };
        self.touch(unit);
        unit
    }

    fn stranger(&self) -> u32 {
        // Release pairs with the acquire of `live_units`.
        self.strangers.store(true, Ordering::Release);
        self.ids
    }

    /// Sees to it that the mark is above a unit.
    #[inline(always)]
    pub(super) fn touch(&self, unit: u32) {
        if unit == self.ids {
            self.stranger();
        } else if self.mark.load(Ordering::Relaxed) <= unit {
            self.raise(unit);
        }
    }

    #[cold]
    fn raise(&self, unit: u32) {
        // Release pairs with the acquire of `live_units`. Whoever touches an object that is given out later is ordered behind its
        // zeroing, and whoever frees it before behind its uses: so the zeroing sees every unit that is not zeros.
        self.mark.fetch_max(unit + 1, Ordering::AcqRel);
    }

    /// Units that anybody touched.
    #[inline(always)]
    pub(super) fn live_units(&self) -> impl Iterator<Item = u32> + use<> {
        let strangers = self.strangers.load(Ordering::Acquire).then_some(self.ids);
        (0..self.mark.load(Ordering::Acquire)).chain(strangers)
    }

    /// All units.
    pub(super) fn units(&self) -> u32 {
        self.ids + 1
    }
}
