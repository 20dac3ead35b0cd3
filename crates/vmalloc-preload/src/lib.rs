//! `libvmalloc_preload.so`: `malloc` for unmodified programs, by `LD_PRELOAD`.
//!
//! # Theory
//! ```text
//!   malloc(size)   size < threshold  ------------------------------------>  the next malloc: the C library's, or
//!                  size >= threshold  --->  one Vmalloc of the process        whoever else was preloaded
//!                                             |  no memory, or not made yet
//!                                             +--------------------------->  the next malloc
//!   free(pointer)  in its arena? that's its  :  in the boot arena? nothing  :  else the next free
//! ```
//! The C library is good at small sizes and returns large ones to the system at each free: page
//! faults for all pages of each large temporary. So only large ones come from here. The address of
//! a pointer tells its allocator: the arena is one range, so that is a subtraction and a
//! comparison, with no header and no table.
//!
//! **Before there is anything.** The dynamic linker calls `malloc` before constructors have run,
//! and looking up the next definitions may call it again. Requests during that look-up are cut from
//! a **boot arena**, static memory that is never freed. No thread-local variable is used, so there
//! is no static TLS to run out of, and nothing to set up in a thread. Nothing waits for another
//! thread to set something up: a call in the midst of it asks the next `malloc`.
//!
//! **Fork.** The allocator locks itself for a fork by handlers that it registers when it is made.
//! Handlers of others may allocate and free, so ours must be the last before the fork and the first
//! after it. They are registered first, by the constructor, or by the first call that registers
//! some before that (`__register_atfork`). The allocator itself is made by the first large
//! allocation, and small programs pay nothing for it.
//!
//! # Invariants
//! - **LP1 home** what the arena, the boot arena or the next `malloc` gave goes back there, whoever asks and whatever the threshold is.
//! - **LP2 no-recursion** nothing here asks the library's own `malloc`: Rust's global allocator in it is the next `malloc`.
//! - **LP3 errno** `free` leaves `errno` as it was; what succeeds here does, too; what returns `NULL` for a failure says why in it.
//!
//! # Limits
//! A process pays for the library when it starts, whether it allocates or not: files opened and
//! mapped, relocations, 15 page faults. `sh` that starts `true` 60 times takes 17 % more CPU time
//! by the fastest of 12 loops; with an empty library it is 8 %. The times are 34.4 ms without, 37.0
//! with the empty one, and 40.1 with this, on a busy machine of 2 cores.
//!
//! A library that is opened with `RTLD_DEEPBIND` calls the C library's own functions. Memory that
//! it allocates may be freed here, but it must not free a large piece that was allocated here.
//! Programs with a `malloc` inside them do not notice this library.
//!
//! | module | what it is |
//! |---|---|
//! | [`abi`] | the C functions, and who serves them |
//! | `boot` | memory for whoever asks before anything is known |
//! | `hot` | what every call reads, and the way of the small ones |
//! | `next` | the definitions behind this library's |
//! | `large` | the allocator of the process |
//! | `filter` | notices a filter of system calls before it is installed |
//! | `change` | notices what the program does to its own mappings |
//! | `map` | mappings and threads of the program, where a limit leaves it no room |
//! | `fault` | says what a fault in the hardened profile was |
//! | `conf` | `VMALLOC_CONF` |
//! | `start` | the constructor, and the statistics at the end |
//! | `words` | `errno`, and lines on stderr |
//! # Source
//! `man 3 malloc`, `man 8 ld.so`, POSIX `posix_memalign`; ISO C23 for `free_sized`.

// Where a panic ends the process anyway, as in a release build, the standard library is not needed, nor an unwinder.
#![cfg_attr(all(panic = "abort", not(test)), no_std)]

pub mod abi;
mod boot;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub mod change;
mod conf;
mod fault;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub mod filter;
mod hot;
mod large;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub mod map;
mod next;
mod start;
mod words;

#[cfg(all(panic = "abort", not(test)))]
vmalloc::without_std!(words::stop);
