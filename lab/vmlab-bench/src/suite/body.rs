//! The body of each test, for one execution.
//!
//! # Theory
//! The tests match the kernel's call by call: the allocations, their order, the byte they write and the reasons for
//! failure. A test's array of pointers is allocated from the target, as in the kernel; its values are stored here. An
//! interruption takes effect between two calls; then everything is freed, and the execution is not counted.
//!
//! # Source
//! Linux `lib/test_vmalloc.c` (6.12, 7.1), for the behaviour.

use super::case::Case;
use super::params::Params;
use super::rcu::{Caller, Deferred};
use super::target::{Ask, Worker};
use std::sync::atomic::{AtomicBool, Ordering};
use va_base::PAGE_SIZE;
use va_sim::op::Rng;

/// The outcome of an execution.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    Well,
    Badly,
    /// It was interrupted.
    Early,
}

/// One worker with its parameters.
pub(super) struct Body<'a> {
    pub(super) worker: &'a mut dyn Worker,
    pub(super) deferred: Deferred<'a>,
    pub(super) rng: Rng,
    pub(super) params: &'a Params,
    /// CPUs online.
    pub(super) cpus: u32,
    pub(super) stop: &'a AtomicBool,
}

/// Areas that make the list of busy areas long.
const BUSY: usize = 15_000;
/// Twice the alignment of a thread's stack on x86-64.
const STACK_ALIGN: u64 = 32 << 10;
/// Bytes of a pointer.
const POINTER: u64 = 8;

/// Returns a request for `count` pages.
const fn pages(count: u64) -> Ask {
    Ask::bytes(count * PAGE_SIZE)
}

