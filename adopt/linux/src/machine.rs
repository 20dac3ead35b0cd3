//! The kernel as the machine of a space.

use crate::os;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use va_base::sync::{GuardNoSend, RawMutex};
use va_base::{Drain, Epoch, Machine, Platform, Record, Table, VaRange};

/// Classes of locks for lockdep: a number for each type below.
const INNER: u32 = 0;
const OWNER: u32 = 1;

/// A spin lock of the kernel, one word that is 0 while it is free.
pub(crate) struct Spin<const CLASS: u32>(UnsafeCell<u32>);

// SAFETY: only the kernel's lock functions access the word.
unsafe impl<const CLASS: u32> Sync for Spin<CLASS> {}
// SAFETY: the same.
unsafe impl<const CLASS: u32> Send for Spin<CLASS> {}

// SAFETY: the kernel's lock excludes all other holders, acquires and releases.
unsafe impl<const CLASS: u32> RawMutex for Spin<CLASS> {
    const INIT: Self = Self(UnsafeCell::new(0));
    // The holder has preemption off, so it stays on its CPU.
    type GuardMarker = GuardNoSend;

    #[inline(always)]
    fn lock(&self) {
        // SAFETY: the word is a lock, and nothing else.
        unsafe { os::va_os_lock(self.0.get(), CLASS) }
    }

    #[inline(always)]
    fn try_lock(&self) -> bool {
        // SAFETY: as above.
        unsafe { os::va_os_trylock(self.0.get(), CLASS) }
    }

    #[inline(always)]
    unsafe fn unlock(&self) {
        // SAFETY: the caller holds it.
        unsafe { os::va_os_unlock(self.0.get(), CLASS) }
    }
}

/// The purge lock. There is one space, and so one such lock: a mutex of `va_os.c`, which has no constant of zeros.
pub(crate) struct Sleeping(());

// SAFETY: the kernel's mutex excludes all other holders, acquires and releases. All values are that one mutex.
unsafe impl RawMutex for Sleeping {
    const INIT: Self = Self(());
    type GuardMarker = GuardNoSend;

    fn lock(&self) {
        os::va_os_purge_lock();
    }

    fn try_lock(&self) -> bool {
        os::va_os_purge_trylock()
    }

    unsafe fn unlock(&self) {
        // SAFETY: the caller holds it.
        unsafe { os::va_os_purge_unlock() }
    }
}

/// The largest slab in bytes: what the page allocator usually has without sleeping.
const SLAB_BYTES_MAX: usize = 64 << 10;

/// The kernel.
#[derive(Clone, Copy)]
pub(crate) struct Linux;

fn pages<T>(bytes: usize) -> Option<*mut MaybeUninit<T>> {
    let at = os::va_os_pages(bytes).cast::<MaybeUninit<T>>();
    (!at.is_null()).then_some(at)
}

impl Platform for Linux {
    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        let bytes = min.checked_mul(size_of::<T>()).filter(|&bytes| bytes <= SLAB_BYTES_MAX)?;
        let bytes = bytes.next_multiple_of(va_base::PAGE_SIZE as usize);
        let first = pages::<T>(bytes)?;
        // SAFETY: room for so many, aligned, since a page is, and allocated to no other caller until `free_meta`.
        let slab = unsafe { core::slice::from_raw_parts_mut(first, bytes / size_of::<T>()) };
        slab.iter_mut().for_each(|place| _ = place.write(T::EMPTY));
        // SAFETY: written just now.
        Some(unsafe { slab.assume_init_mut() })
    }

    fn free_meta<T: Record>(&self, slab: &'static mut [T]) {
        let bytes = size_of_val(slab).next_multiple_of(va_base::PAGE_SIZE as usize);
        // SAFETY: it is of `alloc_meta`, and nothing refers to it any more.
        unsafe { os::va_os_pages_free(slab.as_mut_ptr().cast(), bytes) }
    }
}

impl Machine for Linux {
    type Lock = Spin<INNER>;
    type PurgeLock = Sleeping;
    type OwnerLock = Spin<OWNER>;

    fn cpus_possible(&self) -> u32 {
        os::va_os_cpus_possible()
    }

    #[inline]
    fn cpus_online(&self) -> u32 {
        os::va_os_cpus_online()
    }

    fn alloc_table<T: Table>(&self) -> Option<&'static T> {
        let at = pages::<T>(size_of::<T>())?.cast::<T>();
        // SAFETY: room for one, aligned, since a page is, and allocated to no other caller.
        unsafe { at.write(T::EMPTY) };
        // SAFETY: written just now, and only shared until `free_table`.
        Some(unsafe { &*at })
    }

    fn free_table<T: Table>(&self, table: &'static T) {
        let at = core::ptr::from_ref(table).cast_mut();
        // SAFETY: it is of `alloc_table`, and nothing refers to it any more.
        unsafe { os::va_os_pages_free(at.cast(), size_of::<T>()) }
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

    #[cfg(feature = "kasan")]
    #[inline(always)]
    fn hears_settled(&self) -> bool {
        true
    }

    #[cfg(feature = "kasan")]
    fn settled(&self, ranges: &[VaRange]) {
        for range in ranges {
            os::va_os_settled(range.start().get(), range.end().get());
        }
    }

    fn drain(&self) -> Drain {
        os::va_os_wake();
        Drain::Elsewhere
    }

    fn reclaim(&self) -> u64 {
        os::va_os_reclaim()
    }

    fn can_reclaim(&self) -> bool {
        true
    }
}
