//! The porting contract of an index: memory for records, and the report of a bug.
//!
//! # Theory
//! The core decides on addresses; a machine acts on them. An index makes three calls:
//!
//! | call | state before | state after | may fail |
//! |---|---|---|---|
//! | [`Platform::alloc_meta`] | the platform owns the memory | the core owns the records until it frees the slab, or forever | yes, by `None`. The core then fails the request and changes nothing. |
//! | [`Platform::free_meta`] | the core owned the slab | the platform owns it again | no |
//! | [`Platform::bug`] | an invariant is broken | never returns | - |
//!
//! The index itself holds no lock. The code that wraps it in a lock decides whether `alloc_meta` may sleep.
//! `alloc_meta` must not call back into the same index.

use crate::{InvariantViolation, Meta};
use core::fmt;

/// Bytes of the smallest piece: a page of 4 KiB.
pub const PIECE_BYTES: usize = 4096;

/// Returns the binary logarithm of as many records of some bytes as fit in a page, rounded down.
const fn piece_log2(bytes: usize) -> u32 {
    // Records of no bytes: one a piece, as those longer than a page.
    match PIECE_BYTES.checked_div(bytes) {
        None | Some(0) => 0,
        Some(fit) => fit.ilog2(),
    }
}

/// A record of metadata memory: data with an empty value, and nothing to drop.
///
/// `Clone` lets a platform fill a slab with `EMPTY`; no other value is cloned.
pub trait Record: Clone + Send + Sync + 'static {
    /// Value of an unused record.
    const EMPTY: Self;

    /// Binary logarithm of the records in the smallest piece of an array ([`PagedArray`](crate::PagedArray)): as many as
    /// fit in a page, rounded down to a power of two. A record longer than a page is a piece by itself.
    const PIECE_LOG2: u32 = piece_log2(size_of::<Self>());
}

/// A supplier of metadata memory to an index.
///
/// A machine whose page size differs from that of the core does not compile with an index or a space:
///
/// ```compile_fail
/// use va_base::{Meta, PAGE_SHIFT, Platform, Record, VaRange};
/// # struct Other;
/// impl Platform for Other {
///     const PAGE_SHIFT: u32 = PAGE_SHIFT + 2;
/// #   fn alloc_meta<T: Record>(&self, _min: usize) -> Option<&'static mut [T]> { None }
/// #   fn free_meta<T: Record>(&self, _slab: Meta<&'static mut [T]>) {}
/// }
/// va_base::assert_pages::<Other>();
/// ```
pub trait Platform {
    /// Binary logarithm of the bytes in a page of this machine.
    const PAGE_SHIFT: u32 = crate::PAGE_SHIFT;

    /// Allocates a slab of at least `min` records, or returns `None` if there is no memory.
    ///
    /// The slab may contain any values. Its length may exceed `min`, and the surplus may stay unused. The
    /// core first requests a large slab, as long as all its slabs together. If that fails it requests one of
    /// a page ([`PIECE_BYTES`] or less, see [`PagedArray`](crate::PagedArray)). So a platform that has pages
    /// alone is enough for any number of areas, and larger slabs make lookups shorter. One call pays for a
    /// large slab: a platform that fills slabs, so that the price grows with the length, returns `None` above
    /// some hundred KiB. After `None` the request fails, and the next one that needs memory asks again. Only
    /// the rows of per-CPU chunks are longer than a page, one row each.
    ///
    /// A platform whose memory is not available under the caller's lock may return `None`. The caller then supplies
    /// memory from outside the lock (`va_tree::Supplied`).
    ///
    /// [`PIECE_BYTES`]: crate::PIECE_BYTES
    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]>;

    /// Frees a slab of [`alloc_meta`](Self::alloc_meta), with its whole length, when the index needs it no longer. It is
    /// the only reference to the slab. [`Meta`] shows how to free it.
    fn free_meta<T: Record>(&self, slab: Meta<&'static mut [T]>);

    /// Stops the machine, or at least the calling thread, since an invariant of the core does not hold.
    ///
    /// `broken` is `Some` if a check found the fault, and `None` if a working path met an impossible state.
    fn bug(&self, what: fmt::Arguments<'_>, broken: Option<InvariantViolation>) -> ! {
        match broken {
            Some(broken) => panic!("{what}: {broken}"),
            None => panic!("{what}"),
        }
    }
}

/// Fails to compile for a machine whose page size differs from [`PAGE_SHIFT`](crate::PAGE_SHIFT).
#[inline(always)]
pub const fn assert_pages<P: Platform + ?Sized>() {
    const {
        assert!(
            P::PAGE_SHIFT == crate::PAGE_SHIFT,
            "the machine has other pages than the core was built for: build with VA_PAGE_SHIFT"
        );
    }
}

/// A platform without memory for records: an index on it has its inline records, and the memory that callers donate.
///
/// It frees nothing. Donated memory is lost when such an index shrinks or is dropped. If that may happen, use a platform
/// of your own: its `alloc_meta` returns `None`, and its `free_meta` frees to the heap that the memory is from.
///
/// ```
/// use va_base::{NoSlabs, Platform};
/// # #[derive(Clone, Copy)] struct R; impl va_base::Record for R { const EMPTY: Self = R; }
/// assert!(NoSlabs.alloc_meta::<R>(1).is_none());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSlabs;

impl Platform for NoSlabs {
    fn alloc_meta<T: Record>(&self, _min: usize) -> Option<&'static mut [T]> {
        None
    }

    fn free_meta<T: Record>(&self, _slab: Meta<&'static mut [T]>) {}
}

impl<P: Platform + ?Sized> Platform for &P {
    const PAGE_SHIFT: u32 = P::PAGE_SHIFT;

    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        (**self).alloc_meta(min)
    }

    fn free_meta<T: Record>(&self, slab: Meta<&'static mut [T]>) {
        (**self).free_meta(slab);
    }

    fn bug(&self, what: fmt::Arguments<'_>, broken: Option<InvariantViolation>) -> ! {
        (**self).bug(what, broken)
    }
}
