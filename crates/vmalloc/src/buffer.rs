//! Bytes that free themselves.

use crate::error::{AllocError, ResizeError};
use crate::vmalloc::Vmalloc;
use core::alloc::Layout;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

/// A run of bytes of its own, page-aligned, all of them set.
///
/// It grows with zeros, in place where it can.
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
}

// SAFETY: the bytes are its own, and their allocator is shared by many threads anyway.
unsafe impl Send for Buffer<'_> {}
// SAFETY: shared, it lets nobody write.
unsafe impl Sync for Buffer<'_> {}

impl<'a> Buffer<'a> {
    #[track_caller]
    pub(crate) fn new(memory: &'a Vmalloc, len: usize) -> Result<Self, AllocError> {
        let mut buffer = Self { memory, start: NonNull::dangling(), len: 0 };
        if len > 0 {
            buffer.start = memory.alloc_zeroed(bytes(len)?)?;
            buffer.len = len;
        }
        Ok(buffer)
    }

    /// Gives it another length. New bytes are zeros.
    ///
    /// # Errors
    /// [`AllocError`]; the buffer is as it was.
    #[track_caller]
    pub fn resize(&mut self, len: usize) -> Result<(), AllocError> {
        if len == 0 {
            self.clear();
        } else if self.len == 0 {
            *self = Self::new(self.memory, len)?;
        } else {
            // SAFETY: the buffer's own area, borrowed from nobody during this call.
            let moved = unsafe { self.memory.grow_zeroed(self.start, bytes(len)?) };
            self.start = moved.map_err(|error| match error {
                ResizeError::Alloc(error) => error,
                ResizeError::Free(error) => lost(&error),
            })?;
            self.len = len;
        }
        Ok(())
    }

    /// Frees its bytes.
    pub fn clear(&mut self) {
        if core::mem::take(&mut self.len) > 0 {
            // SAFETY: the buffer's own area, to which nobody refers while the buffer is borrowed.
            if let Err(error) = unsafe { self.memory.free(self.start) } {
                lost(&error);
            }
        }
    }
}

fn bytes(len: usize) -> Result<Layout, AllocError> {
    let refusal =
        AllocError::NoSpace { requested_bytes: len, align_bytes: 1, largest_bytes: isize::MAX as usize };
    Layout::from_size_align(len, 1).map_err(|_| refusal)
}

#[cold]
fn lost(error: &crate::FreeError) -> ! {
    // Somebody freed an area that was not his.
    crate::os::abort_with(format_args!("a buffer lost its memory: {error}"))
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Deref for Buffer<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: an area of that many bytes, all set; none, and a dangling pointer, if that is 0.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the buffer is borrowed, so nobody else has them.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Buffer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("start", &self.start).field("len", &self.len).finish()
    }
}
