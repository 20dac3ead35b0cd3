//! Signals at random instructions: each entry point is executed step by step, and a signal comes before some of them.
//!
//! The handlers make the calls that are allowed in one: they ask what is where, count in per-CPU words, fork. A child
//! that is forked there works with the memory and ends well. What was interrupted goes on correctly, since the programs
//! check all contents. A process that is killed at an instruction leaves its parent whole.
//!
//! Restartable sequences never end under single steps. So the C library registers none here, and every operation
//! on per-CPU words is an atomic one. Each repetition of a string instruction is a step, so large copies use loops.

use crate::tracer::{Call, Verdict, Watch, trace};
use crate::{is_whole, program};
use libc::c_int;

/// Sends a signal before random instructions.
struct Signals {
    signal: c_int,
    /// Instructions between two signals: 1 to twice as many.
    mean: u64,
    left: u64,
    state: u64,
    steps: u64,
    sent: u64,
    /// The most signals.
    most: u64,
    /// One entry point in as many is executed step by step.
    share: u64,
    entries: u64,
}

impl Signals {
    fn new(signal: c_int, mean: u64, seed: u64, most: u64) -> Self {
        let share = if is_whole() { 1 } else { 4 };
        let state =
            Self { signal, mean, left: 0, state: seed, steps: 0, sent: 0, most, share, entries: seed };
        let mut signals = state;
        signals.left = signals.random();
        signals
    }

    fn random(&mut self) -> u64 {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        1 + (self.state >> 33) % (2 * self.mean)
    }
}

impl Watch for Signals {
    fn call(&mut self, _: &Call) -> Verdict {
        Verdict::Pass
    }

    fn steps(&mut self) -> bool {
        self.entries += 1;
        self.entries.is_multiple_of(self.share)
    }

    fn step(&mut self) -> Option<c_int> {
        self.steps += 1;
        self.left -= 1;
        if self.left > 0 {
            return None;
        }
        self.left = self.random();
        self.sent += 1;
        (self.sent <= self.most).then_some(self.signal)
    }
}

const AREAS: [&str; 2] = ["steps", HARDENED];
/// It has four times as many instructions as the others.
const HARDENED: &str = "steps_hardened";

/// Runs a program under signals. Returns the number of its steps and of its signals.
fn run(name: &str, signal: c_int, mean: u64, seed: u64, most: u64) -> (u64, u64) {
    let mut signals = Signals::new(signal, mean, seed, most);
    let mut command = program(name);
    let loops = ["stosb", "movsb"].map(|what| format!("glibc.cpu.x86_rep_{what}_threshold=1000000000"));
    command.env("GLIBC_TUNABLES", format!("glibc.pthread.rseq=0:{}", loops.join(":")));
    let ended = trace(command, &mut signals).unwrap();
    assert_eq!(ended.status, 0, "{name}, signal {signal}, {mean} apart, seed {seed}: {}", ended.text);
    (signals.steps, signals.sent.min(most))
}

fn say(what: &str, (steps, sent): (u64, u64), least: u64) {
    println!("faulted: {what}: {steps} instructions executed one by one, {sent} signals");
    assert!(sent >= least, "{what}: {sent} signals");
}

#[test]
fn a_handler_may_interrupt_any_instruction_with_what_it_may_call() {
    let mean = if is_whole() { 7 } else { 60 };
    for name in AREAS.into_iter().chain(["steps_percpu"]).filter(|&name| is_whole() || name != HARDENED) {
        for seed in 1..=if is_whole() { 2 } else { 1 } {
            let ran = run(name, libc::SIGUSR1, mean, seed, u64::MAX);
            say(&format!("a handler that asks and counts, `{name}`, seed {seed}"), ran, 50);
        }
    }
}

#[test]
fn a_handler_may_fork_at_any_instruction() {
    let (mean, most) = if is_whole() { (700, u64::MAX) } else { (200, 20) };
    for name in AREAS.into_iter().filter(|&name| is_whole() || name != HARDENED) {
        let ran = run(name, libc::SIGUSR2, mean, 1, most);
        say(&format!("a handler that forks, `{name}`"), ran, 5);
    }
}

#[test]
fn a_process_that_is_killed_at_an_instruction_leaves_its_parent_whole() {
    let (mut all, runs) = ((0, 0), if is_whole() { 400 } else { 5 });
    for seed in 1..=runs {
        let (steps, sent) = run("steps_killed", libc::SIGKILL, 2000, seed, 1);
        all = (all.0 + steps, all.1 + sent);
    }
    say("a child that is killed", all, runs / 4);
}
