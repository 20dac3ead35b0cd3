//! The areas and objects of a kernel, as its events and its table describe them, at any time of a trace or while the
//! kernel runs.
//!
//! # Theory
//! A table of areas is read between two marks among the events ([`mod@crate::standing`]). Before the first mark, events
//! apply to what was known; the table replaces it at the second mark. So a table can be read again after a loss.
//!
//! No event says which areas a purge returned: as many as the event counts, and the oldest first. An area whose
//! addresses are allocated again was returned before, although the event of its purge comes later. Purged areas in the
//! pools of nodes are in no table and in no event. They are free here.
//!
//! # Invariants
//! - **LV1 apart** areas do not overlap.
//! - **LV2 counted** the areas and bytes of callers are those of the busy areas, and of the objects.

use crate::entry::Happening;
use crate::event::{Event, Line};
use crate::jsonl::Item;
use crate::stack::{NO_STACK, Unmatched};
use crate::standing::standing;
use crate::vmallocinfo::{Table, symbol};
use std::collections::{BTreeMap, HashMap};
use vmlab_base::choice::Choice;

/// The most areas that are stored, the most objects, and the most callers.
const AREAS_MAX: usize = 1 << 20;
const CALLERS_MAX: usize = 1 << 14;
/// The most bytes of an object that are believed, so that sums do not overflow.
const OBJECT_BYTES_MAX: u64 = 1 << 40;
/// Characters of a caller's name that are stored.
const NAME_CHARS: usize = 80;
/// Bytes of a per-CPU chunk if no table shows one.
const CHUNK_BYTES: u64 = 2 << 20;
/// The most events that are stored while a table is read.
const BETWEEN_MAX: usize = 1 << 20;
/// The name of all callers beyond the limit.
const OTHERS: &str = "(other callers)";

/// The memory of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Areas of the address space.
    Area,
    /// Objects of per-CPU memory.
    Percpu,
}

impl Choice for Kind {
    const CHOICES: &'static [Self] = &[Self::Area, Self::Percpu];

    fn choice(self) -> &'static str {
        match self {
            Self::Area => "area",
            Self::Percpu => "percpu",
        }
    }

    fn about(self) -> &'static str {
        match self {
            Self::Area => "Areas of the address space",
            Self::Percpu => "Objects of per-CPU memory, the copies of all CPUs",
        }
    }
}

/// The counts of a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Its name.
    pub name: String,
    /// Its memory.
    pub kind: Kind,
    /// Allocations since the beginning.
    pub allocs: u64,
    /// Frees since the beginning.
    pub frees: u64,
    /// Bytes that were allocated since the beginning.
    pub alloc_bytes: u64,
    /// Busy areas, or objects that were allocated since the beginning.
    pub live: u64,
    /// Their bytes.
    pub live_bytes: u64,
}

/// The counts of all events since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Areas that were allocated.
    pub allocs: u64,
    /// Requests for areas that failed.
    pub failed: u64,
    /// Areas that were freed.
    pub frees: u64,
    /// Purges.
    pub purges: u64,
    /// Areas that they returned.
    pub purged: u64,
    /// Objects of per-CPU memory that were allocated.
    pub percpu_allocs: u64,
    /// Requests for such objects that failed.
    pub percpu_failed: u64,
    /// Objects that were freed.
    pub percpu_frees: u64,
    /// Chunks that were created.
    pub chunks_created: u64,
    /// Chunks that were destroyed.
    pub chunks_destroyed: u64,
    /// Events that were lost.
    pub lost: u64,
    /// Areas that were freed or reused without an event.
    pub inferred: u64,
}

/// An area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// Bytes, guard page included.
    pub bytes: u64,
    /// An index into [`Live::callers`].
    pub caller: u32,
    /// If it is freed and not yet purged: a number that grows with each free.
    pub lazy: Option<u64>,
    /// True if it is a chunk of per-CPU memory.
    pub chunk: bool,
}

/// An event that waits for its stack.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    start: u64,
    bytes: u64,
}

