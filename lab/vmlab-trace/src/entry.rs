//! One entry of a trace with all fields that the kernel printed. Recordings and conversions use it.
//!
//! A replay needs fewer fields and reads more forms ([`parse`](super::parse)). On lines that both understand they
//! agree; a test checks this.

use super::call::{Call, Edge};
use super::event::{Event, Line, Mark, PercpuEvent};
use super::fields::{LOCK_BEGIN, LOCK_END, field, function, hex, in_parentheses, number, split};
use std::borrow::Cow;
use std::fmt;

/// One entry of the kernel's buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Name of the task that ran.
    pub task: Option<Cow<'a, str>>,
    /// Its process id.
    pub pid: Option<u32>,
    /// The CPU that it ran on.
    pub cpu: Option<u16>,
    /// Nanoseconds of the clock of the trace.
    pub ns: Option<u64>,
    /// The event.
    pub happening: Happening<'a>,
}

/// The event, in the kernel's words. Sizes and alignments are bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the kernel's, by its names")]
pub enum Happening<'a> {
    /// `alloc_vmap_area`: an attempt to allocate.
    AllocArea { va_start: u64, size: u64, align: u64, vstart: u64, vend: u64, failed: u64 },
    /// `free_vmap_area_noflush`: an area became lazy. The kernel's count of lazy pages includes this area.
    FreeArea { va_start: u64, nr_lazy: Option<u64>, nr_lazy_max: Option<u64> },
    /// `purge_vmap_area_lazy`: the kernel freed all lazy areas. `start` and `end` bound the flushed range.
    Purge { start: Option<u64>, end: Option<u64>, num_purged: u64 },
    /// `percpu_alloc_percpu`: an object of per-CPU memory.
    AllocPercpu {
        call_site: Option<Cow<'a, str>>,
        reserved: u64,
        is_atomic: u64,
        size: u64,
        align: u64,
        base_addr: u64,
        off: u64,
        ptr: u64,
        bytes_alloc: Option<u64>,
        gfp_flags: Option<Cow<'a, str>>,
    },
    /// `percpu_free_percpu`.
    FreePercpu { base_addr: u64, off: u64, ptr: Option<u64> },
    /// `percpu_alloc_percpu_fail`.
    FailPercpu { reserved: u64, is_atomic: u64, size: u64, align: u64 },
    /// `percpu_create_chunk`.
    CreateChunk { base_addr: u64 },
    /// `percpu_destroy_chunk`.
    DestroyChunk { base_addr: u64 },
    /// A function of the kernel begins.
    Enter { call: Call, function: Cow<'a, str> },
    /// It returns to its caller.
    Leave { call: Call, function: Cow<'a, str>, caller: Option<Cow<'a, str>> },
    /// `contention_begin`: a thread begins to wait for a lock.
    LockBegin { lock: u64, flags: Option<Cow<'a, str>> },
    /// `contention_end`: it has the lock, or gave up with an error.
    LockEnd { lock: u64, ret: Option<i32> },
    /// A mark that the recorder wrote into the trace, at the time when it wrote it.
    Mark { text: Cow<'a, str> },
}

/// Name of the recorder's mark in the text of a trace.
pub(super) const MARK: &str = "tracing_mark_write";

impl Happening<'_> {
    /// Returns true for an event whose call stack a recorder may request.
    pub(crate) fn has_stack(&self) -> bool {
        !matches!(self, Self::Enter { .. } | Self::Leave { .. } | Self::LockEnd { .. } | Self::Mark { .. })
    }

    /// The kernel's name of the event.
    pub fn name(&self) -> &'static str {
        match self {
            Self::AllocArea { .. } => "alloc_vmap_area",
            Self::FreeArea { .. } => "free_vmap_area_noflush",
            Self::Purge { .. } => "purge_vmap_area_lazy",
            Self::AllocPercpu { .. } => "percpu_alloc_percpu",
            Self::FreePercpu { .. } => "percpu_free_percpu",
            Self::FailPercpu { .. } => "percpu_alloc_percpu_fail",
            Self::CreateChunk { .. } => "percpu_create_chunk",
            Self::DestroyChunk { .. } => "percpu_destroy_chunk",
            Self::Enter { call, .. } => call.event(Edge::Enter),
            Self::Leave { call, .. } => call.event(Edge::Leave),
            Self::LockBegin { .. } => LOCK_BEGIN,
            Self::LockEnd { .. } => LOCK_END,
            Self::Mark { .. } => MARK,
        }
    }
}

