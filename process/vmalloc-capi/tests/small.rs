//! The C functions, called from Rust with few and small areas, and by threads: for Miri, which runs no program of C. The
//! tests of `c.rs` are programs of C, and do more.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, Ordering};
use vmalloc_capi::abi::{
    is_vmalloc_addr, kvfree, kvmalloc, kvrealloc, kvzalloc, vfree, vmalloc, vmalloc_aligned, vmalloc_counts,
    vmalloc_huge, vmalloc_stats, vmalloc_trim, vmalloc_usable_size, vmallocinfo, vrealloc, vzalloc,
};
use vmalloc_capi::frames::{
    vm_alloc_frames, vm_frames, vm_free_frames, vm_map_ram, vm_unmap_ram, vmap, vunmap,
};
use vmalloc_capi::percpu::{
    alloc_percpu, free_percpu, per_cpu_ptr, percpu_counter, percpu_counter_add, percpu_counter_compare,
    percpu_counter_destroy, percpu_counter_init, percpu_counter_limited_add, percpu_counter_promote,
    percpu_counter_set, percpu_counter_sum, percpu_sum_8, percpu_units, this_cpu_add_1, this_cpu_add_2,
    this_cpu_add_4, this_cpu_add_8, this_cpu_cmpxchg_8, this_cpu_xchg_8,
};
use vmalloc_capi::percpu_ref::{
    PERCPU_REF_INIT_ATOMIC, percpu_ref, percpu_ref_exit, percpu_ref_get, percpu_ref_init, percpu_ref_is_zero,
    percpu_ref_kill, percpu_ref_put, percpu_ref_reinit, percpu_ref_tryget_live,
};

const PAGE: usize = 4096;
/// The least size of an area for the kv functions.
const LARGE: usize = 64 << 10;
const ROUNDS: usize = if cfg!(miri) { 2 } else { 200 };

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Writes a value to the first and the last byte of memory.
fn mark(memory: *mut c_void, bytes: usize, value: u8) {
    assert!(!memory.is_null());
    for at in [0, bytes - 1] {
        // SAFETY: the caller's own memory, of that many bytes.
        unsafe { memory.cast::<u8>().wrapping_add(at).write(value) };
    }
}

fn byte(memory: *const c_void, at: usize) -> u8 {
    // SAFETY: the caller's own memory, which has the byte.
    unsafe { memory.cast::<u8>().wrapping_add(at).read() }
}

/// Allocates, resizes and frees areas by each function.
fn areas(value: u8) {
    let plain = vmalloc(PAGE + 1);
    mark(plain, 2 * PAGE, value);
    // SAFETY: our own area.
    let grown = unsafe { vrealloc(plain, 5 * PAGE) };
    assert_eq!((byte(grown, 0), byte(grown, 2 * PAGE - 1)), (value, value));
    assert!(vmalloc_usable_size(grown) >= 5 * PAGE && is_vmalloc_addr(grown));
    let zeros = vzalloc(3 * PAGE);
    assert_eq!((byte(zeros, 0), byte(zeros, 3 * PAGE - 1)), (0, 0));
    mark(zeros, 3 * PAGE, value);
    let aligned = vmalloc_aligned(PAGE, 8 * PAGE);
    assert!(aligned.addr().is_multiple_of(8 * PAGE));
    mark(aligned, PAGE, value);
    let huge = vmalloc_huge(PAGE);
    mark(huge, PAGE, value);
    for area in [zeros, aligned, huge] {
        // SAFETY: our own area, which is not used any more.
        unsafe { vfree(area) };
    }
    // SAFETY: as before.
    assert!(unsafe { vrealloc(grown, 0) }.is_null());
    // SAFETY: null is allowed.
    unsafe { vfree(null_mut()) };
}

#[test]
fn areas_are_allocated_resized_and_freed_and_failures_set_errno() {
    areas(1);
    assert!(vmalloc(0).is_null() && errno() == libc::EINVAL);
    assert!(vmalloc(usize::MAX).is_null() && errno() == libc::ENOMEM);
    assert!(vmalloc_aligned(PAGE, 3).is_null() && errno() == libc::EINVAL);
    let area = vmalloc(PAGE);
    // SAFETY: our own area.
    assert!(unsafe { vrealloc(area, usize::MAX) }.is_null() && errno() == libc::ENOMEM);
    mark(area, PAGE, 2);
    // A program that knows fewer fields, and one that knows more.
    let whole = size_of::<vmalloc_counts>();
    for bytes in [8, whole, whole + 8] {
        let mut counts = [u64::MAX; 16];
        // SAFETY: has that many bytes, as aligned.
        assert_eq!(unsafe { vmalloc_stats(counts.as_mut_ptr().cast(), bytes) }, 0);
        assert!(counts[0] > 0 && counts[bytes / 8 - 1] != u64::MAX && counts[bytes / 8] == u64::MAX);
    }
    // SAFETY: null is allowed.
    assert_eq!((unsafe { vmalloc_stats(null_mut(), 8) }, errno()), (-1, libc::EINVAL));
    let mut text = [b'x'; 300];
    // SAFETY: no byte is written.
    let bytes = unsafe { vmallocinfo(null_mut(), 0) };
    // SAFETY: has that many bytes.
    assert!(bytes > 0 && unsafe { vmallocinfo(text.as_mut_ptr().cast(), 10) } > 0);
    assert!(text[9] == 0 && text[8] != 0 && text[10] == b'x');
    // SAFETY: our own area, which is not used any more.
    unsafe { vfree(area) };
    assert!(vmalloc_trim() > 0);
}

