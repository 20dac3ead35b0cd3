//! Calls of the kernel's functions: each with its two ends.
//!
//! # Theory
//! A thread's calls nest, those of interrupts too. So a return belongs to the last call of its function that the thread
//! has open, and what was opened after it has lost its return. The idle threads of all CPUs have the number 0: there
//! the CPU stands for the thread. After a loss nothing is open: a return would find a call before the gap.

use super::open::Open;
use super::stats::Durations;
use super::{Names, Thread};
use crate::call::Call;
use crate::stack::without_module;
use std::collections::BTreeMap;

/// The most calls that are open in a thread.
const DEPTH_MAX: usize = 64;

/// A call that has not returned.
#[derive(Clone, Copy, Debug)]
struct Begun {
    call: Call,
    function: u32,
    ns: u64,
    task: u32,
    counted: bool,
}

/// A group of calls: the function, its caller and its task, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Group {
    pub(super) call: Call,
    pub(super) function: u32,
    pub(super) caller: u32,
    pub(super) task: u32,
}

/// Events that are of no whole call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unpaired {
    /// Returns without a call: it began before the recording, or its event was lost.
    pub returns: u64,
    /// Calls without a return, which the recorder lost or the kernel did not write.
    pub calls: u64,
    /// Calls that had not returned when the recording ended.
    pub open: u64,
    /// Events without a time, and calls that end before they begin.
    pub untimed: u64,
}

/// The calls of a trace.
#[derive(Clone, Debug, Default)]
pub(super) struct Calls {
    open: Open<Begun, DEPTH_MAX>,
    pub(super) groups: BTreeMap<Group, Durations>,
    pub(super) unpaired: Unpaired,
    pub(super) count: u64,
}

/// An end of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct End<'a> {
    pub(super) thread: Thread,
    pub(super) call: Call,
    pub(super) function: &'a str,
    pub(super) ns: Option<u64>,
    pub(super) task: Option<&'a str>,
}

impl Calls {
    /// Begins a call.
    pub(super) fn enter(&mut self, end: End<'_>, counted: bool, names: &mut Names) {
        let Some(ns) = end.ns else { return self.unpaired.untimed += 1 };
        if self.open.is_full_for(end.thread) {
            self.forget();
        }
        let (function, task) = (names.number(end.function), names.number(end.task.unwrap_or_default()));
        let begun = Begun { call: end.call, function, ns, task, counted };
        self.unpaired.calls += u64::from(self.open.push(end.thread, begun));
    }

    /// Ends a call.
    pub(super) fn leave(&mut self, end: End<'_>, caller: Option<&str>, counted: bool, names: &mut Names) {
        let begun = self.open.take(end.thread, |open| {
            let at = open.iter().rposition(|one| one.call == end.call)?;
            self.unpaired.calls += open.drain(at + 1..).filter(|one| one.counted).count() as u64;
            open.pop()
        });
        let Some(begun) = begun else { return self.unpaired.returns += u64::from(counted) };
        if !begun.counted {
            return;
        }
        let Some(took) = end.ns.and_then(|ns| ns.checked_sub(begun.ns)) else {
            return self.unpaired.untimed += 1;
        };
        let caller = names.number(without_module(caller.unwrap_or_default()));
        let group = Group { call: begun.call, function: begun.function, caller, task: begun.task };
        self.groups.entry(group).or_default().push(took);
        self.count += 1;
    }

    /// Forgets what is open: events were lost.
    pub(super) fn forget(&mut self) {
        self.unpaired.calls += self.close_all();
    }

    /// Ends the trace.
    pub(super) fn finish(&mut self) {
        self.unpaired.open += self.close_all();
    }

    /// Removes what is open, and returns the number of calls in the selection.
    fn close_all(&mut self) -> u64 {
        self.open.drain().filter(|one| one.counted).count() as u64
    }
}
