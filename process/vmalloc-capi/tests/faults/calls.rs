//! Every n-th system call fails, with each errno: once, four times, and until the program is calm.

use crate::errnos;
use crate::tracer::{Call, Ended, Verdict, Watch, trace};
use crate::work::PROGRAMS;
use crate::{is_whole, leak, number, program};
use libc::{c_int, c_long};
use std::collections::BTreeMap;
use std::iter::zip;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// The time for which calls of the same kind fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    Once,
    FourTimes,
    ForEver,
}

/// Lets the n-th call fail.
struct Nth {
    /// The program.
    name: &'static str,
    nth: u64,
    /// The place of the errno in the row of the call.
    errno: usize,
    how: How,
    /// The calls so far.
    calls: Vec<Call>,
    /// The first call that failed, and its errno.
    failed: Option<(Call, c_int)>,
    failures: u64,
    /// Bytes that failed calls of `munmap` leave mapped.
    unmapped: u64,
    unknown: Vec<c_long>,
}

impl Nth {
    fn new(name: &'static str, nth: u64, errno: usize, how: How) -> Self {
        Self {
            name,
            nth,
            errno,
            how,
            calls: Vec::new(),
            failed: None,
            failures: 0,
            unmapped: 0,
            unknown: Vec::new(),
        }
    }

    /// Returns true if two calls are of one kind: the request of an `ioctl` and the advice are part of it.
    fn is_same(one: &Call, other: &Call) -> bool {
        let kind = |call: &Call| match call.number {
            libc::SYS_ioctl | libc::SYS_fcntl => call.arguments[1],
            libc::SYS_madvise => call.arguments[2],
            _ => 0,
        };
        one.number == other.number && kind(one) == kind(other)
    }

    fn fail(&mut self, call: &Call, errno: c_int) -> Verdict {
        self.failures += 1;
        match call.number {
            // The descriptor is closed, whatever the call returns.
            libc::SYS_close => Verdict::Spoil(errno),
            libc::SYS_munmap => {
                self.unmapped += call.arguments[1];
                Verdict::Fail(errno)
            }
            _ => Verdict::Fail(errno),
        }
    }
}

impl Watch for Nth {
    fn call(&mut self, call: &Call) -> Verdict {
        self.calls.push(*call);
        let Some((_, _, errors)) = errnos::row(call.number) else {
            self.unknown.push(call.number);
            return Verdict::Pass;
        };
        if let Some((first, errno)) = self.failed {
            let again = match self.how {
                How::Once => false,
                How::FourTimes => self.failures < 4,
                How::ForEver => true,
            };
            return if again && Self::is_same(&first, call) { self.fail(call, errno) } else { Verdict::Pass };
        }
        if self.calls.len() as u64 != self.nth.saturating_add(1) || is_left(self.name, call.number) {
            return Verdict::Pass;
        }
        let Some(&errno) = errors.get(self.errno) else { return Verdict::Pass };
        self.failed = Some((*call, errno));
        self.fail(call, errno)
    }
}

/// Faults that a program may not survive, with the reason.
///
/// The first release of the hardened profile leaves a share of the limit of addresses for new areas, as documented: that
/// is nothing where the limit is unknown.
const LEFT: [(&str, c_long); 2] = [("hardened", libc::SYS_prlimit64), ("walls", libc::SYS_prlimit64)];

fn is_left(name: &str, number: c_long) -> bool {
    LEFT.contains(&(name, number))
}

/// Sentences with which a program may stop, as it is documented to.
///
/// The C library stops a program whose first thread has restartable sequences and another gets none.
const STOPS: [&str; 2] =
    ["libc has no memory to register what a fork must do", "Fatal glibc error: rseq registration failed"];

/// The outcomes of faults of one kind of call.
#[derive(Clone, Copy, Default)]
struct Count {
    faults: u64,
    /// Faults that no caller saw.
    unseen: u64,
    /// Faults that a caller saw as an error.
    errors: u64,
    stops: u64,
}

/// Checks the end of a program. Returns the number of errors that its callers saw, or `None` if it stopped as
/// documented.
fn verdict(watch: &Nth, ended: &Ended) -> Result<Option<u64>, String> {
    if ended.status == -libc::SIGABRT && STOPS.iter().any(|stop| ended.text.contains(stop)) {
        return Ok(None);
    }
    if !watch.unknown.is_empty() {
        return Err(format!("system calls {:?} are not in `errnos.rs`", watch.unknown));
    }
    if ended.status != 0 {
        return Err(format!("status {}:\n{}", ended.status, ended.text));
    }
    let errors = number(&ended.text, "errors ").ok_or_else(|| format!("it says {:?}", ended.text))?;
    if watch.failed.is_none() && errors > 0 {
        return Err(format!("nothing failed, and callers saw errors:\n{}", ended.text));
    }
    let leak = leak(&ended.text).unwrap_or(0);
    if leak > watch.unmapped {
        return Err(format!("{leak} bytes stay mapped, and unmapping {} failed", watch.unmapped));
    }
    Ok(Some(errors))
}

/// Runs a program with one fault.
fn run(name: &'static str, nth: u64, errno: usize, how: How) -> (Nth, Result<Option<u64>, String>) {
    let mut watch = Nth::new(name, nth, errno, how);
    let ended = trace(program(name), &mut watch).map_err(|error| error.to_string());
    let found = ended.and_then(|ended| verdict(&watch, &ended));
    let context = |why: String| {
        let what = watch.failed.map(|(call, errno)| {
            let name = errnos::row(call.number).map_or("?", |row| row.1);
            format!("{name}({:x?}): {}", call.arguments, errnos::name(errno))
        });
        format!("{name}, call {nth}, {how:?}, {what:?}: {why}")
    };
    let found = found.map_err(context);
    (watch, found)
}

