//! Call stacks among the events.
//!
//! # Theory
//! The trigger `stacktrace` writes a call stack into the kernel's buffer after each event: `<stack trace>`, and a line
//! `=> function` for each frame, innermost first. An interrupt on the same CPU may come between the two, with an event
//! and a stack of its own. So a stack belongs to the last event of its CPU and thread that has none yet
//! ([`Unmatched`]).
//!
//! Source: `kernel/trace/trace_events_trigger.c` (`stacktrace_trigger`) and `kernel/trace/trace_output.c`
//! (`trace_stack_print`) of Linux 6.12.

use super::entry::{at_cpu, mark, nanoseconds, task, write_head};
use super::fields::{function, split};
use super::jsonl::{Number, StackLine};
use std::borrow::Cow;
use std::fmt;

/// The most frames of a stack, and the most bytes of their names, that are read from text. The kernel's stacks have
/// some 20 frames.
const FRAMES_MAX: usize = 128;
const NAMES_BYTES: usize = 4096;
/// The name in place of a function for what has no stack.
pub const NO_STACK: &str = "(stack not recorded)";
/// The most events of a CPU that wait for their stacks: of a thread, of a soft interrupt, of an interrupt and of an
/// NMI.
const NESTED_MAX: usize = 4;

/// The format that the kernel prints in `trace`, without a task's name.
impl fmt::Display for StackLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_head(f, None, self.pid, self.cpu, self.ns.map(|ns| ns.0))?;
        f.write_str("<stack trace>")?;
        self.frames.iter().try_for_each(|frame| write!(f, "\n => {}", frame.replace(char::is_control, " ")))
    }
}

impl StackLine<'_> {
    /// Returns the function that called the allocator: the innermost that is neither of vmalloc, of per-CPU memory nor
    /// of tracing. Its name is that of a table of areas, which names no module.
    pub fn caller(&self) -> Option<&str> {
        self.frames.iter().map(|frame| &**frame).find(|frame| !is_internal(frame)).map(without_module)
    }
}

/// Returns `f` of `f [module]`.
pub fn without_module(function: &str) -> &str {
    function.split_once(" [").map_or(function, |(name, _)| name)
}

/// Functions that call the allocator for someone else, without `_noprof` and the compiler's suffixes.
const INTERNAL: [&str; 57] = [
    "alloc_vmap_area",
    "__get_vm_area_node",
    "get_vm_area",
    "get_vm_area_caller",
    "__get_vm_area_caller",
    "__vmalloc_node_range",
    "__vmalloc_node",
    "__vmalloc",
    "__vmalloc_array",
    "vmalloc",
    "vmalloc_array",
    "vmalloc_node",
    "vmalloc_user",
    "vmalloc_huge",
    "vmalloc_huge_node",
    "vmalloc_32",
    "vmalloc_32_user",
    "vzalloc",
    "vzalloc_node",
    "vcalloc",
    "vrealloc",
    "vrealloc_node_align",
    "kvmalloc_node",
    "__kvmalloc_node",
    "kvrealloc",
    "kvrealloc_node_align",
    "vmap",
    "vmap_pfn",
    "vm_map_ram",
    "vb_alloc",
    "new_vmap_block",
    "__ioremap_caller",
    "generic_ioremap_prot",
    "ioremap",
    "ioremap_wc",
    "ioremap_uc",
    "ioremap_cache",
    "ioremap_prot",
    "iounmap",
    "free_vmap_area_noflush",
    "free_unmap_vmap_area",
    "remove_vm_area",
    "vfree",
    "kvfree",
    "vunmap",
    "vm_unmap_ram",
    "vb_free",
    "free_vmap_block",
    "purge_fragmented_block",
    "pcpu_alloc",
    "__alloc_percpu",
    "__alloc_percpu_gfp",
    "__alloc_reserved_percpu",
    "free_percpu",
    "pcpu_create_chunk",
    "pcpu_destroy_chunk",
    "pcpu_get_vm_areas",
];

/// Beginnings of the names of functions that write events.
const TRACING: [&str; 5] = ["trace_event_", "perf_trace_", "__traceiter_", "__do_trace_", "event_trigger"];

