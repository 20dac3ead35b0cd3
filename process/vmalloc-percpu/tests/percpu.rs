//! Tests of per-CPU data under threads that are moved and preempted: no update is lost or repeated.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use core::alloc::Layout;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::process::Command;
use vmalloc_percpu::{
    Error, Index, Node, Options, PerCpuCounter, PerCpuList, PerCpuRef, RefError, RefMode, Space, Zeroable,
    per_cpu, restarts,
};

const THREADS: u64 = 16;

/// Returns spaces by concurrency id, by CPU, by CPU with fewer units than CPUs, and without sections.
fn spaces() -> Vec<Space> {
    let options = [
        Options::default(),
        Options::default().index(Index::Cpu),
        Options::default().index(Index::Cpu).units(Some(1)),
        Options::default().atomics_only(true).units(Some(3)),
    ];
    options.into_iter().map(|options| Space::new(options).unwrap()).collect()
}

/// Moves the calling thread to a CPU, if that is allowed.
fn move_to(cpu: usize) {
    let mut set = core::mem::MaybeUninit::<libc::cpu_set_t>::zeroed();
    // SAFETY: all zeros is a valid set.
    let bits = unsafe { set.assume_init_mut() };
    // SAFETY: the number is valid for a set.
    unsafe { libc::CPU_SET(cpu, bits) };
    // SAFETY: reads the set, and changes only this thread.
    let _moved = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set.as_ptr()) };
}

/// Runs `work` in threads that are moved now and then, more of them than CPUs, so that they are preempted, too.
fn press(threads: u64, rounds: u64, work: impl Fn(u64, u64) + Sync) {
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let work = &work;
            scope.spawn(move || {
                for round in 0..rounds {
                    if round % 499 == 0 {
                        move_to(((thread + round / 499) % 2) as usize);
                    }
                    work(thread, round);
                }
            });
        }
    });
}

#[test]
fn rq1_sixteen_threads_that_are_moved_lose_no_increment() {
    for space in spaces() {
        let word = space.zeroed::<vmalloc_percpu::Word>().unwrap();
        let word = word.word();
        press(THREADS, 50_000, |thread, _| word.add(thread + 1));
        assert_eq!(word.sum(), 50_000 * THREADS * (THREADS + 1) / 2, "{space:?}");
        // By exchange and compare-exchange, which load and store in two instructions.
        let taken = AtomicU64::new(0);
        press(THREADS, 20_000, |_, round| {
            if round % 64 == 0 {
                taken.fetch_add(word.swap(0), Ordering::Relaxed);
            }
            let mut seen = 0;
            while let Err(found) = word.compare_exchange(seen, seen.wrapping_add(1)) {
                seen = found;
            }
        });
        let all = taken.into_inner() + word.sum();
        assert_eq!(all, 50_000 * THREADS * (THREADS + 1) / 2 + 20_000 * THREADS, "{space:?}");
    }
}

#[test]
fn rq2_a_thread_that_comes_to_a_unit_first_raises_the_mark() {
    for space in spaces() {
        assert_eq!(space.units_used(), 0);
        let word = space.zeroed::<vmalloc_percpu::Word>().unwrap();
        word.word().add(5);
        let (used, units) = (space.units_used(), space.units());
        // The unit of the thread, or the shared one.
        assert!(used < units, "{used} of {units}");
        assert_eq!(word.word().sum(), 5);
        assert_eq!(word.iter().map(vmalloc_percpu::Word::get).sum::<u64>(), 5);
    }
}

#[test]
fn sixty_four_threads_on_few_cpus_use_few_units() {
    let space = Space::new(Options::default()).unwrap();
    let word = space.zeroed::<vmalloc_percpu::Word>().unwrap();
    let word = word.word();
    press(64, 5_000, |_, _| word.add(1));
    assert_eq!(word.sum(), 64 * 5_000);
    assert!(space.units_used() < space.units());
}

