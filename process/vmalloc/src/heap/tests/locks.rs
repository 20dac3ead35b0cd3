//! Tests of the locks that a thread holds during a system call.

use super::*;
use crate::heap::tests_cached::wait_until;
use std::sync::{Arc, OnceLock, Weak};
use vmalloc_os::lock::is_awaited;

/// The calls whose time grows with their number of pages.
const LONG: [Call; 5] = [Call::Resident, Call::Discard, Call::Move, Call::Remap, Call::Renew];

impl Heap<Shim> {
    /// Returns true if this thread holds a lock that others need for a cached pair, or for a miss.
    fn has_lock(&self) -> bool {
        self.zones().any(|zone| self.zone_at(zone).central.is_mine())
            || self.magazines.iter().any(|magazine| magazine.lock().is_mine())
            || self.host.is_mine()
    }

    /// Returns true if another thread waits for one of the locks of moves, and this thread holds it.
    fn is_awaited(&self) -> bool {
        let mut locks = self.refills.iter().map(|refill| &refill.0).chain([&self.purge]);
        locks.any(|lock| lock.is_mine() && is_awaited(lock))
            || self.hidden.is_mine() && is_awaited(&self.hidden)
    }
}

/// Makes a heap, and a watch that is called before each of the long calls.
fn watched(plan: Plan, watch: impl Fn(&Heap<Shim>, Call) + Send + Sync + 'static) -> Arc<Owned<Shim>> {
    let shim = Shim::default();
    shim.on_cpu(0);
    let heap = Arc::new(Owned::new(shim.clone(), plan).unwrap());
    vmalloc_os::fork::unregister(NonNull::from(&**heap));
    let seen: Weak<Owned<Shim>> = Arc::downgrade(&heap);
    shim.watch(move |call| {
        if LONG.contains(&call)
            && let Some(heap) = seen.upgrade()
        {
            watch(&heap, call);
        }
    });
    heap
}

fn plan(cache_bytes_max: usize) -> Plan {
    Plan {
        arena_bytes_max: 1 << 32,
        cache_bytes_max,
        huge_pages: HugePages::Auto,
        decay: Some(std::time::Duration::from_secs(16)),
        background_thread: false,
        ..PLAN
    }
}

/// Allocates, resizes and frees at random. At times the program changes a mapping, and a system call fails.
fn work(heap: &Heap<Shim>, steps: u64) {
    let (shim, mut state, mut areas) = (heap.host.os(), 5u64, [0; 24]);
    // An error after which mappings move again.
    shim.fail_with(Errno(libc::EINVAL));
    for step in 0..steps {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let bytes = 1 + (state >> 33) as usize % [40 * PAGE_BYTES, 6 * MIB][usize::from(step % 4 == 0)];
        let fill = if state >> 63 == 0 { Fill::Any } else { Fill::Zero };
        let failed = LONG[(state >> 40) as usize % LONG.len()];
        shim.fail_some(failed, 0, if step % 8 == 0 { 4 } else { 0 });
        match &mut areas[(state >> 20) as usize % 24] {
            place @ 0 => *place = heap.alloc(layout(bytes, 1), fill).unwrap().addr().get(),
            at if state >> 62 == 0 => {
                // SAFETY: this test's own area, to which no reference exists.
                unsafe { heap.free(core::mem::take(at)) }.unwrap();
            }
            at => {
                if state >> 61 == 3 {
                    heap.renew_at_free(*at, 1);
                }
                // SAFETY: as before.
                *at = unsafe { heap.resize(*at, layout(bytes, 1), fill) }.unwrap().addr().get();
            }
        }
    }
}

/// Lets the mapping of an area move, as where pages cannot. Then the area shrinks and is freed.
fn remap(heap: &Heap<Shim>) {
    let shim = heap.host.os();
    shim.allow();
    shim.fail(Call::Move, 0);
    let at = heap.alloc(layout(3 * MIB, 1), Fill::Any).unwrap().addr().get();
    let _wall = heap.alloc(layout(MIB, 1), Fill::Any).unwrap();
    let at = [40 * MIB, 20 * MIB].into_iter().fold(at, |at, bytes| {
        // SAFETY: this test's own area, to which no reference exists.
        unsafe { heap.resize(at, layout(bytes, 1), Fill::Any) }.unwrap().addr().get()
    });
    // SAFETY: as before.
    unsafe { heap.free(at) }.unwrap();
}

