//! From two sets of books to one cause. The rules are tried in this order.

use super::books::{Answer, Busy, Lazy, Owner, Place, Pooled};
use super::cause::Cause;
use super::recording::{Step, What};
use super::{Diff, pages, request_of};
use crate::trace::Event;
use va_base::{PAGE_SIZE, Va};
use va_space::config::Config;
use va_tree::FreeIndex;

/// So many events of areas later another CPU's may still be of the same moment.
const SAME_MOMENT: usize = 8;
/// So many steps of the recording are searched for what lies in the way.
const LATER: usize = 1 << 14;

/// A cause, and the same in words; these cost more, and few are asked for.
type Why<'a> = (Cause, Box<dyn Fn() -> String + 'a>);

impl<C: Config, K: Config> Diff<'_, C, K> {
    /// Why the kernel's answer to an event is not the policy's, whose books are as before it.
    pub(super) fn why(&self, at: usize, step: &Step, event: &Event, answer: Option<Answer>) -> Why<'_> {
        let Event::Alloc { addr, size, align, failed, .. } = *event else {
            return (Cause::Unexplained, Box::new(String::new));
        };
        let kernel = (!failed).then_some(addr);
        let (Some(kernel), Some(answer)) = (kernel, answer) else {
            let who = if kernel.is_none() { "the kernel" } else { "the policy" };
            return (Cause::Failed, Box::new(move || format!("{who} found nothing")));
        };
        let ours = answer.start;
        let place = self.kernel.place(kernel, size);
        let exact = |start, of| start == kernel && of == size;
        let node = request_of(event).map(|request| self.kernel.owner_for(step.cpu, &request));
        if !self.options.resync && self.parted(kernel, ours, size) {
            return (
                Cause::Earlier,
                Box::new(|| "one side gave it to somebody else after an earlier difference".into()),
            );
        }
        match place {
            Place::Busy(start, Busy { size, .. }) => {
                let why =
                    move || format!("busy by the events: {:#x}, {} pages, was not freed", start, pages(size));
                return (Cause::FreeUnseen, Box::new(why));
            }
            Place::Lazy(_, lazy) => return self.purge_unseen(at, lazy),
            Place::Pooled(start, Pooled { node: None, size: of }) if exact(start, of) => {
                let why = "freed and purged; who allocated it before the trace is not known";
                return (Cause::OwnerUnknown, Box::new(|| why.into()));
            }
            Place::Pooled(start, Pooled { node: Some(of_node), size: of }) if exact(start, of) => {
                return self.from_pool(node, of_node, size, answer);
            }
            // A part of what is pooled: it was drained without an event.
            Place::Pooled(start, pooled) => {
                let why = move || {
                    format!(
                        "part of {start:#x}, {} pages, which is in a pool by the events",
                        pages(pooled.size)
                    )
                };
                return (Cause::PoolMissed, Box::new(why));
            }
            Place::Hole => {}
        }
        // By all that is known the kernel searched, and found a hole.
        if let Some(moved) = self.event_order(at, step, ours, size) {
            return moved;
        }
        match self.kernel.place(ours, size) {
            Place::Pooled(start, Pooled { node: in_node, size: of }) => {
                let own = node == in_node.map(Owner::Node);
                if own && start == ours && of == size && Va::new(ours).get().is_multiple_of(align.max(1)) {
                    let why = move || {
                        format!("the pool of node {} held it, {} pages", in_node.unwrap_or(0), pages(of))
                    };
                    return (Cause::PoolMissed, Box::new(why));
                }
                let why = move || match in_node {
                    Some(node) => format!(
                        "kernel left [{start:#x}, {:#x}): in the pool of node {node} (class {} pages)",
                        start + of,
                        pages(of)
                    ),
                    None => format!("kernel left [{start:#x}, {:#x}): in a pool", start + of),
                };
                return (Cause::LeftPooled, Box::new(why));
            }
            Place::Lazy(start, Lazy { size: of, node, .. }) => {
                let freed = self.freed_at(at, start);
                let why = move || {
                    format!(
                        "kernel left [{start:#x}, {:#x}): still lazy in node {node}{freed}, purge not seen",
                        start + of
                    )
                };
                return (Cause::LeftLazy, Box::new(why));
            }
            Place::Busy(start, Busy { size: of, .. }) => {
                let why = move || format!("busy there: {start:#x}, {} pages", pages(of));
                return (Cause::Earlier, Box::new(why));
            }
            Place::Hole => {}
        }
        if let Some(node) = answer.pool {
            let why =
                move || format!("from the policy's pool of node {node} (class {} pages)", pages(size));
            return (Cause::OwnPool, Box::new(why));
        }
        if let Some(unknown) = self.area_unknown(at, ours, size) {
            return unknown;
        }
        if align > PAGE_SIZE {
            return self.aligned(kernel, ours, size, align);
        }
        let hole = self.hole(ours);
        let why = move || format!("free by all that is known: [{:#x}, {:#x})", hole.0, hole.1);
        (Cause::Unexplained, Box::new(why))
    }

    /// Without resynchronising: whether one side's address is taken on the other for want of an earlier agreement.
    fn parted(&self, kernel: u64, ours: u64, size: u64) -> bool {
        let busy_here = matches!(self.policy.place(kernel, size), Place::Busy(..));
        let busy_there = matches!(self.kernel.place(ours, size), Place::Busy(..));
        let same = |at: u64| {
            let kind = |place| match place {
                Place::Busy(..) => 0,
                Place::Lazy(..) => 1,
                Place::Pooled(..) => 2,
                Place::Hole => 3,
            };
            kind(self.policy.place(at, size)) == kind(self.kernel.place(at, size))
        };
        // The books differ there, and not because the policies would have it so: a hole is one in both only before any difference.
        !self.elsewhere.is_empty()
            && (busy_here || busy_there)
            && !(same(kernel) && same(ours))
    }

    fn purge_unseen(&self, at: usize, lazy: Lazy) -> Why<'_> {
        let later = self.recording.steps[at..].iter().take(LATER).find_map(|step| match step.what {
            What::Vm(Event::Purge { purged }) if purged > 0 => Some(step.line),
            _ => None,
        });
        let why = move || {
            let when = later.map_or("no purge follows soon".into(), |line| {
                format!("the next purge is told in line {line}")
            });
            format!("lazy in node {} by the events; {when}", lazy.node)
        };
        (Cause::PurgeUnseen, Box::new(why))
    }

    /// The kernel's answer was in a pool, whole.
    fn from_pool(&self, own: Option<Owner>, node: u32, size: u64, answer: Answer) -> Why<'_> {
        if own != Some(Owner::Node(node)) {
            let why = move || format!("kernel took it from the pool of node {node}, of another CPU");
            return (Cause::OtherNode, Box::new(why));
        }
        if answer.pool == Some(node)
            && matches!(self.kernel.place(answer.start, size), Place::Pooled(_, pooled) if pooled.node == Some(node))
        {
            let why = move || format!("both from the pool of node {node} (class {} pages)", pages(size));
            return (Cause::PoolOrder, Box::new(why));
        }
        let why =
            move || format!("kernel took it from its node's pool (node {node}, class {} pages)", pages(size));
        (Cause::KernelPool, Box::new(why))
    }

    /// The policy's address is given to another CPU at the same moment.
    fn event_order(&self, at: usize, step: &Step, ours: u64, size: u64) -> Option<Why<'_>> {
        let end = ours.saturating_add(size);
        let areas = self.recording.steps[at + 1..].iter().filter(|step| matches!(step.what, What::Vm(_)));
        for other in areas.take(SAME_MOMENT) {
            match other.what {
                What::Vm(Event::Alloc { addr, size, failed: false, .. })
                    if other.cpu != step.cpu && addr < end && addr.saturating_add(size) > ours =>
                {
                    let (line, cpu) = (other.line, other.cpu);
                    let why = move || format!("CPU {cpu} was given it, line {line}");
                    return Some((Cause::EventOrder, Box::new(why)));
                }
                // It came back, or was somebody's: no question of order.
                What::Vm(Event::Free { addr }) if addr == ours => return None,
                _ => {}
            }
        }
        None
    }

    /// An area is freed in the policy's range before the kernel gives one out there: it lay there all the time.
    fn area_unknown(&self, at: usize, ours: u64, size: u64) -> Option<Why<'_>> {
        let end = ours.saturating_add(size);
        for later in self.recording.steps[at + 1..].iter().take(LATER) {
            self.looks.set(self.looks.get().checked_sub(1)?);
            match later.what {
                What::Vm(Event::Alloc { addr, size, failed: false, .. })
                    if addr < end && addr.saturating_add(size) > ours =>
                {
                    return None;
                }
                What::Vm(Event::Free { addr }) if addr >= ours && addr < end => {
                    let line = later.line;
                    let why = move || {
                        format!("an area at {addr:#x} that no table told is freed in line {line}")
                    };
                    return Some((Cause::AreaUnknown, Box::new(why)));
                }
                _ => {}
            }
        }
        None
    }

    /// The hole around an address, by the kernel's books.
    fn hole(&self, at: u64) -> (u64, u64) {
        let hole = self.kernel.index().hole_after(Va::new(at));
        hole.map_or((at, at), |hole| (hole.start().get(), hole.end().get()))
    }

    /// An aligned request, both addresses in holes.
    fn aligned(&self, kernel: u64, ours: u64, size: u64, align: u64) -> Why<'_> {
        let length = size.saturating_add(align - 1);
        let (left, found) = (self.hole(ours), self.hole(kernel));
        let short = left.1 - left.0 < length;
        if ours < kernel && short {
            let why = move || {
                format!(
                    "kernel left [{:#x}, {:#x}), {} pages: Linux looks for size + align - 1, {} pages",
                    left.0,
                    left.1,
                    pages(left.1 - left.0),
                    length.div_ceil(PAGE_SIZE)
                )
            };
            return (Cause::AlignRule, Box::new(why));
        }
        if kernel < ours && found.1 - found.0 < length {
            let why = move || {
                format!(
                    "kernel met [{:#x}, {:#x}) on its way, {} pages, shorter than size + align - 1",
                    found.0,
                    found.1,
                    pages(found.1 - found.0)
                )
            };
            return (Cause::TreeShape, Box::new(why));
        }
        let why = move || {
            format!("both fit: [{:#x}, {:#x}) and [{:#x}, {:#x})", found.0, found.1, left.0, left.1)
        };
        (Cause::Unexplained, Box::new(why))
    }

    /// When an area was freed, in words.
    fn freed_at(&self, at: usize, start: u64) -> String {
        let earlier = self.recording.steps[..at].iter().rev().take(LATER);
        let mut freed = earlier.filter(|step| step.what == What::Vm(Event::Free { addr: start }));
        freed.next().map_or_else(
            || " (freed before the trace)".to_string(),
            |step| format!(" (freed in line {})", step.line),
        )
    }
}
