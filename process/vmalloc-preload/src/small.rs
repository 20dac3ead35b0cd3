//! Counts small calls, so that cached memory decays in a program that makes no large ones.
//!
//! The count is a thread-local variable of the initial-exec model: its distance from the thread pointer is a constant
//! that the dynamic linker writes. So to count is three instructions, writes no line that other threads use, and calls
//! nothing. Rust has no such variables, so it is declared and changed in assembly. Where that is not written, small
//! calls are not counted, and such a program keeps its cache (`background_thread` releases it).

/// Calls of a thread between two that do a part of the decay.
#[cfg(target_arch = "x86_64")]
const CALLS: u32 = 1024;

// A new thread has 0 left.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".section .tbss.vmalloc_preload_calls_left, \"awT\", @nobits",
    ".hidden vmalloc_preload_calls_left",
    ".globl vmalloc_preload_calls_left",
    ".type vmalloc_preload_calls_left, @object",
    ".size vmalloc_preload_calls_left, 4",
    ".balign 4",
    "vmalloc_preload_calls_left:",
    ".zero 4",
    ".text",
);

/// Counts a small call. Returns true once in [`CALLS`] calls of a thread: then the caller calls [`pass_time`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn is_due() -> bool {
    // SAFETY: changes the thread's own variable, which no Rust code refers to. Each thread has it, since the library is
    // loaded before `main`, or has reserved static TLS.
    unsafe {
        core::arch::asm!(
            "mov {at}, qword ptr [rip + vmalloc_preload_calls_left@GOTTPOFF]",
            "sub dword ptr fs:[{at}], 1",
            "js {due}",
            at = out(reg) _,
            due = label { return true },
            options(nostack),
        );
    }
    false
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn is_due() -> bool {
    false
}

/// Begins a new count and does a part of the decay, if there is an allocator.
pub(crate) fn pass_time() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as in `is_due`.
    unsafe {
        core::arch::asm!(
            "mov {at}, qword ptr [rip + vmalloc_preload_calls_left@GOTTPOFF]",
            "mov dword ptr fs:[{at}], {calls}",
            at = out(reg) _,
            calls = const CALLS,
            options(nostack, preserves_flags),
        );
    }
    if let Some(memory) = crate::large::get() {
        let _keep = crate::words::KeepErrno::new();
        memory.decay();
    }
}
