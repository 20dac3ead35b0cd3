//! A view of frames, contiguous in addresses.
//!
//! # Theory
//! The same frame may be at two addresses of one view, in two views, and written to by the system meanwhile. So a view
//! has no `&[u8]` and no `&mut [u8]`. Two such references could be to the same bytes: one states that the bytes do not
//! change, and the other changes them. Instead a view copies bytes in and out, and has the bytes as atomic words, which
//! may be shared. All accesses are by words of eight bytes, since concurrent atomic accesses of different sizes to the
//! same bytes are not allowed.

use super::error::VmapError;
use super::linux::Linux;
use super::state::{Core, Protection};
use crate::PAGE_BYTES;
use core::ptr::{NonNull, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicU64, Ordering};

const WORD: usize = size_of::<AtomicU64>();

/// A contiguous mapping of frames. Dropping it frees the address range at once; the system call that unmaps it is lazy.
pub struct Mapping<'f> {
    core: &'f Core<Linux>,
    at: NonNull<u8>,
    pages: usize,
    protection: Protection,
    small: bool,
}

// SAFETY: it contains only an address, and all accesses to the bytes there are by atomic words.
unsafe impl Send for Mapping<'_> {}
// SAFETY: as before.
unsafe impl Sync for Mapping<'_> {}

impl<'f> Mapping<'f> {
    pub(super) fn of(core: &'f Core<Linux>, at: usize, pages: usize, protection: Protection) -> Self {
        Self { core, at: place(at), pages, protection, small: false }
    }

    pub(super) fn small(core: &'f Core<Linux>, at: usize, pages: usize, protection: Protection) -> Self {
        Self { core, at: place(at), pages, protection, small: true }
    }

    /// Returns the address of the first byte. Accesses through it race with all other writes to the same frames.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.at
    }

    /// Returns the number of bytes, which are whole pages.
    #[expect(clippy::len_without_is_empty, reason = "there is always a page at least")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.pages * PAGE_BYTES
    }

    /// Returns the bytes as shared words, in the machine's byte order.
    ///
    /// # Errors
    /// [`VmapError::ReadOnly`]: a store would end the process.
    pub fn words(&self) -> Result<&[AtomicU64], VmapError> {
        match self.protection {
            Protection::ReadWrite => Ok(self.cells()),
            Protection::Read => Err(VmapError::ReadOnly),
        }
    }

    /// Copies bytes out, from byte `offset` on.
    ///
    /// # Errors
    /// [`VmapError::OutOfBounds`].
    pub fn read(&self, offset: usize, mut to: &mut [u8]) -> Result<(), VmapError> {
        let cells = &self.cells()[..self.check(offset, to.len())?.div_ceil(WORD)];
        let mut at = offset;
        while !to.is_empty() {
            let word = cells[at / WORD].load(Ordering::Relaxed).to_ne_bytes();
            let part = &word[at % WORD..];
            let count = part.len().min(to.len());
            to[..count].copy_from_slice(&part[..count]);
            to = &mut to[count..];
            at += count;
        }
        Ok(())
    }

    /// Copies bytes in, from byte `offset` on. Adjacent bytes are unchanged, even if another thread writes to them at
    /// the same time.
    ///
    /// # Errors
    /// [`VmapError::OutOfBounds`], [`VmapError::ReadOnly`].
    pub fn write(&self, offset: usize, mut from: &[u8]) -> Result<(), VmapError> {
        let cells = &self.words()?[..self.check(offset, from.len())?.div_ceil(WORD)];
        let mut at = offset;
        while !from.is_empty() {
            let (cell, inside) = (&cells[at / WORD], at % WORD);
            let count = (WORD - inside).min(from.len());
            let (now, later) = from.split_at(count);
            if let Ok(word) = now.try_into() {
                cell.store(u64::from_ne_bytes(word), Ordering::Relaxed);
            } else {
                let merged = |old: u64| {
                    let mut word = old.to_ne_bytes();
                    word[inside..inside + count].copy_from_slice(now);
                    u64::from_ne_bytes(word)
                };
                let mut old = cell.load(Ordering::Relaxed);
                while let Err(other) =
                    cell.compare_exchange_weak(old, merged(old), Ordering::Relaxed, Ordering::Relaxed)
                {
                    old = other;
                }
            }
            from = later;
            at += count;
        }
        Ok(())
    }

    /// Returns the end of `bytes` from `offset` on, if they are inside.
    fn check(&self, offset: usize, bytes: usize) -> Result<usize, VmapError> {
        let len = self.len();
        let end = offset.checked_add(bytes).filter(|&end| end <= len);
        end.ok_or(VmapError::OutOfBounds { offset, bytes, len })
    }

    /// Returns all words. If the mapping may only be read, only loads are allowed.
    fn cells(&self) -> &[AtomicU64] {
        // SAFETY: mapped until this is dropped, aligned to a page, and all other accesses are by such words, or by the
        // system.
        unsafe { core::slice::from_raw_parts(self.at.as_ptr().cast(), self.len() / WORD) }
    }
}

impl Drop for Mapping<'_> {
    fn drop(&mut self) {
        self.core.unmap(self.at.addr().get(), self.pages, self.small);
    }
}

impl core::fmt::Debug for Mapping<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { at, pages, protection, small, .. } = self;
        f.debug_struct("Mapping")
            .field("at", at)
            .field("pages", pages)
            .field("protection", protection)
            .field("small", small)
            .finish()
    }
}

fn place(at: usize) -> NonNull<u8> {
    // No mapping is at address 0.
    NonNull::new(with_exposed_provenance_mut(at)).unwrap_or(NonNull::dangling())
}
