//! Programs without an operating system whose code and stack `cargo xtask sizes` measures.
//!
//! Each program makes the calls of one part of the core, or of one port, with input that the compiler does not know.
//! The code is what the linker keeps for them. With the feature `stack` a program runs on Linux. It makes each call many
//! times on a stack that is filled with a pattern, and prints the deepest byte that changed.
#![no_std]

mod arena;
#[cfg(target_has_atomic = "64")]
mod heap;
pub mod index;
pub mod input;
#[path = "../../ports/src/stand_in/lock.rs"]
mod lock;
#[cfg(target_has_atomic = "64")]
pub mod ports;
#[cfg(target_has_atomic = "64")]
pub mod space;
#[cfg(all(feature = "stack", target_arch = "x86_64"))]
mod stack;
#[cfg(all(feature = "stack", target_arch = "x86_64"))]
mod values;

/// A call of a program: its name, and a function that makes it once.
pub type Row = (&'static str, fn());

/// Begins the program with the calls of a module: `sizes::program!(sizes::index::ROWS)`.
#[macro_export]
macro_rules! program {
    ($rows:expr) => {
        // SAFETY: no other function of the program has this name.
        #[unsafe(no_mangle)]
        extern "C" fn _start() -> ! {
            $crate::run($rows)
        }
    };
}

/// Makes each call once, and stops.
#[cfg(not(all(feature = "stack", target_arch = "x86_64")))]
pub fn run(rows: &[Row]) -> ! {
    rows.iter().for_each(|(_, call)| call());
    halt()
}

/// Prints the bytes of each value before its first piece of memory, and ends the program.
#[cfg(target_has_atomic = "64")]
pub fn values() -> ! {
    #[cfg(all(feature = "stack", target_arch = "x86_64"))]
    values::all().iter().for_each(|&(name, bytes)| stack::print(bytes, name));
    #[cfg(all(feature = "stack", target_arch = "x86_64"))]
    stack::exit(0);
    #[cfg(not(all(feature = "stack", target_arch = "x86_64")))]
    halt()
}

/// Measures the stack of each call, prints it, and ends the program.
#[cfg(all(feature = "stack", target_arch = "x86_64"))]
pub fn run(rows: &[Row]) -> ! {
    stack::run(rows)
}

#[cfg(not(all(feature = "stack", target_arch = "x86_64")))]
fn halt() -> ! {
    loop {
        core::hint::spin_loop();
    }
}

#[cfg(all(feature = "stack", target_arch = "x86_64"))]
fn halt() -> ! {
    stack::exit(101)
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    halt()
}
