//! The instructions that a call executes, counted one by one: with its trap flag set, the CPU traps after each.
//!
//! # Cost
//! A signal for each instruction: 2 to 20 microseconds, most on a virtual machine. A wait for a lock counts
//! little, since the other thread is much faster meanwhile.
//!
//! # Source
//! Intel 64 and IA-32 Architectures Software Developer's Manual, volume 3, "Single-Stepping" (the trap follows the
//! instruction after the one that sets the flag).

use std::sync::atomic::{AtomicU64, Ordering};

/// Instructions since the counting began. One thread at a time counts.
static STEPS: AtomicU64 = AtomicU64::new(0);

extern "C" fn trapped(_signal: libc::c_int) {
    STEPS.fetch_add(1, Ordering::Relaxed);
}

/// Counts instructions of the calling thread, until it is dropped. There is one at a time in a process.
pub(super) struct Steps {
    previous: libc::sigaction,
    /// Instructions that are counted of an empty call.
    own: u64,
}

impl Steps {
    /// Begins, or returns `None` if this CPU or its emulator does not trap.
    pub(super) fn begin() -> Option<Self> {
        if !cfg!(target_arch = "x86_64") {
            return None;
        }
        // SAFETY: all zeros are a valid action.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = trapped as *const () as usize;
        let mut previous = action;
        // SAFETY: both point to actions, and the handler changes an atomic alone.
        if unsafe { libc::sigaction(libc::SIGTRAP, &raw const action, &raw mut previous) } != 0 {
            return None;
        }
        let mut steps = Self { previous, own: 0 };
        steps.own = steps.count(|| {});
        (steps.own > 0).then_some(steps)
    }

    /// Returns the instructions of a call.
    #[inline(always)]
    pub(super) fn count(&self, call: impl FnOnce()) -> u64 {
        STEPS.store(0, Ordering::Relaxed);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the flag makes the CPU raise SIGTRAP, for which there is a handler. The stack is as before.
        unsafe {
            std::arch::asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq");
        }
        call();
        #[cfg(target_arch = "x86_64")]
        // SAFETY: clears the flag; the stack is as before.
        unsafe {
            std::arch::asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq");
        }
        STEPS.load(Ordering::Relaxed).saturating_sub(self.own)
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        // SAFETY: the action that was there before.
        unsafe { libc::sigaction(libc::SIGTRAP, &raw const self.previous, std::ptr::null_mut()) };
    }
}
