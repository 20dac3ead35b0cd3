//! The system calls of mappings, behind a trait, so that a test can make each of them fail.

use core::ffi::c_int;
use vmalloc_os::os::Errno;

pub(super) use vmalloc_os::os::Span;

/// A system call of mappings, by its purpose.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum VmapCall {
    /// Reserving address range for mappings.
    Reserve,
    /// Mapping the words that record the mapped frames.
    Words,
    /// Creating the memory file.
    Create,
    /// Growing the memory file.
    Size,
    /// Mapping frames.
    Map,
    /// Replacing freed mappings by inaccessible address range.
    Unmap,
    /// Allocating the memory of frames.
    Populate,
    /// Releasing the memory of frames.
    Punch,
    /// Reading or writing frames.
    Copy,
}

/// The system calls that mappings need. Every span is whole pages.
pub(crate) trait MapOs: Send + Sync + 'static {
    /// Reserves an inaccessible address range.
    fn reserve(&self, bytes: usize) -> Result<usize, Errno>;

    /// Maps zeros, which become resident at the first access.
    fn words(&self, bytes: usize) -> Result<usize, Errno>;

    /// Unmaps a range that `reserve` or `words` returned.
    ///
    /// # Safety
    /// No reference to the range remains.
    unsafe fn release(&self, span: Span);

    /// Creates an empty file in memory that never shrinks.
    fn create(&self) -> Result<c_int, Errno>;

    /// Closes the file.
    fn close(&self, file: c_int);

    /// Sets the size of the file.
    fn size(&self, file: c_int, bytes: u64) -> Result<(), Errno>;

    /// Maps a range of the file.
    ///
    /// # Safety
    /// The span is part of a range that `reserve` returned, and no reference to it exists.
    unsafe fn map(&self, span: Span, file: c_int, offset: u64, writable: bool) -> Result<(), Errno>;

    /// Replaces the mappings of a span by inaccessible address range.
    ///
    /// # Safety
    /// As [`map`](Self::map).
    unsafe fn unmap(&self, span: Span) -> Result<(), Errno>;

    /// Reserves the span again where a failed call may have left a hole. Existing mappings stay.
    ///
    /// # Safety
    /// As [`map`](Self::map).
    unsafe fn mend(&self, span: Span);

    /// Allocates the memory of a range of the file.
    fn populate(&self, file: c_int, offset: u64, bytes: u64) -> Result<(), Errno>;

    /// Releases the memory of a range of the file, which then reads as zeros.
    fn punch(&self, file: c_int, offset: u64, bytes: u64) -> Result<(), Errno>;

    /// Reads from the file, all of `to`.
    fn read(&self, file: c_int, offset: u64, to: &mut [u8]) -> Result<(), Errno>;

    /// Writes to the file, all of `from`.
    fn write(&self, file: c_int, offset: u64, from: &[u8]) -> Result<(), Errno>;
}