/// Returns true for a function of the allocator, or of tracing.
pub fn is_internal(frame: &str) -> bool {
    let name = frame.split(['.', ' ']).next().unwrap_or(frame);
    let name = name.strip_suffix("_noprof").unwrap_or(name);
    INTERNAL.contains(&name) || is_tracing(name)
}

/// Returns true for a function that writes events.
pub fn is_tracing(frame: &str) -> bool {
    TRACING.iter().any(|start| frame.starts_with(start))
}

/// Reads stacks from text, line by line.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    open: Option<StackLine<'static>>,
    bytes: usize,
}

/// The meaning of a line for a [`Reader`].
pub(crate) struct Taken {
    /// The stack that ended before the line.
    pub(crate) ended: Option<StackLine<'static>>,
    /// True if the line is a part of a stack.
    pub(crate) part: bool,
}

impl Reader {
    /// Takes a line.
    pub(crate) fn take(&mut self, line: &str) -> Taken {
        let line = line.trim();
        if let Some(stack) = &mut self.open
            && let Some(frame) = line.strip_prefix("=>")
        {
            let name = function(frame.trim()).into_owned();
            self.bytes += name.len();
            if stack.frames.len() < FRAMES_MAX && self.bytes <= NAMES_BYTES {
                stack.frames.push(Cow::Owned(name));
            }
            return Taken { ended: None, part: true };
        }
        let ended = self.end();
        if let Some(stack) = head(line) {
            (self.open, self.bytes) = (Some(stack), 0);
            return Taken { ended, part: true };
        }
        Taken { ended, part: false }
    }

    /// Ends the input, or a part of it after which no frame follows.
    pub(crate) fn end(&mut self) -> Option<StackLine<'static>> {
        self.open.take()
    }
}

/// Returns the head of a stack, if the line is one.
fn head(line: &str) -> Option<StackLine<'static>> {
    let head = line.strip_suffix("<stack trace>").or_else(|| line.strip_suffix("<stack trace >"))?;
    if line.starts_with(['#', '{']) || split(line).is_some() || mark(line).is_some() {
        return None;
    }
    let (task_text, rest) = at_cpu(head);
    let cpu = rest.and_then(|rest| rest[1..].split_once(']')?.0.parse().ok());
    let ns = head.split_whitespace().rev().find_map(|word| nanoseconds(word.strip_suffix(':')?));
    Some(StackLine { cpu, pid: task(task_text).1, ns: ns.map(Number), frames: Vec::new() })
}

/// The events that have no stack yet.
#[derive(Clone, Debug)]
pub struct Unmatched<T> {
    cpus: Vec<Vec<(Option<u32>, T)>>,
}

impl<T> Default for Unmatched<T> {
    fn default() -> Self {
        Self { cpus: Vec::new() }
    }
}

impl<T> Unmatched<T> {
    /// Adds an event of a CPU and a thread. Of more than four on a CPU the first is dropped.
    pub fn push(&mut self, cpu: Option<u16>, pid: Option<u32>, event: T) {
        let cpu = usize::from(cpu.unwrap_or(0));
        if self.cpus.len() <= cpu {
            self.cpus.resize_with(cpu + 1, Vec::new);
        }
        let waiting = &mut self.cpus[cpu];
        if waiting.len() == NESTED_MAX {
            waiting.remove(0);
        }
        waiting.push((pid, event));
    }

    /// Removes and returns the event of a stack.
    pub fn take(&mut self, stack: &StackLine<'_>) -> Option<T> {
        let waiting = self.cpus.get_mut(usize::from(stack.cpu.unwrap_or(0)))?;
        let at = waiting.iter().rposition(|(pid, _)| *pid == stack.pid)?;
        // Events after it on this CPU came and went in between: their stacks are lost.
        waiting.truncate(at + 1);
        waiting.pop().map(|(_, event)| event)
    }

