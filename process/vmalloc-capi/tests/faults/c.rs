//! The program of the C functions. An error is `NULL` or -1 with an `errno` that is not 0.

use crate::tracer::{Mark, mark};
use crate::work::{Area, MIB, attempt, check_zeros, inside};
use std::ffi::{c_int, c_void};
use std::ptr::{NonNull, null, null_mut};
use vmalloc_capi::{abi, frames, percpu, percpu_ref};

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

/// Calls a function that returns `NULL` and sets `errno` if it fails.
fn pointer(what: &str, call: impl FnOnce() -> *mut c_void) -> Option<NonNull<u8>> {
    attempt(what, || NonNull::new(call().cast()).ok_or_else(errno))
}

/// Calls a function that returns -1 and sets `errno` if it fails. Returns true if it succeeds.
fn code(what: &str, call: impl FnOnce() -> c_int) -> bool {
    attempt(what, || if call() == 0 { Ok(()) } else { Err(errno()) }).is_some()
}

/// Calls a function that frees, which leaves `errno` as it is (CA2).
fn free(call: impl FnOnce()) {
    // SAFETY: the thread's own variable.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as before.
    unsafe { place.write(77) };
    inside(call);
    assert_eq!(errno(), 77, "CA2");
}

pub(crate) fn program() {
    let mut held = areas();
    words();
    let released = references();
    chosen_frames();
    mark(Mark::Calm);
    assert!(released);
    for area in held.drain(..) {
        area.check(area.bytes);
        // SAFETY: our own, and no reference to it remains.
        free(|| unsafe { abi::kvfree(area.at.as_ptr().cast()) });
    }
    let at = pointer("vzalloc", || abi::vzalloc(5 * MIB)).unwrap();
    check_zeros(at, 0, 5 * MIB);
    // SAFETY: our own, and no reference to it remains.
    free(|| unsafe { abi::vfree(at.as_ptr().cast()) });
    let mut counts = zeroed_counts();
    // SAFETY: a struct of that size.
    assert_eq!(unsafe { abi::vmalloc_stats(&raw mut counts, size_of_val(&counts)) }, 0);
    assert_eq!(counts.live_bytes, 0);
}

fn zeroed_counts() -> abi::vmalloc_counts {
    // SAFETY: numbers.
    unsafe { std::mem::zeroed() }
}

fn areas() -> Vec<Area> {
    let mut held = Vec::with_capacity(16);
    let mut hold = |at: Option<NonNull<u8>>, bytes, zeros: bool, tag| {
        let Some(at) = at else { return };
        if zeros {
            check_zeros(at, 0, bytes);
        }
        held.push(Area::new(at, bytes, tag));
    };
    hold(pointer("vmalloc", || abi::vmalloc(70_000)), 70_000, false, 1);
    hold(pointer("vzalloc", || abi::vzalloc(3 * MIB)), 3 * MIB, true, 2);
    hold(pointer("vmalloc_aligned", || abi::vmalloc_aligned(9000, 1 << 21)), 9000, false, 3);
    hold(pointer("vmalloc_huge", || abi::vmalloc_huge(4 * MIB)), 4 * MIB, false, 4);
    hold(pointer("kvmalloc", || abi::kvmalloc(100)), 100, false, 5);
    hold(pointer("kvzalloc", || abi::kvzalloc(90_000)), 90_000, true, 6);
    for area in &mut held {
        let old = area.at.as_ptr().cast();
        // SAFETY: our own, and no reference to it exists.
        let resized = pointer("kvrealloc", || unsafe { abi::kvrealloc(old, area.bytes * 2) });
        if let Some(at) = resized {
            area.at = at;
            area.check(area.bytes);
            area.bytes *= 2;
            area.fill();
        } else {
            area.check(area.bytes);
        }
    }
    if let Some(area) = held.pop() {
        area.check(area.bytes);
        // SAFETY: our own, and no reference to it remains.
        free(|| unsafe { abi::kvfree(area.at.as_ptr().cast()) });
    }
    inside(|| abi::vmalloc_trim());
    let mut text = [0; 4096];
    // SAFETY: as many bytes.
    inside(|| unsafe { abi::vmallocinfo(text.as_mut_ptr(), text.len()) });
    held
}

