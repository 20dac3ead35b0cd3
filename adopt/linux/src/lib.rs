//! The core behind a C interface, for the inside of a Linux kernel.
//!
//! ```text
//!   mm/vmalloc.c     what the kernel offers: vmalloc, vmap, ioremap, vm_map_ram ...
//!      | va_glue.h   the functions of vmalloc.c that are replaced
//!      v
//!   abi              C functions: alloc, find, detach, release, purge
//!      v
//!   va-block         the pages of vm_map_ram
//!   va-space         the areas        --> machine --> va_os.c   the kernel's locks, pages and flushes
//!
//!   mm/percpu.c      alloc_percpu, free_percpu: chunks, their lists and pages
//!      | va_percpu_areas.h   the functions of percpu.c that are replaced
//!      v
//!   percpu           C functions: find, take, free
//!      v
//!   va-percpu        the bits of a chunk and the hints about them
//! ```
//!
//! # Contexts
//! A CPU's magazine and lane are used by the thread that runs on that CPU with preemption off. So the functions that are
//! given them are called so; all other functions may sleep, but those that only read.
#![no_std]

mod abi;
#[cfg(not(feature = "kasan"))]
mod grant;
mod machine;
mod os;
mod percpu;

/// Stops the machine, with the place of the panic.
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    let (file, line) = info.location().map_or(("?", 0), |at| (at.file(), at.line()));
    // SAFETY: a pointer and a length of a string that lives as long as the program.
    unsafe { os::va_os_bug(file.as_ptr(), file.len(), line) }
}
