//! The programs that are traced: every function of `malloc`, with the contents of all memory checked.
//!
//! Each prints the errors that it met. A call that fails returns `NULL` with the errno `ENOMEM`, or that number, and
//! changes nothing. A free never fails, and preserves errno (LP3). Until [`Mark::Calm`] any call may fail. After it no
//! call may.

use crate::tracer::{Mark, mark};
use libc::{c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;
/// The room that a limit leaves.
const ROOM: u64 = 64 << 20;

static ERRORS: AtomicU64 = AtomicU64::new(0);

/// The programs by their names.
pub(super) const PROGRAMS: [(&str, fn()); 7] = [
    ("functions", functions),
    ("hardened", functions),
    ("plain", functions),
    ("changes", changes),
    ("limit", limit),
    ("fork", forks),
    ("threads", threads),
];

/// Returns the options of a program.
pub(super) fn conf(name: &str) -> &'static str {
    match name {
        "hardened" => "threshold:64K,hardened:true",
        "plain" => "threshold:64K,calls:plain",
        "threads" => "threshold:64K,background_thread:true,decay:1ms",
        _ => "threshold:64K,budget:64M,zero_on_free:true",
    }
}

/// Runs a program.
pub(super) fn run(name: &str) {
    let (_, program) = PROGRAMS.iter().find(|(known, _)| *known == name).unwrap();
    program();
    println!("errors {}", ERRORS.load(Ordering::Relaxed));
}

fn errno_place() -> *mut c_int {
    // SAFETY: the thread's own variable.
    unsafe { libc::__errno_location() }
}

fn errno() -> c_int {
    // SAFETY: the thread's own variable.
    unsafe { errno_place().read() }
}

/// Calls a function between the marks.
fn inside<T>(call: impl FnOnce() -> T) -> T {
    mark(Mark::Enter);
    let answer = call();
    mark(Mark::Leave);
    answer
}

fn failed(what: &str, errno: c_int) {
    if ERRORS.fetch_add(1, Ordering::Relaxed) < 8 {
        println!("error: {what}: {errno}");
    }
}

/// Calls a function that returns memory, or `NULL` with the errno `ENOMEM`.
fn ask(what: &str, call: impl FnOnce() -> *mut c_void) -> Option<NonNull<u8>> {
    let at = NonNull::new(inside(call).cast());
    if at.is_none() {
        assert_eq!(errno(), libc::ENOMEM, "{what}");
        failed(what, libc::ENOMEM);
    }
    at
}

/// Memory, and the byte that is at some places of it.
struct Piece {
    at: NonNull<u8>,
    bytes: usize,
    tag: u8,
}

// SAFETY: its owner is the only one who uses it.
unsafe impl Send for Piece {}

/// A byte of each page but a few, to touch little of large pieces, and the last one.
fn places(bytes: usize) -> impl Iterator<Item = usize> {
    let step = if bytes > MIB { 256 << 10 } else { 3 * PAGE };
    (0..bytes).step_by(step).chain([bytes - 1])
}

impl Piece {
    fn new(at: NonNull<u8>, bytes: usize, tag: u8) -> Self {
        for place in places(bytes) {
            // SAFETY: inside our own memory.
            unsafe { at.as_ptr().wrapping_add(place).write(tag) };
        }
        Self { at, bytes, tag }
    }

    fn memory(&self) -> *mut c_void {
        self.at.as_ptr().cast()
    }

    /// Panics unless the first `bytes` bytes have their contents.
    fn check(&self, bytes: usize) {
        for place in places(self.bytes).filter(|&place| place < bytes) {
            // SAFETY: inside our own memory, where `new` wrote.
            let found = unsafe { self.at.as_ptr().wrapping_add(place).read() };
            assert_eq!(found, self.tag, "byte {place} of {}", self.bytes);
        }
    }

    fn free(self) {
        self.check(self.bytes);
        // SAFETY: the thread's own variable.
        unsafe { errno_place().write(77) };
        // SAFETY: our own memory, and no reference to it remains.
        inside(|| unsafe { libc::free(self.memory()) });
        assert_eq!(errno(), 77, "LP3");
    }
}

fn check_zeros(at: NonNull<u8>, from: usize, bytes: usize) {
    for place in places(bytes).filter(|&place| place >= from) {
        // SAFETY: inside our own memory, and initialized.
        assert_eq!(unsafe { at.as_ptr().wrapping_add(place).read() }, 0, "byte {place} of {bytes}");
    }
}

