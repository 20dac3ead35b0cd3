//! The rows of `cargo xtask counts`.

use super::{ALONE, Needs, Row, dump, each, mark, pairs};
use crate::memory::driver::{Driver as Memory, Malloc};
use crate::percpu::subject::{Standard as Percpu, Subject as Objects, USUAL};
use crate::space::ours::{Bare, Magazines};
use crate::space::patterns;
use crate::space::subject::{Driver, Setup, Stream, Subject, Visitor};
use crate::stream::contender::{Contender, Home, Runner, Work};
use crate::stream::workload::Workload;
use crate::{index, space};
use anyhow::{Context, Result, bail};
use std::hint::black_box;
use std::time::{Duration, Instant};
use va_base::{Align, Heap, PAGE_SIZE, Request, Va, VaRange};
use va_block::config::WithSpace;
use va_block::{Blocks, Config as BlockPolicies};
use va_sim::op::Rng;
use va_space::VmapSpace;
use va_space::config::{Config, Standard};
use va_tree::{BTreeIndex, FreeIndex};
use vmalloc::Vmalloc;
use vmalloc::percpu::{Options, Space, Word};
use vmlab_machine::{LabMachine, PlainLock};

/// Consecutive pairs that are counted, and those before until the state is stable.
const PAIRS: usize = 10_000;
const WARM_UP: usize = 50_000;
/// Consecutive pairs of a stream: with fewer, one slow pair would have too much weight.
const STREAM: usize = 20_000;

/// Indexes, and their streams: one hole, 1,000 areas, 100,000, alignments.
const INDEXES: [&str; 4] = ["btree", "btree32", "rb-linux", "rb-exact"];
const STREAMS: [&str; 4] = ["empty", "rand-1k", "rand-100k", "aligns-1k"];

/// Returns all rows.
pub(super) fn all() -> Vec<Row> {
    let mut rows = Vec::new();
    for index in INDEXES {
        for stream in STREAMS {
            rows.push(row(format!("index/{index}/{stream}"), move || on_index(index, stream)));
        }
    }
    rows.push(row("pair/magazine", || with_magazines(2, Pair(2))));
    rows.push(row("pair/pool", || bare(2, Pair(2))));
    rows.push(row("pair/after-peak", after_peak));
    // A size that has no list of its own in a pool.
    rows.push(row("pair/index", || bare(2, Pair(300))));
    // One page above the limit of pools: each free exceeds the lazy threshold, and a slice purges one area.
    rows.push(row("pair/unpooled", || bare(2, Pair(Standard::POOL_PAGES_MAX + 1))));
    for (at, spec) in patterns::all(2).iter().enumerate() {
        rows.push(row(format!("space/{}", spec.name), move || on_pattern(at)));
    }
    rows.push(row("blocks/lane", || on_blocks(true)));
    rows.push(row("blocks/block", || on_blocks(false)));
    rows.push(row("blocks/lanes-in-turn", on_lanes));
    rows.push(row("blocks/other-cpu", on_another_cpu));
    rows.push(row("free-slice", || bare(SLICE_NODES, FreeSlice)));
    rows.push(row("purge-1000", || bare(1, Purge(1_000))));
    rows.push(row("purge-1", || bare(1, Purge(1))));
    rows.push(row("aligned/first", || on_row(|index, request| index.alloc(request).is_ok())));
    rows.push(row("aligned/step", || on_row(|index, request| index.alloc_step(request) == Ok(None))));
    rows.push(row("find/start", || with_magazines(128, Find { inside: false })));
    rows.push(row("find/inside", || with_magazines(128, Find { inside: true })));
    for (name, size, align) in [("8", 8, 8), ("16", 16, 16), ("64", 64, 64), ("2048-aligned", 2048, 2048)] {
        rows.push(row(format!("percpu/{name}"), move || on_percpu(size, align, false)));
    }
    rows.push(row("percpu/16-atomic", || on_percpu(16, 16, true)));
    rows.push(row("percpu/magazine", || {
        let space = Percpu::<va_percpu::config::Standard>::new(USUAL)?;
        on_objects(&space.cached(0)?, 16, 16, false)
    }));
    rows.push(Row { needs: Needs::Sections, ..row("percpu/section", on_section) });
    for (name, bytes) in [("64K", 64 << 10), ("64M", 64 << 20)] {
        let run = move || on_memory(Vmalloc::global()?, bytes);
        rows.push(Row { needs: Needs::Sections, ..row(format!("process/{name}"), run) });
    }
    for (name, bytes) in [("100", 100), ("1M", 1 << 20)] {
        let run = move || on_memory(&Malloc, bytes);
        rows.push(Row { needs: Needs::Preload, ..row(format!("preload/{name}"), run) });
    }
    rows
}

