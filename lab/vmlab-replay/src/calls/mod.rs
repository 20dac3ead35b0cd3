//! Replays the calls of a core inside a kernel on the same core in this process, and compares every line.
//!
//! # Theory
//! ```text
//!   recording --call--> replay --> the core here --request--> the machine here
//!        |                            |                           |
//!        `--- result, compared -------'        answer, compared --'--- of the recording
//! ```
//! A recording has each call of the core, and what the core asked for meanwhile: memory, flushes, the worker
//! (`vmlab_trace::calls`). The core here has the policies of `adopt/linux`, is called in the same order with the same
//! arguments, and gets the same answers. If its decisions depend on nothing else, it returns the same addresses, asks
//! for the same, and ends in the same state. A call of the recording is not corrected after a difference, so that most
//! of what follows differs, too: the first difference counts.
//!
//! A kernel whose clients free areas while they are asked to reclaim makes calls within a call. Those are not replayed.

mod machine;
mod script;

pub use script::Difference;

use crate::JSON_VERSION;
use anyhow::{Context, Result, bail, ensure};
use machine::Recorded;
use script::Script;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use va_base::{AllocError, Context as CallContext, Request, Va, VaRange};
use va_block::config::WithSpace;
use va_block::{BlockError, Blocks, Lane};
use va_space::config::WithAmple;
use va_space::{Area, Magazine, Purge, SpaceError};
use va_tree::Congruent;
use vmlab_machine::kernel_extent;
use vmlab_trace::calls::{Answer, Call, Line, Setting};

// As in `adopt/linux/src/abi.rs`.
type AreaPolicies = WithAmple<va_space::config::Standard>;
type Policies = WithSpace<va_block::config::Standard, AreaPolicies>;

/// The most CPUs of a recording. Each has a magazine and a lane.
const CPUS_MAX: u64 = 512;
/// The most parts of a congruent call, and busy ranges of a space.
const PARTS_MAX: usize = 64;

/// Results of an alloc that are no address, as of `adopt/linux/src/abi.rs`.
const NO_SPACE: u64 = 0;
const NO_MEMORY: u64 = 1;
const BAD_REQUEST: u64 = 2;
const TRY_AGAIN: u64 = 3;

/// The comparison of a recording. Its fields, in this order, are the object that `--json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct CallsRow {
    /// The version of the object.
    pub version: u32,
    /// Name of the recording.
    pub recording: String,
    /// Possible CPUs.
    pub cpus: u64,
    /// Calls.
    pub calls: u64,
    /// Calls of each function.
    pub by_call: BTreeMap<&'static str, u64>,
    /// Calls on each CPU, of those that name one.
    pub by_cpu: Vec<u64>,
    /// Addresses that the kernel's core allocated.
    pub addresses: u64,
    /// Those that are the same here.
    pub equal: u64,
    /// Requests of the core that were compared: for memory, flushes, the worker.
    pub requests: u64,
    /// Differences of any kind.
    pub differences: u64,
    /// The first of them.
    pub first: Vec<Difference>,
    /// True if the recording has its end, with the counts of the space.
    pub complete: bool,
}

/// The caches of a CPU.
struct Caches<'a> {
    magazine: Magazine<'a, Recorded, AreaPolicies>,
    lane: Lane<'a, Recorded, Policies>,
}

