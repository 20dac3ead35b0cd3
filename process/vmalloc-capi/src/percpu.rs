//! The C functions of per-CPU memory: an object with a copy in each unit, operations on words in the CPU's unit, and
//! counters.
//!
//! As in `abi`, the comments of the functions become those of `include/vmalloc.h`. For little-endian CPUs.

use crate::answer::{KeepErrno, bad_pointer, minus_one_with, null_with, number_of_percpu};
use core::alloc::Layout;
use core::cmp::Ordering;
use core::ffi::{c_int, c_uint, c_void};
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use vmalloc::percpu::{Local, PerCpuCounter, Space};

/// Returns the space of an existing object.
fn space(what: &str) -> &'static Space {
    // The space exists, since the object was allocated from it.
    Space::global().unwrap_or_else(|error| bad_pointer(what, &error))
}

/// Allocates `size` bytes, zeros, in each unit. There is one unit for each possible CPU. The size is at most 32 KiB;
/// the object is aligned to `align`, a power of two up to 4096. Returns the address of the copy of unit 0, which
/// this_cpu_* and per_cpu_ptr take, as well as the address of any member of it.
///
/// NULL with errno EINVAL for another size or alignment, ENOMEM if there is no memory.
#[unsafe(no_mangle)]
pub extern "C" fn alloc_percpu(size: usize, align: usize) -> *mut c_void {
    const WORD: usize = size_of::<u64>();
    // Whole words, since a smaller number is changed by an operation on its word.
    let layout = size.checked_next_multiple_of(WORD).filter(|_| size > 0 && align.is_power_of_two());
    let layout = layout.and_then(|size| Layout::from_size_align(size, align.max(WORD)).ok());
    let Some(layout) = layout else { return null_with(libc::EINVAL) };
    let keep = KeepErrno::new();
    let made = Space::global().and_then(|space| space.alloc(layout));
    drop(keep);
    match made {
        Ok(made) => made.into_address().as_ptr().cast(),
        Err(error) => null_with(number_of_percpu(&error)),
    }
}

/// Frees an object of alloc_percpu, with all its copies. NULL is ignored.
///
/// # Safety
/// `object` is NULL or of alloc_percpu, and no thread uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_percpu(object: *mut c_void) {
    let Some(at) = NonNull::new(object.cast::<u8>()) else { return };
    let _keep = KeepErrno::new();
    // SAFETY: this function's contract.
    if !unsafe { space("free_percpu").free_at(at) } {
        bad_pointer("free_percpu", &format_args!("{object:p}: no object begins there"));
    }
}

/// Returns the number of units. The last one is for threads without a number of their own.
///
/// 0 with errno ENOMEM if there is no memory for them.
#[unsafe(no_mangle)]
pub extern "C" fn percpu_units() -> c_uint {
    let keep = KeepErrno::new();
    let space = Space::global();
    drop(keep);
    space.map(Space::units).unwrap_or_else(|error| {
        let _null: *mut u8 = null_with(number_of_percpu(&error));
        0
    })
}

/// Returns the copy of an object, or of a member of it, in a unit.
///
/// NULL with errno EINVAL if there is no such unit.
///
/// # Safety
/// `inside` points into an object of alloc_percpu. Numbers that this_cpu_* changes may be read there, but not written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn per_cpu_ptr(inside: *const c_void, unit: c_uint) -> *mut c_void {
    let Some(at) = NonNull::new(inside.cast::<u8>().cast_mut()) else { return null_with(libc::EINVAL) };
    let keep = KeepErrno::new();
    // SAFETY: this function's contract.
    let copy = unsafe { space("per_cpu_ptr").copy_at(at, unit) };
    drop(keep);
    copy.map_or_else(|| null_with(libc::EINVAL), |copy| copy.as_ptr().cast())
}

const _: () =
    assert!(cfg!(target_endian = "little"), "a part of a word is as many bits up as it has bytes below");

/// Returns the word of an object that contains an address, and the address's offset in it in bits.
///
/// # Safety
/// `inside` points into an object of `alloc_percpu`, at a multiple of its size.
#[inline(always)]
unsafe fn word(what: &str, inside: *mut u8) -> (Local<'static>, u32) {
    const WORD: usize = size_of::<u64>();
    let offset = inside.addr() % WORD;
    let local = NonNull::new(inside.wrapping_sub(offset)).and_then(|word| {
        // SAFETY: this function's contract: objects are whole words.
        unsafe { space(what).local_at(word) }
    });
    match local {
        Some(local) => (local, offset as u32 * 8),
        None => bad_pointer(what, &format_args!("{inside:p}: no object is there")),
    }
}

/// Changes some bits of a word. Tries again if another thread changed the word meanwhile.
#[inline(always)]
fn change(local: &Local<'_>, shift: u32, mask: u64, part: impl Fn(u64) -> u64) {
    let mut old = 0;
    loop {
        let new = (old & !(mask << shift)) | ((part((old >> shift) & mask) & mask) << shift);
        match local.compare_exchange(old, new) {
            Ok(_) => return,
            Err(found) => old = found,
        }
    }
}