impl<'a> Entry<'a> {
    /// Reads a line of text of any of the tools. `None` for an event that is not ours, or one that is not understood.
    pub fn from_text(line: &'a str) -> Option<Self> {
        let line = line.trim();
        if line.starts_with('#') {
            return None;
        }
        let (name, fields) = split(line).or_else(|| mark(line))?;
        let happening = Happening::from_fields(name, fields)?;
        let head = line[..line.len() - fields.len()].trim_end().strip_suffix(':')?.strip_suffix(name)?;
        let (task_text, rest) = at_cpu(head);
        let (task, pid) = task(task_text);
        let cpu = rest.and_then(|rest| rest[1..].split_once(']')?.0.parse().ok());
        let ns = head.split_whitespace().rev().find_map(|word| nanoseconds(word.strip_suffix(':')?));
        Some(Self { task: task.map(Cow::Borrowed), pid, cpu, ns, happening })
    }
}

/// A mark, and its text.
pub(crate) fn mark(line: &str) -> Option<(&'static str, &str)> {
    let colon = line.find("tracing_mark_write:")? + MARK.len();
    let before = line[..colon - MARK.len()].chars().next_back();
    before.is_none_or(char::is_whitespace).then(|| (MARK, line[colon + 1..].trim_start()))
}

/// Returns the text before the CPU, `[003]`, and the text from the CPU on.
pub(super) fn at_cpu(head: &str) -> (&str, Option<&str>) {
    let is_cpu = |at: usize| {
        let end = head[at..].find(']').map(|len| at + len)?;
        head[at + 1..end].parse::<u16>().ok()
    };
    // The name of a task may also contain brackets: the last pair before the event is the CPU.
    let at = head.rmatch_indices('[').map(|(at, _)| at).find(|&at| is_cpu(at).is_some());
    at.map_or((head, None), |at| (&head[..at], Some(&head[at..])))
}

/// `NAME-PID`, `NAME-PID (TGID)` or `NAME PID`.
pub(super) fn task(task_text: &str) -> (Option<&str>, Option<u32>) {
    let mut task_text = task_text.trim();
    if let Some((before, tgid)) = task_text.rsplit_once('(')
        && tgid.ends_with(')')
        && tgid.trim_end_matches(')').trim().chars().all(|c| c.is_ascii_digit() || c == '-')
    {
        task_text = before.trim_end();
    }
    match task_text.rsplit_once(['-', ' ', '\t']) {
        Some((name, pid)) if pid.bytes().all(|byte| byte.is_ascii_digit()) => match pid.parse() {
            Ok(pid) => (Some(name.trim_end()).filter(|name| !name.is_empty()), Some(pid)),
            Err(_) => (None, None),
        },
        _ => (None, None),
    }
}

/// `SECONDS.FRACTION`.
pub(super) fn nanoseconds(text: &str) -> Option<u64> {
    let (seconds, fraction) = text.split_once('.')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(seconds) || !digits(fraction) || fraction.len() > 9 {
        return None;
    }
    let scale = 10u64.pow(9 - u32::try_from(fraction.len()).ok()?);
    seconds
        .parse::<u64>()
        .ok()?
        .checked_mul(1_000_000_000)?
        .checked_add(fraction.parse::<u64>().ok()? * scale)
}

