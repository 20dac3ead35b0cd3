//! Cases in which Linux's cost is not flat: single calls whose cost grows with the rest of the space.

use super::contenders::SpaceContender;
use super::ours::window;
use super::subject::{Driver, Setup, Subject, Visitor};
use crate::harness::{Summary, in_turn};
use anyhow::Result;
use std::time::Instant;
use va_base::{Align, PAGE_SIZE, Request, Va, VaRange};
use va_sim::op::Rng;
use va_tree::Congruent;
use vmlab_machine::PlainLock;

/// The measured call.
#[derive(Clone, Copy)]
enum What {
    /// A request that fails among 40,000 areas pooled or lazy on 16 CPUs.
    Fail { fits_nowhere: Nowhere, again: bool },
    /// A request of two pages aligned to two, in a window of exactly these pages, which succeeds, in a space with
    /// 64,000 holes.
    ExactWindow { aligned: bool },
    /// The area around an address, on 128 nodes.
    Find { inside: bool },
    /// The slowest of 65,537 frees on 128 CPUs, the last of which begins a purge.
    SlowestFree { in_order: bool },
    /// Four areas of 2 MiB at fixed distances under 32,000 holes.
    Congruent,
}

/// The reason why a request fails.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nowhere {
    /// The space is smaller than the request.
    Impossible,
    /// Its window is allocated.
    Taken,
}

/// A case.
pub struct Case {
    pub name: &'static str,
    pub about: &'static str,
    nodes: u32,
    cpus: u32,
    what: What,
}

/// A case on a number of nodes and of CPUs.
const fn case(name: &'static str, about: &'static str, [nodes, cpus]: [u32; 2], what: What) -> Case {
    Case { name, about, nodes, cpus, what }
}

const fn fail(name: &'static str, about: &'static str, fits_nowhere: Nowhere, again: bool) -> Case {
    case(name, about, [16; 2], What::Fail { fits_nowhere, again })
}

/// All of them.
pub const ALL: [Case; 13] = [
    fail(
        "fail-impossible",
        "a request larger than the space, 40,000 areas pooled or lazy",
        Nowhere::Impossible,
        false,
    ),
    fail("fail-impossible-again", "the same, repeated", Nowhere::Impossible, true),
    fail("fail-window", "a request in a window that is taken, the same", Nowhere::Taken, false),
    fail("fail-window-again", "the same, repeated with nothing freed since", Nowhere::Taken, true),
    case(
        "exact-window-aligned",
        "aligned, in an exact window that is taken, 64,000 holes",
        [1; 2],
        What::ExactWindow { aligned: true },
    ),
    case("exact-window", "the same, not aligned", [1; 2], What::ExactWindow { aligned: false }),
    case(
        "find-inside",
        "the area around an address inside it, 128 nodes",
        [128; 2],
        What::Find { inside: true },
    ),
    case("find-start", "the same by its start", [128; 2], What::Find { inside: false }),
    case(
        "slowest-free-1",
        "slowest of 65,537 frees up to a purge of all, in order, 1 node",
        [1, 128],
        What::SlowestFree { in_order: true },
    ),
    case("slowest-free-1-random", "the same at random", [1, 128], What::SlowestFree { in_order: false }),
    case("slowest-free-128", "the same in order, 128 nodes", [128; 2], What::SlowestFree { in_order: true }),
    case(
        "slowest-free-128-random",
        "the same at random, 128 nodes",
        [128; 2],
        What::SlowestFree { in_order: false },
    ),
    case("congruent", "four congruent areas of 2 MiB under 32,000 holes", [1; 2], What::Congruent),
];

/// The cost of a case for one contender, in nanoseconds.
pub struct Taken {
    pub(super) case: &'static Case,
    pub contender: &'static str,
    pub ns: Summary,
}

/// Measures a case on all contenders in alternating rounds, each time in a fresh space. A contender that does not
/// support the case is left out.
pub fn measure(case: &'static Case, contenders: &[SpaceContender], rounds: usize) -> Result<Vec<Taken>> {
    let setup = Setup { nodes: case.nodes, cpus: case.cpus, helper: false };
    let times = in_turn(rounds, contenders, |round, contender| {
        contender.visit::<PlainLock, _>(&setup, Once(case, round as u64))
    })?;
    let taken = |(contender, times): (&SpaceContender, Vec<f64>)| {
        Some(Taken { case, contender: contender.name(), ns: Summary::of(times)? })
    };
    Ok(contenders.iter().zip(times).filter_map(taken).collect())
}

