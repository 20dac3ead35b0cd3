//! Magazines beside a reference model: a list of live objects, and the words that are not zero.

use super::{SIZES, SimChunks};
use crate::machine::SimMachine;
use std::collections::BTreeMap;
use va_base::Va;
use va_percpu::{Config, Context, FreeError, Geometry, Magazine, Offset, PercpuSpace, Request};

/// Address of the first chunk.
const BASE: Va = Va::new(0x10_0000_0000);
/// Magazines of a run.
pub const OWNERS: usize = 3;

/// An operation on a space with magazines. An owner below [`OWNERS`] is a magazine, another is the space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MagazineOp {
    /// Allocates objects of one shape.
    Alloc {
        /// The owner.
        owner: u8,
        /// Bytes.
        size: u32,
        /// Bytes.
        align: u32,
        /// The callers cannot wait.
        atomic: bool,
        /// Objects.
        count: u8,
    },
    /// Frees live objects.
    Free {
        /// The owner, which need not be the one that allocated them.
        owner: u8,
        /// The first.
        which: u32,
        /// Objects.
        count: u8,
    },
    /// Frees at an offset after the start of an object that is or was live.
    Wrong {
        /// The owner.
        owner: u8,
        /// The object.
        which: u32,
        /// Bytes.
        behind: u32,
    },
    /// Allocates the bytes of an object that was freed, at its offset.
    Place(u32),
    /// Drains the magazines of a CPU; from [`OWNERS`] on, all.
    Drain(u8),
    /// Ends a magazine and begins another.
    End(u8),
    /// One step of the balance.
    Tick,
    /// The balance, to its end.
    Balance,
    /// The backend fails after so many more requests; from 200 on it never fails.
    FailAfter(u8),
    /// The machine has so many more tables; from 200 on any number.
    TablesAfter(u8),
}

struct Run<'s, 'm, C: Config> {
    space: &'s PercpuSpace<&'m SimMachine, SimChunks, C>,
    machine: &'m SimMachine,
    magazines: [Option<Magazine<'s, &'m SimMachine, SimChunks, C>>; OWNERS],
    /// Bytes of live objects, by address.
    live: BTreeMap<u64, u32>,
    order: Vec<u64>,
    dead: Vec<u64>,
}

fn offset(at: u64) -> Offset {
    Offset::new(at.wrapping_sub(BASE.get()))
}

impl<C: Config> Run<'_, '_, C> {
    fn free_by(&mut self, owner: u8, at: u64) -> Result<(), FreeError> {
        match self.magazines.get_mut(usize::from(owner)) {
            Some(Some(magazine)) => magazine.free(offset(at)),
            _ => self.space.free(offset(at)),
        }
    }

    fn alloc(&mut self, owner: u8, request: &Request) {
        let before = self.space.stats();
        let got = match self.magazines.get_mut(usize::from(owner)) {
            Some(Some(magazine)) => magazine.alloc(request),
            _ => self.space.alloc(request),
        };
        let (size, align) = request.parts();
        let Ok(got) = got else {
            let after = self.space.stats();
            let counts = |stats: va_percpu::Stats| (stats.allocs, stats.frees, stats.live, stats.bytes);
            assert_eq!(counts(before), counts(after), "a failed alloc of {size} changed a count");
            // The objects of magazines went back to the chunks before.
            let bad = size == 0 || size > 32 << 10 || !align.max(4).is_power_of_two() || align > 4096;
            assert!(bad || after.cached_bytes == 0, "{size} failed beside cached objects");
            return;
        };
        let (at, bytes) = (got.at(BASE).get(), (size as u32).next_multiple_of(4));
        assert!(at.is_multiple_of(align.max(4) as u64), "{got} is not aligned to {align}");
        let before = self.live.range(..at + u64::from(bytes)).next_back();
        assert!(
            before.is_none_or(|(start, bytes)| start + u64::from(*bytes) <= at),
            "{got} was allocated twice"
        );
        let found = self.space.find(got).expect("a chunk");
        let backend = self.space.backend();
        assert!(backend.is_populated(found.base, found.off..found.off + bytes) != Some(false), "{got}");
        let zero = va_percpu::Backend::is_zero(backend, self.space.geometry(), found.base, found.off, bytes);
        assert_eq!(zero, Some(true), "{got} is not zero");
        backend.write(Va::new(at), bytes);
        self.live.insert(at, bytes);
        self.order.push(at);
    }

    fn free(&mut self, owner: u8, which: u32) {
        if self.order.is_empty() {
            return;
        }
        let at = self.order.swap_remove(which as usize % self.order.len());
        self.live.remove(&at).expect("it lives");
        self.free_by(owner, at).expect("it lives");
        self.dead.push(at);
        // A second free is an error, by any owner.
        for owner in 0..=OWNERS as u8 {
            let again = self.free_by(owner, at);
            assert!(
                matches!(again, Err(FreeError::NoObject { .. } | FreeError::NoChunk { .. })),
                "{again:?}"
            );
        }
    }

