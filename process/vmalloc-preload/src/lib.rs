//! `libvmalloc_preload.so`: `malloc` for unmodified programs, by `LD_PRELOAD`.
//!
//! # Theory
//! ```text
//!   malloc(size)   size < threshold  ------------------------------------>  the next malloc: the C library's, or
//!                  size >= threshold  --->  one Vmalloc of the process        another preloaded one
//!                                             |  no memory, or not created yet
//!                                             +--------------------------->  the next malloc
//!   free(pointer)  in its arena? Vmalloc  :  in the boot arena? nothing  :  else the next free
//! ```
//! The C library is efficient for small sizes, but releases large ones to the system at each free: page faults for all
//! pages of each large temporary. So this library serves only large sizes. The address of a pointer identifies its
//! allocator: the arena is one range, so that is a subtraction and a comparison, with no header and no table.
//!
//! **Start.** The dynamic linker calls `malloc` before constructors have run, and looking up the next definitions may
//! call it again. Requests during that look-up are cut from a **boot arena**, static memory that is never freed. The one
//! thread-local variable is four zero bytes of static TLS, so it needs no setup in a thread. No call waits for another
//! thread's initialization: during it the next `malloc` serves requests.
//!
//! **Fork.** Fork handlers lock the allocator during a fork. Handlers of the program may allocate and free, so ours
//! must run last before the fork and first after it. So they are registered first: by the constructor, or before the
//! first earlier registration (`__register_atfork`). The first large allocation creates the allocator itself, so
//! programs without one do not need it.
//!
//! **Decay.** Cached memory is released by the calls of the program. A program may free large memory and then allocate
//! small memory alone. So each thread counts its small calls of `malloc`, in a thread-local variable, and one in a
//! thousand does a part of the decay (`small`). Such a call uses up to 6 KiB of stack.
//!
//! # Invariants
//! - **LP1 home** memory of the arena, the boot arena or the next `malloc` is freed by the same one, for every caller
//!   and threshold.
//! - **LP2 no-recursion** no code here calls the library's own `malloc`: Rust's global allocator in it is the next
//!   `malloc`.
//! - **LP3 errno** `free` does not change `errno`, nor does a call that succeeds here; a call that returns `NULL` for a
//!   failure sets it.
//!
//! # Limits
//! The library costs each process time at its start, even without an allocation: a file opened and mapped,
//! relocations, 14 page faults. `true` takes 15 % more CPU time, and 8 % more with an empty library
//! (`results/startup.md`).
//!
//! A library that is opened with `RTLD_DEEPBIND` calls the C library's own functions. Memory that it allocates may be
//! freed here, but it must not free a large allocation of this library. Programs with a `malloc` of their own are not
//! affected.
//!
//! | module | what it is |
//! |---|---|
//! | [`abi`] | the C functions, and the choice of the allocator that serves them |
//! | `boot` | memory for requests before the next definitions are known |
//! | `hot` | the state that every call reads, and the path of small sizes |
//! | `next` | the next definitions of the functions |
//! | `large` | the allocator of the process |
//! | `small` | small calls, which are counted so that cached memory decays |
//! | `call` | a system call without the C library |
//! | `filter` | detects a filter of system calls before it is installed |
//! | `change` | detects changes of mappings by the program |
//! | `fault` | reports a fault of the hardened profile |
//! | `conf` | `VMALLOC_CONF` |
//! | `start` | the constructor, and the statistics at the end |
//! | `words` | `errno`, and lines on stderr |
//! # Source
//! `man 3 malloc`, `man 8 ld.so`, POSIX `posix_memalign`; ISO C23 for `free_sized`.

// If a panic aborts, as in a release build, neither the standard library nor an unwinder is needed.
#![cfg_attr(all(panic = "abort", not(test)), no_std)]

pub mod abi;
mod boot;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod call;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub mod change;
mod conf;
mod fault;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub mod filter;
mod hot;
mod large;
#[cfg(all(test, loom))]
mod loom;
mod next;
#[cfg(miri)]
mod sim;
mod small;
#[cfg(test)]
mod small_tests;
mod start;
mod words;

#[cfg(all(panic = "abort", not(test)))]
vmalloc::without_std!(words::stop);
