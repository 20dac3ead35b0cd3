//! The parts of the guest's port in a process: threads are CPUs, and a thread that polls takes interrupts.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use va_base::sync::RawMutex;
use va_base::{Machine, Meta, PAGE_SIZE, Platform, Record, Va, VaRange};
use va_map::{Entries, Leaf, PageTable, PageTableError, Run};
use vmalloc_guest::cpus::Cpus;
use vmalloc_guest::frames::{self, Frames};
use vmalloc_guest::lock::{IrqLock, WaitLock};
use vmalloc_guest::port::Port;
use vmalloc_guest::shootdown::Shootdown;
use vmalloc_guest::tables::{READ_WRITE, Tables};

const CPUS: usize = 4;

std::thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
    static ENABLED: Cell<bool> = const { Cell::new(true) };
}
/// Interrupts that are pending, and what each CPU forgot: the sum of pages, and of all at once.
static PENDING: [AtomicBool; CPUS] = [const { AtomicBool::new(false) }; CPUS];
static FORGOTTEN: [AtomicU64; CPUS] = [const { AtomicU64::new(0) }; CPUS];
const ALL: u64 = 1 << 32;

#[derive(Clone, Copy)]
enum Threads {}

impl Cpus for Threads {
    const POSSIBLE: usize = CPUS;
    fn online() -> u64 {
        (1 << CPUS) - 1
    }
    fn this() -> usize {
        CPU.get()
    }
    fn disable_interrupts() -> bool {
        ENABLED.replace(false)
    }
    fn enable_interrupts() {
        ENABLED.set(true);
    }
    fn takes_interrupts() -> bool {
        ENABLED.get()
    }
    fn interrupt(cpu: usize) {
        PENDING[cpu].store(true, Ordering::SeqCst);
    }
    fn forget(at: Va) {
        FORGOTTEN[CPU.get()].fetch_add(at.page_floor(), Ordering::SeqCst);
    }
    fn forget_all() {
        FORGOTTEN[CPU.get()].fetch_add(ALL, Ordering::SeqCst);
    }
}

/// Frames of leaked memory, 6 MiB of them, the first at a multiple of 2 MiB.
fn frames() -> (&'static Frames<Threads>, u64) {
    let memory = Vec::leak(vec![0_u8; 8 << 20]).as_mut_ptr().expose_provenance() as u64;
    let first = memory.next_multiple_of(2 << 20) / PAGE_SIZE;
    (frames_from(first), first)
}

/// The same frames again, all free: nothing of the earlier ones is used any more.
fn frames_from(first: u64) -> &'static Frames<Threads> {
    let frames: &Frames<Threads> = Box::leak(Box::new(Frames::new()));
    // SAFETY: leaked memory of this test.
    unsafe { frames.add(first, first + (6 << 20) / PAGE_SIZE) };
    frames
}

fn tables(frames: &'static Frames<Threads>) -> Tables<Threads> {
    let root = frames.alloc(0).expect("a frame");
    // SAFETY: allocated just now.
    unsafe { frames::clear(root, 0, PAGE_SIZE) };
    // SAFETY: an empty table of this test.
    unsafe { Tables::new(frames, root) }
}

#[test]
fn a_lock_restores_interrupts_as_they_were_and_the_other_leaves_them_alone() {
    let (outer, inner) = (IrqLock::<Threads>::INIT, IrqLock::<Threads>::INIT);
    outer.lock();
    assert!(!ENABLED.get());
    inner.lock();
    assert!(!inner.try_lock() && !ENABLED.get(), "a failed attempt leaves them disabled");
    // SAFETY: locked above.
    unsafe { inner.unlock() };
    assert!(!ENABLED.get(), "the outer lock is held");
    // SAFETY: locked above.
    unsafe { outer.unlock() };
    assert!(ENABLED.get());
    outer.lock();
    ENABLED.set(true);
    assert!(!outer.try_lock() && ENABLED.get(), "one that waits has them as before");
    let wait = WaitLock::<Threads>::INIT;
    wait.lock();
    assert!(ENABLED.get() && !wait.try_lock());
    // SAFETY: locked above.
    unsafe { wait.unlock() };
    assert!(wait.try_lock() && ENABLED.get());
}