/// A table that is being read.
#[derive(Debug)]
struct Reading {
    table: Table,
    /// The name of its marks.
    name: &'static str,
    /// The events since the first mark; none before it.
    between: Option<Vec<Event>>,
}

/// The state.
#[derive(Debug, Default)]
pub struct Live {
    areas: BTreeMap<u64, Area>,
    objects: HashMap<u64, (u32, u64)>,
    callers: Vec<Caller>,
    numbers: HashMap<(Kind, String), u32>,
    /// The lazy areas by age, and those that no event or table showed busy.
    lazy: BTreeMap<u64, u64>,
    age: u64,
    /// Lazy areas that were reused before the event of their purge.
    reused: u64,
    stacks: bool,
    unmatched: Unmatched<Waiting>,
    reading: Option<Reading>,
    chunk_bytes: Option<u64>,
    totals: Totals,
    /// Lazy pages, and the number from which on the kernel purges, by its last event.
    nr_lazy: Option<(u64, u64)>,
}

impl Live {
    /// Creates an empty state. With `stacks`, the caller of an area is in the call stack that follows its allocation;
    /// without, it is the task.
    pub fn new(stacks: bool) -> Self {
        Self { stacks, ..Self::default() }
    }

    /// Begins with a table that was read before the first event.
    pub fn stand_on(&mut self, table: Table) {
        self.reading = Some(Reading { table, name: "", between: Some(Vec::new()) });
        self.replace();
    }

    /// Supplies a table that was read between marks of that name, which are among the events to come.
    pub fn expect(&mut self, table: Table, name: &'static str) {
        self.reading = Some(Reading { table, name, between: None });
    }

    /// Sets the bytes of a chunk of per-CPU memory, unless a table of the beginning shows them.
    pub fn set_chunk_bytes(&mut self, bytes: Option<u64>) {
        self.chunk_bytes = self.chunk_bytes.or(bytes);
    }

    /// Takes an item of a trace. The tables of a recording are not taken: they are for [`Self::expect`].
    pub fn take(&mut self, item: &Item<'_>) {
        match item {
            Item::Event(entry) => {
                match (&entry.happening, entry.line()) {
                    (Happening::Mark { text }, _) => return self.mark(text),
                    (_, Line::Event(event)) => self.between(event),
                    _ => {}
                }
                let waiting = self.happening(&entry.happening, entry.task.as_deref());
                if self.stacks && entry.happening.has_stack() {
                    self.unmatched.push(entry.cpu, entry.pid, waiting);
                }
            }
            Item::Stack(stack) => {
                let Some(Waiting { start, bytes }) = self.unmatched.take(stack) else { return };
                if let Some(name) = stack.caller()
                    && let Some(&area) = self.areas.get(&start)
                    && area.bytes == bytes
                    && area.lazy.is_none()
                {
                    self.rename(start, area, name);
                }
            }
            Item::Lost(lost) => {
                self.totals.lost = self.totals.lost.saturating_add(lost.events.0);
                self.unmatched.clear();
            }
            Item::Header(_) | Item::Area(_) | Item::Stats(_) | Item::Summary(_) => {}
        }
    }

    /// Stores an event while a table is read.
    fn between(&mut self, event: Event) {
        if let Some(Reading { between: Some(between), .. }) = &mut self.reading
            && between.len() < BETWEEN_MAX
        {
            between.push(event);
        }
    }

    fn mark(&mut self, text: &str) {
        let Some(reading) = &mut self.reading else { return };
        let side = text.strip_prefix("vmlab ").and_then(|text| text.strip_prefix(reading.name));
        match side.map(str::trim) {
            Some("opens") => reading.between = Some(Vec::new()),
            Some("closes") if reading.between.is_some() => self.replace(),
            _ => {}
        }
    }

