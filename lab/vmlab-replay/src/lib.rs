//! Runs the events of a trace through an index, and compares every address with the kernel's.
//!
//! # Rules
//! The space begins empty, all of `[1, 2^64 - 1)`, as Linux's does. An allocation is requested from the index with the
//! kernel's size, alignment and window. If the answers differ, ours is freed and the kernel's range is allocated
//! instead, so that one difference does not cause the next.
//!
//! A freed area becomes lazy and its range stays allocated. A purge frees all lazy ranges, from the highest down: the
//! kernel walks them upward and prepends each to a list. (The order cannot change which ranges are free, but it
//! determines the shape of a tree, and with it Linux's aligned addresses.)
//!
//! # Invariants
//! - **RP1 one-column** every allocation of the trace is counted as exactly one of equal, lower, higher, failed-both
//!   and failed-differs, whatever the trace contains.
//!
//! # Inference
//! Facts that events do not report are inferred, and each inference is counted:
//! - a percpu chunk shows only its base; its size is in `vmallocinfo`, or assumed to be 2 MiB;
//! - a range that is freed without a recorded allocation existed before the trace, or is a `vm_map_ram` block;
//! - a range that the kernel allocates while we still hold it was freed on a path without events.

#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod diff;
pub mod index_kind;
pub mod percpu;
pub mod run;
pub mod run_space;
pub mod space;
pub mod state;
pub mod timing;

use std::collections::BTreeMap;
use std::io::Read;
use va_base::{Request, Va, VaRange};
use va_tree::{Congruent, FreeIndex};
use vmlab_machine::kernel_extent;
use vmlab_trace::vmallocinfo::Table;
use vmlab_trace::{Event, Trace, decompress};

/// Bytes of a percpu chunk's area if its size is unknown.
pub const CHUNK_BYTES: u64 = 2 << 20;

/// Returns the window that most allocations of the trace name: the kernel's vmalloc range.
pub fn default_window(trace: &Trace) -> VaRange {
    let mut counts: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for event in &trace.events {
        if let Event::Alloc { vstart, vend, .. } = *event {
            *counts.entry((vstart, vend)).or_default() += 1;
        }
    }
    let most = counts.into_iter().max_by_key(|&(window, count)| (count, window));
    most.and_then(|((start, end), _)| VaRange::new(Va::new(start), Va::new(end))).unwrap_or(kernel_extent())
}

/// The comparison of results. RP1: every allocation is in exactly one of the first five.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The same address.
    pub equal: u64,
    /// A lower address than the kernel's.
    pub lower: u64,
    /// A higher one.
    pub higher: u64,
    /// Both failed.
    pub failed_both: u64,
    /// Exactly one failed.
    pub failed_differs: u64,
    /// Facts that events do not report and that were inferred.
    pub inferred: u64,
    /// Inferred facts about percpu chunks.
    pub chunks: u64,
    /// Chunks whose size was unknown and assumed to be 2 MiB.
    pub chunks_guessed: u64,
    /// Chunks whose base equals the one that the index finds.
    pub chunks_equal: u64,
    /// Events whose numbers no allocator would accept (sizes that are not pages, inverted windows).
    pub malformed: u64,
    /// The first answers that differ: all of `lower`, `higher` and `failed_differs`, if there is room.
    pub first_differences: Vec<Differs>,
}

/// One answer that differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Differs {
    /// Number of the allocation, from 1.
    pub number: u64,
    /// Line of the trace, from 1; set by [`Replay::run`].
    pub line: Option<u64>,
    /// Requested bytes.
    pub size: u64,
    /// Requested alignment.
    pub align: u64,
    /// The kernel's result.
    pub kernel: Option<u64>,
    /// The result of the index.
    pub ours: Option<u64>,
}

/// Number of differences that are stored.
const FIRST_DIFFERENCES_MAX: usize = 32;

/// A call on the index, as the replay made it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// Allocate the lowest fit.
    Alloc(Request),
    /// Allocate exactly this range.
    Take(VaRange),
    /// Free this range.
    Free(VaRange),
}

