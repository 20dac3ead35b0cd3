//! The recording of `vmlab record`: one line of JSON for each item, described in `docs/formats.md`.
//!
//! # Theory
//! Events are flat objects under the kernel's names of the event and its fields, so that a reader of one form can read
//! the other. Everything else is an object under a name of its own: the recorder, areas and counters at both ends,
//! losses. Addresses are strings in hexadecimal, since many readers of JSON keep 53 bits of a number. Every number is
//! read from either form. Unknown keys are ignored; a line with unknown keys only is counted as not ours.

pub use super::event::When;

use super::call::{Call, Edge};
use super::entry::{Entry, Happening, MARK};
use super::fields::{LOCK_BEGIN, LOCK_END};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;

/// The version of the form that is written, and the latest that is read. It grows if a key changes its meaning or goes. A
/// reader ignores keys that are added.
pub const VERSION: u64 = 1;

/// Returns the version that the first line of a recording names, whatever else is in it.
pub fn version_of(line: &str) -> Option<u64> {
    #[derive(Deserialize)]
    struct Line {
        vmlab: Named,
    }
    #[derive(Deserialize)]
    struct Named {
        version: Number,
    }
    serde_json::from_str::<Line>(line).ok().map(|line| line.vmlab.version.0)
}

/// One line of a recording.
#[derive(Clone, Debug, PartialEq)]
pub enum Item<'a> {
    /// The recorder and the system. The first line.
    Header(Box<Header>),
    /// A line of `/proc/vmallocinfo`.
    Area(AreaLine<'a>),
    /// A line of `percpu_stats`.
    Stats(StatsLine<'a>),
    /// A number of events were lost at this point.
    Lost(LostLine),
    /// An event.
    Event(Entry<'a>),
    /// The call stack of an event before it.
    Stack(StackLine<'a>),
    /// The counts. The last line of a complete recording.
    Summary(Box<Summary>),
}

/// The description of the recording. Unknown values are left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Header {
    /// [`VERSION`].
    pub version: Number,
    /// Release of the kernel.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kernel: String,
    /// Build of the kernel.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub build: String,
    /// Architecture of the kernel.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub machine: String,
    /// CPUs that are possible.
    #[serde(skip_serializing_if = "Number::is_zero")]
    pub cpus: Number,
    /// CPUs in use.
    #[serde(skip_serializing_if = "Number::is_zero")]
    pub online: Number,
    /// Bytes of a page.
    #[serde(skip_serializing_if = "Number::is_zero")]
    pub page_bytes: Number,
    /// The clock of `ns`, by tracefs's name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub clock: String,
    /// `raw` addresses, or `hashed` ones, which cannot be compared.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pointers: String,
    /// KiB of the kernel's buffer for each CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffer_kib: Option<Number>,
    /// Seconds since 1970 at the beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unix_time: Option<Number>,
    /// The probes of functions, if there were any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probes: Option<Probes>,
    /// The locks that the kernel's table of symbols names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub locks: Vec<LockName>,
    /// The command that ran during the recording.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// The program that read the memory of a kernel at one time; then the recording has no events.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub dump: String,
    /// The windows of areas, of a dump.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<WindowLine>,
}

/// A window of areas.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WindowLine {
    /// `vmalloc` or `modules`.
    pub name: String,
    /// First address.
    pub start: Address,
    /// The address behind its last.
    pub end: Address,
}

/// The probes of a recording, and what they cost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Probes {
    /// `fprobe` or `kprobe`.
    pub kind: String,
    /// The functions.
    pub functions: Vec<String>,
    /// Nanoseconds of a step of the clock.
    pub resolution_ns: Number,
    /// Calls of a loop that measured a pair of probes; 0 if it was not measured.
    pub measured_calls: Number,
    /// Picoseconds of such a call without probes.
    pub plain_ps: Number,
    /// Picoseconds more of a call with probes.
    pub pair_ps: Number,
    /// Duration that the probes show for the function of that loop, which does nothing; nanoseconds.
    pub floor_ns: Number,
}