/// Adds to the 8 bytes at `word` in the unit of the CPU, wrapping and indivisibly, by a restartable sequence if
/// available. The macro this_cpu_add() takes pointers to numbers of any size; so do this_cpu_sub(), this_cpu_inc(),
/// this_cpu_dec().
///
/// # Safety
/// `word` points into an object of alloc_percpu, to a multiple of 8.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn this_cpu_add_8(word: *mut u64, amount: u64) {
    // SAFETY: this function's contract.
    let (local, _) = unsafe { self::word("this_cpu_add_8", word.cast()) };
    local.add(amount);
}

/// Adds as this_cpu_add_8 does, to 4 bytes.
///
/// # Safety
/// As this_cpu_add_8, to a multiple of 4.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn this_cpu_add_4(word: *mut u32, amount: u32) {
    // SAFETY: this function's contract.
    let (local, shift) = unsafe { self::word("this_cpu_add_4", word.cast()) };
    change(&local, shift, u64::from(u32::MAX), |old| old.wrapping_add(u64::from(amount)));
}

/// Adds as this_cpu_add_8 does, to 2 bytes.
///
/// # Safety
/// As this_cpu_add_8, to a multiple of 2.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn this_cpu_add_2(word: *mut u16, amount: u16) {
    // SAFETY: this function's contract.
    let (local, shift) = unsafe { self::word("this_cpu_add_2", word.cast()) };
    change(&local, shift, u64::from(u16::MAX), |old| old.wrapping_add(u64::from(amount)));
}

/// Adds as this_cpu_add_8 does, to 1 byte.
///
/// # Safety
/// As this_cpu_add_8, to any byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn this_cpu_add_1(word: *mut u8, amount: u8) {
    // SAFETY: this function's contract.
    let (local, shift) = unsafe { self::word("this_cpu_add_1", word) };
    change(&local, shift, u64::from(u8::MAX), |old| old.wrapping_add(u64::from(amount)));
}

/// Reads the 8 bytes at `word` in the unit of the CPU.
///
/// # Safety
/// As this_cpu_add_8.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn this_cpu_read_8(word: *mut u64) -> u64 {
    // SAFETY: this function's contract.
    let (local, _) = unsafe { self::word("this_cpu_read_8", word.cast()) };
    // A read: replacing 0 by 0 changes nothing.
    local.compare_exchange(0, 0).unwrap_or_else(|found| found)
}

/// Stores `value` in the 8 bytes at `word` in the unit of the CPU. Returns the previous value.
///
/// # Safety
/// As this_cpu_add_8.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn this_cpu_xchg_8(word: *mut u64, value: u64) -> u64 {
    // SAFETY: this function's contract.
    let (local, _) = unsafe { self::word("this_cpu_xchg_8", word.cast()) };
    local.swap(value)
}

/// Stores `value` as this_cpu_xchg_8 does, if the previous value is `old`. Returns the previous value.
///
/// # Safety
/// As this_cpu_add_8.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn this_cpu_cmpxchg_8(word: *mut u64, old: u64, value: u64) -> u64 {
    // SAFETY: this function's contract.
    let (local, _) = unsafe { self::word("this_cpu_cmpxchg_8", word.cast()) };
    local.compare_exchange(old, value).unwrap_or_else(|found| found)
}

/// Returns the wrapping sum of the 8 bytes at `word` over all units: exact if no thread changes them meanwhile.
///
/// # Safety
/// As this_cpu_add_8.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn percpu_sum_8(word: *mut u64) -> u64 {
    // SAFETY: this function's contract.
    let (local, _) = unsafe { self::word("percpu_sum_8", word.cast()) };
    local.sum()
}

/// A signed counter: one word until threads contend for it, then a delta on each CPU. percpu_counter_init initialises
/// its memory, regardless of the contents, and percpu_counter_destroy ends it. Between the two it must not be copied or
/// moved.
#[derive(Debug)]
#[repr(C)]
pub struct percpu_counter {
    /// Private.
    pub held: [u64; 2],
}

type Held = PerCpuCounter<'static>;
const _: () = assert!(size_of::<Held>() <= size_of::<percpu_counter>(), "a counter fits");
const _: () = assert!(align_of::<Held>() <= align_of::<percpu_counter>(), "a counter is aligned");

/// # Safety
/// `counter` points to an initialised counter that is not destroyed.
unsafe fn held<'c>(counter: *const percpu_counter) -> &'c Held {
    // SAFETY: this function's contract.
    unsafe { &*counter.cast::<Held>() }
}

/// Initialises a counter with `amount`. It allocates nothing, unless it is the first use of per-CPU memory.
///
/// 0, or -1 with errno EINVAL if `counter` is NULL, ENOMEM if there is no memory.
///
/// # Safety
/// `counter` is NULL or points to such a struct that is not an initialised counter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn percpu_counter_init(counter: *mut percpu_counter, amount: i64) -> c_int {
    let keep = KeepErrno::new();
    let made = Space::global().map(|space| Held::new(space, amount));
    drop(keep);
    let number = match (made, NonNull::new(counter.cast::<MaybeUninit<Held>>())) {
        (Ok(made), Some(to)) => {
            // SAFETY: this function's contract; the struct is large enough and aligned.
            unsafe { to.write(MaybeUninit::new(made)) };
            return 0;
        }
        (_, None) => libc::EINVAL,
        (Err(error), _) => number_of_percpu(&error),
    };
    minus_one_with(number)
}