/// A replay in progress.
pub struct Replay<'a, I> {
    /// The index.
    pub index: I,
    /// The kernel's busy areas, start to size.
    pub busy: BTreeMap<u64, u64>,
    /// The areas that the kernel has freed and not yet purged.
    pub lazy: BTreeMap<u64, u64>,
    /// The result so far.
    pub tally: Tally,
    /// Every call on the index that was meant to change it.
    pub calls: Vec<Call>,
    table: &'a Table,
    window: VaRange,
    allocs: u64,
}

impl<'a, I: FreeIndex> Replay<'a, I> {
    /// Begins with an index of an empty space.
    pub fn new(index: I, window: VaRange, table: &'a Table) -> Self {
        Self {
            index,
            busy: BTreeMap::new(),
            lazy: BTreeMap::new(),
            tally: Tally::default(),
            calls: Vec::new(),
            table,
            window,
            allocs: 0,
        }
    }

    /// Replays all events of a trace, and sets the lines of the differences.
    pub fn run(&mut self, trace: &Trace) {
        for event in &trace.events {
            self.step(event);
        }
        for differs in &mut self.tally.first_differences {
            differs.line = trace.alloc_line(differs.number);
        }
    }

    /// Replays one event.
    pub fn step(&mut self, event: &Event) {
        match *event {
            Event::Alloc { addr, size, align, vstart, vend, failed } => {
                self.allocs += 1;
                self.alloc(addr, size, align, (vstart, vend), failed);
            }
            Event::Free { addr } => match self.busy.remove(&addr) {
                Some(size) => {
                    self.lazy.insert(addr, size);
                }
                None => self.tally.inferred += 1,
            },
            Event::Purge { purged } => {
                if purged > 0 {
                    for (start, size) in std::mem::take(&mut self.lazy).into_iter().rev() {
                        self.free(start, size);
                    }
                }
            }
            Event::ChunkCreate { base } => self.chunk(base),
            // Its areas become lazy by free events of their own.
            Event::ChunkDestroy { .. } => {}
        }
    }

    fn alloc(&mut self, addr: u64, size: u64, align: u64, (vstart, vend): (u64, u64), failed: bool) {
        let window = VaRange::new(Va::new(vstart), Va::new(vend));
        let (Ok(request), Some(window)) = (Request::new(size, align), window) else {
            self.tally.malformed += 1;
            // The index would fail, too.
            if failed {
                self.tally.failed_both += 1;
            } else {
                self.tally.failed_differs += 1;
                self.differs(size, align, Some(addr), None);
            }
            return;
        };
        let request = request.within(window);
        self.calls.push(Call::Alloc(request));
        let ours = self.index.alloc(&request).ok().map(Va::get);
        let kernel = (!failed).then_some(addr);
        let tally = &mut self.tally;
        match (ours, kernel) {
            (None, None) => tally.failed_both += 1,
            (Some(ours), Some(kernel)) if ours == kernel => tally.equal += 1,
            (Some(ours), Some(kernel)) if ours < kernel => tally.lower += 1,
            (Some(_), Some(_)) => tally.higher += 1,
            (Some(_), None) | (None, Some(_)) => tally.failed_differs += 1,
        }
        if ours != kernel {
            self.differs(size, align, kernel, ours);
            if let Some(ours) = ours {
                self.free(ours, size);
            }
            let taken = match kernel {
                Some(kernel) => self.take_anyway(kernel, size),
                None => return,
            };
            if !taken {
                self.tally.malformed += 1;
                return;
            }
        } else if ours.is_some() {
            self.forget_overlaps(addr, size);
        }
        if let Some(kernel) = kernel {
            self.busy.insert(kernel, size);
        }
    }

    /// Records that the answers to the current allocation differ.
    fn differs(&mut self, size: u64, align: u64, kernel: Option<u64>, ours: Option<u64>) {
        if self.tally.first_differences.len() < FIRST_DIFFERENCES_MAX {
            let number = self.allocs;
            self.tally.first_differences.push(Differs { number, line: None, size, align, kernel, ours });
        }
    }

    /// Allocates `[start, start + size)`. First frees our areas there: the kernel freed them without an event.
    fn take_anyway(&mut self, start: u64, size: u64) -> bool {
        let Some(range) = VaRange::from_size(Va::new(start), size) else { return false };
        for (start, size) in self.forget_overlaps(start, size) {
            self.free(start, size);
        }
        self.calls.push(Call::Take(range));
        self.index.take(range).is_ok()
    }

