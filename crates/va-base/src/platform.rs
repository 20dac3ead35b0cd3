//! The porting contract: all that a new machine must read.
//!
//! # Theory
//! The core decides *where*; a machine does *what*. It asks a machine for three things so far:
//!
//! | call | state before | state after | may fail |
//! |---|---|---|---|
//! | [`Platform::lend_slab`] | the platform owns the memory | the core owns the records until it hands the slab back or forever | yes, by `None`; the core then fails the request and changes nothing |
//! | [`Platform::take_back_slab`] | the core owned the slab | the platform owns it again | no |
//! | [`Platform::bug`] | an invariant is broken | never returns | - |
//!
//! No lock of the core is held by the index itself: whoever wraps it in a lock decides whether `lend_slab` may sleep,
//! and must not let it call back into the same index.

use crate::Broken;
use core::fmt;

/// A record that lives in slabs: data with an empty value, and nothing to drop.
///
/// `Clone` is there so that a platform can fill a slab with `EMPTY`; it clones nothing else.
pub trait Record: Clone + Send + Sync + 'static {
    /// What an unused record holds.
    const EMPTY: Self;
}

/// What a machine supplies to the core.
///
/// A machine whose pages are not those that the core was built for is refused when its index or space is compiled:
///
/// ```compile_fail
/// use va_base::{PAGE_SHIFT, Platform, Record, VaRange};
/// # struct Other;
/// impl Platform for Other {
///     const PAGE_SHIFT: u32 = PAGE_SHIFT + 2;
/// #   fn lend_slab<T: Record>(&self, _min: usize) -> Option<&'static mut [T]> { None }
/// #   fn take_back_slab<T: Record>(&self, _slab: &'static mut [T]) {}
/// }
/// va_base::assert_pages::<Other>();
/// ```
pub trait Platform {
    /// Binary logarithm of the bytes in a page of this machine.
    const PAGE_SHIFT: u32 = crate::PAGE_SHIFT;

    /// Lends at least `min` records, or refuses with `None`.
    ///
    /// The slab may hold any values; its length may exceed `min`, and the surplus may stay unused. The core asks for a large
    /// slab first, as long as all that it has together, and where that fails for one of a page ([`PIECE_BYTES`]
    /// or less, see [`PagedArray`](crate::PagedArray)). So a platform that has pages alone is enough for any number of
    /// areas, and one that has larger pieces makes lookups shorter. `None` has no memory: the request fails, and the next
    /// one that needs memory asks again. Only the rows of per-CPU chunks are longer than a page, one row each.
    ///
    /// A caller that holds a lock here may prefer to fail, and have the memory handed in from outside the lock
    /// (`va_tree::Supplied`).
    ///
    /// [`PIECE_BYTES`]: crate::PIECE_BYTES
    fn lend_slab<T: Record>(&self, min: usize) -> Option<&'static mut [T]>;

    /// Takes back a slab that [`lend_slab`](Self::lend_slab) lent, when its index is dropped.
    fn take_back_slab<T: Record>(&self, slab: &'static mut [T]);

    /// Stops the machine, or at least whoever runs here: an invariant of the core does not hold.
    ///
    /// `broken` is known when a check found it, and absent when the working path met the impossible.
    fn bug(&self, what: fmt::Arguments<'_>, broken: Option<Broken>) -> ! {
        match broken {
            Some(broken) => panic!("{what}: {broken}"),
            None => panic!("{what}"),
        }
    }
}

/// Refuses, when it is compiled, a machine whose pages are not those that this crate was built for.
#[inline(always)]
pub const fn assert_pages<P: Platform + ?Sized>() {
    const {
        assert!(
            P::PAGE_SHIFT == crate::PAGE_SHIFT,
            "the machine has other pages than the core was built for: build with VA_PAGE_SHIFT"
        );
    }
}

/// A machine without memory for records: an index on it lives in its inline records, and in memory that is handed in.
///
/// ```
/// use va_base::{NoSlabs, Platform};
/// # #[derive(Clone, Copy)] struct R; impl va_base::Record for R { const EMPTY: Self = R; }
/// assert!(NoSlabs.lend_slab::<R>(1).is_none());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSlabs;

impl Platform for NoSlabs {
    fn lend_slab<T: Record>(&self, _min: usize) -> Option<&'static mut [T]> {
        None
    }

    fn take_back_slab<T: Record>(&self, _slab: &'static mut [T]) {}
}

impl<P: Platform + ?Sized> Platform for &P {
    const PAGE_SHIFT: u32 = P::PAGE_SHIFT;

    fn lend_slab<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        (**self).lend_slab(min)
    }

    fn take_back_slab<T: Record>(&self, slab: &'static mut [T]) {
        (**self).take_back_slab(slab);
    }

    fn bug(&self, what: fmt::Arguments<'_>, broken: Option<Broken>) -> ! {
        (**self).bug(what, broken)
    }
}
