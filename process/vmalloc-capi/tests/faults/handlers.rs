//! The programs that are interrupted at instructions, and their handlers, which run at full speed.

use crate::tracer::{Mark, mark};
use crate::work::{Area, attempt, check_zeros, inside, layout, settle, small_options};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use vmalloc::percpu::{self, PerCpu, PerCpuCounter, PerCpuRef, RefMode, Word};
use vmalloc::{Mappings, Options, Profile, Protection, Vmalloc};

/// The objects that the handlers use. They outlive the signals.
static MEMORY: AtomicPtr<Vmalloc> = AtomicPtr::new(std::ptr::null_mut());
static WORD: AtomicPtr<PerCpu<'static, Word>> = AtomicPtr::new(std::ptr::null_mut());
static COUNT: AtomicPtr<PerCpuRef<'static, fn()>> = AtomicPtr::new(std::ptr::null_mut());
/// An area that stays, and one that comes and goes.
static STAYS: AtomicUsize = AtomicUsize::new(0);
static GOES: AtomicUsize = AtomicUsize::new(0);
static SIGNALS: AtomicU64 = AtomicU64::new(0);
static IN_CHILD: AtomicBool = AtomicBool::new(false);
/// 0, or the number of the first check that failed.
static SURPRISE: AtomicUsize = AtomicUsize::new(0);

const STAYS_BYTES: usize = 70_001;

fn expect(holds: bool, what: usize) {
    if !holds {
        let _first = SURPRISE.compare_exchange(0, what, Ordering::Relaxed, Ordering::Relaxed);
    }
}

fn pointer(at: usize) -> Option<NonNull<u8>> {
    NonNull::new(std::ptr::with_exposed_provenance_mut(at))
}

/// Makes the calls that are allowed in a handler.
extern "C" fn ask(_signal: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: null, or what outlives the signals.
    if let Some(memory) = unsafe { MEMORY.load(Ordering::Relaxed).as_ref() } {
        if let Some(stays) = pointer(STAYS.load(Ordering::Relaxed)) {
            expect(memory.contains(stays.as_ptr()), 1);
            expect(memory.requested_bytes(stays) == Ok(STAYS_BYTES), 2);
            expect(memory.usable_bytes(stays).is_ok_and(|bytes| bytes >= STAYS_BYTES), 3);
        }
        if let Some(goes) = pointer(GOES.load(Ordering::Relaxed)) {
            expect(memory.usable_bytes(goes) != Ok(0), 4);
        }
        let here = 0u8;
        expect(!memory.contains(&raw const here), 5);
    }
    // SAFETY: as before.
    if let Some(word) = unsafe { WORD.load(Ordering::Relaxed).as_ref() } {
        word.word().add(1);
    }
    // SAFETY: as before.
    if let Some(count) = unsafe { COUNT.load(Ordering::Relaxed).as_ref() } {
        count.get();
        expect(!count.is_zero(), 6);
        count.put();
    }
}

/// Forks. The child goes on with the interrupted call, to the end of the program, and the parent waits for that.
extern "C" fn fork(_signal: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the child goes on as its parent would.
    let child = unsafe { libc::fork() };
    if child == 0 {
        IN_CHILD.store(true, Ordering::Relaxed);
    } else {
        let mut status = 1;
        // SAFETY: writes the status.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        expect(waited == child && status == 0, 7);
    }
}

/// Runs a program. A child that its handler forked ends here, since it has no other thread.
fn to_its_end(program: impl FnOnce()) {
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(program));
    if IN_CHILD.load(Ordering::Relaxed) {
        // SAFETY: ends this process.
        unsafe { libc::_exit(i32::from(ended.is_err())) };
    }
    assert!(ended.is_ok(), "the program panicked");
}

fn handle(signal: libc::c_int, handler: extern "C" fn(libc::c_int)) {
    // SAFETY: all zeros is a value, without flags and signals.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler makes only calls that are allowed in one.
    assert_eq!(unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) }, 0);
}

fn handle_both() {
    handle(libc::SIGUSR1, ask);
    handle(libc::SIGUSR2, fork);
}

/// Each step of an entry point is an instruction, so areas are small, and few pages are written.
pub(super) fn areas(options: Options) {
    to_its_end(|| interrupted(options));
}

