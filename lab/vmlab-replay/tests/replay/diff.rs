//! A trace for each cause, constructed to have it; and a comparison of the ledger with a whole space.

use std::collections::BTreeMap;
use va_base::{PAGE_SIZE, Request, Va, VaRange};
use va_sim::space_model::{Answer, Owner, SpaceModel};
use va_space::config::{Config, Linux69, OneLock52, Standard};
use va_space::{Purge, VmapSpace};
use vmlab_machine::{LabMachine, PlainLock, Work, kernel_extent};
use vmlab_replay::default_window;
use vmlab_replay::diff::cause::{CAUSES, Cause};
use vmlab_replay::diff::recording::{Area, Areas, Recording};
use vmlab_replay::diff::{Divergence, EndCheck, Options, cause_after, run};
use vmlab_replay::engine::Attempt;
use vmlab_replay::policy::Linux616;
use vmlab_replay::run_space::Policy;
use vmlab_trace::shipped::TRACES;
use vmlab_trace::{Event, Trace, decompress};

const P: u64 = PAGE_SIZE;
const BASE: u64 = 0x10_0000;

/// Returns the address of the nth page of the window.
fn at(page: u64) -> u64 {
    BASE + page * P
}

fn alloc(cpu: u16, page: u64, pages: u64, align: u64) -> String {
    attempt(cpu, at(page), pages, align, 0)
}

fn attempt(cpu: u16, start: u64, pages: u64, align: u64, failed: u8) -> String {
    let size = pages * P;
    format!(
        "x-1 [{cpu:03}] 1.000001: alloc_vmap_area: va_start: {start} size={size} align={align} vstart={BASE:#x} vend=0x10ffffff failed={failed}\n"
    )
}

fn free(page: u64) -> String {
    format!("x-1 [000] 1.000002: free_vmap_area_noflush: va_start={:#x} nr_lazy=2 nr_lazy_max=9\n", at(page))
}

fn purge(purged: u64) -> String {
    format!("x-1 [000] 1.000003: purge_vmap_area_lazy: start=0x0 end=0x0 num_purged={purged}\n")
}

fn mark(text: &str) -> String {
    format!("x-1 [000] 1.000004: tracing_mark_write: vmlab {text}\n")
}

fn options(cpus: u32) -> Options {
    Options { resync: true, cpus, differences_max: 100, kernel: Policy::Linux616 }
}

fn recorded(lines: &[String]) -> Recording {
    Recording::read(lines.concat().as_bytes())
}

fn areas(lines: &[(u64, u64, &str)]) -> Areas {
    let line = |&(page, pages, text): &(u64, u64, &str)| {
        format!("{:#018x}-{:#018x} {:7} {text}\n", at(page), at(page + pages), pages * P)
    };
    Areas::read(lines.iter().map(line).collect::<String>().as_bytes())
}

/// Returns the causes, in order, of a trace of two CPUs.
fn causes(policy: Policy, lines: &[String]) -> Vec<Cause> {
    causes_of(&recorded(lines), policy, options(2))
}

fn causes_of(recording: &Recording, policy: Policy, options: Options) -> Vec<Cause> {
    let report = run(recording, policy, options).unwrap();
    assert_eq!(report.divergences.len() as u64, report.columns.differ());
    report.divergences.iter().map(|divergence| divergence.cause).collect()
}

/// Returns events after which three pages of CPU 0 and two of CPU 1 are pooled, below a third area.
fn two_pooled() -> Vec<String> {
    vec![alloc(0, 0, 3, 1), alloc(1, 3, 2, 1), alloc(0, 5, 2, 1), free(0), free(3), purge(2)]
}

fn with(mut lines: Vec<String>, more: &[String]) -> Vec<String> {
    lines.extend_from_slice(more);
    lines
}

#[test]
fn kernel_pool() {
    let lines = with(two_pooled(), &[alloc(1, 3, 2, 1)]);
    assert_eq!(causes(Policy::OneLock52, &lines), [Cause::KernelPool]);
    assert_eq!(causes(Policy::Linux616, &lines), []);
    let report = run(&recorded(&lines), Policy::OneLock52, options(2)).unwrap();
    let Divergence { why, kernel, policy, cpu, size, .. } = &report.divergences[0];
    assert_eq!((*kernel, *policy, *cpu, *size), (Some(at(3)), Some(at(0)), 1, 2 * P));
    assert_eq!(why, "kernel took it from its node's pool (node 1, class 2 pages)");
}