#[test]
fn no_lock_of_a_pair_or_a_miss_is_held_in_a_call_that_moves_releases_or_counts_pages() {
    for (cache_bytes_max, guards, zero_on_free) in
        [(64 * MIB, false, false), (64 * MIB, false, true), (0, false, false), (8 * MIB, true, false)]
    {
        let held = Arc::new([const { AtomicBool::new(false) }; LONG.len()]);
        let seen = Arc::clone(&held);
        let plan = Plan { guards, zero_on_free, ..plan(cache_bytes_max) };
        let heap = watched(plan, move |heap, call| {
            if heap.has_lock() {
                let at = LONG.iter().position(|&long| long == call).unwrap();
                seen[at].store(true, Ordering::Relaxed);
            }
        });
        work(&heap, 3000);
        // What is above the first ones may be free.
        (0..4).for_each(|_| remap(&heap));
        heap.trim();
        let held = LONG.iter().zip(held.iter()).filter(|(_, held)| held.load(Ordering::Relaxed));
        assert_eq!(held.map(|(call, _)| call).collect::<Vec<_>>(), Vec::<&Call>::new(), "{plan:?}");
        let shim = heap.host.os();
        let made = LONG.map(|call| shim.calls(call) > 0);
        assert!(guards || cache_bytes_max == 0 || made == [true; LONG.len()], "{plan:?}: {made:?}");
        assert_eq!(heap.validate(), Ok(()));
    }
}

/// A thread that works during a call of another one.
#[derive(Default)]
struct Other {
    /// The thread whose calls are watched; `None` for any.
    armed_by: std::sync::Mutex<Option<std::thread::ThreadId>>,
    begun: AtomicBool,
    /// True if it ended during the call.
    ended: AtomicBool,
    thread: std::sync::Mutex<Option<std::thread::JoinHandle<Result<usize, AllocError>>>>,
}

/// Makes a heap whose first refill lets another thread allocate `bytes` during its call, until that thread ends or
/// holds `purge`.
fn refilled_beside(plan: Plan, bytes: usize) -> (Arc<Owned<Shim>>, Arc<Other>) {
    let (other, place) = (Arc::new(Other::default()), Arc::new(OnceLock::new()));
    let (seen, of): (_, Arc<OnceLock<Weak<Owned<Shim>>>>) = (Arc::clone(&other), Arc::clone(&place));
    let heap = watched(plan, move |heap, call| {
        if call != Call::Resident || !heap.refills.iter().any(|refill| refill.0.is_mine()) {
            return;
        }
        if seen.begun.swap(true, Ordering::Relaxed) {
            return;
        }
        let theirs = of.get().and_then(Weak::upgrade).unwrap();
        let alloc = move || theirs.alloc(layout(bytes, 1), Fill::Any).map(|area| area.addr().get());
        let thread = std::thread::spawn(alloc);
        assert!(wait_until(|| thread.is_finished() || heap.purge.is_locked()));
        seen.ended.store(thread.is_finished(), Ordering::Relaxed);
        *seen.thread.lock().unwrap() = Some(thread);
    });
    place.set(Arc::downgrade(&heap)).unwrap();
    (heap, other)
}

impl Other {
    /// Joins the thread. Returns whether it ended during the call, and its result.
    fn end(&self) -> (bool, Result<usize, AllocError>) {
        let thread = self.thread.lock().unwrap().take().expect("a refill was under way");
        (self.ended.load(Ordering::Relaxed), thread.join().unwrap())
    }
}

#[test]
fn a_miss_does_not_wait_for_the_calls_of_another() {
    let (heap, other) = refilled_beside(plan(256 * MIB), 12 * MIB);
    let areas: Vec<_> =
        (0..40).map(|_| heap.alloc(layout(2 * MIB, 1), Fill::Any).unwrap().addr().get()).collect();
    // Every other one, so that no two merge.
    areas.iter().step_by(2).for_each(|&at| {
        Model::mark(at, 2 * MIB, 1);
        heap.free_at(at);
    });
    let before = heap.stats();
    heap.alloc(layout(10 * MIB, 1), Fill::Any).unwrap();
    let (ended, area) = other.end();
    assert!(ended && area.is_ok(), "{area:?}");
    let stats = heap.stats();
    let moved = stats.refilled_bytes + stats.purged_bytes - before.purged_bytes;
    assert_eq!((moved, heap.validate()), (22 << 20, Ok(())), "both refilled");
}

#[test]
fn a_request_that_would_fail_waits_for_the_addresses_that_a_refill_has() {
    let (heap, other) = refilled_beside(Plan { arena_bytes_max: 64 * MIB, ..plan(256 * MIB) }, 2 * MIB);
    let huge = |at: usize| heap.arena.zone_of((at / PAGE_BYTES) as u64) == HUGE;
    let full = core::iter::from_fn(|| heap.alloc(layout(2 * MIB, 2 * MIB), Fill::Any).ok());
    let mut areas: Vec<_> = full.map(|area| area.addr().get()).collect();
    areas.retain(|&at| huge(at));
    areas.sort_unstable();
    // Six MiB in one fragment are clean, and as much in three fragments dirty.
    areas[..3].iter().for_each(|&at| heap.free_at(at));
    heap.release_all();
    [5, 7, 9].iter().for_each(|&nth| heap.free_at(areas[nth]));
    heap.alloc(layout(6 * MIB, 1), Fill::Any).unwrap();
    let (ended, area) = other.end();
    assert!(!ended && area.is_ok(), "{area:?}");
    assert_eq!(heap.validate(), Ok(()));
}