impl<'a> Happening<'a> {
    fn from_fields(name: &str, fields: &'a str) -> Option<Self> {
        let get = |key| field(fields, key).and_then(number);
        let pointer = |key| field(fields, key).and_then(hex);
        Some(match name {
            "alloc_vmap_area" => Self::AllocArea {
                // Printed as "va_start: N", unlike every other field.
                va_start: match fields.strip_prefix("va_start:") {
                    Some(rest) => number(rest.split_whitespace().next()?)?,
                    None => get("va_start")?,
                },
                size: get("size")?,
                align: get("align")?,
                vstart: get("vstart")?,
                vend: get("vend")?,
                failed: get("failed")?,
            },
            "free_vmap_area_noflush" => Self::FreeArea {
                va_start: get("va_start")?,
                nr_lazy: get("nr_lazy"),
                nr_lazy_max: get("nr_lazy_max"),
            },
            "purge_vmap_area_lazy" => {
                Self::Purge { start: get("start"), end: get("end"), num_purged: get("num_purged")? }
            }
            "percpu_alloc_percpu" => Self::AllocPercpu {
                call_site: field(fields, "call_site").map(Cow::Borrowed),
                reserved: get("reserved")?,
                is_atomic: get("is_atomic")?,
                size: get("size")?,
                align: get("align")?,
                base_addr: pointer("base_addr")?,
                off: get("off")?,
                ptr: pointer("ptr")?,
                bytes_alloc: get("bytes_alloc"),
                gfp_flags: field(fields, "gfp_flags").map(Cow::Borrowed),
            },
            "percpu_free_percpu" => {
                Self::FreePercpu { base_addr: pointer("base_addr")?, off: get("off")?, ptr: pointer("ptr") }
            }
            "percpu_alloc_percpu_fail" => Self::FailPercpu {
                reserved: get("reserved")?,
                is_atomic: get("is_atomic")?,
                size: get("size")?,
                align: get("align")?,
            },
            "percpu_create_chunk" => Self::CreateChunk { base_addr: pointer("base_addr")? },
            "percpu_destroy_chunk" => Self::DestroyChunk { base_addr: pointer("base_addr")? },
            MARK => Self::Mark { text: Cow::Borrowed(fields) },
            LOCK_BEGIN => {
                Self::LockBegin { lock: lock(fields)?, flags: after_lock(fields, "flags").map(Cow::Borrowed) }
            }
            LOCK_END => Self::LockEnd {
                lock: lock(fields)?,
                ret: after_lock(fields, "ret").and_then(|ret| ret.parse().ok()),
            },
            _ => {
                let (call, edge) = Call::of_event(name)?;
                let place = in_parentheses(fields)?;
                match edge {
                    Edge::Enter => Self::Enter { call, function: function(place) },
                    Edge::Leave => {
                        let (caller, place) = place
                            .split_once(" <- ")
                            .map_or((None, place), |(caller, place)| (Some(function(caller)), place));
                        Self::Leave { call, function: function(place), caller }
                    }
                }
            }
        })
    }
}

/// Returns the lock of `00000000abcd (flags=SPIN)`.
fn lock(fields: &str) -> Option<u64> {
    fields.split_whitespace().next().and_then(hex)
}

/// Returns a value in the parentheses behind a lock.
fn after_lock<'a>(fields: &'a str, key: &str) -> Option<&'a str> {
    in_parentheses(fields.split_once(' ')?.1)?.strip_prefix(key)?.strip_prefix('=')
}

/// Writes the text before the name of an event.
pub(super) fn write_head(
    f: &mut fmt::Formatter<'_>,
    task: Option<&str>,
    pid: Option<u32>,
    cpu: Option<u16>,
    ns: Option<u64>,
) -> fmt::Result {
    if let Some(pid) = pid {
        write!(f, "{:>16}-{pid:<7} ", task.unwrap_or("<...>"))?;
    }
    if let Some(cpu) = cpu {
        write!(f, "[{cpu:03}] ..... ")?;
    }
    if let Some(ns) = ns {
        let (seconds, rest) = (ns / 1_000_000_000, ns % 1_000_000_000);
        match rest % 1000 {
            0 => write!(f, "{seconds:>5}.{:06}: ", rest / 1000)?,
            _ => write!(f, "{seconds:>5}.{rest:09}: ")?,
        }
    }
    Ok(())
}

