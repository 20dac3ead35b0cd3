//! Tests of limits and denied system calls, each in a process that started under them.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod again;
mod group;

use again::{role, run, say, work};
use group::Group;
use std::alloc::Layout;
use std::io::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use vmalloc::{AllocError, Options, Vmalloc};
use vmalloc_os::OwnerLock;

const MIB: usize = 1 << 20;

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 1).unwrap()
}

fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

fn checked(code: libc::c_int) -> std::io::Result<()> {
    if code == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

/// A system call that a profile denies, if its argument of that number has that value.
type Rule = (libc::c_long, Option<(u32, u32)>);

const USERFAULTFD: &[Rule] = &[
    (libc::SYS_userfaultfd, None),
    // The same through /dev/userfaultfd.
    (libc::SYS_ioctl, Some((1, 0xaa00))),
];
const PROCESS_MADVISE: &[Rule] = &[(libc::SYS_process_madvise, None)];
const PIDFD: &[Rule] = &[(libc::SYS_process_madvise, Some((0, -10_000i32 as u32)))];
const RSEQ: &[Rule] = &[(libc::SYS_rseq, None)];
const GUARDS: &[Rule] = &[(libc::SYS_madvise, Some((2, 102))), (libc::SYS_madvise, Some((2, 103)))];
const HUGE: &[Rule] = &[
    (libc::SYS_madvise, Some((2, libc::MADV_HUGEPAGE as u32))),
    (libc::SYS_madvise, Some((2, libc::MADV_NOHUGEPAGE as u32))),
];
const MREMAP: &[Rule] = &[(libc::SYS_mremap, None)];

/// Denies these calls from now on, for this process and programs that it executes.
fn deny(rules: &[Rule], errno: libc::c_int) -> std::io::Result<()> {
    answer(rules, libc::SECCOMP_RET_ERRNO | errno as u32)
}

/// Has these calls answered by an action of a filter.
fn answer(rules: &[Rule], action: u32) -> std::io::Result<()> {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    // On the stack: nothing may be allocated here.
    let mut program = [step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW); 80];
    let mut len = 0;
    let mut push = |one| {
        program[len] = one;
        len += 1;
    };
    for &(call, argument) in rules {
        push(step(LOAD, 0, 0, 0));
        match argument {
            None => push(step(EQUAL, 0, 1, call as u32)),
            Some((number, value)) => {
                push(step(EQUAL, 0, 3, call as u32));
                // The lower half, on a little-endian machine.
                push(step(LOAD, 0, 0, 16 + 8 * number));
                push(step(EQUAL, 0, 1, value));
            }
        }
        push(step(RETURN, 0, 0, action));
    }
    len += 1;
    let filter = libc::sock_fprog { len: len as u16, filter: program.as_mut_ptr() };
    // SAFETY: changes only this process.
    checked(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // SAFETY: a program of that many steps.
    checked(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) })
}

/// Denies the calls of features in a profile. They count as missing, and the results are those of a process with all
/// features.
#[test]
fn results_are_the_same_whatever_a_profile_denies() {
    const NAME: &str = "results_are_the_same_whatever_a_profile_denies";
    if role().is_some() {
        let memory = Vmalloc::new(Options::default().cache_bytes_max(16 * MIB)).unwrap();
        let sum = work(&memory, 250, 7);
        let others = std::thread::scope(|scope| {
            let threads = [1, 2].map(|seed| {
                scope.spawn({
                    let memory = &memory;
                    move || work(memory, 60, seed)
                })
            });
            threads.map(|thread| thread.join().unwrap())
        });
        let stats = memory.stats();
        assert_eq!(stats.live_bytes, 0);
        say(&format!("{sum} {others:?}|{} {}", stats.grown_by_move, stats.copies));
        // The denied calls have no other effect for the caller.
        memory.trim();
        assert_eq!(memory.stats().dirty_bytes, 0);
        return;
    }
    let whole = run(NAME, "all", || Ok(())).unwrap();
    let (want, _) = whole.split_once('|').unwrap();
    let everything = [USERFAULTFD, PROCESS_MADVISE, RSEQ, GUARDS, HUGE, MREMAP].concat();
    let profiles: [(&str, &[Rule]); 8] = [
        ("userfaultfd", USERFAULTFD),
        ("process_madvise", PROCESS_MADVISE),
        ("process_madvise of itself by number", PIDFD),
        ("rseq", RSEQ),
        ("guards", GUARDS),
        ("huge pages", HUGE),
        ("mremap", MREMAP),
        ("everything", Box::leak(everything.into_boxed_slice())),
    ];
    for errno in [libc::EPERM, libc::ENOSYS] {
        for (name, rules) in profiles {
            let said = run(NAME, name, move || deny(rules, errno)).unwrap();
            let (sum, ways) = said.split_once('|').unwrap();
            assert_eq!(sum, want, "{name}, errno {errno}");
            // Without a method of moving pages, every area that changed its address was copied.
            assert_eq!(name == "everything", ways.starts_with("0 "), "{name}: {ways}");
        }
    }
}

