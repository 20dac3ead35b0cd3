//! Tests of per-CPU data across a fork, and in processes with little address space.

use core::alloc::Layout;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::process::Command;
use vmalloc_percpu::{Error, Options, PerCpuCounter, PerCpuRef, RefMode, Space};

#[test]
fn a_child_goes_on_with_copies_of_its_own() {
    let space = Space::global().unwrap();
    let counter = PerCpuCounter::new(space, 7);
    let count = PerCpuRef::new(space, RefMode::PerCpu, || {}).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Other threads are within calls during the fork.
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    drop(space.zeroed::<AtomicU64>().unwrap());
                }
            });
        }
        for _ in 0..20 {
            // SAFETY: the child calls only functions that work after a fork, and exits without exit handlers.
            let child = unsafe { libc::fork() };
            if child == 0 {
                counter.add(2);
                // The deltas of a counter in one word are the child's own.
                let fine = counter.promote().is_ok()
                    && {
                        counter.add(1);
                        counter.is_percpu() && counter.sum() == 10
                    }
                    && space.zeroed::<[AtomicU64; 9]>().is_ok()
                    && space.validate().is_ok()
                    && count.try_get_live()
                    && count.kill().is_ok()
                    && !count.is_zero();
                // SAFETY: ends the child.
                unsafe { libc::_exit(if fine { 0 } else { 1 }) };
            }
            let mut status = -1;
            // SAFETY: waits for the child, whose status it writes.
            let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!((waited, status), (child, 0));
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!((counter.is_percpu(), counter.sum()), (false, 7));
}

/// Forks at a different moment of the space's creation in each process: neither parents nor children wait forever.
#[test]
fn a_fork_while_the_space_is_made_leaves_no_lock_behind() {
    const MOMENT: &str = "VMALLOC_TEST_FORK_AT";
    const NAME: &str = "a_fork_while_the_space_is_made_leaves_no_lock_behind";
    let Some(moment) = std::env::var_os(MOMENT) else {
        for moment in 0..40 {
            let run = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", NAME])
                .env(MOMENT, moment.to_string())
                .output()
                .unwrap();
            assert!(run.status.success(), "{moment}: {}", String::from_utf8_lossy(&run.stdout));
        }
        return;
    };
    let moment: u32 = moment.to_str().unwrap().parse().unwrap();
    let begun = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            begun.store(true, Ordering::Release);
            Space::global().unwrap();
        });
        while !begun.load(Ordering::Acquire) {
            core::hint::spin_loop();
        }
        for _ in 0..moment * 50 {
            core::hint::spin_loop();
        }
        // SAFETY: the child calls only functions that work after a fork, and exits without exit handlers.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: a signal ends a child that waits forever.
            unsafe { libc::alarm(120) };
            let fine = Space::global().is_ok_and(|space| space.zeroed::<AtomicU64>().is_ok());
            // SAFETY: ends the child.
            unsafe { libc::_exit(if fine { 0 } else { 1 }) };
        }
        let mut status = -1;
        // SAFETY: waits for the child, whose status it writes.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((waited, status), (child, 0));
    });
}

