//! Restartable sequences: operations on the unit of a thread's CPU that are atomic with respect to other threads there.
//!
//! # Theory
//! A section is a sequence of instructions of which the last one stores. Before it, the thread stores the address of a
//! description in its rseq area. If the kernel preempts or moves the thread, or delivers a signal to it, within the
//! section, the thread continues at the abort handler, which restarts the section. So a loaded value is still current
//! at the store, and no locked instruction is needed.
//!
//! ```text
//!   set the description | id < 0 ? id >= mark ? | address = base + id * stride | load ... | store |
//!                       '-- start                                                                '-- post-commit
//!       ^--------------------- abort handler, in a linker section of its own, preceded by the signature
//! ```
//!
//! This code registers no area: libc did, and only `rseq_cs` in it is written here. A thread whose registration failed
//! has a negative `cpu_id`, and its section returns [`State::Beyond`], as does one whose number is not below the mark.
//!
//! # Invariants
//! - **RQ1 one-store** the store is the last instruction of a section, and no other effect of it is visible to other
//!   threads.
//! - **RQ2 below-mark** a section accesses a unit only if its number is below the mark of the space.
//!
//! # Source
//! Linux `include/uapi/linux/rseq.h`, `Documentation/userspace-api/rseq.rst` (6.12); layout: `rseq_cs` at 8, `mm_cid`
//! at 24.

use super::shape::STRIDE_SHIFT;
use core::arch::asm;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The number of restarted sections in this process, counted in the abort handlers, which run rarely. A counter.
static RESTARTS: AtomicU64 = AtomicU64::new(0);

pub(super) fn restarts() -> u64 {
    RESTARTS.load(Ordering::Relaxed)
}

/// The location of a thread's area, and of the number in it that selects the unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    /// The offset of the area from the thread pointer.
    pub(super) area: isize,
    /// The offset of the number from the thread pointer.
    pub(super) id: isize,
}

/// The result of a section. The discriminants are the codes that sections return.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum State {
    /// The section completed.
    Done = 0,
    /// The thread's number is not below the mark, or it has none. No unit was accessed.
    Beyond = 1,
    /// The condition did not hold. Nothing was stored.
    Rejected = 2,
}

impl State {
    #[inline(always)]
    fn of(code: u32) -> Self {
        match code {
            0 => Self::Done,
            1 => Self::Beyond,
            _ => Self::Rejected,
        }
    }
}

/// Returns the thread's number, if the kernel maintains one for it.
#[inline(always)]
pub(super) fn number(at: Area) -> Option<u32> {
    let (cpu, id): (i32, u32);
    // SAFETY: libc's area of this thread, which is valid as long as the thread (located by `find`); two loads.
    unsafe {
        asm!(
            "mov {cpu:e}, dword ptr fs:[{area} + 4]",
            "mov {id:e}, dword ptr fs:[{at}]",
            area = in(reg) at.area, at = in(reg) at.id, cpu = out(reg) cpu, id = lateout(reg) id,
            options(nostack, readonly, preserves_flags),
        );
    }
    (cpu >= 0).then_some(id)
}

/// The frame of a section: `$body` has the address of this unit's word in `{t}`, and ends with the only store.
///
/// The body may set `{state}`, which is 1 before and 0 after the store. Checks RQ1 by structure, and RQ2 by a
/// comparison.
macro_rules! section {
    ($at:expr, $limit:expr, $base:expr, [$($body:literal),+], $($operands:tt)+) => {{
        let state: u32;
        asm!(
            // The description: version, flags, start, length, abort handler.
            ".pushsection __rseq_cs, \"aw\"",
            ".balign 32",
            "90:",
            ".long 0, 0",
            ".quad 3f, 4f - 3f, 5f",
            ".popsection",
            "2:",
            "mov {state:e}, 1",
            "lea {t}, [rip + 90b]",
            "mov qword ptr fs:[{area} + 8], {t}",
            "3:",
            "cmp dword ptr fs:[{area} + 4], 0",
            "jl 6f",
            "mov {t:e}, dword ptr fs:[{at}]",
            "cmp {t:e}, dword ptr [{limit}]",
            "jae 6f",
            "shl {t}, {shift}",
            "add {t}, {base}",
            $($body,)+
            "4:",
            "xor {state:e}, {state:e}",
            // The abort handler: the kernel jumps there only if the signature precedes it.
            ".pushsection __rseq_abort, \"ax\"",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "5:",
            "lock inc qword ptr [rip + {restarts}]",
            "jmp 2b",
            ".popsection",
            "6:",
            area = in(reg) $at.area,
            at = in(reg) $at.id,
            limit = in(reg) $limit,
            base = in(reg) $base,
            state = out(reg) state,
            t = out(reg) _,
            shift = const STRIDE_SHIFT,
            restarts = sym RESTARTS,
            $($operands)+
            options(nostack),
        );
        State::of(state)
    }};
}

