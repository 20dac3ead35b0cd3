//! The programs that are traced: every entry point of `vmalloc`, with the contents of all memory checked.
//!
//! Each prints the errors that it met and the bytes that stay mapped. An error has a documented type, since the types
//! have no other. Until [`Mark::Calm`] any call may fail. After it no call may. All memory that is held has its contents
//! then, all of it can be freed, and what is allocated anew is zero where it has to be.

use crate::tracer::{Mark, mark};
use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::{Debug, Write};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use vmalloc::{Hardened, HugePages, LargeAlloc, Options, Profile, Vmalloc, Walls};

pub(super) const MIB: usize = 1 << 20;
pub(super) const PAGE: usize = 4096;

static ERRORS: AtomicU64 = AtomicU64::new(0);

/// Calls an entry point between the marks.
pub(super) fn inside<T>(call: impl FnOnce() -> T) -> T {
    mark(Mark::Enter);
    let answer = call();
    mark(Mark::Leave);
    answer
}

/// Calls an entry point that may fail, and counts its error.
pub(super) fn attempt<T, E: Debug>(what: &str, call: impl FnOnce() -> Result<T, E>) -> Option<T> {
    match inside(call) {
        Ok(done) => Some(done),
        Err(error) => {
            failed(what, &error);
            None
        }
    }
}

fn failed(what: &str, error: &dyn Debug) {
    if ERRORS.fetch_add(1, Ordering::Relaxed) < 8 {
        println!("error: {what}: {error:?}");
    }
}

/// The program reports its errors, and the rest of what it has to say, to its tracer.
pub(super) fn say_errors() {
    println!("errors {}", ERRORS.load(Ordering::Relaxed));
}

pub(super) fn layout(bytes: usize, align: usize) -> Layout {
    Layout::from_size_align(bytes, align).unwrap()
}

/// An area that is held, and the byte that is in it at each place of `places`.
pub(super) struct Area {
    pub(super) at: NonNull<u8>,
    pub(super) bytes: usize,
    pub(super) tag: u8,
}

/// A byte of each page but a few, to touch little of large areas, and the last one.
fn places(bytes: usize) -> impl Iterator<Item = usize> {
    let step = if bytes > MIB { 256 << 10 } else { 3 * PAGE };
    (0..bytes).step_by(step).chain([bytes - 1])
}

impl Area {
    pub(super) fn new(at: NonNull<u8>, bytes: usize, tag: u8) -> Self {
        let area = Self { at, bytes, tag };
        area.fill();
        area
    }

    fn place(&self, at: usize) -> *mut u8 {
        // SAFETY: inside the area.
        unsafe { self.at.as_ptr().add(at) }
    }

    pub(super) fn fill(&self) {
        // SAFETY: our own area.
        places(self.bytes).for_each(|at| unsafe { self.place(at).write(self.tag) });
    }

    /// Panics unless the first `bytes` bytes have their contents.
    pub(super) fn check(&self, bytes: usize) {
        for at in places(self.bytes).filter(|&at| at < bytes) {
            // SAFETY: our own area, where `fill` wrote.
            let found = unsafe { self.place(at).read() };
            assert_eq!(found, self.tag, "byte {at} of {}", self.bytes);
        }
    }
}

/// Panics unless bytes are zeros.
pub(super) fn check_zeros(at: NonNull<u8>, from: usize, bytes: usize) {
    for place in places(bytes).filter(|&place| place >= from) {
        // SAFETY: inside the area, and initialized.
        let byte = unsafe { at.add(place) };
        // SAFETY: as before.
        assert_eq!(unsafe { byte.read() }, 0, "byte {place} of {bytes}");
    }
}