#[test]
fn frames_are_aligned_rotate_and_are_freed_once() {
    let (frames, first) = frames();
    let all = frames.free_count();
    assert_eq!(all, 1536);
    let (one, two) = (frames.alloc(0).unwrap(), frames.alloc(0).unwrap());
    assert_eq!((one, two), (first, first + 1));
    frames.free(Run { first: one, pages: 1 });
    assert_eq!(frames.alloc(0), Some(first + 2), "a freed frame is not the next");
    assert_eq!(frames.alloc(9), Some(first + 512));
    assert_eq!(frames.alloc(9), Some(first + 1024));
    assert_eq!(frames.alloc(9), None);
    assert_eq!(frames.alloc(2), Some(first + 4), "the search begins again below");
    frames.free(Run { first: first + 513, pages: 511 });
    let before = frames.free_count();
    let twice = || frames.free(Run { first: first + 512, pages: 2 });
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(twice)).is_err());
    assert_eq!(frames.free_count(), before, "nothing of it is freed");
}

#[test]
fn pages_of_both_sizes_are_mapped_found_and_unmapped() {
    let (frames, _) = frames();
    let tables = tables(frames);
    let at = Va::new(0xffff_c900_0020_0000);
    let entries =
        |first, pages, pages_log2| Entries { run: Run { first, pages }, pages_log2, protection: READ_WRITE };
    tables.map(at, entries(512, 512, 9)).unwrap();
    tables.map(Va::new(at.get() + (2 << 20)), entries(7, 3, 0)).unwrap();
    let leaf = |page| tables.leaf(Va::from_page(at.page_floor() + page));
    assert_eq!(leaf(511), Some(Leaf { first: 512, pages_log2: 9 }));
    assert_eq!(leaf(514), Some(Leaf { first: 9, pages_log2: 0 }));
    assert_eq!(leaf(515), None);
    let stopped = tables.map(Va::new(at.get() + (2 << 20)), entries(1024, 512, 9)).unwrap_err();
    assert_eq!((stopped.pages_done, stopped.why), (0, PageTableError::NoLarge), "a table is there");
    let mut gone = Vec::new();
    let range = VaRange::from_size(at, 1 << 30).unwrap();
    tables.unmap(range, &mut |leaf| gone.push((leaf.first, leaf.pages_log2)));
    assert_eq!(gone, [(512, 9), (7, 0), (8, 0), (9, 0)]);
    tables.unmap(range, &mut |_| panic!("unmapped before"));
    let left = frames.free_count();
    while frames.alloc(0).is_some() {}
    let far = Va::new(0xffff_e800_0000_0000);
    assert_eq!(tables.map(far, entries(1, 1, 0)).unwrap_err().why, PageTableError::NoMemory);
    assert_eq!((left > 0, tables.leaf(far)), (true, None));
}

#[test]
fn a_table_that_one_cpu_adds_survives_an_unmap_of_absent_pages_beside_it() {
    let (_, first) = frames();
    let region = |number: u64| Va::new(0xffff_c900_0000_0000 + number * (2 << 20));
    let at = AtomicU64::new(0);
    for _ in 0..400 {
        let tables = tables(frames_from(first));
        at.store(0, Ordering::SeqCst);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while at.load(Ordering::SeqCst) < 60 {
                    let page = region(at.load(Ordering::SeqCst)).page_floor() + 9;
                    let own = VaRange::from_pages(page, page + 1).unwrap();
                    tables.unmap(own, &mut |leaf| panic!("{leaf:?} is another's"));
                    assert_eq!(tables.leaf(own.start()), None);
                }
            });
            for number in 0..60 {
                at.store(number, Ordering::SeqCst);
                let entries =
                    Entries { run: Run { first: 7, pages: 1 }, pages_log2: 0, protection: READ_WRITE };
                tables.map(region(number), entries).unwrap();
            }
            at.store(60, Ordering::SeqCst);
        });
        let found = (0..60).filter(|&number| tables.leaf(region(number)).is_some()).count();
        assert_eq!(found, 60);
    }
}

