//! A growable byte buffer in an area of its own.

use crate::error::{AllocError, ResizeError};
use crate::vmalloc::Vmalloc;
use core::alloc::Layout;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

/// A page-aligned byte buffer, which owns its bytes as a boxed slice does.
///
/// New bytes are zeros. It grows in place if the addresses above it are free, and else by moving its pages.
/// [`extend_from_slice`](Self::extend_from_slice) and, with the feature `std`, `std::io::Write` append to it.
///
/// ```
/// let memory = vmalloc::Vmalloc::global()?;
/// let mut buffer = memory.buffer(1 << 20)?;
/// buffer[..5].copy_from_slice(b"hello");
/// buffer.resize(64 << 20)?;
/// assert_eq!((&buffer[..6], buffer.len()), (&b"hello\0"[..], 64 << 20));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Buffer<'a> {
    memory: &'a Vmalloc,
    start: NonNull<u8>,
    len: usize,
    /// Bytes of its area. Those from `len` on are zeros, since no caller can write to them.
    capacity: usize,
}

// SAFETY: the buffer owns the bytes exclusively, and their allocator is `Sync`.
unsafe impl Send for Buffer<'_> {}
// SAFETY: a shared reference allows reads only.
unsafe impl Sync for Buffer<'_> {}

impl Vmalloc {
    /// Returns a buffer of `bytes` zeros, which is freed when it is dropped.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc), except that 0 bytes are fine.
    #[track_caller]
    pub fn buffer(&self, bytes: usize) -> Result<Buffer<'_>, AllocError> {
        Buffer::new(self, bytes)
    }
}

impl<'a> Buffer<'a> {
    #[track_caller]
    fn new(memory: &'a Vmalloc, len: usize) -> Result<Self, AllocError> {
        let mut buffer = Self { memory, start: NonNull::dangling(), len: 0, capacity: 0 };
        buffer.resize(len)?;
        Ok(buffer)
    }

    /// Sets the length. New bytes are zeros. The pages beyond the new length are freed.
    ///
    /// # Errors
    /// [`AllocError`]; the buffer is unchanged.
    #[track_caller]
    pub fn resize(&mut self, len: usize) -> Result<(), AllocError> {
        self.set_capacity(len)?;
        self.len = len;
        Ok(())
    }

    /// Appends bytes. Grows by at least half of the capacity if that does not suffice, so that many small calls cost
    /// O(1) each on average.
    ///
    /// # Errors
    /// [`AllocError`]; the buffer is unchanged.
    #[track_caller]
    pub fn extend_from_slice(&mut self, more: &[u8]) -> Result<(), AllocError> {
        let len = self.len.checked_add(more.len()).ok_or_else(|| too_long(usize::MAX))?;
        if len > self.capacity {
            let roomy = len.max(self.capacity.saturating_add(self.capacity / 2));
            self.set_capacity(roomy).or_else(|_| self.set_capacity(len))?;
        }
        let old = core::mem::replace(&mut self.len, len);
        self[old..].copy_from_slice(more);
        Ok(())
    }

    /// Returns a buffer with the same bytes, from the same allocator.
    ///
    /// # Errors
    /// [`AllocError`].
    #[track_caller]
    pub fn try_clone(&self) -> Result<Self, AllocError> {
        if self.len == 0 {
            return Self::new(self.memory, 0);
        }
        let start = self.memory.alloc(bytes(self.len)?)?;
        // SAFETY: a new area of that many bytes.
        unsafe { start.copy_from_nonoverlapping(self.start, self.len) };
        Ok(Self { memory: self.memory, start, len: self.len, capacity: self.len })
    }

    /// Returns the number of bytes that fit without growing. After [`resize`](Self::resize) that is the length.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Frees the bytes, and sets the length to 0.
    pub fn clear(&mut self) {
        self.len = 0;
        if core::mem::take(&mut self.capacity) > 0 {
            // SAFETY: the buffer's own area, to which no reference exists while the buffer is borrowed mutably.
            if let Err(error) = unsafe { self.memory.free(self.start) } {
                lost(&error);
            }
        }
    }

    /// Resizes its area. The caller sets its length.
    #[track_caller]
    fn set_capacity(&mut self, capacity: usize) -> Result<(), AllocError> {
        if capacity == 0 {
            self.clear();
        } else if self.capacity == 0 {
            self.start = self.memory.alloc_zeroed(bytes(capacity)?)?;
            self.capacity = capacity;
        } else {
            // SAFETY: the buffer's own area, to which no reference exists while the buffer is borrowed mutably.
            let moved = unsafe { self.memory.grow_zeroed(self.start, bytes(capacity)?) };
            self.start = moved.map_err(|error| match error {
                ResizeError::Alloc(error) => error,
                ResizeError::Free(error) => lost(&error),
            })?;
            self.capacity = capacity;
        }
        Ok(())
    }
}

fn bytes(len: usize) -> Result<Layout, AllocError> {
    Layout::from_size_align(len, 1).map_err(|_| too_long(len))
}

fn too_long(len: usize) -> AllocError {
    AllocError::NoSpace { requested_bytes: len, align_bytes: 1, largest_bytes: isize::MAX as usize }
}