#[test]
fn memory_moves_between_malloc_and_areas() {
    let small = kvmalloc(100);
    mark(small, 100, 3);
    // SAFETY: our own memory.
    let small = unsafe { kvrealloc(small, 200) };
    assert!(byte(small, 99) == 3 && !is_vmalloc_addr(small));
    let large = kvzalloc(LARGE);
    assert!(is_vmalloc_addr(large) && byte(large, LARGE - 1) == 0);
    mark(large, LARGE, 4);
    // SAFETY: our own memory.
    let large = unsafe { kvrealloc(large, LARGE + PAGE) };
    assert_eq!((byte(large, 0), byte(large, LARGE - 1)), (4, 4));
    // SAFETY: our own memory.
    let back = unsafe { kvrealloc(large, 300) };
    assert!(byte(back, 0) == 4 && !is_vmalloc_addr(back));
    // SAFETY: our own memory.
    assert!(unsafe { kvrealloc(back, 0) }.is_null());
    // Miri has no `malloc_usable_size`.
    let small = if cfg!(miri) {
        small
    } else {
        // SAFETY: our own memory.
        let grown = unsafe { kvrealloc(small, LARGE) };
        assert!(byte(grown, 99) == 3 && is_vmalloc_addr(grown));
        grown
    };
    // SAFETY: our own memory, which is not used any more.
    unsafe { kvfree(small) };
}

#[test]
fn threads_use_areas_beside_each_other() {
    std::thread::scope(|scope| {
        for thread in 0..2u8 {
            scope.spawn(move || (0..ROUNDS).for_each(|_| areas(thread + 1)));
        }
    });
}

#[test]
fn frames_are_mapped_and_unmapped_and_freed() {
    let mut frames = vm_frames::default();
    let both = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: writes to the struct.
    assert_eq!(unsafe { vm_alloc_frames(&raw mut frames, 2) }, 0);
    // SAFETY: null is allowed.
    assert_eq!((unsafe { vm_alloc_frames(null_mut(), 2) }, errno()), (-1, libc::EINVAL));
    let list = [frames.first + 1, frames.first];
    // SAFETY: our own frames.
    let view = unsafe { vmap(list.as_ptr(), 2, both) };
    mark(view, 2 * PAGE, 5);
    // SAFETY: our own frames.
    let small = unsafe { vm_map_ram(list.as_ptr(), 1, libc::PROT_READ) };
    assert_eq!(byte(small, 0), 5);
    for (count, access) in [(0, both), (1, 0), (1, libc::PROT_EXEC)] {
        // SAFETY: the call fails.
        assert!(unsafe { vmap(list.as_ptr(), count, access) }.is_null() && errno() == libc::EINVAL);
    }
    // SAFETY: our own mapping, which is not used any more.
    unsafe { vm_unmap_ram(small, 1) };
    // SAFETY: as before.
    unsafe { vunmap(view) };
    // SAFETY: no mapping of them remains.
    unsafe { vm_free_frames(&raw mut frames) };
    // SAFETY: a struct of no frames.
    unsafe { vm_free_frames(&raw mut frames) };
    assert_eq!(frames, vm_frames::default());
}