/// Replays the lines of a recording.
///
/// # Errors
/// If the lines are not those of a space that is created and then called, or an invariant is broken at the end.
pub fn replay(recording: &str, lines: Vec<Line>) -> Result<CallsRow> {
    let mut script = Script::new(lines);
    let mut start = Settings::default();
    loop {
        match script.next() {
            Some(Line::Setting(setting)) => start.set(setting).with_context(|| at(&script))?,
            Some(Line::Call(Call::Init {})) => break,
            _ => bail!("{}: the space is not created yet", at(&script)),
        }
    }
    ensure!(
        (1..=CPUS_MAX).contains(&start.possible),
        "{} CPUs: 1 to {CPUS_MAX} are replayed",
        start.possible
    );
    let possible = start.possible;
    script.begin(Call::Init {}.to_string());
    let machine = Recorded::new(possible as u32, script);
    machine.set_online(start.online);
    let mut blocks = Arc::new(Blocks::<Recorded, Policies>::empty());
    let (extent, window) = (start.extent(), start.window()?);
    let made = Arc::get_mut(&mut blocks).context("nothing else refers to the blocks")?.init_within(
        extent,
        window,
        machine.clone(),
        &start.busy,
    );
    machine.set_blocks(&blocks);
    let mut replay = Replay {
        blocks: &blocks,
        machine: &machine,
        caches: (0..possible).map(|_| None).collect(),
        settings: start,
        row: CallsRow {
            version: JSON_VERSION,
            recording: recording.to_string(),
            cpus: possible,
            calls: 0,
            by_call: BTreeMap::new(),
            by_cpu: vec![0; possible as usize],
            addresses: 0,
            equal: 0,
            requests: 0,
            differences: 0,
            first: Vec::new(),
            complete: false,
        },
    };
    replay.end_call(Call::Init {}, u64::from(made.is_ok()))?;
    made.context("the space cannot be created")?;
    while replay.step()? {}
    let row = replay.row()?;
    // After a difference a free of the kernel's may be of a block here, which is a mistake of the caller.
    if row.differences == 0 {
        blocks.space().validate().context("the space is broken")?;
        blocks.validate().context("the blocks are broken")?;
    }
    Ok(row)
}

/// Names the line that was returned last.
fn at(script: &Script) -> String {
    format!("line {}", script.line())
}

/// The facts that calls refer to.
#[derive(Default)]
struct Settings {
    possible: u64,
    online: u32,
    busy: Vec<VaRange>,
    lowest: Option<u64>,
    window: (u64, u64),
    parts: Vec<(u64, u64)>,
}

impl Settings {
    fn set(&mut self, setting: Setting) -> Result<()> {
        match setting {
            Setting::Possible { cpus } => self.possible = cpus,
            Setting::Online { cpus } => self.online = u32::try_from(cpus).context("too many CPUs")?,
            Setting::Busy { start, end } => {
                ensure!(self.busy.len() < PARTS_MAX, "more than {PARTS_MAX} busy ranges");
                self.busy.push(VaRange::new(Va::new(start), Va::new(end)).context("the range is none")?);
            }
            Setting::Lowest { at } => self.lowest = Some(at),
            Setting::Window { start, end } => self.window = (start, end),
            Setting::Part { offset, size } => {
                ensure!(self.parts.len() < PARTS_MAX, "more than {PARTS_MAX} parts");
                self.parts.push((offset, size));
            }
        }
        Ok(())
    }

    /// Returns the range of all areas. An end is above every start.
    fn extent(&self) -> VaRange {
        let all = kernel_extent();
        let lowest = Va::new(self.lowest.unwrap_or_default()).max(all.start());
        VaRange::new(lowest, all.end()).unwrap_or(all)
    }

    fn window(&self) -> Result<VaRange> {
        let (start, end) = self.window;
        let window = VaRange::new(Va::new(start), Va::new(end)).filter(|_| start < end);
        window.context("no window before the space is created")
    }

    fn request(&self, size: u64, align: u64) -> Option<Request> {
        let request = Request::new(size, align).ok()?;
        let (start, end) = self.window;
        Some(request.within(VaRange::new(Va::new(start), Va::new(end))?))
    }
}

/// A replay in progress.
struct Replay<'a> {
    blocks: &'a Blocks<Recorded, Policies>,
    machine: &'a Recorded,
    caches: Vec<Option<Caches<'a>>>,
    settings: Settings,
    row: CallsRow,
}