#[test]
fn slabs_and_tables_go_back_whole() {
    #[derive(Clone)]
    struct Odd([u8; 40]);
    impl Record for Odd {
        const EMPTY: Self = Self([7; 40]);
    }
    let (frames, _) = frames();
    let shootdown: &Shootdown<Threads> = Box::leak(Box::new(Shootdown::new()));
    let (port, before) = (Port { frames, shootdown }, frames.free_count());
    for min in [1, 102, 103, 1000, 1638] {
        let slab = port.alloc_meta::<Odd>(min).unwrap();
        assert!(slab.len() >= min && slab.iter().all(|odd| odd.0 == [7; 40]));
        assert!(frames.free_count() < before);
        port.free_meta(Meta::new(slab));
        assert_eq!(frames.free_count(), before, "{min} records");
    }
    assert!(port.alloc_meta::<Odd>(1639).is_none(), "more than 64 KiB");
    assert!(port.alloc_meta::<Odd>(usize::MAX).is_none());
}

#[test]
fn a_flush_reaches_every_cpu_and_ends_whatever_the_others_hold() {
    static SHOOTDOWN: Shootdown<Threads> = Shootdown::new();
    static DONE: AtomicU64 = AtomicU64::new(0);
    const FLUSHES: u64 = 60;
    let poll = |cpu: usize| {
        if ENABLED.get() && PENDING[cpu].swap(false, Ordering::SeqCst) {
            SHOOTDOWN.serve();
        }
    };
    // CPU 0 flushes; 2 and 3 hold a lock with interrupts disabled now and then.
    static LOCK: va_base::sync::Mutex<IrqLock<Threads>, u64> = va_base::sync::Mutex::new(0);
    std::thread::scope(|scope| {
        for cpu in 2..CPUS {
            scope.spawn(move || {
                CPU.set(cpu);
                while DONE.load(Ordering::SeqCst) < FLUSHES {
                    *LOCK.lock() += 1;
                    poll(cpu);
                    std::thread::yield_now();
                }
            });
        }
        scope.spawn(move || {
            CPU.set(1);
            while DONE.load(Ordering::SeqCst) < FLUSHES {
                poll(1);
                std::thread::yield_now();
            }
        });
        let pages = |from, to| VaRange::from_pages(from, to).unwrap();
        for _ in 0..FLUSHES / 2 {
            SHOOTDOWN.flush(&[pages(10, 12), VaRange::EMPTY, pages(13, 14)]);
            SHOOTDOWN.flush(&[pages(10, 12), pages(1000, 1001)]);
            DONE.fetch_add(2, Ordering::SeqCst);
        }
    });
    // The hull of the first has four pages; that of the second is too long.
    let expected = FLUSHES / 2 * (10 + 11 + 12 + 13 + ALL);
    for forgotten in &FORGOTTEN {
        assert_eq!(forgotten.load(Ordering::SeqCst), expected);
    }
    assert_eq!(SHOOTDOWN.number.load(Ordering::SeqCst), FLUSHES);
    assert_eq!(SHOOTDOWN.interrupts.load(Ordering::SeqCst), FLUSHES * 3);
    let _held = LOCK.lock();
    let disabled = || SHOOTDOWN.flush(&[]);
    assert!(std::panic::catch_unwind(disabled).is_err(), "under a lock that disables interrupts");
    assert_eq!(Port { frames: frames().0, shootdown: &SHOOTDOWN }.cpus_online(), 4);
}
