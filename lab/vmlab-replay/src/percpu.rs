//! Runs the percpu events of a trace through our per-CPU memory, and compares the address of each object with the
//! kernel's.
//!
//! # Rules
//! The first chunk and the others are at the kernel's addresses, so that addresses can be compared directly. If the
//! answers differ, ours is freed and the kernel's address allocated instead, so that one difference does not cause the
//! next. Balance work that is due is done after each event; the kernel's worker did it a little later.
//!
//! # What the trace cannot know
//! Some objects were allocated before the first event, in the first chunk. Everything below the first recorded address
//! is assumed to have been one object. The addresses of others are unknown, and an object that the kernel put behind
//! one of them is lower here. A free of one of them is counted and ignored.
//!
//! # Invariants
//! - **RP3 one-column**  every allocation is counted as exactly one of equal, lower, higher, elsewhere and failed.

use crate::engine::CHUNK_BYTES;
use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use va_base::{PAGE_SIZE, Va};
use va_percpu::{
    Backend, BackendError, Config, Context, Geometry, Offset, PercpuSpace, Place, Request, Sizes,
};
use va_sim::areas::AreaMap;
use vmlab_machine::{LabMachine, PlainLock, Work};
use vmlab_trace::percpu::{PercpuEvent, PercpuTrace};
use vmlab_trace::vmallocinfo::Table;

/// Bytes of Linux's reserved section for modules, and of the dynamic section after it.
const RESERVED_BYTES: u32 = 8 << 10;
const DYNAMIC_BYTES: u32 = 28 << 10;

/// The comparison of results. RP3: every allocation is in exactly one of equal, lower, higher, elsewhere, failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PercpuTally {
    /// Allocations.
    pub allocs: u64,
    /// At the same address.
    pub equal: u64,
    /// In the same chunk, below.
    pub lower: u64,
    /// In the same chunk, above.
    pub higher: u64,
    /// In another chunk.
    pub elsewhere: u64,
    /// The policy failed, or does not accept such a request.
    pub failed: u64,
    /// Allocations that the kernel made in the first chunk; with the equal ones among them.
    pub first: u64,
    /// See `first`.
    pub first_equal: u64,
    /// Addresses of the kernel that could not be allocated instead.
    pub not_placed: u64,
    /// Frees of objects from before the first event.
    pub frees_unknown: u64,
    /// Bytes of the first chunk that are assumed to have been in use before the first event.
    pub assumed_bytes: u64,
    /// Chunks at the end, the first among them.
    pub chunks: u32,
}

/// Derives the geometry of the first chunk and of units from events.
fn geometry(trace: &PercpuTrace, table: &Table) -> Result<Geometry> {
    let mut parts = (u64::MAX, u64::MAX);
    let mut first = None;
    for event in &trace.events {
        if let PercpuEvent::Alloc { base, off, ptr, reserved, .. } = *event {
            let start = base.wrapping_add(off).wrapping_sub(ptr);
            let start = *first.get_or_insert(start);
            let within = base.wrapping_sub(start);
            if reserved {
                parts.0 = parts.0.min(within);
            } else {
                parts.1 = parts.1.min(within);
            }
        }
    }
    let Some(first) = first else { bail!("no percpu allocation") };
    let create = trace.events.iter().find_map(|event| match *event {
        PercpuEvent::Create { base } => Some(base),
        _ => None,
    });
    let bytes = create.and_then(|base| table.chunk_bytes(base)).unwrap_or(CHUNK_BYTES);
    let unit =
        u32::try_from(bytes / u64::from(trace.cpus.next_power_of_two())).context("units are too large")?;
    let reserved = if parts.0 == u64::MAX { 0 } else { RESERVED_BYTES };
    let fixed = u32::try_from(parts.1).ok().and_then(|dynamic| dynamic.checked_sub(reserved));
    let fixed = fixed.context(
        "the first chunk cannot be distinguished from the others, as in a recording that begins after the boot; replay --diff compares offsets there",
    )?;
    let units = trace.cpus.next_power_of_two();
    let sizes = Sizes {
        unit,
        fixed,
        reserved,
        dynamic: DYNAMIC_BYTES,
        atom: unit.max(PAGE_SIZE as u32).next_power_of_two(),
        alloc: unit,
        units,
    };
    Ok(Geometry::new(sizes, Va::new(first))?)
}

