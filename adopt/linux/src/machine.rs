//! The kernel as the machine of a space.

#[cfg(not(feature = "kasan"))]
use crate::grant;
use crate::{abi, os};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
#[cfg(not(feature = "kasan"))]
use core::sync::atomic::{AtomicU32, Ordering};
#[cfg(feature = "kasan")]
use va_base::LockClass;
use va_base::sync::{GuardNoSend, RawMutex};
use va_base::{Drain, Epoch, InvariantViolation, Machine, Meta, Platform, Record, Table, VaRange};

/// A spin lock of the kernel, which is free while the first word is 0. The second is its class for lockdep while it is
/// held.
pub(crate) struct Spin(UnsafeCell<[u32; 2]>);

// SAFETY: only the kernel's lock functions access the words.
unsafe impl Sync for Spin {}
// SAFETY: the same.
unsafe impl Send for Spin {}

// SAFETY: the kernel's lock excludes all other holders, acquires and releases.
unsafe impl RawMutex for Spin {
    const INIT: Self = Self(UnsafeCell::new([0; 2]));
    // The holder has preemption off, so it stays on its CPU.
    type GuardMarker = GuardNoSend;

    #[inline(always)]
    fn lock(&self) {
        // SAFETY: the words are a lock, and nothing else.
        unsafe { os::va_os_lock(self.0.get()) }
    }

    #[inline(always)]
    fn try_lock(&self) -> bool {
        // SAFETY: as above.
        unsafe { os::va_os_trylock(self.0.get()) }
    }

    #[inline(always)]
    unsafe fn unlock(&self) {
        // SAFETY: the caller holds it.
        unsafe { os::va_os_unlock(self.0.get()) }
    }
}

/// The lock of a magazine, which its owner takes without a call of the kernel. Protocol PR-GRANT.
#[cfg(not(feature = "kasan"))]
pub(crate) struct Owned(AtomicU32);

#[cfg(not(feature = "kasan"))]
impl grant::Word for Owned {
    #[inline(always)]
    fn load(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn store_free(&self, order: Ordering) {
        self.0.store(0, order);
    }

    #[inline(always)]
    fn replace_free(&self, by: u32, success: Ordering) -> bool {
        self.0.compare_exchange(0, by, success, Ordering::Relaxed).is_ok()
    }

    #[inline(always)]
    fn pause(&self) {
        core::hint::spin_loop();
    }

    #[inline(always)]
    fn preempt_off(&self) {
        os::va_os_preempt_off();
    }

    #[inline(always)]
    fn preempt_on(&self) {
        os::va_os_preempt_on();
    }
}

// SAFETY: a compare-exchange of the word excludes all other holders; it acquires, and the store of 0 releases.
#[cfg(not(feature = "kasan"))]
unsafe impl RawMutex for Owned {
    const INIT: Self = Self(AtomicU32::new(0));
    type GuardMarker = GuardNoSend;

    #[inline(always)]
    fn lock(&self) {
        grant::lock(self);
    }

    #[inline(always)]
    fn try_lock(&self) -> bool {
        grant::try_lock(self)
    }

    #[inline(always)]
    unsafe fn unlock(&self) {
        grant::unlock(self);
    }
}

/// A lock that its holder may sleep with. The kernel's mutex has no constant of zeros, so `va_os.c` has one for the
/// address of each such lock: those of the purge and of the collection of blocks.
pub(crate) struct Sleeping(u8);

impl Sleeping {
    fn key(&self) -> *const u8 {
        &raw const self.0
    }
}

// SAFETY: the kernel's mutex excludes all other holders, acquires and releases. Two values have two addresses.
unsafe impl RawMutex for Sleeping {
    const INIT: Self = Self(0);
    type GuardMarker = GuardNoSend;

    fn lock(&self) {
        os::va_os_mutex_lock(self.key());
    }

    fn try_lock(&self) -> bool {
        os::va_os_mutex_trylock(self.key())
    }

    unsafe fn unlock(&self) {
        // SAFETY: the caller holds it.
        unsafe { os::va_os_mutex_unlock(self.key()) }
    }
}

/// The largest slab in bytes: a page, of which `va_os.c` has some at hand.
const SLAB_BYTES_MAX: usize = 4 << 10;

/// `VA_SMALL_MAX` of `va_os.c`.
const SMALL_BYTES_MAX: usize = 2 << 10;

/// The kernel.
#[derive(Clone, Copy)]
pub(crate) struct Linux;

fn pages<T>(bytes: usize, zeroed: bool) -> Option<*mut MaybeUninit<T>> {
    let at = os::va_os_pages(bytes, zeroed).cast::<MaybeUninit<T>>();
    (!at.is_null()).then_some(at)
}

impl Platform for Linux {
    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        let bytes = min.checked_mul(size_of::<T>()).filter(|&bytes| bytes <= SLAB_BYTES_MAX)?;
        let bytes = bytes.next_multiple_of(va_base::PAGE_SIZE as usize);
        let first = pages::<T>(bytes, false)?;
        // SAFETY: room for so many, aligned, since a page is, and allocated to no other caller until `free_meta`.
        let slab = unsafe { core::slice::from_raw_parts_mut(first, bytes / size_of::<T>()) };
        slab.iter_mut().for_each(|place| _ = place.write(T::EMPTY));
        // SAFETY: written just now.
        Some(unsafe { slab.assume_init_mut() })
    }