#[test]
fn left_pooled() {
    let lines = with(two_pooled(), &[alloc(0, 7, 1, 1)]);
    assert_eq!(causes(Policy::OneLock52, &lines), [Cause::LeftPooled]);
    let report = run(&recorded(&lines), Policy::OneLock52, options(2)).unwrap();
    let why = &report.divergences[0].why;
    assert_eq!(why, "kernel left [0x100000, 0x103000): in the pool of node 0 (class 3 pages)");
}

#[test]
fn earlier_without_resynchronising() {
    let apart = Options { resync: false, ..options(2) };
    // The policy has the kernel's two pages at a lower address, so its range differs from the kernel's three.
    let lines = with(two_pooled(), &[alloc(1, 3, 2, 1), alloc(0, 0, 3, 1)]);
    let recording = recorded(&lines);
    assert_eq!(causes_of(&recording, Policy::OneLock52, apart), [Cause::KernelPool, Cause::Earlier]);
    // When corrected, the policy's second answer equals the kernel's.
    assert_eq!(causes_of(&recording, Policy::OneLock52, options(2)), [Cause::KernelPool]);
}

#[test]
fn left_lazy() {
    // Each side has two lazy pages of its own; the policy's next pages are the kernel's lazy ones.
    let apart = Options { resync: false, ..options(2) };
    let lines = with(two_pooled(), &[alloc(1, 3, 2, 1), free(3), alloc(0, 7, 2, 1)]);
    let report = run(&recorded(&lines), Policy::OneLock52, apart).unwrap();
    let last = report.divergences.last().unwrap();
    assert_eq!((last.cause, last.policy), (Cause::LeftLazy, Some(at(2))));
    assert!(last.why.ends_with("still lazy in node 1 (freed in line 8), purge not seen"), "{}", last.why);
}

#[test]
fn own_pool() {
    // One CPU: Linux then has no pools, and ours has.
    let lines = [alloc(0, 0, 3, 1), alloc(0, 3, 2, 1), alloc(0, 5, 2, 1), free(0), free(3), purge(2)];
    let lines = with(lines.to_vec(), &[alloc(0, 0, 2, 1)]);
    assert_eq!(causes_of(&recorded(&lines), Policy::Standard, options(1)), [Cause::OwnPool]);
    assert_eq!(causes_of(&recorded(&lines), Policy::Linux616, options(1)), []);
}

/// Returns events with two areas of CPU 1, of two pages each; the higher one is freed first.
fn two_of_a_size() -> Vec<String> {
    vec![alloc(1, 0, 2, 1), alloc(1, 2, 2, 1), alloc(1, 4, 1, 1), free(2), free(0), purge(2)]
}

#[test]
fn own_order() {
    let lines = with(two_of_a_size(), &[alloc(1, 2, 2, 1)]);
    assert_eq!(causes(Policy::Standard, &lines), [Cause::OwnOrder]);
    assert_eq!(causes(Policy::Linux616, &lines), []);
}

#[test]
fn pool_order_shows_once() {
    // The kernel takes the lower area first. The higher, which is expected first, is found later without a new cause.
    let lines =
        with(two_of_a_size(), &[alloc(1, 0, 2, 1), alloc(1, 2, 2, 1), free(0), purge(1), alloc(1, 0, 2, 1)]);
    assert_eq!(causes(Policy::Linux616, &lines), [Cause::PoolOrder, Cause::OwnerUnknown]);
}

#[test]
fn other_node() {
    let lines = with(two_pooled(), &[alloc(0, 3, 2, 1)]);
    assert_eq!(causes(Policy::Linux616, &lines), [Cause::OtherNode]);
}

#[test]
fn owner_unknown() {
    let lines = [alloc(1, 2, 2, 1), free(0), purge(1), alloc(0, 4, 1, 1), alloc(1, 0, 2, 1)];
    let mut recording = recorded(&lines);
    recording.begin = Some(areas(&[(0, 2, "f+0x0/0x1 vmalloc")]));
    assert_eq!(causes_of(&recording, Policy::Linux616, options(2)), [Cause::OwnerUnknown]);
}

#[test]
fn pool_missed_shows_once() {
    let lines = with(two_pooled(), &[alloc(1, 7, 2, 1), alloc(1, 9, 2, 1)]);
    assert_eq!(causes(Policy::Linux616, &lines), [Cause::PoolMissed]);
}

