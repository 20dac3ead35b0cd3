//! A tracer of one program: it sees each system call before it is made, and each instruction if asked to.
//!
//! # Theory
//! The program says by marks where an entry point begins and ends. A mark is a call of `prctl` with numbers that no
//! system knows, so a program that is not traced gets an error that it ignores. Between the two marks of a thread, and
//! in all of a thread that is started there, calls are ours. For each of them a [`Watch`] decides:
//!
//! ```text
//!   Pass          the call is made
//!   Fail(errno)   its number becomes -1, so that the kernel makes none, and the result becomes -errno
//!   Spoil(errno)  it is made, and the result becomes -errno: close() closes whatever it says
//!   Time(ns)      it is made, and the time that it wrote becomes this one
//! ```
//!
//! If the watch asks for steps, the thread executes one instruction at a time between the marks, and the watch may send
//! a signal before any of them. The handler runs at full speed until it returns.
//!
//! A restartable sequence never ends under single steps, since each stop restarts it. So stepped programs run without.
//! # Source
//! `man 2 ptrace`, `man 3 getauxval`.

use libc::{c_int, c_long, pid_t};
use std::collections::{HashMap, HashSet};
use std::io::{Error, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::ptr::{null_mut, without_provenance_mut};

/// The first number of a mark.
const MARK: u64 = 0x5641_4c4c;

/// The meaning of a mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mark {
    /// An entry point begins.
    Enter = 1,
    /// It ended.
    Leave,
    /// Nothing fails any more.
    Calm,
}

/// Makes a mark. Preserves errno.
pub(super) fn mark(mark: Mark) {
    // SAFETY: the thread's own variable.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as before.
    let before = unsafe { errno.read() };
    // SAFETY: an option that no system knows changes nothing.
    unsafe { libc::syscall(libc::SYS_prctl, MARK, mark as u64, 0, 0, 0) };
    // SAFETY: as before.
    unsafe { errno.write(before) };
}

/// A system call: its number and arguments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) number: c_long,
    pub(super) arguments: [u64; 4],
}

/// The treatment of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Pass,
    Fail(c_int),
    Spoil(c_int),
    Time(u64),
}

/// Decides what happens to a program.
pub(super) trait Watch {
    /// Called before each system call of an entry point, until the program is calm.
    fn call(&mut self, call: &Call) -> Verdict;

    /// Returns true if the entry point that begins is executed step by step.
    fn steps(&mut self) -> bool {
        false
    }

    /// Called before each instruction of such an entry point. Returns a signal to send.
    fn step(&mut self) -> Option<c_int> {
        None
    }

    /// Returns true if the clock is a system call, which the watch sees, and not a read of the kernel's page.
    fn wants_clock(&self) -> bool {
        false
    }
}

/// The end of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Ended {
    /// The exit status, or the negative number of the signal that ended it.
    pub(super) status: c_int,
    /// Its output, of both streams.
    pub(super) text: String,
}

/// The state of a thread.
#[derive(Clone, Copy, Default)]
struct Thread {
    /// The process that it is of.
    process: pid_t,
    /// It was started by an entry point.
    is_ours: bool,
    is_inside: bool,
    /// It was forked by a handler, and is not executed step by step.
    is_free: bool,
    is_stepped: bool,
    /// Between the two stops of a system call.
    is_in_call: bool,
    /// In a handler of a signal, until it returns.
    is_handling: bool,
    pending: Option<Verdict>,
    mark: Option<Mark>,
    /// Its first stop was seen.
    has_begun: bool,
}

const REGISTERS: usize = 8;
const ORIG_RAX: usize = 15 * REGISTERS;
const RAX: usize = 10 * REGISTERS;
/// The place of the answer in an argument of `UFFDIO_MOVE`, and that request.
const MOVED: u64 = 32;
const UFFDIO_MOVE: u64 = 0xc028_aa05;