    /// Removes our areas that overlap a range that the kernel allocates; returns them.
    fn forget_overlaps(&mut self, start: u64, size: u64) -> Vec<(u64, u64)> {
        let end = start.saturating_add(size);
        let mut gone = Vec::new();
        for held in [&mut self.busy, &mut self.lazy] {
            while let Some((&at, &len)) = held.range(..end).next_back()
                && at.saturating_add(len) > start
            {
                held.remove(&at);
                self.tally.inferred += 1;
                gone.push((at, len));
            }
        }
        gone
    }

    fn free(&mut self, start: u64, size: u64) {
        if let Some(range) = VaRange::from_size(Va::new(start), size) {
            self.calls.push(Call::Free(range));
            // The index had allocated every range that this side holds: a failure is a bug, and shows as a difference
            // of counts.
            let back = self.index.free(range);
            debug_assert!(back.is_ok(), "{back:?}");
        }
    }

    fn chunk(&mut self, base: u64) {
        let known = self.table.chunk_bytes(base);
        let size = known.unwrap_or(CHUNK_BYTES);
        self.tally.inferred += 1;
        self.tally.chunks += 1;
        self.tally.chunks_guessed += u64::from(known.is_none());
        // The alignment of a chunk is its atom, which is no larger than the unit: the lowest set bit of the size.
        let areas = [(0, size)];
        let atom = 1 << size.trailing_zeros();
        if let Ok(request) = Congruent::new(&areas, atom) {
            let ours = self.index.find_congruent(&request.within(self.window));
            self.tally.chunks_equal += u64::from(ours == Ok(Va::new(base)));
        }
        if self.take_anyway(base, size) {
            self.busy.insert(base, size);
        } else {
            self.tally.malformed += 1;
        }
    }

    /// Returns the largest free range inside the default window, in bytes.
    pub fn largest_in_window(&self) -> u64 {
        largest_in(&self.index, self.window)
    }
}

/// Returns the largest free range of `index` inside `window`, in bytes.
pub fn largest_in(index: &impl FreeIndex, window: VaRange) -> u64 {
    let clip = |hole: VaRange| {
        hole.end().min(window.end()).get().saturating_sub(hole.start().max(window.start()).get())
    };
    let mut largest = 0;
    let mut at = window.start();
    while let Some(hole) = index.hole_after(at) {
        if hole.start() >= window.end() {
            break;
        }
        largest = largest.max(clip(hole));
        at = hole.end();
    }
    largest
}

/// The body of the fuzz target `trace_text`: for any bytes, reading and replaying them ends with a result.
pub fn fuzz(data: &[u8]) {
    let Ok(input) = decompress(data) else { return };
    // A decompression bomb of a few bytes may expand to gigabytes: limit the input.
    let trace = Trace::read(input.take(1 << 20));
    let table = Table::read(data);
    fuzz_trace(&trace, &table);
    let Ok(input) = decompress(data) else { return };
    diff::fuzz(&diff::recording::Recording::read(input.take(1 << 20)));
}

