//! The system's support for per-CPU data: libc's rseq area, concurrency ids, and the barriers that other threads execute.
//!
//! Support is detected once a process, since that searches a symbol in all libraries, and a barrier interrupts CPUs.
//! Nothing is registered here but the use of the barriers.
//! # Source
//! `man 2 rseq`, `man 2 membarrier`; kernel `include/uapi/linux/rseq.h` for the layout.

use super::{Once, unless_plain};
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
use core::ffi::CStr;
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
use core::sync::atomic::{AtomicIsize, Ordering};

/// Returns the offset of a thread's rseq area from its thread pointer, if libc registered one. Looked up once per
/// process.
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
pub fn rseq_area() -> Option<isize> {
    // Areas are aligned to 32 bytes, and thread pointers to more, so no offset is odd.
    const UNKNOWN: isize = isize::MIN + 1;
    const NONE: isize = isize::MAX;
    // No lock, which a fork could leave held: concurrent callers find the same value.
    /// The offset, as it was found. Protocol PR-ONCE.
    static FOUND: AtomicIsize = AtomicIsize::new(UNKNOWN);
    let mut found = FOUND.load(Ordering::Relaxed);
    if found == UNKNOWN {
        found = look_rseq_area_up().unwrap_or(NONE);
        FOUND.store(found, Ordering::Relaxed);
    }
    (found != NONE).then_some(found)
}

#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
#[cold]
fn look_rseq_area_up() -> Option<isize> {
    let find = |name: &CStr| {
        // SAFETY: looks up a name.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    };
    let (offset, size) = (find(c"__rseq_offset")?, find(c"__rseq_size")?);
    // SAFETY: libc's constant of that name and type.
    let size = unsafe { size.cast::<core::ffi::c_uint>().read() };
    // SAFETY: as before.
    let offset = unsafe { offset.cast::<isize>().read() };
    // 0 if nothing was registered, because of the kernel or the user's setting. At least 20 otherwise, whatever later
    // fields the kernel fills.
    (size >= 20).then_some(offset)
}

/// Returns true if sections are available: libc registered an area.
#[must_use]
pub fn has_sections() -> bool {
    #[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
    {
        rseq_area().is_some()
    }
    #[cfg(not(all(target_arch = "x86_64", target_env = "gnu")))]
    {
        false
    }
}

/// Returns true if libc registered an area, and the kernel stores concurrency ids in it.
#[must_use]
pub fn has_concurrency_ids() -> bool {
    /// The least size of an area with `mm_cid`.
    const WITH_MM_CID: core::ffi::c_ulong = 28;
    const AT_RSEQ_FEATURE_SIZE: core::ffi::c_ulong = 27;
    // SAFETY: reads a number.
    has_sections() && unsafe { libc::getauxval(AT_RSEQ_FEATURE_SIZE) } >= WITH_MM_CID
}

/// Commands of `membarrier`.
const REGISTER: i64 = 1 << 8;
const FENCE: i64 = 1 << 7;
const REGISTER_ALL: i64 = 1 << 4;
const FENCE_ALL: i64 = 1 << 3;

/// Returns true if [`end_sections`] works, from now on and in children. It may still fail later, if the program
/// installs a filter of system calls.
pub fn can_end_sections() -> bool {
    static CAN: Once = Once::new();
    CAN.get(|| u32::from(membarrier(REGISTER) && membarrier(FENCE))) == 1
}

/// Restarts every section that a thread of this process is in. Earlier stores of these sections are visible afterwards,
/// and earlier stores of this thread are visible to sections that begin later. Returns `false` if the system call
/// fails.
pub fn end_sections() -> bool {
    // A child of a fork has to register again.
    membarrier(FENCE) || (membarrier(REGISTER) && membarrier(FENCE))
}

/// Executes a full barrier on every CPU that runs a thread of this process. Returns `false` if the system denies it.
pub fn fence_all() -> bool {
    // As above: a child of a fork has to register again.
    membarrier(FENCE_ALL) || (membarrier(REGISTER_ALL) && membarrier(FENCE_ALL))
}

fn membarrier(command: i64) -> bool {
    if cfg!(miri) {
        // Miri has no barrier that one thread executes for others.
        return false;
    }
    // SAFETY: accesses no memory.
    let code = || unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    unless_plain(code) == Some(0)
}