impl Probes {
    /// Returns the nanoseconds of so many calls' probes, and their share of all CPUs' time, percent.
    pub fn cost(&self, calls: u64, took_ns: u64, cpus: u64) -> (u64, f64) {
        let all = calls.saturating_mul(self.pair_ps.0 / 1000);
        (all, 100.0 * all as f64 / took_ns.saturating_mul(cpus.max(1)).max(1) as f64)
    }
}

/// The name of a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LockName {
    /// The kernel's variable.
    pub name: String,
    /// Its address.
    pub at: Address,
}

/// The counts of a recording.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Summary {
    /// Events written.
    pub events: Number,
    /// Events that the kernel counted as lost.
    pub lost: Number,
    /// Lines of the kernel that are not our events, and were omitted.
    pub left_out: Number,
    /// The reason why recording ended: `command`, `seconds`, `bytes`, `signal`.
    pub ended: String,
    /// Nanoseconds from the beginning to the end.
    pub took_ns: Number,
}

/// A line of `/proc/vmallocinfo`: an area, or the text if it was not understood.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AreaLine<'a> {
    /// At which end.
    pub when: When,
    /// First address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Address>,
    /// The address behind its last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<Address>,
    /// Bytes, guard page included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Number>,
    /// The rest: the caller, if known, and words such as `vmalloc` or `N0=4`.
    #[serde(borrow, default)]
    pub text: Cow<'a, str>,
}

impl<'a> AreaLine<'a> {
    /// Parses a line of the table.
    pub fn from_text(when: When, line: &'a str) -> Self {
        let line = line.trim();
        Self::understood(when, line).unwrap_or(Self {
            when,
            start: None,
            end: None,
            bytes: None,
            text: Cow::Borrowed(line),
        })
    }

    fn understood(when: When, line: &'a str) -> Option<Self> {
        let (range, rest) = line.split_once(char::is_whitespace)?;
        let (start, end) = range.split_once('-')?;
        let hex = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok().map(Address);
        let rest = rest.trim_start();
        let (bytes, text) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        Some(Self {
            when,
            start: Some(hex(start)?),
            end: Some(hex(end)?),
            bytes: Some(Number(bytes.parse().ok()?)),
            text: Cow::Borrowed(text.trim_start()),
        })
    }
}

/// The format of `/proc/vmallocinfo`.
impl fmt::Display for AreaLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(start), Some(end), Some(bytes)) = (self.start, self.end, self.bytes) {
            write!(f, "0x{:016x}-0x{:016x} {:>7} ", start.0, end.0, bytes.0)?;
        }
        f.write_str(&self.text)
    }
}

/// A line of `percpu_stats`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatsLine<'a> {
    /// At which end.
    pub when: When,
    /// The line.
    #[serde(borrow)]
    pub text: Cow<'a, str>,
}

/// A gap in the events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostLine {
    /// Number of events.
    pub events: Number,
    /// The CPU that lost them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Number>,
}

/// A call stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackLine<'a> {
    /// The CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u16>,
    /// The thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Nanoseconds of the clock of the trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ns: Option<Number>,
    /// The functions, innermost first, each without its offset.
    pub frames: Vec<Cow<'a, str>>,
}

impl<'a> Item<'a> {
    /// Reads a line. `None` if no key of it is known.
    ///
    /// # Errors
    /// If the line is not an object, a field is missing, or a value has the wrong type.
    pub fn from_json(line: &'a str) -> Result<Option<Self>, serde_json::Error> {
        let row: Row<'a> = serde_json::from_str(line)?;
        let absent = |what| de::Error::custom(format_args!("{what} without one of its fields"));
        Ok(Some(match row {
            Row { event: Some(ref event), .. } => {
                let name = event.to_string();
                return row.entry(&name).map(|entry| entry.map(Item::Event)).ok_or_else(|| absent(name));
            }
            Row { vmlab: Some(header), .. } => Item::Header(header),
            Row { area: Some(area), .. } => Item::Area(area),
            Row { percpu_stats: Some(stats), .. } => Item::Stats(stats),
            Row { lost: Some(lost), .. } => Item::Lost(lost),
            Row { stack: Some(stack), .. } => Item::Stack(stack),
            Row { summary: Some(summary), .. } => Item::Summary(summary),
            _ => return Ok(None),
        }))
    }