/// Allocates areas of several kinds.
pub(super) fn allocate(memory: &Vmalloc, held: &mut Vec<Area>) {
    let plain = [(1, 1), (5000, 16), (70_000, 1), (300_000, 1 << 16), (3 * MIB, 1), (5 * MIB + 5, PAGE)];
    for (tag, (bytes, align)) in (1..).zip(plain) {
        if let Some(at) = attempt("alloc", || memory.alloc(layout(bytes, align))) {
            assert_eq!(at.addr().get() % align, 0);
            held.push(Area::new(at, bytes, tag));
        }
    }
    for (tag, bytes) in (11..).zip([200_000, 2 * MIB + 100]) {
        if let Some(at) = attempt("alloc_zeroed", || memory.alloc_zeroed(layout(bytes, 1))) {
            check_zeros(at, 0, bytes);
            held.push(Area::new(at, bytes, tag));
        }
    }
    if let Some(at) = attempt("alloc_huge", || memory.alloc_huge(layout(2 * MIB + 1, 1))) {
        held.push(Area::new(at, 2 * MIB + 1, 21));
    }
    if let Some(at) = attempt("alloc_tagged", || memory.alloc_tagged(layout(90_000, 1), "faults")) {
        held.push(Area::new(at, 90_000, 22));
    }
}

/// Gives areas other sizes. An area whose resize fails has its old contents.
pub(super) fn resize(memory: &Vmalloc, held: &mut [Area]) {
    for (nth, area) in held.iter_mut().enumerate() {
        let bytes = match nth % 3 {
            0 => area.bytes * 2 + 4321,
            1 => area.bytes / 2 + 1,
            _ => area.bytes + 2 * MIB,
        };
        let zeroed = nth % 2 == 0;
        let (old, new) = (area.at, layout(bytes, 1));
        area.check(area.bytes);
        let resized = attempt("resize", || match (zeroed, bytes < area.bytes) {
            // SAFETY: our own, and no reference to it exists.
            (_, true) => unsafe { memory.shrink(old, new) },
            // SAFETY: as before.
            (true, _) => unsafe { memory.grow_zeroed(old, new) },
            // SAFETY: as before.
            _ => unsafe { memory.grow(old, new) },
        });
        let Some(at) = resized else {
            area.check(area.bytes);
            continue;
        };
        area.at = at;
        area.check(area.bytes.min(bytes));
        if zeroed && bytes > area.bytes {
            check_zeros(at, area.bytes, bytes);
        }
        area.bytes = bytes;
        area.fill();
    }
}

/// Frees each second area. A free never fails.
pub(super) fn free_some(memory: &Vmalloc, held: &mut Vec<Area>) {
    let mut nth = 0;
    held.retain(|area| {
        nth += 1;
        if nth % 2 == 0 {
            area.check(area.bytes);
            // SAFETY: our own, and no reference to it remains.
            inside(|| unsafe { memory.free(area.at) }).unwrap();
        }
        nth % 2 == 1
    });
}

/// Counts the bytes of a text.
#[derive(Default)]
pub(super) struct Sink(usize);

impl Write for Sink {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0 += text.len();
        Ok(())
    }
}

/// Asks, and releases memory and addresses.
pub(super) fn look_and_release(memory: &Vmalloc, held: &[Area]) {
    let mut lines = Sink::default();
    inside(|| write!(lines, "{}", memory.vmallocinfo())).unwrap();
    for area in held {
        assert!(inside(|| memory.contains(area.at.as_ptr())));
        assert_eq!(inside(|| memory.requested_bytes(area.at)), Ok(area.bytes));
        let mut bytes = [0; 64];
        let some = area.bytes.min(64);
        let count = inside(|| memory.vread(area.at.as_ptr(), &mut bytes[..some]));
        // The system may deny a read that might fault.
        if count > 0 {
            assert_eq!(bytes[0], area.tag);
        }
    }
    // More than that is cached, so the system is asked how much memory it has.
    if let Some(at) = attempt("alloc", || memory.alloc(layout(40 * MIB, 1))) {
        // SAFETY: our own, and no reference to it remains.
        inside(|| unsafe { memory.free(at) }).unwrap();
    }
    inside(|| memory.decay());
    inside(|| memory.trim());
    inside(|| memory.shut());
    inside(|| memory.release_addresses());
    inside(|| memory.decay());
}