/// One round of a case.
struct Once(&'static Case, u64);

impl Visitor for Once {
    type Out = Option<f64>;

    fn visit<S: Subject>(self, subject: S) -> Option<f64> {
        let Self(case, seed) = self;
        let (mut driver, mut rng) = (subject.driver(0), Rng::new(seed));
        match case.what {
            What::Fail { fits_nowhere, again } => fail_once(&mut driver, &mut rng, fits_nowhere, again),
            What::ExactWindow { aligned } => exact_window(&mut driver, aligned),
            What::Find { inside } => find_one(&mut driver, &mut rng, inside),
            What::SlowestFree { in_order } => slowest_free(&mut driver, &mut rng, case.cpus, in_order),
            What::Congruent => congruent(&mut driver),
        }
    }
}

/// Calls whose mean is taken.
const CALLS: u32 = 50;

/// Returns the minimum cost of two reads of the clock.
fn clock_ns() -> f64 {
    (0..1000).map(|_| Instant::now().elapsed().as_nanos()).min().unwrap_or(0) as f64
}

/// Returns the nanoseconds of one call, without the cost of the clock.
fn timed<T>(call: impl FnOnce() -> T) -> (T, f64) {
    let clock = clock_ns();
    let begun = Instant::now();
    let got = call();
    let time = begun.elapsed().as_nanos() as f64;
    (got, (time - clock).max(1.0))
}

/// Returns the mean nanoseconds of `calls` calls; `None` if one of them returns true.
fn repeated(calls: u32, mut call: impl FnMut() -> bool) -> Option<f64> {
    let (any, time) = timed(|| (0..calls).fold(false, |any, _| any | call()));
    (!any).then_some(time / f64::from(calls))
}

fn pages(count: u64) -> Option<Request> {
    Request::pages(count).ok()
}

fn shuffle(areas: &mut [Va], rng: &mut Rng) {
    for at in (1..areas.len()).rev() {
        areas.swap(at, rng.below(at as u64 + 1) as usize);
    }
}

fn fail_once(driver: &mut impl Driver, rng: &mut Rng, fits_nowhere: Nowhere, again: bool) -> Option<f64> {
    // Two pages that stay allocated, as the window of requests that fail.
    let occupied = driver.alloc(&pages(2)?)?;
    let mut areas = Vec::new();
    for n in 0..40_000u32 {
        driver.move_to(n % 16);
        areas.push(driver.alloc(&pages(u64::from(1 + n % 8))?)?);
    }
    shuffle(&mut areas, rng);
    areas.into_iter().for_each(|at| driver.free(at));
    let request = match fits_nowhere {
        Nowhere::Impossible => Request::new(1 << 46, PAGE_SIZE).ok()?,
        Nowhere::Taken => pages(2)?.within(VaRange::from_size(occupied, 2 * PAGE_SIZE)?),
    };
    let (got, first) = timed(|| driver.alloc(&request));
    if got.is_some() {
        return None;
    }
    if again { repeated(CALLS, || driver.alloc(&request).is_some()) } else { Some(first) }
}

fn exact_window(driver: &mut impl Driver, aligned: bool) -> Option<f64> {
    // So that the next areas start on odd pages, and each hole of two is misaligned.
    driver.alloc(&pages(3)?)?;
    let mut holes = Vec::new();
    for _ in 0..64_000 {
        holes.push(driver.alloc(&pages(2)?)?);
        driver.alloc(&pages(2)?)?;
    }
    holes.into_iter().for_each(|at| driver.free(at));
    driver.purge();
    let taken = VaRange::from_size(window().start(), 2 * PAGE_SIZE)?;
    let align = if aligned { Align::new(2 * PAGE_SIZE)? } else { Align::PAGE };
    let request = pages(2)?.aligned(align).within(taken);
    repeated(CALLS, || driver.alloc(&request).is_some())
}

fn find_one(driver: &mut impl Driver, rng: &mut Rng, inside: bool) -> Option<f64> {
    const AREAS: u64 = 4096;
    const PAGES: u64 = 513;
    let mut areas = Vec::new();
    for _ in 0..AREAS {
        areas.push(driver.alloc(&pages(PAGES)?)?);
    }
    let mut asked = Vec::new();
    for _ in 0..20_000 {
        let start = areas[rng.below(AREAS) as usize];
        let offset = if inside { rng.below(PAGES - 1) * PAGE_SIZE } else { 0 };
        asked.push((start, start.checked_add(offset)?));
    }
    let (right, time) = timed(|| asked.iter().filter(|&&(start, at)| driver.find(at) == Some(start)).count());
    (right == asked.len()).then(|| time / asked.len() as f64)
}

fn slowest_free(driver: &mut impl Driver, rng: &mut Rng, cpus: u32, in_order: bool) -> Option<f64> {
    // One page more than the lazy threshold.
    let frees = va_space::lazy::lazy_max_pages(cpus).get() + 1;
    let mut areas = Vec::new();
    for n in 0..2 * frees {
        driver.move_to((n % u64::from(cpus)) as u32);
        areas.push(driver.alloc(&pages(1)?)?);
    }
    if !in_order {
        // A random half of the areas, in random order.
        shuffle(&mut areas, rng);
    }
    let slowest = areas.into_iter().take(frees as usize).map(|at| timed_once(|| driver.free(at)));
    slowest.max_by(f64::total_cmp)
}

/// As [`timed`], without measuring the cost of the clock: for calls of microseconds.
fn timed_once(call: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    call();
    begun.elapsed().as_nanos() as f64
}

fn congruent(driver: &mut impl Driver) -> Option<f64> {
    let (_, top) = window().whole_pages();
    for n in 0..32_000 {
        let at = top - 2 * n - 2;
        driver.alloc(&pages(1)?.within(VaRange::from_pages(at, at + 1)?))?;
    }
    let areas = [0u64, 1, 2, 3].map(|n| (n * (4 << 20), 2 << 20));
    let request = Congruent::new(&areas, 2 << 20).ok()?.within(window());
    let mut total = 0.0;
    for _ in 0..CALLS {
        let (base, time) = timed(|| driver.congruent(&request));
        let base = base?;
        total += time;
        for (offset, _) in areas {
            driver.free(base.checked_add(offset)?);
        }
        driver.purge();
    }
    Some(total / f64::from(CALLS))
}
