//! The C functions of reference counts in units.
//!
//! As in `abi`, the comments of the functions become those of `include/vmalloc.h`. The release is called here and not
//! by the crate below, since it may free the count: no reference to it exists meanwhile.

use crate::answer::{KeepErrno, minus_one_with, number_of_percpu, number_of_ref};
use core::ffi::{c_int, c_uint};
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use vmalloc::percpu::{PerCpuRef, RefError, RefMode, Space};

/// A reference count for frequent gets and puts: a count on each CPU until it is killed. percpu_ref_init initialises
/// its memory, regardless of the contents, and percpu_ref_exit ends it. Between the two it must not be copied or moved.
#[derive(Debug)]
#[repr(C)]
pub struct percpu_ref {
    /// Private.
    pub held: [u64; 16],
}

/// Begin with one atomic count, until percpu_ref_switch_to_percpu.
pub const PERCPU_REF_INIT_ATOMIC: c_uint = 1;
/// Begin dead, with no reference, as after the last put.
pub const PERCPU_REF_INIT_DEAD: c_uint = 2;
/// For source compatibility: percpu_ref_reinit is always possible.
pub const PERCPU_REF_ALLOW_REINIT: c_uint = 4;

/// A count and the caller's function.
struct HeldRef {
    count: PerCpuRef<'static, fn()>,
    release: unsafe extern "C" fn(count: *mut percpu_ref),
}

const _: () = assert!(size_of::<HeldRef>() <= size_of::<percpu_ref>(), "a count fits");
const _: () = assert!(align_of::<HeldRef>() <= align_of::<percpu_ref>(), "a count is aligned");

/// # Safety
/// `count` points to an initialised count, which lives while the reference does.
unsafe fn held_ref<'c>(count: *const percpu_ref) -> &'c HeldRef {
    // SAFETY: this function's contract.
    unsafe { &*count.cast::<HeldRef>() }
}

fn answer_of(changed: Result<(), RefError>) -> c_int {
    changed.map_or_else(|error| minus_one_with(number_of_ref(&error)), |()| 0)
}

/// Initialises a count with a first reference, which percpu_ref_kill puts. `release` is called with `count` when the
/// last reference is put; it may call percpu_ref_exit and free the memory. `flags` are PERCPU_REF_INIT_ATOMIC,
/// PERCPU_REF_INIT_DEAD and PERCPU_REF_ALLOW_REINIT, or 0.
///
/// 0, or -1 with errno EINVAL if `count` or `release` is NULL or there is another flag, ENOMEM if there is no memory.
///
/// # Safety
/// `count` is NULL or points to such a struct that is not an initialised count. `release` may be called in any thread
/// that puts a reference.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn percpu_ref_init(
    count: *mut percpu_ref,
    release: Option<unsafe extern "C" fn(count: *mut percpu_ref)>,
    flags: c_uint,
) -> c_int {
    let known = PERCPU_REF_INIT_ATOMIC | PERCPU_REF_INIT_DEAD | PERCPU_REF_ALLOW_REINIT;
    let to = NonNull::new(count.cast::<MaybeUninit<HeldRef>>());
    let (Some(to), Some(release)) = (to, release.filter(|_| flags & !known == 0)) else {
        return minus_one_with(libc::EINVAL);
    };
    let keep = KeepErrno::new();
    // A dead count that is live again is atomic only if both flags are set.
    let mode = match (flags & PERCPU_REF_INIT_DEAD != 0, flags & PERCPU_REF_INIT_ATOMIC != 0) {
        (true, _) => RefMode::Dead,
        (false, true) => RefMode::Atomic,
        (false, false) => RefMode::PerCpu,
    };
    let nothing: fn() = || {};
    let made = Space::global().and_then(|space| PerCpuRef::new(space, mode, nothing));
    drop(keep);
    match made {
        Ok(made) => {
            if mode == RefMode::Dead && flags & PERCPU_REF_INIT_ATOMIC != 0 {
                // A dead count has no units that count, so no barrier is needed, and it cannot fail.
                let _atomic = made.switch_to_atomic();
            }
            // SAFETY: this function's contract; the struct is large enough and aligned.
            unsafe { to.write(MaybeUninit::new(HeldRef { count: made, release })) };
            0
        }
        Err(error) => minus_one_with(number_of_percpu(&error)),
    }
}

/// Ends a count, in any state. NULL is ignored.
///
/// # Safety
/// `count` is NULL or a count that no thread uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn percpu_ref_exit(count: *mut percpu_ref) {
    let Some(at) = NonNull::new(count.cast::<HeldRef>()) else { return };
    let _keep = KeepErrno::new();
    // SAFETY: this function's contract.
    unsafe { at.drop_in_place() };
}

/// Gets a reference. The caller holds one, or knows that the first one is not put yet.
///
/// # Safety
/// `count` is a count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn percpu_ref_get(count: *mut percpu_ref) {
    // SAFETY: this function's contract.
    unsafe { held_ref(count) }.count.get();
}

/// Gets several references.
///
/// # Safety
/// `count` is a count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn percpu_ref_get_many(count: *mut percpu_ref, references: c_uint) {
    // SAFETY: this function's contract.
    unsafe { held_ref(count) }.count.get_many(references);
}

/// Gets a reference unless the count is 0. Returns true if it did. It may succeed with a dead count.
///
/// # Safety
/// `count` is a count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn percpu_ref_tryget(count: *mut percpu_ref) -> bool {
    // SAFETY: this function's contract.
    unsafe { held_ref(count) }.count.try_get()
}