unsafe extern "C" {
    fn valloc(size: usize) -> *mut c_void;
    fn pvalloc(size: usize) -> *mut c_void;
}

/// Allocates by each function, small and large.
fn allocate(held: &mut Vec<Piece>) {
    for (tag, bytes) in (1..).zip([100, 5000, 70_000, 300_000, 3 * MIB, 5 * MIB + 5]) {
        // SAFETY: allocates memory.
        held.extend(ask("malloc", || unsafe { libc::malloc(bytes) }).map(|at| Piece::new(at, bytes, tag)));
    }
    for (tag, bytes) in (11..).zip([200, 90_000, 2 * MIB]) {
        // SAFETY: allocates memory.
        if let Some(at) = ask("calloc", || unsafe { libc::calloc(bytes, 1) }) {
            check_zeros(at, 0, bytes);
            held.push(Piece::new(at, bytes, tag));
        }
    }
    let mut aligned = |what: &str, bytes: usize, align: usize, call: &dyn Fn() -> *mut c_void| {
        if let Some(at) = ask(what, call) {
            assert_eq!(at.addr().get() % align, 0, "{what}");
            held.push(Piece::new(at, bytes, 21));
        }
    };
    for (bytes, align) in [(300, 64), (100_000, 64), (100_000, 1 << 16)] {
        // SAFETY: allocates memory.
        aligned("aligned_alloc", bytes, align, &|| unsafe { libc::aligned_alloc(align, bytes) });
        // SAFETY: allocates memory.
        aligned("memalign", bytes, align, &|| unsafe { libc::memalign(align, bytes) });
        aligned("posix_memalign", bytes, align, &|| {
            let mut to = null_mut();
            // SAFETY: writes to `to`.
            let code = unsafe { libc::posix_memalign(&raw mut to, align, bytes) };
            assert!(code == 0 && !to.is_null() || code == libc::ENOMEM, "posix_memalign: {code}");
            if code != 0 {
                // It returns the number and may leave errno as it was.
                // SAFETY: the thread's own variable.
                unsafe { errno_place().write(code) };
                return null_mut();
            }
            to
        });
    }
    for bytes in [10_000, 80_000] {
        // SAFETY: allocates memory.
        aligned("valloc", bytes, PAGE, &|| unsafe { valloc(bytes) });
        // SAFETY: allocates memory.
        aligned("pvalloc", bytes, PAGE, &|| unsafe { pvalloc(bytes) });
    }
}

/// Gives pieces other sizes: smaller, larger, and across the threshold both ways. After a failure a piece is as before.
fn resize(held: &mut [Piece]) {
    for (nth, piece) in held.iter_mut().enumerate() {
        let bytes = match nth % 4 {
            0 => piece.bytes * 2 + 4321,
            1 => piece.bytes / 2 + 1,
            2 => piece.bytes + 2 * MIB,
            _ => 1000,
        };
        piece.check(piece.bytes);
        // SAFETY: our own memory, and no reference to it exists.
        let resized = ask("realloc", || unsafe { libc::realloc(piece.memory(), bytes) });
        let Some(at) = resized else {
            piece.check(piece.bytes);
            continue;
        };
        piece.at = at;
        piece.check(piece.bytes.min(bytes));
        *piece = Piece::new(at, bytes, piece.tag);
        // SAFETY: our own memory.
        assert!(inside(|| unsafe { libc::malloc_usable_size(piece.memory()) }) >= bytes);
    }
}

/// Frees each second piece.
fn free_some(held: &mut Vec<Piece>) {
    let (stay, go): (Vec<_>, Vec<_>) =
        std::mem::take(held).into_iter().enumerate().partition(|(nth, _)| nth % 2 == 0);
    go.into_iter().for_each(|(_, piece)| piece.free());
    held.extend(stay.into_iter().map(|(_, piece)| piece));
}

/// Frees all after the program is calm, and allocates and frees anew: no call fails.
fn settle(held: Vec<Piece>) {
    let before = ERRORS.load(Ordering::Relaxed);
    held.into_iter().for_each(Piece::free);
    let mut held = Vec::new();
    allocate(&mut held);
    resize(&mut held);
    held.into_iter().for_each(Piece::free);
    assert_eq!(ERRORS.load(Ordering::Relaxed), before, "a call fails after all faults");
}

