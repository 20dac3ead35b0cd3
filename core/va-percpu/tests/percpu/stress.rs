//! Many threads on one per-CPU space: no two threads get the same object, wrong frees are rejected, and every invariant
//! holds at the end. One thread runs the balance, step by step, while the others allocate and free; sometimes the
//! backend fails.
//!
//! A failure is printed with the seed; the interleaving depends on the scheduler.

use std::sync::atomic::{AtomicBool, Ordering};
use va_base::Va;
use va_percpu::config::{Linux612, Runs, Scan, Standard};
use va_percpu::{Config, Context, Geometry, Offset, PercpuSpace, Place, Progress, Request};
use va_sim::machine::SimMachine;
use va_sim::op::Rng;
use va_sim::percpu::{SIZES, SimChunks};

const BASE: Va = Va::new(1 << 40);
const THREADS: u64 = 4;
const CALLS: u64 = 6000;

/// An owner for each allocated word of 4 bytes, which detects a double allocation at once.
struct Owners(parking_lot::Mutex<std::collections::BTreeMap<u64, u64>>);

impl Owners {
    fn take(&self, at: u64, bytes: u64) {
        let mut owners = self.0.lock();
        let before = owners.range(..at + bytes).next_back();
        assert!(before.is_none_or(|(start, bytes)| start + bytes <= at), "{at:#x} was allocated twice");
        owners.insert(at, bytes);
    }

    fn release(&self, at: u64) {
        assert!(self.0.lock().remove(&at).is_some());
    }
}

/// Runs one thread. Returns the number of requests that succeeded.
fn live<C: Config>(space: &PercpuSpace<&SimMachine, SimChunks, C>, owners: &Owners, seed: u64) -> u64 {
    let mut rng = Rng::new(seed);
    let mut own: Vec<Offset> = Vec::new();
    let mut served = 0;
    for _ in 0..CALLS {
        match rng.below(200) {
            0 => space.backend().fail_after(rng.below(3)),
            1..30 => space.backend().fail_after(u64::MAX),
            _ => {}
        }
        if rng.below(100) < 55 && own.len() < 300 {
            let size = if rng.below(10) == 0 { 1 + rng.below(8000) } else { 1 + rng.below(80) } as usize;
            let shifts = if rng.below(4) == 0 { 13 } else { 6 };
            let align = 1 << rng.below(shifts);
            let context = if rng.below(4) == 0 { Context::Atomic } else { Context::Sleeping };
            let place = if rng.below(50) == 0 { Place::Reserved } else { Place::Anywhere };
            if let Ok(offset) = space.alloc(&Request::new(size, align).context(context).place(place)) {
                let at = offset.at(BASE).get();
                assert!(at.is_multiple_of(align as u64));
                owners.take(at, (size as u64).next_multiple_of(4));
                own.push(offset);
                served += 1;
            }
        } else if !own.is_empty() {
            let offset = own.swap_remove(rng.below(own.len() as u64) as usize);
            // No object begins one byte later.
            assert!(space.free(Offset::new(offset.get().wrapping_add(1))).is_err());
            owners.release(offset.at(BASE).get());
            space.free(offset).unwrap();
        }
    }
    for offset in own {
        owners.release(offset.at(BASE).get());
        space.free(offset).unwrap();
    }
    served
}

fn stress<C: Config>(seed: u64) {
    println!("seed {seed}");
    let machine = SimMachine::new(2);
    let geometry = Geometry::new(SIZES, BASE).unwrap();
    let space: PercpuSpace<&SimMachine, SimChunks, C> =
        PercpuSpace::new(geometry, &machine, SimChunks::default()).unwrap();
    let (owners, done) = (Owners(parking_lot::Mutex::default()), AtomicBool::new(false));
    let served: u64 = std::thread::scope(|scope| {
        let (space, owners, done) = (&space, &owners, &done);
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                if space.tick() == Progress::Done {
                    std::thread::yield_now();
                }
            }
        });
        let threads: Vec<_> =
            (0..THREADS).map(|nth| scope.spawn(move || live(space, owners, seed * 31 + nth))).collect();
        let served = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        done.store(true, Ordering::Relaxed);
        served
    });
    space.backend().fail_after(u64::MAX);
    space.balance();
    space.validate().unwrap();
    let stats = space.stats();
    assert_eq!((stats.live, stats.allocs, stats.frees), (0, served, served));
    let sizes = space.geometry().sizes();
    let own = u64::from(sizes.fixed + sizes.reserved + sizes.dynamic) / 4096;
    assert_eq!(stats.populated_pages, own + space.backend().populated() as u64);
    assert!(served > CALLS / 2, "{served} were served");
}

#[test]
fn threads_share_slabs_and_runs() {
    (1..4).for_each(stress::<Standard>);
}

#[test]
fn threads_share_exact_runs() {
    (1..4).for_each(stress::<Runs>);
}

#[test]
fn threads_share_hints() {
    stress::<Scan>(1);
    stress::<Linux612>(2);
}