/// Gets several references unless the count is 0. Returns true if it did.
///
/// # Safety
/// `count` is a count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn percpu_ref_tryget_many(count: *mut percpu_ref, references: c_uint) -> bool {
    // SAFETY: this function's contract.
    unsafe { held_ref(count) }.count.try_get_many(references)
}

/// Gets a reference unless the count is dead. Returns true if it did.
///
/// # Safety
/// `count` is a count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn percpu_ref_tryget_live(count: *mut percpu_ref) -> bool {
    // SAFETY: this function's contract.
    unsafe { held_ref(count) }.count.try_get_live()
}

/// Puts a reference that the caller holds. If it was the last one, calls the function that percpu_ref_init was given.
///
/// # Safety
/// `count` is a count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn percpu_ref_put(count: *mut percpu_ref) {
    // SAFETY: this function's contract.
    unsafe { percpu_ref_put_many(count, 1) };
}

/// Puts several references.
///
/// # Safety
/// `count` is a count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn percpu_ref_put_many(count: *mut percpu_ref, references: c_uint) {
    // SAFETY: this function's contract. The copy is made while this thread still has a reference.
    let release = unsafe { held_ref(count) }.release;
    // SAFETY: this function's contract.
    let last = unsafe { held_ref(count) }.count.put_without_release(references);
    if last {
        // SAFETY: the contract of `percpu_ref_init`.
        unsafe { release(count) };
    }
}

/// Kills a count: puts its first reference, and percpu_ref_tryget_live fails from now on in all threads.
///
/// 0, or -1 with errno EALREADY if it is dead, EPERM if the system denies what ends the counts of the CPUs.
///
/// # Safety
/// `count` is a count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn percpu_ref_kill(count: *mut percpu_ref) -> c_int {
    // SAFETY: this function's contract.
    unsafe { percpu_ref_kill_and_confirm(count, None) }
}

/// Kills a count as percpu_ref_kill does, and calls `confirm` once percpu_ref_tryget_live fails in all threads, before
/// the first reference is put. `confirm` may be NULL.
///
/// As percpu_ref_kill.
///
/// # Safety
/// `count` is a count, and `confirm` NULL or a function that leaves it initialised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn percpu_ref_kill_and_confirm(
    count: *mut percpu_ref,
    confirm: Option<unsafe extern "C" fn(count: *mut percpu_ref)>,
) -> c_int {
    let keep = KeepErrno::new();
    // SAFETY: this function's contract.
    let release = unsafe { held_ref(count) }.release;
    let confirm = || {
        if let Some(confirm) = confirm {
            // SAFETY: this function's contract.
            unsafe { confirm(count) };
        }
    };
    // SAFETY: this function's contract.
    let last = unsafe { held_ref(count) }.count.kill_without_release(confirm);
    drop(keep);
    match last {
        Ok(last) => {
            if last {
                // SAFETY: the contract of `percpu_ref_init`.
                unsafe { release(count) };
            }
            0
        }
        Err(error) => minus_one_with(number_of_ref(&error)),
    }
}

/// Makes a dead count live again, with a first reference, after all references were put.
///
/// 0, or -1 with errno EINVAL if it is not dead, EBUSY if references remain.
///
/// # Safety
/// `count` is a count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn percpu_ref_reinit(count: *mut percpu_ref) -> c_int {
    let keep = KeepErrno::new();
    // SAFETY: this function's contract.
    let changed = unsafe { held_ref(count) }.count.reinit();
    drop(keep);
    answer_of(changed)
}

/// Makes a dead count live again, with a first reference, even if others remain.
///
/// 0, or -1 with errno EINVAL if it is not dead.
///
/// # Safety
/// `count` is a count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn percpu_ref_resurrect(count: *mut percpu_ref) -> c_int {
    let keep = KeepErrno::new();
    // SAFETY: this function's contract.
    let changed = unsafe { held_ref(count) }.count.resurrect();
    drop(keep);
    answer_of(changed)
}

/// Switches to one atomic count, until percpu_ref_switch_to_percpu, also across a kill and reinit. It has done so when
/// it returns.
///
/// 0, or -1 with errno EPERM if the system denies what ends the counts of the CPUs.
///
/// # Safety
/// `count` is a count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn percpu_ref_switch_to_atomic(count: *mut percpu_ref) -> c_int {
    let keep = KeepErrno::new();
    // SAFETY: this function's contract.
    let switched = unsafe { held_ref(count) }.count.switch_to_atomic();
    drop(keep);
    answer_of(switched)
}

/// Switches to counts on each CPU, if the system supports it. A dead count does so when it is live again.
///
/// # Safety
/// `count` is a count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn percpu_ref_switch_to_percpu(count: *mut percpu_ref) {
    let _keep = KeepErrno::new();
    // SAFETY: this function's contract.
    unsafe { held_ref(count) }.count.switch_to_percpu();
}

/// Returns true if a count was killed.
///
/// # Safety
/// `count` is a count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn percpu_ref_is_dying(count: *const percpu_ref) -> bool {
    // SAFETY: this function's contract.
    unsafe { held_ref(count) }.count.is_dying()
}

/// Returns true if a count is 0, and false while the CPUs count.
///
/// # Safety
/// `count` is a count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn percpu_ref_is_zero(count: *const percpu_ref) -> bool {
    // SAFETY: this function's contract.
    unsafe { held_ref(count) }.count.is_zero()
}
