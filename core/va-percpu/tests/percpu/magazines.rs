//! Magazines: random operations beside a reference model, bounds, counts, shortage and threads.

use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use va_base::{LockClass, Va};
use va_percpu::config::{Linux612, Standard};
use va_percpu::{
    AllocError, Context, FreeError, Geometry, MAGAZINE_BYTES_MAX, MAGAZINE_BYTES_MIN, Magazine, Offset,
    PercpuSpace, Request, Sizes,
};
use va_sim::effort::some;
use va_sim::machine::{SimMachine, lockings};
use va_sim::op::Rng;
use va_sim::percpu::magazines::{MagazineOp, run};
use va_sim::percpu::{SIZES, SimChunks};

const BASE: Va = Va::new(0x10_0000_0000);

type Space<'m> = PercpuSpace<&'m SimMachine, SimChunks, Standard>;

fn space_of(machine: &SimMachine, sizes: Sizes) -> Space<'_> {
    PercpuSpace::new(Geometry::new(sizes, BASE).unwrap(), machine, SimChunks::with_contents()).unwrap()
}

fn op() -> impl Strategy<Value = MagazineOp> {
    let size = prop_oneof![4 => Just(16u32), 4 => 1..=70u32, 2 => 71..=300u32, 1 => 301..=5000u32];
    let align = prop_oneof![4 => Just(8u32), 2 => (0..=9u32).prop_map(|shift| 1 << shift), 1 => Just(3)];
    let owner = 0..=3u8;
    prop_oneof![
        10 => (owner.clone(), size, align, prop::bool::weighted(0.2), 1..=90u8)
            .prop_map(|(owner, size, align, atomic, count)| MagazineOp::Alloc { owner, size, align, atomic, count }),
        9 => (owner.clone(), any::<u32>(), 1..=90u8)
            .prop_map(|(owner, which, count)| MagazineOp::Free { owner, which, count }),
        2 => (owner.clone(), any::<u32>(), 0..=70u32)
            .prop_map(|(owner, which, behind)| MagazineOp::Wrong { owner, which, behind }),
        2 => any::<u32>().prop_map(MagazineOp::Place),
        1 => owner.clone().prop_map(MagazineOp::Drain),
        1 => owner.prop_map(MagazineOp::End),
        2 => Just(MagazineOp::Tick),
        1 => Just(MagazineOp::Balance),
        1 => prop_oneof![0..=6u8, Just(255)].prop_map(MagazineOp::FailAfter),
        1 => prop_oneof![0..=3u8, Just(255)].prop_map(MagazineOp::TablesAfter),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: some(60), ..ProptestConfig::default() })]

    /// MC1 to MC4 hold after every operation, beside all others.
    #[test]
    fn magazines_hold(ops in prop::collection::vec(op(), 1..120)) {
        run::<Standard>(ops.into_iter(), 1);
    }

    /// A policy without caches behaves as the space.
    #[test]
    fn magazines_of_linux_hold(ops in prop::collection::vec(op(), 1..60)) {
        run::<Linux612>(ops.into_iter(), 1);
    }
}

fn alloc(magazine: &mut Magazine<'_, &SimMachine, SimChunks, Standard>, size: usize) -> Offset {
    magazine.alloc(&Request::new(size, 8)).unwrap()
}

/// The locks of the space that this thread took.
fn shared_locks() -> u64 {
    let taken = lockings();
    taken[LockClass::Chunks as usize] + taken[LockClass::Grow as usize]
}

#[test]
fn pairs_take_no_shared_lock_and_batches_take_one() {
    let machine = SimMachine::new(2);
    let space = space_of(&machine, SIZES);
    let mut magazine = space.magazine(0).unwrap();
    let warm = alloc(&mut magazine, 16);
    magazine.free(warm).unwrap();
    let before = shared_locks();
    for _ in 0..10_000 {
        let object = alloc(&mut magazine, 16);
        magazine.free(object).unwrap();
    }
    assert_eq!(shared_locks(), before);
    // Once the refills have grown, a caller that only allocates or only frees takes a lock for about 128 calls.
    let mut objects = Vec::new();
    for round in 0..6 {
        let before = shared_locks();
        objects.extend((0..1280).map(|_| alloc(&mut magazine, 8)));
        let between = shared_locks();
        objects.drain(..).for_each(|object| magazine.free(object).unwrap());
        let (refills, flushes) = (between - before, shared_locks() - between);
        // A refill from a new slab takes more.
        assert!(round < 3 || refills <= 40, "{refills} locks for 1,280 allocs");
        assert!(flushes <= 12, "{flushes} locks for 1,280 frees");
    }
    space.validate().unwrap();
}

