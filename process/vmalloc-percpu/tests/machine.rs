//! Tests of per-CPU data under the conditions of a machine: CPUs that come and go, many possible ones, sparse numbers.
//! Then a system that denies sections, and data that must survive all of it.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use core::alloc::Layout;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::process::Command;
use vmalloc_percpu::{
    Index, Node, Options, PerCpuBox, PerCpuCounter, PerCpuList, PerCpuRef, RefError, RefMode, Space, Word,
};

type Cpus = libc::cpu_set_t;

fn set_of(cpus: impl IntoIterator<Item = usize>) -> Cpus {
    let mut set = core::mem::MaybeUninit::<Cpus>::zeroed();
    // SAFETY: all zeros is a valid set.
    let bits = unsafe { set.assume_init_mut() };
    for cpu in cpus {
        // SAFETY: the number is valid for a set.
        unsafe { libc::CPU_SET(cpu, bits) };
    }
    *bits
}

/// Returns the CPUs on which this process may run.
fn allowed() -> Vec<usize> {
    let mut set = set_of([]);
    // SAFETY: writes the set.
    assert_eq!(unsafe { libc::sched_getaffinity(0, size_of::<Cpus>(), &raw mut set) }, 0);
    let members = 0..libc::CPU_SETSIZE as usize;
    // SAFETY: the number is valid for a set.
    members.filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

/// Permits a thread to run on these CPUs alone; 0 is the calling one.
fn restrict(thread: libc::pid_t, cpus: &[usize]) {
    let set = set_of(cpus.iter().copied());
    // SAFETY: reads the set.
    assert_eq!(unsafe { libc::sched_setaffinity(thread, size_of::<Cpus>(), &raw const set) }, 0, "{cpus:?}");
}

fn thread_id() -> libc::pid_t {
    // SAFETY: returns a number.
    unsafe { libc::gettid() }
}

/// Calls a test of this file again in a process of its own, with a variable of the environment.
fn again(test: &str, role: &str, value: &str) {
    let run = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--test-threads", "1"])
        .env(role, "1")
        .env("GLIBC_TUNABLES", value)
        .output()
        .unwrap();
    assert!(run.status.success(), "{test}: {}", String::from_utf8_lossy(&run.stdout));
}

/// Forks, and returns true if `work` returns true in the child.
fn in_child(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child calls only functions that work after a fork, and exits without exit handlers.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: a signal ends a child that waits forever.
        unsafe { libc::alarm(120) };
        let fine = work();
        // SAFETY: ends the child.
        unsafe { libc::_exit(if fine { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: waits for the child, whose status it writes.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child);
    status == 0
}

/// An object of each kind, and threads that change them in a way that a lost or repeated change shows.
struct Load<'s> {
    word: vmalloc_percpu::PerCpu<'s, Word>,
    counter: PerCpuCounter<'s>,
    list: PerCpuList<'s, AtomicU64>,
    count: PerCpuRef<'s, fn()>,
    rounds: AtomicU64,
}

const NODES: u64 = 32;

impl<'s> Load<'s> {
    fn new(space: &'s Space) -> Self {
        let list = PerCpuList::new(space).unwrap();
        (0..NODES).for_each(|n| list.push(Box::new(Node::new(AtomicU64::new(n)))));
        Self {
            word: space.zeroed().unwrap(),
            counter: PerCpuCounter::new(space, 0),
            list,
            count: PerCpuRef::new(space, RefMode::PerCpu, (|| {}) as fn()).unwrap(),
            rounds: AtomicU64::new(0),
        }
    }

    fn round(&self) {
        self.word.word().add(3);
        self.counter.add(-2);
        assert!(self.count.try_get_live());
        if let Some(node) = self.list.pop() {
            self.list.push(node);
        }
        self.count.put();
        self.rounds.fetch_add(1, Ordering::Relaxed);
    }

    fn check(mut self) {
        let rounds = self.rounds.load(Ordering::Relaxed);
        assert_eq!(self.word.word().sum(), 3 * rounds);
        assert_eq!(self.counter.sum(), -2 * rounds as i64);
        let mut seen = 0u64;
        self.list.drain(|node| seen += 1 << node.value.load(Ordering::Relaxed));
        assert_eq!(seen, (1 << NODES) - 1, "each node is in one list");
        self.count.kill().unwrap();
        assert!(self.count.is_zero());
    }
}

/// Checks what a process sees of CPUs that are added and removed: the set of each thread changes while it works. The
/// CPU that is removed keeps its copies, which are in every sum.
#[test]
fn cpus_that_come_and_go_lose_no_change() {
    let cpus = allowed();
    for index in [Index::ConcurrencyId, Index::Cpu] {
        let space = Space::new(Options::default().index(index)).unwrap();
        let load = Load::new(&space);
        load.counter.promote().unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (send, received) = std::sync::mpsc::channel();
            for _ in 0..4 {
                let (send, load, stop) = (send.clone(), &load, &stop);
                scope.spawn(move || {
                    send.send(thread_id()).unwrap();
                    while !stop.load(Ordering::Relaxed) {
                        (0..64).for_each(|_| load.round());
                    }
                });
            }
            let threads: Vec<_> = received.into_iter().take(4).collect();
            for change in 0..150 {
                // One CPU remains, another one, then all are back.
                let set = match change % 3 {
                    0 => &cpus[..1],
                    1 => &cpus[cpus.len() - 1..],
                    _ => &cpus[..],
                };
                threads.iter().for_each(|&thread| restrict(thread, set));
                let before = load.rounds.load(Ordering::Relaxed);
                while load.rounds.load(Ordering::Relaxed) < before + 200 {
                    std::thread::yield_now();
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(space.units_used() < space.units());
        load.check();
        space.validate().unwrap();
    }
}

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    kib.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// Checks that possible CPUs that are not there cost addresses alone, as on a board for 512 with few.
#[test]
fn five_hundred_and_twelve_possible_cpus_cost_what_those_cost_that_run() {
    const NAME: &str = "five_hundred_and_twelve_possible_cpus_cost_what_those_cost_that_run";
    const ROLE: &str = "VMALLOC_TEST_POSSIBLE";
    if std::env::var_os(ROLE).is_none() {
        return again(NAME, ROLE, "");
    }
    let space = Space::new(Options::default().units(Some(512))).unwrap();
    assert_eq!(space.units(), 513);
    let before = resident();
    // 1.3 MB in each unit: 656 MB in all.
    let objects: Vec<_> = (0..20_000).map(|_| space.zeroed::<[AtomicU64; 8]>().unwrap()).collect();
    let counters: Vec<_> = (0..20_000).map(|_| PerCpuCounter::new(&space, 0)).collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for (object, counter) in objects.iter().zip(&counters) {
                    object
                        .with(|words| words.iter().for_each(|word| _ = word.fetch_add(1, Ordering::Relaxed)));
                    counter.add(5);
                }
            });
        }
    });
    let grown = resident() - before;
    for (object, counter) in objects.iter().zip(&counters) {
        let sum: u64 = object.iter().flatten().map(|word| word.load(Ordering::Relaxed)).sum();
        assert_eq!((sum, counter.sum()), (32, 20));
    }
    // Four threads run on at most four units at a time.
    let used = space.units_used() as usize;
    assert!(used <= 4, "{used}");
    assert!(grown < (used + 1) * (3 << 20) + (8 << 20), "{grown} bytes for {used} units");
    assert_eq!(counters[0].batch(), 1024);
    drop((objects, counters));
    space.validate().unwrap();
    // More CPUs than a space has units for is an error, not a wrong unit.
    assert!(Space::new(Options::default().units(Some(8193))).is_err());
}