impl<'a> Replay<'a> {
    /// Replays the next line. Returns false after the last.
    fn step(&mut self) -> Result<bool> {
        let (line, here) = self.machine.script(|script| (script.next(), at(script)));
        match line {
            None => return Ok(false),
            Some(Line::Setting(setting)) => {
                self.settings.set(setting).context(here)?;
                self.machine.set_online(self.settings.online);
            }
            Some(Line::Call(Call::Init {})) => bail!("{here}: the space is created twice"),
            Some(Line::Call(call)) => {
                self.machine.script(|script| script.begin(call.to_string()));
                let result = self.make(call);
                self.end_call(call, result)?;
            }
            Some(Line::Answer(end @ Answer::End { .. })) => {
                self.row.complete = true;
                let counts = self.counts();
                self.machine.script(|script| {
                    script.begin("the end".to_string());
                    script.compare(end, counts);
                });
                return Ok(false);
            }
            Some(Line::Request(_) | Line::Answer(_)) => bail!("{here}: no call has begun"),
        }
        Ok(true)
    }

    /// Makes a call of the core. Returns what the C function of `adopt/linux/src/abi.rs` would.
    fn make(&mut self, call: Call) -> u64 {
        let (blocks, space) = (self.blocks, self.blocks.space());
        let noted = |area: Area| {
            let at = area.start();
            if space.note(at, at.get()).is_ok() { at.get() } else { BAD_REQUEST }
        };
        match call {
            Call::Init {} => 0,
            Call::CpuInit { cpu } => {
                let Some(of_cpu) = self.caches.get_mut(cpu as usize) else { return 0 };
                let made = (space.magazine(cpu as u32), blocks.lane(cpu as u32));
                let (Ok(magazine), Ok(lane)) = made else { return 0 };
                *of_cpu = Some(Caches { magazine, lane });
                1
            }
            Call::Take { cpu, size, align } => {
                let request = self.settings.request(size, align);
                let (Some(caches), Some(request)) = (self.caches(cpu), request) else { return TRY_AGAIN };
                let area = caches.magazine.take_noted(&request, |range| range.start().get());
                area.map_or(TRY_AGAIN, |area| area.start().get())
            }
            Call::TryAlloc { cpu, size, align } => {
                let Some(request) = self.settings.request(size, align) else { return BAD_REQUEST };
                let Some(caches) = self.caches(cpu) else { return TRY_AGAIN };
                caches.magazine.try_alloc(&request).map_or(TRY_AGAIN, noted)
            }
            Call::Alloc { cpu, size, align } => {
                let Some(request) = self.settings.request(size, align) else { return BAD_REQUEST };
                space.alloc(cpu as u32, &request).map_or_else(failure, noted)
            }
            Call::Congruent { align } => {
                let mut parts = std::mem::take(&mut self.settings.parts);
                parts.sort_unstable();
                let Ok(parts) = Congruent::new(&parts, align) else { return BAD_REQUEST };
                space.alloc_congruent(&parts).map_or_else(failure, Va::get)
            }
            Call::Note { at } => u64::from(space.note(Va::new(at), at).is_ok()),
            Call::Detach { at } => {
                let detached = space.try_detach_noted(Va::new(at));
                u64::from(detached.is_some_and(|area| area.note().is_some()))
            }
            Call::Release { cpu, at } => u64::from(match self.caches(cpu) {
                Some(caches) => caches.magazine.release_at(Va::new(at)).is_ok(),
                None => space.release_at(CallContext::Atomic, Va::new(at)).is_ok(),
            }),
            Call::TryAllocSmall { cpu, pages } => {
                let Some(caches) = self.caches(cpu) else { return TRY_AGAIN };
                let lane = &mut caches.lane;
                let taken = lane.take(pages);
                taken.or_else(|| lane.alloc_in(CallContext::Atomic, pages).ok()).map_or(TRY_AGAIN, Va::get)
            }
            Call::AllocSmall { cpu, pages } => match blocks.alloc(cpu as u32, pages) {
                Ok(at) => at.get(),
                Err(BlockError::Space(error)) => failure(error),
                Err(BlockError::NoTable) => NO_MEMORY,
                Err(BlockError::Bound { .. }) => TRY_AGAIN,
                Err(_) => BAD_REQUEST,
            },
            Call::FreeSmall { cpu, at, pages } => u64::from(match self.caches(cpu) {
                Some(caches) => {
                    let (lane, at) = (&mut caches.lane, Va::new(at));
                    lane.free_own(at, pages) || lane.free_in(CallContext::Atomic, at, pages).is_ok()
                }
                None => blocks.free_in(CallContext::Atomic, cpu as u32, Va::new(at), pages).is_ok(),
            }),
            Call::Drain {} => {
                blocks.tick();
                space.drain().areas
            }
            Call::UnmapAliases { start, end } => {
                let range = VaRange::new(Va::new(start), Va::new(end));
                blocks.unmap_aliases_and(range.unwrap_or_default());
                0
            }
            Call::PurgeAll {} => {
                space.drain_magazines();
                space.purge(Purge::Full).areas
            }
            Call::Shrink {} => {
                blocks.shrink();
                space.drain_magazines();
                if space.lazy_pages().get() > 0 {
                    space.purge(Purge::Drain);
                }
                space.shrink()
            }
            Call::DrainCpu { cpu } => {
                blocks.drain_lanes(Some(cpu as u32));
                space.drain_cpu(cpu as u32);
                0
            }
        }
    }

