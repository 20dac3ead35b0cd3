//! Metadata memory that the core has: a reference that its machine may end inside a call.
//!
//! # Theory
//! The core uses a slab or a table by a reference, and its machine frees the memory inside a call. In Rust's models of
//! references (Stacked Borrows, Tree Borrows) a reference that is an argument of a function stays valid until the
//! function returns. The same is true of each field of an argument. So two usual ways to free memory break that rule:
//!
//! | call | what is freed before it returns |
//! |---|---|
//! | `free(slab: &'static mut [T])` | its argument |
//! | `drop(index)` | the slabs in its argument, if the index has them as references |
//!
//! The rule does not apply to a value in a [`ManuallyDrop`] (RFC 3336, *`MaybeDangling`*). So the core has its memory in
//! [`Meta`], which is one: in the fields of its structures, and in the calls that free.
//!
//! # Cost
//! None: it is the reference.
//! # Source
//! RFC 3336. The library of Rust 1.95 defines `ManuallyDrop` in that way, and later compilers treat it so. To those that
//! do not, it is a reference as any other.

use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};

/// A reference to metadata memory, `&'static mut [T]` or `&'static T`, that may be freed while it is an argument.
///
/// A machine takes the reference out, makes it a pointer, and frees the memory:
///
/// ```
/// use va_base::{Meta, Record};
///
/// fn free_meta<T: Record>(slab: Meta<&'static mut [T]>) {
///     let slab: *mut [T] = slab.take();
///     // SAFETY: it was leaked from a box, and the core has no other reference to it.
///     drop(unsafe { Box::from_raw(slab) });
/// }
/// # #[derive(Clone, Copy)] struct R; impl Record for R { const EMPTY: Self = R; }
/// free_meta(Meta::new(vec![R; 3].leak()));
/// ```
#[derive(Clone, Copy, Default)]
pub struct Meta<R>(ManuallyDrop<R>);

impl<R> Meta<R> {
    /// Wraps a reference.
    #[inline(always)]
    #[must_use]
    pub const fn new(memory: R) -> Self {
        Self(ManuallyDrop::new(memory))
    }

    /// Returns the reference, to use the memory again or to free it.
    ///
    /// As an argument of a function that frees the memory, it would have to stay valid until that returns. Pass a
    /// pointer to such a function, or this type.
    #[inline(always)]
    #[must_use]
    pub const fn take(self) -> R {
        ManuallyDrop::into_inner(self.0)
    }
}

impl<R> Deref for Meta<R> {
    type Target = R;

    #[inline(always)]
    fn deref(&self) -> &R {
        &self.0
    }
}

impl<R> DerefMut for Meta<R> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut R {
        &mut self.0
    }
}

impl<R> fmt::Debug for Meta<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meta").finish_non_exhaustive()
    }
}
