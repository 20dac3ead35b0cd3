//! Durations of the kernel's functions, and waits for the locks of its allocators.
//!
//! # Memory
//! Eight bytes for each call and each wait, up to [`EVENTS_MAX`] of both together, so that percentiles are exact. The
//! names are at most 65,536, of at most 4,096 bytes each.

mod calls;
mod open;
mod stats;
mod waits;

pub use calls::Unpaired;
pub use stats::{Durations, Figures, Interval, lowest};
pub use waits::{Elsewhere, LOCKS};

use crate::call::Call;
use crate::entry::Happening;
use crate::jsonl::{Header, Item};
use crate::{EVENTS_MAX, Selection};
use calls::{Calls, End, Group};
use std::collections::{BTreeMap, HashMap};
use vmlab_base::choice::Choice;
use waits::Waits;

/// The most names that are distinguished, stacks among them; all others are [`OTHER`].
const NAMES_MAX: usize = 1 << 16;
/// The most bytes of a name, or of the names of a stack.
const NAME_BYTES: usize = 4096;
const OTHER: &str = "(others)";

/// A thread, or the CPU of an idle one, or of a trace without threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Thread {
    Pid(u32),
    Cpu(u16),
}

impl Thread {
    fn of(cpu: Option<u16>, pid: Option<u32>) -> Self {
        pid.filter(|&pid| pid > 0).map_or(Self::Cpu(cpu.unwrap_or(0)), Self::Pid)
    }
}

/// Names by numbers; the first is empty.
#[derive(Clone, Debug)]
struct Names {
    numbers: HashMap<String, u32>,
    all: Vec<String>,
}

impl Default for Names {
    fn default() -> Self {
        Self { numbers: HashMap::from([(String::new(), 0)]), all: vec![String::new()] }
    }
}

impl Names {
    fn number(&mut self, name: &str) -> u32 {
        let name = &name[..name.floor_char_boundary(NAME_BYTES)];
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        if self.all.len() >= NAMES_MAX && name != OTHER {
            return self.number(OTHER);
        }
        let number = self.all.len() as u32;
        self.all.push(name.to_string());
        self.numbers.insert(name.to_string(), number);
        number
    }

    fn name(&self, number: u32) -> &str {
        self.all.get(number as usize).map_or("", String::as_str)
    }
}

/// The groups of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Of {
    /// Functions
    #[default]
    Function,
    /// Functions and their callers
    Caller,
    /// Functions and the tasks that ran
    Task,
}

impl Choice for Of {
    const CHOICES: &'static [Self] = &[Self::Function, Self::Caller, Self::Task];

    fn choice(self) -> &'static str {
        match self {
            Self::Function => "function",
            Self::Caller => "caller",
            Self::Task => "task",
        }
    }

    fn about(self) -> &'static str {
        match self {
            Self::Function => "Functions",
            Self::Caller => "Functions and their callers",
            Self::Task => "Functions and the tasks that ran",
        }
    }
}

/// A group of calls and its durations.
#[derive(Clone, Debug)]
pub struct CallRow {
    /// The kind of function.
    pub call: Call,
    /// The function.
    pub function: String,
    /// Its caller or task, if the groups have them; empty if it is not known.
    pub origin: Option<String>,
    /// The durations.
    pub durations: Durations,
}

/// A group of waits and its durations.
#[derive(Clone, Debug)]
pub struct LockRow {
    /// The kernel's variable; none if the lock has no name.
    pub lock: Option<String>,
    /// The function that waits.
    pub site: String,
    /// The durations.
    pub durations: Durations,
}

/// The durations of a trace.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    selection: Selection,
    names: Names,
    calls: Calls,
    waits: Waits,
    header: Header,
    lost: u64,
    span: Option<(u64, u64)>,
    too_many: bool,
}

impl Latencies {
    /// Counts the calls and waits that begin in a selection.
    pub fn within(selection: Selection) -> Self {
        Self { selection, ..Self::default() }
    }