    fn caches(&mut self, cpu: u64) -> Option<&mut Caches<'a>> {
        self.caches.get_mut(cpu as usize)?.as_mut()
    }

    /// Ends a call: compares its result, and counts.
    fn end_call(&mut self, call: Call, here: u64) -> Result<()> {
        self.machine.free_retired();
        let (kernel, nested) = self.machine.script(|script| {
            let kernel = script.end();
            if let Some(value) = kernel {
                script.compare(Answer::Returned { value }, Answer::Returned { value: here });
            }
            (kernel, script.nested)
        });
        if let Some(line) = nested {
            bail!("line {line} is within a call: a kernel whose clients reclaim areas cannot be replayed");
        }
        let Some(kernel) = kernel else { return Ok(()) };
        self.row.calls += 1;
        *self.row.by_call.entry(call.word()).or_default() += 1;
        let allocates = matches!(
            call,
            Call::Take { .. }
                | Call::TryAlloc { .. }
                | Call::Alloc { .. }
                | Call::Congruent { .. }
                | Call::TryAllocSmall { .. }
                | Call::AllocSmall { .. }
        );
        if allocates && kernel > TRY_AGAIN {
            self.row.addresses += 1;
            self.row.equal += u64::from(kernel == here);
        }
        if let Some(count) = cpu_of(call).and_then(|cpu| self.row.by_cpu.get_mut(cpu as usize)) {
            *count += 1;
        }
        Ok(())
    }

    fn counts(&self) -> Answer {
        let stats = self.blocks.space().stats();
        Answer::End {
            areas: stats.areas,
            holes: stats.holes,
            pooled: stats.pooled_areas,
            cached: stats.cached_areas,
            lazy_pages: self.blocks.space().lazy_pages().get(),
            purges: stats.purges,
            purged: stats.purged_areas,
        }
    }

    fn row(mut self) -> Result<CallsRow> {
        self.machine.script(|script| {
            script.is_over = true;
            self.row.requests = script.requests;
            self.row.differences = script.differences;
            self.row.first = std::mem::take(&mut script.first);
        });
        ensure!(self.row.calls > 0, "no call ends");
        Ok(self.row)
    }
}

/// Returns the CPU that a call names.
fn cpu_of(call: Call) -> Option<u64> {
    match call {
        Call::Take { cpu, .. }
        | Call::TryAlloc { cpu, .. }
        | Call::Alloc { cpu, .. }
        | Call::Release { cpu, .. }
        | Call::TryAllocSmall { cpu, .. }
        | Call::AllocSmall { cpu, .. }
        | Call::FreeSmall { cpu, .. } => Some(cpu),
        _ => None,
    }
}

fn failure(error: SpaceError) -> u64 {
    match error {
        SpaceError::NoSpace { .. } | SpaceError::Impossible { .. } => NO_SPACE,
        SpaceError::WouldBlock { .. } => TRY_AGAIN,
        SpaceError::NoTable | SpaceError::Index(AllocError::NoMeta { .. }) => NO_MEMORY,
        _ => BAD_REQUEST,
    }
}