fn trim() {
    // SAFETY: releases unused memory.
    inside(|| unsafe { libc::malloc_trim(0) });
}

fn functions() {
    let mut held = Vec::with_capacity(128);
    allocate(&mut held);
    resize(&mut held);
    free_some(&mut held);
    trim();
    allocate(&mut held);
    mark(Mark::Calm);
    settle(held);
}

/// Changes mappings in an area, as programs do by the functions that the library exports. A change that fails is an
/// error for the program, and the area is usable.
fn changes() {
    let mut held = Vec::with_capacity(8);
    // SAFETY: allocates memory.
    let asked = ask("malloc", || unsafe { libc::malloc(MIB) });
    if let Some(at) = asked {
        let piece = Piece::new(at, MIB, 5);
        let page = at.as_ptr().wrapping_add(PAGE - at.addr().get() % PAGE).cast::<c_void>();
        let code = |what: &str, call: &dyn Fn() -> c_int| {
            let changed = inside(call) == 0;
            if !changed {
                failed(what, errno());
            }
            changed
        };
        let read = libc::PROT_READ;
        // SAFETY: a page of our own, to which nothing refers.
        if code("mprotect", &|| unsafe { libc::mprotect(page, PAGE, read) }) {
            // Not between the marks, since the page must be writable again.
            // SAFETY: as before.
            let restored = unsafe { libc::mprotect(page, PAGE, read | libc::PROT_WRITE) };
            assert_eq!(restored, 0);
        }
        // SAFETY: as before.
        code("mlock", &|| unsafe { libc::mlock(page, PAGE) });
        // SAFETY: as before.
        code("munlock", &|| unsafe { libc::munlock(page, PAGE) });
        // SAFETY: as before; the advice changes no contents.
        code("madvise", &|| unsafe { libc::madvise(page, PAGE, libc::MADV_NOHUGEPAGE) });
        held.push(piece);
    }
    resize(&mut held);
    free_some(&mut held);
    mark(Mark::Calm);
    settle(held);
}

fn set_limit(bytes: u64) -> c_int {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: reads two numbers.
    unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }
}

/// Reaches a limit of addresses, so that the library releases what is unused and asks again.
fn limit() {
    let mut held = Vec::with_capacity(128);
    allocate(&mut held);
    free_some(&mut held);
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').next().unwrap().parse().unwrap();
    if inside(|| set_limit(pages * PAGE as u64 + ROOM)) != 0 {
        failed("setrlimit", errno());
    }
    for _ in 0..6 {
        // SAFETY: allocates memory.
        let asked = ask("malloc", || unsafe { libc::malloc(40 * MIB) });
        held.extend(asked.map(|at| Piece::new(at, 40 * MIB, 9)));
    }
    resize(&mut held);
    free_some(&mut held);
    assert_eq!(set_limit(libc::RLIM_INFINITY), 0);
    mark(Mark::Calm);
    settle(held);
}

/// Forks while pieces are held. The child uses and frees them, and so does the parent.
fn forks() {
    let mut held = Vec::with_capacity(128);
    allocate(&mut held);
    // SAFETY: the child calls functions that the library allows after a fork, and exits.
    let child = inside(|| unsafe { libc::fork() });
    if child < 0 {
        failed("fork", errno());
    } else if child == 0 {
        let right = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            resize(&mut held);
            allocate(&mut held);
            mark(Mark::Calm);
            settle(std::mem::take(&mut held));
        }));
        // SAFETY: ends this process.
        unsafe { libc::_exit(i32::from(right.is_err())) };
    } else {
        let mut status = 1;
        // SAFETY: writes the status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child");
    }
    resize(&mut held);
    mark(Mark::Calm);
    settle(held);
}

/// Threads of the program free the pieces of others, while the library's own thread releases memory.
fn threads() {
    let held: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut held = Vec::with_capacity(128);
                    allocate(&mut held);
                    free_some(&mut held);
                    held
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    // More than that is cached, so the thread is started.
    for _ in 0..3 {
        // SAFETY: allocates memory.
        let asked = ask("malloc", || unsafe { libc::malloc(20 * MIB) });
        asked.into_iter().for_each(|at| Piece::new(at, 20 * MIB, 3).free());
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    mark(Mark::Calm);
    settle(held);
}
