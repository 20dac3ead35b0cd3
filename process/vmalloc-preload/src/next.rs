//! The next definitions of the functions: the C library's, or those of another preloaded library.
//!
//! They are looked up once, by `dlsym(RTLD_NEXT)`, at the first request; rare functions at their first call. Calls
//! during the look-up, including its own, see that no definitions are known yet.

use crate::words::{KeepErrno, stop};
use core::alloc::{GlobalAlloc, Layout};
use core::ffi::{CStr, c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

const UNKNOWN: u8 = 0;
const ASKING: u8 = 1;
const KNOWN: u8 = 2;

/// The progress of the look-up. Protocol PR-PUBLISH.
static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// A function that is looked up by name.
struct Slot {
    name: &'static CStr,
    /// The function; null if it is not known. Protocol PR-PUBLISH.
    found: AtomicPtr<c_void>,
}

impl Slot {
    const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(null_mut()) }
    }

    fn look_up(&self) {
        #[cfg(not(miri))]
        // SAFETY: looks a name up.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        #[cfg(miri)]
        let found = crate::sim::find(self.name);
        self.found.store(found, Ordering::Relaxed);
    }

    fn get(&self) -> *mut c_void {
        self.found.load(Ordering::Relaxed)
    }

    /// Returns the function. A function that the C library lacks is looked up each time.
    #[inline(always)]
    fn get_or_look_up(&self) -> *mut c_void {
        let found = self.get();
        if found.is_null() { self.look_up_now() } else { found }
    }

    #[cold]
    fn look_up_now(&self) -> *mut c_void {
        let _keep = KeepErrno::new();
        self.look_up();
        self.get()
    }
}

static MALLOC: Slot = Slot::new(c"malloc");
static CALLOC: Slot = Slot::new(c"calloc");
static REALLOC: Slot = Slot::new(c"realloc");
static FREE: Slot = Slot::new(c"free");
static POSIX_MEMALIGN: Slot = Slot::new(c"posix_memalign");
static ALIGNED_ALLOC: Slot = Slot::new(c"aligned_alloc");
static MEMALIGN: Slot = Slot::new(c"memalign");
static VALLOC: Slot = Slot::new(c"valloc");
static PVALLOC: Slot = Slot::new(c"pvalloc");
static USABLE: Slot = Slot::new(c"malloc_usable_size");
static TRIM: Slot = Slot::new(c"malloc_trim");
static REGISTER: Slot = Slot::new(c"__register_atfork");

/// A handler of a fork.
pub(crate) type Handler = Option<unsafe extern "C" fn()>;

/// Proof that the next definitions are known.
#[derive(Clone, Copy)]
pub(crate) struct Next(());

impl Next {
    /// Returns the next definitions, or `None` while they are being looked up.
    #[inline(always)]
    pub(crate) fn get() -> Option<Self> {
        // Acquire pairs with the release of `look_up`.
        if STATE.load(Ordering::Acquire) == KNOWN { Some(Self(())) } else { Self::look_up() }
    }

    #[cold]
    fn look_up() -> Option<Self> {
        if STATE.compare_exchange(UNKNOWN, ASKING, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            // Acquire as above: another thread may have just found them.
            return (STATE.load(Ordering::Acquire) == KNOWN).then_some(Self(()));
        }
        // A later look-up waits for a thread that loads a library, which may wait for this thread. So only rare
        // functions are looked up later, since each look-up costs every program a microsecond.
        for slot in [&MALLOC, &CALLOC, &REALLOC, &FREE] {
            slot.look_up();
            if slot.get().is_null() {
                stop(format_args!("there is no {} behind this library", slot.name.to_bytes().escape_ascii()));
            }
        }
        for slot in [&POSIX_MEMALIGN, &ALIGNED_ALLOC, &MEMALIGN, &USABLE] {
            slot.look_up();
        }
        // Checks LP2: if the next definition is this library's own, a call recurses until the stack overflows.
        let own: extern "C" fn(usize) -> *mut c_void = crate::abi::malloc;
        if MALLOC.get().addr() == own as usize {
            stop(format_args!("the malloc behind this library is its own"));
        }
        STATE.store(KNOWN, Ordering::Release);
        // SAFETY: found by these names.
        unsafe { crate::hot::HOT.set_next([&MALLOC, &FREE, &REALLOC, &CALLOC].map(Slot::get)) };
        Some(Self(()))
    }
}

