//! Long random scripts on one thread: every kind of call, magazines, failures, and flushes that end late. SP1 to SP4
//! are checked throughout. The same seed gives the same addresses (SP5), so a failure can be reproduced exactly: run
//! again with the `VA_SCRIPT_SEED` that it prints.
//!
//! A checksum of all addresses and statistics is stated for each policy. It says that no answer has changed, and not
//! that the answers are good: a commit that changes them on purpose states the new one.

use crate::{Linux69, OneLock52, Standard};
use va_base::{Align, AllocError, Pages, Request, Va, VaRange};
use va_sim::effort::some;
use va_sim::machine::{Flushing, SimMachine};
use va_space::config::WithTrees;
use va_space::{Area, Config, Magazine, Purge, ReleaseError, SpaceError, Stats, VmapSpace};

const FIRST: u64 = 0xffff_c900_0000_0000 >> va_base::PAGE_SHIFT;
const PAGES: u64 = 30_000;
/// The steps of a quick run: `some(4000)`.
const STATED_STEPS: u64 = 800;

fn extent() -> VaRange {
    VaRange::from_pages(FIRST, FIRST + PAGES).unwrap()
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((u128::from(self.0 >> 16) * u128::from(bound)) >> 48) as u64
    }
}

/// The results of a script.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Story {
    starts: Vec<Va>,
    full: u64,
    no_table: u64,
    no_records: u64,
    wrong_frees: u64,
    waits: u64,
    flushes: u64,
    /// A checksum of addresses and statistics, in the steps that a quick run has, too.
    answers: u64,
}

impl Story {
    /// Adds `values` to the checksum.
    fn fold(&mut self, values: impl IntoIterator<Item = u64>) {
        for value in values {
            self.answers = (self.answers ^ value).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        }
    }

    fn fold_stats(&mut self, stats: &Stats) {
        let areas = [stats.areas, stats.pooled_areas, stats.cached_areas, stats.holes, stats.tables];
        let pages = [stats.lazy_pages, stats.pooled_pages, stats.cached_pages, stats.largest_hole];
        self.fold(areas.into_iter().chain(pages.map(Pages::get)));
        self.fold([stats.purges, stats.flushes, stats.purged_areas]);
    }
}

struct Script<'s, 'm, C: Config> {
    random: Random,
    machine: &'m SimMachine,
    space: &'s VmapSpace<&'m SimMachine, C>,
    magazines: Vec<Magazine<'s, &'m SimMachine, C>>,
    out: Vec<Area>,
    story: Story,
}

impl<C: Config> Script<'_, '_, C> {
    fn step(&mut self) {
        match self.random.below(200) {
            0..90 if self.out.len() < 400 => self.alloc(),
            0..170 if !self.out.is_empty() => self.free(),
            170..180 => self.free_wrong(),
            180..184 => self.story.waits += u64::from(self.space.purge(Purge::Drain).waiting),
            184..186 => self.story.waits += u64::from(self.space.purge(Purge::Full).waiting),
            186 => self.story.waits += u64::from(self.space.purge(Purge::Aliases).waiting),
            187 => _ = self.space.shrink(),
            188 => {
                let some = self.random.below(3);
                self.machine.fail_after(some, self.random.below(3));
            }
            189..193 => self.machine.fail_after(u64::MAX, u64::MAX),
            193 => self.machine.complete_flushes(),
            194 if !self.magazines.is_empty() => {
                let at = self.random.below(self.magazines.len() as u64) as usize;
                self.magazines[at].drain();
            }
            195..198 => self.burst(),
            _ => self.story.waits += u64::from(self.space.tick().waiting),
        }
    }