/// Frees all after the program is calm, and allocates and frees anew: no call fails.
pub(super) fn settle(memory: &Vmalloc, held: Vec<Area>) {
    for area in held {
        area.check(area.bytes);
        // SAFETY: our own, and no reference to it remains.
        unsafe { memory.free(area.at) }.unwrap();
    }
    check_none_live(memory);
    for bytes in [100, 70_000, 600_000, 3 * MIB, 6 * MIB] {
        let at = memory.alloc_zeroed(layout(bytes, 1)).unwrap();
        check_zeros(at, 0, bytes);
        let area = Area::new(at, bytes, 99);
        // SAFETY: our own, and no reference to it remains.
        let at = unsafe { memory.grow_zeroed(at, layout(bytes * 2, 1)) }.unwrap();
        Area { at, ..area }.check(bytes);
        check_zeros(at, bytes, bytes * 2);
        // SAFETY: as before.
        unsafe { memory.free(at) }.unwrap();
    }
    memory.trim();
    check_none_live(memory);
}

/// Waits until the counters show no live memory. They are read one after the other, while the background thread may move
/// memory between lists.
fn check_none_live(memory: &Vmalloc) {
    for _ in 0..1000 {
        if memory.stats().live_bytes == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{:?}", memory.stats());
}

pub(super) fn small_options() -> Options {
    // If the system denies it four times, the arena still has 256 MiB. Released addresses are not used again.
    Options::default().background_thread(false).arena_bytes_max(1 << 36)
}

/// Returns the options of the programs of an allocator by the program's name.
pub(super) fn options(name: &str) -> Option<Options> {
    let hardened = |walls| {
        let numbers = Hardened::default().walls(walls).window_bytes(512 << 20).quarantine_bytes_max(16 << 20);
        Options::default().profile(Profile::Hardened(numbers))
    };
    Some(match name {
        "plain" => small_options(),
        "guards" => small_options().guards(true).zero_on_free(true).caller_tags(true),
        "huge" => small_options().huge_pages(HugePages::Always).cache_bytes_max(0),
        "hardened" => hardened(Walls::Best),
        "narrow" => {
            let numbers = Hardened::default().window_bytes(32 << 20).quarantine_bytes_max(1 << 20);
            Options::default().arena_bytes_max(256 << 20).profile(Profile::Hardened(numbers))
        }
        "walls" => hardened(Walls::Protection),
        _ => return None,
    })
}

/// One program of a private allocator.
fn private(name: &str) {
    let before = mapped_bytes();
    let options = options(name).unwrap();
    if options.profile != Profile::Ordinary {
        // What `release_addresses` leaves is a share of the limit.
        limit(libc::RLIMIT_AS, 4 << 30);
    }
    if let Some(memory) = attempt("new", || Vmalloc::new(options)) {
        let mut held = Vec::with_capacity(32);
        allocate(&memory, &mut held);
        resize(&memory, &mut held);
        free_some(&memory, &mut held);
        look_and_release(&memory, &held);
        allocate(&memory, &mut held);
        free_some(&memory, &mut held);
        buffers(&memory);
        mark(Mark::Calm);
        settle(&memory, held);
        // The end of an allocator is an entry point, too; but what it fails to unmap is lost for good.
        drop(memory);
    }
    mark(Mark::Calm);
    println!("leak {}", mapped_bytes().saturating_sub(before));
    let memory = Vmalloc::new(options).unwrap();
    settle(&memory, Vec::new());
}

/// Limits what this process may have, for a time.
pub(super) fn limit(what: libc::__rlimit_resource_t, bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: reads two numbers.
    assert_eq!(unsafe { libc::setrlimit(what, &raw const limit) }, 0);
}

fn buffers(memory: &Vmalloc) {
    let Some(mut buffer) = attempt("buffer", || memory.buffer(100_000)) else { return };
    buffer[99_999] = 5;
    if attempt("Buffer::resize", || buffer.resize(3 * MIB)).is_some() {
        assert_eq!((buffer[99_999], buffer[MIB], buffer.len()), (5, 0, 3 * MIB));
    }
    let more = [7; 5000];
    let len = buffer.len();
    if attempt("Buffer::extend_from_slice", || buffer.extend_from_slice(&more)).is_some() {
        assert_eq!((buffer[99_999], buffer[len + 4999], buffer.len()), (5, 7, len + 5000));
    } else {
        assert_eq!((buffer[99_999], buffer.len()), (5, len));
    }
    if let Some(other) = attempt("Buffer::try_clone", || buffer.try_clone()) {
        assert!(other[..] == buffer[..]);
        inside(|| drop(other));
    }
    inside(|| drop(buffer));
}

/// Bytes that the process has mapped.
pub(super) fn mapped_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').next().unwrap().parse::<usize>().unwrap() * PAGE
}

