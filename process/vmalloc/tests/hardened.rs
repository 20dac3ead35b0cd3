//! Tests of the reports of the hardened profile about mistakes, each in a process of its own. This program runs itself
//! again, with the name of a mistake in its environment.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::alloc::Layout;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::ptr::NonNull;
use vmalloc::{AllocError, FreeError, Hardened, Options, Profile, Vmalloc, Walls};

const MISTAKE: &str = "VMALLOC_TEST_MISTAKE";
const WALLS: &str = "VMALLOC_TEST_WALLS";

fn options(walls: Walls) -> Options {
    let hardened = Hardened::default().window_bytes(1 << 30).walls(walls);
    Options::default().profile(Profile::Hardened(hardened))
}

fn layout(bytes: usize, align: usize) -> Layout {
    Layout::from_size_align(bytes, align).unwrap()
}

/// The end of a process: its signal, if any, and its output.
struct End {
    signal: Option<i32>,
    said: String,
}

/// Runs this program again, to make a mistake.
fn run(mistake: &str, walls: Walls) -> End {
    let program = std::env::current_exe().unwrap();
    let walls = if walls == Walls::Best { "best" } else { "protection" };
    let test = ["--exact", "a_process_that_makes_a_mistake", "--nocapture", "--test-threads=1"];
    let output = Command::new(program).args(test).env(MISTAKE, mistake).env(WALLS, walls).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    End { signal: output.status.signal(), said }
}

/// Writes a byte somewhere relative to an area.
fn write(area: NonNull<u8>, offset: isize) {
    // SAFETY: the mistake under test: it ends the process, or is detected later.
    unsafe { area.as_ptr().wrapping_offset(offset).write_volatile(0xa5) };
}

/// Reads a byte relative to an area.
fn read(area: NonNull<u8>, offset: isize) -> u8 {
    // SAFETY: as before.
    unsafe { area.as_ptr().wrapping_offset(offset).read_volatile() }
}

/// Changes a byte of a canary, which is random and may be the byte that [`write`] stores.
fn corrupt(area: NonNull<u8>, offset: isize) {
    let byte = !read(area, offset);
    // SAFETY: as before.
    unsafe { area.as_ptr().wrapping_offset(offset).write_volatile(byte) };
}

fn free(memory: &Vmalloc, area: NonNull<u8>) {
    // SAFETY: as before.
    unsafe { memory.free(area) }.unwrap();
}

fn at(address: usize) -> NonNull<u8> {
    NonNull::with_exposed_provenance(address.try_into().unwrap())
}

/// Writes a line to standard error, which libtest does not capture.
fn say(what: std::fmt::Arguments<'_>) {
    std::io::stderr().write_fmt(what).and_then(|()| std::io::stderr().write_all(b"\n")).unwrap();
}

/// Returns the resident memory of this process, in bytes.
fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Tests areas while all later mappings are locked, which excludes markers.
fn lock_all() {
    // SAFETY: locks memory, of this process, which ends soon.
    if unsafe { libc::mlockall(libc::MCL_FUTURE) } != 0 {
        say(format_args!("SKIPPED: may not lock memory"));
        return;
    }
    let memory = Vmalloc::new(options(Walls::Best)).unwrap();
    let area = memory.alloc(layout(100_000, 1)).unwrap();
    write(area, 99_999);
    free(&memory, area);
    let again = memory.alloc(layout(100_000, 1)).unwrap();
    assert_eq!(read(again, 99_999), 0);
    assert!(resident_bytes() < 256 << 20, "the window is there as a whole");
    say(format_args!("locked"));
    write(again, 100_000);
}