/// Checks numbers with gaps: only one CPU of several is used, and then a CPU whose number is above those of all units.
#[test]
fn sparse_sets_of_cpus_use_the_units_of_their_members() {
    let cpus = allowed();
    let (lowest, highest) = (cpus[0], *cpus.last().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            restrict(0, &[highest]);
            let space = Space::new(Options::default().index(Index::Cpu)).unwrap();
            let word = space.zeroed::<Word>().unwrap();
            let atomic = space.zeroed::<AtomicU64>().unwrap();
            (0..100).for_each(|_| word.word().add(2));
            (0..100).for_each(|_| _ = atomic.with(|word| word.fetch_add(1, Ordering::Relaxed)));
            if space.is_restartable() {
                assert_eq!(space.units_used() as usize, highest + 1);
                let of = |unit: usize| word.iter().nth(unit).unwrap().get();
                assert_eq!(of(highest), 200);
                assert!((0..highest).all(|unit| of(unit) == 0), "units of other CPUs");
            }
            assert_eq!(word.word().sum(), 200);
            assert_eq!(atomic.iter().map(|word| word.load(Ordering::Relaxed)).sum::<u64>(), 100);
            // Back on another CPU, the thread finds another unit.
            restrict(0, &[lowest]);
            word.word().add(1);
            assert_eq!(word.word().sum(), 201);

            // A CPU whose number is not below that of the units shares the last one.
            if highest > 0 {
                restrict(0, &[highest]);
                let few =
                    Space::new(Options::default().index(Index::Cpu).units(Some(highest as u32))).unwrap();
                let load = Load::new(&few);
                load.counter.promote().unwrap();
                (0..1000).for_each(|_| load.round());
                if few.is_restartable() {
                    assert_eq!(few.units_used(), 0, "no unit but the last one");
                    assert_eq!(load.word.get(highest as u32).unwrap().get(), 3000);
                }
                load.check();
            }
        });
    });
}

