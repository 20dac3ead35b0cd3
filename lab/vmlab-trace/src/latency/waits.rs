//! Waits for locks, of the allocators alone.
//!
//! # Theory
//! The kernel writes `contention_begin` when a thread begins to wait for a lock, and `contention_end` when it has it. A
//! mutex that spins first and sleeps then begins twice and ends once: the wait is from the first. The events have the
//! address of the lock and not its name. A wait is one for an allocator's lock if the lock is a variable of the
//! allocators that the recording names. It is also one if the innermost function of its call stack, but those of locks,
//! is one of `mm/vmalloc.c` or `mm/percpu.c`, or of ours. So the lock of a slab cache, or of a page table, is another
//! lock although the allocator waits for it.
//!
//! Source: `include/trace/events/lock.h`, `kernel/locking/mutex.c` of Linux 6.12.

use super::open::Open;
use super::stats::Durations;
use super::{Names, Thread};
use crate::jsonl::{Header, StackLine};
use crate::stack::{NO_STACK, Unmatched, is_tracing};
use std::collections::{BTreeMap, HashMap};

/// The most waits of a thread, the most names of locks.
const DEPTH_MAX: usize = 16;
const LOCKS_MAX: usize = 1024;
/// The most stacks that are distinguished.
const STACKS_MAX: usize = 1 << 14;
const OTHERS: &str = "(other stacks)";

/// The variables of the allocators that are locks.
pub const LOCKS: [&str; 7] = [
    "free_vmap_area_lock",
    "vmap_area_lock",
    "vmap_purge_lock",
    "pcpu_lock",
    "pcpu_alloc_mutex",
    "va_purge_mutex",
    "va_readers_sem",
];

/// Functions of `mm/vmalloc.c` and `mm/percpu.c` that take locks of theirs, without `_noprof` and suffixes of the
/// compiler. Functions that are compiled into one of these have its name.
const HOLDERS: [&str; 46] = [
    "__get_vm_area_node",
    "__purge_vmap_area_lazy",
    "_vm_unmap_aliases",
    "addr_to_node",
    "alloc_vmap_area",
    "decay_va_pool_node",
    "drain_vmap_area_work",
    "find_unlink_vmap_area",
    "find_vmap_area",
    "find_vmap_area_exceed_addr_lock",
    "free_percpu",
    "free_vmap_area",
    "free_vmap_area_noflush",
    "free_vmap_block",
    "insert_vmap_area",
    "new_vmap_block",
    "node_alloc",
    "node_pool_add_va",
    "node_pool_del_va",
    "pcpu_alloc",
    "pcpu_balance_free",
    "pcpu_balance_populated",
    "pcpu_balance_workfn",
    "pcpu_create_chunk",
    "pcpu_destroy_chunk",
    "pcpu_free_area",
    "pcpu_get_vm_areas",
    "pcpu_free_vm_areas",
    "pcpu_nr_pages",
    "pcpu_populate_chunk",
    "pcpu_depopulate_chunk",
    "pcpu_reclaim_populated",
    "percpu_stats_show",
    "preload_this_cpu_lock",
    "purge_fragmented_block",
    "purge_fragmented_blocks_allcpus",
    "purge_vmap_node",
    "reclaim_and_purge_vmap_areas",
    "reclaim_list_global",
    "remove_vm_area",
    "vb_alloc",
    "vb_free",
    "vmalloc_dump_obj",
    "vmalloc_info_show",
    "vmap_node_shrink_scan",
    "vread_iter",
];

/// Beginnings of the names of functions that take a lock for their caller, without underscores and `native_`, `pv_`.
const TAKERS: [&str; 14] = [
    "queued_",
    "raw_spin_",
    "raw_read_",
    "raw_write_",
    "spin_",
    "mutex_",
    "down_",
    "rwsem_",
    "percpu_down_",
    "percpu_rwsem_",
    "rt_mutex_",
    "rt_spin_",
    "rt_read_",
    "rt_write_",
];

fn takes_for_another(frame: &str) -> bool {
    let mut name = frame.trim_start_matches('_');
    for start in ["native_", "pv_"] {
        name = name.strip_prefix(start).unwrap_or(name);
    }
    name = name.trim_start_matches('_');
    TAKERS.iter().any(|start| name.starts_with(start))
}