/// Defines a method of [`Next`] that calls a slot by its C type; a function that the C library lacks returns the value
/// after `else`.
macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident = $slot:ident($($arg:ident: $type:ty),*) -> $result:ty, else $lacking:expr;)*) => {
        impl Next {$(
            $(#[$doc])*
            ///
            /// # Safety
            /// As the C function of that name.
            #[inline(always)]
            pub(crate) unsafe fn $name(self, $($arg: $type),*) -> $result {
                type Function = unsafe extern "C" fn($($type),*) -> $result;
                let found = $slot.get_or_look_up();
                if found.is_null() {
                    $lacking
                } else {
                    // SAFETY: found by the name of a C function of this type.
                    let function = unsafe { core::mem::transmute::<*mut c_void, Function>(found) };
                    // SAFETY: this function's contract.
                    unsafe { function($($arg),*) }
                }
            }
        )*}
    };
}

calls! {
    /// `malloc`.
    malloc = MALLOC(size: usize) -> *mut c_void, else null_mut();
    /// `calloc`.
    calloc = CALLOC(count: usize, size: usize) -> *mut c_void, else null_mut();
    /// `realloc`.
    realloc = REALLOC(memory: *mut c_void, size: usize) -> *mut c_void, else null_mut();
    /// `free`.
    free = FREE(memory: *mut c_void) -> (), else {};
    /// `posix_memalign`.
    posix_memalign = POSIX_MEMALIGN(to: *mut *mut c_void, align: usize, size: usize) -> c_int, else libc::ENOMEM;
    /// `aligned_alloc`.
    aligned_alloc = ALIGNED_ALLOC(align: usize, size: usize) -> *mut c_void, else null_mut();
    /// `memalign`.
    memalign = MEMALIGN(align: usize, size: usize) -> *mut c_void, else null_mut();
    /// `valloc`.
    valloc = VALLOC(size: usize) -> *mut c_void, else null_mut();
    /// `pvalloc`.
    pvalloc = PVALLOC(size: usize) -> *mut c_void, else null_mut();
    /// `malloc_usable_size`.
    malloc_usable_size = USABLE(memory: *mut c_void) -> usize, else 0;
    /// `__register_atfork`, which implements `pthread_atfork`.
    register_atfork = REGISTER(before: Handler, parent: Handler, child: Handler, library: *mut c_void) -> c_int, else libc::ENOMEM;
    /// `malloc_trim`.
    malloc_trim = TRIM(pad: usize) -> c_int, else 0;
}

/// Rust's global allocator in this library: the next `malloc`, never its own (LP2).
pub(crate) struct NextAlloc;

// SAFETY: memory of the next malloc, with the requested alignment, is freed by the next free.
unsafe impl GlobalAlloc for NextAlloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(next) = Next::get() else { return null_mut() };
        if layout.align() <= 16 {
            // SAFETY: allocates memory.
            unsafe { next.malloc(layout.size()) }.cast()
        } else {
            // SAFETY: allocates memory at a power of two.
            unsafe { next.memalign(layout.align(), layout.size()) }.cast()
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, _: Layout) {
        if let Some(next) = Next::get() {
            // SAFETY: by this function's contract the next malloc allocated it.
            unsafe { next.free(memory.cast()) };
        }
    }
}

#[cfg(not(test))]
#[global_allocator]
static RUST: NextAlloc = NextAlloc;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lp2_rusts_memory_comes_from_the_next_malloc() {
        for align in [1, 16, 64, 1 << 16] {
            let layout = Layout::from_size_align(3000, align).unwrap();
            // SAFETY: a size that is not 0.
            let memory = unsafe { NextAlloc.alloc(layout) };
            assert!(!memory.is_null() && memory.addr().is_multiple_of(align));
            let next = Next::get().unwrap();
            // SAFETY: memory of the next malloc.
            assert!(unsafe { next.malloc_usable_size(memory.cast()) } >= 3000);
            // SAFETY: as before, and no reference to it remains.
            unsafe { NextAlloc.dealloc(memory, layout) };
        }
    }
}
