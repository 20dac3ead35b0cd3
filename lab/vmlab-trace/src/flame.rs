//! Allocations by call stack: how many, how many bytes, how long they lived, and the holes that they keep apart.
//!
//! # Theory
//! An area that lives at the end keeps the hole below it from the space above. So that hole, down to the area that ends
//! below, counts for the stack of the area. Areas that were there before, or are not selected, end holes and count for
//! none.
//!
//! An allocation counts for the stack that follows it ([`crate::stack`]); without one it counts as "stack not
//! recorded", so that the sum is that of all allocations. It lives until its free, or until the last event.

use crate::Selection;
use crate::entry::Happening;
use crate::jsonl::{AreaLine, Item, When};
use crate::live::Kind;
use crate::stack::{NO_STACK, Unmatched, is_tracing};
use std::collections::{BTreeMap, HashMap};
use vmlab_base::choice::Choice;

/// The most stacks that are distinguished, and the most live allocations that are followed.
const STACKS_MAX: usize = 1 << 16;
const LIVE_MAX: usize = 1 << 20;
/// The only frame of allocations beyond the limit.
const OTHERS: &str = "(other stacks)";

/// The weight of a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// Bytes that were allocated
    #[default]
    Bytes,
    /// Allocations
    Count,
    /// Time from allocations to their frees, or to the end, added up, microseconds
    TimeLive,
    /// Bytes of holes below the areas that live at the end
    Fragmentation,
    /// Time that threads waited for the allocators' locks, nanoseconds
    LockTime,
}

impl Choice for By {
    const CHOICES: &'static [Self] =
        &[Self::Bytes, Self::Count, Self::TimeLive, Self::Fragmentation, Self::LockTime];

    fn choice(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Count => "count",
            Self::TimeLive => "time-live",
            Self::Fragmentation => "fragmentation",
            Self::LockTime => "lock-time",
        }
    }

    fn about(self) -> &'static str {
        match self {
            Self::Bytes => "Bytes that were allocated",
            Self::Count => "Allocations",
            Self::TimeLive => "Time from allocations to their frees, or to the end, added up, microseconds",
            Self::Fragmentation => "Bytes of holes below the areas that live at the end",
            Self::LockTime => "Time that threads waited for the allocators' locks, nanoseconds",
        }
    }
}

/// The weights of a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Weights {
    bytes: u64,
    count: u64,
    live_ns: u64,
}

/// An allocation that waits for its stack.
#[derive(Clone, Copy, Debug)]
struct Made {
    /// Its key, if it was not freed meanwhile.
    key: (Kind, u64),
    bytes: u64,
    ns: u64,
}

/// The allocations of a trace, by call stack.
#[derive(Clone, Debug, Default)]
pub struct Stacks {
    /// Frames joined by `;`, outermost first.
    numbers: HashMap<String, usize>,
    weights: Vec<Weights>,
    live: HashMap<(Kind, u64), (usize, u64)>,
    /// Every area that stands, selected or not: its start and bytes.
    standing: BTreeMap<u64, u64>,
    unmatched: Unmatched<Option<Made>>,
    /// The memory that counts; none if both do.
    only: Option<Kind>,
    /// The allocations that count.
    selection: Selection,
    any: bool,
    last_ns: u64,
}

impl Stacks {
    /// Counts the allocations of one kind of memory, or of both.
    pub fn of(only: Option<Kind>) -> Self {
        Self { only, ..Self::default() }
    }

    /// Counts the allocations of a selection alone. They live at most until its end.
    pub fn within(self, selection: Selection) -> Self {
        Self { selection, ..self }
    }

