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

/// A memory file: its descriptor, and the device and inode by which it differs from a file that the program opened by
/// the same number since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct File {
    pub(super) number: c_int,
    pub(super) device: u64,
    pub(super) inode: u64,
}

/// The system calls that mappings need. Every span is whole pages. Each call with a file fails with `EBADF` if its
/// number is another file's by now, or none's.
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
    fn create(&self) -> Result<File, Errno>;

    /// Closes the file, unless the program did.
    fn close(&self, file: File);

    /// Sets the size of the file.
    fn size(&self, file: File, bytes: u64) -> Result<(), Errno>;

    /// Maps a range of the file.
    ///
    /// # Safety
    /// The span is part of a range that `reserve` returned, and no reference to it exists.
    unsafe fn map(&self, span: Span, file: File, offset: u64, writable: bool) -> Result<(), Errno>;

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
    fn populate(&self, file: File, offset: u64, bytes: u64) -> Result<(), Errno>;

    /// Releases the memory of a range of the file, which then reads as zeros.
    fn punch(&self, file: File, offset: u64, bytes: u64) -> Result<(), Errno>;

    /// Reads from the file, all of `to`.
    fn read(&self, file: File, offset: u64, to: &mut [u8]) -> Result<(), Errno>;

    /// Writes to the file, all of `from`.
    fn write(&self, file: File, offset: u64, from: &[u8]) -> Result<(), Errno>;
}