#[test]
fn ll1_nodes_are_popped_exactly_once() {
    const EACH: usize = 200;
    for space in spaces() {
        let mut list = PerCpuList::<AtomicUsize>::new(&space).unwrap();
        let nodes = THREADS as usize * EACH;
        let hands: Vec<AtomicBool> = (0..nodes).map(|_| AtomicBool::new(false)).collect();
        std::thread::scope(|scope| {
            for thread in 0..THREADS as usize {
                let (list, hands) = (&list, &hands);
                scope.spawn(move || {
                    for n in 0..EACH {
                        list.push(Box::new(Node::new(AtomicUsize::new(thread * EACH + n))));
                    }
                    for round in 0..20_000usize {
                        if round % 499 == 0 {
                            move_to((thread + round / 499) % 2);
                        }
                        let Some(node) = list.pop() else { continue };
                        let number = node.value.load(Ordering::Relaxed);
                        assert!(!hands[number].swap(true, Ordering::AcqRel), "LL1: {number} is in two hands");
                        hands[number].store(false, Ordering::Release);
                        list.push(node);
                    }
                });
            }
        });
        let mut seen = vec![0; nodes];
        // This thread pops some nodes; the drain takes the rest from all units.
        for node in (0..nodes / 50).map_while(|_| list.pop()) {
            seen[node.value.into_inner()] += 1;
        }
        list.drain(|node| seen[node.value.into_inner()] += 1);
        assert!(seen.iter().all(|&times| times == 1), "LL1 {space:?}");
        // Dropping a list drops its nodes.
        list.push(Box::new(Node::new(AtomicUsize::new(0))));
    }
}

#[test]
fn pk1_counters_agree_with_what_was_added() {
    for space in spaces() {
        for (batch, first) in
            [(1, false), (32, false), (i64::MAX, false), (1, true), (32, true), (i64::MAX, true)]
        {
            let mut counter = PerCpuCounter::new(&space, 1000);
            if first {
                counter.promote().unwrap();
            }
            press(THREADS, 4_000, |thread, round| {
                let amount = (thread as i64 - 7) * if round % 2 == 0 { 3 } else { -2 };
                counter.add_batch(amount, batch);
            });
            let want: i64 = 1000 + (0..THREADS as i64).map(|thread| (thread - 7) * 2000).sum::<i64>();
            assert_eq!(counter.sum(), want, "{space:?} batch {batch}");
            assert_eq!(counter.compare_batch(want, batch), core::cmp::Ordering::Equal);
            assert_eq!(counter.compare_batch(want + 1, batch), core::cmp::Ordering::Less);
            assert_eq!(counter.compare_batch(want - 1_000_000, batch), core::cmp::Ordering::Greater);
            if batch == 1 {
                assert_eq!(counter.read(), want, "a batch of 1 is exact");
                assert_eq!(counter.is_percpu(), first, "deltas would not help");
            }
            counter.set(-5);
            assert_eq!((counter.sum(), counter.read_positive(), counter.sum_positive()), (-5, 0, 0));
        }
    }
}

#[test]
fn a_counter_stays_within_its_batch_as_in_linux() {
    for space in spaces() {
        // With one thread on one CPU the delta is known.
        move_to(0);
        let counter = PerCpuCounter::new(&space, 0);
        let batch = counter.batch();
        assert_eq!(batch, (2 * i64::from(space.units() - 1)).max(32));
        counter.promote().unwrap();
        assert_eq!(counter.batch(), batch);
        // What one delta holds, and one more.
        assert!(counter.try_add(batch - 1) && !counter.try_add(batch));
        if space.units_used() == 1 {
            assert_eq!((counter.read(), counter.sum()), (0, batch - 1));
        }
        counter.sync();
        counter.add(batch);
        assert_eq!((counter.read(), counter.sum()), (2 * batch - 1, 2 * batch - 1));
        counter.add(-batch);
        assert_eq!(counter.sum(), batch - 1);
        // Sums wrap, as 64-bit numbers do in the kernel.
        counter.add(i64::MAX);
        counter.add(2);
        assert_eq!(counter.sum(), (batch - 1).wrapping_add(i64::MAX).wrapping_add(2));
    }
}

