//! Derives one cause from two ledgers. The rules are tried in this order.
//!
//! # Theory
//! A cause that is not one of policies is a fact that the recording lacks. It counts only if the kernel's ledger, given
//! that single fact, answers with the kernel's address ([`Fact`]). Otherwise the difference is unexplained.

use super::cause::Cause;
use super::{Diff, pages};
use crate::engine::{Attempt, What};
use std::collections::BTreeSet;
use va_base::{PAGE_SIZE, Request, Va, VaRange};
use va_sim::space_model::{Answer, Owner, Place};
use va_space::config::Config;
use va_tree::{FreeIndex, InPlace};
use vmlab_machine::{LabMachine, Work};
use vmlab_trace::Event;

/// Another CPU's event may belong to the same time within this many events of areas.
const SAME_MOMENT: usize = 8;
/// The steps of the recording that are searched for an area in the range.
const LATER: usize = 1 << 14;

/// A cause, the correction of the ledger, and the text. The text is computed on demand: it costs more, and few are
/// used.
pub(super) struct Why<'a> {
    pub(super) cause: Cause,
    pub(super) lesson: Lesson,
    pub(super) words: Box<dyn Fn() -> String + 'a>,
}

/// A correction of the kernel's ledger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lesson {
    None,
    /// The areas before this one in the pool of a node, or all if `None`, are not in the pool.
    Pool {
        node: u32,
        size: u64,
        until: Option<u64>,
    },
    /// A range that is in use.
    Taken {
        start: u64,
        size: u64,
    },
    /// An area that was allocated before its event.
    Early {
        start: u64,
        size: u64,
    },
}

/// A single fact that a recording may lack.
#[derive(Clone, Copy, Debug)]
enum Fact {
    /// This range was allocated before.
    Taken(u64, u64),
    /// This range was freed to the index before.
    Freed(u64, u64),
    /// All pools were emptied before.
    Drained,
}

fn why<'a>(cause: Cause, words: impl Fn() -> String + 'a) -> Why<'a> {
    Why { cause, lesson: Lesson::None, words: Box::new(words) }
}