#[test]
fn a_drain_that_a_mark_shows_is_no_difference() {
    let lines = with(two_pooled(), &[mark("pools drained"), alloc(1, 0, 2, 1)]);
    assert_eq!(causes(Policy::Linux616, &lines), []);
}

#[test]
fn purge_unseen() {
    let lines = [alloc(1, 0, 2, 1), alloc(1, 2, 2, 1), free(0), alloc(1, 0, 2, 1), purge(1)];
    assert_eq!(causes(Policy::Linux616, &lines), [Cause::PurgeUnseen]);
    let report = run(&recorded(&lines), Policy::Linux616, options(2)).unwrap();
    assert!(report.divergences[0].why.ends_with("the next purge is in line 5"));
}

#[test]
fn free_unseen() {
    let lines = [alloc(1, 0, 2, 1), alloc(1, 2, 2, 1), alloc(1, 0, 2, 1)];
    assert_eq!(causes(Policy::Linux616, &lines), [Cause::FreeUnseen]);
}

#[test]
fn event_order() {
    let lines = [alloc(0, 2, 2, 1), alloc(1, 0, 2, 1), alloc(0, 4, 2, 1)];
    assert_eq!(causes(Policy::Linux616, &lines), [Cause::EventOrder]);
}

#[test]
fn an_event_that_waited_is_one_difference_and_its_cpu_has_no_other_in_between() {
    // CPU 1 has the first area, and says so at the end.
    let later = (1..20).map(|nth| alloc(0, 2 * nth, 2, 1));
    let waited: Vec<String> = later.chain([alloc(1, 0, 2, 1), alloc(1, 40, 2, 1), free(0)]).collect();
    assert_eq!(causes(Policy::Linux616, &waited), [Cause::EventOrder]);
    let mut busy = waited;
    busy.insert(10, free(100).replace("[000]", "[001]"));
    assert_eq!(causes(Policy::Linux616, &busy)[0], Cause::Unexplained);
}

#[test]
fn area_unknown_shows_once() {
    let lines = [alloc(0, 2, 2, 1), alloc(0, 4, 2, 1), free(0), purge(1)];
    assert_eq!(causes(Policy::Linux616, &lines), [Cause::AreaUnknown]);
}

#[test]
fn failed() {
    let nothing = attempt(0, 0x10ff_ffff, 2, 1, 1);
    assert_eq!(causes(Policy::Linux616, &[nothing]), [Cause::Failed]);
    let never = attempt(0, 0x10ff_ffff, 1 << 20, 1, 1);
    let report = run(&recorded(&[never]), Policy::Standard, options(2)).unwrap();
    assert_eq!((report.columns.failed_both, report.columns.differ()), (1, 0));
}

#[test]
fn unexplained() {
    let lines = [alloc(0, 4, 2, 1), alloc(0, 0, 2, 1)];
    assert_eq!(causes(Policy::Linux616, &lines), [Cause::Unexplained]);
}

type Ledger<C> = SpaceModel<C, <C as Config>::Index<LabMachine<PlainLock>>>;

fn ledger<C: Config>(window: VaRange, cpus: u32) -> Ledger<C> {
    let machine = LabMachine::new(1, u32::MAX, Work::Elsewhere);
    SpaceModel::new(C::index(kernel_extent(), window, machine).unwrap(), cpus)
}

/// Simulates the kernel of a recording with Linux's policy. Nothing is free below the window, or the search would begin
/// there.
struct Kernel {
    ledger: Ledger<Linux616>,
    lines: Vec<String>,
}

impl std::default::Default for Kernel {
    fn default() -> Self {
        let window = VaRange::new(Va::new(BASE), Va::new(0x10ff_ffff)).unwrap();
        let mut ledger = ledger(window, 1);
        ledger.put(P, BASE - P, Owner::NoNode).unwrap();
        Self { ledger, lines: Vec::new() }
    }
}

impl Kernel {
    fn ask(&mut self, cpu: u16, pages: u64, align: u64) -> u64 {
        let window = VaRange::new(Va::new(BASE), Va::new(0x10ff_ffff)).unwrap();
        let request = Request::new(pages * P, align).unwrap().within(window);
        self.ledger.try_alloc(cpu.into(), &request).unwrap().start
    }

    fn alloc(&mut self, cpu: u16, pages: u64, align: u64) -> u64 {
        let start = self.ask(cpu, pages, align);
        self.lines.push(attempt(cpu, start, pages, align, 0));
        start
    }