/// The format that the kernel prints in `trace`.
impl fmt::Display for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_head(f, self.task.as_deref(), self.pid, self.cpu, self.ns)?;
        write!(f, "{}: {}", self.happening.name(), self.happening)
    }
}

/// The fields, in the format that the kernel prints after the name of the event.
impl fmt::Display for Happening<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllocArea { va_start, size, align, vstart, vend, failed } => write!(
                f,
                "va_start: {va_start} size={size} align={align} vstart={vstart:#x} vend={vend:#x} failed={failed}"
            ),
            Self::FreeArea { va_start, nr_lazy, nr_lazy_max } => {
                write!(f, "va_start={va_start:#x}")?;
                nr_lazy.map_or(Ok(()), |pages| write!(f, " nr_lazy={pages}"))?;
                nr_lazy_max.map_or(Ok(()), |pages| write!(f, " nr_lazy_max={pages}"))
            }
            Self::Purge { start, end, num_purged } => {
                start.map_or(Ok(()), |at| write!(f, "start={at:#x} "))?;
                end.map_or(Ok(()), |at| write!(f, "end={at:#x} "))?;
                write!(f, "num_purged={num_purged}")
            }
            Self::AllocPercpu {
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
            } => {
                call_site.as_ref().map_or(Ok(()), |site| write!(f, "call_site={site} "))?;
                write!(f, "reserved={reserved} is_atomic={is_atomic} size={size} align={align} ")?;
                write!(f, "base_addr={base_addr:016x} off={off} ptr={ptr:016x}")?;
                bytes_alloc.map_or(Ok(()), |bytes| write!(f, " bytes_alloc={bytes}"))?;
                gfp_flags.as_ref().map_or(Ok(()), |flags| write!(f, " gfp_flags={flags}"))
            }
            Self::FreePercpu { base_addr, off, ptr } => {
                write!(f, "base_addr={base_addr:016x} off={off}")?;
                ptr.map_or(Ok(()), |ptr| write!(f, " ptr={ptr:016x}"))
            }
            Self::FailPercpu { reserved, is_atomic, size, align } => {
                write!(f, "reserved={reserved} is_atomic={is_atomic} size={size} align={align}")
            }
            Self::CreateChunk { base_addr } | Self::DestroyChunk { base_addr } => {
                write!(f, "base_addr={base_addr:016x}")
            }
            Self::Enter { function, .. } => write!(f, "({function})"),
            Self::Leave { function, caller: None, .. } => write!(f, "({function})"),
            Self::Leave { function, caller: Some(caller), .. } => write!(f, "({caller} <- {function})"),
            Self::LockBegin { lock, flags } => {
                write!(f, "{lock:016x}")?;
                flags.as_ref().map_or(Ok(()), |flags| write!(f, " (flags={flags})"))
            }
            Self::LockEnd { lock, ret } => {
                write!(f, "{lock:016x}")?;
                ret.map_or(Ok(()), |ret| write!(f, " (ret={ret})"))
            }
            Self::Mark { text } => f.write_str(text),
        }
    }
}

