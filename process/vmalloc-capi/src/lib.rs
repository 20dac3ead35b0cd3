//! `libvmalloc`: the allocator of a process (crate `vmalloc`) for C and C++, with the kernel's names for these
//! functions.
//!
//! # Theory
//! A C caller has a pointer and a number for an error, so each typed failure becomes `NULL` and an `errno`. Some
//! mistakes cannot be reported to a C caller (what would `vfree` return?). Each of these ends the program with a line
//! that names the address. The areas are those of [`vmalloc::Vmalloc::global`]. Rust code and C code of one program
//! share them only if they are linked to the same copy of this code.
//!
//! For little-endian CPUs: the address of a small number determines its bits in a per-CPU word ([`percpu`]).
//!
//! This library never defines `malloc`; `vmalloc-preload` does. The `kv` functions pass sizes below
//! [`vmalloc::LARGE_BYTES`] to the `malloc` of the program, and select the allocator by the address.
//!
//! # Invariants
//! - **CA1 no-unwind** no panic leaves a function: each is `extern "C"`, which ends the program instead.
//! - **CA2 errno** a function that succeeds or frees does not change `errno`; one that returns `NULL` for a failure
//!   sets it.
//!
//! | module | what it is |
//! |---|---|
//! | [`abi`] | the C functions of areas; this module and the next three are the sources of `include/vmalloc.h` |
//! | [`frames`] | the C functions of mappings of chosen frames |
//! | [`percpu`] | the C functions of per-CPU memory and counters |
//! | [`percpu_ref`] | the C functions of reference counts in units |
//! | `answer` | the reports: errors by `errno`, mistakes by the end of the program |
//! # Source
//! Linux `include/linux/vmalloc.h`, `mm/vmalloc.c`, `mm/slub.c` for names and behaviour.

// If a panic aborts, as in a release build, neither the standard library nor an unwinder is needed.
#![cfg_attr(all(panic = "abort", not(test)), no_std)]

pub mod abi;
mod answer;
pub mod frames;
pub mod percpu;
pub mod percpu_ref;

#[cfg(all(panic = "abort", not(test)))]
mod freestanding {
    use core::alloc::{GlobalAlloc, Layout};
    use core::ptr::null_mut;

    vmalloc::without_std!(crate::answer::stop);

    /// An allocator without memory: this library never uses Rust's global allocator, but must define one.
    struct NoMemory;

    // SAFETY: it allocates nothing.
    unsafe impl GlobalAlloc for NoMemory {
        unsafe fn alloc(&self, _: Layout) -> *mut u8 {
            null_mut()
        }

        unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
    }

    #[global_allocator]
    static NONE: NoMemory = NoMemory;
}
