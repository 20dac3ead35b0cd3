//! The functions of `va_os.c`.

unsafe extern "C" {
    /// Takes a spin lock, which is free while its first word is 0. Preemption is off until it is released.
    pub(crate) fn va_os_lock(lock: *mut [u32; 2]);
    /// Takes it if it is free.
    pub(crate) fn va_os_trylock(lock: *mut [u32; 2]) -> bool;
    /// Releases it.
    pub(crate) fn va_os_unlock(lock: *mut [u32; 2]);
    /// Names the class of the lock that is taken next on this CPU, and turns preemption off until then.
    #[cfg(feature = "kasan")]
    pub(crate) safe fn va_os_locking(class: u32);
    /// Turns preemption off, once more if it is off.
    #[cfg(not(feature = "kasan"))]
    pub(crate) safe fn va_os_preempt_off();
    /// Undoes one call of that.
    #[cfg(not(feature = "kasan"))]
    pub(crate) safe fn va_os_preempt_on();
    /// Takes the mutex of an address, which its holder may sleep with.
    pub(crate) safe fn va_os_mutex_lock(key: *const u8);
    /// Takes it if it is free.
    pub(crate) safe fn va_os_mutex_trylock(key: *const u8) -> bool;
    /// Releases it.
    pub(crate) fn va_os_mutex_unlock(key: *const u8);
    /// Returns memory, of whole pages if it is more than half a page, or null. Never sleeps.
    pub(crate) safe fn va_os_pages(bytes: usize, zeroed: bool) -> *mut u8;
    /// Frees memory of `va_os_pages`.
    pub(crate) fn va_os_pages_free(at: *mut u8, bytes: usize);
    /// Frees memory of `va_os_pages` once no section of RCU is left that has begun by now.
    pub(crate) fn va_os_pages_retire(at: *mut u8, bytes: usize);
    /// Flushes the translations of a range on every CPU, and returns when that is done.
    pub(crate) safe fn va_os_flush(start: u64, end: u64);
    /// Notes that an area was flushed and will be allocated again.
    #[cfg(feature = "kasan")]
    pub(crate) safe fn va_os_settled(start: u64, end: u64, flush: bool);
    /// Wakes the worker that calls `va_drain`.
    pub(crate) safe fn va_os_wake();
    /// Frees areas that are not needed, since a request is about to fail; returns pages.
    pub(crate) safe fn va_os_reclaim() -> u64;
    pub(crate) safe fn va_os_cpus_possible() -> u32;
    pub(crate) safe fn va_os_cpus_online() -> u32;
    /// Returns the CPU of the caller, which has preemption off.
    pub(crate) safe fn va_os_cpu() -> u32;
    /// Stops the machine, with a place in the code, or the name of a broken rule and 0.
    pub(crate) fn va_os_bug(file: *const u8, len: usize, line: u32) -> !;
}