/// Checks what ten million idle counters cost: nothing beside their values.
#[test]
fn an_idle_counter_is_one_word_until_threads_contend() {
    for space in spaces() {
        let counters: Vec<_> = (0..1000).map(|count| PerCpuCounter::new(&space, count)).collect();
        for counter in &counters {
            counter.add(5);
            counter.add_batch(-3, 1 << 40);
            counter.add_local(1);
            assert!(counter.try_add(10) && counter.try_add(-10));
            assert!(counter.limited_add(i64::MAX, 1) && !counter.limited_add(0, 1));
            counter.sync();
        }
        assert!(counters.iter().all(|counter| !counter.is_percpu()));
        assert!((0..).zip(&counters).all(|(n, counter)| (counter.read(), counter.sum()) == (n + 4, n + 4)));
        assert_eq!(space.counts().0, 0, "no object was allocated");
        // Of a promoted one each unit has a delta, until it is dropped. A second promotion changes nothing.
        counters[7].promote().unwrap();
        counters[7].promote().unwrap();
        assert!(counters[7].is_percpu() && !counters[8].is_percpu());
        counters[7].add(1);
        counters[7].add_local(-2);
        assert_eq!((counters[7].sum(), counters[8].sum(), space.counts().0), (10, 12, 1));
        drop(counters);
        assert_eq!(space.counts().0, 0);
    }
}

#[test]
fn pk3_threads_that_contend_promote_a_counter_once() {
    for space in spaces() {
        let counters: Vec<_> = (0..8).map(|_| PerCpuCounter::new(&space, 0)).collect();
        for counter in &counters {
            // An exchange fails where threads run at once, and where one is preempted in front of it. So this ends on
            // one CPU, too.
            let added = AtomicU64::new(0);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        while !counter.is_percpu() {
                            (0..1_000).for_each(|_| counter.add(1));
                            added.fetch_add(1_000, Ordering::Relaxed);
                        }
                    });
                }
            });
            assert_eq!(counter.sum() as u64, added.into_inner(), "PK1 {space:?}");
        }
        assert_eq!(space.counts().0, 8, "PK3: deltas of promotions that came second are freed");
        space.validate().unwrap();
    }
}

#[test]
fn pk2_a_limit_is_reached_and_never_passed() {
    for (nth, space) in spaces().into_iter().chain(spaces()).enumerate() {
        let counter = PerCpuCounter::new(&space, 0);
        if nth.is_multiple_of(2) {
            counter.promote().unwrap();
        }
        let granted = AtomicU64::new(0);
        press(THREADS, 2_000, |_, _| {
            if counter.limited_add(10_007, 3) {
                granted.fetch_add(1, Ordering::Relaxed);
            }
            assert!(counter.sum() <= 10_007, "PK2");
        });
        assert_eq!((counter.sum(), granted.into_inner()), (10_005, 3335), "{space:?}");
        assert!(counter.limited_add(10_007, 2) && !counter.limited_add(10_007, 1));
        // Negative amounts; 0, which never fails; and a delta in a unit.
        counter.add(5);
        assert!(counter.limited_add(-3, 0) && !counter.limited_add(10_012, 1));
        assert!(
            counter.limited_add(0, -10_012) && !counter.limited_add(0, -1) && counter.limited_add(-1, -1)
        );
        assert!(!counter.limited_add(i64::MIN, i64::MIN) && !counter.limited_add(5, i64::MAX));
        assert_eq!(counter.sum(), -1);
    }
}

