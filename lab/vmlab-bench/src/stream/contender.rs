//! Contenders: their description, and the run of a stream of operations on one.

use super::workload::{FREE, Op, Workload};
use crate::indexes::{Drained, Holes};
use std::any::Any;
use std::cell::OnceCell;
use std::hint::black_box;
use std::time::{Duration, Instant};
use va_tree::IndexMemory;

/// The requests for which an index guarantees the lowest fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exactness {
    /// All requests.
    Always,
    /// For alignments up to a page.
    UpToPage,
    /// None.
    Never,
}

/// Creates the runner of a contender for a workload, if the contender supports it.
pub trait Make {
    /// Creates a runner for `workload`. It may borrow from its home, which lives as long.
    fn make<'a>(&self, workload: &Workload, home: &'a Home) -> Option<Box<dyn Runner + 'a>>;
}

impl<F: Fn(&Workload) -> Option<Box<dyn Runner>>> Make for F {
    fn make<'a>(&self, workload: &Workload, _: &'a Home) -> Option<Box<dyn Runner + 'a>> {
        self(workload)
    }
}

/// The owner of the data that a contender's runner borrows.
#[derive(Default)]
pub struct Home(OnceCell<Box<dyn Any>>);

impl Home {
    /// Stores the value of this home, once.
    pub fn store<T: Any>(&self, thing: T) -> Option<&T> {
        self.0.set(Box::new(thing)).ok()?;
        self.0.get()?.downcast_ref()
    }
}

/// A measured implementation.
pub struct Contender {
    pub name: &'static str,
    /// True if it supports alignments.
    pub aligns: bool,
    /// True if it supports windows.
    pub windows: bool,
    pub exactness: Exactness,
    pub make: Box<dyn Make>,
}

impl Contender {
    /// Returns true if its addresses on `workload` must be the lowest fits.
    pub fn exact(&self, workload: &Workload) -> bool {
        match self.exactness {
            Exactness::Always => true,
            Exactness::UpToPage => !workload.aligned,
            Exactness::Never => false,
        }
    }
}

/// A running contender. It is called once a round, so that the calls inside are direct.
pub trait Runner {
    /// Fills the space; returns false if that takes longer than until `deadline`.
    fn setup(&mut self, workload: &Workload, deadline: Instant) -> bool;
    /// Runs operations.
    fn play(&mut self, workload: &Workload, ops: &[Op]);
    /// Runs a round and returns its duration.
    fn round(&mut self, workload: &Workload, ops: &[Op]) -> Duration;
    /// Returns a hash of all addresses allocated in rounds.
    fn hash(&self) -> u64;
    /// See [`Holes::memory`].
    fn memory(&self) -> Option<(IndexMemory, u64)>;
    /// See [`Holes::drained`].
    fn drained(&self) -> Option<Drained>;
}

/// Marks an empty slot.
const NONE: u64 = u64::MAX;

pub struct Work<H> {
    index: H,
    slots: Vec<u64>,
    hash: u64,
}

impl<H: Holes> Work<H> {
    pub fn new(index: H, workload: &Workload) -> Self {
        Self { index, slots: vec![NONE; workload.slots], hash: 0 }
    }

    #[inline(always)]
    fn run(&mut self, op: &Op, window: (u64, u64)) {
        let slot = op.slot as usize;
        if op.align_log2 == FREE {
            if self.slots[slot] != NONE {
                self.index.free(self.slots[slot], u64::from(op.size));
            }
        } else {
            let at = self.index.alloc(u64::from(op.size), u32::from(op.align_log2), window).unwrap_or(NONE);
            self.slots[slot] = at;
            self.hash = (self.hash.rotate_left(5) ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }
}

impl<H: Holes> Runner for Work<H> {
    fn setup(&mut self, workload: &Workload, deadline: Instant) -> bool {
        for ops in workload.setup.chunks(512) {
            for op in ops {
                self.run(op, (0, workload.pages));
            }
            if Instant::now() > deadline {
                return false;
            }
        }
        self.hash = 0;
        true
    }

    #[inline(always)]
    fn play(&mut self, workload: &Workload, ops: &[Op]) {
        let window = workload.window.unwrap_or((0, workload.pages));
        for op in ops {
            self.run(op, window);
        }
        black_box(self.hash);
    }

    fn round(&mut self, workload: &Workload, ops: &[Op]) -> Duration {
        let start = Instant::now();
        self.play(workload, ops);
        start.elapsed()
    }

    fn hash(&self) -> u64 {
        self.hash
    }

    fn memory(&self) -> Option<(IndexMemory, u64)> {
        self.index.memory()
    }

    fn drained(&self) -> Option<Drained> {
        self.index.drained()
    }
}

/// Does nothing: its time is that of the harness.
struct Null(u64);

impl Holes for Null {
    #[inline(always)]
    fn alloc(&mut self, size: u64, _: u32, _: (u64, u64)) -> Option<u64> {
        self.0 = self.0.wrapping_add(size);
        Some(self.0 & 0xffff)
    }

    #[inline(always)]
    fn free(&mut self, start: u64, size: u64) {
        self.0 ^= start.wrapping_sub(size);
    }
}

/// Returns the contender whose time is that of the harness.
pub fn null() -> Contender {
    bare("null", (true, true), Exactness::Never, |_| Some(Null(0)))
}

pub fn bare<H: Holes + 'static>(
    name: &'static str,
    (aligns, windows): (bool, bool),
    exactness: Exactness,
    make: fn(u64) -> Option<H>,
) -> Contender {
    let make = move |workload: &Workload| -> Option<Box<dyn Runner>> {
        Some(Box::new(Work::new(make(workload.pages)?, workload)))
    };
    Contender { name, aligns, windows, exactness, make: Box::new(make) }
}