/// More calls than any process of these tests makes: it does not end.
const CALLS_MAX: u64 = 50_000;
/// Seconds of CPU time of a program, and of any time. Only one that does not end takes as long.
const CPU_SECONDS: u64 = 300;
const SECONDS: u32 = 1200;

struct Tracer<'w, W> {
    watch: &'w mut W,
    threads: HashMap<pid_t, Thread>,
    /// Processes in which nothing fails any more.
    calm: HashSet<pid_t>,
    /// The calls of each process.
    calls: HashMap<pid_t, u64>,
}

/// Makes a request of `ptrace` for a stopped thread.
fn ask(request: libc::c_uint, thread: pid_t, at: usize, data: usize) -> std::io::Result<c_long> {
    // SAFETY: the requests of this module write nothing here but registers, by `registers`, which passes its own place.
    let answer = unsafe {
        libc::ptrace(
            request,
            thread,
            without_provenance_mut::<libc::c_void>(at),
            std::ptr::with_exposed_provenance_mut::<libc::c_void>(data),
        )
    };
    if answer == -1 { Err(Error::last_os_error()) } else { Ok(answer) }
}

fn registers(thread: pid_t) -> std::io::Result<libc::user_regs_struct> {
    let mut place = std::mem::MaybeUninit::<libc::user_regs_struct>::zeroed();
    ask(libc::PTRACE_GETREGS, thread, 0, place.as_mut_ptr().expose_provenance())?;
    // SAFETY: all zeros is a value, and so is what was written.
    Ok(unsafe { place.assume_init() })
}

/// Reads a word of a stopped program by its memory file, since a word may be -1.
fn peek(thread: pid_t, at: u64) -> std::io::Result<u64> {
    let file = std::fs::File::open(format!("/proc/{thread}/mem"))?;
    let mut word = [0; 8];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut word, at)?;
    Ok(u64::from_ne_bytes(word))
}

fn poke(thread: pid_t, at: u64, word: u64) -> std::io::Result<()> {
    ask(libc::PTRACE_POKEDATA, thread, at as usize, word as usize).map(drop)
}

fn set_register(thread: pid_t, at: usize, value: i64) -> std::io::Result<()> {
    ask(libc::PTRACE_POKEUSER, thread, at, value as usize).map(drop)
}

/// Waits for a thread of a program that this thread traces. `None` if there is none any more.
fn wait() -> Option<(pid_t, c_int)> {
    loop {
        let mut status = 0;
        // SAFETY: writes the status. Children of other threads are not waited for.
        let thread = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
        if thread > 0 {
            return Some((thread, status));
        }
        if Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return None;
        }
    }
}

/// Runs a program under a watch, to its end and that of all its children.
pub(super) fn trace<W: Watch>(mut command: Command, watch: &mut W) -> std::io::Result<Ended> {
    let begin = || {
        let cpu = libc::rlimit { rlim_cur: CPU_SECONDS, rlim_max: CPU_SECONDS };
        // SAFETY: reads two numbers.
        unsafe { libc::setrlimit(libc::RLIMIT_CPU, &raw const cpu) };
        // SAFETY: sets a timer of this process, which an `exec` keeps.
        unsafe { libc::alarm(SECONDS) };
        // SAFETY: stops this process at its `exec`, for its parent.
        let traced = unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, null_mut::<u8>(), null_mut::<u8>()) };
        if traced == -1 { Err(Error::last_os_error()) } else { Ok(()) }
    };
    // SAFETY: makes three system calls, which are allowed after a fork.
    unsafe { command.pre_exec(begin) };
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let streams = (child.stdout.take(), child.stderr.take());
    let root = child.id() as pid_t;
    let mut tracer = Tracer { watch, threads: HashMap::new(), calm: HashSet::new(), calls: HashMap::new() };
    let status = tracer.run(root)?;
    // Both fit into the buffers of the pipes.
    let mut text = String::new();
    let (Some(mut out), Some(mut err)) = streams else { return Err(Error::other("no streams")) };
    out.read_to_string(&mut text)?;
    err.read_to_string(&mut text)?;
    Ok(Ended { status, text })
}