/// A program with one fault.
#[derive(Clone, Copy)]
struct Job {
    name: &'static str,
    nth: u64,
    errno: usize,
    how: How,
}

/// The two most likely errors of a call also last; the others occur once.
const HOWS: &[How] = &[How::Once, How::FourTimes, How::ForEver];

/// The calls that read a file of the system, such as how much memory is left. They change nothing.
const READS: [c_long; 7] = [
    libc::SYS_openat,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_read,
    libc::SYS_getdents64,
    libc::SYS_close,
];

/// Returns how often such a call was made before, after the same two calls: 0 of all others. A program reads some fifty
/// files, most of them of the groups that it is in.
fn repetitions(calls: &[Call], nth: usize) -> usize {
    if nth < 2 || !READS.contains(&calls[nth].number) {
        return 0;
    }
    let is_same = |other: &[Call]| zip(other, &calls[nth - 2..]).all(|(one, other)| Nth::is_same(one, other));
    calls[..nth].windows(3).filter(|other| is_same(other)).count()
}

/// Returns the errors of a call, by their places in its row, and how each occurs.
///
/// A call that repeats others once more has its likeliest error and one more, in turn.
fn faults(number: c_long, repetitions: usize) -> Vec<(usize, How)> {
    let errors = errnos::row(number).map_or(&[][..], |row| row.2);
    if repetitions >= 2 && errors.len() > 2 {
        return vec![(0, How::Once), (1 + repetitions % (errors.len() - 1), How::Once)];
    }
    // A call that is interrupted is repeated, as often as that happens.
    let hows = |place: usize| match place {
        0 | 1 if errors[place] == libc::EINTR => &HOWS[..2],
        0 | 1 => HOWS,
        _ => &HOWS[..1],
    };
    (0..errors.len()).flat_map(|place| hows(place).iter().map(move |&how| (place, how))).collect()
}

/// Returns all faults of a program: of each call that it makes while none fails. It reads files now and then, so the
/// shortest of some runs is taken.
fn jobs(name: &'static str) -> Result<Vec<Job>, String> {
    let mut calls: Option<Vec<Call>> = None;
    for _ in 0..2 {
        let (calm, found) = run(name, u64::MAX, 0, How::Once);
        if found? != Some(0) || calm.calls.is_empty() {
            return Err(format!("{name}: it makes no calls"));
        }
        calls = calls.filter(|calls| calls.len() <= calm.calls.len()).or(Some(calm.calls));
    }
    let calls = calls.unwrap_or_default();
    let of_call = |nth: usize| {
        let faults = faults(calls[nth].number, repetitions(&calls, nth)).into_iter();
        faults.map(move |(errno, how)| Job { name, nth: nth as u64, errno, how })
    };
    let nths = (0..calls.len()).filter(|&nth| !is_left(name, calls[nth].number));
    Ok(nths.flat_map(of_call).collect())
}

type Counts = BTreeMap<(&'static str, &'static str, c_int), Count>;

/// Runs some jobs, on all CPUs. Returns the counts by program, call and errno.
fn run_all(jobs: &[Job]) -> Result<Counts, String> {
    let (next, counts) = (AtomicUsize::new(0), Mutex::new(Counts::new()));
    let failures = Mutex::new(Vec::new());
    let worker = || {
        while let Some(&Job { name, nth, errno, how }) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (watch, found) = run(name, nth, errno, how);
            let found = match found {
                Ok(found) => found,
                Err(why) => {
                    failures.lock().unwrap().push(why);
                    continue;
                }
            };
            let Some((call, errno)) = watch.failed else { continue };
            let call = errnos::row(call.number).map_or("", |row| row.1);
            let mut counts = counts.lock().unwrap();
            let count = counts.entry((name, call, errno)).or_default();
            count.faults += 1;
            match found {
                None => count.stops += 1,
                Some(0) => count.unseen += 1,
                Some(_) => count.errors += 1,
            }
        }
    };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        (0..cpus).for_each(|_| _ = scope.spawn(worker));
    });
    let failures = failures.into_inner().unwrap();
    if failures.is_empty() {
        return Ok(counts.into_inner().unwrap());
    }
    Err(format!("{} faults were not borne:\n{}", failures.len(), failures.join("\n")))
}

/// A sample has one fault of as many.
const SAMPLE: usize = 701;
/// Of the program of threads, which is the longest, all faults are a sample, too.
const THREADS: usize = 16;

#[test]
fn every_nth_system_call_may_fail_with_every_errno() {
    let only = std::env::var("VMALLOC_FAULTS_ONLY").ok();
    let (mut counts, mut tried, mut failures) = (Counts::new(), 0, Vec::new());
    for (name, _) in PROGRAMS.iter().filter(|(name, _)| only.as_ref().is_none_or(|only| only == name)) {
        let began = Instant::now();
        let most = if is_whole() { 1 } else { SAMPLE } * if *name == "threads" { THREADS } else { 1 };
        let some: Vec<_> = jobs(name).unwrap().into_iter().step_by(most).collect();
        tried += some.len();
        match run_all(&some) {
            Ok(more) => counts.extend(more),
            Err(why) => failures.push(why),
        }
        // Of a run of many minutes, a line for each program.
        println!("{} faults of `{name}` took {:.1} s", some.len(), began.elapsed().as_secs_f64());
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    for ((name, call, errno), Count { faults, unseen, errors, stops }) in &counts {
        println!("faults: {name} {call} {} {faults} {unseen} {errors} {stops}", errnos::name(*errno));
    }
    let sum: u64 = counts.values().map(|count| count.faults).sum();
    println!("{sum} faults of {tried} were reached");
    assert!(sum as usize * 2 > tried, "{sum} of {tried} were reached");
}