    /// Replaces the areas by those of the table and of the events while it was read.
    fn replace(&mut self) {
        let Some(Reading { table, between, .. }) = self.reading.take() else { return };
        let between = between.unwrap_or_default();
        let rows: Vec<_> = table.listed().collect();
        // The callers of areas that were seen when they were allocated are better known.
        let known = std::mem::take(&mut self.areas);
        self.callers.iter_mut().filter(|caller| caller.kind == Kind::Area).for_each(|caller| {
            (caller.live, caller.live_bytes) = (0, 0);
        });
        self.lazy.clear();
        self.reused = 0;
        let stood = standing(rows.iter().map(|row| (row.start, row.size, row.lazy)), between.iter().copied());
        for area in stood {
            let name = &table.callers()[rows[area.line].caller as usize];
            let before = known.get(&area.start).filter(|before| before.bytes == area.size && !area.lazy);
            let caller = before.map_or_else(|| self.number(Kind::Area, name), |before| before.caller);
            let chunk = name == "pcpu_get_vm_areas";
            let lazy = area.lazy.then(|| self.next_age());
            self.insert(area.start, Area { bytes: area.size, caller, lazy, chunk });
        }
        self.chunk_bytes = table.chunk_bytes(0).or(self.chunk_bytes);
        let totals = self.totals;
        for event in between {
            // These events were counted when they came, and had callers then.
            let caller = match event {
                Event::Alloc { addr, .. } => known.get(&addr).map(|area| area.caller),
                _ => None,
            };
            self.event(event, |live| caller.unwrap_or_else(|| live.number(Kind::Area, NO_STACK)));
        }
        self.totals = totals;
    }

    /// Applies an event, and returns what its stack is about.
    fn happening(&mut self, happening: &Happening<'_>, task: Option<&str>) -> Waiting {
        let none = Waiting { start: 0, bytes: 0 };
        match *happening {
            Happening::AllocArea { va_start, size, align, vstart, vend, failed } => {
                let event = Event::Alloc { addr: va_start, size, align, vstart, vend, failed: failed != 0 };
                let stacks = self.stacks;
                let caller = self.event(event, |live| match task {
                    _ if stacks => live.number(Kind::Area, NO_STACK),
                    Some(task) => live.number(Kind::Area, &format!("task {task}")),
                    None => live.number(Kind::Area, "(unknown)"),
                });
                if let Some(caller) = caller {
                    let caller = &mut self.callers[caller as usize];
                    caller.allocs += 1;
                    caller.alloc_bytes = caller.alloc_bytes.saturating_add(size);
                    return Waiting { start: va_start, bytes: size };
                }
            }
            Happening::FreeArea { va_start, nr_lazy, nr_lazy_max } => {
                if let Some(caller) = self.event(Event::Free { addr: va_start }, |_| 0) {
                    self.callers[caller as usize].frees += 1;
                }
                if let (Some(pages), Some(most)) = (nr_lazy, nr_lazy_max) {
                    self.nr_lazy = Some((pages, most));
                }
            }
            Happening::Purge { num_purged, .. } => {
                self.event(Event::Purge { purged: num_purged }, |_| 0);
                self.nr_lazy = None;
            }
            Happening::CreateChunk { base_addr } => {
                self.event(Event::ChunkCreate { base: base_addr }, |live| {
                    live.number(Kind::Area, "pcpu_get_vm_areas")
                });
            }
            Happening::DestroyChunk { base_addr } => {
                self.event(Event::ChunkDestroy { base: base_addr }, |_| 0);
            }
            Happening::AllocPercpu { ref call_site, size, ptr, bytes_alloc, .. } => {
                self.totals.percpu_allocs += 1;
                let site = call_site.as_deref().map_or("(unknown)", |site| symbol(site).unwrap_or(site));
                let number = self.number(Kind::Percpu, site);
                let bytes = bytes_alloc.unwrap_or(size).min(OBJECT_BYTES_MAX);
                self.free_object(ptr);
                let full = self.objects.len() >= AREAS_MAX;
                let caller = &mut self.callers[number as usize];
                caller.allocs += 1;
                caller.alloc_bytes = caller.alloc_bytes.saturating_add(bytes);
                if !full {
                    caller.live += 1;
                    caller.live_bytes = caller.live_bytes.saturating_add(bytes);
                    self.objects.insert(ptr, (number, bytes));
                }
            }
            Happening::FreePercpu { ptr, .. } => {
                self.totals.percpu_frees += 1;
                if let Some(number) = ptr.and_then(|ptr| self.free_object(ptr)) {
                    self.callers[number as usize].frees += 1;
                }
            }
            Happening::FailPercpu { .. } => self.totals.percpu_failed += 1,
            Happening::Mark { .. }
            | Happening::Enter { .. }
            | Happening::Leave { .. }
            | Happening::LockBegin { .. }
            | Happening::LockEnd { .. } => {}
        }
        none
    }