impl<W: Watch> Tracer<'_, W> {
    fn run(&mut self, root: pid_t) -> std::io::Result<c_int> {
        let mut ended = None;
        while let Some((thread, status)) = wait() {
            if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
                self.threads.remove(&thread);
                if thread == root {
                    let exited = libc::WIFEXITED(status);
                    let code = if exited { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) };
                    ended = Some(code);
                }
                continue;
            }
            // A thread that is killed meanwhile is gone: its end is reported next.
            let gone = |error: &Error| error.raw_os_error() == Some(libc::ESRCH);
            match self.stopped(thread, status, root) {
                Err(error) if !gone(&error) => return Err(error),
                _ => {}
            }
        }
        ended.ok_or_else(|| Error::other("the program did not end"))
    }

    fn stopped(&mut self, thread: pid_t, status: c_int, root: pid_t) -> std::io::Result<()> {
        let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
        let known = *self.threads.entry(thread).or_default();
        let mut deliver = 0;
        if !known.has_begun {
            self.state(thread).has_begun = true;
            if thread == root {
                self.state(thread).process = root;
                let options = libc::PTRACE_O_TRACESYSGOOD
                    | libc::PTRACE_O_TRACECLONE
                    | libc::PTRACE_O_TRACEFORK
                    | libc::PTRACE_O_TRACEVFORK
                    | libc::PTRACE_O_EXITKILL;
                ask(libc::PTRACE_SETOPTIONS, thread, 0, options as usize)?;
                if self.watch.wants_clock() {
                    hide_clock(thread)?;
                }
            }
        } else if event != 0 {
            self.born(thread, event)?;
        } else if signal == libc::SIGTRAP | 0x80 {
            self.in_call(thread)?;
        } else if signal == libc::SIGTRAP && known.is_stepped && !known.is_handling {
            deliver = self.step(thread)?;
        } else {
            deliver = signal;
        }
        let known = *self.state(thread);
        let is_stepping = known.is_stepped && !known.is_handling && !known.is_in_call;
        let go = match is_stepping {
            // Nothing is to be seen of it any more, and a program that is not stopped is faster.
            _ if self.calm.contains(&known.process) && !known.is_in_call => libc::PTRACE_DETACH,
            true => libc::PTRACE_SINGLESTEP,
            false => libc::PTRACE_SYSCALL,
        };
        ask(go, thread, 0, deliver as usize).map(drop)
    }

    fn state(&mut self, thread: pid_t) -> &mut Thread {
        self.threads.entry(thread).or_default()
    }

    /// Notes a new thread or child. Its first stop may come before or after this.
    fn born(&mut self, parent: pid_t, event: c_int) -> std::io::Result<()> {
        let mut number: libc::c_ulong = 0;
        ask(libc::PTRACE_GETEVENTMSG, parent, 0, (&raw mut number).expose_provenance())?;
        let parent = *self.state(parent);
        let child = self.state(number as pid_t);
        let is_thread = event == libc::PTRACE_EVENT_CLONE;
        child.process = if is_thread { parent.process } else { number as pid_t };
        child.is_ours = (is_thread && parent.is_inside) || parent.is_ours;
        // The rest of an entry point that forks is executed in the child, too.
        child.is_inside = !is_thread && parent.is_inside && !parent.is_handling;
        child.is_free = parent.is_free || parent.is_handling;
        Ok(())
    }

    fn in_call(&mut self, thread: pid_t) -> std::io::Result<()> {
        let known = *self.state(thread);
        self.state(thread).is_in_call = !known.is_in_call;
        if known.is_in_call {
            return self.after_call(thread, known);
        }
        let seen = registers(thread)?;
        let call =
            Call { number: seen.orig_rax as c_long, arguments: [seen.rdi, seen.rsi, seen.rdx, seen.r10] };
        if let Some(mark) = mark_of(call.number, call.arguments) {
            self.state(thread).mark = Some(mark);
            return Ok(());
        }
        if call.number == libc::SYS_rt_sigreturn {
            // Not before: the instructions at its end would be steps, and further signals would wait for them. With
            // fewer instructions between two signals than that, the program would make no progress.
            self.state(thread).is_handling = false;
        }
        // These do not return.
        let ends = [libc::SYS_exit, libc::SYS_exit_group, libc::SYS_rt_sigreturn, libc::SYS_execve];
        if !(known.is_inside || known.is_ours)
            || known.is_handling
            || ends.contains(&call.number)
            || self.calm.contains(&known.process)
        {
            return Ok(());
        }
        let calls = self.calls.entry(known.process).or_default();
        *calls += 1;
        if *calls > CALLS_MAX {
            return Err(Error::other("the program makes calls without an end"));
        }
        let verdict = self.watch.call(&call);
        if let Verdict::Fail(errno) = verdict {
            set_register(thread, ORIG_RAX, -1)?;
            // As the kernel reports a move that failed.
            if call.number == libc::SYS_ioctl && call.arguments[1] == UFFDIO_MOVE {
                poke(thread, call.arguments[2] + MOVED, i64::from(-errno).cast_unsigned())?;
            }
        }
        self.state(thread).pending = Some(verdict);
        Ok(())
    }

    fn after_call(&mut self, thread: pid_t, known: Thread) -> std::io::Result<()> {
        let steps = known.mark == Some(Mark::Enter) && self.watch.steps();
        let state = self.state(thread);
        (state.pending, state.mark) = (None, None);
        match known.mark {
            Some(Mark::Enter) => (state.is_inside, state.is_stepped) = (true, steps && !state.is_free),
            Some(Mark::Leave) => (state.is_inside, state.is_stepped) = (false, false),
            Some(Mark::Calm) => _ = self.calm.insert(known.process),
            None => {}
        }
        match known.pending {
            Some(Verdict::Fail(errno) | Verdict::Spoil(errno)) => {
                set_register(thread, RAX, i64::from(-errno))
            }
            Some(Verdict::Time(now)) => {
                let at = registers(thread)?.rsi;
                poke(thread, at, now / 1_000_000_000)?;
                poke(thread, at + 8, now % 1_000_000_000)
            }
            Some(Verdict::Pass) | None => Ok(()),
        }
    }

    /// Returns the signal to deliver before the next instruction, or 0.
    fn step(&mut self, thread: pid_t) -> std::io::Result<c_int> {
        let seen = registers(thread)?;
        if let Some(mark) = mark_of(seen.rax as c_long, [seen.rdi, seen.rsi, seen.rdx, seen.r10])
            && mark == Mark::Leave
        {
            // The call itself comes next, or soon.
            self.state(thread).is_stepped = false;
            return Ok(0);
        }
        match self.watch.step() {
            Some(signal) => {
                self.state(thread).is_handling = signal != libc::SIGKILL;
                Ok(signal)
            }
            None => Ok(0),
        }
    }
}

fn mark_of(number: c_long, arguments: [u64; 4]) -> Option<Mark> {
    if number != libc::SYS_prctl || arguments[0] != MARK {
        return None;
    }
    let marks = [Mark::Enter, Mark::Leave, Mark::Calm];
    marks.into_iter().find(|&mark| mark as u64 == arguments[1])
}

/// Removes the kernel's page of code from the list of facts that a new program gets, so that its clock is a system
/// call. That list is above the arguments and the environment, on its stack.
fn hide_clock(thread: pid_t) -> std::io::Result<()> {
    let mut at = registers(thread)?.rsp;
    at += 8 * (peek(thread, at)? + 2);
    while peek(thread, at)? != 0 {
        at += 8;
    }
    at += 8;
    while peek(thread, at)? != libc::AT_NULL {
        if peek(thread, at)? == libc::AT_SYSINFO_EHDR {
            poke(thread, at, libc::AT_IGNORE)?;
        }
        at += 16;
    }
    Ok(())
}
