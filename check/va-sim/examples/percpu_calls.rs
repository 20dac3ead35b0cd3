//! One workload of per-CPU memory on one engine, to count instructions: no clock, and functions that are not inlined.
//!
//! `cargo build --profile dist -p va-sim --example percpu_calls`, then `valgrind --tool=callgrind
//! --toggle-collect='*alloc_all*' target/dist/examples/percpu_calls test runs`, or `*free_all*`. Workloads: `test`,
//! `holes` and `small`, which `vmlab bench percpu` calls pcpu_alloc_test, misaligned_holes and 16b_1M. Engines: `ours`,
//! `runs`, `scan` and `linux612`.

use va_base::{HeapMachine, Va};
use va_percpu::config::{Linux612, Runs, Scan, Standard as Slabs};
use va_percpu::{Config, Geometry, Offset, PercpuSpace, Request, Sizes};
use va_sim::op::Rng;
use va_sim::percpu::Numbers;

type Space<C> = PercpuSpace<HeapMachine<parking_lot::RawMutex>, Numbers, C>;

/// Allocates the requests, one after the other.
#[inline(never)]
fn alloc_all<C: Config>(space: &Space<C>, requests: &[(usize, usize)], objects: &mut Vec<Offset>) {
    for &(size, align) in requests {
        objects.extend(space.alloc(&Request::new(size, align)));
        if space.is_balance_due() {
            space.balance();
        }
    }
}

#[inline(never)]
fn free_all<C: Config>(space: &Space<C>, objects: &[Offset]) -> usize {
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
    let space =
        Space::<C>::new(geometry, HeapMachine::new(4), Numbers::new(0xffff_e8fe_ffe0_0000, -(1 << 21)))?;
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
    alloc_all(&space, &requests, &mut objects);
    let freed = free_all(&space, &objects);
    println!("{workload}: {} requested, {} allocated, {freed} freed", requests.len(), objects.len());
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