impl<C: Config, K: Config> Diff<'_, C, K> {
    /// Returns the reason why the kernel's answer to an event differs from the policy's. The ledgers are as before it.
    pub(super) fn why(&self, attempt: &Attempt, answer: Option<Answer>) -> Why<'_> {
        let &Attempt { at, cpu, size, .. } = attempt;
        let (Some(request), Some(answer), Some(kernel)) = (attempt.request, answer, attempt.kernel) else {
            let side = if attempt.kernel.is_none() { "the kernel" } else { "the policy" };
            return why(Cause::Failed, move || format!("{side} found nothing"));
        };
        let ours = answer.start;
        if !self.options.resync && self.parted(kernel, ours, size) {
            return why(Cause::Earlier, || {
                "one side has another area there, after an earlier difference".into()
            });
        }
        // The answer that Linux would give by the kernel's ledger.
        let linux = self.kernel.peek(cpu.into(), &request);
        let whole = |start: u64, bytes: u64| (start, bytes) == (kernel, size);
        match self.kernel.place(kernel, size) {
            // In whose pool the area was is unknown, or it was in none.
            Place::Busy { start, size: of } | Place::Lazy { start, size: of, .. }
                if !whole(start, of) && !self.gives(kernel, &request, Fact::Freed(start, of)) =>
            {
                unexplained(start, of)
            }
            Place::Busy { start, size } => why(Cause::FreeUnseen, move || {
                format!("busy by the events: {start:#x}, {} pages, was not freed", pages(size))
            }),
            Place::Lazy { node, .. } => self.purge_unseen(at, node),
            Place::Pooled { start, size: bytes, node } if (start, bytes) == (kernel, size) => {
                let own = self.kernel.owner_for(cpu.into(), &request);
                self.took_pooled(own, &request, (kernel, size, node), answer, linux)
            }
            // Only a part of a pooled area: the pool was drained without an event.
            Place::Pooled { start, size, .. }
                if !self.gives(kernel, &request, Fact::Freed(start, size))
                    && !self.gives(kernel, &request, Fact::Drained) =>
            {
                unexplained(start, size)
            }
            Place::Pooled { start, size, .. } => why(Cause::PoolMissed, move || {
                format!("part of {start:#x}, {} pages, which is in a pool by the events", pages(size))
            }),
            // The kernel searched, as Linux does with the known state.
            Place::Hole if linux.is_some_and(|linux| linux.start == kernel) => {
                self.searched(at, kernel, answer, &request)
            }
            Place::Hole => self.not_known(attempt, kernel, answer, linux, &request),
        }
    }

    /// Returns the reason if the kernel's answer was a whole area of a pool.
    fn took_pooled(
        &self,
        own: Owner,
        request: &Request,
        (kernel, size, node): (u64, u64, Option<u32>),
        answer: Answer,
        linux: Option<Answer>,
    ) -> Why<'_> {
        let class = pages(size);
        let has_pools = C::POOL_PAGES_MAX >= class;
        match node {
            Some(node) if own == Owner::Node(node) => {
                if answer.pool.is_none() {
                    return why(Cause::KernelPool, move || {
                        format!("kernel took it from its node's pool (node {node}, class {class} pages)")
                    });
                }
                if linux.is_some_and(|linux| linux.start == kernel) {
                    return why(Cause::OwnOrder, move || {
                        format!("both from a pool of class {class} pages; the policy takes another first")
                    });
                }
                let lesson = Lesson::Pool { node, size, until: Some(kernel) };
                let words = move || {
                    let next = linux.map_or(0, |linux| linux.start);
                    format!(
                        "from the pool of node {node}, class {class} pages, where {next:#x} is next by the events"
                    )
                };
                Why { cause: Cause::PoolOrder, lesson, words: Box::new(words) }
            }
            _ if !has_pools => {
                why(Cause::KernelPool, move || format!("kernel took it from a pool (class {class} pages)"))
            }
            Some(node) if self.kernel.peek(node, request).is_some_and(|there| there.start == kernel) => {
                why(Cause::OtherNode, move || {
                    format!("kernel took it from the pool of node {node}, of another CPU")
                })
            }
            Some(_) => unexplained(kernel, size),
            None => why(Cause::OwnerUnknown, || "freed and purged; in whose pool is not known".into()),
        }
    }

    /// Returns the reason if the kernel searched and found the same as Linux: the policy differs.
    fn searched(&self, at: usize, kernel: u64, answer: Answer, request: &Request) -> Why<'_> {
        let (ours, size) = (answer.start, request.size().get() * PAGE_SIZE);
        match self.kernel.place(ours, size) {
            Place::Pooled { start, size, node } => return left_pooled(start, size, node),
            Place::Lazy { start, size: of, node } => {
                return why(Cause::LeftLazy, move || {
                    let freed = self.freed_at(at, start);
                    let end = start + of;
                    format!(
                        "kernel left [{start:#x}, {end:#x}): still lazy in node {node}{freed}, purge not seen"
                    )
                });
            }
            Place::Busy { start, size: of } => {
                return why(Cause::Earlier, move || format!("busy there: {start:#x}, {} pages", pages(of)));
            }
            Place::Hole => {}
        }
        if let Some(node) = answer.pool {
            return why(Cause::OwnPool, move || {
                format!("from the policy's pool of node {node} (class {} pages)", pages(size))
            });
        }
        let length = length(request);
        let left = self.hole(ours);
        if ours < kernel && left.1 - left.0 < length {
            return why(Cause::AlignRule, move || {
                format!(
                    "kernel left [{:#x}, {:#x}), {} pages: Linux looks for size + align - 1, {} pages",
                    left.0,
                    left.1,
                    pages(left.1 - left.0),
                    length.div_ceil(PAGE_SIZE)
                )
            });
        }
        why(Cause::OwnSearch, move || format!("the policy finds [{:#x}, {:#x})", left.0, left.1))
    }

    /// Returns the reason if the kernel searched, by its ledger, and did not find Linux's answer.
    fn not_known(
        &self,
        attempt: &Attempt,
        kernel: u64,
        answer: Answer,
        linux: Option<Answer>,
        request: &Request,
    ) -> Why<'_> {
        let &Attempt { at, size, .. } = attempt;
        if C::POOL_PAGES_MAX == 0
            && let Place::Pooled { start, size, node } = self.kernel.place(answer.start, size)
        {
            return left_pooled(start, size, node);
        }
        let Some(linux) = linux else {
            return why(Cause::Unexplained, || "by the events nothing is free".into());
        };
        if let Some(node) = linux.pool {
            let lesson = Lesson::Pool { node, size, until: None };
            let words = move || {
                format!("the pool of node {node} has {:#x} by the events, {} pages", linux.start, pages(size))
            };
            // Searched as if the pool had been emptied, by what it held alone or with all others.
            let searched = self.kernel.index().would_fit(request) == Ok(Va::new(kernel));
            if !searched && !self.gives(kernel, request, Fact::Drained) {
                return unexplained(linux.start, size);
            }
            return Why { cause: Cause::PoolMissed, lesson, words: Box::new(words) };
        }
        if let Some(known) = self.event_order(at, attempt.cpu, linux.start, size, (kernel, request)) {
            return known;
        }
        if let Some(known) = self.area_unknown(at, linux.start, size, (kernel, request)) {
            return known;
        }
        let length = length(request);
        let (left, found) = (self.hole(linux.start), self.hole(kernel));
        let short = |hole: (u64, u64)| hole.1 - hole.0 < length;
        if request.align().bytes() > PAGE_SIZE && (short(left) || short(found)) {
            return why(Cause::TreeShape, move || {
                format!(
                    "[{:#x}, {:#x}), {} pages, and [{:#x}, {:#x}), {} pages: one is shorter than size + align - 1, {} pages",
                    found.0,
                    found.1,
                    pages(found.1 - found.0),
                    left.0,
                    left.1,
                    pages(left.1 - left.0),
                    length.div_ceil(PAGE_SIZE)
                )
            });
        }
        why(Cause::Unexplained, move || format!("free by all that is known: [{:#x}, {:#x})", left.0, left.1))
    }

    /// Takes steps of the budget; `None` if it is spent, which the report tells.
    fn look(&self, steps: u64) -> Option<()> {
        let left = self.looks.get().checked_sub(steps);
        self.spent.set(self.spent.get() || left.is_none());
        self.looks.set(left?);
        Some(())
    }

    /// Returns true if Linux finds the kernel's address by its ledger and this fact.
    fn gives(&self, kernel: u64, request: &Request, fact: Fact) -> bool {
        // A copy visits every hole.
        if self.look(self.kernel.index().hole_count()).is_none() {
            return false;
        }
        let machine = LabMachine::new(1, u32::MAX, Work::Elsewhere);
        let Ok(mut index) = self.kernel.index().try_clone(machine) else { return false };
        let range = |start: u64, size: u64| VaRange::from_size(Va::new(start), size);
        let done =
            match fact {
                Fact::Taken(start, size) => range(start, size).is_some_and(|range| index.take(range).is_ok()),
                Fact::Freed(start, size) => range(start, size).is_some_and(|range| index.free(range).is_ok()),
                Fact::Drained => self.kernel.areas().pooled.iter().all(|(start, size, _)| {
                    range(start, size).is_some_and(|range| index.free(range).is_ok())
                }),
            };
        done && index.would_fit(request) == Ok(Va::new(kernel))
    }

    /// Without resynchronising: returns true if an earlier difference made one side's address busy on the other.
    fn parted(&self, kernel: u64, ours: u64, size: u64) -> bool {
        let busy_here = matches!(self.policy.place(kernel, size), Place::Busy { .. });
        let busy_there = matches!(self.kernel.place(ours, size), Place::Busy { .. });
        let same = |at: u64| {
            let kind = |place: Place| std::mem::discriminant(&place);
            kind(self.policy.place(at, size)) == kind(self.kernel.place(at, size))
        };
        // The ledgers differ there because of an earlier difference. Without one, a hole in one ledger is a hole in
        // both.
        !self.elsewhere.is_empty() && (busy_here || busy_there) && !(same(kernel) && same(ours))
    }

    fn purge_unseen(&self, at: usize, node: u32) -> Why<'_> {
        let later = self.recording.steps[at..].iter().take(LATER).find_map(|step| match step.what {
            What::Vm(Event::Purge { purged }) if purged > 0 => Some(step.line),
            _ => None,
        });
        why(Cause::PurgeUnseen, move || {
            let when = later
                .map_or("no purge follows soon".into(), |line| format!("the next purge is in line {line}"));
            format!("lazy in node {node} by the events; {when}")
        })
    }

    /// Returns a cause if another CPU gets the address that Linux would return. Its event is of the same time, or may
    /// have waited since then: its CPU has none in between.
    fn event_order(
        &self,
        at: usize,
        cpu: u16,
        ours: u64,
        size: u64,
        (kernel, request): (u64, &Request),
    ) -> Option<Why<'_>> {
        let end = ours.saturating_add(size);
        let mut seen = BTreeSet::new();
        let areas = self.recording.steps[at + 1..].iter().filter(|step| matches!(step.what, What::Vm(_)));
        for (nth, other) in areas.take(LATER).enumerate() {
            self.look(1)?;
            match other.what {
                What::Vm(Event::Alloc { addr, size, failed: false, .. })
                    if addr < end
                        && addr.saturating_add(size) > ours
                        && other.cpu != cpu
                        && (nth < SAME_MOMENT || !seen.contains(&other.cpu))
                        && self.gives(kernel, request, Fact::Taken(addr, size)) =>
                {
                    let (line, cpu) = (other.line, other.cpu);
                    let words = move || format!("CPU {cpu} was given {ours:#x}, line {line}");
                    let lesson = Lesson::Early { start: addr, size };
                    return Some(Why { cause: Cause::EventOrder, lesson, words: Box::new(words) });
                }
                // The area that is there later, or was freed, is another: the order does not explain it.
                What::Vm(Event::Alloc { addr, size, failed: false, .. })
                    if nth >= SAME_MOMENT && addr < end && addr.saturating_add(size) > ours =>
                {
                    return None;
                }
                What::Vm(Event::Free { addr }) if addr >= ours && addr < end => return None,
                _ => {}
            }
            seen.insert(other.cpu);
        }
        None
    }

    /// Returns a cause if an area inside Linux's answer is freed before the kernel allocates there: it was live all the
    /// time.
    fn area_unknown(
        &self,
        at: usize,
        ours: u64,
        size: u64,
        (kernel, request): (u64, &Request),
    ) -> Option<Why<'_>> {
        let end = ours.saturating_add(size);
        for later in self.recording.steps[at + 1..].iter().take(LATER) {
            self.look(1)?;
            match later.what {
                What::Vm(Event::Alloc { addr, size, failed: false, .. })
                    if addr < end && addr.saturating_add(size) > ours =>
                {
                    return None;
                }
                What::Vm(Event::Free { addr })
                    if addr >= ours
                        && addr < end
                        && self.gives(kernel, request, Fact::Taken(addr, end - addr)) =>
                {
                    let line = later.line;
                    let words =
                        move || format!("an area at {addr:#x} that is in no table is freed in line {line}");
                    let lesson = Lesson::Taken { start: addr, size: end - addr };
                    return Some(Why { cause: Cause::AreaUnknown, lesson, words: Box::new(words) });
                }
                _ => {}
            }
        }
        None
    }

    /// Returns the hole around an address, by the kernel's ledger.
    fn hole(&self, at: u64) -> (u64, u64) {
        let hole = self.kernel.index().hole_after(Va::new(at));
        hole.map_or((at, at), |hole| (hole.start().get(), hole.end().get()))
    }

    /// Formats when an area was freed.
    fn freed_at(&self, at: usize, start: u64) -> String {
        let earlier = self.recording.steps[..at].iter().rev().take(LATER);
        let mut freed = earlier.filter(|step| step.what == What::Vm(Event::Free { addr: start }));
        freed.next().map_or_else(
            || " (freed before the trace)".to_string(),
            |step| format!(" (freed in line {})", step.line),
        )
    }
}

/// Returns the number of bytes that Linux searches for.
fn length(request: &Request) -> u64 {
    let (size, align) = (request.size().get() * PAGE_SIZE, request.align().bytes());
    if align > PAGE_SIZE { size.saturating_add(align - 1) } else { size }
}

fn unexplained<'a>(start: u64, size: u64) -> Why<'a> {
    why(Cause::Unexplained, move || {
        format!(
            "by the events {start:#x}, {} pages, is not free; if it were, Linux would take another",
            pages(size)
        )
    })
}

fn left_pooled<'a>(start: u64, size: u64, node: Option<u32>) -> Why<'a> {
    why(Cause::LeftPooled, move || {
        let (end, class) = (start + size, pages(size));
        match node {
            Some(node) => {
                format!(
                    "kernel left [{start:#x}, {end:#x}): in the pool of node {node} (class {class} pages)"
                )
            }
            None => format!("kernel left [{start:#x}, {end:#x}): in a pool (class {class} pages)"),
        }
    })
}