impl Body<'_> {
    /// Executes a test.
    pub(super) fn execute(&mut self, case: Case) -> Ended {
        match case {
            Case::FixSize => self.fix_size(),
            Case::FullFit => self.full_fit(),
            Case::LongBusyList => self.long_busy_list(),
            Case::RandomSize => self.random_size(),
            Case::FixAlign => self.pairs(|_| Ask::zeros(5 * PAGE_SIZE, STACK_ALIGN), None),
            Case::RandomSizeAlign => self.pairs(random_size_align, None),
            Case::AlignShift => self.align_shift(),
            Case::Pcpu => self.pcpu(),
            Case::KvfreeRcu1 => self.kvfree_rcu(Caller::MaySleep),
            Case::KvfreeRcu2 => self.kvfree_rcu(Caller::Atomic),
            Case::VmMapRam => self.vm_map_ram(),
            Case::NoBlock => self.no_block(),
            Case::Vrealloc => self.vrealloc(),
        }
    }

    /// Frees all deferred allocations.
    pub(super) fn end(&mut self) {
        let Self { worker, deferred, .. } = self;
        deferred.end(&mut |at| worker.vfree(at));
    }

    #[inline(always)]
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Allocates, writes a byte if there is one, and frees, in each loop of the test.
    #[inline(always)]
    fn pairs(&mut self, ask: impl Fn(&mut Rng) -> Ask, byte: Option<u8>) -> Ended {
        for _ in 0..self.params.test_loop_count {
            if self.stopped() {
                return Ended::Early;
            }
            let ask = ask(&mut self.rng);
            let Some(at) = self.worker.vmalloc(&ask) else { return Ended::Badly };
            if let Some(byte) = byte {
                self.worker.write(at, byte);
            }
            self.worker.vfree(at);
        }
        Ended::Well
    }

    fn fix_size(&mut self) -> Ended {
        let ask = Ask { huge: self.params.use_huge, ..pages(self.params.nr_pages.into()) };
        self.pairs(|_| ask, Some(0))
    }

    fn random_size(&mut self) -> Ended {
        self.pairs(|rng| pages(1 + rng.below(100)), Some(1))
    }

    fn no_block(&mut self) -> Ended {
        let ask = Ask { no_block: true, ..pages(self.params.nr_pages.into()) };
        // The kernel's test draws one of two flags that forbid sleeping; they are equal here.
        let toss = |rng: &mut Rng| (rng.below(2), ask).1;
        self.pairs(toss, Some(0))
    }

    /// Allocates an array of `count` pointers, and calls `fill` with a vector for them. Then frees the allocations in
    /// it.
    fn with_pointers(
        &mut self,
        count: usize,
        fill: impl FnOnce(&mut Self, &mut Vec<Option<u64>>) -> Ended,
    ) -> Ended {
        let Some(array) = self.worker.vmalloc(&Ask::bytes(POINTER * count as u64)) else {
            return Ended::Badly;
        };
        let mut pointers = Vec::with_capacity(count);
        let ended = fill(self, &mut pointers);
        pointers.into_iter().flatten().for_each(|at| self.worker.vfree(at));
        self.worker.vfree(array);
        ended
    }

    fn long_busy_list(&mut self) -> Ended {
        self.with_pointers(BUSY, |body, busy| {
            for _ in 0..BUSY {
                if body.stopped() {
                    return Ended::Early;
                }
                busy.push(body.worker.vmalloc(&pages(1)));
            }
            for _ in 0..body.params.test_loop_count {
                if body.stopped() {
                    return Ended::Early;
                }
                let Some(large) = body.worker.vmalloc(&pages(100)) else { return Ended::Badly };
                let Some(small) = body.worker.vmalloc(&pages(1)) else {
                    body.worker.vfree(large);
                    return Ended::Badly;
                };
                body.worker.write(large, 0);
                body.worker.write(small, 1);
                body.worker.vfree(large);
                body.worker.vfree(small);
            }
            Ended::Well
        })
    }

    fn full_fit(&mut self) -> Ended {
        // As many as are lazy before a purge: 32 MiB for each binary digit of the number of CPUs.
        let count = (u32::BITS - self.cpus.leading_zeros()) as usize * (32 << 20) / PAGE_SIZE as usize;
        self.with_pointers(count, |body, live| {
            let ended = body.with_pointers(count, |body, junk| {
                for _ in 0..count {
                    if body.stopped() {
                        return Ended::Early;
                    }
                    live.push(body.worker.vmalloc(&pages(1)));
                    junk.push(body.worker.vmalloc(&pages(1)));
                }
                junk.drain(..).flatten().for_each(|at| body.worker.vfree(at));
                body.pairs(|_| pages(1), Some(1))
            });
            live.drain(..).flatten().for_each(|at| body.worker.vfree(at));
            ended
        })
    }

    fn align_shift(&mut self) -> Ended {
        for shift in 0..u64::BITS {
            let Some(at) = self.worker.vmalloc(&Ask::zeros(PAGE_SIZE, 1 << shift)) else {
                return Ended::Badly;
            };
            self.worker.vfree(at);
        }
        Ended::Well
    }

    fn pcpu(&mut self) -> Ended {
        let count = self.params.nr_pcpu_objects as usize;
        let Some(array) = self.worker.vmalloc(&Ask::bytes(POINTER * count as u64)) else {
            return Ended::Badly;
        };
        let mut objects = Vec::with_capacity(count);
        let mut ended = Ended::Well;
        for _ in 0..count {
            if self.stopped() {
                ended = Ended::Early;
                break;
            }
            let (bytes, align) = (1 + self.rng.below(PAGE_SIZE / 4), 2 << self.rng.below(11));
            match self.worker.pcpu_alloc(bytes, align) {
                Some(at) => objects.push(at),
                None => ended = Ended::Badly,
            }
        }
        objects.into_iter().for_each(|at| self.worker.pcpu_free(at));
        self.worker.vfree(array);
        ended
    }

    fn kvfree_rcu(&mut self, caller: Caller) -> Ended {
        for _ in 0..self.params.test_loop_count {
            if self.stopped() {
                return Ended::Early;
            }
            let Some(at) = self.worker.vmalloc(&pages(1)) else { return Ended::Badly };
            let section = self.deferred.section();
            self.worker.write(at, b'a');
            drop(section);
            let worker = &mut self.worker;
            self.deferred.defer(at, caller, &mut |at| worker.vfree(at));
        }
        Ended::Well
    }

    fn vm_map_ram(&mut self) -> Ended {
        let Self { worker, params, stop, .. } = self;
        let Some(mut ram) = worker.pages(params.nr_pages.into()) else { return Ended::Badly };
        for _ in 0..params.test_loop_count {
            if stop.load(Ordering::Relaxed) {
                return Ended::Early;
            }
            // The kernel's test would write through a null pointer here.
            if !ram.map_write_unmap(b'a') {
                return Ended::Badly;
            }
        }
        Ended::Well
    }

    fn vrealloc(&mut self) -> Ended {
        /// The sizes, one after the other.
        const BYTES: [u64; 5] = [PAGE_SIZE, 4 * PAGE_SIZE, PAGE_SIZE, PAGE_SIZE / 2, PAGE_SIZE];
        for _ in 0..self.params.test_loop_count {
            if self.stopped() {
                return Ended::Early;
            }
            let Some(mut at) = self.worker.vmalloc(&Ask::bytes(BYTES[0])) else { return Ended::Badly };
            self.worker.write(at, b'a');
            let resized = BYTES.windows(2).all(|sizes| {
                let resized = self.worker.vrealloc(at, sizes[0], sizes[1]);
                at = resized.unwrap_or(at);
                resized.is_some() && self.worker.holds(at, b'a')
            });
            self.worker.vfree(at);
            if !resized {
                return Ended::Badly;
            }
        }
        Ended::Well
    }
}

/// Requests up to ten pages at an alignment of up to 4 MiB, both from one random byte.
fn random_size_align(rng: &mut Rng) -> Ask {
    let random = rng.below(256);
    Ask::zeros((random % 10 + 1) * PAGE_SIZE, 1 << (random % 23))
}