    /// Takes an item of a trace.
    pub fn take(&mut self, item: &Item<'_>) {
        match item {
            Item::Event(entry) => {
                let end = self.selection.to_ns.filter(|&to| entry.ns.is_some_and(|ns| ns > to));
                if let Some(end) = end {
                    self.last_ns = end;
                    if entry.happening.has_stack() {
                        // Its stack must not be another event's.
                        self.unmatched.push(entry.cpu, entry.pid, None);
                    }
                    return;
                }
                let ns = entry.ns.unwrap_or(self.last_ns);
                self.last_ns = self.last_ns.max(ns);
                match entry.happening {
                    Happening::AllocArea { va_start, size, failed: 0, .. } => self.stand(va_start, size),
                    Happening::FreeArea { va_start, .. } => _ = self.standing.remove(&va_start),
                    _ => {}
                }
                let made = match entry.happening {
                    _ if !entry.happening.has_stack() => return,
                    Happening::AllocArea { va_start, size, failed: 0, .. } => {
                        Some((Kind::Area, va_start, size))
                    }
                    Happening::AllocPercpu { ptr, size, bytes_alloc, .. } => {
                        Some((Kind::Percpu, ptr, bytes_alloc.unwrap_or(size)))
                    }
                    Happening::FreeArea { va_start, .. } => {
                        self.free((Kind::Area, va_start), ns);
                        None
                    }
                    Happening::FreePercpu { ptr: Some(ptr), .. } => {
                        self.free((Kind::Percpu, ptr), ns);
                        None
                    }
                    _ => None,
                };
                let made = made.filter(|&(kind, ..)| self.only.is_none_or(|only| only == kind));
                let made = made.filter(|_| self.selection.has(entry.ns, entry.cpu, entry.task.as_deref()));
                let made = made.map(|(kind, at, bytes)| Made { key: (kind, at), bytes, ns });
                if let Some(made) = made {
                    self.add(NO_STACK, made);
                }
                self.unmatched.push(entry.cpu, entry.pid, made);
            }
            Item::Stack(stack) => {
                self.any = true;
                let Some(Some(made)) = self.unmatched.take(stack) else { return };
                let mut frames = stack.frames.iter().rev().map(|frame| frame.replace([';', '\n'], "?"));
                let mut path = frames.by_ref().filter(|frame| !is_tracing(frame)).collect::<Vec<_>>();
                if path.is_empty() {
                    path.push(NO_STACK.to_string());
                }
                self.subtract(NO_STACK, made);
                let lives = self.live.get(&made.key).is_some_and(|&(_, since)| since == made.ns);
                self.add(&path.join(";"), made);
                if !lives {
                    self.live.remove(&made.key);
                }
            }
            Item::Lost(_) => self.unmatched.clear(),
            Item::Area(AreaLine { when: When::Begin, start: Some(start), end: Some(end), .. }) => {
                self.stand(start.0, end.0.saturating_sub(start.0));
            }
            Item::Header(_) | Item::Area(_) | Item::Stats(_) | Item::Summary(_) => {}
        }
    }

    fn stand(&mut self, start: u64, bytes: u64) {
        if self.standing.len() < LIVE_MAX {
            self.standing.insert(start, bytes);
        }
    }

    /// Returns the holes below live areas, by the number of the stack.
    fn holes(&self) -> HashMap<usize, u64> {
        let mut holes = HashMap::new();
        let mut below: Option<u64> = None;
        for (&start, &bytes) in &self.standing {
            if let Some(end) = below.filter(|&end| end < start)
                && let Some(&(number, _)) = self.live.get(&(Kind::Area, start))
            {
                *holes.entry(number).or_insert(0) += start - end;
            }
            below = below.max(Some(start.saturating_add(bytes)));
        }
        holes
    }

    fn add(&mut self, path: &str, made: Made) {
        let number = self.number(path);
        let weights = &mut self.weights[number];
        weights.bytes = weights.bytes.saturating_add(made.bytes);
        weights.count += 1;
        // The address may have been freed without an event.
        if self.live.len() < LIVE_MAX || self.live.contains_key(&made.key) {
            self.live.insert(made.key, (number, made.ns));
        }
    }

    /// Takes an allocation from a stack again: its own stack came.
    fn subtract(&mut self, path: &str, made: Made) {
        let number = self.number(path);
        let weights = &mut self.weights[number];
        weights.bytes = weights.bytes.saturating_sub(made.bytes);
        weights.count = weights.count.saturating_sub(1);
    }

    fn free(&mut self, key: (Kind, u64), ns: u64) {
        if let Some((number, since)) = self.live.remove(&key) {
            let live = &mut self.weights[number].live_ns;
            *live = live.saturating_add(ns.saturating_sub(since));
        }
    }

    fn number(&mut self, path: &str) -> usize {
        if let Some(&number) = self.numbers.get(path) {
            return number;
        }
        let full = self.weights.len() >= STACKS_MAX;
        let path = if full { OTHERS } else { path };
        let next = self.weights.len();
        let number = *self.numbers.entry(path.to_string()).or_insert(next);
        if number == next {
            self.weights.push(Weights::default());
        }
        number
    }

    /// Returns true if the trace has any call stack.
    pub fn has_stacks(&self) -> bool {
        self.any
    }