    fn free_meta<T: Record>(&self, slab: Meta<&'static mut [T]>) {
        let slab = slab.take();
        let bytes = size_of_val(slab).next_multiple_of(va_base::PAGE_SIZE as usize);
        // SAFETY: it is of `alloc_meta`, and nothing refers to it any more.
        unsafe { os::va_os_pages_free(slab.as_mut_ptr().cast(), bytes) }
    }

    /// Stops with the rule that is broken. The text is left out: its formatting is a twelfth of the object.
    #[inline(always)]
    fn bug(&self, _what: core::fmt::Arguments<'_>, broken: Option<InvariantViolation>) -> ! {
        let rule = broken.map_or("", |broken| broken.rule);
        // SAFETY: a pointer and a length of a string that lives as long as the program.
        unsafe { os::va_os_bug(rule.as_ptr(), rule.len(), 0) }
    }
}

impl Machine for Linux {
    type Lock = Spin;
    type PurgeLock = Sleeping;
    #[cfg(not(feature = "kasan"))]
    type OwnerLock = Owned;
    #[cfg(feature = "kasan")]
    type OwnerLock = Spin;

    fn cpus_possible(&self) -> u32 {
        os::va_os_cpus_possible()
    }

    #[inline]
    fn cpus_online(&self) -> u32 {
        os::va_os_cpus_online()
    }

    fn alloc_table<T: Table>(&self) -> Option<&'static T> {
        let at = pages::<T>(size_of::<T>(), true)?.cast::<T>();
        // SAFETY: room for one, aligned, since a page is, and a smaller piece to its size; allocated to no other caller,
        // and only shared until `free_table`. Every byte of it is zero, as is every byte of an empty table whose locks
        // are zero when they are free (`Table`): all of these are.
        Some(unsafe { &*at })
    }

    fn free_table<T: Table>(&self, table: Meta<&'static T>) {
        let at = core::ptr::from_ref(table.take()).cast_mut();
        // SAFETY: it is of `alloc_table`, and nothing refers to it any more.
        unsafe { os::va_os_pages_free(at.cast(), size_of::<T>()) }
    }

    /// Leaves return by RCU: lookups are in sections of it, and each other call that reads a leaf has an area in it, or
    /// the lock under which leaves change.
    const RETIRES: bool = true;

    fn retire_table<T: Table>(&self, table: Meta<&'static T>) {
        const { assert!(size_of::<T>() > SMALL_BYTES_MAX, "va_os.c retires whole pages") }
        let at = core::ptr::from_ref(table.take()).cast_mut();
        // SAFETY: it is of `alloc_table`, and no reader is left after the sections of RCU that have begun.
        unsafe { os::va_os_pages_retire(at.cast(), size_of::<T>()) }
    }

    /// One flush of the hull, as Linux does: a flush of more than some pages is one of everything, and each costs an
    /// interrupt on every CPU.
    fn flush(&self, ranges: &[VaRange]) -> Epoch {
        let start = ranges.iter().map(|range| range.start()).min();
        let end = ranges.iter().map(|range| range.end()).max();
        if let (Some(start), Some(end)) = (start, end) {
            os::va_os_flush(start.get(), end.get());
        }
        Epoch(0)
    }

    /// A flush has ended when it returns.
    #[inline]
    fn completed(&self, _epoch: Epoch) -> bool {
        true
    }

    /// Tells lockdep the class of the lock that is taken next. The mutexes have one of their own each.
    #[cfg(feature = "kasan")]
    fn locking(&self, class: LockClass) {
        if !matches!(class, LockClass::Purge | LockClass::Collect) {
            os::va_os_locking(class as u32);
        }
    }

    #[cfg(feature = "kasan")]
    #[inline(always)]
    fn hears_settled(&self) -> bool {
        true
    }

    #[cfg(feature = "kasan")]
    fn settled(&self, ranges: &[VaRange]) {
        for range in ranges {
            os::va_os_settled(range.start().get(), range.end().get(), false);
        }
        let start = ranges.iter().map(|range| range.start().get()).min();
        let end = ranges.iter().map(|range| range.end().get()).max();
        os::va_os_settled(start.unwrap_or(0), end.unwrap_or(0), true);
    }

    fn drain(&self) -> Drain {
        os::va_os_wake();
        Drain::Elsewhere
    }

    fn reclaim(&self) -> u64 {
        abi::reclaim_blocks() + os::va_os_reclaim()
    }

    fn can_reclaim(&self) -> bool {
        true
    }
}
