//! Page frames of physical memory, searched from the last allocation on: a freed frame is not the next to be used, so
//! a stale translation shows other contents. Your kernel has an allocator of pages; the port needs what is public here.

use crate::cpus::Cpus;
use crate::lock::IrqLock;
use core::sync::atomic::AtomicU64;
use va_base::PAGE_SIZE;
use va_base::sync::Mutex;
use va_map::Run;

/// Most frames that can be managed: 128 MiB.
const FRAMES_MAX: usize = 1 << 15;

struct State {
    /// The number of the first frame, how many there are, and how many are free.
    first: u64,
    count: usize,
    free: usize,
    /// The search begins here.
    next: usize,
    allocated: [bool; FRAMES_MAX],
}

/// The frames of a machine. Empty until [`add`](Self::add).
pub struct Frames<C: Cpus>(Mutex<IrqLock<C>, State>);

impl<C: Cpus> Frames<C> {
    /// No frames: a constant, for a static.
    #[allow(clippy::new_without_default, reason = "a kernel has one, in a static")]
    pub const fn new() -> Self {
        Self(Mutex::new(State { first: 0, count: 0, free: 0, next: 0, allocated: [false; FRAMES_MAX] }))
    }

    /// Adds frames from `first` to `end`, or as many as can be managed. Returns their number. Called once.
    ///
    /// # Safety
    /// The frames are memory that nothing else uses from here on, at the addresses that [`direct`] returns.
    pub unsafe fn add(&self, first: u64, end: u64) -> u64 {
        let mut state = self.0.lock();
        assert!(state.count == 0 && first < end, "frames are added once");
        state.count = FRAMES_MAX.min((end - first) as usize);
        (state.first, state.free) = (first, state.count);
        state.count as u64
    }

    /// Returns the number of free frames.
    pub fn free_count(&self) -> u64 {
        self.0.lock().free as u64
    }

    /// Allocates `2^log2` consecutive frames, the first a multiple of that, with unspecified contents.
    pub fn alloc(&self, log2: u32) -> Option<u64> {
        let size = 1_usize << log2;
        let mut state = self.0.lock();
        // Places whose frame is a multiple of the size.
        let aligned =
            |place: u64| ((state.first + place).next_multiple_of(size as u64) - state.first) as usize;
        let (low, from) = (aligned(0), aligned(state.next as u64));
        let is_free = |&place: &usize| {
            place + size <= state.count && !state.allocated[place..place + size].contains(&true)
        };
        let mut places = (from..state.count).step_by(size).chain((low..from).step_by(size));
        let place = places.find(is_free)?;
        state.allocated[place..place + size].fill(true);
        (state.free, state.next) = (state.free - size, place + size);
        Some(state.first + place as u64)
    }

    /// Frees frames, which may be a part of an allocation. Panics if one is not allocated: another may have it.
    pub fn free(&self, Run { first, pages }: Run) {
        let mut state = self.0.lock();
        let (place, size) = ((first - state.first) as usize, pages as usize);
        let freed = &mut state.allocated[place..place + size];
        assert!(!freed.contains(&false), "frame {first:#x} or one of {pages} is freed twice");
        freed.fill(false);
        state.free += size;
    }
}

/// Returns the address of a frame in the mapping of all memory, here that of the boot: virtual is physical.
pub fn direct(frame: u64) -> *mut u8 {
    core::ptr::with_exposed_provenance_mut((frame * PAGE_SIZE) as usize)
}

/// Zeroes the bytes from `from` to `to` of a frame.
///
/// # Safety
/// The frame is allocated, and the caller is its owner.
pub unsafe fn clear(frame: u64, from: u64, to: u64) {
    assert!(from <= to && to <= PAGE_SIZE);
    // SAFETY: inside the page, by the check above.
    let at = unsafe { direct(frame).add(from as usize) };
    // SAFETY: the caller owns these bytes.
    unsafe { at.write_bytes(0, (to - from) as usize) };
}

/// Returns a word of a frame.
///
/// # Safety
/// The frame is allocated for as long as the reference is used, and all who access it use atomic words.
pub unsafe fn word(frame: u64, place: usize) -> &'static AtomicU64 {
    assert!(place < PAGE_SIZE as usize / 8);
    // SAFETY: inside the page, by the check above.
    let at = unsafe { direct(frame).cast::<AtomicU64>().add(place) };
    // SAFETY: aligned, and memory that lives while the caller uses it.
    unsafe { &*at }
}