/// Makes a heap with guards, and a watch on the calls of the thread that armed it. The watch acts before a guard is
/// removed or a run is hidden: then freed runs are in no list.
fn in_transit() -> (Arc<Owned<Shim>>, Arc<Other>) {
    let (other, place) = (Arc::new(Other::default()), Arc::new(OnceLock::new()));
    let (seen, of): (_, Arc<OnceLock<Weak<Owned<Shim>>>>) = (Arc::clone(&other), Arc::clone(&place));
    let shim = Shim::default();
    shim.on_cpu(0);
    let plan = Plan { arena_bytes_max: 32 * MIB, guards: true, ..plan(64 * MIB) };
    let heap = Arc::new(Owned::new(shim.clone(), plan).unwrap());
    vmalloc_os::fork::unregister(NonNull::from(&**heap));
    shim.watch(move |call| {
        let moves = [Call::Unguard, Call::Commit, Call::Advise].contains(&call);
        let armed = *seen.armed_by.lock().unwrap() == Some(std::thread::current().id());
        if !moves || !armed || seen.begun.swap(true, Ordering::Relaxed) {
            return;
        }
        let heap = of.get().and_then(Weak::upgrade).unwrap();
        let theirs = Arc::clone(&heap);
        // More than fits anywhere but in the runs in transit.
        let alloc = move || theirs.alloc(layout(1400 << 10, 1), Fill::Any).map(|area| area.addr().get());
        let thread = std::thread::spawn(alloc);
        assert!(wait_until(|| thread.is_finished() || heap.is_awaited()));
        seen.ended.store(thread.is_finished(), Ordering::Relaxed);
        *seen.thread.lock().unwrap() = Some(thread);
    });
    place.set(Arc::downgrade(&heap)).unwrap();
    (heap, other)
}

#[test]
fn a_request_that_would_fail_waits_for_items_between_a_magazine_and_a_zone() {
    // The areas: one to be in transit, a small one, and others that fill the arena.
    type Move = fn(&Heap<Shim>, &[usize]);
    let cached: Move = |heap, areas| heap.free_at(areas[0]);
    let moves: [(&str, Move, Move); 7] = [
        ("a miss", cached, |heap, _| heap.drain_for(SMALL)),
        ("a free", cached, |heap, areas| heap.free_at(areas[1])),
        ("the thread", cached, |heap, _| (0..8).for_each(|_| _ = heap.turn())),
        ("a call that reads the clock", cached, |heap, _| {
            for _ in 0..8 {
                heap.host.os().pass(std::time::Duration::from_secs(1));
                heap.pass_time();
            }
        }),
        ("an answer of the system", cached, |heap, _| {
            heap.host.os().set_available(0);
            heap.asked.store(u64::MAX, Ordering::Relaxed);
            heap.look_around();
        }),
        (
            "a fork",
            |heap, areas| {
                // It drains magazines if more than a megabyte is cached elsewhere.
                [3, 5].iter().for_each(|&nth| heap.free_at(areas[nth]));
                heap.drain_all();
                heap.free_at(areas[0]);
            },
            |heap, _| heap.hide(),
        ),
        (
            "the end of a fork",
            |heap, areas| {
                heap.free_at(areas[0]);
                heap.drain_all();
                heap.hide();
            },
            |heap, _| heap.show(),
        ),
    ];
    for (name, prepare, begin) in moves {
        let (heap, other) = in_transit();
        let sizes = [1500 << 10, 80 << 10].into_iter().chain(core::iter::repeat(MIB));
        let full = sizes.map_while(|bytes| heap.alloc(layout(bytes, 1), Fill::Any).ok());
        let areas: Vec<_> = full.map(|area| area.addr().get()).collect();
        prepare(&heap, &areas);
        *other.armed_by.lock().unwrap() = Some(std::thread::current().id());
        begin(&heap, &areas);
        assert!(other.begun.load(Ordering::Relaxed), "{name}");
        let (ended, area) = other.end();
        assert!(!ended && area.is_ok(), "{name}: {area:?}");
        heap.show();
        assert_eq!(heap.validate(), Ok(()));
    }
}