/// Does nothing when it is run as a test.
#[test]
fn a_process_that_makes_a_mistake() {
    let Ok(mistake) = std::env::var(MISTAKE) else { return };
    if mistake == "lock all" {
        return lock_all();
    }
    let walls = if std::env::var(WALLS).unwrap() == "best" { Walls::Best } else { Walls::Protection };
    let memory = Vmalloc::new(options(walls)).unwrap();
    let alloc = |bytes, align| memory.alloc(layout(bytes, align)).unwrap();
    let area = alloc(100_000, 1);
    write(area, 0);
    write(area, 99_999);
    say(format_args!("begin {:#x}", area.addr()));
    match &*mistake {
        "write past the end" => write(area, 100_000),
        "read past the end" => _ = read(area, 100_000),
        "read before the page" => _ = read(area, -4096),
        "write past the end, aligned" => {
            let area = alloc(100_000, 64);
            corrupt(area, 100_000);
            free(&memory, area);
        }
        "write before the start" => {
            corrupt(area, -1);
            free(&memory, area);
        }
        "write past the end, and grow" => {
            let area = alloc(100_000, 64);
            corrupt(area, 100_001);
            // SAFETY: our own.
            _ = unsafe { memory.grow(area, layout(200_000, 64)) };
        }
        "read what was freed" => {
            free(&memory, area);
            _ = read(area, 50_000);
        }
        "write what was freed, later" => {
            free(&memory, area);
            for _ in 0..100 {
                let other = alloc(100_000, 1);
                write(other, 5);
                free(&memory, other);
            }
            write(area, 0);
        }
        "read what was moved by growing" => {
            // SAFETY: our own; the later use of the old address is the mistake.
            _ = unsafe { memory.grow(area, layout(200_000, 1)) };
            _ = read(area, 0);
        }
        "read past the end of what grew" | "write past the end of what grew" => {
            let area = alloc(1 << 20, 1);
            // SAFETY: our own.
            let area = unsafe { memory.grow(area, layout(3 << 20, 1)) }.unwrap();
            if mistake.starts_with("read") {
                _ = read(area, 3 << 20);
            }
            // SAFETY: as before.
            let area = unsafe { memory.grow(area, layout((4 << 20) + 5, 1)) }.unwrap();
            corrupt(area, (4 << 20) + 5);
            free(&memory, area);
        }
        "free twice" => {
            free(&memory, area);
            free(&memory, alloc(5, 1));
            free(&memory, area);
        }
        "free what is inside" => free(&memory, at(area.addr().get() + 1000)),
        "free what is behind" => free(&memory, at(area.addr().get() + 100_000)),
        "free what never was" => free(&memory, at((area.addr().get() & !0xfff) ^ 0x100_0000)),
        "free what is elsewhere" => free(&memory, NonNull::from(&mut 5u8)),
        "grow what was freed" => {
            free(&memory, area);
            // SAFETY: the mistake under test.
            _ = unsafe { memory.grow(area, layout(200_000, 1)) };
        }
        _ => {}
    }
    say(format_args!("went on"));
}

#[test]
fn a_mistake_faults_or_aborts_with_what_is_known_of_it() {
    let (fault, abort) = (libc::SIGSEGV, libc::SIGABRT);
    let cases = [
        ("write past the end", fault, ""),
        ("read past the end", fault, ""),
        ("read before the page", fault, ""),
        ("read what was freed", fault, ""),
        ("write what was freed, later", fault, ""),
        ("read what was moved by growing", fault, ""),
        ("read past the end of what grew", fault, ""),
        ("write past the end of what grew", abort, "the first bad byte is at offset 4194309"),
        (
            "write past the end, aligned",
            abort,
            "was written to 0 bytes behind its end, the first bad byte is at offset 100000",
        ),
        (
            "write before the start",
            abort,
            "was written to 1 bytes before its start, the first bad byte is at offset -1",
        ),
        ("write past the end, and grow", abort, "the first bad byte is at offset 100001"),
        ("free twice", abort, "was freed before: it is in the 102400 bytes at"),
        ("free what is inside", abort, "is 1000 bytes inside the live area of 100000 bytes at"),
        ("free what is behind", abort, "is 0 bytes behind the end of the live area of 100000 bytes at"),
        ("free what never was", abort, "was never the start of an area"),
        ("free what is elsewhere", abort, "is outside the arena"),
        ("grow what was freed", abort, "was freed before"),
    ];
    for walls in [Walls::Best, Walls::Protection] {
        for (mistake, signal, message) in cases {
            let end = run(mistake, walls);
            assert!(end.said.contains("begin"), "{mistake}: {}", end.said);
            assert_eq!(end.signal, Some(signal), "{mistake}, {walls:?}: {}", end.said);
            assert!(end.said.contains(message) && !end.said.contains("went on"), "{mistake}: {}", end.said);
            assert_eq!(end.said.contains("vmalloc: bad"), signal == abort, "{mistake}: {}", end.said);
        }
        let end = run("none", walls);
        assert!(end.signal.is_none() && end.said.contains("went on"), "{}", end.said);
    }
}

#[test]
fn locked_memory_is_walled_by_protection_and_no_more_of_it_is_there_than_is_used() {
    let end = run("lock all", Walls::Best);
    if end.said.contains("SKIPPED") {
        say(format_args!("{}", end.said));
        return;
    }
    assert!(end.said.contains("locked"), "{}", end.said);
    assert_eq!(end.signal, Some(libc::SIGSEGV), "{}", end.said);
}

#[test]
fn a_double_free_has_the_number_of_frees_since() {
    let end = run("free twice", Walls::Best);
    assert!(end.said.contains("in quarantine, 1 frees ago"), "{}", end.said);
}