/// Runs a test again in a process of its own, which then runs `body`.
fn alone(name: &str, body: impl FnOnce()) {
    if role().is_some() {
        body();
        return say("ended");
    }
    assert_eq!(run(name, "alone", || Ok(())).unwrap(), "ended");
}

#[test]
fn calls_in_progress_end_before_only_plain_ones_are_made() {
    alone("calls_in_progress_end_before_only_plain_ones_are_made", || {
        let (ended, (begun, begin)) = (AtomicBool::new(false), std::sync::mpsc::channel());
        std::thread::scope(|scope| {
            let call = || {
                begun.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(100));
                ended.store(true, Ordering::Relaxed);
            };
            scope.spawn(move || vmalloc::unless_plain(call));
            begin.recv().unwrap();
            vmalloc::plain_calls_only();
            assert!(ended.load(Ordering::Relaxed));
        });
        assert_eq!((vmalloc::is_plain(), vmalloc::unless_plain(|| ())), (true, None));
    });
}

#[test]
fn nothing_is_read_by_vread_where_only_plain_calls_are_made() {
    alone("nothing_is_read_by_vread_where_only_plain_calls_are_made", || {
        let memory = Vmalloc::new(Options::default()).unwrap();
        let area = memory.buffer(1 << 20).unwrap();
        let mut bytes = [1u8; 8];
        assert_eq!(memory.vread(area.as_ptr(), &mut bytes), 8);
        vmalloc::plain_calls_only();
        answer(
            &[(libc::SYS_process_vm_readv, None), (libc::SYS_pipe2, None)],
            libc::SECCOMP_RET_KILL_PROCESS,
        )
        .unwrap();
        bytes = [1; 8];
        assert_eq!((memory.vread(area.as_ptr(), &mut bytes), bytes), (0, [0; 8]));
    });
}

#[test]
fn no_thread_yields_where_only_plain_calls_are_made() {
    alone("no_thread_yields_where_only_plain_calls_are_made", || {
        let lock = lock_api::Mutex::<OwnerLock, ()>::new(());
        vmalloc::plain_calls_only();
        answer(&[(libc::SYS_sched_yield, None)], libc::SECCOMP_RET_KILL_PROCESS).unwrap();
        let held = lock.try_lock().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(20));
                drop(held);
            });
            drop(lock.lock());
        });
    });
}

/// Uses up `RLIMIT_DATA`, which is charged for memory below the frontier, as all memory is where overcommit is denied.
#[test]
fn a_frontier_that_may_not_move_is_an_error_that_passes() {
    const NAME: &str = "a_frontier_that_may_not_move_is_an_error_that_passes";
    if role().is_some() {
        let memory = Vmalloc::new(Options::default()).unwrap();
        let mut areas = Vec::new();
        let failure = loop {
            match memory.alloc(layout(4 * MIB)) {
                Ok(area) => areas.push(area),
                Err(error) => break error,
            }
        };
        let failed = matches!(failure, AllocError::CallFailed { errno, bytes, .. } if errno.0 == libc::ENOMEM && bytes > 0);
        assert!(failed, "{failure:?}");
        assert!((20..=64).contains(&areas.len()), "{} areas", areas.len());
        // Nothing is lost: existing areas can be freed, merged and allocated again.
        let count = areas.len();
        for area in areas.drain(..) {
            // SAFETY: our own, and no reference to it exists.
            unsafe { memory.free(area) }.unwrap();
        }
        let all = memory.alloc(layout(count * 4 * MIB)).unwrap();
        // SAFETY: our own.
        unsafe { all.write_bytes(1, count * 4 * MIB) };
        // SAFETY: our own, and no reference to it exists.
        unsafe { memory.free(all) }.unwrap();
        assert_eq!(memory.stats().live_bytes, 0);
        say("failed and served again");
        return;
    }
    let limit = libc::rlimit { rlim_cur: 256 << 20, rlim_max: 256 << 20 };
    let said = run(NAME, "limited", move || {
        // SAFETY: reads the limit, which becomes that of the child.
        checked(unsafe { libc::setrlimit(libc::RLIMIT_DATA, &raw const limit) })
    })
    .unwrap();
    assert_eq!(said, "failed and served again");
}