#[cold]
fn lost(error: &crate::FreeError) -> ! {
    // Other code freed the area.
    vmalloc_os::os::abort_with(format_args!("a buffer lost its memory: {error}"))
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Deref for Buffer<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: an area of that many initialized bytes, or a dangling pointer if the length is 0.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the exclusive borrow of the buffer excludes other references.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for Buffer<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Buffer<'_> {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl<'b> IntoIterator for &'b Buffer<'_> {
    type Item = &'b u8;
    type IntoIter = core::slice::Iter<'b, u8>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'b> IntoIterator for &'b mut Buffer<'_> {
    type Item = &'b mut u8;
    type IntoIter = core::slice::IterMut<'b, u8>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

/// Appends, and fails with [`std::io::ErrorKind::OutOfMemory`].
#[cfg(feature = "std")]
impl std::io::Write for Buffer<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.extend_from_slice(bytes)
            .map_err(|error| std::io::Error::new(std::io::ErrorKind::OutOfMemory, error))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for Buffer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("start", &self.start).field("len", &self.len).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;

    /// An allocator whose cached memory is not zeros.
    fn memory() -> Vmalloc {
        let memory = Vmalloc::new(Options { arena_bytes_max: 1 << 30, ..Options::default() }).unwrap();
        memory.buffer(8 << 20).unwrap().fill(0xff);
        memory
    }

    #[test]
    fn bytes_that_are_appended_follow_one_another_and_the_capacity_is_zeros() {
        let memory = memory();
        let mut buffer = memory.buffer(0).unwrap();
        let mut model = Vec::new();
        let mut capacities = std::collections::BTreeSet::new();
        for round in 0..40_000_u32 {
            let more = vec![round as u8 | 1; round as usize % 61];
            buffer.extend_from_slice(&more).unwrap();
            model.extend_from_slice(&more);
            capacities.insert(buffer.capacity());
            if round % 5000 == 4999 {
                // Into the capacity and back: none of the bytes cut off is seen again.
                let len = buffer.len();
                buffer.resize(len - 100).unwrap();
                assert_eq!(buffer.capacity(), len - 100);
                buffer.resize(len + 100).unwrap();
                model.resize(len - 100, 0);
                model.resize(len + 100, 0);
            }
        }
        assert!(*buffer == *model);
        // 1.2 MB in steps of half the length, and two more after each of eight resizes.
        assert!(capacities.len() < 60, "{}", capacities.len());
    }

    #[test]
    fn new_bytes_within_the_capacity_are_zeros() {
        let memory = memory();
        let mut buffer = memory.buffer(100_000).unwrap();
        buffer.fill(7);
        buffer.extend_from_slice(&[8]).unwrap();
        let (len, capacity) = (buffer.len(), buffer.capacity());
        assert!((len, capacity) == (100_001, 150_000));
        buffer.resize(capacity).unwrap();
        assert!(buffer[..100_000].iter().all(|&byte| byte == 7) && buffer[100_000] == 8);
        assert!(buffer[len..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_clone_has_bytes_of_its_own() {
        let memory = memory();
        let mut buffer = memory.buffer(70_000).unwrap();
        buffer.as_mut()[69_999] = 9;
        let clone = buffer.try_clone().unwrap();
        buffer[69_999] = 1;
        assert_eq!((clone.len(), clone.as_ref()[69_999], clone.capacity()), (70_000, 9, 70_000));
        assert_eq!(clone.into_iter().map(|&byte| u32::from(byte)).sum::<u32>(), 9);
        let empty = memory.buffer(0).unwrap().try_clone().unwrap();
        assert!(empty.is_empty() && empty.capacity() == 0);
    }

    #[test]
    fn a_buffer_that_cannot_grow_is_as_it_was() {
        let memory = Vmalloc::new(Options { arena_bytes_max: 64 << 20, ..Options::default() }).unwrap();
        let mut buffer = memory.buffer(5 << 20).unwrap();
        buffer.fill(3);
        let most = vec![4; 512 << 20];
        assert!(matches!(buffer.extend_from_slice(&most), Err(AllocError::NoSpace { .. })));
        assert!(buffer.len() == 5 << 20 && buffer.iter().all(|&byte| byte == 3));
        // Half as much again does not fit, and one byte does.
        let rest = vec![4; 30 << 20];
        buffer.extend_from_slice(&rest).unwrap();
        buffer.extend_from_slice(&[5]).unwrap();
        assert_eq!((buffer.len(), buffer[35 << 20]), ((35 << 20) + 1, 5));
    }

    #[cfg(feature = "std")]
    #[test]
    fn it_is_written_to_as_a_file_is() {
        use std::io::Write;
        let memory = memory();
        let mut buffer = memory.buffer(0).unwrap();
        write!(buffer, "{}-two", 1).unwrap();
        std::io::copy(&mut &[0_u8; 100_000][..], &mut buffer).unwrap();
        buffer.flush().unwrap();
        assert_eq!((&buffer[..6], buffer.len()), (&b"1-two\0"[..], 100_005));
    }
}
