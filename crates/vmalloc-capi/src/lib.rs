//! `libvmalloc`: the allocator of a process (crate `vmalloc`) for C and C++, by the names that the kernel gives these functions.
//!
//! # Theory
//! A C caller has a pointer and a number for an error, so each typed failure becomes `NULL` and an
//! `errno`. Some mistakes cannot be reported to a C caller (what would `vfree` return?). Each of
//! these stops the program with a line that names the address. The areas are those of
//! [`vmalloc::Vmalloc::global`]. A Rust part of the same program and a C part share them only if
//! they are linked to the same copy of this code.
//!
//! For little-endian processors: a part of a per-CPU word is found by its address ([`percpu`]).
//!
//! `malloc` is never defined here; `vmalloc-preload` does that. The `kv` functions pass sizes below
//! [`vmalloc::LARGE_BYTES`] to the `malloc` of the program, and select the allocator by the address.
//!
//! # Invariants
//! - **CA1 no-unwind** no panic leaves a function: each is `extern "C"`, which stops the program instead.
//! - **CA2 errno** a function that succeeds or frees leaves `errno` as it was; one that returns `NULL` for a failure
//!   sets it.
//!
//! | module | what it is |
//! |---|---|
//! | [`abi`] | the C functions of areas; with the next two, what `include/vmalloc.h` is made of |
//! | [`frames`] | those of chosen pages in one range |
//! | [`percpu`] | those of per-CPU memory and counters |
//! | `answer` | errors as `errno`, mistakes as the end of the program |
//! # Source
//! Linux `include/linux/vmalloc.h`, `mm/vmalloc.c`, `mm/slub.c` for names and behaviour.

// Where a panic ends the process anyway, as in a release build, the standard library is not needed, nor an unwinder.
#![cfg_attr(all(panic = "abort", not(test)), no_std)]

pub mod abi;
mod answer;
pub mod frames;
pub mod percpu;

#[cfg(all(panic = "abort", not(test)))]
mod freestanding {
    use core::alloc::{GlobalAlloc, Layout};
    use core::ptr::null_mut;

    vmalloc::without_std!(crate::answer::stop);

    /// No memory: nothing here uses Rust's global allocator, which a library of Rust must name all the same.
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