/// Destroys a counter. NULL is ignored.
///
/// # Safety
/// `counter` is NULL or a counter that no thread uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn percpu_counter_destroy(counter: *mut percpu_counter) {
    let Some(at) = NonNull::new(counter.cast::<Held>()) else { return };
    let _keep = KeepErrno::new();
    // SAFETY: this function's contract.
    unsafe { at.drop_in_place() };
}

/// Gives a counter a delta on each CPU, if it is one word. The functions that add do so after contention, and go on
/// with one word if there is no memory.
///
/// 0, or -1 with errno ENOMEM if there is no memory.
///
/// # Safety
/// `counter` is a counter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn percpu_counter_promote(counter: *mut percpu_counter) -> c_int {
    let keep = KeepErrno::new();
    // SAFETY: this function's contract.
    let promoted = unsafe { held(counter) }.promote();
    drop(keep);
    promoted.map_or_else(|error| minus_one_with(number_of_percpu(&error)), |()| 0)
}

/// Returns true if a counter has a delta on each CPU, and false if it is one word.
///
/// # Safety
/// `counter` is a counter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn percpu_counter_is_percpu(counter: *const percpu_counter) -> bool {
    // SAFETY: this function's contract.
    unsafe { held(counter) }.is_percpu()
}

#[inline(always)]
fn add(counter: &Held, amount: i64) {
    if !counter.try_add(amount) {
        // A lock or a promotion may call the system.
        let _keep = KeepErrno::new();
        counter.add(amount);
    }
}

/// Adds to a counter, wrapping.
///
/// # Safety
/// `counter` is a counter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn percpu_counter_add(counter: *mut percpu_counter, amount: i64) {
    // SAFETY: this function's contract.
    add(unsafe { held(counter) }, amount);
}

/// Subtracts from a counter, wrapping.
///
/// # Safety
/// `counter` is a counter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn percpu_counter_sub(counter: *mut percpu_counter, amount: i64) {
    // SAFETY: this function's contract.
    add(unsafe { held(counter) }, amount.wrapping_neg());
}

/// Adds 1 to a counter.
///
/// # Safety
/// `counter` is a counter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn percpu_counter_inc(counter: *mut percpu_counter) {
    // SAFETY: this function's contract.
    add(unsafe { held(counter) }, 1);
}

/// Subtracts 1 from a counter.
///
/// # Safety
/// `counter` is a counter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn percpu_counter_dec(counter: *mut percpu_counter) {
    // SAFETY: this function's contract.
    add(unsafe { held(counter) }, -1);
}

/// Adds to a counter unless the sum would exceed `limit`: rise above it by a positive amount, or fall below it by a
/// negative one. Returns true if it added.
///
/// # Safety
/// `counter` is a counter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn percpu_counter_limited_add(
    counter: *mut percpu_counter,
    limit: i64,
    amount: i64,
) -> bool {
    let _keep = KeepErrno::new();
    // SAFETY: this function's contract.
    unsafe { held(counter) }.limited_add(limit, amount)
}

/// Sets the counter, while no other thread uses it.
///
/// # Safety
/// `counter` is a counter that no other thread uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn percpu_counter_set(counter: *mut percpu_counter, amount: i64) {
    // SAFETY: this function's contract.
    unsafe { &mut *counter.cast::<Held>() }.set(amount);
}

/// Returns an approximate value, by one load, without the deltas of the CPUs.
///
/// # Safety
/// `counter` is a counter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn percpu_counter_read(counter: *const percpu_counter) -> i64 {
    // SAFETY: this function's contract.
    unsafe { held(counter) }.read()
}

/// Returns the value of percpu_counter_read, or 0 if it is negative.
///
/// # Safety
/// `counter` is a counter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn percpu_counter_read_positive(counter: *const percpu_counter) -> i64 {
    // SAFETY: this function's contract.
    unsafe { held(counter) }.read_positive()
}

/// Returns the exact sum of all earlier additions.
///
/// # Safety
/// `counter` is a counter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn percpu_counter_sum(counter: *const percpu_counter) -> i64 {
    let _keep = KeepErrno::new();
    // SAFETY: this function's contract.
    unsafe { held(counter) }.sum()
}

/// Returns -1, 0 or 1 if the sum is less than `other`, equal or greater.
///
/// # Safety
/// `counter` is a counter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn percpu_counter_compare(counter: *const percpu_counter, other: i64) -> c_int {
    let _keep = KeepErrno::new();
    // SAFETY: this function's contract.
    match unsafe { held(counter) }.compare(other) {
        Ordering::Less => -1,
        Ordering::Equal => 0,
        Ordering::Greater => 1,
    }
}