    /// Allocates areas of one size on one CPU, and frees those and others on another.
    fn burst(&mut self) {
        let sizes = [1, 2, 3, 4, 7, 16, 33, 64, 65, 100, 129, 257];
        let size = sizes[self.random.below(sizes.len() as u64) as usize];
        let [from, to] = [(); 2].map(|()| self.random.below(6) as usize);
        let align = Align::from_log2(12 + self.random.below(16).saturating_sub(12) as u32).unwrap();
        let request = Request::pages(size).unwrap().aligned(align);
        let count = 1 + self.random.below(48);
        for _ in 0..count.min(2000 / size) {
            let got = match self.magazines.get_mut(from) {
                Some(magazine) => magazine.alloc(&request),
                None => self.space.alloc(from as u32, &request),
            };
            let Ok(area) = got else { break };
            self.machine.map(area.range()).unwrap_or_else(|broken| panic!("{broken}"));
            self.story.starts.push(area.start());
            self.out.push(area);
        }
        for _ in 0..self.random.below(2 * count) {
            let Some(area) = self.out.pop() else { break };
            self.machine.unmap(area.range());
            let done = match self.magazines.get_mut(to) {
                Some(magazine) => magazine.free(area),
                None => self.space.free(area),
            };
            assert_eq!(done, Ok(()));
        }
    }

    fn alloc(&mut self) {
        let random = &mut self.random;
        let size = if random.below(8) == 0 { 1 + random.below(400) } else { 1 + random.below(6) };
        let align = if random.below(6) == 0 { random.below(5) as u32 } else { 0 };
        let mut request = Request::pages(size).unwrap().aligned(Align::from_log2(12 + align).unwrap());
        if random.below(12) == 0 {
            let low = FIRST + random.below(PAGES - 2000);
            request = request.within(VaRange::from_pages(low, low + 2000).unwrap());
        }
        let cpu = random.below(6);
        let before = self.space.stats();
        let got = match self.magazines.get_mut(cpu as usize) {
            Some(magazine) => magazine.alloc(&request),
            None => self.space.alloc(cpu as u32, &request),
        };
        match got {
            Ok(area) => {
                self.machine.map(area.range()).unwrap_or_else(|broken| panic!("{broken}"));
                assert!(area.start().is_aligned(request.align()));
                assert!(request.window().unwrap_or(extent()).encloses(area.range()));
                self.story.starts.push(area.start());
                self.out.push(area);
            }
            Err(error) => {
                match error {
                    SpaceError::NoSpace { .. } | SpaceError::Impossible { .. } => self.story.full += 1,
                    SpaceError::NoTable => self.story.no_table += 1,
                    SpaceError::Index(AllocError::NoMeta { .. }) => self.story.no_records += 1,
                    other => panic!("{other}"),
                }
                // SP4: caches may be empty now, but nothing else has changed, and no page is lost.
                assert_eq!(self.space.stats().busy_pages, before.busy_pages, "SP4: {error}");
                self.check();
            }
        }
    }

    fn free(&mut self) {
        let at = self.random.below(self.out.len() as u64) as usize;
        let area = self.out.swap_remove(at);
        self.machine.unmap(area.range());
        let start = area.start();
        let cpu = self.random.below(6) as usize;
        let by_address = self.random.below(2) == 0;
        let done = match (self.magazines.get_mut(cpu), by_address) {
            (Some(magazine), false) => magazine.free(area),
            (Some(magazine), true) => magazine.free_at(start).map(drop),
            (None, false) => self.space.free(area),
            (None, true) => self.space.free_at(start).map(drop),
        };
        assert_eq!(done, Ok(()));
    }

    /// Frees at an address at which no area starts, mostly inside one or just freed.
    fn free_wrong(&mut self) {
        let mut at = Va::from_page(FIRST + self.random.below(PAGES));
        if let Some(area) = self.out.last()
            && self.random.below(2) == 0
        {
            at = Va::new(area.start().get() + self.random.below(area.range().len_bytes()));
        }
        if self.out.iter().any(|area| area.start() == at) {
            return;
        }
        let inside = self.out.iter().map(Area::range).find(|range| range.contains(at));
        let before = self.space.stats();
        let cpu = self.random.below(6) as usize;
        let got = match self.magazines.get_mut(cpu) {
            Some(magazine) => magazine.free_at(at),
            None => self.space.free_at(at),
        };
        assert_eq!(got, Err(ReleaseError::NoArea { at, inside }));
        assert_eq!(self.space.stats(), before, "SP4: a wrong free changed something");
        self.story.wrong_frees += 1;
    }

    fn check(&self) {
        assert_eq!(self.space.validate(), Ok(()));
    }
}