    /// Applies an event; returns the caller of its area, if there is one.
    fn event(&mut self, event: Event, caller: impl FnOnce(&mut Self) -> u32) -> Option<u32> {
        match event {
            Event::Alloc { failed: true, .. } => self.totals.failed += 1,
            Event::Alloc { addr, size, .. } => {
                self.totals.allocs += 1;
                let caller = caller(self);
                self.insert(addr, Area { bytes: size, caller, lazy: None, chunk: false });
                return Some(caller);
            }
            Event::Free { addr } => {
                self.totals.frees += 1;
                let (area, age) = (self.remove(addr), self.next_age());
                // Those that no table showed have a limit of their own: hostile input may free any number of them.
                if area.is_some() || self.lazy.len() < AREAS_MAX {
                    self.lazy.insert(age, addr);
                }
                match area {
                    Some(area) => {
                        self.areas.insert(addr, Area { lazy: Some(age), ..area });
                        return Some(area.caller);
                    }
                    None => self.totals.inferred += 1,
                }
            }
            Event::Purge { purged } => {
                self.totals.purges += 1;
                self.totals.purged = self.totals.purged.saturating_add(purged);
                let early = self.reused.min(purged);
                self.reused -= early;
                for _ in early..purged {
                    let Some((age, start)) = self.lazy.pop_first() else { break };
                    if self.areas.get(&start).is_some_and(|area| area.lazy == Some(age)) {
                        self.areas.remove(&start);
                    }
                }
            }
            Event::ChunkCreate { base } => {
                self.totals.chunks_created += 1;
                let bytes = self.chunk_bytes.unwrap_or(CHUNK_BYTES);
                let caller = caller(self);
                self.insert(base, Area { bytes, caller, lazy: None, chunk: true });
            }
            Event::ChunkDestroy { .. } => self.totals.chunks_destroyed += 1,
        }
        None
    }

    /// Inserts an area, in place of those that it overlaps (LV1). An empty one, or one beyond the last address, is
    /// ignored.
    fn insert(&mut self, start: u64, area: Area) {
        let Some(end) = start.checked_add(area.bytes).filter(|&end| end > start) else { return };
        let below = self.areas.range(..start).next_back().filter(|(at, below)| *at + below.bytes > start);
        let first = below.map_or(start, |(&at, _)| at);
        let overlapped: Vec<u64> = self.areas.range(first..end).map(|(&at, _)| at).collect();
        for at in overlapped {
            match self.remove(at) {
                Some(Area { lazy: Some(_), .. }) => self.reused += 1,
                Some(_) => self.totals.inferred += 1,
                None => {}
            }
        }
        if self.areas.len() >= AREAS_MAX {
            return;
        }
        if let Some(age) = area.lazy {
            self.lazy.insert(age, start);
        } else {
            let caller = &mut self.callers[area.caller as usize];
            caller.live += 1;
            caller.live_bytes = caller.live_bytes.saturating_add(area.bytes);
        }
        self.areas.insert(start, area);
    }