/// A global allocator that passes large sizes on.
fn large() {
    static LARGE: LargeAlloc<System> = LargeAlloc::new(System);
    let mut held = Vec::with_capacity(8);
    for (tag, bytes) in (1..).zip([100, 70_000, 2 * MIB]) {
        // SAFETY: not of size 0.
        let at = inside(|| unsafe { LARGE.alloc_zeroed(layout(bytes, 8)) });
        match NonNull::new(at) {
            Some(at) => {
                check_zeros(at, 0, bytes);
                held.push(Area::new(at, bytes, tag));
            }
            None => failed("LargeAlloc::alloc", &bytes),
        }
    }
    for area in &mut held {
        let bytes = area.bytes * 3;
        // SAFETY: our own, of that layout.
        let at = inside(|| unsafe { LARGE.realloc(area.at.as_ptr(), layout(area.bytes, 8), bytes) });
        match NonNull::new(at) {
            Some(at) => {
                area.at = at;
                area.check(area.bytes);
                area.bytes = bytes;
                area.fill();
            }
            None => failed("LargeAlloc::realloc", &bytes),
        }
    }
    let last = held.pop();
    let free = |area: Area| {
        area.check(area.bytes);
        // SAFETY: our own, of that layout.
        inside(|| unsafe { LARGE.dealloc(area.at.as_ptr(), layout(area.bytes, 8)) });
    };
    last.into_iter().for_each(free);
    mark(Mark::Calm);
    held.into_iter().for_each(free);
    let memory = Vmalloc::global().unwrap();
    settle(memory, Vec::new());
}

/// Forks while areas are held. The child uses and frees them, and so does the parent.
fn forks() {
    let Some(memory) = attempt("new", || Vmalloc::new(small_options())) else { return };
    let mut held = Vec::with_capacity(32);
    allocate(&memory, &mut held);
    free_some(&memory, &mut held);
    // SAFETY: the child calls only functions that are allowed after a fork, and exits.
    let child = inside(|| unsafe { libc::fork() });
    if child < 0 {
        failed("fork", &std::io::Error::last_os_error());
    } else if child == 0 {
        let right = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            resize(&memory, &mut held);
            allocate(&memory, &mut held);
            look_and_release(&memory, &held);
            mark(Mark::Calm);
            settle(&memory, std::mem::take(&mut held));
        }));
        // SAFETY: ends this process.
        unsafe { libc::_exit(i32::from(right.is_err())) };
    } else {
        wait_for(child);
    }
    resize(&memory, &mut held);
    mark(Mark::Calm);
    settle(&memory, held);
}

/// Waits for a child, and panics unless it succeeded.
pub(super) fn wait_for(child: libc::pid_t) {
    let mut status = 1;
    // SAFETY: writes the status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child");
}

