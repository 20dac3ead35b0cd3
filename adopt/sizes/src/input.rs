//! Input of the calls: random numbers, and the areas that are allocated.

use crate::lock::Spin;
use core::hint::black_box;
use lock_api::Mutex;

/// Most areas that are allocated.
const LIVE: usize = 4000;

/// The areas and the state of the random numbers. The compiler sees neither as a constant.
#[derive(Debug)]
pub struct Input {
    live: [(u64, u64); LIVE],
    len: usize,
    /// Two of three allocations are left out until no area is left; before that, two of three frees are.
    shrinks: bool,
    state: u64,
}

/// All zeros, so that it takes no room in the image.
static INPUT: Mutex<Spin, Input> =
    Mutex::new(Input { live: [(0, 0); LIVE], len: 0, shrinks: false, state: 0 });

impl Input {
    fn random(&mut self, below: u64) -> u64 {
        self.state =
            black_box(self.state).wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.state >> 33) % below
    }
}

/// Returns a random number below `below`, which is not 0.
#[inline(never)]
pub fn random(below: u64) -> u64 {
    INPUT.lock().random(below)
}

/// Returns true if an area is to be allocated now: there is room for it.
#[inline(never)]
pub fn grows() -> bool {
    let mut input = INPUT.lock();
    input.shrinks |= input.len == LIVE;
    !input.shrinks || (input.len < LIVE && input.random(3) == 0)
}

/// Adds an area: its start, and its size or whatever its owner needs.
#[inline(never)]
pub fn add(area: (u64, u64)) {
    let mut input = INPUT.lock();
    let at = input.len;
    if let Some(place) = input.live.get_mut(at) {
        *place = area;
        input.len += 1;
    }
}

/// Takes a random area out, if one is to be freed now.
#[inline(never)]
pub fn take() -> Option<(u64, u64)> {
    let mut input = INPUT.lock();
    input.shrinks &= input.len > 0;
    if !input.shrinks && input.random(3) != 0 {
        return None;
    }
    let last = input.len.checked_sub(1)?;
    let at = input.random(last as u64 + 1) as usize;
    input.live.swap(at, last);
    input.len = last;
    input.live.get(last).copied()
}
