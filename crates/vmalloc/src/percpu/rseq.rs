//! Restartable sequences: operations on the unit of a thread's CPU as if no thread could come
//! between.
//!
//! # Theory
//! A section is some instructions of which the last one stores. Before it, the thread leaves the
//! address of a description in its rseq area. If the kernel preempts or moves the thread, or sends
//! it a signal, in between, the thread goes on at the abort handler, which begins the section
//! again. So what was loaded is still true when it is stored, and no locked instruction is needed.
//!
//! ```text
//!   leave the description | id < 0 ? id >= mark ? | address = base + id * stride | load ... | store |
//!                         '-- start                                                                '-- post-commit
//!        ^--------------------- abort handler, in a section of its own, the signature before it
//! ```
//!
//! Nothing is ever registered here: libc registered the area, and only `rseq_cs` in it is written. A thread whose registration
//! failed has a negative `cpu_id` and is told so ([`State::Beyond`]), as is one whose number is not below the mark.
//!
//! # Invariants
//! - **RQ1 one-store** the store is the last instruction of a section, and nothing else in it can be seen by others.
//! - **RQ2 below-mark** a section touches a unit only if its number is below the mark of the space.
//!
//! # Source
//! Linux `include/uapi/linux/rseq.h`, `Documentation/userspace-api/rseq.rst` (6.12); layout: `rseq_cs` at 8, `mm_cid` at 24.

use super::shape::STRIDE_SHIFT;
use core::arch::asm;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Times a section was begun again, in this process. Counted where it is rare: in the abort handlers.
static RESTARTS: AtomicU64 = AtomicU64::new(0);

pub(super) fn restarts() -> u64 {
    RESTARTS.load(Ordering::Relaxed)
}

/// The address of a thread's area, and the number in it that counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    /// From the thread pointer to the area.
    pub(super) area: isize,
    /// From the thread pointer to the number.
    pub(super) id: isize,
}

/// The result of a section. The numbers are those that sections return, so that nothing is to be
/// translated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum State {
    /// It stored, or saw what it was to see.
    Done = 0,
    /// The thread's number is not below the mark, or it has none. Nothing was touched.
    Beyond = 1,
    /// The condition did not hold. Nothing was stored.
    Refused = 2,
}

impl State {
    #[inline(always)]
    fn of(code: u32) -> Self {
        match code {
            0 => Self::Done,
            1 => Self::Beyond,
            _ => Self::Refused,
        }
    }
}

/// The thread's number, if the kernel keeps one for it.
#[inline(always)]
pub(super) fn number(at: Area) -> Option<u32> {
    let (cpu, id): (i32, u32);
    // SAFETY: libc's area of this thread, which is there as long as the thread (found by `find`); two loads.
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

/// The frame of a section: `$body` finds the address of the word in this unit in `{t}` and ends with the only store.
///
/// `{state}` is 1 until the unit is known, what the body makes it then, and 0 behind the store. Checks RQ1 by its shape and RQ2 by its
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
            // The abort handler: the kernel goes there only if the signature stands before it.
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
/// `base` is the word in unit 0 of an object that lives. The units lie `STRIDE` apart, as many as
/// `limit` can say. Words of this kind are changed by sections on their own unit only, or while no
/// thread is in one.
#[inline(always)]
pub(super) unsafe fn add(at: Area, limit: &AtomicU32, base: *mut u64, amount: u64) -> State {
    // SAFETY: the word of a unit below the mark (RQ2), by this function's contract; one instruction changes it (RQ1), and the
    // thread's `rseq_cs` is ours to write while it is in the section.
    unsafe { section!(at, limit, base, ["add qword ptr [{t}], {amount}"], amount = in(reg) amount,) }
}

/// Puts `new` into this unit's word; returns what was there.
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

/// Puts `new` into this unit's word if `old` is there; returns what was there.
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
    // SAFETY: as in `add`; leaving for the end without the store stores nothing.
    let state = unsafe {
        section!(at, limit, base,
            ["mov {found}, qword ptr [{t}]", "mov {state:e}, 2", "cmp {found}, {old}", "jne 6f", "mov qword ptr [{t}], {new}"],
            found = out(reg) found, old = in(reg) old, new = in(reg) new,)
    };
    (state, found)
}

/// Adds to this unit's word, a signed number, if its distance from 0 stays below `batch`, which is from 1 to `i64::MAX / 2`.
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
    // SAFETY: as in `add`; the sum is made in a register, and its overflow refused before the store.
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

/// Makes a node, whose first word is its link, the first of this unit's list.
///
/// # Safety
/// As [`add`]; the node is the caller's alone, and the words are heads of lists of such nodes.
#[inline(always)]
pub(super) unsafe fn push(at: Area, limit: &AtomicU32, base: *mut u64, node: *mut u64) -> State {
    // SAFETY: as in `add`; the link that is written before is in a node that nobody else sees (RQ1).
    unsafe {
        section!(at, limit, base,
            ["mov {head}, qword ptr [{t}]", "mov qword ptr [{node}], {head}", "mov qword ptr [{t}], {node}"],
            head = out(reg) _, node = in(reg) node,)
    }
}

/// Takes the first node of this unit's list; null if there is none.
///
/// # Safety
/// As [`push`]; whoever takes a node this way owns it.
#[inline(always)]
pub(super) unsafe fn pop(at: Area, limit: &AtomicU32, base: *mut u64) -> (State, *mut u64) {
    let head: *mut u64;
    // SAFETY: as in `push`; the first node is in the list as long as the section is not restarted, so its link can be read.
    let state = unsafe {
        section!(at, limit, base,
            ["mov {head}, qword ptr [{t}]", "test {head}, {head}", "jz 4f", "mov {next}, qword ptr [{head}]",
             "mov qword ptr [{t}], {next}"],
            head = out(reg) head, next = out(reg) _,)
    };
    (state, head)
}