/// Forks while other threads use the locks of counters and references: these locks are free in the child.
#[test]
fn a_child_sums_and_kills_what_others_summed_and_killed() {
    let space = Space::new(Options::default().units(Some(64))).unwrap();
    let counter = PerCpuCounter::new(&space, 7);
    counter.promote().unwrap();
    let count = PerCpuRef::new(&space, RefMode::PerCpu, || {}).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                counter.sync();
                assert_eq!(counter.sum(), 7);
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                count.switch_to_atomic().unwrap();
                count.switch_to_percpu();
            }
        });
        for round in 0..60 {
            // SAFETY: the child calls only functions that work after a fork, and exits without exit handlers.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: a signal ends a child that waits forever.
                unsafe { libc::alarm(120) };
                counter.add(3);
                let fine = counter.sum() == 10 && count.switch_to_atomic().is_ok() && count.kill().is_ok();
                // SAFETY: ends the child.
                unsafe { libc::_exit(if fine { 0 } else { 1 }) };
            }
            let mut status = -1;
            // SAFETY: waits for the child, whose status it writes.
            let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
            if (waited, status) != (child, 0) {
                stop.store(true, Ordering::Relaxed);
            }
            assert_eq!((waited, status), (child, 0), "{round}");
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Runs itself in a process with little address space. Creating the global space fails with an error and leaks nothing,
/// and a later call with more address space succeeds.
#[test]
fn the_space_of_a_process_fails_where_addresses_are_few_and_is_made_when_there_are_more() {
    const MOMENT: &str = "VMALLOC_TEST_FEW_ADDRESSES";
    const NAME: &str = "the_space_of_a_process_fails_where_addresses_are_few_and_is_made_when_there_are_more";
    if std::env::var_os(MOMENT).is_none() {
        let run = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--test-threads", "1"])
            .env(MOMENT, "1")
            .output()
            .unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
        return;
    }
    let limit = |bytes: libc::rlim_t| {
        let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: writes the current limit.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut now) }, 0);
        now.rlim_cur = bytes.min(now.rlim_max);
        // SAFETY: reads the limit, of this process, which is the test's own.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const now) }, 0);
    };
    // In KiB, whatever the size of a page.
    let mapped = || -> libc::rlim_t {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let kib = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
        kib.trim().trim_end_matches(" kB").parse::<libc::rlim_t>().unwrap() << 10
    };
    // One-time initialization, such as fork handlers, is done here.
    drop(Space::new(Options::default().units(Some(1))).unwrap());
    let before = mapped();
    // A chunk has a unit for each possible CPU and one more, at 256 KiB, and 256 KiB to align it: even two units do not
    // fit.
    for _ in 0..3 {
        limit(before + (300 << 10));
        let failed = Space::global().err();
        limit(libc::RLIM_INFINITY);
        assert!(matches!(failed, Some(Error::CallFailed { .. } | Error::NoRecords)), "{failed:?}");
        let text = failed.unwrap().to_string();
        assert!(!text.is_empty() && !text.contains('\n'), "{text}");
    }
    // The standard library's memory for the text is less than a chunk.
    assert!(mapped() < before + (256 << 10), "{} {before}", mapped());
    let space = Space::global().unwrap();
    let word = space.zeroed::<vmalloc_percpu::Word>().unwrap();
    word.word().add(5);
    assert_eq!(word.word().sum(), 5);
    // An existing space works without more address space: it allocates objects of the first chunk, then fails.
    limit(mapped() + (300 << 10));
    let mut objects = Vec::with_capacity(64);
    let failed = loop {
        match space.alloc(Layout::from_size_align(32 << 10, 4096).unwrap()) {
            Ok(object) => objects.push(object),
            Err(error) => break error,
        }
        assert!(objects.len() < 64);
    };
    let got = objects.len();
    // Without memory for its deltas a counter stays one word, until a promotion succeeds.
    let mut small = Vec::with_capacity(1 << 16);
    while let Ok(object) = space.alloc(Layout::new::<u64>()) {
        small.push(object);
        assert!(small.len() < 1 << 16);
    }
    let counter = PerCpuCounter::new(space, 7);
    let denied = [counter.promote().err(), counter.promote().err()];
    counter.add(5);
    let in_word = (counter.is_percpu(), counter.read(), counter.sum());
    let valid = space.validate();
    limit(libc::RLIM_INFINITY);
    assert!(
        denied.iter().all(|error| matches!(error, Some(Error::NoChunk { .. } | Error::NoRecords))),
        "{denied:?}"
    );
    assert_eq!(in_word, (false, 12, 12));
    counter.promote().unwrap();
    counter.add(1);
    assert_eq!((counter.is_percpu(), counter.sum()), (true, 13));
    assert!(matches!(failed, Error::NoChunk { .. } | Error::NoRecords), "{failed:?}");
    assert!(got >= 6, "{got}");
    valid.unwrap();
    assert!(space.alloc(Layout::from_size_align(32 << 10, 4096).unwrap()).is_ok());
}
