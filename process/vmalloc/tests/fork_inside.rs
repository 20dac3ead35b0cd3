//! Forks in the midst of what a fork waits for: the making of the default allocator, and another fork.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod again;

use again::{role, run, say, work};
use std::alloc::Layout;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use vmalloc::{Options, Vmalloc};

/// Allocates and frees in many sizes; `false` at the first surprise.
fn pairs(memory: &Vmalloc, rounds: usize) -> bool {
    (1..=rounds).all(|round| {
        let layout = Layout::from_size_align(round * 70_001 % (3 << 20) + 1, 1).unwrap();
        let Ok(area) = memory.alloc(layout) else { return false };
        // SAFETY: an area of our own, of at least a byte, to which no reference exists.
        unsafe { memory.free(area) }.is_ok()
    })
}

/// Forks, and waits for the child, which has a minute; whether it ended well.
fn in_child(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child calls only what it may after a fork, and leaves without coming back.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: a child that waits for a lock without a holder ends by this.
        unsafe { libc::alarm(60) };
        let done = child();
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!done)) };
    }
    let mut status = -1;
    // SAFETY: waits for the child of above.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    pid > 0 && waited == pid && status == 0
}

/// A process forks while another of its threads makes the allocator, each at another moment.
#[test]
fn a_child_allocates_though_its_parent_was_making_the_default_allocator() {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    let Some(role) = role() else {
        let name = "a_child_allocates_though_its_parent_was_making_the_default_allocator";
        for moment in 0..40 {
            assert_eq!(run(name, &moment.to_string(), || Ok(())), Ok("true".into()), "{moment}");
        }
        return;
    };
    let moment: u32 = role.parse().unwrap();
    if !moment.is_multiple_of(4) {
        // So that the fork finds the lock, and does not come before its handlers are registered.
        vmalloc::prepare_for_forks();
    }
    let thread = std::thread::spawn(|| {
        BEGUN.store(true, Ordering::Release);
        work(Vmalloc::global().unwrap(), 64, 1)
    });
    while !BEGUN.load(Ordering::Acquire) {
        std::hint::spin_loop();
    }
    (0..moment / 4 * 200).for_each(|_| std::hint::spin_loop());
    let child = in_child(|| Vmalloc::global().is_ok_and(|memory| pairs(memory, 10)));
    thread.join().unwrap();
    say(&child.to_string());
}

/// The handler of [`HANDLERS`] that forks next.
static NEXT: AtomicUsize = AtomicUsize::new(usize::MAX);
const HANDLERS: usize = 3;
/// Children of handlers that did not end well, in this process.
static FAILED: AtomicI32 = AtomicI32::new(0);
static MEMORY: std::sync::OnceLock<Vmalloc> = std::sync::OnceLock::new();

/// Forks if it is the turn of this handler. It may not allocate: it is called while a fork holds all locks.
fn fork_in(handler: usize) {
    if NEXT.compare_exchange(handler, usize::MAX, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        && !in_child(|| MEMORY.get().is_some_and(|memory| pairs(memory, 10)))
    {
        FAILED.fetch_add(1, Ordering::Relaxed);
    }
}

extern "C" fn before() {
    fork_in(0);
}

extern "C" fn in_parent() {
    fork_in(1);
}

extern "C" fn after_in_child() {
    fork_in(2);
}

#[test]
fn a_fork_inside_the_handlers_of_a_fork_leaves_its_locks_held() {
    if role().is_none() {
        let name = "a_fork_inside_the_handlers_of_a_fork_leaves_its_locks_held";
        for threads in [0, 8] {
            assert_eq!(run(name, &threads.to_string(), || Ok(())), Ok("true".into()), "{threads} threads");
        }
        return;
    }
    // SAFETY: returns a text that stays.
    let version = unsafe { libc::gnu_get_libc_version() };
    // SAFETY: as before.
    let version = unsafe { CStr::from_ptr(version) }.to_str().unwrap();
    let minor: u32 = version.split('.').nth(1).unwrap().parse().unwrap();
    if minor < 36 {
        // Before, glibc holds a lock of its own while it calls handlers, and such a fork waits for ever.
        return say("true");
    }
    // Before ours: they are called while ours hold the locks.
    // SAFETY: functions that stay.
    assert_eq!(unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(after_in_child)) }, 0);
    let memory = MEMORY.get_or_init(|| Vmalloc::new(Options::default().cache_bytes_max(8 << 20)).unwrap());
    let stop = AtomicBool::new(false);
    let threads: usize = role().unwrap().parse().unwrap();
    let done = std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    assert!(pairs(memory, 20));
                }
            });
        }
        let done = (0..60).all(|round| {
            NEXT.store(round % HANDLERS, Ordering::Relaxed);
            in_child(|| pairs(memory, 10) && FAILED.load(Ordering::Relaxed) == 0)
                && FAILED.load(Ordering::Relaxed) == 0
                && pairs(memory, 10)
        });
        stop.store(true, Ordering::Relaxed);
        done
    });
    memory.trim();
    let stats = memory.stats();
    say(&(done && (stats.live_bytes, stats.cached_bytes) == (0, 0)).to_string());
}