    fn free(&mut self, start: u64) {
        self.ledger.free(start);
        self.lines.push(free((start - BASE) / P));
    }

    /// Makes `count` holes of five pages that begin at a multiple of four, each between areas.
    fn holes(&mut self, count: u64) {
        self.alloc(0, 4, 1);
        let starts: Vec<u64> =
            (0..count).map(|_| [self.alloc(0, 5, 1), self.alloc(0, 3, 1)]).map(|two| two[0]).collect();
        for &start in &starts {
            self.free(start);
        }
        self.ledger.purge_oldest(false, count);
        self.lines.push(purge(count));
        // Drains the pools, so that they are holes under every policy.
        self.lines.push(mark("pools drained"));
    }

    fn recording(&self) -> Recording {
        let below = Area { start: P, size: BASE - P, lazy: false };
        let begin = Some(Areas { areas: vec![below], ..Areas::default() });
        Recording { begin, ..recorded(&self.lines) }
    }
}

#[test]
fn align_rule_and_tree_shape() {
    // Linux searches for at least seven pages, so it skips holes of five, except those on its path down the tree. That
    // path depends on the tree: in this one the lowest hole is not on it.
    let passes_the_lowest = |count| {
        let mut kernel = Kernel::default();
        kernel.holes(count);
        let start = kernel.alloc(0, 4, 4 * P);
        (start > at(4) && start < at(4 + count * 8)).then_some((kernel, start, at(4 + count * 8)))
    };
    let (mut kernel, start, far) = (3..64).find_map(passes_the_lowest).unwrap();
    let report = run(&kernel.recording(), Policy::Standard, Options { resync: true, ..options(1) }).unwrap();
    let last = report.divergences.last().unwrap();
    assert_eq!((last.cause, last.policy), (Cause::AlignRule, Some(at(4))), "{last:?}");
    assert!(last.why.contains("5 pages: Linux looks for size + align - 1, 8 pages"), "{}", last.why);
    assert_eq!(run(&kernel.recording(), Policy::Linux616, options(1)).unwrap().columns.differ(), 0);
    // A kernel whose tree has another shape.
    assert!(start < far);
    kernel.lines.pop();
    kernel.lines.push(attempt(0, far, 4, 4 * P, 0));
    assert_eq!(causes_of(&kernel.recording(), Policy::Linux616, options(1)), [Cause::TreeShape]);
}

#[test]
fn own_search() {
    let recording = recorded(&[alloc(0, 0, 2, 1)]);
    let window = (BASE, 0x10ff_ffff);
    let request = Request::new(2 * P, 1).unwrap();
    let request = request.within(VaRange::new(Va::new(window.0), Va::new(window.1)).unwrap());
    let attempt = Attempt {
        number: 2,
        at: 0,
        line: 1,
        ns: 0,
        cpu: 0,
        size: 2 * P,
        align: 1,
        window,
        kernel: Some(at(2)),
        request: Some(request),
        counted: true,
    };
    // Linux's answer equals the kernel's; the policy takes another range that is also free.
    let cause = cause_after(&recording, &attempt, Answer { start: at(9), pool: None }).unwrap();
    assert_eq!(cause, (Cause::OwnSearch, true));
}

#[test]
fn rp1_df1_hold_whatever_the_trace_is() {
    let lines = [
        alloc(0, 0, 2, 1),
        attempt(0, 3, 2, 1, 0),
        attempt(0, at(4), 0, 1, 0),
        attempt(7, u64::MAX - 0xfff, 2, 1, 0),
        attempt(0, at(4), 2, 3, 1),
        free(77),
        purge(9),
        "x-1 [000] 1.0: percpu_create_chunk: base_addr=fffffffffffff000\n".into(),
        "x-1 [000] 1.0: percpu_create_chunk: base_addr=200000\n".into(),
        mark("vmallocinfo end opens"),
    ];
    let mut recording = recorded(&lines);
    recording.begin = Some(areas(&[(0, 2, "lazy"), (1, 2, "overlaps"), (9, 1, "unpurged vm_area")]));
    for policy in Policy::ALL {
        for resync in [true, false] {
            let report = run(&recording, policy, Options { resync, ..options(200) }).unwrap();
            assert_eq!(report.allocs, 5);
            assert_eq!(report.columns.same() + report.columns.differ(), report.allocs);
            assert_eq!(report.causes.values().sum::<u64>(), report.columns.differ());
            assert_eq!(report.known.unusable, 1);
        }
    }
}