#[test]
fn an_object_of_another_magazine_is_reused_where_it_was_freed() {
    let machine = SimMachine::new(2);
    let space = space_of(&machine, SIZES);
    let (mut one, mut other) = (space.magazine(0).unwrap(), space.magazine(1).unwrap());
    let object = alloc(&mut one, 32);
    other.free(object).unwrap();
    let mut held = 0;
    space.each_magazine(&mut |of| held += u64::from(of.cpu == 1) * of.cached_bytes);
    assert_eq!(held, 32);
    assert_eq!(alloc(&mut other, 32), object);
    space.validate().unwrap();
}

#[test]
fn errors_are_those_of_the_space() {
    let machine = SimMachine::new(2);
    let space = space_of(&machine, SIZES);
    let mut magazine = space.magazine(0).unwrap();
    let error = |of: Result<Offset, AllocError>| of.unwrap_err();
    assert_eq!(error(magazine.alloc(&Request::new(0, 8))), AllocError::BadSize { bytes: 0 });
    assert_eq!(error(magazine.alloc(&Request::new(8, 24))), AllocError::BadAlign { align: 24 });
    let object = alloc(&mut magazine, 24);
    let inside = Offset::new(object.get() + 8);
    let wrong = FreeError::NoObject { offset: inside, inside: Some(object) };
    assert_eq!(magazine.free(inside).unwrap_err(), wrong);
    magazine.free(object).unwrap();
    // The object is in a magazine: to a caller it is free, and so is what is inside.
    assert_eq!(magazine.free(object).unwrap_err(), FreeError::NoObject { offset: object, inside: None });
    assert_eq!(space.free(object).unwrap_err(), FreeError::NoObject { offset: object, inside: None });
    assert_eq!(space.free(inside).unwrap_err(), FreeError::NoObject { offset: inside, inside: None });
    assert_eq!(
        magazine.free(Offset::new(1 << 50)).unwrap_err(),
        FreeError::NoChunk { offset: Offset::new(1 << 50) }
    );
}

#[test]
fn mc3_the_bound_falls_with_the_number_of_units() {
    for (units, bytes) in [
        (1, MAGAZINE_BYTES_MAX),
        (8, MAGAZINE_BYTES_MAX),
        (16, 16 << 10),
        (64, 4096),
        (128, MAGAZINE_BYTES_MIN),
        (4096, MAGAZINE_BYTES_MIN),
    ] {
        let machine = SimMachine::new(2);
        let space = space_of(&machine, Sizes { units, ..SIZES });
        assert_eq!(space.magazine_bytes(), bytes, "{units}");
        let mut magazine = space.magazine(0).unwrap();
        let objects: Vec<Offset> = (0..3000).map(|nth| alloc(&mut magazine, 8 + nth % 249)).collect();
        let mut most = 0;
        for object in objects {
            magazine.free(object).unwrap();
            most = most.max(space.stats().cached_bytes);
        }
        space.validate().unwrap();
        // The share is used, not only kept.
        assert!(most <= bytes.into() && most >= u64::from(bytes) * 3 / 4, "{most} of {bytes}");
    }
}

#[test]
fn objects_in_other_magazines_serve_a_request_that_would_fail() {
    for context in [Context::Sleeping, Context::Atomic] {
        let machine = SimMachine::new(2);
        let space = space_of(&machine, SIZES);
        let (mut one, mut other) = (space.magazine(0).unwrap(), space.magazine(1).unwrap());
        space.backend().fail_after(0);
        let mut objects = Vec::new();
        while let Ok(object) = one.alloc(&Request::new(256, 8)) {
            objects.push(object);
        }
        let count = objects.len();
        assert!(count > 50, "{count}");
        objects.drain(..).for_each(|object| one.free(object).unwrap());
        assert!(space.stats().cached_bytes > 4096);
        let request = Request::new(256, 8).context(context);
        objects.extend((0..count).map(|_| other.alloc(&request).unwrap()));
        assert!(other.alloc(&request).is_err());
        space.validate().unwrap();
    }
}

