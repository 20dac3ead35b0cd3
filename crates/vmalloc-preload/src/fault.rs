//! A word about a fault in the hardened profile, before the process ends by it.
//!
//! # Theory
//! Walls end a process by a signal that says nothing. Where `SIGSEGV` has no handler when the
//! allocator is made, this sets one. If the address is in the arena, the handler writes what is
//! known of it. In any case it restores the default action and returns. The instruction faults
//! again, and ends the process as if there were no handler. A signal that another process or a call
//! sent does not recur by itself, so it is sent once more. A handler that the program sets later
//! has the signal, as without us.

use crate::large;
use crate::words::say;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::null_mut;

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

fn action(handler: usize, flags: c_int) -> libc::sigaction {
    // SAFETY: numbers, all of them; zeros are an action, with an empty mask.
    let mut action = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    action
}

/// Handles the signal, if nobody does.
pub(crate) fn handle() {
    let mut now = action(libc::SIG_DFL, 0);
    // SAFETY: reads the action.
    let told = unsafe { libc::sigaction(libc::SIGSEGV, null_mut(), &raw mut now) };
    if told != 0 || now.sa_sigaction != libc::SIG_DFL {
        return;
    }
    let ours: Handler = tell;
    // On the thread's own stack if it has no other: what is written fits there.
    let action = action(ours as usize, libc::SA_SIGINFO | libc::SA_ONSTACK);
    // SAFETY: what the handler calls may be called in one.
    let _refused = unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, null_mut()) };
}

extern "C" fn tell(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the system gives a pointer to what it knows.
    let info = unsafe { info.as_ref() };
    // What somebody sent may have come in the midst of a call that holds a lock.
    let fault = info.filter(|info| info.si_code > 0);
    if let Some(info) = fault {
        // SAFETY: a fault has an address.
        let address = unsafe { info.si_addr() };
        if let Some(what) = large::get().and_then(|memory| memory.explain_fault(address.cast())) {
            say(format_args!("hardened: {what}"));
        }
    }
    // Last: the fault of another thread ends the process from now on, and with it a line that is not written yet.
    let default = action(libc::SIG_DFL, 0);
    // SAFETY: nobody handles it from now on.
    let _refused = unsafe { libc::sigaction(libc::SIGSEGV, &raw const default, null_mut()) };
    if fault.is_none() {
        // SAFETY: blocked in its handler; it comes when that has returned.
        let _sent = unsafe { libc::raise(libc::SIGSEGV) };
    }
}
