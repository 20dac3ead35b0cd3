//! A space beside its reference model.

use super::SimChunks;
use crate::machine::SimMachine;
use std::collections::BTreeMap;
use va_base::{Machine, Va};
use va_percpu::engine::HintEngine;
use va_percpu::{
    AllocError, Config, Context, FreeError, Geometry, Offset, PercpuSpace, Place, Request, Sizes,
};

/// Small: 16 pages a unit. The first chunk has 5 of them for objects, neither beginning nor ending at a page.
pub const SIZES: Sizes = Sizes {
    unit: 64 << 10,
    fixed: 5000,
    reserved: 2052,
    dynamic: 20_484,
    atom: 64 << 10,
    alloc: 128 << 10,
    units: 2,
};

/// Address of the first chunk.
const BASE: Va = Va::new(0x10_0000_0000);

/// An operation on a space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Allocates an object.
    Alloc {
        /// Bytes.
        size: u32,
        /// Bytes.
        align: u32,
        /// The caller cannot wait.
        atomic: bool,
        /// From the reserved section.
        reserved: bool,
    },
    /// Frees a live object.
    Free(u32),
    /// Frees at an offset after the start of an object that is or was live.
    Wrong(u32, u32),
    /// Allocates so many bytes at an offset after the start of an object that is or was live.
    Place {
        /// The number of the object.
        which: u32,
        /// Bytes.
        behind: u32,
        /// Bytes.
        size: u32,
    },
    /// One step of the balance.
    Tick,
    /// The balance, to its end.
    Balance,
    /// The backend fails after so many more requests; from 200 on it never fails.
    FailAfter(u8),
}

/// A live object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Live {
    /// The allocated object.
    pub offset: Offset,
    /// Bytes, in whole words.
    pub bytes: u32,
}

/// A space with policies `C` on a machine `M`, and its live objects.
#[derive(Debug)]
pub struct Harness<C: Config, M: Machine = SimMachine> {
    /// The space.
    pub space: PercpuSpace<M, SimChunks, C>,
    /// The live objects, by address of the copy in the first unit.
    live: BTreeMap<u64, Live>,
    /// In the order in which they were allocated.
    order: Vec<u64>,
    /// Starts that were freed and may be free.
    dead: Vec<u64>,
}

impl<C: Config> Harness<C> {
    /// Returns a space of [`SIZES`].
    #[must_use]
    pub fn new() -> Self {
        Self::of(SIZES)
    }

    /// Returns a space of any sizes.
    #[must_use]
    pub fn of(sizes: Sizes) -> Self {
        Self::on(SimMachine::new(2), sizes)
    }
}

impl<C: Config, M: Machine> Harness<C, M> {
    /// Returns a space of any sizes on a machine of the caller.
    pub fn on(machine: M, sizes: Sizes) -> Self {
        let geometry = Geometry::new(sizes, BASE).expect("sizes that go together");
        let space = PercpuSpace::new(geometry, machine, SimChunks::default()).expect("memory for records");
        Self { space, live: BTreeMap::new(), order: Vec::new(), dead: Vec::new() }
    }

    /// Returns the live objects.
    pub fn live(&self) -> impl ExactSizeIterator<Item = &Live> {
        self.live.values()
    }

    /// Returns true if `bytes` from an address on overlap an object.
    fn meets(&self, at: u64, bytes: u32) -> bool {
        let before = self.live.range(..at).next_back();
        before.is_some_and(|(start, live)| start + u64::from(live.bytes) > at)
            || self.live.range(at..at + u64::from(bytes)).next().is_some()
    }

