//! The supply of a space with chunks and pages.
//!
//! # Theory
//! A space says where; a backend makes it so. Linux has two, [`VmChunks`](crate::vm::VmChunks) takes congruent areas of
//! address space and populates them page by page, [`KmChunks`](crate::km::KmChunks) contiguous blocks, whole, where
//! nothing can be mapped. The contract:
//!
//! | call | locks held | may fail |
//! |---|---|---|
//! | [`Backend::create`] | grow | yes; nothing has changed |
//! | [`Backend::destroy`] | grow | no |
//! | [`Backend::populate`] | grow | yes; none of the pages is populated then |
//! | [`Backend::depopulate`] | grow | no |
//! | [`Backend::flush`] | grow | no |
//! | [`Backend::wake`], [`Backend::event`] | none, or grow | no |
//!
//! The lock `grow` may sleep. None of them may re-enter the same space.

use crate::geometry::Geometry;
use crate::request::{Offset, Request};
use core::ops::Range;
use va_base::Va;

/// The failure of a backend. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackendError;

/// An event, as Linux's trace events have it (`percpu:*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// `percpu_alloc_percpu`.
    Alloc {
        /// The request.
        request: Request,
        /// The address that the first unit of the chunk begins at.
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
        /// The address that the first unit of the chunk begins at.
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
    /// Chunks are made empty and populated by page; else they are made whole and stay so.
    const BY_PAGE: bool;

    /// Makes a chunk and returns where its first unit begins: at a multiple of the geometry's atom.
    ///
    /// # Errors
    /// [`BackendError`], and nothing has changed.
    fn create(&self, geometry: &Geometry) -> Result<Va, BackendError>;

    /// Unmakes a chunk that [`create`](Self::create) made and whose pages have all been depopulated.
    fn destroy(&self, geometry: &Geometry, base: Va);

    /// Populates pages of every unit, all or none.
    ///
    /// # Errors
    /// [`BackendError`], and nothing has changed.
    fn populate(&self, geometry: &Geometry, base: Va, pages: Range<u32>) -> Result<(), BackendError>;

    /// Takes populated pages away. Whoever still translates them is dealt with by [`flush`](Self::flush), or when the
    /// addresses of the chunk go back.
    fn depopulate(&self, geometry: &Geometry, base: Va, pages: Range<u32>);

    /// Forgets translations of pages that were depopulated; once for each chunk looked through.
    fn flush(&self, geometry: &Geometry, base: Va, pages: Range<u32>);

    /// Tells that the balance is due: somebody should call `tick` until it is done. Called once until then.
    fn wake(&self) {}

    /// Zeroes an object on every CPU, before it is given out. Called under no lock.
    #[inline(always)]
    fn zero(&self, _base: Va, _off: u32, _bytes: u32) {}

    /// Tells what happened. Costs nothing where it is empty.
    #[inline(always)]
    fn event(&self, _event: Event) {}
}

impl<B: Backend + ?Sized> Backend for &B {
    const BY_PAGE: bool = B::BY_PAGE;

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
    fn zero(&self, base: Va, off: u32, bytes: u32) {
        (**self).zero(base, off, bytes);
    }

    #[inline(always)]
    fn event(&self, event: Event) {
        (**self).event(event);
    }
}