#[test]
fn what_happens_while_the_table_is_read_is_left_to_the_events() {
    let mut recording = recorded(&[
        mark("pools drained"),
        mark("vmallocinfo begin opens"),
        alloc(0, 2, 2, 1),
        free(0),
        mark("vmallocinfo begin closes"),
        free(2),
        purge(2),
        alloc(0, 6, 2, 1),
        mark("vmallocinfo end opens"),
    ]);
    recording.begin = Some(areas(&[
        (2, 2, "f+0x0/0x1 vmalloc"),
        (4, 2, "g"),
        (0, 2, "unpurged vm_area"),
        (8, 1, "unpurged vm_area"),
    ]));
    recording.end = Some(areas(&[(4, 2, "g"), (6, 2, "f"), (7, 9, "of another size")]));
    let report = run(&recording, Policy::Linux616, options(1)).unwrap();
    // 0 was busy when the table was opened, 2 was not live, and 8 is lazy until the purge, which frees 2 areas.
    let known = report.known;
    assert_eq!((known.busy, known.lazy, known.pools, known.table), (2, 1, true, true));
    assert_eq!((report.allocs, report.columns.equal), (2, 1));
    assert_eq!(report.end, Some(EndCheck { areas: 3, agree: 2, only_in_ledger: 1 }), "{report:?}");
}

/// Sends the same requests to the ledger and to a whole space, which must give the same answers.
fn bk1_beside_a_space<C: Config>(name: &str) {
    let shipped = TRACES.iter().find(|shipped| shipped.name == name).unwrap();
    let trace = Trace::read(decompress(shipped.trace).unwrap());
    let window = default_window(&trace);
    let machine = LabMachine::<PlainLock>::new(4, u32::MAX, Work::Elsewhere);
    let space = VmapSpace::<_, C>::new(kernel_extent(), window, machine).unwrap();
    let mut ledger = ledger::<C>(window, 4);
    let mut out: BTreeMap<u64, u64> = BTreeMap::new();
    let mut from_pools = 0;
    for (event, &cpu) in trace.events.iter().zip(&trace.cpus) {
        match *event {
            Event::Alloc { addr, size, align, vstart, vend, failed: false } => {
                let window = VaRange::new(Va::new(vstart), Va::new(vend)).unwrap();
                let Ok(request) = Request::new(size, align) else { continue };
                let request = request.within(window);
                let theirs = space.alloc(cpu.into(), &request).unwrap().start().get();
                assert_eq!(
                    ledger.peek(cpu.into(), &request).map(|ours| ours.start),
                    Some(theirs),
                    "{event:?}"
                );
                let ours = ledger.try_alloc(cpu.into(), &request).unwrap();
                assert_eq!(ours.start, theirs, "{event:?}");
                from_pools += u64::from(ours.pool.is_some());
                if let Some(stale) = out.insert(addr, theirs) {
                    space.free_at(Va::new(stale)).unwrap();
                    assert!(ledger.free(stale));
                }
            }
            Event::Free { addr } => {
                if let Some(theirs) = out.remove(&addr) {
                    space.free_at(Va::new(theirs)).unwrap();
                    assert!(ledger.free(theirs));
                }
            }
            Event::Purge { .. } => {
                space.purge(Purge::Drain);
                ledger.purge(Purge::Drain);
                ledger.validate().unwrap();
            }
            _ => {}
        }
    }
    space.validate().unwrap();
    assert!(from_pools > 0 || C::POOL_PAGES_MAX == 0, "or pools were not compared");
    assert_eq!(space.stats().pooled_areas, ledger.pooled_areas());
}

#[test]
fn bk1_a_model_answers_as_a_space_does() {
    bk1_beside_a_space::<Linux69>("fork-netns-smp4");
    bk1_beside_a_space::<OneLock52>("fork-netns-smp4");
    bk1_beside_a_space::<Standard>("fork-netns-smp4");
}

#[test]
fn every_cause_is_listed_once_in_order_and_has_a_text_of_its_own() {
    assert!(CAUSES.is_sorted() && CAUSES.windows(2).all(|two| two[0] != two[1]));
    let mut texts = CAUSES.map(Cause::text);
    texts.sort_unstable();
    assert!(texts.windows(2).all(|two| two[0] != two[1]));
    assert_eq!(CAUSES.iter().filter(|cause| cause.is_policy()).count(), 9);
    assert!(!Cause::Unexplained.is_policy() && !Cause::Unexplained.is_unknowable());
}