/// Runs a script to its end and frees everything.
fn run<C: Config>(seed: u64, steps: u64, magazines: u32, flushing: Flushing) -> Story {
    let machine = SimMachine::new(4);
    // A low threshold, so that there are many purges.
    machine.set_online(1);
    machine.set_flushing(flushing);
    let space = VmapSpace::<_, C>::new(extent(), extent(), &machine).unwrap();
    let created = (0..magazines).map(|cpu| space.magazine(cpu).unwrap()).collect();
    let mut script = Script {
        random: Random(seed),
        machine: &machine,
        space: &space,
        magazines: created,
        out: Vec::new(),
        story: Story::default(),
    };
    for step in 0..some(steps) {
        let known = script.story.starts.len();
        script.step();
        if step < STATED_STEPS {
            script.story.fold_stats(&space.stats());
            let starts: Vec<_> = script.story.starts[known..].iter().map(|start| start.get()).collect();
            script.story.fold(starts);
        }
        if step % 64 == 0 {
            script.check();
        }
    }
    let mut story = script.story;
    script.magazines.clear();
    for area in script.out {
        machine.unmap(area.range());
        space.free(area).unwrap();
    }
    // SP3: the remaining frees need nothing from a machine that fails everything.
    machine.fail_after(0, 0);
    while space.purge(Purge::Full).waiting {
        machine.complete_flushes();
    }
    assert_eq!(space.validate(), Ok(()));
    let stats = space.stats();
    assert_eq!((stats.areas, stats.holes, stats.free_pages.get()), (0, 1, PAGES), "SP1: {stats:?}");
    story.flushes = stats.flushes;
    story
}

/// Runs each seed twice; the results together must satisfy `seen` and have the checksum `answers`, unless one seed was
/// requested.
fn scripts<C: Config>(magazines: u32, flushing: Flushing, answers: u64, seen: impl Fn(&Story) -> bool) {
    let fixed_seed: Option<u64> = std::env::var("VA_SCRIPT_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = fixed_seed.map_or(1..=6, |seed| seed..=seed);
    let mut all = Story::default();
    for seed in seeds {
        // Shown by the test harness only on failure; the last one is the one that failed.
        println!("VA_SCRIPT_SEED={seed}");
        let story = run::<C>(seed, 4000, magazines, flushing);
        assert_eq!(run::<C>(seed, 4000, magazines, flushing), story, "SP5: the same calls, other answers");
        all.full += story.full;
        all.no_table += story.no_table;
        all.no_records += story.no_records;
        all.wrong_frees += story.wrong_frees;
        all.waits += story.waits;
        all.flushes += story.flushes;
        all.fold([story.answers]);
    }
    if fixed_seed.is_none() {
        assert_eq!(all.answers, answers, "{:#x}: other answers than those stated", all.answers);
    }
    assert!(fixed_seed.is_some() || (all.wrong_frees > 50 && all.flushes > 20 && seen(&all)), "{all:?}");
}

#[test]
fn sp1_to_sp5_hold_in_a_script_of_everything() {
    scripts::<Standard>(3, Flushing::AtOnce, 0x9ad355a90a5cce8b, |story| {
        story.no_table > 0 && story.waits == 0
    });
    scripts::<Linux69>(0, Flushing::AtOnce, 0x8fd06914a3d5d72d, |story| story.no_table > 0);
    scripts::<OneLock52>(0, Flushing::AtOnce, 0xe692f541b4e053ee, |story| story.no_table > 0);
    scripts::<WithTrees<Standard>>(2, Flushing::AtOnce, 0xc6c37d3f9bde8aac, |story| story.no_records > 0);
}

#[test]
fn sp1_to_sp5_hold_while_flushes_complete_late() {
    scripts::<Standard>(3, Flushing::OnRequest, 0xa6b99734084cdf9f, |story| story.waits > 50);
    scripts::<Linux69>(0, Flushing::OnRequest, 0xe893e95a3035a7ad, |story| story.waits > 50);
    scripts::<WithTrees<Standard>>(2, Flushing::OnRequest, 0xe0ab621fd0f6bc38, |story| story.waits > 50);
}
