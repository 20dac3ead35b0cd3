//! Page frames of physical memory, searched from the last allocation on: a freed frame is not the next to be used, so
//! a stale translation shows other contents. Your kernel has an allocator of pages; the port needs what is public here.

use crate::cpus::Cpus;
use crate::lock::IrqLock;
use core::sync::atomic::AtomicU64;
use va_base::{PAGE_SIZE, sync::Mutex};
use va_map::Run;

/// Most frames that can be managed: 128 MiB.
const FRAMES_MAX: usize = 1 << 15;

/// The frames of a machine. Empty until [`add`](Self::add).
pub struct Frames<C: Cpus>(Mutex<IrqLock<C>, State>);

/// The number of the first frame, how many there are, where a search begins, and which are allocated.
struct State {
    first: u64,
    count: usize,
    next: usize,
    allocated: [bool; FRAMES_MAX],
}

impl<C: Cpus> Frames<C> {
    /// No frames: a constant, for a static.
    #[allow(clippy::new_without_default, reason = "a kernel has one, in a static")]
    pub const fn new() -> Self {
        Self(Mutex::new(State { first: 0, count: 0, next: 0, allocated: [false; FRAMES_MAX] }))
    }

    /// Adds frames from `first` to `end`, or as many as can be managed. Called once.
    /// # Safety
    /// The frames are memory that nothing else uses from here on, at the addresses that [`direct`] returns.
    pub unsafe fn add(&self, first: u64, end: u64) {
        let mut state = self.0.lock();
        assert!(state.count == 0 && first < end, "frames are added once");
        (state.first, state.count) = (first, FRAMES_MAX.min((end - first) as usize));
    }

    /// Returns the number of free frames.
    pub fn free_count(&self) -> usize {
        let state = self.0.lock();
        state.allocated[..state.count].iter().filter(|&&allocated| !allocated).count()
    }

    /// Allocates `2^log2` consecutive frames, the first a multiple of that, with unspecified contents.
    pub fn alloc(&self, log2: u32) -> Option<u64> {
        let (mut state, size) = (self.0.lock(), 1_usize << log2);
        // Places whose frame is a multiple of the size: from the last allocation on, then those before it.
        let aligned =
            |place: u64| ((state.first + place).next_multiple_of(size as u64) - state.first) as usize;
        let (low, from) = (aligned(0), aligned(state.next as u64));
        let mut places = (from..state.count).step_by(size).chain((low..from).step_by(size));
        let is_free = |end| end <= state.count && !state.allocated[end - size..end].contains(&true);
        let place = places.find(|place| is_free(place + size))?;
        state.allocated[place..place + size].fill(true);
        state.next = place + size;
        Some(state.first + place as u64)
    }

    /// Frees frames, which may be a part of an allocation. Panics if one is not allocated: another may have it.
    pub fn free(&self, Run { first, pages }: Run) {
        let mut state = self.0.lock();
        let place = (first - state.first) as usize;
        let freed = &mut state.allocated[place..place + pages as usize];
        assert!(!freed.contains(&false), "frame {first:#x} or one of {pages} is freed twice");
        freed.fill(false);
    }
}

/// Returns the address of a frame in the mapping of all memory, here that of the boot: virtual is physical.
pub fn direct(frame: u64) -> *mut u8 {
    core::ptr::with_exposed_provenance_mut((frame * PAGE_SIZE) as usize)
}

/// Zeroes the bytes from `from` to `to` of a frame.
/// # Safety
/// The frame is allocated, and the caller is its owner.
pub unsafe fn clear(frame: u64, from: u64, to: u64) {
    assert!(from <= to && to <= PAGE_SIZE);
    // SAFETY: inside the page, by the check above, and the caller owns it.
    unsafe { direct(frame).wrapping_add(from as usize).write_bytes(0, (to - from) as usize) };
}

/// Returns a word of a frame.
/// # Safety
/// The frame is allocated for as long as the reference is used, and all who access it use atomic words.
pub unsafe fn word(frame: u64, place: usize) -> &'static AtomicU64 {
    assert!(place < PAGE_SIZE as usize / 8);
    // SAFETY: inside the page, by the check above; aligned, and memory that lives while the caller uses it.
    unsafe { &*direct(frame).cast::<AtomicU64>().wrapping_add(place) }
}
