//! The system calls of mappings with fault injection.

use super::linux::Linux;
use super::os::{File, MapOs, Span, VmapCall};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use vmalloc_os::os::Errno;

const CALLS: usize = VmapCall::Copy as usize + 1;

/// A system whose calls fail as a test requests. Clones share their state.
#[derive(Clone)]
pub(super) struct Shim(Arc<State>);

struct State {
    left: [AtomicU64; CALLS],
    calls: [AtomicU64; CALLS],
    errno: AtomicI32,
}

impl Default for Shim {
    fn default() -> Self {
        let left = [const { AtomicU64::new(u64::MAX) }; CALLS];
        let calls = [const { AtomicU64::new(0) }; CALLS];
        Self(Arc::new(State { left, calls, errno: AtomicI32::new(Errno::NOMEM.0) }))
    }
}

impl Shim {
    /// Makes every call of a kind fail after `granted` more; with `u64::MAX` none fails.
    pub(super) fn fail(&self, call: VmapCall, granted: u64) {
        self.0.left[call as usize].store(granted, Ordering::Relaxed);
    }

    /// Sets the error of the calls that fail from now on.
    pub(super) fn fail_with(&self, errno: Errno) {
        self.0.errno.store(errno.0, Ordering::Relaxed);
    }

    /// Returns the number of calls of a kind so far, including failed ones.
    pub(super) fn calls(&self, call: VmapCall) -> u64 {
        self.0.calls[call as usize].load(Ordering::Relaxed)
    }

    fn granted(&self, call: VmapCall) -> Result<(), Errno> {
        let at = call as usize;
        self.0.calls[at].fetch_add(1, Ordering::Relaxed);
        let less = |left: u64| if left == u64::MAX { Some(left) } else { left.checked_sub(1) };
        let taken = self.0.left[at].fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        taken.map_or_else(|_| Err(Errno(self.0.errno.load(Ordering::Relaxed))), |_| Ok(()))
    }
}

impl MapOs for Shim {
    fn reserve(&self, bytes: usize) -> Result<usize, Errno> {
        self.granted(VmapCall::Reserve)?;
        Linux.reserve(bytes)
    }

    fn words(&self, bytes: usize) -> Result<usize, Errno> {
        self.granted(VmapCall::Words)?;
        Linux.words(bytes)
    }

    unsafe fn release(&self, span: Span) {
        // SAFETY: this function's contract.
        unsafe { Linux.release(span) };
    }

    fn create(&self) -> Result<File, Errno> {
        self.granted(VmapCall::Create)?;
        Linux.create()
    }

    fn close(&self, file: File) {
        Linux.close(file);
    }

    fn size(&self, file: File, bytes: u64) -> Result<(), Errno> {
        self.granted(VmapCall::Size)?;
        Linux.size(file, bytes)
    }

    unsafe fn map(&self, span: Span, file: File, offset: u64, writable: bool) -> Result<(), Errno> {
        self.granted(VmapCall::Map)?;
        // SAFETY: this function's contract.
        unsafe { Linux.map(span, file, offset, writable) }
    }

    unsafe fn unmap(&self, span: Span) -> Result<(), Errno> {
        self.granted(VmapCall::Unmap)?;
        // SAFETY: this function's contract.
        unsafe { Linux.unmap(span) }
    }

    unsafe fn mend(&self, span: Span) {
        // SAFETY: this function's contract.
        unsafe { Linux.mend(span) };
    }

    fn populate(&self, file: File, offset: u64, bytes: u64) -> Result<(), Errno> {
        self.granted(VmapCall::Populate)?;
        Linux.populate(file, offset, bytes)
    }

    fn punch(&self, file: File, offset: u64, bytes: u64) -> Result<(), Errno> {
        self.granted(VmapCall::Punch)?;
        Linux.punch(file, offset, bytes)
    }

    fn read(&self, file: File, offset: u64, to: &mut [u8]) -> Result<(), Errno> {
        self.granted(VmapCall::Copy)?;
        Linux.read(file, offset, to)
    }

    fn write(&self, file: File, offset: u64, from: &[u8]) -> Result<(), Errno> {
        self.granted(VmapCall::Copy)?;
        Linux.write(file, offset, from)
    }
}
