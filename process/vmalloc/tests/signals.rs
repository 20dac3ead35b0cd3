//! A test with a thousand signals a second, whose handler makes every allowed call.

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use vmalloc::{Options, Vmalloc};

static MEMORY: AtomicPtr<Vmalloc> = AtomicPtr::new(std::ptr::null_mut());
/// Areas that stay allocated, and one that is allocated and freed repeatedly.
static STAY: [AtomicUsize; 8] = [const { AtomicUsize::new(0) }; 8];
static GOES: AtomicUsize = AtomicUsize::new(0);
static SIGNALS: AtomicUsize = AtomicUsize::new(0);
/// 0, or the number of the first failed check.
static SURPRISE: AtomicUsize = AtomicUsize::new(0);

const fn bytes_of(place: usize) -> usize {
    70_001 * (place + 1)
}

extern "C" fn handler(_signal: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: null, or an allocator that outlives the signals.
    let Some(memory) = (unsafe { MEMORY.load(Ordering::Acquire).as_ref() }) else { return };
    let expect = |holds: bool, what| {
        if !holds {
            let _first = SURPRISE.compare_exchange(0, what, Ordering::Relaxed, Ordering::Relaxed);
        }
    };
    for (place, area) in STAY.iter().enumerate() {
        let at = area.load(Ordering::Acquire);
        let Some(area) = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(at)) else { continue };
        expect(memory.contains(area.as_ptr()), 1);
        expect(memory.requested_bytes(area) == Ok(bytes_of(place)), 2);
        expect(memory.usable_bytes(area) == Ok(bytes_of(place).next_multiple_of(4096)), 3);
    }
    let here = 0u8;
    expect(!memory.contains(&raw const here), 4);
    let at = GOES.load(Ordering::Acquire);
    if let Some(area) = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(at)) {
        // The call returns a result for live and for free areas.
        expect(memory.contains(area.as_ptr()), 5);
        expect(memory.usable_bytes(area) != Ok(0), 6);
    }
}

/// Sends the signal to each of these threads every millisecond, independent of the kernel's timer, up to `most`
/// signals.
fn send(threads: &[AtomicI32], most: usize, ends: Instant) {
    // SAFETY: returns a number.
    let process = unsafe { libc::getpid() };
    while SIGNALS.load(Ordering::Relaxed) < most && Instant::now() < ends {
        for thread in threads {
            let thread = thread.load(Ordering::Relaxed);
            if thread != 0 {
                // SAFETY: a thread of this process, whose handler is set.
                let _gone = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGPROF) };
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_handler_that_asks_what_is_where_interrupts_everything_and_stops_nothing() {
    let memory = Vmalloc::new(Options::default().cache_bytes_max(4 << 20)).unwrap();
    let layout = |bytes: usize| Layout::from_size_align(bytes, 1).unwrap();
    // SAFETY: all zeros is a valid value, without flags and signals.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler makes only calls that are allowed in one.
    assert_eq!(unsafe { libc::sigaction(libc::SIGPROF, &raw const action, std::ptr::null_mut()) }, 0);
    MEMORY.store((&raw const memory).cast_mut(), Ordering::Release);
    for (place, area) in STAY.iter().enumerate() {
        area.store(
            memory.alloc(layout(bytes_of(place))).unwrap().expose_provenance().get(),
            Ordering::Release,
        );
    }
    // SAFETY: a signal ends the process if a thread deadlocks.
    unsafe { libc::alarm(300) };
    let ends = Instant::now() + Duration::from_secs(120);
    let threads = [const { AtomicI32::new(0) }; 4];
    std::thread::scope(|scope| {
        for (seed, thread) in (1u64..).zip(&threads) {
            let memory = &memory;
            scope.spawn(move || {
                // SAFETY: returns a number.
                let me = unsafe { libc::gettid() };
                thread.store(me, Ordering::Relaxed);
                let mut state = seed;
                while SIGNALS.load(Ordering::Relaxed) < 1500 && Instant::now() < ends {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let bytes = 1 + (state >> 33) as usize % (3 << 20);
                    let area = memory.alloc(layout(bytes)).unwrap();
                    GOES.store(area.expose_provenance().get(), Ordering::Release);
                    // SAFETY: our own.
                    unsafe { area.write(1) };
                    // SAFETY: our own, and no reference to it exists.
                    let area = unsafe { memory.grow(area, layout(bytes * 2)) }.unwrap();
                    // SAFETY: as before.
                    unsafe { memory.free(area) }.unwrap();
                    match state >> 58 {
                        0 => _ = memory.trim(),
                        1 => _ = memory.stats(),
                        _ => {}
                    }
                }
                thread.store(0, Ordering::Relaxed);
            });
        }
        send(&threads, 1500, ends);
    });
    MEMORY.store(std::ptr::null_mut(), Ordering::Release);
    // SAFETY: as above.
    unsafe { libc::alarm(0) };
    assert_eq!(SURPRISE.load(Ordering::Relaxed), 0, "the number of what was not as it has to be");
    assert!(SIGNALS.load(Ordering::Relaxed) > 750, "{} signals", SIGNALS.load(Ordering::Relaxed));
    assert!(memory.stats().purged_bytes > 0);
}
