//! The flush of all CPUs: one request at a time, an interrupt to each CPU, an acknowledgement by each.
//!
//! ```text
//!   flusher:  lock > write the request, number n > interrupt the others > forget here > wait for n from each > unlock
//!   others:                      the interrupt: read the request > forget > acknowledge n
//! ```
//! Page tables were changed before the call, so a CPU that forgets a translation cannot load the old one again. The
//! request does not change while a CPU reads it, since the flusher waits for all of them.
//!
//! # No deadlock
//! The core calls `flush` under locks of `Machine::PurgeLock` alone, which are [`WaitLock`]s. A CPU that waits for one
//! of these has its interrupts enabled, and acknowledges meanwhile: of two flushers, the second serves the first. A CPU
//! with interrupts disabled holds an [`IrqLock`](crate::lock::IrqLock) or serves an interrupt, which takes no lock. A
//! holder of such a lock does not flush, which [`flush`](Shootdown::flush) checks, and waits for nothing but another
//! such lock, in one order. So it enables interrupts after a bounded time.

use crate::cpus::{CPUS_MAX, Cpus};
use crate::lock::WaitLock;
use core::hint::spin_loop;
use core::sync::atomic::{AtomicU64, Ordering::*};
use va_base::{Va, VaRange, sync::Mutex};

/// Above so many pages a CPU forgets everything: one step, in place of one for each page.
const PAGES_MAX: u64 = 32;

/// The state of flushes.
pub struct Shootdown<C: Cpus> {
    lock: Mutex<WaitLock<C>, ()>,
    /// The number of the request, which is that of requests so far.
    pub number: AtomicU64,
    /// Its pages from the first to the end; none for all.
    pages: [AtomicU64; 2],
    /// The number that each CPU acknowledged last.
    served: [AtomicU64; CPUS_MAX],
    /// CPUs that are left out, a bit each: zero, but for a test that must notice.
    pub omitted: AtomicU64,
    /// Interrupts so far.
    pub interrupts: AtomicU64,
}

impl<C: Cpus> Shootdown<C> {
    /// No request: a constant, for a static.
    #[allow(clippy::new_without_default, reason = "a kernel has one, in a static")]
    pub const fn new() -> Self {
        Self {
            lock: Mutex::new(()),
            number: AtomicU64::new(0),
            pages: [const { AtomicU64::new(0) }; 2],
            served: [const { AtomicU64::new(0) }; CPUS_MAX],
            omitted: AtomicU64::new(0),
            interrupts: AtomicU64::new(0),
        }
    }

    /// Removes all translations of `ranges` from all CPUs, and returns the number of the request once that is done.
    ///
    /// # Panics
    /// If interrupts are disabled: two CPUs that flush so would wait for each other.
    pub fn flush(&self, ranges: &[VaRange]) -> u64 {
        assert!(C::takes_interrupts(), "a flush with interrupts disabled");
        let _lock = self.lock.lock();
        let used = || ranges.iter().filter(|range| !range.is_empty()).map(|range| range.whole_pages());
        let (from, to) = (used().map(|pages| pages.0).min(), used().map(|pages| pages.1).max());
        let hull = from.zip(to).filter(|(from, to)| to - from <= PAGES_MAX).unwrap_or_default();
        self.pages[0].store(hull.0, Relaxed);
        self.pages[1].store(hull.1, Relaxed);
        let number = self.number.load(Relaxed) + 1;
        // Release: a CPU that reads the number reads the pages, and the page tables as they are now.
        self.number.store(number, Release);
        let targets = C::online() & !self.omitted.load(Relaxed);
        let others = (0..C::POSSIBLE).filter(|&cpu| targets >> cpu & 1 == 1 && cpu != C::this());
        for cpu in others.clone() {
            self.interrupts.fetch_add(1, Relaxed);
            C::interrupt(cpu);
        }
        if targets >> C::this() & 1 == 1 {
            self.serve();
        }
        for cpu in others {
            // Acquire: what that CPU did with the pages happened before their next use.
            while self.served[cpu].load(Acquire) != number {
                spin_loop();
            }
        }
        number
    }

    /// Does what the request asks of this CPU, and acknowledges it. Called by the interrupt: it takes no lock.
    pub fn serve(&self) {
        let number = self.number.load(Acquire);
        let [from, to] = self.pages.each_ref().map(|page| page.load(Relaxed));
        match to {
            0 => C::forget_all(),
            _ => (from..to).for_each(|page| C::forget(Va::from_page(page))),
        }
        self.served[C::this()].store(number, Release);
    }
}