/// Replays a fuzzer's trace on every production index and space, and checks that the counts add up (RP1).
fn fuzz_trace(trace: &Trace, table: &Table) {
    struct Check<'a>(&'a Trace, &'a Table, VaRange);
    impl index_kind::Visitor for Check<'_> {
        type Out = ();
        fn visit<I: FreeIndex>(self, make: impl Fn() -> Result<I, va_base::AllocError>) {
            let Ok(index) = make() else { return };
            let mut replay = Replay::new(index, self.2, self.1);
            replay.run(self.0);
            let tally = &replay.tally;
            let sum = tally.equal + tally.lower + tally.higher + tally.failed_both + tally.failed_differs;
            assert_eq!(sum, self.0.allocs(), "RP1");
            if let Err(broken) = replay.index.validate() {
                panic!("{broken}");
            }
        }
    }
    let window = default_window(trace);
    for kind in index_kind::ALL {
        kind.visit(kernel_extent(), window, Check(trace, table, window));
    }
    space::fuzz(trace, table);
}

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests {
    use super::*;
    use va_sim::model::ModelIndex;

    fn replayed(text: &str, table: &Table) -> (Tally, u64) {
        let trace = Trace::read(text.as_bytes());
        let window = default_window(&trace);
        let index = ModelIndex::new(kernel_extent(), window).unwrap();
        let mut replay = Replay::new(index, window, table);
        replay.run(&trace);
        (replay.tally.clone(), replay.index.hole_count())
    }

    fn alloc(addr: u64, size: u64, align: u64, failed: u8) -> String {
        format!(
            "alloc_vmap_area: va_start: {addr} size={size} align={align} vstart=0x100000 vend=0x200fff failed={failed}\n"
        )
    }

    #[test]
    fn rp1_every_allocation_is_in_one_column() {
        let text = [
            alloc(0x10_0000, 0x2000, 1, 0),
            alloc(0x10_4000, 0x1000, 1, 0),
            alloc(0x10_2000, 0x2000, 4096, 0),
            // The kernel failed where there is room, and the reverse.
            alloc(0x20_0fff, 0x1000, 4096, 1),
            alloc(0x20_0fff, 0x8000_0000, 4096, 1),
            "# a comment\n".to_string(),
            alloc(0x10_5800, 0x10, 3, 0),
        ]
        .concat();
        let (tally, _) = replayed(&text, &Table::default());
        assert_eq!((tally.equal, tally.lower, tally.higher), (2, 1, 0));
        assert_eq!((tally.failed_both, tally.failed_differs, tally.malformed), (1, 2, 1));
        // A request that no allocator accepts is listed with the others.
        let named: Vec<_> = tally.first_differences.iter().map(|d| (d.number, d.line)).collect();
        assert_eq!(named, [(2, Some(2)), (4, Some(4)), (6, Some(7))]);
    }

    #[test]
    fn what_is_freed_comes_back_at_the_next_purge_only() {
        let free = "free_vmap_area_noflush: va_start=0x100000 nr_lazy=2 nr_lazy_max=9\n";
        let idle = "purge_vmap_area_lazy: start=0xffffffffffffffff end=0x0 num_purged=0\n";
        let purge = "purge_vmap_area_lazy: start=0x100000 end=0x102000 num_purged=1\n";
        let first = alloc(0x10_0000, 0x2000, 1, 0);
        let text = [first.as_str(), free, idle, &alloc(0x10_2000, 0x1000, 1, 0), purge, &first].concat();
        let (tally, _) = replayed(&text, &Table::default());
        assert_eq!((tally.equal, tally.inferred), (3, 0));
    }

    #[test]
    fn what_events_do_not_show_is_inferred_and_counted() {
        let unknown = "free_vmap_area_noflush: va_start=0x7000 nr_lazy=2 nr_lazy_max=9\n";
        let chunk = "percpu_create_chunk: base_addr=0x200000\n";
        let again = alloc(0x10_0000, 0x2000, 1, 0);
        let text = [again.as_str(), unknown, chunk, &again].concat();
        let (tally, _) = replayed(&text, &Table::default());
        assert_eq!((tally.inferred, tally.chunks, tally.chunks_guessed), (3, 1, 1));
        // The second allocation of a range that we still hold: ours is higher.
        assert_eq!((tally.equal, tally.higher), (1, 1));
        let info = "0x200000-0x201000 4096 pcpu_get_vm_areas+0x0/0x1 vmalloc\n";
        let (tally, _) = replayed(chunk, &Table::read(info.as_bytes()));
        assert_eq!((tally.chunks, tally.chunks_guessed, tally.malformed), (1, 0, 0));
    }

    #[test]
    fn a_stored_call_is_small() {
        assert!(size_of::<Call>() <= 48);
    }

    #[test]
    fn bytes_that_are_no_text_do_no_harm() {
        let bytes: Vec<u8> = (0..=255).cycle().take(5000).collect();
        fuzz(&bytes);
        fuzz(&[]);
        fuzz(&[0x1f, 0x8b]);
        fuzz(&[0x28, 0xb5, 0x2f, 0xfd, 0, 0]);
    }
}