    /// Drops the events that wait: some events were lost, perhaps these stacks.
    pub fn clear(&mut self) {
        self.cpus.iter_mut().for_each(Vec::clear);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::lines;

    const HEAD: &str = "            bash-7   [001] d..1. 50664.956439: <stack trace>";

    #[test]
    fn a_stack_is_read_from_text_and_written_again() {
        let text = format!(
            "{HEAD}\n => trace_event_raw_event_alloc_vmap_area\n => alloc_vmap_area+0x12/0x345\n => nft_init [nf_tables]\n => bad\"\\name\n"
        );
        let mut reader = Reader::default();
        for line in text.lines() {
            let taken = reader.take(line);
            assert!(taken.part && taken.ended.is_none());
        }
        let stack = reader.end().unwrap();
        assert_eq!((stack.cpu, stack.pid, stack.ns), (Some(1), Some(7), Some(Number(50_664_956_439_000))));
        assert_eq!(
            stack.frames,
            ["trace_event_raw_event_alloc_vmap_area", "alloc_vmap_area", "nft_init [nf_tables]", "bad??name"]
        );
        assert_eq!(stack.caller(), Some("nft_init"));
        let mut again = Reader::default();
        for line in stack.to_string().lines() {
            assert!(again.take(line).part);
        }
        assert_eq!(again.end().unwrap(), stack);
    }

    #[test]
    fn what_is_no_stack_is_not_taken() {
        let mut reader = Reader::default();
        for line in [
            " => alone",
            "# x: <stack trace>",
            "x-1 [000] 1.0: free_vmap_area_noflush: va_start=0x1000 <stack trace>",
            "x-1 [000] 1.0: tracing_mark_write: <stack trace>",
            "<stack trace> x",
        ] {
            assert!(!reader.take(line).part, "{line}");
        }
        assert!(reader.take(HEAD).part);
        let taken = reader.take("x-1 [000] 1.0: free_vmap_area_noflush: va_start=0x1000");
        assert!(!taken.part && taken.ended.is_some_and(|stack| stack.frames.is_empty()));
        assert!(!reader.take(" => after").part);
    }

    #[test]
    fn a_stack_without_end_is_cut() {
        let text = format!("{HEAD}\n{}", format!(" => {}\n", "x".repeat(300)).repeat(1000));
        let read = lines(text.as_bytes()).unwrap();
        assert_eq!(read.len(), 1);
        assert!(read[0].len() < 5000);
        assert_eq!(lines(read[0].as_bytes()).unwrap(), read);
    }

    #[test]
    fn a_stack_belongs_to_the_last_event_of_its_cpu_and_thread_that_has_none() {
        let stack = |cpu, pid| StackLine { cpu: Some(cpu), pid: Some(pid), ..StackLine::default() };
        let mut unmatched = Unmatched::default();
        unmatched.push(Some(0), Some(7), "of the thread");
        unmatched.push(Some(1), Some(8), "elsewhere");
        unmatched.push(Some(0), Some(7), "of an interrupt");
        assert_eq!(unmatched.take(&stack(0, 7)), Some("of an interrupt"));
        assert_eq!(unmatched.take(&stack(0, 7)), Some("of the thread"));
        assert_eq!(unmatched.take(&stack(0, 7)), None);
        assert_eq!(unmatched.take(&stack(1, 7)), None);
        assert_eq!(unmatched.take(&stack(9, 7)), None);
        unmatched.clear();
        assert_eq!(unmatched.take(&stack(1, 8)), None);
        for event in ["a", "b", "c", "d", "e"] {
            unmatched.push(Some(0), None, event);
        }
        assert_eq!(unmatched.cpus[0].len(), NESTED_MAX);
    }

    #[test]
    fn the_caller_is_the_first_function_outside_the_allocator() {
        let caller = |frames: &[&'static str]| {
            let frames = frames.iter().map(|frame| Cow::Borrowed(*frame)).collect();
            StackLine { frames, ..StackLine::default() }.caller().map(str::to_string)
        };
        assert_eq!(
            caller(&[
                "trace_event_raw_event_alloc_vmap_area",
                "alloc_vmap_area",
                "__get_vm_area_node.constprop.0",
                "__vmalloc_node_range_noprof",
                "copy_process",
                "kernel_clone"
            ]),
            Some("copy_process".to_string())
        );
        assert_eq!(caller(&["vfree.part.0", "delayed_vfree_work"]), Some("delayed_vfree_work".to_string()));
        assert_eq!(caller(&["alloc_vmap_area"]), None);
    }
}