/// Returns true for a function of our core in a kernel, by its C name or the compiler's.
fn is_ours(frame: &str) -> bool {
    let mangled = frame.starts_with("_R") || frame.starts_with("_ZN");
    frame.starts_with("va_")
        || (mangled && ["8va_space", "7va_tree", "8va_linux", "7va_base"].iter().any(|of| frame.contains(of)))
}

/// Returns the function of an allocator that waits for a lock of its own; none if the lock is another's.
fn site<'a>(stack: &'a StackLine<'_>) -> Option<&'a str> {
    let mut frames = stack.frames.iter().map(|frame| &**frame);
    let mut frames =
        frames.by_ref().skip_while(|frame| is_tracing(frame) || takes_for_another(frame)).peekable();
    let first = *frames.peek()?;
    let holds = |frame: &str| {
        let name = frame.split(['.', ' ']).next().unwrap_or(frame);
        HOLDERS.contains(&name.strip_suffix("_noprof").unwrap_or(name))
    };
    if is_ours(first) {
        // Of our core the function of the kernel that called it says more.
        return Some(frames.find(|frame| !is_ours(frame)).unwrap_or(first));
    }
    holds(first).then_some(first)
}

/// A wait that has not ended.
#[derive(Clone, Debug)]
struct Wait {
    lock: u64,
    ns: u64,
    /// True if the wait is one of the selection.
    counted: bool,
    /// The function and the stack, by their numbers, if the lock is an allocator's; `Err` if it is another's.
    place: Option<Result<(u32, u32), ()>>,
}

/// A group of waits: the lock and the function that waits, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Group {
    pub(super) lock: u32,
    pub(super) site: u32,
}

/// Waits that are not in a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Elsewhere {
    /// For locks of others.
    pub other_locks: u64,
    /// Without a call stack, so that the lock is not known.
    pub unknown: u64,
    /// Waits without an end, and ends without a wait.
    pub unpaired: u64,
}

/// The waits of a trace.
#[derive(Clone, Debug, Default)]
pub(super) struct Waits {
    open: Open<Wait, DEPTH_MAX>,
    unmatched: Unmatched<Option<Thread>>,
    named: HashMap<u64, u32>,
    pub(super) groups: BTreeMap<Group, Durations>,
    /// Nanoseconds and waits of each stack.
    pub(super) stacks: HashMap<u32, (u64, u64)>,
    pub(super) elsewhere: Elsewhere,
    pub(super) any: bool,
    pub(super) count: u64,
}

impl Waits {
    /// Learns the names of locks.
    pub(super) fn learn(&mut self, header: &Header, names: &mut Names) {
        for lock in header.locks.iter().take(LOCKS_MAX).filter(|lock| LOCKS.contains(&lock.name.as_str())) {
            self.named.insert(lock.at.0, names.number(&lock.name));
        }
    }

    /// Takes any other event: its stack is not of a wait.
    pub(super) fn other(&mut self, cpu: Option<u16>, pid: Option<u32>) {
        if self.any {
            self.unmatched.push(cpu, pid, None);
        }
    }

    /// Begins a wait.
    pub(super) fn begin(
        &mut self,
        at: (Option<u16>, Option<u32>),
        lock: u64,
        ns: Option<u64>,
        counted: bool,
    ) {
        self.any = true;
        let thread = Thread::of(at.0, at.1);
        let Some(ns) = ns else { return self.elsewhere.unpaired += 1 };
        if self.open.is_full_for(thread) {
            self.forget();
        }
        // A mutex begins again when it stops spinning.
        if self.open.of(thread).iter().any(|wait| wait.lock == lock) {
            return self.unmatched.push(at.0, at.1, None);
        }
        let wait = Wait { lock, ns, counted, place: None };
        self.elsewhere.unpaired += u64::from(self.open.push(thread, wait));
        self.unmatched.push(at.0, at.1, Some(thread));
    }