/// A child of a fork can use the allocator, and draws other addresses than its parent.
#[test]
fn a_child_allocates_frees_and_draws_other_places() {
    for walls in [Walls::Best, Walls::Protection] {
        let memory = Vmalloc::new(options(walls)).unwrap();
        let areas: Vec<_> = (0..20).map(|n| memory.alloc(layout(5000 + n, 1)).unwrap()).collect();
        areas.iter().for_each(|&area| write(area, 7));
        let mut pipe = [0; 2];
        // SAFETY: makes two descriptors.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        let draw = || -> [usize; 8] {
            std::array::from_fn(|_| memory.alloc(layout(70_000, 1)).map_or(0, |area| area.addr().get()))
        };
        // SAFETY: the child calls only functions that are allowed after a fork, and exits without returning.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let sound = areas.iter().all(|&area| read(area, 7) == 0xa5);
            areas.iter().for_each(|&area| free(&memory, area));
            let drawn = draw();
            let bytes = size_of_val(&drawn);
            // SAFETY: sends the addresses to the parent.
            let sent = unsafe { libc::write(pipe[1], drawn.as_ptr().cast(), bytes) };
            for place in drawn {
                write(at(place), 0);
                free(&memory, at(place));
            }
            let done = sound && sent == bytes as isize && memory.stats().live_bytes == 0;
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!done)) };
        }
        let mut status = 0;
        // SAFETY: waits for the child forked above.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, 0);
        let mut theirs = [0usize; 8];
        // SAFETY: reads the child's addresses.
        let got = unsafe { libc::read(pipe[0], theirs.as_mut_ptr().cast(), size_of_val(&theirs)) };
        assert_eq!(got, size_of_val(&theirs) as isize);
        let ours = draw();
        // Draws of their own have one in common in one run of a hundred, three in one of ten million.
        let common = ours.iter().filter(|place| theirs.contains(place)).count();
        assert!(common < 3, "{ours:x?} {theirs:x?}");
        for area in areas.into_iter().chain(ours.map(at)) {
            free(&memory, area);
        }
        assert_eq!(memory.stats().live_bytes, 0);
    }
}

#[test]
fn threads_share_a_hardened_allocator() {
    let memory = Vmalloc::new(options(Walls::Best)).unwrap();
    std::thread::scope(|scope| {
        for seed in 0..8usize {
            let memory = &memory;
            scope.spawn(move || {
                let mut held = Vec::new();
                for round in 0..300usize {
                    let bytes = 1 + (round * 7919 + seed * 104_729) % 150_000;
                    let area = memory.alloc(layout(bytes, 1 << (round % 7))).unwrap();
                    assert_eq!((read(area, 0), read(area, bytes as isize - 1)), (0, 0));
                    write(area, 0);
                    write(area, bytes as isize - 1);
                    held.push(area);
                    if held.len() > 10 {
                        let old = held.swap_remove(round % 10);
                        assert_eq!(read(old, 0), 0xa5);
                        free(memory, old);
                    }
                }
                held.into_iter().for_each(|area| free(memory, area));
            });
        }
    });
    let stats = memory.stats();
    assert_eq!(stats.live_bytes, 0);
    let lines = memory.vmallocinfo().to_string();
    assert_eq!(
        lines.lines().filter(|line| line.ends_with("quarantined vm_area")).count() as u64,
        stats.quarantined_areas
    );
}

#[test]
fn what_can_be_asked_for_is_met() {
    let memory = Vmalloc::new(options(Walls::Best)).unwrap();
    assert_eq!(memory.alloc(layout(0, 1)), Err(AllocError::ZeroSize));
    let area = memory.alloc_zeroed(layout(9000, 32)).unwrap();
    // The usable size is the requested one: the canary follows.
    assert_eq!((memory.usable_bytes(area), memory.requested_bytes(area)), (Ok(9000), Ok(9000)));
    assert_eq!(
        memory.usable_bytes(at(area.addr().get() + 1)),
        Err(FreeError::NoArea { address: area.addr().get() + 1 })
    );
    assert!(memory.contains(area.as_ptr()));
    let mut buffer = memory.buffer(5000).unwrap();
    buffer[4999] = 3;
    buffer.resize(1 << 20).unwrap();
    assert_eq!((buffer[4999], buffer[5000], buffer[(1 << 20) - 1]), (3, 0, 0));
    // SAFETY: our own.
    let area = unsafe { memory.shrink(area, layout(10, 1)) }.unwrap();
    assert_eq!(memory.requested_bytes(area), Ok(10));
    let huge = memory.alloc_huge(layout(3 << 20, 1)).unwrap();
    assert!(huge.addr().get().is_multiple_of(2 << 20));
    drop(buffer);
    free(&memory, area);
    free(&memory, huge);
    assert_eq!(memory.stats().live_bytes, 0);
    memory.trim();
    assert_eq!(memory.stats().cached_bytes, 0);
}