/// Chunks at the kernel's addresses, in the order in which it created them; further chunks are elsewhere.
struct Bases {
    coming: parking_lot::Mutex<VecDeque<u64>>,
    taken: parking_lot::Mutex<AreaMap>,
    made: std::sync::atomic::AtomicU64,
}

impl Bases {
    /// Reserves `bytes` from `base` on, if they are free.
    fn claim(&self, base: u64, bytes: u64) -> bool {
        let fits = base.checked_add(bytes).is_some() && base.is_multiple_of(bytes.next_power_of_two());
        fits && self.taken.lock().insert(base, bytes, ()).is_ok()
    }
}

impl Backend for Bases {
    const BY_PAGE: bool = true;

    fn create(&self, geometry: &Geometry) -> Result<Va, BackendError> {
        let bytes = u64::from(geometry.unit_bytes());
        if let Some(base) = self.coming.lock().pop_front()
            && self.claim(base, bytes)
        {
            return Ok(Va::new(base));
        }
        let step = bytes.next_power_of_two();
        for _ in 0..1 << 16 {
            let nth = self.made.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
            let base = nth.checked_mul(step).ok_or(BackendError)?;
            if self.claim(base, bytes) {
                return Ok(Va::new(base));
            }
        }
        Err(BackendError)
    }

    fn destroy(&self, _geometry: &Geometry, base: Va) {
        self.taken.lock().remove(base.get());
    }

    fn populate(&self, _geometry: &Geometry, _base: Va, _pages: Range<u32>) -> Result<(), BackendError> {
        Ok(())
    }

    fn depopulate(&self, _geometry: &Geometry, _base: Va, _pages: Range<u32>) {}

    fn flush(&self, _geometry: &Geometry, _base: Va, _pages: Range<u32>) {}

    /// Does nothing: there is no memory.
    #[inline(always)]
    fn zero(&self, _geometry: &Geometry, _base: Va, _off: u32, _bytes: u32) {}
}

struct Replay<C: Config> {
    space: PercpuSpace<LabMachine<PlainLock>, Bases, C>,
    tally: PercpuTally,
    /// Live objects, by address.
    live: BTreeMap<u64, Offset>,
}

/// Replays a trace under policies `C`.
///
/// # Errors
/// If the trace does not contain the size of units and the address of the first chunk.
pub fn replay<C: Config>(trace: &PercpuTrace, table: &Table) -> Result<PercpuTally> {
    let geometry = geometry(trace, table)?;
    let coming = trace.events.iter().filter_map(|event| match *event {
        PercpuEvent::Create { base } => Some(base),
        _ => None,
    });
    let bases = Bases {
        coming: parking_lot::Mutex::new(coming.collect()),
        taken: parking_lot::Mutex::default(),
        made: std::sync::atomic::AtomicU64::new(0),
    };
    bases.taken.lock().replace(geometry.base().get(), geometry.unit_bytes().into(), ());
    let units = geometry.sizes().units;
    let machine = LabMachine::new(units, units, Work::Here);
    let space = PercpuSpace::<_, _, C>::new(geometry, machine, bases)?;
    let mut replay = Replay { space, tally: PercpuTally::default(), live: BTreeMap::new() };
    replay.fill(trace);
    for event in &trace.events {
        replay.step(event);
        if replay.space.is_balance_due() {
            replay.space.balance();
        }
    }
    replay.tally.chunks = replay.space.stats().chunks;
    Ok(replay.tally)
}

impl<C: Config> Replay<C> {
    fn base(&self) -> u64 {
        self.space.geometry().base().get()
    }