/// A thread that releases memory, and threads of the program that share an allocator.
fn threads() {
    let options = small_options().background_thread(true).decay(Some(Duration::from_millis(1)));
    let Some(memory) = attempt("new", || Vmalloc::new(options)) else { return };
    let mut held = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut held = Vec::with_capacity(64);
                    allocate(&memory, &mut held);
                    resize(&memory, &mut held);
                    free_some(&memory, &mut held);
                    look_and_release(&memory, &held);
                    held.into_iter().map(Sent).collect::<Vec<_>>()
                })
            })
            .collect();
        let held = workers.into_iter().flat_map(|worker| worker.join().unwrap());
        held.map(|Sent(area)| area).collect::<Vec<_>>()
    });
    free_some(&memory, &mut held);
    mark(Mark::Calm);
    settle(&memory, held);
}

/// An area that goes to another thread.
struct Sent(Area);
// SAFETY: it owns its bytes.
unsafe impl Send for Sent {}

/// Frees and allocates for a while under a clock that may do anything, and reports what decayed.
fn clock(options: Options) {
    const CACHED_MAX: usize = 64 * MIB;
    let memory = Vmalloc::new(options.cache_bytes_max(CACHED_MAX)).unwrap();
    let cached = || {
        let stats = memory.stats();
        assert!(stats.dirty_bytes + stats.cached_bytes <= CACHED_MAX, "{stats:?}");
        stats.dirty_bytes + stats.cached_bytes
    };
    let area = |bytes, tag| Area::new(memory.alloc(layout(bytes, 1)).unwrap(), bytes, tag);
    let burst: Vec<_> = (0..8).map(|tag| area(2 * MIB, tag)).collect();
    let free = |area: Area| {
        area.check(area.bytes);
        // SAFETY: our own, and no reference to it remains.
        inside(|| unsafe { memory.free(area.at) }).unwrap();
    };
    burst.into_iter().for_each(free);
    let before = memory.stats().purged_bytes;
    for round in 0..100 {
        let areas = [(5000, 1), (200_000, 2)].map(|(bytes, tag)| area(bytes + 4096 * (round % 5), tag));
        areas.into_iter().for_each(free);
        inside(|| memory.decay());
        cached();
    }
    println!("cached {}", cached());
    println!("purged {}", memory.stats().purged_bytes - before);
    mark(Mark::Calm);
    settle(&memory, Vec::new());
}

/// Asks for the features of the system.
fn machine() {
    let _may_fail = attempt("machine", vmalloc::machine);
    mark(Mark::Calm);
    vmalloc::machine().unwrap();
}

/// The programs whose calls are the same in each run, and the one that has threads.
pub(super) const PROGRAMS: [(&str, fn()); 12] = [
    ("plain", || private("plain")),
    ("guards", || private("guards")),
    ("huge", || private("huge")),
    ("hardened", || private("hardened")),
    ("walls", || private("walls")),
    ("large", large),
    ("percpu", crate::safe::per_cpu),
    ("vmap", crate::safe::mappings),
    ("c", crate::c::program),
    ("fork", forks),
    ("machine", machine),
    ("threads", threads),
];

/// The programs of other tests.
const OTHERS: [(&str, fn()); 6] = [
    ("steps", || crate::handlers::areas(small_options())),
    ("steps_hardened", || crate::handlers::areas(options("narrow").unwrap())),
    ("steps_percpu", crate::handlers::per_cpu),
    ("steps_killed", crate::handlers::killed),
    ("clock", || clock(small_options())),
    ("clock_thread", || clock(small_options().background_thread(true))),
];

/// Runs a program.
pub(super) fn run(name: &str) {
    if let Some((limit, options)) = crate::limits::named(name) {
        crate::limits::limited(limit, options);
        return say_errors();
    }
    let (_, program) = PROGRAMS.iter().chain(&OTHERS).find(|(known, _)| *known == name).unwrap();
    program();
    say_errors();
}