fn row(name: impl Into<String>, run: impl FnOnce() -> Result<()> + Send + 'static) -> Row {
    Row { name: name.into(), needs: Needs::Nothing, run: Box::new(run) }
}

/// Counts the pairs of the last round, of two operations each.
fn stream(runner: &mut dyn Runner, workload: &Workload) -> Result<()> {
    // A generous limit, since valgrind is slow.
    let deadline = Instant::now() + Duration::from_secs(600);
    if !runner.setup(workload, deadline) {
        bail!("{}: not filled in ten minutes", workload.name);
    }
    let (last, before) = workload.rounds.split_last().context("no rounds")?;
    before.iter().for_each(|ops| runner.play(workload, ops));
    let (alone, rest) = last.split_at(2 * ALONE);
    for ops in alone.chunks(2) {
        mark::start();
        runner.play(workload, ops);
        mark::stop();
    }
    dump("alone", ALONE)?;
    // Counts pairs of two operations, also where a workload's pair has more.
    let rest = &rest[..rest.len().min(2 * STREAM)];
    mark::start();
    runner.play(workload, rest);
    mark::stop();
    dump("run", rest.len() / 2)
}

fn on_contender(contender: &Contender, workload: &Workload) -> Result<()> {
    let home = Home::default();
    let mut runner = contender.make.make(workload, &home).context("it cannot be made")?;
    stream(&mut *runner, workload)
}

fn on_index(index: &str, name: &str) -> Result<()> {
    let all = index::contenders::all();
    let contender = all.iter().find(|contender| contender.name == index).context("no such index")?;
    let spec = index::workloads::ALL.iter().find(|spec| spec.name == name).context("no such workload")?;
    on_contender(contender, &spec.make(2))
}

fn on_pattern(at: usize) -> Result<()> {
    let specs = patterns::all(2);
    let workload = patterns::make(&specs[at], patterns::WARM_UP, 1);
    let subject = Magazines::<PlainLock, Standard>::new(&Setup::alone(2))?;
    let home = Home::default();
    let calls = Stream::new(home.store(subject).context("a new home holds nothing")?, 0);
    stream(&mut Work::new(calls, &workload), &workload)
}

/// Visits a space with magazines.
fn with_magazines(nodes: u32, visitor: impl Visitor<Out = Result<()>>) -> Result<()> {
    visitor.visit(Magazines::<PlainLock, Standard>::new(&Setup::alone(nodes))?)
}

/// Visits a space without.
fn bare(nodes: u32, visitor: impl Visitor<Out = Result<()>>) -> Result<()> {
    visitor.visit(Bare::<PlainLock, Standard>::new(&Setup::alone(nodes))?)
}

/// A pair of this many pages, with nothing else allocated.
struct Pair(u64);

impl Visitor for Pair {
    type Out = Result<()>;

    fn visit<S: Subject>(self, subject: S) -> Result<()> {
        let (mut driver, request) = (subject.driver(0), Request::pages(self.0)?);
        let mut failed = 0;
        let mut pair = || match driver.alloc(black_box(&request)) {
            Some(at) => driver.free(at),
            None => failed += 1,
        };
        (0..WARM_UP).for_each(|_| pair());
        pairs(PAIRS, pair)?;
        none(failed)
    }
}

/// Counts pairs through the one magazine that is left of a thousand. Their size is so large that rounds end often: what
/// the end of one costs is then in each pair.
#[inline(never)]
fn after_peak() -> Result<()> {
    let machine = LabMachine::<PlainLock>::new(2, 2, vmlab_machine::Work::Here);
    let space =
        VmapSpace::<_, Standard>::new(vmlab_machine::kernel_extent(), space::window(), machine.clone())?;
    drop((0..1000).map(|cpu| space.magazine(cpu % 2)).collect::<Vec<_>>());
    let (mut magazine, request) = (space.magazine(0)?, Request::pages(300)?);
    let mut failed = 0;
    let mut pair = || {
        let pair = magazine.alloc(black_box(&request)).ok().and_then(|area| magazine.free(area).ok());
        failed += u64::from(pair.is_none());
    };
    (0..WARM_UP).for_each(|_| pair());
    pairs(PAIRS, pair)?;
    none(failed)
}

fn none(failed: u64) -> Result<()> {
    if failed > 0 { bail!("{failed} requests failed") } else { Ok(()) }
}