/// Installs a filter for this thread and those that it starts: the listed calls fail with EPERM.
fn deny(calls: [libc::c_long; 2]) {
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let rules = [
        step(load, 0, 0, 0),
        step(equal, 1, 0, calls[0] as u32),
        step(equal, 0, 1, calls[1] as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: rules.len() as u16, filter: rules.as_ptr().cast_mut() };
    // SAFETY: changes only this process.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: reads the program.
    let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(set, 0);
}

/// Ends this thread's registration for sections, as if the system had denied it. Returns `false` if it has none.
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
fn unregister() -> bool {
    unsafe extern "C" {
        /// The distance of a thread's area from its thread pointer.
        static __rseq_offset: isize;
        static __rseq_size: u32;
    }
    const UNREGISTER: i32 = 1;
    const SIGNATURE: u32 = 0x5305_3053;
    /// The bytes that libc registers; newer ones may register more.
    const SIZES: [u32; 2] = [32, 64];
    // SAFETY: a number that libc sets at the start.
    if unsafe { __rseq_size } == 0 {
        return false;
    }
    let pointer: usize;
    // SAFETY: the thread pointer, which libc stores in the word that it points to.
    unsafe {
        core::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags));
    }
    // SAFETY: as before.
    let area = pointer.wrapping_add_signed(unsafe { __rseq_offset });
    SIZES.iter().any(|&bytes| {
        // SAFETY: the area of this thread, which stays readable.
        unsafe { libc::syscall(libc::SYS_rseq, area, bytes, UNREGISTER, SIGNATURE) == 0 }
    })
}

#[cfg(not(all(target_arch = "x86_64", target_env = "gnu")))]
fn unregister() -> bool {
    false
}

/// Runs threads, without sections if `denied`, beside one that has them. Returns whether they had none.
fn work_beside(load: &Load<'_>, denied: bool) -> bool {
    std::thread::scope(|scope| {
        let work = || {
            let unregistered = denied && unregister();
            (0..20_000).for_each(|_| load.round());
            unregistered
        };
        let threads = [(); 3].map(|()| scope.spawn(work));
        (0..20_000).for_each(|_| load.round());
        threads.map(|thread| thread.join().unwrap()).iter().all(|&unregistered| unregistered)
    })
}

/// Denies sections to some threads, and later the barrier to all: a sandbox that is entered after the start.
///
/// libc ends a program in which a later thread is denied, so these threads end their registration themselves.
#[test]
fn threads_to_which_the_system_denies_sections_lose_no_change() {
    const NAME: &str = "threads_to_which_the_system_denies_sections_lose_no_change";
    const ROLE: &str = "VMALLOC_TEST_DENIED";
    if std::env::var_os(ROLE).is_none() {
        return again(NAME, ROLE, "");
    }
    let space = Space::new(Options::default()).unwrap();
    let load = Load::new(&space);
    // In use before: a reference in a unit, and a delta.
    load.counter.promote().unwrap();
    load.round();
    let was_percpu = load.count.is_percpu();
    deny([libc::SYS_membarrier, libc::SYS_membarrier]);
    let unregistered = work_beside(&load, true);
    assert_eq!(unregistered, space.is_restartable(), "threads without a number were tested");
    if unregistered {
        // They shared the last unit, beside the sections of the first thread.
        let last = space.units() - 1;
        assert_eq!(load.word.get(last).unwrap().get(), 3 * 60_000);
    }
    if was_percpu {
        // Without the barrier the count cannot be closed. It says so, and goes on.
        assert_eq!(load.count.kill(), Err(RefError::NoBarrier));
        assert_eq!(load.count.switch_to_atomic(), Err(RefError::NoBarrier));
        assert!(load.count.is_percpu() && !load.count.is_dying() && load.count.try_get_live());
        load.count.put();
    }
    let (rounds, sum) = (load.rounds.load(Ordering::Relaxed), load.word.word().sum());
    assert_eq!((rounds, sum, load.counter.sum()), (80_001, 3 * 80_001, -2 * 80_001));
    // A child of a denied process.
    assert!(in_child(|| {
        load.word.word().add(1);
        load.counter.add(1);
        (load.word.word().sum(), load.counter.sum()) == (sum + 1, -2 * 80_001 + 1)
    }));
    space.validate().unwrap();
}