#[test]
fn rf2_the_release_comes_once_behind_the_last_put() {
    for space in spaces() {
        for mode in [RefMode::PerCpu, RefMode::Atomic] {
            let released = AtomicU64::new(0);
            let held = AtomicU64::new(0);
            let count = PerCpuRef::new(&space, mode, || {
                assert_eq!(held.load(Ordering::SeqCst), 0, "RF2");
                released.fetch_add(1, Ordering::SeqCst);
            })
            .unwrap();
            for life in 1..=8 {
                let killed = AtomicBool::new(false);
                press(THREADS, 2_000, |thread, round| {
                    if thread == 0 && round == 1_000 {
                        count.kill_and_confirm(|| assert!(!count.try_get_live())).unwrap();
                        killed.store(true, Ordering::SeqCst);
                    }
                    let known = killed.load(Ordering::SeqCst);
                    if count.try_get_live() {
                        assert!(!known, "no reference to a dead one");
                        held.fetch_add(1, Ordering::SeqCst);
                        if round % 7 == 0 {
                            move_to((round % 2) as usize);
                        }
                        held.fetch_sub(1, Ordering::SeqCst);
                        count.put();
                    }
                });
                assert_eq!(released.load(Ordering::SeqCst), life, "{space:?} {mode:?}");
                assert!(count.is_zero() && count.is_dying() && !count.try_get());
                assert_eq!(count.kill(), Err(RefError::Dead));
                count.reinit().unwrap();
                assert!(!count.is_zero() && !count.is_dying());
            }
        }
    }
}

#[test]
fn rf1_references_pass_from_mode_to_mode() {
    for space in spaces() {
        let released = AtomicU64::new(0);
        let release = || {
            released.fetch_add(1, Ordering::SeqCst);
        };
        let count = PerCpuRef::new(&space, RefMode::PerCpu, release).unwrap();
        assert_eq!(count.is_percpu(), space.is_restartable());
        count.get_many(10);
        count.switch_to_atomic().unwrap();
        assert!(!count.is_percpu() && !count.is_zero());
        count.put_many(4);
        count.switch_to_percpu();
        assert_eq!(count.is_percpu(), space.is_restartable());
        assert_eq!((count.reinit(), count.resurrect()), (Err(RefError::NotDead), Err(RefError::NotDead)));
        count.kill().unwrap();
        assert_eq!(count.reinit(), Err(RefError::NotZero { references: 6 }));
        assert!(count.try_get() && !count.try_get_live());
        count.resurrect().unwrap();
        assert!(count.try_get_live() && count.try_get_many(2));
        count.put_many(10);
        assert_eq!(released.load(Ordering::SeqCst), 0);
        count.kill().unwrap();
        assert_eq!((released.load(Ordering::SeqCst), count.is_zero()), (1, true));
        // A count that starts dead is live after `reinit`.
        let dead = PerCpuRef::new(&space, RefMode::Dead, release).unwrap();
        assert!(dead.is_zero() && !dead.try_get());
        dead.reinit().unwrap();
        dead.kill().unwrap();
        assert_eq!(released.load(Ordering::SeqCst), 2);
    }
}

#[test]
fn sizes_and_alignments_are_linuxs() {
    let space = Space::new(Options::default()).unwrap();
    let ask = |size, align| space.alloc(Layout::from_size_align(size, align).unwrap());
    for align in (0..=12).map(|log2| 1usize << log2) {
        for size in [1, 7, 8, 100, 4096, 32 << 10] {
            let bytes = ask(size, align).unwrap();
            for unit in 0..space.units() {
                let at = bytes.as_ptr(unit).unwrap();
                assert!(at.addr().get().is_multiple_of(align), "{size} bytes at {align}");
                // SAFETY: inside our own object.
                let last = unsafe { at.add(size - 1) };
                // SAFETY: its last byte.
                unsafe { last.write(1) };
            }
            assert_eq!(bytes.as_ptr(space.units()), None);
        }
    }
    assert_eq!(ask(0, 8).err(), Some(Error::BadSize { bytes: 0 }));
    assert_eq!(ask((32 << 10) + 1, 8).err(), Some(Error::BadSize { bytes: 32_769 }));
    assert_eq!(ask(8, 8192).err(), Some(Error::BadAlign { align: 8192 }));
    let bytes = ask(24, 8).unwrap();
    assert!(bytes.local(16).is_some() && bytes.local(17).is_none() && bytes.local(4).is_none());
    assert!(bytes.local(usize::MAX).is_none());
    bytes.local(8).unwrap().add(3);
    assert_eq!((bytes.local(8).unwrap().sum(), bytes.local(0).unwrap().sum()), (3, 0));
    space.validate().unwrap();
}