    fn wrong(&mut self, owner: u8, which: u32, behind: u32) {
        let all: Vec<u64> = self.live.keys().copied().chain(self.dead.iter().copied()).collect();
        let Some(start) = all.get(which as usize % all.len().max(1)) else { return };
        let at = start + u64::from(behind);
        if self.live.contains_key(&at) {
            return;
        }
        let before = (self.space.stats().live, self.space.stats().cached_bytes);
        match self.free_by(owner, at) {
            Err(FreeError::NoObject { inside: Some(of), .. }) => {
                let of = of.at(BASE).get();
                assert!(self.live.contains_key(&of) && of < at, "{at:#x} is inside no live object");
            }
            Err(FreeError::NoObject { .. } | FreeError::NoChunk { .. }) => {
                let object = self.live.range(..=at).next_back();
                assert!(object.is_none_or(|(start, bytes)| start + u64::from(*bytes) <= at), "{at:#x}");
            }
            other => panic!("{at:#x}: {other:?}"),
        }
        assert_eq!(before, (self.space.stats().live, self.space.stats().cached_bytes));
    }

    /// A dead object's bytes are free to a caller that places an object, in a magazine or not.
    fn place(&mut self, which: u32) {
        let Some(&at) = self.dead.get(which as usize % self.dead.len().max(1)) else { return };
        if self.space.alloc_at(offset(at), 4).is_ok() {
            let before = self.live.range(..at + 4).next_back();
            assert!(
                before.is_none_or(|(start, bytes)| start + u64::from(*bytes) <= at),
                "{at:#x} placed twice"
            );
            self.space.backend().write(Va::new(at), 4);
            self.live.insert(at, 4);
            self.order.push(at);
        }
    }

    fn apply(&mut self, op: MagazineOp) {
        match op {
            MagazineOp::Alloc { owner, size, align, atomic, count } => {
                let context = if atomic { Context::Atomic } else { Context::Sleeping };
                let request = Request::new(size as usize, align as usize).context(context);
                (0..count).for_each(|_| self.alloc(owner, &request));
            }
            MagazineOp::Free { owner, which, count } => (0..count).for_each(|_| self.free(owner, which)),
            MagazineOp::Wrong { owner, which, behind } => self.wrong(owner, which, behind),
            MagazineOp::Place(which) => self.place(which),
            MagazineOp::Drain(cpu) if usize::from(cpu) < OWNERS => {
                self.space.drain_cpu(cpu.into());
                self.space.each_magazine(&mut |of| assert!(of.cpu != cpu.into() || of.cached_bytes == 0));
            }
            MagazineOp::Drain(_) => {
                self.space.drain_magazines();
                assert_eq!(self.space.stats().cached_bytes, 0);
            }
            MagazineOp::End(owner) => {
                if let Some(magazine) = self.magazines.get_mut(usize::from(owner)) {
                    drop(magazine.take());
                    *magazine = self.space.magazine(owner.into()).ok();
                }
            }
            MagazineOp::Tick => {
                let _more = self.space.tick();
            }
            MagazineOp::Balance => {
                self.space.balance();
            }
            MagazineOp::FailAfter(after) => {
                self.space.backend().fail_after(if after < 200 { after.into() } else { u64::MAX });
            }
            MagazineOp::TablesAfter(after) => {
                self.machine.fail_after(u64::MAX, if after < 200 { after.into() } else { u64::MAX });
            }
        }
        assert_eq!(self.space.stats().live, self.live.len() as u64, "{op:?}");
        self.space.each_magazine(&mut |of| assert!(of.cached_bytes <= self.space.magazine_bytes().into()));
    }

    fn walk(&self) {
        if let Err(broken) = self.space.validate() {
            panic!("{broken}");
        }
    }
}

/// Runs operations on a space with [`OWNERS`] magazines, and checks each result; every `every` operations it walks over
/// all invariants. At the end all objects are freed and the magazines end.
///
/// # Panics
/// At the first broken guarantee or invariant.
pub fn run<C: Config>(ops: impl Iterator<Item = MagazineOp>, every: usize) {
    let machine = SimMachine::new(OWNERS as u32);
    let geometry = Geometry::new(SIZES, BASE).expect("sizes that go together");
    let space: PercpuSpace<&SimMachine, SimChunks, C> =
        PercpuSpace::new(geometry, &machine, SimChunks::with_contents()).expect("memory for records");
    let mut run = Run {
        space: &space,
        machine: &machine,
        magazines: std::array::from_fn(|cpu| space.magazine(cpu as u32).ok()),
        live: BTreeMap::new(),
        order: Vec::new(),
        dead: Vec::new(),
    };
    for (nth, op) in ops.enumerate() {
        run.apply(op);
        if nth % every == 0 {
            run.walk();
        }
    }
    run.walk();
    while !run.order.is_empty() {
        run.free((run.order.len() % (OWNERS + 1)) as u8, 0);
    }
    run.walk();
    drop(run);
    space.validate().expect("all is free");
    let stats = space.stats();
    assert_eq!((stats.live, stats.cached_bytes), (0, 0));
}
