//! The core, and the port of `adopt/guest`, inside a program without an operating system.
//!
//! A static library with its own panic handler, linked to `start.c` with `-nostdlib`: no C library, no heap, no thread,
//! no `std`. `cargo xtask kernel` builds it, runs it and expects 0; any other number is that of the check that failed
//! (see [`selftest`]), 101 a panic.
#![no_std]

mod boot;
mod machine;
mod mapped;
mod selftest;
mod units;

unsafe extern "C" {
    /// Ends the program, or stops the machine.
    safe fn freestanding_halt() -> !;
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    freestanding_halt()
}

/// Runs the self test: 0, or the number of the first check that does not hold.
// SAFETY: no other function of the program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn freestanding_selftest() -> i32 {
    match selftest::run() {
        Ok(()) => 0,
        Err(check) => check,
    }
}

/// Panics, so that a run of the self test can show that a failure does not pass for success.
// SAFETY: no other function of the program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn freestanding_panic() -> i32 {
    use va_base::Platform;
    machine::PORT.bug(format_args!("asked for"), None)
}