#[test]
fn objects_of_units_have_numbers_of_each_size() {
    let object = alloc_percpu(40, 16).cast::<u64>();
    assert!(!object.is_null() && percpu_units() > 0);
    assert!(alloc_percpu(0, 8).is_null() && errno() == libc::EINVAL);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let at = object.expose_provenance();
            scope.spawn(move || {
                let object = core::ptr::with_exposed_provenance_mut::<u64>(at);
                for _ in 0..ROUNDS {
                    // SAFETY: the first word of the object.
                    unsafe { this_cpu_add_8(object, 1) };
                    let word = object.wrapping_add(1).cast::<u8>();
                    // SAFETY: a number in its second word.
                    unsafe { this_cpu_add_4(word.cast(), u32::MAX) };
                    // SAFETY: as before.
                    unsafe { this_cpu_add_2(word.wrapping_add(4).cast(), 1) };
                    // SAFETY: as before.
                    unsafe { this_cpu_add_1(word.wrapping_add(7), 255) };
                }
            });
        }
    });
    let rounds = 2 * ROUNDS as u64;
    // SAFETY: the first word of the object.
    assert_eq!(unsafe { percpu_sum_8(object) }, rounds);
    let third = object.wrapping_add(2);
    // SAFETY: the third word of the object.
    unsafe { this_cpu_xchg_8(third, 8) };
    // SAFETY: as before.
    unsafe { this_cpu_cmpxchg_8(third, 9, 10) };
    // SAFETY: as before; and no thread changes it.
    let copies = (0..percpu_units()).map(|unit| unsafe { per_cpu_ptr(third.cast(), unit) }.cast::<u64>());
    // SAFETY: a word of the object's copy in a unit.
    assert_eq!(copies.map(|copy| unsafe { copy.read() }).sum::<u64>(), 8);
    // SAFETY: in the object.
    assert!(unsafe { per_cpu_ptr(object.cast(), percpu_units()) }.is_null() && errno() == libc::EINVAL);
    // SAFETY: our own object, which is not used any more.
    unsafe { free_percpu(object.cast()) };
}

/// A counter that threads share, as C allows.
#[derive(Clone, Copy)]
struct Counter(*mut percpu_counter);

// SAFETY: the functions of counters may be called by any thread.
unsafe impl Send for Counter {}

impl Counter {
    fn get(self) -> *mut percpu_counter {
        self.0
    }
}

#[test]
fn a_counter_is_exact_as_a_word_and_in_units() {
    let mut place = MaybeUninit::<percpu_counter>::uninit();
    let counter = place.as_mut_ptr();
    // SAFETY: no counter yet.
    assert_eq!(unsafe { percpu_counter_init(counter, 5) }, 0);
    let shared = Counter(counter);
    for sum in [5 + 2, 5 + 4] {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                // SAFETY: a counter, as long as the scope.
                scope.spawn(move || unsafe { percpu_counter_add(shared.get(), 1) });
            }
        });
        // SAFETY: a counter.
        assert_eq!(unsafe { percpu_counter_sum(counter) }, sum);
        // SAFETY: a counter.
        assert_eq!(unsafe { percpu_counter_promote(counter) }, 0);
    }
    // SAFETY: a counter.
    assert!(!unsafe { percpu_counter_limited_add(counter, 8, 1) });
    // SAFETY: a counter.
    unsafe { percpu_counter_set(counter, -3) };
    // SAFETY: a counter.
    assert_eq!(unsafe { percpu_counter_compare(counter, -2) }, -1);
    // SAFETY: a counter that is not used any more.
    unsafe { percpu_counter_destroy(counter) };
}

static RELEASES: AtomicU64 = AtomicU64::new(0);

/// # Safety
/// `count` is a count that no thread uses any more.
unsafe extern "C" fn release(count: *mut percpu_ref) {
    RELEASES.fetch_add(1, Ordering::Relaxed);
    if RELEASES.load(Ordering::Relaxed) == 2 {
        // SAFETY: this function's contract.
        unsafe { percpu_ref_exit(count) };
    }
}

#[test]
fn a_count_is_released_once_a_life_and_may_end_in_its_release() {
    let mut place = MaybeUninit::<percpu_ref>::uninit();
    let count = place.as_mut_ptr();
    // SAFETY: the call fails.
    assert_eq!((unsafe { percpu_ref_init(count, None, 0) }, errno()), (-1, libc::EINVAL));
    // SAFETY: no count yet.
    assert_eq!(unsafe { percpu_ref_init(count, Some(release), PERCPU_REF_INIT_ATOMIC) }, 0);
    for life in 0..2 {
        // SAFETY: a count that lives.
        unsafe { percpu_ref_get(count) };
        // SAFETY: as before.
        assert_eq!(unsafe { percpu_ref_kill(count) }, 0);
        // SAFETY: as before, since the reference above is not put yet.
        assert!(!unsafe { percpu_ref_tryget_live(count) });
        // SAFETY: as before.
        unsafe { percpu_ref_put(count) };
        assert_eq!(RELEASES.load(Ordering::Relaxed), life + 1);
        if life == 0 {
            // SAFETY: a count that is dead.
            assert!(unsafe { percpu_ref_is_zero(count) });
            // SAFETY: as before.
            assert_eq!(unsafe { percpu_ref_reinit(count) }, 0);
        }
    }
}