    /// Returns the line, without the line feed.
    ///
    /// # Errors
    /// None known: every item can be written as JSON.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        /// An object of one key.
        fn under<T: Serialize>(key: &str, value: &T) -> Result<String, serde_json::Error> {
            Ok(format!("{{\"{key}\":{}}}", serde_json::to_string(value)?))
        }
        match self {
            Self::Header(header) => under("vmlab", header),
            Self::Area(area) => under("area", area),
            Self::Stats(stats) => under("percpu_stats", stats),
            Self::Lost(lost) => under("lost", lost),
            Self::Event(entry) => serde_json::to_string(&Row::from(entry)),
            Self::Stack(stack) => under("stack", stack),
            Self::Summary(summary) => under("summary", summary),
        }
    }
}

/// A number, written as one; read from a number or a string.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Number(pub u64);

/// A number that is written as a string in hexadecimal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address(pub u64);

impl Number {
    /// Zero stands for an unknown number.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
    fn is_zero(&self) -> bool {
        self.0 == 0
    }
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Other readers would round a number beyond 53 bits.
        if self.0 >> 53 == 0 {
            serializer.serialize_u64(self.0)
        } else {
            serializer.collect_str(&format_args!("{}", self.0))
        }
    }
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:#x}", self.0))
    }
}

struct AnyNumber;

impl Visitor<'_> for AnyNumber {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, or a string that is one in decimal or, after 0x, in hexadecimal")
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<u64, E> {
        Ok(value)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<u64, E> {
        super::fields::number(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyNumber).map(Self)
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyNumber).map(Self)
    }
}

/// Every key that a line may have.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Row<'a> {
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    event: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ns: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    va_start: Option<Address>,
    #[serde(skip_serializing_if = "Option::is_none")]
    call_site: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reserved: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    is_atomic: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    align: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vstart: Option<Address>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vend: Option<Address>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nr_lazy: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nr_lazy_max: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start: Option<Address>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<Address>,
    #[serde(skip_serializing_if = "Option::is_none")]
    num_purged: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base_addr: Option<Address>,
    #[serde(skip_serializing_if = "Option::is_none")]
    off: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ptr: Option<Address>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_alloc: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gfp_flags: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    caller: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lock: Option<Address>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flags: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ret: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<Cow<'a, str>>,
    #[serde(skip_serializing)]
    vmlab: Option<Box<Header>>,
    #[serde(skip_serializing)]
    area: Option<AreaLine<'a>>,
    #[serde(skip_serializing)]
    percpu_stats: Option<StatsLine<'a>>,
    #[serde(skip_serializing)]
    lost: Option<LostLine>,
    #[serde(skip_serializing)]
    stack: Option<StackLine<'a>>,
    #[serde(skip_serializing)]
    summary: Option<Box<Summary>>,
}

impl<'a> Row<'a> {
    /// The event: `None` if a field is missing, `Some(None)` if the event is not ours.
    fn entry(self, name: &str) -> Option<Option<Entry<'a>>> {
        let happening = match name {
            "alloc_vmap_area" => Happening::AllocArea {
                va_start: self.va_start?.0,
                size: self.size?.0,
                align: self.align?.0,
                vstart: self.vstart?.0,
                vend: self.vend?.0,
                failed: self.failed?.0,
            },
            "free_vmap_area_noflush" => Happening::FreeArea {
                va_start: self.va_start?.0,
                nr_lazy: self.nr_lazy.map(|n| n.0),
                nr_lazy_max: self.nr_lazy_max.map(|n| n.0),
            },
            "purge_vmap_area_lazy" => Happening::Purge {
                start: self.start.map(|n| n.0),
                end: self.end.map(|n| n.0),
                num_purged: self.num_purged?.0,
            },
            "percpu_alloc_percpu" => Happening::AllocPercpu {
                call_site: self.call_site,
                reserved: self.reserved?.0,
                is_atomic: self.is_atomic?.0,
                size: self.size?.0,
                align: self.align?.0,
                base_addr: self.base_addr?.0,
                off: self.off?.0,
                ptr: self.ptr?.0,
                bytes_alloc: self.bytes_alloc.map(|n| n.0),
                gfp_flags: self.gfp_flags,
            },
            "percpu_free_percpu" => Happening::FreePercpu {
                base_addr: self.base_addr?.0,
                off: self.off?.0,
                ptr: self.ptr.map(|n| n.0),
            },
            "percpu_alloc_percpu_fail" => Happening::FailPercpu {
                reserved: self.reserved?.0,
                is_atomic: self.is_atomic?.0,
                size: self.size?.0,
                align: self.align?.0,
            },
            "percpu_create_chunk" => Happening::CreateChunk { base_addr: self.base_addr?.0 },
            "percpu_destroy_chunk" => Happening::DestroyChunk { base_addr: self.base_addr?.0 },
            MARK => Happening::Mark { text: self.text? },
            LOCK_BEGIN => Happening::LockBegin { lock: self.lock?.0, flags: self.flags },
            LOCK_END => Happening::LockEnd { lock: self.lock?.0, ret: self.ret },
            _ => match Call::of_event(name) {
                Some((call, Edge::Enter)) => Happening::Enter { call, function: self.function? },
                Some((call, Edge::Leave)) => {
                    Happening::Leave { call, function: self.function?, caller: self.caller }
                }
                None => return Some(None),
            },
        };
        let Self { task, pid, cpu, ns, .. } = self;
        Some(Some(Entry { task, pid, cpu, ns: ns.map(|n| n.0), happening }))
    }
}