#[test]
fn no_move_of_runs_begins_while_a_request_waits_for_those_that_move() {
    let heap = watched(plan(64 * MIB), |_, _| ());
    let first = heap.begin_refill();
    assert!(first.is_some() && heap.begin_refill().is_some());
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| drop(heap.hold_settled()));
        assert!(wait_until(|| heap.is_awaited()));
        assert!(heap.begin_refill().is_none(), "it overtook a request");
        drop(first);
        waits.join().unwrap();
    });
    assert!(heap.begin_refill().is_some());
    // A fork is such a request, and its end is one.
    heap.hold(false);
    assert!(heap.refills_closed.load(Ordering::Relaxed));
    // SAFETY: held above.
    unsafe { heap.release() };
    assert!(heap.begin_refill().is_some());
}

#[test]
fn a_child_of_a_handler_has_no_purge_or_refill_of_another_thread() {
    let heap = watched(plan(64 * MIB), |_, _| ());
    let at = heap.alloc(layout(MIB, 1), Fill::Any).unwrap().addr().get();
    let (held, end) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let locks = (heap.purge.lock(), heap.begin_refill(), heap.hidden.lock());
            held.wait();
            end.wait();
            drop(locks);
        });
        held.wait();
        // As a signal handler that interrupts this thread: its own lock stays held.
        let zone = heap.zone(SMALL);
        heap.hold(true);
        let left = heap.purge.is_left();
        // SAFETY: the child calls only a heap that no other thread uses, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: kills a child that waits for ever.
            unsafe { libc::alarm(20) };
            heap.forget(true);
        }
        // SAFETY: held above, by the thread that called fork; the child has a copy of it.
        unsafe { heap.release() };
        drop(zone);
        if child == 0 {
            heap.free_at(at);
            heap.trim();
            let done = heap.release_addresses() && heap.hidden.try_lock().is_some();
            // SAFETY: exits the child without handlers of the parent.
            unsafe { libc::_exit(i32::from(!done)) };
        }
        let mut status = -1;
        // SAFETY: waits for the child of above.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert!(heap.purge.is_locked() && !heap.purge.is_left(), "the parent's thread has it still");
        end.wait();
        assert_eq!((left, waited, status), (true, child, 0));
    });
    assert_eq!((heap.begin_refill().is_some(), heap.validate()), (true, Ok(())));
}

#[test]
fn a_release_ends_though_others_free_as_much_as_it_releases() {
    let areas = Arc::new(std::sync::Mutex::new(Vec::new()));
    let more: Arc<std::sync::Mutex<Vec<usize>>> = Arc::clone(&areas);
    let heap = watched(plan(256 * MIB), move |heap, call| {
        if call == Call::Discard
            && let Some(at) = more.lock().unwrap().pop()
        {
            heap.free_at(at);
            heap.drain_all();
        }
    });
    let alloc = || heap.alloc(layout(2 * MIB, 2 * MIB), Fill::Any).unwrap().addr().get();
    *areas.lock().unwrap() = (0..40).map(|_| alloc()).collect();
    [alloc(), alloc()].into_iter().for_each(|at| heap.free_at(at));
    let pages = heap.release_all();
    let left = areas.lock().unwrap().len();
    assert!(left > 30, "{pages} pages, {left} areas");
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn each_lock_of_a_heap_is_known_to_its_holder() {
    let shim = Shim::default();
    let heap = heap(&shim, 64 << 30, 64 * MIB);
    shim.on_cpu(1);
    heap.leave_node_0();
    let mut locks: Vec<&dyn Fork> = vec![&heap.purge, &heap.refills[0].0, &heap.hidden];
    heap.magazines.iter().for_each(|magazine| locks.push(magazine.lock()));
    for lock in locks {
        assert!(!heap.is_mine());
        lock.hold(false);
        assert!(heap.is_mine());
        // SAFETY: held above.
        unsafe { lock.release() };
    }
    assert_eq!(heap.zones().count(), 4);
    for zone in heap.zones() {
        let _zone = heap.zone(zone);
        assert!(heap.is_mine() && !heap.is_free());
    }
    assert!(!heap.is_mine() && heap.is_free());
}

#[test]
fn wk1_what_a_purge_has_detached_is_cached_until_it_is_clean() {
    let seen = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let counts = Arc::clone(&seen);
    let heap = watched(PLAN, move |heap, call| {
        if call == Call::Discard {
            counts[usize::from(heap.has_cached())].fetch_add(1, Ordering::Relaxed);
        }
    });
    let at = heap.alloc(layout(4 * MIB, 1), Fill::Any).unwrap().addr().get();
    // SAFETY: this test's own area, to which no reference exists.
    unsafe { heap.free(at) }.unwrap();
    heap.release_all();
    assert_eq!(seen.each_ref().map(|count| count.load(Ordering::Relaxed)), [0, 1]);
    assert!(!heap.has_cached());
}