    /// Removes the area that starts at `start`.
    fn remove(&mut self, start: u64) -> Option<Area> {
        let area = self.areas.remove(&start)?;
        if let Some(age) = area.lazy {
            self.lazy.remove(&age);
        } else {
            let caller = &mut self.callers[area.caller as usize];
            caller.live -= 1;
            caller.live_bytes -= area.bytes;
        }
        Some(area)
    }

    /// Gives an area, and its allocation, to the caller that its stack names.
    fn rename(&mut self, start: u64, area: Area, name: &str) {
        let number = self.number(Kind::Area, name);
        let from = &mut self.callers[area.caller as usize];
        from.live -= 1;
        from.live_bytes -= area.bytes;
        from.allocs = from.allocs.saturating_sub(1);
        from.alloc_bytes = from.alloc_bytes.saturating_sub(area.bytes);
        let to = &mut self.callers[number as usize];
        to.live += 1;
        to.live_bytes = to.live_bytes.saturating_add(area.bytes);
        to.allocs += 1;
        to.alloc_bytes = to.alloc_bytes.saturating_add(area.bytes);
        self.areas.insert(start, Area { caller: number, ..area });
    }

    fn next_age(&mut self) -> u64 {
        self.age += 1;
        self.age
    }

    fn free_object(&mut self, ptr: u64) -> Option<u32> {
        let (number, bytes) = self.objects.remove(&ptr)?;
        let caller = &mut self.callers[number as usize];
        caller.live -= 1;
        caller.live_bytes -= bytes;
        Some(number)
    }

    /// Returns the index of a caller.
    fn number(&mut self, kind: Kind, name: &str) -> u32 {
        let name: String = name.chars().take(NAME_CHARS).collect();
        let full = self.callers.len() >= CALLERS_MAX;
        let key = (kind, name);
        if let Some(&number) = self.numbers.get(&key) {
            return number;
        }
        let key = if full { (kind, OTHERS.to_string()) } else { key };
        if let Some(&number) = self.numbers.get(&key) {
            return number;
        }
        let number = self.callers.len() as u32;
        let (allocs, frees, alloc_bytes, live, live_bytes) = (0, 0, 0, 0, 0);
        let name = key.1.clone();
        self.callers.push(Caller { name, kind, allocs, frees, alloc_bytes, live, live_bytes });
        self.numbers.insert(key, number);
        number
    }

    /// Returns the areas that are not free, in address order.
    pub fn areas(&self) -> impl Iterator<Item = (u64, &Area)> + '_ {
        self.areas.iter().map(|(&start, area)| (start, area))
    }

    /// Returns the callers. An index stays valid.
    pub fn callers(&self) -> &[Caller] {
        &self.callers
    }

    /// Returns the counts of events.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Returns the lazy pages, and the number from which on the kernel purges, by the kernel's last free since the last
    /// purge.
    pub fn nr_lazy(&self) -> Option<(u64, u64)> {
        self.nr_lazy
    }

    /// Returns true if a table is expected whose marks have not come.
    pub fn is_reading(&self) -> bool {
        self.reading.is_some()
    }

    /// Checks LV1 and LV2 with a full walk.
    ///
    /// # Errors
    /// The first difference.
    pub fn validate(&self) -> Result<(), String> {
        let mut sums = vec![(0u64, 0u64); self.callers.len()];
        let mut end = 0;
        for (start, area) in self.areas() {
            if start < end {
                return Err(format!("LV1: {start:#x} is in an area that ends at {end:#x}"));
            }
            end = start + area.bytes;
            if area.lazy.is_none() {
                sums[area.caller as usize].0 += 1;
                sums[area.caller as usize].1 += area.bytes;
            }
        }
        for &(caller, bytes) in self.objects.values() {
            let sum = &mut sums[caller as usize];
            *sum = (sum.0 + 1, sum.1.saturating_add(bytes));
        }
        for (caller, sum) in self.callers.iter().zip(sums) {
            if (caller.live, caller.live_bytes) != sum {
                return Err(format!("LV2: {} has {caller:?}, and its areas {sum:?}", caller.name));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "live/tests.rs"]
mod tests;
