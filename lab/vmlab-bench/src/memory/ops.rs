//! The operations of a thread of a child, one at a time.

use super::driver::{Driver, Held};
use super::task::{Growth, Touch};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError};

/// The operations of one thread.
pub(super) trait ThreadOps {
    /// Runs one operation; returns false if the allocation failed.
    fn step(&mut self) -> bool;
    /// Frees everything and restarts, so that the next operations do not depend on the earlier ones.
    fn restart(&mut self) {}
    /// Frees the remaining allocations.
    fn finish(self);
}

/// A sequence of numbers from a seed (xorshift64*).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
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
pub(super) struct Sizes {
    low: f64,
    doublings: f64,
    random: Random,
}

impl Sizes {
    pub(super) fn new((low, high): (usize, usize), seed: u64) -> Self {
        let doublings = (high as f64 / low as f64).log2();
        Self { low: low as f64, doublings, random: Random::new(seed) }
    }

    #[inline(always)]
    fn next(&mut self) -> usize {
        (self.low * (self.doublings * self.random.share()).exp2()) as usize
    }

    /// Draws an index below `count`.
    #[inline(always)]
    fn index(&mut self, count: usize) -> usize {
        (self.random.next() >> 32) as usize % count
    }
}

/// Allocates, touches and frees one size, aligned or not.
pub(super) struct Pair<'a, H> {
    pub(super) driver: &'a H,
    pub(super) bytes: usize,
    pub(super) align: Option<usize>,
    pub(super) touch: Touch,
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
pub(super) struct Mix<'a, H> {
    driver: &'a H,
    touch: Touch,
    sizes: Sizes,
    seed: u64,
    slots: Vec<Option<Held<H>>>,
}

impl<'a, H: Driver> Mix<'a, H> {
    pub(super) fn new(driver: &'a H, touch: Touch, range: (usize, usize), live: usize, seed: u64) -> Self {
        let slots = (0..live).map(|_| None).collect();
        Self { driver, touch, sizes: Sizes::new(range, seed), seed, slots }
    }
}

impl<H: Driver> ThreadOps for Mix<'_, H> {
    #[inline(always)]
    fn step(&mut self) -> bool {
        let bytes = self.sizes.next();
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
pub(super) type Slots<H> = [Mutex<Option<Held<H>>>];

/// Puts an allocation into a slot drawn at random, and frees the previous allocation there, of any thread.
pub(super) struct Exchange<'a, H> {
    pub(super) driver: &'a H,
    pub(super) touch: Touch,
    pub(super) sizes: Sizes,
    pub(super) slots: &'a Slots<H>,
}

impl<H: Driver> ThreadOps for Exchange<'_, H> {
    #[inline(always)]
    fn step(&mut self) -> bool {
        let Some(mut held) = self.driver.alloc(self.sizes.next()) else { return false };
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
pub(super) struct Producer<'a, H> {
    pub(super) driver: &'a H,
    pub(super) bytes: usize,
    pub(super) touch: Touch,
    pub(super) to: SyncSender<Held<H>>,
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
pub(super) fn consume<H: Driver>(driver: &H, from: &Receiver<Held<H>>) {
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
pub(super) struct Calloc<'a, H> {
    pub(super) driver: &'a H,
    pub(super) bytes: usize,
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
pub(super) struct Memset<'a, H> {
    driver: &'a H,
    held: Option<Held<H>>,
}

impl<'a, H: Driver> Memset<'a, H> {
    pub(super) fn new(driver: &'a H, bytes: usize) -> Self {
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
pub(super) struct Grow<'a, H> {
    pub(super) driver: &'a H,
    pub(super) low: usize,
    pub(super) high: usize,
    pub(super) growth: Growth,
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

#[cfg(test)]
mod tests {
    use super::super::driver::Malloc;
    use super::*;

    #[test]
    fn sizes_of_a_mix_are_even_over_doublings() {
        let mut random = Random::new(1);
        let mut counts = [0; 4];
        for _ in 0..4000 {
            counts[(4.0 * random.share()) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (900..1100).contains(count)), "{counts:?}");
        assert_ne!(Random::new(1).next(), Random::new(2).next());
    }

    #[test]
    fn a_mix_holds_as_many_as_requested() {
        let mut mix = Mix::new(&Malloc, Touch::Pages, (64 << 10, 256 << 10), 4, 1);
        (0..100).for_each(|_| assert!(mix.step()));
        assert!(mix.slots.iter().all(Option::is_some));
        mix.finish();
        for growth in [Growth::Half, Growth::Double, Growth::Steps] {
            let mut grow = Grow { driver: &Malloc, low: 1000, high: 3 << 20, growth };
            assert!(grow.step());
        }
    }

    #[test]
    fn an_exchange_leaves_one_in_each_place_and_frees_all_at_its_end() {
        let slots: Vec<_> = (0..4).map(|_| Mutex::new(None)).collect();
        let mut ops = Exchange {
            driver: &Malloc,
            touch: Touch::Byte,
            sizes: Sizes::new((1 << 10, 1 << 12), 3),
            slots: &slots,
        };
        (0..100).for_each(|_| assert!(ops.step()));
        assert!(slots.iter().all(|slot| slot.lock().unwrap().is_some()));
        ops.finish();
        assert!(slots.iter().all(|slot| slot.lock().unwrap().is_none()));
    }

    #[test]
    fn all_that_is_sent_is_freed_and_the_consumer_ends() {
        let (to, from) = std::sync::mpsc::sync_channel(4);
        std::thread::scope(|scope| {
            let consumer = scope.spawn(move || consume(&Malloc, &from));
            let mut producer = Producer { driver: &Malloc, bytes: 70_000, touch: Touch::Byte, to };
            (0..1000).for_each(|_| assert!(producer.step()));
            producer.finish();
            // The consumer ends by itself; otherwise this waits for ever.
            consumer.join().unwrap();
        });
    }
}