/// Adds to this unit's word.
///
/// # Safety
/// `base` is the word in unit 0 of a live object. The units are `STRIDE` apart, at least as many as `limit` can become.
/// Such words are changed only by sections on their own unit, or while no thread is in a section.
#[inline(always)]
pub(super) unsafe fn add(at: Area, limit: &AtomicU32, base: *mut u64, amount: u64) -> State {
    // SAFETY: the word of a unit below the mark (RQ2), by this function's contract; one instruction changes it (RQ1),
    // and only the section writes the thread's `rseq_cs`.
    unsafe { section!(at, limit, base, ["add qword ptr [{t}], {amount}"], amount = in(reg) amount,) }
}

/// Stores `new` in this unit's word, and returns the previous value.
///
/// # Safety
/// As [`add`].
#[inline(always)]
pub(super) unsafe fn swap(at: Area, limit: &AtomicU32, base: *mut u64, new: u64) -> (State, u64) {
    let old: u64;
    // SAFETY: as in `add`; a load, then the only store.
    let state = unsafe {
        section!(at, limit, base, ["mov {old}, qword ptr [{t}]", "mov qword ptr [{t}], {new}"],
            old = out(reg) old, new = in(reg) new,)
    };
    (state, old)
}

/// Stores `new` in this unit's word if its value is `old`. Returns the previous value.
///
/// # Safety
/// As [`add`].
#[inline(always)]
pub(super) unsafe fn compare_exchange(
    at: Area,
    limit: &AtomicU32,
    base: *mut u64,
    old: u64,
    new: u64,
) -> (State, u64) {
    let found: u64;
    // SAFETY: as in `add`; the jump to the end skips the store.
    let state = unsafe {
        section!(at, limit, base,
            ["mov {found}, qword ptr [{t}]", "mov {state:e}, 2", "cmp {found}, {old}", "jne 6f", "mov qword ptr [{t}], {new}"],
            found = out(reg) found, old = in(reg) old, new = in(reg) new,)
    };
    (state, found)
}

/// Adds to this unit's word, a signed number, if its absolute value stays below `batch`, which is from 1 to `i64::MAX /
/// 2`.
///
/// # Safety
/// As [`add`].
#[inline(always)]
pub(super) unsafe fn add_within(
    at: Area,
    limit: &AtomicU32,
    base: *mut u64,
    amount: i64,
    batch: i64,
) -> State {
    // -batch < sum < batch, as one comparison of unsigned numbers.
    let room = batch - 1;
    let span = 2 * room;
    // SAFETY: as in `add`; the sum is computed in a register, and an overflow skips the store.
    unsafe {
        section!(at, limit, base,
            ["mov {sum}, qword ptr [{t}]", "mov {state:e}, 2", "add {sum}, {amount}", "jo 6f",
             "lea {far}, [{sum} + {room}]", "cmp {far}, {span}", "ja 6f", "mov qword ptr [{t}], {sum}"],
            sum = out(reg) _, far = out(reg) _, amount = in(reg) amount, room = in(reg) room, span = in(reg) span,)
    }
}

/// Adds to this unit's word if `gate` is 0.
///
/// # Safety
/// As [`add`].
#[cfg(not(loom))]
#[inline(always)]
pub(super) unsafe fn add_if_open(
    at: Area,
    limit: &AtomicU32,
    base: *mut u64,
    amount: u64,
    gate: &AtomicU64,
) -> State {
    // SAFETY: as in `add`; the gate is only read.
    unsafe {
        section!(at, limit, base,
            ["mov {state:e}, 2", "cmp qword ptr [{gate}], 0", "jne 6f", "add qword ptr [{t}], {amount}"],
            amount = in(reg) amount, gate = in(reg) gate,)
    }
}

/// Pushes a node, with the link in its first word, to the front of this unit's list.
///
/// # Safety
/// As [`add`]; the caller owns the node exclusively, and the words are heads of lists of such nodes.
#[inline(always)]
pub(super) unsafe fn push(at: Area, limit: &AtomicU32, base: *mut u64, node: *mut u64) -> State {
    // SAFETY: as in `add`; the earlier write of the link is to a node that no other thread sees (RQ1).
    unsafe {
        section!(at, limit, base,
            ["mov {head}, qword ptr [{t}]", "mov qword ptr [{node}], {head}", "mov qword ptr [{t}], {node}"],
            head = out(reg) _, node = in(reg) node,)
    }
}

/// Pops the first node of this unit's list. Returns null if there is none.
///
/// # Safety
/// As [`push`]; the caller owns the returned node.
#[inline(always)]
pub(super) unsafe fn pop(at: Area, limit: &AtomicU32, base: *mut u64) -> (State, *mut u64) {
    let head: *mut u64;
    // SAFETY: as in `push`; the first node is in the list as long as the section is not restarted, so its link can be
    // read.
    let state = unsafe {
        section!(at, limit, base,
            ["mov {head}, qword ptr [{t}]", "test {head}, {head}", "jz 4f", "mov {next}, qword ptr [{head}]",
             "mov qword ptr [{t}], {next}"],
            head = out(reg) head, next = out(reg) _,)
    };
    (state, head)
}
