//! Chunks that the default policy needs, beside Linux's: at most a fifth more, whatever objects live on.
//!
//! Each workload runs on both, with the same requests in the same order. The chunks are counted at their maximum and
//! after a balance at the end.

use va_base::Va;
use va_percpu::config::{Linux612, Standard};
use va_percpu::{Config, Geometry, Offset, PercpuSpace, Request, Sizes};
use va_sim::effort::some;
use va_sim::machine::SimMachine;
use va_sim::op::Rng;
use va_sim::percpu::{Numbers, netmix};

type Space<C> = PercpuSpace<SimMachine, Numbers, C>;

/// A workload: the same operations on each space.
trait Workload {
    fn run<C: Config>(&self, space: &Space<C>);
}

fn alloc<C: Config>(space: &Space<C>, size: u64, align: usize) -> Offset {
    let object = space.alloc(&Request::new(size as usize, align)).unwrap();
    if space.is_balance_due() {
        space.balance();
    }
    object
}

fn free<C: Config>(space: &Space<C>, object: Offset) {
    space.free(object).unwrap();
    if space.is_balance_due() {
        space.balance();
    }
}

fn space<C: Config>(unit: u32) -> Space<C> {
    let sizes = Sizes { unit, fixed: 0, reserved: 0, dynamic: 32 << 10, atom: 4096, alloc: unit, units: 1 };
    let geometry = Geometry::new(sizes, Va::new(1 << 40)).unwrap();
    Space::new(geometry, SimMachine::new(1), Numbers::new((1 << 40) + (1 << 21), 1 << 21)).unwrap()
}

/// Returns the most chunks, the chunks after a balance at the end, and the pages then.
fn chunks<C: Config>(workload: &impl Workload, unit: u32) -> [u64; 3] {
    let space = space::<C>(unit);
    workload.run(&space);
    space.balance();
    space.validate().unwrap();
    let stats = space.stats();
    [stats.chunks_max.into(), stats.chunks.into(), stats.populated_pages]
}

/// Units of 32 KiB, the smallest possible, and of 256 KiB, the usual size.
const UNITS: [u32; 2] = [32 << 10, 256 << 10];

fn compare(name: &str, workload: &impl Workload, units: &[u32]) {
    for &unit in units {
        let (ours, linux) = (chunks::<Standard>(workload, unit), chunks::<Linux612>(workload, unit));
        println!("{name}, units of {} KiB: ours {ours:?}, Linux {linux:?}", unit >> 10);
        // One chunk more is more than a fifth of a few.
        let most = |linux: u64| (linux + linux / 5).max(linux + 1);
        assert!(ours[0] <= most(linux[0]), "{name}: {ours:?} chunks, Linux {linux:?}");
        assert!(ours[1] <= most(linux[1]), "{name}: {ours:?} chunks, Linux {linux:?}");
    }
}

/// Sixteen phases, each of another size; one of every `of` objects lives on.
struct Phases {
    of: usize,
    random: bool,
    up: bool,
}

impl Workload for Phases {
    fn run<C: Config>(&self, space: &Space<C>) {
        let mut rng = Rng::new(3);
        for nth in 1..=16 {
            let words = if self.up { nth } else { 17 - nth };
            let objects: Vec<_> = (0..some(20_000)).map(|_| alloc(space, 4 * words, 4)).collect();
            for (nth, object) in objects.into_iter().enumerate() {
                let stays =
                    if self.random { rng.below(self.of as u64) == 0 } else { nth % self.of == 7 % self.of };
                if !stays {
                    free(space, object);
                }
            }
        }
    }
}

#[test]
fn sizes_by_phase_need_no_more_chunks_than_linux() {
    for up in [true, false] {
        for of in [64, 4, 2] {
            compare(&format!("one in {of}, up {up}"), &Phases { of, random: false, up }, &UNITS[..1]);
            compare(
                &format!("one in {of} at random, up {up}"),
                &Phases { of, random: true, up },
                &UNITS[..1],
            );
        }
    }
}

/// A population that replaces a random object by one of another size; sizes and alignments change gradually.
struct Lifetimes {
    live: usize,
    steps: u64,
    ask: fn(&mut Rng, u64) -> (u64, usize),
}

impl Workload for Lifetimes {
    fn run<C: Config>(&self, space: &Space<C>) {
        let mut rng = Rng::new(11);
        let mut live = Vec::new();
        for step in 0..self.steps {
            let (size, align) = (self.ask)(&mut rng, step * 16 / self.steps);
            if live.len() == self.live {
                let which = rng.below(live.len() as u64) as usize;
                free(space, live.swap_remove(which));
            }
            live.push(alloc(space, size, align));
            // At intervals, most of them are freed.
            if step % (self.steps / 5) == self.steps / 6 {
                live.retain(|&object| {
                    let stays = rng.below(5) == 0;
                    if !stays {
                        free(space, object);
                    }
                    stays
                });
            }
        }
    }
}

