//! Reports a fault of the hardened profile before it ends the process.
//!
//! # Theory
//! Walls end a process by a signal without a message. If `SIGSEGV` has no handler when the allocator is created, this
//! module sets one. If the address is in the arena, the handler writes a diagnosis. In any case it restores the default
//! action and returns. The instruction faults again, and ends the process as if there were no handler. A signal that
//! another process or a call sent does not recur, so it is raised again. A handler that the program sets later replaces
//! this one.

use crate::large;
use crate::words::say;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::null_mut;

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

fn action(handler: usize, flags: c_int) -> libc::sigaction {
    // SAFETY: all fields are numbers; zeros are a valid action, with an empty mask.
    let mut action = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    action
}

/// Sets the handler, if the signal has none.
pub(crate) fn handle() {
    let mut now = action(libc::SIG_DFL, 0);
    // SAFETY: reads the action.
    let failed = unsafe { libc::sigaction(libc::SIGSEGV, null_mut(), &raw mut now) };
    if failed != 0 || now.sa_sigaction != libc::SIG_DFL {
        return;
    }
    let ours: Handler = report;
    // On the thread's own stack if it has no alternate one: the report fits there.
    let action = action(ours as usize, libc::SA_SIGINFO | libc::SA_ONSTACK);
    // SAFETY: the handler makes only calls that are allowed in one.
    let _failed = unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, null_mut()) };
}

extern "C" fn report(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the system passes a pointer to the signal's information.
    let info = unsafe { info.as_ref() };
    // A signal that was sent may have interrupted a call that holds a lock.
    let fault = info.filter(|info| info.si_code > 0);
    if let Some(info) = fault {
        // SAFETY: a fault has an address.
        let address = unsafe { info.si_addr() };
        if let Some(what) = large::get().and_then(|memory| memory.explain_fault(address.cast())) {
            say(format_args!("hardened: {what}"));
        }
    }
    // Last, since from now on the fault of another thread ends the process, also before the line is written.
    let default = action(libc::SIG_DFL, 0);
    // SAFETY: restores the default action.
    let _failed = unsafe { libc::sigaction(libc::SIGSEGV, &raw const default, null_mut()) };
    if fault.is_none() {
        // SAFETY: the signal is blocked in its handler, and delivered after the return.
        let _sent = unsafe { libc::raise(libc::SIGSEGV) };
    }
}
