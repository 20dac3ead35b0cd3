//! The operations of a thread of a child, one at a time.

use super::driver::{Driver, Held};
use super::task::{Growth, Touch};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError};

/// The operations of one thread.
pub trait ThreadOps {
    /// Runs one operation; returns false if the allocation failed.
    fn step(&mut self) -> bool;
    /// Frees everything and restarts, so that the next operations do not depend on the earlier ones.
    fn restart(&mut self) {}
    /// Frees the remaining allocations.
    fn finish(self);
}

/// A sequence of numbers from a seed (xorshift64*).
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        // Nearby seeds must not give similar sequences, and 0 would stay 0.
        Self(seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    #[inline(always)]
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Returns a uniform number from 0 to below 1.
    #[inline(always)]
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Sizes drawn at random, log-uniform between the least and the most.
pub struct Sizes {
    low: f64,
    doublings: f64,
    random: Random,
}

impl Sizes {
    pub fn new((low, high): (usize, usize), seed: u64) -> Self {
        let doublings = (high as f64 / low as f64).log2();
        Self { low: low as f64, doublings, random: Random::new(seed) }
    }

    #[inline(always)]
    pub fn draw(&mut self) -> usize {
        (self.low * (self.doublings * self.random.share()).exp2()) as usize
    }

    /// Draws an index below `count`.
    #[inline(always)]
    fn index(&mut self, count: usize) -> usize {
        (self.random.next() >> 32) as usize % count
    }
}

/// Allocates, touches and frees one size, aligned or not.
pub struct Pair<'a, H> {
    pub driver: &'a H,
    pub bytes: usize,
    pub align: Option<usize>,
    pub touch: Touch,
}

impl<H: Driver> ThreadOps for Pair<'_, H> {
    #[inline(always)]
    fn step(&mut self) -> bool {
        let held = match self.align {
            None => self.driver.alloc(self.bytes),
            Some(align) => self.driver.aligned(self.bytes, align),
        };
        let Some(mut held) = held else { return false };
        held.touch(self.touch);
        self.driver.free(held);
        true
    }

    fn finish(self) {}
}

/// Replaces one of its allocations, drawn at random, by one of another size.
pub struct Mix<'a, H> {
    driver: &'a H,
    touch: Touch,
    sizes: Sizes,
    seed: u64,
    pub slots: Vec<Option<Held<H>>>,
}

impl<'a, H: Driver> Mix<'a, H> {
    pub fn new(driver: &'a H, touch: Touch, range: (usize, usize), live: usize, seed: u64) -> Self {
        let slots = (0..live).map(|_| None).collect();
        Self { driver, touch, sizes: Sizes::new(range, seed), seed, slots }
    }
}

impl<H: Driver> ThreadOps for Mix<'_, H> {
    #[inline(always)]
    fn step(&mut self) -> bool {
        let bytes = self.sizes.draw();
        let at = self.sizes.index(self.slots.len());
        if let Some(held) = self.slots[at].take() {
            self.driver.free(held);
        }
        let Some(mut held) = self.driver.alloc(bytes) else { return false };
        held.touch(self.touch);
        self.slots[at] = Some(held);
        true
    }

    fn restart(&mut self) {
        self.slots.iter_mut().filter_map(Option::take).for_each(|held| self.driver.free(held));
        self.sizes.random = Random::new(self.seed);
    }

    fn finish(self) {
        self.slots.into_iter().flatten().for_each(|held| self.driver.free(held));
    }
}

/// Slots into which all threads put allocations.
pub type Slots<H> = [Mutex<Option<Held<H>>>];

/// Puts an allocation into a slot drawn at random, and frees the previous allocation there, of any thread.
pub struct Exchange<'a, H> {
    pub driver: &'a H,
    pub touch: Touch,
    pub sizes: Sizes,
    pub slots: &'a Slots<H>,
}

impl<H: Driver> ThreadOps for Exchange<'_, H> {
    #[inline(always)]
    fn step(&mut self) -> bool {
        let Some(mut held) = self.driver.alloc(self.sizes.draw()) else { return false };
        held.touch(self.touch);
        let at = self.sizes.index(self.slots.len());
        // No thread panics with the lock held.
        let old = self.slots[at].lock().map(|mut slot| slot.replace(held));
        if let Ok(Some(old)) = old {
            self.driver.free(old);
        }
        true
    }

    fn finish(self) {
        let all = self.slots.iter().filter_map(|slot| slot.lock().ok()?.take());
        all.for_each(|held| self.driver.free(held));
    }
}

