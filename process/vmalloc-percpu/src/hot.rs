//! The state that every operation reads: how a thread finds its unit, and the mark of units ever used.
//!
//! # Theory
//! ```text
//!   units   | 0 | 1 | 2 |  3 .. ids - 1: never used  | ids: strangers' |
//!                       ^ mark
//! ```
//! The mark is above every unit that any thread has used. A section compares its unit's number with the mark, so the
//! first use of a unit takes the slow path once. An object is zeroed below the mark when it is allocated; units above
//! it are zeros, as mapped. One more unit, the strangers', belongs to threads without a number. Their registration
//! failed or ended, or the number is above the reported maximum. They share it with atomic operations, and no section
//! ever accesses it. (glibc 2.36 ends a program in which a filter of system calls denies a later thread's
//! registration.)
//!
//! If no sections are available, threads get numbers in turn, and all operations are atomic ones.
//!
//! # Invariants
//! - **PP1 mark** a unit of an object is accessed only if it is below the mark, or if it is the strangers' and their
//!   flag is set.

use super::Index;
use super::rseq::{self, Area};
use va_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use vmalloc_os::os::thread_number;

/// The state of a space that every operation reads: see the head of the module.
#[derive(Debug)]
pub(super) struct Hot {
    // Constant after `new`.
    /// The area with the number of the thread's unit; `None` if no sections are available.
    pub(super) at: Option<Area>,
    pub(super) index: Index,
    /// The number of possible numbers; the strangers' unit follows them.
    pub(super) ids: u32,
    /// The kernel's batch of counters: 32, or twice the possible CPUs if that is more.
    pub(super) batch: i64,
    // Atomic; they only rise.
    /// The number above all units that were ever used. Protocol PR-UNITS.
    pub(super) mark: AtomicU32,
    /// The unit of threads without a number was ever used. Protocol PR-UNITS.
    strangers: AtomicBool,
}

/// The next step of a thread whose section did not access its unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Beyond {
    /// The mark was raised: retry the section.
    Again,
    /// Execute an atomic operation on this unit.
    Unit(u32),
}

impl Hot {
    pub(super) fn new(at: Option<Area>, index: Index, ids: u32) -> Self {
        let batch = (2 * i64::from(ids)).max(32);
        Self { at, index, ids, batch, mark: AtomicU32::new(0), strangers: AtomicBool::new(false) }
    }

    /// Finds a unit for a thread outside of sections. Checks PP1.
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

    /// Returns the current unit of this thread. Another thread may have the same unit by the time it is used.
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

    /// Returns a number of this thread that few others have at this moment. It uses no unit.
    #[inline(always)]
    pub(super) fn number(&self) -> u32 {
        match self.at {
            Some(at) => rseq::number(at).unwrap_or(0),
            None => thread_number(),
        }
    }

    // Not inlined: it calls the C library, and the loop of a section must not save registers for that.
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

    /// Raises the mark above a unit if necessary.
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
        // Release pairs with the acquire of `live_units`. A use of an object is ordered after its allocation and
        // zeroing, and its free after its uses. So the zeroing of the next object there sees every unit that is not
        // zeros.
        self.mark.fetch_max(unit + 1, Ordering::AcqRel);
    }

    /// Returns the units that any thread has used.
    #[inline(always)]
    pub(super) fn live_units(&self) -> impl Iterator<Item = u32> + use<> {
        let strangers = self.strangers.load(Ordering::Acquire).then_some(self.ids);
        (0..self.mark.load(Ordering::Acquire)).chain(strangers)
    }

    /// Returns the number of all units.
    pub(super) fn units(&self) -> u32 {
        self.ids + 1
    }
}