fn interrupted(options: Options) {
    handle_both();
    let memory = Vmalloc::new(options).unwrap();
    vmalloc::prepare_for_forks();
    MEMORY.store((&raw const memory).cast_mut(), Ordering::Relaxed);
    let stays = memory.alloc(layout(STAYS_BYTES, 1)).unwrap();
    let stays = Area::new(stays, STAYS_BYTES, 77);
    STAYS.store(stays.at.expose_provenance().get(), Ordering::Relaxed);
    for (tag, bytes) in (1..).zip([100, 5000, 20_000, 5000]) {
        let at = attempt("alloc", || memory.alloc(layout(bytes, 1))).unwrap();
        GOES.store(at.expose_provenance().get(), Ordering::Relaxed);
        let area = Area::new(at, bytes, tag);
        // SAFETY: our own, and no reference to it exists.
        let grown = attempt("grow", || unsafe { memory.grow(at, layout(bytes * 2, 1)) }).unwrap();
        GOES.store(grown.expose_provenance().get(), Ordering::Relaxed);
        let area = Area { at: grown, ..area };
        area.check(bytes);
        // SAFETY: our own, and no reference to it exists.
        let shrunk = attempt("shrink", || unsafe { memory.shrink(grown, layout(bytes, 1)) }).unwrap();
        let area = Area { at: shrunk, ..area };
        area.check(bytes);
        let other = attempt("alloc_zeroed", || memory.alloc_zeroed(layout(4096, 1))).unwrap();
        check_zeros(other, 0, 4096);
        for at in [shrunk, other] {
            // SAFETY: our own, and no reference to it remains.
            attempt("free", || unsafe { memory.free(at) }).unwrap();
        }
    }
    inside(|| memory.decay());
    // There it looks at all of the window.
    if options.profile == Profile::Ordinary {
        inside(|| memory.trim());
    }
    mark(Mark::Calm);
    stays.check(STAYS_BYTES);
    MEMORY.store(std::ptr::null_mut(), Ordering::Relaxed);
    assert_eq!(SURPRISE.load(Ordering::Relaxed), 0, "the number of the check that failed");
    settle(&memory, vec![stays]);
}

/// Per-CPU words, counters and references, which a handler may use.
pub(super) fn per_cpu() {
    handle_both();
    let space: &'static percpu::Space =
        Box::leak(Box::new(percpu::Space::new(percpu::Options::default()).unwrap()));
    let word: &'static PerCpu<'static, Word> = Box::leak(Box::new(space.zeroed::<Word>().unwrap()));
    let made = PerCpuRef::new(space, RefMode::PerCpu, (|| {}) as fn()).unwrap();
    let count: &'static PerCpuRef<'static, fn()> = Box::leak(Box::new(made));
    WORD.store(std::ptr::from_ref(word).cast_mut(), Ordering::Relaxed);
    COUNT.store(std::ptr::from_ref(count).cast_mut(), Ordering::Relaxed);
    let counter = PerCpuCounter::new(space, 0);
    counter.promote().unwrap();
    for round in 0..20 {
        inside(|| word.word().add(1000));
        inside(|| counter.add(5));
        inside(|| count.get());
        inside(|| count.put());
        let object = attempt("alloc", || space.alloc(layout(8 << (round % 5), 8))).unwrap();
        inside(|| drop(object));
    }
    let sum = inside(|| counter.sum());
    let killed = attempt("kill", || count.kill()).is_some();
    WORD.store(std::ptr::null_mut(), Ordering::Relaxed);
    COUNT.store(std::ptr::null_mut(), Ordering::Relaxed);
    mark(Mark::Calm);
    assert!(sum == 100 && killed && count.is_zero());
    assert_eq!(word.word().sum(), 20_000 + SIGNALS.load(Ordering::Relaxed));
    assert_eq!(SURPRISE.load(Ordering::Relaxed), 0, "the number of the check that failed");
    space.validate().unwrap();
}

/// A child that shares frames with its parent is killed inside a call.
pub(super) fn killed() {
    let memory = Vmalloc::new(small_options()).unwrap();
    let mappings = Mappings::new(256 << 20).unwrap();
    let frames = mappings.frames(4).unwrap();
    frames.write(4096, &9u64.to_ne_bytes()).unwrap();
    let list = [0, 1].map(|nth| frames.frame(nth).unwrap());
    let mapping = mappings.vmap(&list, Protection::ReadWrite).unwrap();
    let held = Area::new(memory.alloc(layout(50_000, 1)).unwrap(), 50_000, 3);
    // SAFETY: the child makes calls that are allowed after a fork, and is killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        for bytes in (4096..).step_by(4096).take(30) {
            if let Ok(at) = inside(|| memory.alloc(layout(bytes, 1))) {
                // SAFETY: our own, and no reference to it remains.
                _ = inside(|| unsafe { memory.free(at) });
            }
            let _other_process = inside(|| mappings.frames(2).err());
            let mut word = [0; 8];
            _ = inside(|| frames.read(4096, &mut word));
        }
        // SAFETY: ends this process.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: writes the status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFSIGNALED(status) || libc::WIFEXITED(status));
    held.check(50_000);
    let mut word = [0; 8];
    mapping.read(4096, &mut word).unwrap();
    assert_eq!(u64::from_ne_bytes(word), 9);
    drop(mapping);
    mappings.flush();
    assert_eq!(mappings.vmap(&list, Protection::Read).unwrap().len(), 2 * 4096);
    settle(&memory, vec![held]);
}
