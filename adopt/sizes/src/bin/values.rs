//! The bytes of values.
#![no_std]
#![no_main]

// SAFETY: no other function of the program has this name.
#[unsafe(no_mangle)]
extern "C" fn _start() -> ! {
    sizes::values()
}
