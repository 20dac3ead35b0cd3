//! Requests to valgrind, with which a program counts its own instructions. Without valgrind they have no effect.
//!
//! # Source
//! valgrind 3.19, `valgrind.h` (the sequence of instructions that it recognises), `callgrind.h`
//! (the requests).

/// A request to callgrind. The numbers begin with the letters C and T.
#[derive(Clone, Copy)]
#[repr(u64)]
enum Ask {
    /// Writes the counters to a file with a label, and zeroes them.
    Dump = 0x4354_0003,
    /// Starts counting, with an empty cache.
    Start = 0x4354_0004,
    /// Stops counting.
    Stop = 0x4354_0005,
}

/// Starts counting; the simulated cache is empty.
#[inline(always)]
pub(super) fn start() {
    ask(Ask::Start, 0);
}

/// Stops counting.
#[inline(always)]
pub(super) fn stop() {
    ask(Ask::Stop, 0);
}

/// Writes the counts, with a label.
pub(super) fn dump(text: &std::ffi::CStr) {
    ask(Ask::Dump, text.as_ptr().expose_provenance() as u64);
}

#[inline(always)]
fn ask(ask: Ask, argument: u64) {
    let words = [ask as u64, argument, 0, 0, 0, 0];
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the rotations add up to two whole turns, and the exchange is of a register with itself, so the CPU's
    // state except its flags is unchanged. valgrind instead reads the six words that `rax` points to, and writes a
    // result to `rdx`.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") words.as_ptr(),
            inout("rdx") 0u64 => _,
            options(nostack),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _not_counted_here = words;
}
