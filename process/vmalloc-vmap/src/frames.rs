//! Frames: pages of memory without an address, which can be mapped any number of times.

use super::error::VmapError;
use super::mapping::Mapping;
use super::os::{MapOs, VmapCall};
use super::state::{Core, List, Protection};
use crate::PAGE_BYTES;
use core::marker::PhantomData;
use core::panic::Location;

/// Page frames of a memory file, all zeros at first. They are freed on drop, and no mapping of them outlives this
/// value.
///
/// A frame has memory when it is first written to; [`populate`](Self::populate) allocates all of it, so that a lack of
/// memory is an error and not a signal. Reads and writes here are system calls; a mapping accesses the same bytes
/// directly.
pub struct Frames<'m> {
    core: &'m Core<super::linux::Linux>,
    first: u64,
    count: u64,
}

/// A frame, for the list of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'f> {
    pub(super) number: u64,
    /// The address of the [`Mappings`](super::Mappings) whose file contains it.
    pub(super) home: usize,
    of: PhantomData<&'f ()>,
}

impl<'m> Frames<'m> {
    pub(super) fn new(core: &'m Core<super::linux::Linux>, count: usize) -> Result<Self, VmapError> {
        let first = core.take_frames(count as u64)?;
        Ok(Self { core, first, count: count as u64 })
    }

    /// Returns the number of frames.
    #[expect(clippy::len_without_is_empty, reason = "there is always one at least")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Returns the frame with a number below [`len`](Self::len).
    #[must_use]
    pub fn frame(&self, nth: usize) -> Option<Frame<'_>> {
        let number = self.first + nth as u64;
        (nth < self.len()).then_some(Frame { number, home: self.core.home(), of: PhantomData })
    }

    /// Maps some of these frames contiguously, by their numbers. A frame is mapped as often as it is in the list. A run
    /// of consecutive frames is one mapping of the system.
    ///
    /// # Errors
    /// [`VmapError`].
    #[track_caller]
    pub fn vmap(&self, frames: &[usize], protection: Protection) -> Result<Mapping<'_>, VmapError> {
        let frames_here = self.len();
        if let Some(&frame) = frames.iter().find(|&&frame| frame >= frames_here) {
            return Err(VmapError::BadFrame { frame, frames: frames_here });
        }
        let first = self.first;
        let list = List { count: frames.len(), number: |place: usize| first + frames[place] as u64 };
        self.core
            .vmap(&list, protection, Location::caller())
            .map(|at| Mapping::of(self.core, at, frames.len(), protection))
    }

    /// Reads bytes, from the byte `offset` of the first frame on.
    ///
    /// # Errors
    /// [`VmapError::OutOfBounds`]; [`VmapError::CallFailed`], after which a part of `to` may have been written.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), VmapError> {
        let at = self.byte(offset, to.len())?;
        let table = self.core.table();
        table
            .os
            .read(table.file, at, to)
            .map_err(|errno| VmapError::CallFailed { call: VmapCall::Copy, errno })
    }

    /// Writes bytes, from the byte `offset` of the first frame on.
    ///
    /// # Errors
    /// [`VmapError::OutOfBounds`]; [`VmapError::CallFailed`], after which a part of `from` may have been written.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), VmapError> {
        let at = self.byte(offset, from.len())?;
        let table = self.core.table();
        table
            .os
            .write(table.file, at, from)
            .map_err(|errno| VmapError::CallFailed { call: VmapCall::Copy, errno })
    }

    /// Allocates memory for all frames.
    ///
    /// # Errors
    /// [`VmapError::CallFailed`]: some frames may have memory then.
    pub fn populate(&self) -> Result<(), VmapError> {
        let table = self.core.table();
        let failed = |errno| VmapError::CallFailed { call: VmapCall::Populate, errno };
        table.os.populate(table.file, self.byte(0, 0)?, self.count * PAGE_BYTES as u64).map_err(failed)
    }

    /// Returns the numbers of the frames in the file.
    pub(super) fn numbers(&self) -> core::ops::Range<u64> {
        self.first..self.first + self.count
    }

    fn byte(&self, offset: usize, bytes: usize) -> Result<u64, VmapError> {
        let len = self.len() * PAGE_BYTES;
        match offset.checked_add(bytes) {
            Some(end) if end <= len => Ok(self.first * PAGE_BYTES as u64 + offset as u64),
            _ => Err(VmapError::OutOfBounds { offset, bytes, len }),
        }
    }
}

impl Drop for Frames<'_> {
    fn drop(&mut self) {
        self.core.free_frames(self.first, self.count);
    }
}

impl core::fmt::Debug for Frames<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Frames").field("len", &self.len()).finish_non_exhaustive()
    }
}