/// Checks the advice: a huge page would contain the pages of eight units.
#[test]
fn chunks_are_advised_against_huge_pages() {
    if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        return;
    }
    let space = Space::new(Options::default().units(Some(64))).unwrap();
    let object = space.zeroed::<AtomicU64>().unwrap();
    let at = core::ptr::from_ref(object.get(0).unwrap()).addr();
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut inside, mut flags) = (false, None);
    for line in smaps.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let ends = range.and_then(|(start, end)| {
            Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
        });
        if let Some((start, end)) = ends {
            inside = (start..end).contains(&at);
        }
        if inside && let Some(text) = line.strip_prefix("VmFlags:") {
            flags = Some(text);
        }
    }
    let flags = flags.unwrap();
    assert!(flags.split(' ').any(|flag| flag == "nh"), "{flags}");
}

#[test]
fn values_of_units_are_made_and_dropped_once() {
    struct Counts<'a>(u32, &'a AtomicU64);
    impl Drop for Counts<'_> {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }
    let space = Space::new(Options::default().units(Some(5))).unwrap();
    let drops = AtomicU64::new(0);
    let object = space.with_init(|unit| Counts(unit, &drops)).unwrap();
    assert_eq!(object.iter().map(|counts| counts.0).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    assert_eq!((object.get(5).unwrap().0, object.get(6).is_none()), (5, true));
    assert!(object.with(|counts| counts.0) <= 5);
    drop(object);
    assert_eq!(drops.load(Ordering::Relaxed), 6);
    // The next object there is zeros in all units.
    let zeros = space.zeroed::<[AtomicU64; 2]>().unwrap();
    assert!((0..6).all(|unit| zeros.get(unit).unwrap().iter().all(|n| n.load(Ordering::Relaxed) == 0)));
}

/// A word that only sections change, beside an atomic number.
#[derive(Default)]
struct Pair {
    word: vmalloc_percpu::Word,
    hits: AtomicU64,
}

// SAFETY: numbers, for which zero is valid, and the word is in every value.
unsafe impl Zeroable for Pair {}

#[test]
fn pp1_a_search_for_a_word_uses_the_copy_that_it_reads() {
    let space = Space::new(Options::default().units(Some(3))).unwrap();
    let mut places = Vec::new();
    // More pairs than a refill takes objects.
    for _ in 0..300 {
        let object = space.zeroed::<Pair>().unwrap();
        let word = object.local(|pair| {
            places.push(core::ptr::from_ref(pair).addr());
            assert_eq!(pair.hits.swap(7, Ordering::Relaxed), 0, "what the one before left");
            &pair.word
        });
        assert_eq!((word.unwrap().sum(), space.units_used()), (0, 1));
    }
    let used: std::collections::BTreeSet<usize> = places.iter().copied().collect();
    assert!(used.len() < places.len() / 2, "later objects are where earlier ones were");
}

per_cpu! {
    static HITS: AtomicU64;
    static WORDS: [vmalloc_percpu::Word; 3];
}