    /// Runs an operation and checks its result. Returns the error of an alloc that failed.
    ///
    /// # Panics
    /// If the result is wrong.
    pub fn apply(&mut self, op: Op) -> Option<AllocError> {
        let mut failed = None;
        match op {
            Op::Alloc { size, align, atomic, reserved } => {
                let context = if atomic { Context::Atomic } else { Context::Sleeping };
                let place = if reserved { Place::Reserved } else { Place::Anywhere };
                let request = Request::new(size as usize, align as usize).context(context).place(place);
                failed = self.alloc(&request).err();
            }
            Op::Free(which) if !self.order.is_empty() => {
                let at = self.order.swap_remove(which as usize % self.order.len());
                self.free(at);
            }
            Op::Wrong(which, behind) => self.free_wrong(which, behind),
            Op::Place { which, behind, size } => self.place(which, behind, size),
            Op::Tick => {
                let _more = self.space.tick();
            }
            Op::Balance => {
                self.space.balance();
                self.after_balance();
            }
            Op::FailAfter(after) => {
                let count = if after < 200 { after.into() } else { u64::MAX };
                self.space.backend().fail_after(count);
            }
            Op::Free(_) => {}
        }
        let stats = self.space.stats();
        assert_eq!(stats.live, self.live.len() as u64);
        assert_eq!(stats.chunks as usize, self.space.backend().chunks() + 1);
        let own = (u64::from(SIZES.fixed) + u64::from(SIZES.reserved) + u64::from(SIZES.dynamic)) / 4096;
        if *self.space.geometry().sizes() == SIZES {
            assert_eq!(stats.populated_pages, own + self.space.backend().populated() as u64);
        }
        failed
    }

    /// Allocates an object, and checks that it overlaps no other object, or that a failure changed nothing.
    ///
    /// # Errors
    /// The space's.
    pub fn alloc(&mut self, request: &Request) -> Result<Offset, AllocError> {
        let (size, align) = request.parts();
        let before = self.space.stats();
        match self.space.alloc(request) {
            Ok(offset) => {
                let (at, bytes) = (offset.at(BASE).get(), (size as u32).next_multiple_of(4));
                assert!(at.is_multiple_of(align.max(4) as u64), "{offset} is not aligned to {align}");
                assert!(!self.meets(at, bytes), "{offset} was allocated twice");
                let found = self.space.find(offset).expect("a chunk");
                let there = self.space.backend().is_populated(found.base, found.off..found.off + bytes);
                assert!(there != Some(false), "{offset} lies in a page that is not populated");
                assert!(
                    there.is_some()
                        || (at > BASE.get() && at < BASE.get() + u64::from(SIZES.unit).max(1 << 20))
                );
                if C::Engine::BY_FITS && C::CLASS_WORDS == 0 && found.chunk > 0 && request.waits() {
                    let lowest = self.lowest(found.base.get(), bytes, align.max(4) as u64);
                    assert_eq!(lowest, at, "{bytes} bytes fit lower in chunk {}", found.chunk);
                }
                self.live.insert(at, Live { offset, bytes });
                self.order.push(at);
                Ok(offset)
            }
            Err(error) => {
                let after = self.space.stats();
                // Pages populated before the one that failed remain, and so does a chunk created for it.
                let counts = |stats: va_percpu::Stats| (stats.allocs, stats.frees, stats.live, stats.bytes);
                assert_eq!(counts(before), counts(after), "{error}");
                if before.chunks == after.chunks {
                    // Idle slabs may have been freed.
                    assert!(before.free_bytes <= after.free_bytes, "{error}");
                    assert!(C::CLASS_WORDS > 0 || before.free_bytes == after.free_bytes, "{error}");
                }
                Err(error)
            }
        }
    }

    /// Returns the lowest address of a chunk where so much is free, by a walk over live objects.
    fn lowest(&self, base: u64, bytes: u32, align: u64) -> u64 {
        let mut at = base;
        for (start, live) in self.live.range(base..base + u64::from(self.space.geometry().unit_bytes())) {
            if at + u64::from(bytes) <= *start {
                break;
            }
            at = (start + u64::from(live.bytes)).next_multiple_of(align);
        }
        at
    }

