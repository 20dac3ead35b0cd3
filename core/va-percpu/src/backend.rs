//! The interface through which a space gets chunks and pages.
//!
//! # Theory
//! A space decides where a chunk or a page is needed; a backend supplies it. Linux has two.
//! [`VmChunks`](crate::vm::VmChunks) allocates congruent areas of address space and populates them page by page.
//! [`KmChunks`](crate::km::KmChunks) allocates contiguous blocks, populated as a whole, where nothing can be mapped.
//! The contract:
//!
//! | call | locks held | may fail |
//! |---|---|---|
//! | [`Backend::check`] | none | yes; no space is created |
//! | [`Backend::create`] | grow | yes; nothing has changed |
//! | [`Backend::destroy`] | grow | no |
//! | [`Backend::populate`] | grow | yes; none of the pages is populated then |
//! | [`Backend::depopulate`] | grow | no |
//! | [`Backend::flush`] | grow | no |
//! | [`Backend::zero`] | none | no |
//! | [`Backend::is_zero`] | any, from `validate` | no |
//! | [`Backend::wake`], [`Backend::event`] | none, or grow | no |
//!
//! The lock `grow` may sleep. None of them may re-enter the same space.

use crate::error::PlacementError;
use crate::geometry::Geometry;
use crate::offset::Offset;
use crate::request::Request;
use core::ops::Range;
use va_base::Va;

/// The failure of a backend. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackendError;

/// An event, in the form of Linux's trace events (`percpu:*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// `percpu_alloc_percpu`.
    Alloc {
        /// The request. Of an object that a magazine took from the space, since it held none, the size and the
        /// alignment are those of its class.
        request: Request,
        /// The address that the bitmap of the chunk begins at: that of its first unit, but in the first chunk.
        base: Va,
        /// Bytes from there.
        off: u32,
        /// The offset that was allocated.
        offset: Offset,
    },
    /// `percpu_alloc_percpu_fail`.
    AllocFail {
        /// The request.
        request: Request,
    },
    /// `percpu_free_percpu`.
    Free {
        /// The address that the bitmap of the chunk begins at: that of its first unit, but in the first chunk.
        base: Va,
        /// Bytes from there.
        off: u32,
        /// The offset that was freed.
        offset: Offset,
    },
    /// `percpu_create_chunk`.
    CreateChunk {
        /// The address that its first unit begins at.
        base: Va,
    },
    /// `percpu_destroy_chunk`.
    DestroyChunk {
        /// The address that its first unit began at.
        base: Va,
    },
}

/// Supplies chunks and pages. Pages are counted from the beginning of a unit and stand for that page of every unit.
pub trait Backend {
    /// True if chunks are created empty and populated by page; otherwise they are created populated and remain so.
    const BY_PAGE: bool;

    /// Checks that its units are those of a geometry, one for each of `cpus` possible CPUs. A space calls it once, before
    /// any other call. The default accepts all.
    ///
    /// # Errors
    /// [`PlacementError`], and no space is created.
    fn check(&self, _geometry: &Geometry, _cpus: u32) -> Result<(), PlacementError> {
        Ok(())
    }

    /// Creates a chunk and returns the address of its first unit, a multiple of the geometry's atom.
    ///
    /// # Errors
    /// [`BackendError`], and nothing has changed.
    fn create(&self, geometry: &Geometry) -> Result<Va, BackendError>;

    /// Destroys a chunk that [`create`](Self::create) created and whose pages have all been depopulated.
    fn destroy(&self, geometry: &Geometry, base: Va);

    /// Populates pages of every unit, all or none.
    ///
    /// # Errors
    /// [`BackendError`], and nothing has changed.
    fn populate(&self, geometry: &Geometry, base: Va, pages: Range<u32>) -> Result<(), BackendError>;

    /// Depopulates pages. CPUs may still translate them until [`flush`](Self::flush), or until the addresses of the
    /// chunk are freed.
    fn depopulate(&self, geometry: &Geometry, base: Va, pages: Range<u32>);

    /// Flushes translations of depopulated pages; called once for each chunk that was searched for them.
    fn flush(&self, geometry: &Geometry, base: Va, pages: Range<u32>);

    /// Reports that the balance is due: a thread should call `tick` until it is done. Called once for each pass that it
    /// calls for.
    fn wake(&self) {}

    /// Zeroes bytes of every unit, from byte `off` after `base` on, before objects there are allocated. Called under no
    /// lock. `base` is the address that the bitmap of the chunk begins at; pages of the first chunk are among them.
    ///
    /// Callers rely on it: a counter that was freed at 5 begins at 0 again. A backend whose addresses have no memory
    /// behind them does nothing here.
    fn zero(&self, geometry: &Geometry, base: Va, off: u32, bytes: u32);

    /// Returns whether these bytes are zero in every unit; `None` if there is no memory behind the addresses, or it
    /// cannot be read. Only [`validate`](crate::PercpuSpace::validate) (MC2) and debug assertions call it, to check
    /// [`zero`](Self::zero).
    fn is_zero(&self, geometry: &Geometry, base: Va, off: u32, bytes: u32) -> Option<bool> {
        let _ = (geometry, base, off, bytes);
        None
    }

    /// Reports an event. Costs nothing where it is empty.
    #[inline(always)]
    fn event(&self, _event: Event) {}
}

/// Returns whether all copies are zero; `None` if that of some is unknown, and none is known to be different.
pub(crate) fn all_zero(mut copies: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    copies
        .try_fold(Some(true), |all, copy| match copy {
            Some(false) => Err(()),
            Some(true) => Ok(all),
            None => Ok(None),
        })
        .unwrap_or(Some(false))
}

impl<B: Backend + ?Sized> Backend for &B {
    const BY_PAGE: bool = B::BY_PAGE;

    fn check(&self, geometry: &Geometry, cpus: u32) -> Result<(), PlacementError> {
        (**self).check(geometry, cpus)
    }

    fn create(&self, geometry: &Geometry) -> Result<Va, BackendError> {
        (**self).create(geometry)
    }

    fn destroy(&self, geometry: &Geometry, base: Va) {
        (**self).destroy(geometry, base);
    }

    fn populate(&self, geometry: &Geometry, base: Va, pages: Range<u32>) -> Result<(), BackendError> {
        (**self).populate(geometry, base, pages)
    }

    fn depopulate(&self, geometry: &Geometry, base: Va, pages: Range<u32>) {
        (**self).depopulate(geometry, base, pages);
    }

    fn flush(&self, geometry: &Geometry, base: Va, pages: Range<u32>) {
        (**self).flush(geometry, base, pages);
    }

    fn wake(&self) {
        (**self).wake();
    }

    #[inline(always)]
    fn zero(&self, geometry: &Geometry, base: Va, off: u32, bytes: u32) {
        (**self).zero(geometry, base, off, bytes);
    }

    fn is_zero(&self, geometry: &Geometry, base: Va, off: u32, bytes: u32) -> Option<bool> {
        (**self).is_zero(geometry, base, off, bytes)
    }

    #[inline(always)]
    fn event(&self, event: Event) {
        (**self).event(event);
    }
}