/// Allocates `count` areas.
fn areas(driver: &mut impl Driver, count: u64, request: &Request) -> Result<Vec<Va>> {
    (0..count).map(|_| driver.alloc(request).context("no space")).collect()
}

/// A free that purges a slice: the lazy threshold is exceeded, and the flush has ended. A pool accepts few of so many
/// large sizes, so each area is inserted into the holes separately.
struct FreeSlice;

/// CPUs and nodes, enough that a pass has more areas than [`ALONE`] slices process.
const SLICE_NODES: u32 = 128;
/// The least of the sizes, which are above those that have a list of their own in a pool, and their number.
const SLICE_PAGES: u64 = 300;
const SLICE_SIZES: u64 = 200;

impl Visitor for FreeSlice {
    type Out = Result<()>;

    fn visit<S: Subject>(self, subject: S) -> Result<()> {
        let mut driver = subject.driver(0);
        let lazy = va_space::lazy::lazy_max_pages(SLICE_NODES).get();
        let sizes = (0..6 * lazy / SLICE_PAGES).map(|nth| SLICE_PAGES + nth / 2 % SLICE_SIZES);
        let area = |pages| driver.alloc(&Request::pages(pages)?).context("no space");
        let all = sizes.map(area).collect::<Result<Vec<_>>>()?;
        // Every second one, so that nothing merges.
        let mut freed = all.iter().step_by(2);
        // After a flush, each free moves one slice of the flushed areas to the index.
        while subject.drained().flushes < 2 {
            driver.free(*freed.next().context("no flush after so many frees")?);
        }
        each(ALONE, || freed.next().context("no more areas"), |&at| driver.free(at))
    }
}

/// A full purge of so many lazy areas, no two of which touch.
struct Purge(u64);

impl Visitor for Purge {
    type Out = Result<()>;

    fn visit<S: Subject>(self, subject: S) -> Result<()> {
        let mut driver = subject.driver(0);
        // Once to warm up, and once for each measurement: the remaining areas separate the holes.
        let prepare = |driver: &mut S::Driver<'_>| -> Result<()> {
            let all = areas(driver, 2 * self.0, &Request::pages(1)?)?;
            all.iter().step_by(2).for_each(|&at| driver.free(at));
            Ok(())
        };
        prepare(&mut driver)?;
        driver.purge();
        let mut times = 0;
        while times < 4 {
            prepare(&mut driver)?;
            mark::start();
            driver.purge();
            mark::stop();
            times += 1;
        }
        dump("alone", times)
    }
}

/// Calls `alloc` with a request aligned to two pages, where 100,000 holes of two pages begin at an odd page, so that only
/// an alignment row excludes them. Ten steps of the row were built.
fn on_row(alloc: impl Fn(&mut BTreeIndex<Heap>, &Request) -> bool) -> Result<()> {
    const HOLES: u64 = 100_000;
    let space = VaRange::from_pages(0, 1 << 20).context("a range")?;
    let request = Request::pages(2)?.aligned(Align::new(2 * PAGE_SIZE).context("an alignment")?);
    let mut failed = 0;
    let prepare = || {
        let mut index = BTreeIndex::new(space, space, Heap)?;
        index.take(VaRange::from_pages(0, 1).context("a range")?)?;
        for hole in 0..HOLES {
            index.take(VaRange::from_pages(4 * hole + 3, 4 * hole + 5).context("a range")?)?;
        }
        for _ in 0..10 {
            let _more = index.alloc_step(&request)?;
        }
        Ok(index)
    };
    each(2, prepare, |mut index| {
        failed += u64::from(!alloc(&mut index, &request));
        index
    })?;
    none(failed)
}

/// Finds the area around an address, or at one, among 4,096 of 513 pages.
struct Find {
    inside: bool,
}

impl Visitor for Find {
    type Out = Result<()>;

    fn visit<S: Subject>(self, subject: S) -> Result<()> {
        const AREAS: u64 = 4096;
        const PAGES: u64 = 513;
        let (mut driver, mut rng, request) = (subject.driver(0), Rng::new(1), Request::pages(PAGES)?);
        let all: Option<Vec<Va>> = (0..AREAS).map(|_| driver.alloc(&request)).collect();
        let all = all.context("no space")?;
        let mut asked = Vec::new();
        for _ in 0..PAIRS + ALONE {
            let start = all[rng.below(AREAS) as usize];
            let offset = if self.inside { rng.below(PAGES - 1) * PAGE_SIZE } else { 0 };
            asked.push((start, start.checked_add(offset).context("past the end")?));
        }
        let (mut asked, mut failed) = (asked.iter(), 0);
        pairs(PAIRS, || {
            if let Some(&(start, at)) = asked.next() {
                failed += u64::from(driver.find(at) != Some(start));
            }
        })?;
        none(failed)
    }
}