impl Entry<'_> {
    /// Returns the line that a replay on an index uses.
    pub fn line(&self) -> Line {
        Line::Event(match self.happening {
            Happening::AllocArea { va_start, size, align, vstart, vend, failed } => Event::Alloc {
                addr: va_start,
                size,
                align,
                vstart,
                vend,
                failed: match failed {
                    0 => false,
                    1 => true,
                    _ => return Line::Bad,
                },
            },
            Happening::FreeArea { va_start, .. } => Event::Free { addr: va_start },
            Happening::Purge { num_purged, .. } => Event::Purge { purged: num_purged },
            Happening::CreateChunk { base_addr } => Event::ChunkCreate { base: base_addr },
            Happening::DestroyChunk { base_addr } => Event::ChunkDestroy { base: base_addr },
            Happening::AllocPercpu { .. } | Happening::FreePercpu { .. } | Happening::FailPercpu { .. } => {
                return Line::Percpu;
            }
            Happening::Enter { .. }
            | Happening::Leave { .. }
            | Happening::LockBegin { .. }
            | Happening::LockEnd { .. } => return Line::Other,
            Happening::Mark { ref text } => return Mark::from_text(text).map_or(Line::Other, Line::Mark),
        })
    }

    /// Returns the event that a replay inside percpu chunks uses.
    pub fn percpu(&self) -> Option<PercpuEvent> {
        match self.happening {
            Happening::AllocPercpu { base_addr, off, ptr, size, align, reserved, is_atomic, .. } => {
                let (reserved, atomic) = (reserved != 0, is_atomic != 0);
                Some(PercpuEvent::Alloc { base: base_addr, off, ptr, size, align, reserved, atomic })
            }
            Happening::FreePercpu { base_addr, off, .. } => Some(PercpuEvent::Free { base: base_addr, off }),
            Happening::CreateChunk { base_addr } => Some(PercpuEvent::Create { base: base_addr }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jsonl::Item;
    use crate::{cpu, parse};
    use proptest::prelude::*;

    fn number_any() -> impl Strategy<Value = u64> {
        prop_oneof![Just(0), Just(u64::MAX), 0..1u64 << 20, any::<u64>()]
    }

    /// A word of a field: no blank, no comma.
    fn word() -> impl Strategy<Value = Cow<'static, str>> {
        "[a-zA-Z_+/0-9|.\u{e4}\"\\\\]{1,20}".prop_map(Cow::Owned)
    }

    fn call() -> impl Strategy<Value = Call> {
        proptest::sample::select(Call::ALL.to_vec())
    }

    /// A function, perhaps of a module.
    fn function_name() -> impl Strategy<Value = Cow<'static, str>> {
        "[a-zA-Z_][a-z0-9_.]{0,20}( \\[[a-z_]{1,8}\\])?".prop_map(Cow::Owned)
    }

    fn happening() -> impl Strategy<Value = Happening<'static>> {
        let n = number_any;
        let some = || proptest::option::of(number_any());
        let text = || proptest::option::of(word());
        prop_oneof![
            (n(), n(), n(), n(), n(), 0..3u64).prop_map(|(va_start, size, align, vstart, vend, failed)| {
                Happening::AllocArea { va_start, size, align, vstart, vend, failed }
            }),
            (n(), some(), some()).prop_map(|(va_start, nr_lazy, nr_lazy_max)| Happening::FreeArea {
                va_start,
                nr_lazy,
                nr_lazy_max
            }),
            (some(), some(), n()).prop_map(|(start, end, num_purged)| Happening::Purge {
                start,
                end,
                num_purged
            }),
            ((text(), 0..2u64, 0..2u64, n(), n()), (n(), n(), n(), some(), text())).prop_map(
                |(
                    (call_site, reserved, is_atomic, size, align),
                    (base_addr, off, ptr, bytes_alloc, gfp_flags),
                )| {
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
                    }
                }
            ),
            (n(), n(), some()).prop_map(|(base_addr, off, ptr)| Happening::FreePercpu {
                base_addr,
                off,
                ptr
            }),
            (0..2u64, 0..2u64, n(), n()).prop_map(|(reserved, is_atomic, size, align)| {
                Happening::FailPercpu { reserved, is_atomic, size, align }
            }),
            n().prop_map(|base_addr| Happening::CreateChunk { base_addr }),
            n().prop_map(|base_addr| Happening::DestroyChunk { base_addr }),
            (call(), function_name()).prop_map(|(call, function)| Happening::Enter { call, function }),
            (call(), function_name(), proptest::option::of(function_name()))
                .prop_map(|(call, function, caller)| Happening::Leave { call, function, caller }),
            (n(), text()).prop_map(|(lock, flags)| Happening::LockBegin { lock, flags }),
            (n(), proptest::option::of(any::<i32>()))
                .prop_map(|(lock, ret)| Happening::LockEnd { lock, ret }),
            "[a-z \"\\\\=:]{0,30}"
                .prop_map(|text| Happening::Mark { text: Cow::Owned(text.trim().to_string()) }),
        ]
    }

    prop_compose! {
        fn entry()(
            task_and_pid in proptest::option::of(("[a-zA-Z][a-zA-Z0-9/:_. \\[\\]()\"-]{0,14}[a-z]", any::<u32>())),
            cpu in proptest::option::of(any::<u16>()),
            ns in proptest::option::of(any::<u64>()),
            happening in happening(),
        ) -> Entry<'static> {
            let (task, pid) = task_and_pid.map_or((None, None), |(task, pid)| (Some(Cow::Owned(task)), Some(pid)));
            // In the text, a task is always followed by a CPU.
            let cpu = if task.is_some() { cpu.or(Some(0)) } else { cpu };
            Entry { task, pid, cpu, ns, happening }
        }
    }

    proptest! {
        #[test]
        fn an_entry_is_the_same_after_text_and_after_json(entry in entry()) {
            let text = entry.to_string();
            prop_assert_eq!(Entry::from_text(&text), Some(entry.clone()), "{}", &text);
            let json = Item::Event(entry.clone()).to_json().unwrap();
            prop_assert_eq!(Item::from_json(&json).unwrap(), Some(Item::Event(entry)), "{}", json);
        }

        #[test]
        fn a_replay_reads_the_same_from_text_and_from_the_entry(entry in entry()) {
            let text = entry.to_string();
            prop_assert_eq!(parse(&text), entry.line(), "{}", &text);
            prop_assert_eq!(parse(&Item::Event(entry.clone()).to_json().unwrap()), entry.line());
            if !matches!(entry.happening, Happening::Mark { .. }) {
                prop_assert_eq!(cpu(&text), entry.cpu.unwrap_or(0), "{}", &text);
            }
        }

        #[test]
        fn any_text_is_read_without_harm(line in "[ -~\u{e4}]{0,120}", name in 0..13usize) {
            const NAMES: [&str; 13] = ["vmlab_enter_alloc:", "vmlab_leave_purge: (a <- ", "contention_begin: 1 (flags=", "contention_end:", "alloc_vmap_area: va_start: 1 size=1", "percpu_free_percpu:", "[0] [", "(", "-1 (", "tracing_mark_write:", "1.5:", "{\"event\":", "] ["];
            for text in [line.clone(), format!("{line}{}{line}", NAMES[name]), format!("{} {line}", NAMES[name])] {
                if let Some(entry) = Entry::from_text(&text) {
                    let again = entry.to_string();
                    prop_assert_eq!(Entry::from_text(&again).map(|entry| entry.happening), Some(entry.happening));
                }
                let _ = Item::from_json(&text);
            }
        }
    }

    #[test]
    fn the_heads_of_each_tool_are_read() {
        for (head, task, pid, at, ns) in [
            (
                "     kworker/1:1-23074   [001] ..... 46822.926556: ",
                "kworker/1:1",
                23074,
                1,
                46_822_926_556_000,
            ),
            ("          <idle>-0       [000] d..1.     0.219395: ", "<idle>", 0, 0, 219_395_000),
            ("  a-b c-12   (   12) [003] ..... 7.000000001: ", "a-b c", 12, 3, 7_000_000_001),
            ("swapper     7 [002]     0.219395: vmalloc:", "swapper", 7, 2, 219_395_000),
        ] {
            let line = format!("{head}free_vmap_area_noflush: va_start=0x1000 nr_lazy=2 nr_lazy_max=8192");
            let entry = Entry::from_text(&line).unwrap();
            let seen = (entry.task.as_deref(), entry.pid, entry.cpu, entry.ns);
            assert_eq!(seen, (Some(task), Some(pid), Some(at), Some(ns)), "{head}");
            assert_eq!(
                entry.happening,
                Happening::FreeArea { va_start: 0x1000, nr_lazy: Some(2), nr_lazy_max: Some(8192) }
            );
        }
        assert_eq!(Entry::from_text("a-1 [000] 1.0: sched_switch: prev=1"), None);
        assert_eq!(Entry::from_text("# alloc_vmap_area: va_start: 1"), None);
    }
}