    /// Takes a stack, perhaps of a wait.
    pub(super) fn stack(&mut self, stack: &StackLine<'_>, names: &mut Names) {
        let Some(Some(thread)) = self.unmatched.take(stack) else { return };
        let wait = self.open.of(thread).iter_mut().rfind(|wait| wait.place.is_none());
        let Some(wait) = wait else { return };
        let site = match site(stack) {
            Some(site) => site,
            None if self.named.contains_key(&wait.lock) => stack.caller().unwrap_or_default(),
            None => return wait.place = Some(Err(())),
        };
        let frames = stack.frames.iter().rev().filter(|frame| !is_tracing(frame));
        let path = frames.map(|frame| frame.replace([';', '\n'], "?")).collect::<Vec<_>>().join(";");
        let full = self.stacks.len() >= STACKS_MAX;
        let path = names.number(if full { OTHERS } else { &path });
        wait.place = Some(Ok((names.number(site), path)));
    }

    /// Ends a wait.
    pub(super) fn end(
        &mut self,
        thread: Thread,
        lock: u64,
        ns: Option<u64>,
        counted: bool,
        names: &mut Names,
    ) {
        self.any = true;
        let wait = self.open.take(thread, |open| {
            let at = open.iter().rposition(|wait| wait.lock == lock)?;
            Some(open.remove(at))
        });
        let Some(wait) = wait else { return self.elsewhere.unpaired += u64::from(counted) };
        if !wait.counted {
            return;
        }
        let named = self.named.get(&lock).copied();
        let (site, path) = match (wait.place, named) {
            (Some(Ok(place)), _) => place,
            (Some(Err(())), _) => return self.elsewhere.other_locks += 1,
            (None, Some(_)) => (names.number(NO_STACK), names.number(NO_STACK)),
            (None, None) => return self.elsewhere.unknown += 1,
        };
        let Some(took) = ns.and_then(|ns| ns.checked_sub(wait.ns)) else {
            return self.elsewhere.unpaired += 1;
        };
        // For a lock without a name the function stands: a node has its own, and so has a CPU.
        let group = Group { lock: named.unwrap_or(0), site };
        self.groups.entry(group).or_default().push(took);
        let (all, count) = self.stacks.entry(path).or_default();
        *all = all.saturating_add(took);
        *count += 1;
        self.count += 1;
    }

    /// Forgets the waits that have not ended: events were lost.
    pub(super) fn forget(&mut self) {
        self.elsewhere.unpaired += self.open.drain().filter(|wait| wait.counted).count() as u64;
        self.unmatched.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(frames: &[&'static str]) -> Option<String> {
        let frames = frames.iter().map(|&frame| frame.into()).collect();
        site(&StackLine { frames, ..StackLine::default() }).map(str::to_string)
    }

    #[test]
    fn the_innermost_function_decides_whose_lock_it_is() {
        let spin =
            ["trace_event_raw_event_contention_begin", "__pv_queued_spin_lock_slowpath", "_raw_spin_lock"];
        let with = |more: &[&'static str]| of(&[&spin, more].concat());
        assert_eq!(
            with(&["alloc_vmap_area.constprop.0", "x"]).as_deref(),
            Some("alloc_vmap_area.constprop.0")
        );
        assert_eq!(with(&["pcpu_alloc_noprof", "mm_init"]).as_deref(), Some("pcpu_alloc_noprof"));
        assert_eq!(with(&["___slab_alloc", "kmem_cache_alloc_node_noprof", "alloc_vmap_area"]), None);
        assert_eq!(with(&["__pte_alloc_kernel", "vmap_range_noflush"]), None);
        assert_eq!(with(&[]), None);
        let mutex = ["__mutex_lock.constprop.0", "mutex_lock", "drain_vmap_area_work", "process_one_work"];
        assert_eq!(of(&mutex).as_deref(), Some("drain_vmap_area_work"));
        let ours = [
            "native_queued_spin_lock_slowpath",
            "va_os_lock",
            "_RNvMs_8va_space5space",
            "va_alloc",
            "alloc_vmap_area",
        ];
        assert_eq!(of(&ours).as_deref(), Some("alloc_vmap_area"));
        assert_eq!(of(&["va_os_lock"]).as_deref(), Some("va_os_lock"));
    }
}
