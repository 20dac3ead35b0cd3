//! One workload of per-CPU memory on one engine, to count instructions: no clock, and functions that stay apart.
//!
//! `cargo build --release -p va-sim --example percpu_calls`, then
//! `valgrind --tool=callgrind --toggle-collect='*give_out*' target/release/examples/percpu_calls test runs`, or
//! `*take_back*`. Workloads: `test`, `holes` and `small`, those that `vmlab bench percpu` calls pcpu_alloc_test, misaligned_holes and
//! 16b_1M. Engines: `ours`, `runs`, `scan` and `linux612`.

use std::ops::Range;
use va_base::{Epoch, Machine, Platform, Record, Table, Va, VaRange};
use va_percpu::config::{Default as Slabs, Linux612, Runs, Scan};
use va_percpu::{Backend, Config, Geometry, Offset, PercpuSpace, Refused, Request, Sizes};
use va_sim::op::Rng;

/// Lends from the heap.
struct Bare;

impl Platform for Bare {
    fn lend_slab<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        Some(Box::leak(vec![T::EMPTY; min].into_boxed_slice()))
    }

    fn take_back_slab<T: Record>(&self, _slab: &'static mut [T]) {}
}

impl Machine for Bare {
    type Lock = parking_lot::RawMutex;
    type PurgeLock = parking_lot::RawMutex;
    type OwnerLock = Self::Lock;

    fn cpus_possible(&self) -> u32 {
        4
    }

    fn cpus_online(&self) -> u32 {
        4
    }

    fn lend_table<T: Table>(&self) -> Option<&'static T> {
        Some(Box::leak(Box::new(T::empty())))
    }

    fn take_back_table<T: Table>(&self, _table: &'static T) {}

    fn flush(&self, _ranges: &[VaRange]) -> Epoch {
        Epoch(0)
    }

    fn completed(&self, _epoch: Epoch) -> bool {
        true
    }
}

/// Chunks that are numbers, from the top down; none is destroyed while objects are given out.
#[derive(Default)]
struct Numbers(parking_lot::Mutex<u64>);

impl Backend for Numbers {
    const BY_PAGE: bool = true;

    fn create(&self, _geometry: &Geometry) -> Result<Va, Refused> {
        let mut made = self.0.lock();
        *made += 1;
        Ok(Va::new(0xffff_e8ff_0000_0000 - (*made << 21)))
    }

    fn destroy(&self, _geometry: &Geometry, _base: Va) {}

    fn populate(&self, _geometry: &Geometry, _base: Va, _pages: Range<u32>) -> Result<(), Refused> {
        Ok(())
    }

    fn depopulate(&self, _geometry: &Geometry, _base: Va, _pages: Range<u32>) {}

    fn flush(&self, _geometry: &Geometry, _base: Va, _pages: Range<u32>) {}
}

type Space<C> = PercpuSpace<Bare, Numbers, C>;

/// Allocates the requests, one after the other.
#[inline(never)]
fn give_out<C: Config>(space: &Space<C>, requests: &[(usize, usize)], objects: &mut Vec<Offset>) {
    for &(size, align) in requests {
        objects.extend(space.alloc(&Request::new(size, align)));
        if space.is_balance_due() {
            space.balance();
        }
    }
}

#[inline(never)]
fn take_back<C: Config>(space: &Space<C>, objects: &[Offset]) -> usize {
    let mut freed = 0;
    for &object in objects {
        freed += usize::from(space.free(object).is_ok());
        if space.is_balance_due() {
            space.balance();
        }
    }
    freed
}

fn run<C: Config>(workload: &str) -> Result<(), Box<dyn std::error::Error>> {
    let (unit, units) = (256 << 10, 4);
    let sizes = Sizes {
        unit,
        fixed: 221_184,
        reserved: 8192,
        dynamic: 28_672,
        atom: 2 << 20,
        alloc: unit * units,
        units,
    };
    let geometry = Geometry::new(sizes, Va::new(0xffff_8880_4000_0000))?;
    let space = Space::<C>::new(geometry, Bare, Numbers::default())?;
    let mut rng = Rng::new(99);
    let requests: Vec<(usize, usize)> = match workload {
        "test" => (0..35_000).map(|_| (1 + rng.below(1024) as usize, 2 << rng.below(11))).collect(),
        "holes" => {
            let all: Vec<_> = (0..129 * 60).flat_map(|_| space.alloc(&Request::new(2032, 16))).collect();
            for hole in all.iter().step_by(2) {
                space.free(*hole)?;
            }
            vec![(1200, 2048); 4000]
        }
        "small" => vec![(16, 4); 200_000],
        other => return Err(format!("no workload is called {other}").into()),
    };
    let mut objects = Vec::with_capacity(requests.len());
    give_out(&space, &requests, &mut objects);
    let freed = take_back(&space, &objects);
    println!("{workload}: {} asked for, {} given out, {freed} taken back", requests.len(), objects.len());
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [workload, engine] = words.as_slice() else { return Err("name a workload and an engine".into()) };
    match engine.as_str() {
        "ours" => run::<Slabs>(workload),
        "runs" => run::<Runs>(workload),
        "scan" => run::<Scan>(workload),
        "linux612" => run::<Linux612>(workload),
        other => Err(format!("no engine is called {other}").into()),
    }
}