    fn offset_of(&self, at: u64) -> Offset {
        Offset::new(at.wrapping_sub(self.base()))
    }

    /// Allocates everything below the first recorded address in the dynamic section of the first chunk.
    fn fill(&mut self, trace: &PercpuTrace) {
        let sizes = *self.space.geometry().sizes();
        let dynamic = self.base() + u64::from(sizes.fixed) + u64::from(sizes.reserved);
        let lowest = trace.events.iter().find_map(|event| match *event {
            PercpuEvent::Alloc { base, off, reserved: false, .. } => base.checked_add(off),
            _ => None,
        });
        let below = lowest
            .and_then(|lowest| lowest.checked_sub(dynamic))
            .filter(|&below| below < sizes.dynamic.into());
        if let Some(below) = below.filter(|&below| below > 0)
            && self.space.alloc_at(self.offset_of(dynamic), below as usize).is_ok()
        {
            self.tally.assumed_bytes = below;
        }
    }

    fn step(&mut self, event: &PercpuEvent) {
        match *event {
            PercpuEvent::Alloc { base, off, size, align, reserved, atomic, .. } => {
                self.alloc(base, off, [size, align], reserved, atomic);
            }
            PercpuEvent::Free { base, off } => match self.live.remove(&base.wrapping_add(off)) {
                Some(offset) => {
                    // The object is live.
                    let freed = self.space.free(offset);
                    debug_assert!(freed.is_ok(), "{freed:?}");
                }
                None => self.tally.frees_unknown += 1,
            },
            PercpuEvent::Create { .. } => {}
        }
    }

    fn alloc(&mut self, base: u64, off: u64, [size, align]: [u64; 2], reserved: bool, atomic: bool) {
        let kernel = base.wrapping_add(off);
        let end = self.base().saturating_add(self.space.geometry().unit_bytes().into());
        let of_first = (self.base()..end).contains(&kernel);
        self.tally.allocs += 1;
        self.tally.first += u64::from(of_first);
        // A live object there was freed without an event.
        if let Some(old) = self.live.remove(&kernel) {
            let _freed = self.space.free(old);
        }
        let (size, align) =
            (usize::try_from(size).unwrap_or(usize::MAX), usize::try_from(align).unwrap_or(usize::MAX));
        let place = if reserved { Place::Reserved } else { Place::Anywhere };
        let context = if atomic { Context::Atomic } else { Context::Sleeping };
        let request = Request::new(size, align).place(place).context(context);
        let ours = self.space.alloc(&request).ok();
        let found = ours.and_then(|ours| self.space.find(ours));
        let tally = &mut self.tally;
        match found {
            None => tally.failed += 1,
            Some(found) if found.base.get().wrapping_add(found.off.into()) == kernel => {
                tally.equal += 1;
                tally.first_equal += u64::from(of_first);
            }
            Some(found) if found.base.get() != base => tally.elsewhere += 1,
            Some(found) if u64::from(found.off) < off => tally.lower += 1,
            Some(_) => tally.higher += 1,
        }
        let theirs = self.offset_of(kernel);
        if ours != Some(theirs) {
            if let Some(ours) = ours {
                let freed = self.space.free(ours);
                debug_assert!(freed.is_ok(), "{freed:?}");
            }
            if self.space.alloc_at(theirs, size).is_err() {
                self.tally.not_placed += 1;
                return;
            }
        }
        self.live.insert(kernel, theirs);
    }
}

/// Replays a fuzzer's trace under every policy, and checks that the counts add up.
pub fn fuzz(trace: &PercpuTrace, table: &Table) {
    fn check<C: Config>(trace: &PercpuTrace, table: &Table) {
        let Ok(tally) = replay::<C>(trace, table) else { return };
        let sum = tally.equal + tally.lower + tally.higher + tally.elsewhere + tally.failed;
        assert_eq!(sum, tally.allocs, "RP3");
    }
    check::<va_percpu::config::Linux612>(trace, table);
    check::<va_percpu::config::Standard>(trace, table);
}