    /// Ends the trace: returns the weight of each stack that has one, in the order of their frames. The frames are
    /// joined by `;`, outermost first.
    pub fn folded(mut self, by: By) -> BTreeMap<String, u64> {
        let holes = if by == By::Fragmentation { self.holes() } else { HashMap::new() };
        let keys: Vec<_> = self.live.keys().copied().collect();
        for key in keys {
            self.free(key, self.last_ns);
        }
        let weight = |number: usize| match by {
            By::Bytes => self.weights[number].bytes,
            By::Count => self.weights[number].count,
            By::TimeLive => self.weights[number].live_ns / 1000,
            By::Fragmentation => holes.get(&number).copied().unwrap_or(0),
            // No allocation has any: `Latencies::lock_stacks` has them.
            By::LockTime => 0,
        };
        let of = |(path, number): (String, usize)| (path, weight(number));
        self.numbers.into_iter().map(of).filter(|&(_, weight)| weight > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Next, items};

    const TEXT: &str = "sh-7 [000] ..... 1.000000: alloc_vmap_area: va_start: 4096 size=8192 align=1 vstart=0x1000 vend=0xffff000 failed=0\n\
        sh-7 [000] ..... 1.000000: <stack trace>\n => trace_event_raw_event_alloc_vmap_area\n => alloc_vmap_area\n => a\n => root\n\
        sh-7 [000] ..... 1.000000: percpu_alloc_percpu: call_site=f+0x1/0x2 reserved=0 is_atomic=0 size=16 align=8 base_addr=ff00 off=8 ptr=000a bytes_alloc=64 gfp_flags=X\n\
        sh-7 [000] ..... 1.000000: <stack trace>\n => pcpu_alloc_noprof\n => b\n => root\n\
        sh-7 [000] ..... 1.000010: alloc_vmap_area: va_start: 16384 size=4096 align=1 vstart=0x1000 vend=0xffff000 failed=0\n\
        sh-7 [000] ..... 1.000030: free_vmap_area_noflush: va_start=0x1000 nr_lazy=2 nr_lazy_max=99\n\
        sh-7 [000] ..... 1.000030: <stack trace>\n => free_vmap_area_noflush\n => c\n\
        sh-7 [000] ..... 1.000040: purge_vmap_area_lazy: start=0x1000 end=0x2000 num_purged=1\n";

    fn folded(only: Option<Kind>, by: By) -> Vec<(String, u64)> {
        let mut stacks = Stacks::of(only);
        let taken = items(TEXT.as_bytes(), |item| {
            stacks.take(&item);
            Ok(Next::Go)
        });
        assert!(taken.is_ok() && stacks.has_stacks());
        stacks.folded(by).into_iter().collect()
    }

    #[test]
    fn each_weight_is_of_the_stack_that_allocated() {
        let want = |weights: [u64; 3]| {
            let paths = [NO_STACK, "root;a;alloc_vmap_area", "root;b;pcpu_alloc_noprof"];
            paths.map(str::to_string).into_iter().zip(weights).collect::<Vec<_>>()
        };
        assert_eq!(folded(None, By::Bytes), want([4096, 8192, 64]));
        assert_eq!(folded(None, By::Count), want([1, 1, 1]));
        // Freed after 30 us; live until the end, at 40 us.
        assert_eq!(folded(None, By::TimeLive), want([30, 30, 40]));
        assert_eq!(folded(Some(Kind::Percpu), By::Count), want([1, 1, 1])[2..]);
        assert_eq!(folded(Some(Kind::Area), By::Count), want([1, 1, 1])[..2]);
    }

    #[test]
    fn a_selection_counts_what_it_selects_and_what_it_allocated_lives_until_its_end() {
        let folded = |from_ns, to_ns, task: Option<&str>| {
            let selection =
                Selection { from_ns, to_ns, task: task.map(str::to_string), ..Selection::default() };
            let mut stacks = Stacks::of(Some(Kind::Area)).within(selection);
            let taken = items(TEXT.as_bytes(), |item| {
                stacks.take(&item);
                Ok(Next::Go)
            });
            assert!(taken.is_ok());
            stacks.folded(By::TimeLive).into_iter().collect::<Vec<_>>()
        };
        let area = |us| ("root;a;alloc_vmap_area".to_string(), us);
        assert_eq!(folded(None, Some(1_000_020_000), None), [(NO_STACK.to_string(), 10), area(20)]);
        assert_eq!(folded(Some(1_000_000_001), None, None), [(NO_STACK.to_string(), 30)]);
        assert_eq!(folded(None, Some(1_000_000_000), Some("sh")), []);
        assert_eq!(folded(None, None, Some("other")), []);
    }

    #[test]
    fn there_are_not_too_many_stacks() {
        let mut stacks = Stacks::default();
        for n in 0..STACKS_MAX as u64 + 9 {
            stacks.add(&format!("f{n}"), Made { key: (Kind::Area, n), bytes: 1, ns: 0 });
        }
        let folded = stacks.folded(By::Count);
        assert_eq!((folded.len(), folded[OTHERS]), (STACKS_MAX + 1, 9));
    }
}