/// Reserves the words for a terabyte, 2 GiB, of which only as much is charged as areas need.
#[test]
fn tg2_the_tag_of_an_area_is_recorded_under_a_limit_too() {
    const NAME: &str = "tg2_the_tag_of_an_area_is_recorded_under_a_limit_too";
    if role().is_some() {
        let options = Options::default().caller_tags(true).arena_bytes_max(1 << 40);
        let memory = Vmalloc::new(options).unwrap();
        assert_eq!(memory.stats().arena_bytes, 1 << 40);
        // One area in each zone.
        for (bytes, tag) in [(4096, "small"), (4 * MIB, "large")] {
            let area = memory.alloc_tagged(layout(bytes), tag).unwrap();
            assert!(memory.vmallocinfo().to_string().contains(&format!("{bytes} {tag} pages=")));
            // SAFETY: our own, and no reference to it exists.
            unsafe { memory.free(area) }.unwrap();
        }
        say("kept");
        return;
    }
    let limit = libc::rlimit { rlim_cur: 256 << 20, rlim_max: 256 << 20 };
    let said = run(NAME, "limited", move || {
        // SAFETY: reads the limit, which becomes that of the child.
        checked(unsafe { libc::setrlimit(libc::RLIMIT_DATA, &raw const limit) })
    })
    .unwrap();
    assert_eq!(said, "kept");
}

/// Locks all memory, also later mappings: pages are resident from the start, and are released nevertheless.
#[test]
fn locked_memory_is_used_and_released() {
    const NAME: &str = "locked_memory_is_used_and_released";
    if let Some(role) = role() {
        let before = (role == "after").then(|| Vmalloc::new(Options::default()).unwrap());
        // SAFETY: locks the current and later mappings of this process.
        if unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } != 0 {
            say("not allowed");
            return;
        }
        let memory = before.unwrap_or_else(|| Vmalloc::new(Options::default()).unwrap());
        let started = resident_bytes();
        let sum = work(&memory, 150, 7);
        let committed = memory.stats().committed_bytes;
        // Only memory below the frontier was ever made resident.
        assert!(resident_bytes() < started + committed + 64 * MIB);
        let big = memory.alloc(layout(128 * MIB)).unwrap();
        // SAFETY: our own.
        unsafe { big.write_bytes(1, 128 * MIB) };
        let full = resident_bytes();
        // SAFETY: our own, and no reference to it exists.
        unsafe { memory.free(big) }.unwrap();
        memory.trim();
        let stats = memory.stats();
        assert_eq!((stats.dirty_bytes, stats.cached_bytes, stats.failed_purges), (0, 0, 0), "{stats:?}");
        assert!(resident_bytes() + 100 * MIB < full, "{} of {full} are resident", resident_bytes());
        say(&format!("{sum}"));
        return;
    }
    let memory = Vmalloc::new(Options::default()).unwrap();
    let want = work(&memory, 150, 7).to_string();
    for role in ["before", "after"] {
        let said = run(NAME, role, || Ok(())).unwrap();
        if said == "not allowed" {
            eprintln!("SKIPPED: this process may not lock its memory, so nothing was tested");
            return;
        }
        assert_eq!(said, want, "{role}");
    }
}

/// Runs a child in a control group with a limit. Cached memory counts, so a budget below the limit prevents its end.
#[test]
fn a_control_group_holds_what_is_live_and_the_budget() {
    const NAME: &str = "a_control_group_holds_what_is_live_and_the_budget";
    if let Some(role) = role() {
        // The allocator exists before any memory is used.
        let memory = Vmalloc::new(Options::default().cache_bytes_max(16 * MIB)).unwrap();
        for round in 0..200usize {
            // Sizes that no freed run fits exactly.
            let bytes = (8 + round * 7 % 23) * MIB + round * 4096;
            let area = memory.alloc(layout(bytes)).unwrap();
            // SAFETY: our own.
            unsafe { area.write_bytes(1, bytes) };
            if role == "in a group, beyond its limit" {
                continue;
            }
            // SAFETY: our own, and no reference to it exists.
            unsafe { memory.free(area) }.unwrap();
        }
        say(&format!("{}", memory.stats().purged_bytes));
        return;
    }
    let Some(group) = Group::new("test", 96 * MIB) else {
        eprintln!(
            "SKIPPED: no control group with the memory controller can be made here, so nothing was tested"
        );
        return;
    };
    let place = std::ffi::CString::new(group.processes().into_os_string().into_encoded_bytes()).unwrap();
    let enter = move || {
        // SAFETY: a path that ends with 0.
        let file = unsafe { libc::open(place.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC) };
        // SAFETY: writes a byte: 0 names the calling process.
        let wrote = unsafe { libc::write(file, c"0".as_ptr().cast(), 1) };
        checked(if wrote == 1 { 0 } else { -1 })
    };
    let said = run(NAME, "in a group", enter.clone());
    // The limit holds: what is live beyond it ends the process.
    let beyond = run(NAME, "in a group, beyond its limit", enter);
    drop(group);
    assert!(said.unwrap().parse::<u64>().unwrap() > 0);
    assert!(beyond.is_err_and(|why| why.contains("SIGKILL")));
}