#[test]
fn a_balance_releases_the_chunks_of_drained_magazines() {
    let machine = SimMachine::new(2);
    let space = space_of(&machine, SIZES);
    let mut magazine = space.magazine(0).unwrap();
    let mut tables = Vec::new();
    for _ in 0..6 {
        let objects: Vec<Offset> = (0..20_000).map(|_| alloc(&mut magazine, 16)).collect();
        objects.into_iter().for_each(|object| magazine.free(object).unwrap());
        assert!(space.drain_cpu(1).objects == 0 && space.stats().cached_bytes > 0);
        let drained = space.drain_cpu(0);
        assert_eq!((drained.busy, space.stats().cached_bytes), (0, 0));
        space.balance();
        // The first, a free one, and one with the slab that its class retains.
        assert!(space.stats().chunks <= 3, "{}", space.stats().chunks);
        space.validate().unwrap();
        tables.push(machine.tables());
    }
    // Later chunks use the tables of the destroyed ones; a span that was used in part first gets the rest of its
    // leaves.
    assert_eq!(tables[2], tables[5], "{tables:?}");
}

#[test]
fn memory_of_magazines_is_used_again_and_freed_with_the_space() {
    let machine = SimMachine::new(2);
    {
        let space = space_of(&machine, SIZES);
        for _ in 0..10 {
            let mut magazine = space.magazine(0).unwrap();
            let object = alloc(&mut magazine, 16);
            magazine.free(object).unwrap();
        }
        let mut cells = 0;
        space.each_magazine(&mut |_| cells += 1);
        assert_eq!((cells, space.stats().cached_bytes), (1, 0));
    }
    assert_eq!(machine.tables(), 0);
}

#[test]
fn zeroing_is_counted_wherever_it_is_done() {
    let machine = SimMachine::new(2);
    let space = space_of(&machine, SIZES);
    let mut magazine = space.magazine(0).unwrap();
    for _ in 0..1000 {
        let object = alloc(&mut magazine, 16);
        magazine.free(object).unwrap();
    }
    let stats = space.stats();
    // Once for each pair, and what the first refill took.
    assert!((16_000 - 16 * 128..=16_000 + 16 * 8).contains(&stats.zeroed_bytes), "{}", stats.zeroed_bytes);
    assert_eq!((stats.allocs, stats.frees, stats.bytes), (1000, 1000, 16_000));
}

/// Threads allocate and free through magazines of their own, free objects of each other, and are drained meanwhile.
#[test]
fn threads_with_magazines_share_a_space() {
    const THREADS: u64 = 4;
    for seed in 1..4u64 {
        println!("seed {seed}");
        let machine = SimMachine::new(THREADS as u32);
        let space: PercpuSpace<&SimMachine, SimChunks, Standard> =
            PercpuSpace::new(Geometry::new(SIZES, BASE).unwrap(), &machine, SimChunks::default()).unwrap();
        let owners = parking_lot::Mutex::new(std::collections::BTreeMap::<u64, u64>::new());
        let passed = parking_lot::Mutex::new(Vec::<Offset>::new());
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (space, owners, passed, done) = (&space, &owners, &passed, &done);
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                while !done.load(Ordering::Relaxed) {
                    match rng.below(4) {
                        0 => drop(space.drain_cpu(rng.below(THREADS) as u32)),
                        1 => drop(space.drain_magazines()),
                        _ => drop(space.tick()),
                    }
                    std::thread::yield_now();
                }
            });
            let work = move |nth: u64| {
                let mut magazine = space.magazine(nth as u32).unwrap();
                let mut rng = Rng::new(seed * 31 + nth);
                let mut own: Vec<Offset> = Vec::new();
                for _ in 0..20_000 {
                    if rng.below(200) == 0 {
                        space.backend().fail_after(if rng.below(3) == 0 { 2 } else { u64::MAX });
                    }
                    if rng.below(100) < 52 && own.len() < 400 {
                        let size = [8, 16, 16, 64, 200, 900][rng.below(6) as usize];
                        let context = if rng.below(4) == 0 { Context::Atomic } else { Context::Sleeping };
                        if let Ok(object) = magazine.alloc(&Request::new(size, 8).context(context)) {
                            let (at, end) = (object.at(BASE).get(), object.at(BASE).get() + size as u64);
                            let mut owners = owners.lock();
                            let before = owners.range(..end).next_back();
                            assert!(before.is_none_or(|(_, end)| *end <= at), "{object} was allocated twice");
                            owners.insert(at, end);
                            own.push(object);
                        }
                    } else if !own.is_empty() {
                        let object = own.swap_remove(rng.below(own.len() as u64) as usize);
                        match rng.below(3) {
                            0 => passed.lock().push(object),
                            kind => {
                                assert!(owners.lock().remove(&object.at(BASE).get()).is_some());
                                let freed =
                                    if kind == 1 { magazine.free(object) } else { space.free(object) };
                                freed.unwrap();
                            }
                        }
                    }
                    if rng.below(3) == 0
                        && let Some(object) = passed.lock().pop()
                    {
                        own.push(object);
                    }
                }
                for object in own {
                    assert!(owners.lock().remove(&object.at(BASE).get()).is_some());
                    magazine.free(object).unwrap();
                }
            };
            let threads: Vec<_> = (0..THREADS).map(|nth| scope.spawn(move || work(nth))).collect();
            let ended: Vec<_> = threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            done.store(true, Ordering::Relaxed);
            ended.into_iter().for_each(|thread| thread.unwrap());
        });
        passed.into_inner().into_iter().for_each(|object| space.free(object).unwrap());
        space.validate().unwrap();
        let stats = space.stats();
        assert_eq!((stats.live, stats.cached_bytes), (0, 0));
    }
}

