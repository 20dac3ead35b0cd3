//! A machine that is set late: it begins as a constant without one, so an empty space is a constant too.
//!
//! # Theory
//! A space has its machine as a field. The machine is a reference or a handle, and is often known only when the space
//! gets its extent. A constant of the space cannot contain it then, and a space that is built with it is first a value
//! on the stack. [`Late`] is that field: empty at first, then the machine, for good. So an empty space is a constant,
//! which the compiler copies to its final address.
//!
//! Without a machine there is no memory, one CPU, and nothing to flush: every request fails, and changes nothing.
//!
//! # Cost
//! A comparison in each method of the machine that has an effect; none if the method is empty.

#[cfg(target_has_atomic = "ptr")]
use crate::{Drain, Epoch, LockClass, Machine, Table, VaRange};
use crate::{InvariantViolation, Meta, NoSlabs, Platform, Record};
use core::fmt;

/// A platform or a machine, or none yet.
///
/// ```
/// use va_base::{Late, NoSlabs, Platform};
/// # #[derive(Clone, Copy)] struct R; impl va_base::Record for R { const EMPTY: Self = R; }
/// static EMPTY: Late<NoSlabs> = Late::NONE;
/// assert!(EMPTY.alloc_meta::<R>(1).is_none());
/// assert!(EMPTY.get().is_none());
/// ```
#[derive(Clone, Debug)]
pub struct Late<P>(Option<P>);

impl<P> Late<P> {
    /// None yet.
    pub const NONE: Self = Self(None);

    /// Wraps a platform.
    pub const fn new(platform: P) -> Self {
        Self(Some(platform))
    }

    /// Returns the platform, if it is set.
    #[inline(always)]
    pub const fn get(&self) -> Option<&P> {
        self.0.as_ref()
    }
}

impl<P: Platform> Late<P> {
    /// Calls [`Platform::bug`].
    pub fn bug(&self, what: fmt::Arguments<'_>, broken: Option<InvariantViolation>) -> ! {
        match self.get() {
            Some(platform) => platform.bug(what, broken),
            None => NoSlabs.bug(what, broken),
        }
    }
}

impl<P: Platform> Platform for Late<P> {
    const PAGE_SHIFT: u32 = P::PAGE_SHIFT;

    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        self.get()?.alloc_meta(min)
    }

    fn free_meta<T: Record>(&self, slab: Meta<&'static mut [T]>) {
        if let Some(platform) = self.get() {
            platform.free_meta(slab);
        }
    }

    fn bug(&self, what: fmt::Arguments<'_>, broken: Option<InvariantViolation>) -> ! {
        self.bug(what, broken)
    }
}

#[cfg(target_has_atomic = "ptr")]
impl<P: Machine> Machine for Late<P> {
    type Lock = P::Lock;
    type PurgeLock = P::PurgeLock;
    type OwnerLock = P::OwnerLock;

    fn cpus_possible(&self) -> u32 {
        self.get().map_or(1, P::cpus_possible)
    }

    #[inline(always)]
    fn cpus_online(&self) -> u32 {
        match self.get() {
            Some(machine) => machine.cpus_online(),
            None => 1,
        }
    }

    fn alloc_table<T: Table>(&self) -> Option<&'static T> {
        self.get()?.alloc_table()
    }

    fn free_table<T: Table>(&self, table: Meta<&'static T>) {
        if let Some(machine) = self.get() {
            machine.free_table(table);
        }
    }

    const RETIRES: bool = P::RETIRES;

    fn retire_table<T: Table>(&self, table: Meta<&'static T>) {
        if let Some(machine) = self.get() {
            machine.retire_table(table);
        }
    }

    fn flush(&self, ranges: &[VaRange]) -> Epoch {
        self.get().map_or(Epoch::default(), |machine| machine.flush(ranges))
    }

    fn completed(&self, epoch: Epoch) -> bool {
        self.get().is_none_or(|machine| machine.completed(epoch))
    }

    fn wait(&self, epoch: Epoch) {
        if let Some(machine) = self.get() {
            machine.wait(epoch);
        }
    }

    #[inline(always)]
    fn hears_settled(&self) -> bool {
        match self.get() {
            Some(machine) => machine.hears_settled(),
            None => false,
        }
    }

    fn settled(&self, ranges: &[VaRange]) {
        if let Some(machine) = self.get() {
            machine.settled(ranges);
        }
    }

    fn drain(&self) -> Drain {
        self.get().map_or(Drain::Here, P::drain)
    }

    #[inline(always)]
    #[track_caller]
    fn locking(&self, class: LockClass) {
        // No closure: it would lose the caller's location.
        if let Some(machine) = self.get() {
            machine.locking(class);
        }
    }

    fn reclaim(&self) -> u64 {
        self.get().map_or(0, P::reclaim)
    }

    fn can_reclaim(&self) -> bool {
        self.get().is_some_and(P::can_reclaim)
    }
}
