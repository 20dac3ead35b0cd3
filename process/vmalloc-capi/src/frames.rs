//! The C functions of chosen pages in one range.
//!
//! As in `abi`, the comments of the functions become those of `include/vmalloc.h`.

use crate::answer::{KeepErrno, bad_pointer, null_with, number_of_vmap};
use core::ffi::{c_int, c_void};
use core::ptr::NonNull;
use core::slice;
use vmalloc::{Mappings, Protection, VmapError};

/// Page frames with the numbers first, first + 1, ... first + count - 1. They are zeros at first, and get memory when
/// they are written to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct vm_frames {
    /// Number of the first frame.
    pub first: u64,
    /// Number of frames.
    pub count: u64,
}

/// Sets `errno`, and returns -1.
fn fail(number: c_int) -> c_int {
    let _null: *mut u8 = null_with(number);
    -1
}

fn protection(bits: c_int) -> Option<Protection> {
    match bits {
        libc::PROT_READ => Some(Protection::Read),
        _ if bits == libc::PROT_READ | libc::PROT_WRITE => Some(Protection::ReadWrite),
        _ => None,
    }
}

/// Allocates `count` page frames of 4096 bytes, which vmap can map, and writes their numbers to `frames`.
///
/// All frames are in one memory file, whose descriptor, a high number, stays open: a program that closes all
/// descriptors must do so before its first call.
///
/// 0, or -1 with errno EINVAL if `count` is 0 or `frames` NULL, ENOMEM if there is no memory, EPERM in the child of a
/// fork. EBADF if the memory file has to grow, and was closed.
///
/// # Safety
/// `frames` is NULL or points to such a struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vm_alloc_frames(frames: *mut vm_frames, count: usize) -> c_int {
    let Some(to) = NonNull::new(frames) else { return fail(libc::EINVAL) };
    let keep = KeepErrno::new();
    let made = Mappings::global().and_then(|mappings| mappings.frames(count));
    drop(keep);
    match made {
        Ok(made) => {
            let numbers = made.into_numbers();
            let made = vm_frames { first: numbers.start, count: numbers.end - numbers.start };
            // SAFETY: this function's contract.
            unsafe { to.write(made) };
            0
        }
        Err(error) => fail(number_of_vmap(&error)),
    }
}

/// Frees frames, and sets the struct to no frames. NULL and a struct of no frames are ignored. In the child of a fork
/// the frames belong to the parent, and stay allocated.
///
/// # Safety
/// `frames` is NULL or was written by vm_alloc_frames, and the frames are not mapped any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vm_free_frames(frames: *mut vm_frames) {
    let Some(at) = NonNull::new(frames) else { return };
    // SAFETY: this function's contract.
    let vm_frames { first, count } = unsafe { at.replace(vm_frames::default()) };
    if count == 0 {
        return;
    }
    let _keep = KeepErrno::new();
    let none = Err(VmapError::BadFrame { frame: first as usize, frames: 0 });
    let known = Mappings::try_global().zip(first.checked_add(count));
    let gone = known.map_or(none, |(mappings, end)| {
        // SAFETY: this function's contract.
        unsafe { mappings.free_frames(first..end) }
    });
    ended("vm_free_frames", frames.cast(), gone);
}

type Map = unsafe fn(&Mappings, &[u64], Protection) -> Result<NonNull<u8>, VmapError>;

/// # Safety
/// As [`vmap`]; `by` has the contract of `Mappings::vmap_numbers`.
unsafe fn map(frames: *const u64, count: usize, bits: c_int, by: Map) -> *mut c_void {
    let Some(protection) = protection(bits) else { return null_with(libc::EINVAL) };
    if frames.is_null() || count == 0 || count > isize::MAX as usize / size_of::<u64>() {
        return null_with(libc::EINVAL);
    }
    // SAFETY: by the caller's contract there are that many numbers.
    let frames = unsafe { slice::from_raw_parts(frames, count) };
    let keep = KeepErrno::new();
    let mapped = Mappings::global().and_then(|mappings| {
        // SAFETY: this function's contract.
        unsafe { by(mappings, frames, protection) }
    });
    drop(keep);
    match mapped {
        Ok(at) => at.as_ptr().cast(),
        Err(error) => null_with(number_of_vmap(&error)),
    }
}

/// Maps frames by their numbers contiguously, with a guard page after the last. A frame is mapped as often as it is in
/// the list. `protection` is PROT_READ or PROT_READ | PROT_WRITE of <sys/mman.h>.
///
/// NULL with errno EINVAL if the list is empty or has a number of no frame, or for another protection. ENOMEM if there
/// is no address space or there are too many mappings. EPERM in the child of a fork, which can still read and write
/// older mappings. EBADF if the memory file of the frames was closed.
///
/// # Safety
/// `frames` points to `count` numbers of frames of vm_alloc_frames, which are not freed before the mapping is unmapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmap(frames: *const u64, count: usize, protection: c_int) -> *mut c_void {
    // SAFETY: this function's contract.
    unsafe { map(frames, count, protection, Mappings::vmap_numbers) }
}

/// Maps frames for a short time, as vmap does: up to 64 in a block of the CPU, without a guard page.
///
/// NULL as vmap.
///
/// # Safety
/// As vmap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vm_map_ram(frames: *const u64, count: usize, protection: c_int) -> *mut c_void {
    // SAFETY: this function's contract.
    unsafe { map(frames, count, protection, Mappings::vm_map_ram_numbers) }
}

fn ended(what: &str, at: *const c_void, gone: Result<(), VmapError>) {
    match gone {
        // In a child the mappings and frames belong to the parent, and stay.
        Ok(()) | Err(VmapError::OtherProcess) => {}
        Err(error) => bad_pointer(what, &format_args!("{at:p}: {error}")),
    }
}

/// Unmaps a mapping of vmap. NULL is ignored.
///
/// # Safety
/// `mapping` is NULL or of vmap, and no thread uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vunmap(mapping: *const c_void) {
    let Some(at) = NonNull::new(mapping.cast::<u8>().cast_mut()) else { return };
    let _keep = KeepErrno::new();
    let none = Err(VmapError::NotMapped { address: at.addr().get() });
    let gone = Mappings::try_global().map_or(none, |mappings| {
        // SAFETY: this function's contract.
        unsafe { mappings.vunmap_at(at) }
    });
    ended("vunmap", mapping, gone);
}

/// Unmaps a mapping of vm_map_ram of `count` frames. NULL is ignored.
///
/// # Safety
/// `mapping` is NULL or of vm_map_ram with as many frames, and no thread uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vm_unmap_ram(mapping: *const c_void, count: usize) {
    let Some(at) = NonNull::new(mapping.cast::<u8>().cast_mut()) else { return };
    let _keep = KeepErrno::new();
    let none = Err(VmapError::NotMapped { address: at.addr().get() });
    let gone = Mappings::try_global().map_or(none, |mappings| {
        // SAFETY: this function's contract.
        unsafe { mappings.vm_unmap_ram_at(at, count) }
    });
    ended("vm_unmap_ram", mapping, gone);
}