/// A caller that cannot wait depends on populated pages, which the balance supplies when a refill leaves few of them.
#[test]
fn callers_that_cannot_wait_are_served_as_long_as_the_balance_runs() {
    let machine = SimMachine::new(2);
    // Linux's shape on four CPUs.
    let (unit, units) = (256 << 10, 4);
    let parts = Sizes { fixed: 221_184, reserved: 8192, dynamic: 28_672, ..SIZES };
    let space = space_of(&machine, Sizes { unit, atom: 2 << 20, alloc: unit * units, units, ..parts });
    let mut magazine = space.magazine(0).unwrap();
    let first = magazine.alloc(&Request::new(16, 16)).unwrap();
    while space.is_balance_due() {
        space.balance();
    }
    let mut live = vec![first];
    for nth in 0..100_000 {
        let request = Request::new(16, 16).context(Context::Atomic);
        live.push(magazine.alloc(&request).unwrap_or_else(|error| panic!("{nth}: {error}")));
        while space.is_balance_due() {
            space.balance();
        }
    }
    space.validate().unwrap();
    live.into_iter().for_each(|object| magazine.free(object).unwrap());
}

/// Callers that cannot wait take batches, too: the tables for their objects are allocated ahead, by the balance.
#[test]
fn callers_that_cannot_wait_take_batches_and_put_none_back() {
    let machine = SimMachine::new(2);
    let (unit, units) = (256 << 10, 4);
    let parts = Sizes { fixed: 221_184, reserved: 8192, dynamic: 28_672, ..SIZES };
    let space = space_of(&machine, Sizes { unit, atom: 2 << 20, alloc: unit * units, units, ..parts });
    let mut magazine = space.magazine(0).unwrap();
    let request = Request::new(16, 16).context(Context::Atomic);
    let (mut live, mut locks, mut flushes) = (Vec::new(), 0, 0);
    for nth in 0..100_000 {
        let before = shared_locks();
        live.push(magazine.alloc(&request).unwrap_or_else(|error| panic!("{nth}: {error}")));
        locks += shared_locks() - before;
        while space.is_balance_due() {
            space.balance();
        }
        if nth == 1000 {
            (locks, flushes) = (0, space.stats().cache_flushes);
        }
    }
    // One for each refill of 128.
    assert!(locks <= 800, "{locks} locks for 99,000 allocs");
    assert_eq!(flushes, space.stats().cache_flushes);
    let held = space.stats().cached_bytes;
    live.into_iter().for_each(|object| magazine.free(object).unwrap());
    assert!(space.stats().cached_bytes > held);
    space.validate().unwrap();
}

/// The dynamic section of the first chunk may begin in a page of static data, or of the reserved section.
#[test]
fn the_balance_allocates_tables_wherever_the_dynamic_section_begins() {
    let machine = SimMachine::new(1);
    for (fixed, reserved) in [(0, 0), (4096, 0), (5000, 0), (5000, 2052), (5000, 8192)] {
        let space = space_of(&machine, Sizes { fixed, reserved, ..SIZES });
        let mut magazine = space.magazine(0).unwrap();
        let request = Request::new(32, 8).context(Context::Atomic);
        for _ in 0..50 {
            let object = magazine.alloc(&request).unwrap();
            magazine.free(object).unwrap();
            while space.is_balance_due() {
                space.balance();
            }
        }
        let (misses, woken) = (space.stats().cache_misses, space.backend().woken());
        assert!(misses <= 2 && woken <= 2, "{misses} misses, woken {woken} times with {fixed}, {reserved}");
    }
}