/// Creates blocks on two CPUs.
fn blocks_in<C: BlockPolicies<Space = Standard>>(
    window: VaRange,
) -> Result<Blocks<LabMachine<PlainLock>, C>> {
    let machine = LabMachine::<PlainLock>::new(2, 2, vmlab_machine::Work::Here);
    let space = VmapSpace::<_, Standard>::new(vmlab_machine::kernel_extent(), window, machine.clone())?;
    Blocks::new(space, machine).context("no blocks")
}

/// Our policies under another name: code of its own, so that the calls of one row are compiled as if no other made them.
type Again = WithSpace<va_block::config::Standard, Standard>;

/// Pairs through eight lanes, one lane after the other: more than twice the CPUs.
fn on_lanes() -> Result<()> {
    let blocks = blocks_in::<Again>(space::window())?;
    let mut lanes = (0..8).map(|lane| blocks.lane(lane % 2)).collect::<Result<Vec<_>, _>>()?;
    let (mut nth, mut failed) = (0, 0);
    let mut pair = || {
        let lane = &mut lanes[nth % 8];
        nth += 1;
        let pair = lane.alloc(1).ok().and_then(|at| lane.free(at, 1).ok());
        failed += u64::from(pair.is_none());
    };
    (0..WARM_UP).for_each(|_| pair());
    pairs(PAIRS, pair)?;
    none(failed)
}

/// Pairs on a CPU that has no block, in a space whose only block is that of another CPU.
fn on_another_cpu() -> Result<()> {
    let window = space::window();
    let block = va_block::config::bbmap_bits(2) * PAGE_SIZE;
    let start = window.start().align_up(va_base::Align::new(block).context("no alignment")?);
    let window = VaRange::from_size(start.context("no room")?, block).context("no room")?;
    let blocks = blocks_in::<Again>(window)?;
    blocks.alloc(0, 1)?;
    let mut failed = 0;
    let mut pair = || {
        let pair = blocks.alloc(1, 1).ok().and_then(|at| blocks.free(1, at, 1).ok());
        failed += u64::from(pair.is_none());
    };
    (0..WARM_UP).for_each(|_| pair());
    pairs(PAIRS, pair)?;
    none(failed)
}

fn on_blocks(lane: bool) -> Result<()> {
    let blocks = blocks_in::<va_block::config::Standard>(space::window())?;
    let mut failed = 0;
    if lane {
        let mut lane = blocks.lane(0).context("no lane")?;
        let mut pair = || {
            let pair = lane.alloc(1).ok().and_then(|at| lane.free(at, 1).ok());
            failed += u64::from(pair.is_none());
        };
        (0..WARM_UP).for_each(|_| pair());
        pairs(PAIRS, pair)?;
    } else {
        let mut pair = || {
            let pair = blocks.alloc(0, 1).ok().and_then(|at| blocks.free(0, at, 1).ok());
            failed += u64::from(pair.is_none());
        };
        (0..WARM_UP).for_each(|_| pair());
        pairs(PAIRS, pair)?;
    }
    none(failed)
}

fn on_percpu(size: u32, align: u32, atomic: bool) -> Result<()> {
    on_objects(&Percpu::<va_percpu::config::Standard>::new(USUAL)?, size, align, atomic)
}

fn on_objects(subject: &impl Objects, size: u32, align: u32, atomic: bool) -> Result<()> {
    let mut failed = 0;
    let mut pair = || {
        let (size, align) = (black_box(size), black_box(align));
        let at = if atomic { subject.alloc_atomic(size, align) } else { subject.alloc(size, align) };
        failed += u64::from(at == 0);
        subject.free(at);
    };
    (0..WARM_UP).for_each(|_| pair());
    pairs(PAIRS, pair)?;
    none(failed)
}

fn on_section() -> Result<()> {
    let space = Space::new(Options::default().units(Some(64)))?;
    if !space.is_restartable() {
        bail!("there are no sections here: this process has no rseq area");
    }
    let word = space.zeroed::<Word>()?;
    let word = word.word();
    pairs(PAIRS, || word.add(black_box(1)))
}

fn on_memory<M: Memory>(memory: &M, bytes: usize) -> Result<()> {
    let mut failed = 0;
    let mut pair = || match memory.alloc(black_box(bytes)) {
        Some(held) => memory.free(held),
        None => failed += 1,
    };
    (0..1000).for_each(|_| pair());
    pairs(PAIRS, pair)?;
    none(failed)
}