#[test]
fn static_data_is_one_object_for_all_threads() {
    press(THREADS, 1_000, |_, _| {
        HITS.view().unwrap().with(|hits| hits.fetch_add(1, Ordering::Relaxed));
        WORDS.view().unwrap().local(|words| &words[1]).unwrap().add(2);
    });
    let hits: u64 = HITS.view().unwrap().iter().map(|hits| hits.load(Ordering::Relaxed)).sum();
    assert_eq!(hits, 16_000);
    let sums = [0, 1, 2].map(|n| WORDS.view().unwrap().local(|words| &words[n]).unwrap().sum());
    assert_eq!(sums, [0, 32_000, 0]);
    // A word outside the object is in no copy.
    let elsewhere = vmalloc_percpu::Word::default();
    let elsewhere: &'static vmalloc_percpu::Word = Box::leak(Box::new(elsewhere));
    assert!(WORDS.view().unwrap().local(|_| elsewhere).is_none());
}

#[test]
fn records_are_the_spaces_own() {
    let space = Space::new(Options::default().units(Some(2))).unwrap();
    let before = space.records_bytes();
    let objects: Vec<_> = (0..100_000).map(|_| space.zeroed::<AtomicU64>().unwrap()).collect();
    let chunks = space.counts().1;
    assert!(before > 0 && space.counts().0 == 100_000 && chunks >= 4);
    assert!(space.records_bytes() >= before);
    drop(objects);
    space.trim();
    let (live, left) = space.counts();
    assert!(live == 0 && left < chunks, "unused chunks are unmapped: {left} of {chunks}");
    space.validate().unwrap();
}

/// Runs the tests of this file again in a process whose libc registers no rseq area.
#[test]
fn without_sections_everything_is_as_with_them() {
    const ROLE: &str = "VMALLOC_TEST_WITHOUT_RSEQ";
    let restartable = Space::new(Options::default()).unwrap().is_restartable();
    if std::env::var_os(ROLE).is_some() {
        assert!(!restartable, "the tunable was not heeded");
        return;
    }
    let run = Command::new(std::env::current_exe().unwrap())
        .env("GLIBC_TUNABLES", "glibc.pthread.rseq=0")
        .env(ROLE, "1")
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
}

/// Checks that sections are restarted, without which the tests above prove nothing. A signal to a thread in a section
/// restarts the section, and these threads are in sections for much of their time.
#[test]
fn sections_are_begun_again() {
    extern "C" fn nothing(_: libc::c_int) {}
    let space = Space::new(Options::default()).unwrap();
    if !space.is_restartable() {
        return;
    }
    let handler: extern "C" fn(libc::c_int) = nothing;
    // SAFETY: the handler does nothing, and no other code in this program uses the signal.
    assert_ne!(unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) }, libc::SIG_ERR);
    let word = space.zeroed::<vmalloc_percpu::Word>().unwrap();
    let word = word.word();
    let (stop, adds) = (AtomicBool::new(false), AtomicU64::new(0));
    let (before, mut signals) = (restarts(), 0);
    std::thread::scope(|scope| {
        let (send, received) = std::sync::mpsc::channel();
        for _ in 0..2 {
            let (send, stop, adds) = (send.clone(), &stop, &adds);
            scope.spawn(move || {
                // SAFETY: returns the thread's handle.
                send.send(unsafe { libc::pthread_self() }).unwrap();
                let mut count = 0;
                while !stop.load(Ordering::Relaxed) {
                    for _ in 0..100 {
                        word.add(1);
                    }
                    count += 100;
                }
                adds.fetch_add(count, Ordering::Relaxed);
            });
        }
        let threads: Vec<_> = received.into_iter().take(2).collect();
        while restarts() - before < 3 && signals < 10_000 {
            std::thread::sleep(core::time::Duration::from_millis(1));
            for &thread in &threads {
                // SAFETY: the thread runs until `stop` is set.
                let _sent = unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
            }
            signals += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(word.sum(), adds.into_inner());
    assert!(restarts() - before >= 3, "in {signals} milliseconds");
}