    /// Places an object, and checks that it succeeds exactly where all is free, by a walk over live objects.
    fn place(&mut self, which: u32, behind: u32, size: u32) {
        let (Some(start), bytes) = (self.start_of(which), size.next_multiple_of(4)) else { return };
        let at = start + u64::from(behind);
        let offset = Offset::new(at.wrapping_sub(BASE.get()));
        let before = self.space.stats();
        let of = |at: u64| self.space.find(Offset::new(at.wrapping_sub(BASE.get())));
        let chunk = of(at).filter(|found| {
            found.chunk > 0
                && of(at + u64::from(bytes.max(1)) - 1).is_some_and(|last| last.chunk == found.chunk)
        });
        match self.space.alloc_at(offset, size as usize) {
            Ok(()) => {
                assert!(at.is_multiple_of(4) && !self.meets(at, bytes), "{offset} was allocated twice");
                let found = self.space.find(offset).expect("a chunk");
                let there = self.space.backend().is_populated(found.base, found.off..found.off + bytes);
                assert!(there != Some(false), "{offset} lies in a page that is not populated");
                self.live.insert(at, Live { offset, bytes });
                self.order.push(at);
            }
            Err(error) => {
                assert_eq!(before.live, self.space.stats().live, "{error}");
                // A slot may be longer than its object.
                let before = self.live.range(..at).next_back();
                let slot = before.is_some_and(|(start, _)| at - start < u64::from(C::CLASS_WORDS * 4));
                let free = chunk.is_some() && at.is_multiple_of(4) && !slot && !self.meets(at, bytes);
                assert!(!free || !matches!(error, AllocError::NotFree { .. }), "{error}");
            }
        }
    }

    /// Returns the address of an object that is or was live.
    fn start_of(&self, which: u32) -> Option<u64> {
        let (live, all) = (self.order.len(), self.order.len() + self.dead.len());
        let nth = which as usize % all.max(1);
        self.order.get(nth).or_else(|| self.dead.get(nth - live)).copied()
    }

    fn free(&mut self, at: u64) {
        let live = self.live.remove(&at).expect("an object that lives");
        self.space.free(live.offset).expect("it lives");
        self.dead.push(at);
        // A second free of the same object is an error.
        if !self.live.contains_key(&at) {
            assert!(self.space.free(live.offset).is_err());
        }
    }

    fn free_wrong(&mut self, which: u32, behind: u32) {
        let Some(start) = self.start_of(which) else { return };
        let at = start + u64::from(behind);
        if self.live.contains_key(&at) {
            return;
        }
        let before = self.space.stats();
        let offset = Offset::new(at.wrapping_sub(BASE.get()));
        // An object is whole words, whatever the requested bytes.
        let inside = self.live.range(..=at).next_back();
        let inside = inside.filter(|(start, live)| *start + u64::from(live.bytes.next_multiple_of(4)) > at);
        match self.space.free(offset) {
            Err(FreeError::NoObject { inside: reported, .. }) => {
                // A slot may be longer than its object: the bytes after the object are inside, too.
                let slot = self.live.range(..=at).next_back().filter(|(start, _)| {
                    C::CLASS_WORDS > 0 && inside.is_none() && at - *start < u64::from(C::CLASS_WORDS * 4)
                });
                let reported_slot = reported.is_some() && reported == slot.map(|(_, live)| live.offset);
                assert!(
                    reported_slot || reported == inside.map(|(_, live)| live.offset),
                    "{offset}: {reported:?}"
                );
            }
            Err(FreeError::NoChunk { .. }) => assert!(inside.is_none(), "{offset}"),
            other => panic!("{offset}: {other:?}"),
        }
        assert_eq!(before, self.space.stats());
    }

    /// Checks the state after a balance.
    fn after_balance(&self) {
        assert_eq!(self.space.backend().stale(), 0, "pages were depopulated and not flushed");
        let (mut idle, unit) = (0, self.space.geometry().unit_bytes());
        self.space.each_chunk(&mut |chunk| {
            idle += u32::from(chunk.free_bytes == unit && chunk.populated_pages == 0);
        });
        // A chunk that became wholly free while others were depopulated is left to the next pass, if it has pages.
        assert!(idle <= 1 + self.space.stats().isolated, "{idle} chunks hold nothing, not even pages");
    }
}

impl<C: Config> Default for Harness<C> {
    fn default() -> Self {
        Self::new()
    }
}