/// Denies both from the beginning, and has libc register no thread: every operation is atomic.
#[test]
fn a_process_without_sections_and_barriers_has_the_same_results() {
    const NAME: &str = "a_process_without_sections_and_barriers_has_the_same_results";
    const ROLE: &str = "VMALLOC_TEST_NO_SECTIONS";
    if std::env::var_os(ROLE).is_none() {
        return again(NAME, ROLE, "glibc.pthread.rseq=0");
    }
    deny([libc::SYS_rseq, libc::SYS_membarrier]);
    let space = Space::new(Options::default().units(Some(512))).unwrap();
    assert!(!space.is_restartable());
    let load = Load::new(&space);
    assert!(!load.count.is_percpu());
    work_beside(&load, false);
    load.check();
}

/// The byte that a CPU wrote at a place of an object.
fn pattern(object: usize, unit: u32, at: usize) -> u8 {
    (object.wrapping_mul(31) ^ (unit as usize).wrapping_mul(97) ^ at.wrapping_mul(7)) as u8 | 1
}

fn each_byte(object: &PerCpuBox<'_>, unit: u32, mut each: impl FnMut(usize, *mut u8)) {
    let first = object.as_ptr(unit).unwrap();
    for at in 0..object.layout().size() {
        // SAFETY: inside the object.
        each(at, unsafe { first.as_ptr().add(at) });
    }
}

fn write(nth: usize, object: &PerCpuBox<'_>, unit: u32) {
    // SAFETY: bytes of an object that only this test uses.
    each_byte(object, unit, |at, byte| unsafe { byte.write(pattern(nth, unit, at)) });
}

fn holds(object: &PerCpuBox<'_>, unit: u32, want: impl Fn(usize) -> u8) -> bool {
    let mut same = true;
    // SAFETY: as before.
    each_byte(object, unit, |at, byte| same &= unsafe { byte.read() } == want(at));
    same
}

/// Checks a pool of objects as its users do. Every copy holds what its CPU wrote, and a new object is zeros in every
/// unit. A child's writes are its own.
#[test]
fn every_copy_holds_what_its_cpu_wrote_and_is_zeros_when_it_is_used_again() {
    let space = Space::new(Options::default().units(Some(12))).unwrap();
    let units = space.units();
    let layout = |nth: usize| {
        let size = [1, 8, 24, 63, 200, 1000, 5000, 32 << 10][nth % 8];
        Layout::from_size_align(size, 1 << (nth % 13)).unwrap()
    };
    let alloc = |nth: usize| space.alloc(layout(nth)).unwrap();
    let mut objects: Vec<_> = (0..120).map(|nth| Some((nth, alloc(nth)))).collect();
    for (nth, object) in objects.iter().flatten() {
        (0..units).for_each(|unit| write(*nth, object, unit));
    }
    let all_hold = |objects: &[Option<(usize, PerCpuBox<'_>)>]| {
        let held = objects.iter().flatten();
        held.clone()
            .all(|(nth, object)| (0..units).all(|unit| holds(object, unit, |at| pattern(*nth, unit, at))))
    };
    assert!(all_hold(&objects));
    for round in 1..6 {
        // Some are freed, and others are where they were: zeros in every unit.
        for at in (round % 3..objects.len()).step_by(3) {
            objects[at] = None;
        }
        if round % 2 == 0 {
            space.trim();
        }
        assert!(all_hold(&objects), "round {round}: a free changed another object");
        for (at, freed) in objects.iter_mut().enumerate().filter(|(_, held)| held.is_none()) {
            let nth = 1000 * round + at * 5;
            let object = alloc(nth);
            for unit in 0..units {
                assert!(
                    holds(&object, unit, |_| 0),
                    "round {round}: unit {unit} of a new object is not zeros"
                );
                write(nth, &object, unit);
            }
            *freed = Some((nth, object));
        }
        assert!(all_hold(&objects), "round {round}");
        space.validate().unwrap();
    }
    // A child sees the data of the fork, and what it writes, frees and allocates is its own.
    for _ in 0..3 {
        assert!(in_child(|| {
            let before = all_hold(&objects);
            for (nth, object) in objects.iter().flatten() {
                (0..units).for_each(|unit| write(nth + 1, object, unit));
            }
            let own = objects.iter().flatten().all(|(nth, object)| {
                (0..units).all(|unit| holds(object, unit, |at| pattern(nth + 1, unit, at)))
            });
            let fresh = alloc(5);
            before && own && (0..units).all(|unit| holds(&fresh, unit, |_| 0)) && space.validate().is_ok()
        }));
        assert!(all_hold(&objects), "a child's writes are in the parent");
    }
    // Objects die in any order, and pages with them.
    while let Some(object) = objects.pop() {
        drop(object);
    }
    space.trim();
    assert_eq!(space.counts().0, 0);
    space.validate().unwrap();
}