    /// Takes an item of a trace.
    pub fn take(&mut self, item: &Item<'_>) {
        let entry = match item {
            Item::Event(entry) => entry,
            Item::Stack(stack) => return self.waits.stack(stack, &mut self.names),
            Item::Lost(lost) => {
                self.lost = self.lost.saturating_add(lost.events.0);
                self.calls.forget();
                return self.waits.forget();
            }
            Item::Header(header) => {
                self.waits.learn(header, &mut self.names);
                return self.header.clone_from(header);
            }
            // The summary counts all losses, those without a line, too.
            Item::Summary(summary) => return self.lost = self.lost.max(summary.lost.0),
            Item::Area(_) | Item::Stats(_) => return,
        };
        if self.calls.count + self.waits.count >= EVENTS_MAX as u64 {
            self.too_many = true;
            return;
        }
        let (cpu, pid, ns) = (entry.cpu, entry.pid, entry.ns);
        let within = |ns: &u64| {
            self.selection.from_ns.is_none_or(|from| *ns >= from)
                && self.selection.to_ns.is_none_or(|to| *ns <= to)
        };
        // The marks of a part are those of the whole.
        if let Some(ns) = ns.filter(within)
            && !matches!(entry.happening, Happening::Mark { .. })
        {
            let (first, last) = self.span.unwrap_or((ns, ns));
            self.span = Some((first.min(ns), last.max(ns)));
        }
        let thread = Thread::of(cpu, pid);
        let task = entry.task.as_deref();
        let counted = self.selection.has(ns, cpu, task);
        match &entry.happening {
            &Happening::Enter { call, ref function } => {
                self.calls.enter(End { thread, call, function, ns, task }, counted, &mut self.names);
            }
            &Happening::Leave { call, ref function, ref caller } => {
                let end = End { thread, call, function, ns, task };
                self.calls.leave(end, caller.as_deref(), counted, &mut self.names);
            }
            &Happening::LockBegin { lock, .. } => self.waits.begin((cpu, pid), lock, ns, counted),
            &Happening::LockEnd { lock, .. } => {
                self.waits.end(thread, lock, ns, counted, &mut self.names);
            }
            Happening::Mark { .. } => {}
            _ => self.waits.other(cpu, pid),
        }
    }

    /// Ends the trace.
    pub fn finish(&mut self) {
        self.calls.finish();
        self.waits.forget();
    }

    /// Returns true if there is any event of a call.
    pub fn has_calls(&self) -> bool {
        self.calls.count > 0 || self.calls.unpaired != Unpaired::default()
    }

    /// Returns true if there is any event of a lock.
    pub fn has_locks(&self) -> bool {
        self.waits.any
    }

    /// Returns the number of whole calls.
    pub fn calls(&self) -> u64 {
        self.calls.count
    }

    /// Returns the number of waits for locks of the allocators.
    pub fn waits(&self) -> u64 {
        self.waits.count
    }

    /// Returns the events that are of no whole call.
    pub fn unpaired(&self) -> Unpaired {
        self.calls.unpaired
    }

    /// Returns the waits that are not counted.
    pub fn elsewhere(&self) -> Elsewhere {
        self.waits.elsewhere
    }

    /// Returns the events that were lost.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns the description of the recording.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the time from the first event of the selected time to the last, nanoseconds.
    pub fn span_ns(&self) -> u64 {
        self.span.map_or(0, |(first, last)| last - first)
    }

    /// Returns true if there were more than [`EVENTS_MAX`]: the rest is not counted.
    pub fn is_cut(&self) -> bool {
        self.too_many
    }

    /// Returns the calls in groups: by kind, and the longest total first among those of a kind.
    pub fn call_rows(&self, of: Of) -> Vec<CallRow> {
        let mut rows: BTreeMap<(Call, u32, Option<u32>), Durations> = BTreeMap::new();
        for (&Group { call, function, caller, task }, durations) in &self.calls.groups {
            let origin = match of {
                Of::Function => None,
                Of::Caller => Some(caller),
                Of::Task => Some(task),
            };
            rows.entry((call, function, origin)).or_default().append(durations);
        }
        let named = |((call, function, origin), durations): ((Call, u32, Option<u32>), Durations)| CallRow {
            call,
            function: self.names.name(function).to_string(),
            origin: origin.map(|origin| self.names.name(origin).to_string()),
            durations,
        };
        let mut rows: Vec<CallRow> = rows.into_iter().map(named).collect();
        rows.sort_by_cached_key(|row| {
            (row.call, std::cmp::Reverse(row.durations.total()), row.origin.clone())
        });
        rows
    }

    /// Returns the waits in groups, the longest total first.
    pub fn lock_rows(&self) -> Vec<LockRow> {
        let named = |(group, durations): (&waits::Group, &Durations)| LockRow {
            lock: (group.lock > 0).then(|| self.names.name(group.lock).to_string()),
            site: self.names.name(group.site).to_string(),
            durations: durations.clone(),
        };
        let mut rows: Vec<LockRow> = self.waits.groups.iter().map(named).collect();
        rows.sort_by_cached_key(|row| {
            (std::cmp::Reverse(row.durations.total()), row.lock.clone(), row.site.clone())
        });
        rows
    }

    /// Returns the nanoseconds and the number of waits of each call stack: frames joined by `;`, outermost first.
    pub fn lock_stacks(&self) -> BTreeMap<String, (u64, u64)> {
        self.waits.stacks.iter().map(|(&path, &weight)| (self.names.name(path).to_string(), weight)).collect()
    }
}

#[cfg(test)]
mod tests;