/// Attempts before a thread sleeps until the other thread sends.
const SPINS: usize = 200;

/// Allocates, touches and sends.
pub struct Producer<'a, H> {
    pub driver: &'a H,
    pub bytes: usize,
    pub touch: Touch,
    pub to: SyncSender<Held<H>>,
}

impl<H: Driver> ThreadOps for Producer<'_, H> {
    #[inline(always)]
    fn step(&mut self) -> bool {
        let Some(mut held) = self.driver.alloc(self.bytes) else { return false };
        held.touch(self.touch);
        for _ in 0..SPINS {
            match self.to.try_send(held) {
                Ok(()) => return true,
                Err(TrySendError::Full(back)) => held = back,
                Err(TrySendError::Disconnected(_)) => return false,
            }
            std::hint::spin_loop();
        }
        self.to.send(held).is_ok()
    }

    fn finish(self) {}
}

/// Frees each received allocation, until the sender is closed.
pub fn consume<H: Driver>(driver: &H, from: &Receiver<Held<H>>) {
    'all: loop {
        for _ in 0..SPINS {
            match from.try_recv() {
                Ok(held) => {
                    driver.free(held);
                    continue 'all;
                }
                Err(TryRecvError::Empty) => std::hint::spin_loop(),
                Err(TryRecvError::Disconnected) => return,
            }
        }
        match from.recv() {
            Ok(held) => driver.free(held),
            Err(_) => return,
        }
    }
}

/// Allocates zeros, touches and frees.
pub struct Calloc<'a, H> {
    pub driver: &'a H,
    pub bytes: usize,
}

impl<H: Driver> ThreadOps for Calloc<'_, H> {
    #[inline(always)]
    fn step(&mut self) -> bool {
        let Some(mut held) = self.driver.zeroed(self.bytes) else { return false };
        assert!(held.is_zero(), "zeros were asked for");
        held.touch(Touch::Pages);
        self.driver.free(held);
        true
    }

    fn finish(self) {}
}

/// Fills one allocation with zeros, which is then resident, and touches it as `Calloc` does.
pub struct Memset<'a, H> {
    driver: &'a H,
    held: Option<Held<H>>,
}

impl<'a, H: Driver> Memset<'a, H> {
    pub fn new(driver: &'a H, bytes: usize) -> Self {
        Self { driver, held: driver.alloc(bytes) }
    }
}

impl<H: Driver> ThreadOps for Memset<'_, H> {
    #[inline(always)]
    fn step(&mut self) -> bool {
        let Some(held) = &mut self.held else { return false };
        held.fill();
        assert!(held.is_zero(), "zeros were written");
        held.touch(Touch::Pages);
        true
    }

    fn finish(self) {
        if let Some(held) = self.held {
            self.driver.free(held);
        }
    }
}

/// Grows an allocation.
pub struct Grow<'a, H> {
    pub driver: &'a H,
    pub low: usize,
    pub high: usize,
    pub growth: Growth,
}

/// Bytes of a step, and of the allocation after it.
const STEP_BYTES: usize = 1 << 20;
const NEIGHBOUR_BYTES: usize = 150_000;

impl<H: Driver> ThreadOps for Grow<'_, H> {
    fn step(&mut self) -> bool {
        let mut bytes = self.low;
        let mut neighbours = Vec::new();
        let Some(mut held) = self.driver.alloc(bytes) else { return false };
        held.touch(Touch::Pages);
        while bytes < self.high {
            let more = match self.growth {
                Growth::Half => bytes + bytes / 2,
                Growth::Double => 2 * bytes,
                Growth::Steps => bytes + STEP_BYTES,
            };
            let more = more.min(self.high);
            match self.driver.resize(held, more) {
                Some(grown) => held = grown,
                None => return false,
            }
            held.touch_from(bytes);
            bytes = more;
            if self.growth == Growth::Steps {
                let Some(mut neighbour) = self.driver.alloc(NEIGHBOUR_BYTES) else { return false };
                neighbour.touch(Touch::Byte);
                neighbours.push(neighbour);
            }
        }
        self.driver.free(held);
        neighbours.into_iter().for_each(|neighbour| self.driver.free(neighbour));
        true
    }

    fn finish(self) {}
}