impl<'a> From<&'a Entry<'a>> for Row<'a> {
    fn from(entry: &'a Entry<'a>) -> Self {
        let (some, at) = (|n: u64| Some(Number(n)), |n: u64| Some(Address(n)));
        let text = |text: &'a Option<Cow<'a, str>>| text.as_deref().map(Cow::Borrowed);
        let row = Self {
            event: Some(Cow::Borrowed(entry.happening.name())),
            ns: entry.ns.map(Number),
            cpu: entry.cpu,
            task: text(&entry.task),
            pid: entry.pid,
            ..Self::default()
        };
        match &entry.happening {
            &Happening::AllocArea { va_start, size, align, vstart, vend, failed } => Self {
                va_start: at(va_start),
                size: some(size),
                align: some(align),
                vstart: at(vstart),
                vend: at(vend),
                failed: some(failed),
                ..row
            },
            &Happening::FreeArea { va_start, nr_lazy, nr_lazy_max } => Self {
                va_start: at(va_start),
                nr_lazy: nr_lazy.map(Number),
                nr_lazy_max: nr_lazy_max.map(Number),
                ..row
            },
            &Happening::Purge { start, end, num_purged } => {
                Self { start: start.map(Address), end: end.map(Address), num_purged: some(num_purged), ..row }
            }
            Happening::AllocPercpu {
                call_site,
                reserved,
                is_atomic,
                size,
                align,
                base_addr,
                off,
                ptr,
                bytes_alloc,
                gfp_flags,
            } => Self {
                call_site: text(call_site),
                reserved: some(*reserved),
                is_atomic: some(*is_atomic),
                size: some(*size),
                align: some(*align),
                base_addr: at(*base_addr),
                off: some(*off),
                ptr: at(*ptr),
                bytes_alloc: bytes_alloc.map(Number),
                gfp_flags: text(gfp_flags),
                ..row
            },
            &Happening::FreePercpu { base_addr, off, ptr } => {
                Self { base_addr: at(base_addr), off: some(off), ptr: ptr.map(Address), ..row }
            }
            &Happening::FailPercpu { reserved, is_atomic, size, align } => Self {
                reserved: some(reserved),
                is_atomic: some(is_atomic),
                size: some(size),
                align: some(align),
                ..row
            },
            &Happening::CreateChunk { base_addr } | &Happening::DestroyChunk { base_addr } => {
                Self { base_addr: at(base_addr), ..row }
            }
            Happening::Enter { function, .. } => Self { function: Some(Cow::Borrowed(function)), ..row },
            Happening::Leave { function, caller, .. } => {
                Self { function: Some(Cow::Borrowed(function)), caller: text(caller), ..row }
            }
            Happening::LockBegin { lock, flags } => Self { lock: at(*lock), flags: text(flags), ..row },
            &Happening::LockEnd { lock, ret } => Self { lock: at(lock), ret, ..row },
            Happening::Mark { text } => Self { text: Some(Cow::Borrowed(text)), ..row },
        }
    }
}