/// Others have the rest of these pages. Inside an object, no object begins.
#[test]
fn tables_are_allocated_ahead_for_the_first_page_of_an_object_and_the_last() {
    let machine = SimMachine::new(1);
    let space = space_of(&machine, SIZES);
    let _magazine = space.magazine(0).unwrap();
    // In a chunk of its own; the first object there also needs a span.
    let pages = |count: usize| {
        let before = machine.tables();
        space.alloc(&Request::new(count << 12, 4096)).unwrap();
        machine.tables() - before
    };
    assert_eq!([6, 5, 5].map(pages), [3, 2, 2]);
    let stats = space.stats();
    assert_eq!((stats.chunks, stats.chunk_pages), (2, 16 + 6));
}

/// Without memory for tables an object is taken from the space and goes back there. Once there is some, the balance
/// allocates them, also for pages that were populated long before.
#[test]
fn callers_that_cannot_wait_do_without_tables_until_there_is_memory() {
    let machine = SimMachine::new(2);
    let space = space_of(&machine, SIZES);
    let far = space.alloc(&Request::new(4000, 8)).unwrap();
    // Its slab stays.
    let other = space.alloc(&Request::new(64, 8)).unwrap();
    let mut magazine = space.magazine(0).unwrap();
    machine.fail_after(u64::MAX, 0);
    let request = Request::new(64, 8).context(Context::Atomic);
    let pair = |magazine: &mut Magazine<'_, &SimMachine, SimChunks, Standard>| {
        let before = shared_locks();
        let object = magazine.alloc(&request).unwrap();
        magazine.free(object).unwrap();
        let locks = shared_locks() - before;
        while space.is_balance_due() {
            space.balance();
        }
        locks
    };
    let first = pair(&mut magazine);
    for _ in 0..100 {
        let locks = pair(&mut magazine);
        assert!(locks == 2 && locks < first, "{locks} locks, {first} the first time");
    }
    assert_eq!(space.stats().cached_bytes, 0);
    machine.fail_after(u64::MAX, u64::MAX);
    // The tables of its pages are the first that the machine supplies again.
    let near = space.alloc(&Request::new(20_000, 8)).unwrap();
    while space.is_balance_due() {
        space.balance();
    }
    let _warm = pair(&mut magazine);
    assert_eq!(pair(&mut magazine), 0);
    space.validate().unwrap();
    [far, near, other].into_iter().for_each(|object| magazine.free(object).unwrap());
}

#[test]
fn a_refill_calls_for_the_balance_below_two_spare_pages() {
    let machine = SimMachine::new(1);
    let space = space_of(&machine, SIZES);
    let mut magazine = space.magazine(0).unwrap();
    let (mut refills, mut seen) = (0, [0; 8]);
    for _ in 0..8 * 4096 / 16 {
        _ = alloc(&mut magazine, 16);
        let stats = space.stats();
        if stats.cache_refills > refills {
            refills = stats.cache_refills;
            seen[stats.spare_pages.clamp(0, 7) as usize] += 1;
            assert_eq!(space.is_balance_due(), stats.spare_pages < 2, "{} spare pages", stats.spare_pages);
            space.balance();
        }
    }
    assert!(seen[1] > 0 && seen[2] > 0, "{seen:?}");
    space.validate().unwrap();
}

#[test]
fn sizes_of_objects_are_counted_in_bytes_wherever_they_come_from() {
    let machine = SimMachine::new(1);
    let space = space_of(&machine, SIZES);
    let mut magazine = space.magazine(0).unwrap();
    let sizes = |space: &Space<'_>| (space.stats().size_min, space.stats().size_max);
    // 96 bytes are in no slab; 32 are.
    alloc(&mut magazine, 96);
    assert_eq!(sizes(&space), (96, 96));
    alloc(&mut magazine, 32);
    assert_eq!(sizes(&space), (32, 96));
    alloc(&mut magazine, 128);
    assert_eq!(sizes(&space), (32, 128));
}