fn words() {
    let object = pointer("alloc_percpu", || percpu::alloc_percpu(64, 8));
    if let Some(object) = object {
        let word = object.as_ptr().cast::<u64>();
        for amount in 1..=10 {
            // SAFETY: inside the object.
            inside(|| unsafe { percpu::this_cpu_add_8(word, amount) });
        }
        // SAFETY: as before.
        assert_eq!(unsafe { percpu::percpu_sum_8(word) }, 55);
        // SAFETY: our own object.
        free(|| unsafe { percpu::free_percpu(object.as_ptr().cast()) });
    }
    let mut counter = percpu::percpu_counter { held: [0; 2] };
    let counter = &raw mut counter;
    // SAFETY: not initialized yet.
    if code("percpu_counter_init", || unsafe { percpu::percpu_counter_init(counter, 4) }) {
        // SAFETY: initialized above.
        code("percpu_counter_promote", || unsafe { percpu::percpu_counter_promote(counter) });
        // SAFETY: as before.
        inside(|| unsafe { percpu::percpu_counter_add(counter, 6) });
        // SAFETY: as before.
        assert_eq!(unsafe { percpu::percpu_counter_sum(counter) }, 10);
        // SAFETY: as before, and not used any more.
        free(|| unsafe { percpu::percpu_counter_destroy(counter) });
    }
}

unsafe extern "C" fn release(_count: *mut percpu_ref::percpu_ref) {
    RELEASED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
}
static RELEASED: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

/// Returns true if a count that was killed was released once, and any other not at all.
fn references() -> bool {
    let mut count = percpu_ref::percpu_ref { held: [0; 16] };
    let count = &raw mut count;
    // SAFETY: not initialized yet.
    if !code("percpu_ref_init", || unsafe { percpu_ref::percpu_ref_init(count, Some(release), 0) }) {
        return true;
    }
    // SAFETY: initialized above.
    inside(|| unsafe { percpu_ref::percpu_ref_get(count) });
    // SAFETY: as before.
    let killed = code("percpu_ref_kill", || unsafe { percpu_ref::percpu_ref_kill(count) });
    // SAFETY: as before; a reference is held.
    inside(|| unsafe { percpu_ref::percpu_ref_put(count) });
    // SAFETY: as before, and not used any more.
    free(|| unsafe { percpu_ref::percpu_ref_exit(count) });
    RELEASED.load(std::sync::atomic::Ordering::Relaxed) == u32::from(killed)
}

fn chosen_frames() {
    let mut some = frames::vm_frames { first: 0, count: 0 };
    // SAFETY: such a struct.
    if !code("vm_alloc_frames", || unsafe { frames::vm_alloc_frames(&raw mut some, 3) }) {
        return;
    }
    let list = [some.first + 2, some.first, some.first + 2];
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: three numbers of frames.
    let mapping = pointer("vmap", || unsafe { frames::vmap(list.as_ptr(), 3, access) });
    // SAFETY: as before.
    let small = pointer("vm_map_ram", || unsafe { frames::vm_map_ram(list.as_ptr(), 3, access) });
    if let Some(mapping) = mapping {
        // SAFETY: three pages.
        let last = unsafe { mapping.add(2 * 4096) };
        // SAFETY: our own pages, the first and the last of which are one frame.
        unsafe { mapping.write(9) };
        // SAFETY: as before.
        assert_eq!(unsafe { last.read() }, 9);
    }
    // SAFETY: our own mappings, or NULL.
    free(|| unsafe { frames::vunmap(mapping.map_or(null(), |at| at.as_ptr().cast_const().cast())) });
    // SAFETY: as before.
    free(|| unsafe { frames::vm_unmap_ram(small.map_or(null_mut(), NonNull::as_ptr).cast(), 3) });
    // SAFETY: our own frames, which are not mapped any more.
    free(|| unsafe { frames::vm_free_frames(&raw mut some) });
}