#[test]
fn random_lifetimes_need_no_more_chunks_than_linux() {
    let any = |rng: &mut Rng, _| (4 + rng.below(61), 4);
    compare("random sizes", &Lifetimes { live: 20_000, steps: 120_000, ask: any }, &UNITS);
    compare("few objects", &Lifetimes { live: 600, steps: 20_000, ask: any }, &UNITS);
    let drift = |rng: &mut Rng, phase| (4 + 4 * (phase + rng.below(3)) % 64, 4);
    compare("sizes that drift", &Lifetimes { live: 20_000, steps: 120_000, ask: drift }, &UNITS);
    let wide = |rng: &mut Rng, _| {
        let shift = rng.below(8);
        (4 + rng.below(8 << shift), 4)
    };
    compare("small and large", &Lifetimes { live: 8_000, steps: 60_000, ask: wide }, &UNITS);
}

#[test]
fn aligned_mixes_need_no_more_chunks_than_linux() {
    let net = |rng: &mut Rng, _| {
        let (size, align) = netmix(rng);
        (u64::from(size), align as usize)
    };
    compare("net", &Lifetimes { live: 20_000, steps: 120_000, ask: net }, &UNITS);
    let any = |rng: &mut Rng, _| (1 + rng.below(200), 4 << rng.below(7));
    compare("any alignment", &Lifetimes { live: 10_000, steps: 60_000, ask: any }, &UNITS);
    let lines =
        |rng: &mut Rng, phase| if phase % 2 == 0 { (1 + rng.below(40), 8) } else { (64 + rng.below(64), 64) };
    compare("small, then lines", &Lifetimes { live: 10_000, steps: 60_000, ask: lines }, &UNITS);
}

#[test]
fn slabs_dissolve_in_units_of_any_number_of_granules() {
    let phases = Phases { of: 4, random: true, up: true };
    let pages = |unit: u32| chunks::<Standard>(&phases, unit)[2];
    let even = pages(64 << 10);
    for unit in [36 << 10, 44 << 10, 60 << 10] {
        assert!(pages(unit) <= even + even / 5, "{} pages and {even}", pages(unit));
    }
}

/// Groups of objects: so many of each size.
type Group = [(usize, usize)];
/// The per-CPU objects of a memory cgroup of Linux.
const CGROUP: &Group = &[(1072, 1), (424, 4), (156, 5), (40, 21), (8, 59)];

/// Returns the populated pages after 1,000 groups were allocated and nine of ten were freed, and the balance ran.
fn pages_after<C: Config>(group: &Group) -> u64 {
    let space = &space::<C>(256 << 10);
    let alloc = |&(size, count): &(usize, usize)| {
        (0..count).map(move |_| space.alloc(&Request::new(size, 8)).unwrap())
    };
    let groups: Vec<Vec<_>> = (0..1000).map(|_| group.iter().flat_map(alloc).collect()).collect();
    let mut kept = Vec::new();
    for (nth, group) in groups.into_iter().enumerate() {
        if nth % 10 == 0 {
            kept.extend(group);
        } else {
            group.into_iter().for_each(|object| space.free(object).unwrap());
        }
    }
    while space.is_balance_due() {
        space.balance();
        space.validate().unwrap();
    }
    let pages = space.stats().populated_pages;
    // What stays is where it was.
    kept.into_iter().for_each(|object| space.free(object).unwrap());
    space.balance();
    space.validate().unwrap();
    pages
}

#[test]
fn pages_return_after_most_groups_of_objects_were_freed_nearly_as_with_linux() {
    for group in [CGROUP, &[(40, 21)], &[(64, 16)], &[(1072, 1), (8, 4)]] {
        let (ours, linux) = (pages_after::<Standard>(group), pages_after::<Linux612>(group));
        assert!(ours * 10 <= linux * 12, "{group:?}: {ours} pages, and {linux} with Linux's hints");
    }
}

#[test]
fn larger_objects_that_come_and_go_take_no_slabs_from_small_ones() {
    let slabs = [false, true].map(|beside| {
        let space = space::<Standard>(1 << 18);
        for _ in 0..1000 {
            alloc(&space, 8, 8);
            if beside {
                let larger = alloc(&space, 512, 8);
                free(&space, larger);
            }
        }
        space.stats().slabs
    });
    assert_eq!(slabs, [1000_u64.div_ceil(64); 2]);
}
