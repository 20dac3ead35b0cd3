//! Parts of a trace that are counted: they add up to the whole, in the same states.

use vmlab_replay::diff::recording::Recording;
use vmlab_replay::diff::{self, Options};
use vmlab_replay::index_kind::IndexKind;
use vmlab_replay::run_space::{Policy, nodes_of};
use vmlab_replay::timing::Budget;
use vmlab_replay::{Columns, run, run_space, whatif};
use vmlab_trace::shipped::TRACES;
use vmlab_trace::vmallocinfo::Table;
use vmlab_trace::{Selection, Trace, decompress};

/// Forks, namespaces and modules on four CPUs.
const NAME: &str = "fork-netns-smp4";

fn whole() -> (Trace, Table) {
    let shipped = TRACES.iter().find(|shipped| shipped.name == NAME).unwrap();
    (Trace::read(decompress(shipped.trace).unwrap()), Table::read(shipped.vmallocinfo))
}

fn part(selection: &Selection) -> (Trace, Table) {
    let (mut trace, mut table) = whole();
    let later = trace.narrow(selection).unwrap();
    table.forget(&later);
    (trace, table)
}

/// Three ways to divide the trace: by CPU, by task, and at a time.
fn divisions() -> Vec<Vec<Selection>> {
    let (trace, _) = whole();
    let all = Selection::default;
    let middle = trace.times_ns[trace.times_ns.len() / 2];
    let mut tasks: Vec<String> = trace.tasks.clone();
    tasks.retain(|task| (0..trace.events.len()).any(|at| trace.task_at(at) == task));
    vec![
        (0..4).map(|cpu| Selection { cpu: Some(cpu), ..all() }).collect(),
        tasks.into_iter().map(|task| Selection { task: Some(task), ..all() }).collect(),
        vec![Selection { to_ns: Some(middle), ..all() }, Selection { from_ns: Some(middle + 1), ..all() }],
    ]
}

fn add(sum: &mut Columns, part: &Columns) {
    sum.equal += part.equal;
    sum.lower += part.lower;
    sum.higher += part.higher;
    sum.failed_both += part.failed_both;
    sum.failed_differs += part.failed_differs;
}

/// Checks that the answers of the parts are those of the whole, each once, for each division.
fn check(columns: impl Fn(&Trace, &Table) -> Columns) {
    let (trace, table) = whole();
    let want = columns(&trace, &table);
    assert!(want.same() + want.differ() == trace.allocs() && trace.allocs() > 800);
    for parts in divisions() {
        assert!(parts.len() > 1);
        let mut sum = Columns::default();
        for selection in &parts {
            let (trace, table) = part(selection);
            let columns = columns(&trace, &table);
            columns.check(trace.counted_allocs()).unwrap();
            assert!(trace.counted_events() > 0 && trace.counted_events() < whole().0.events.len() as u64);
            add(&mut sum, &columns);
        }
        assert_eq!(sum, want, "{parts:?}");
    }
}

#[test]
fn the_parts_of_a_replay_add_up_on_an_index_and_on_a_space() {
    let options = run::Options { budget: Budget { rounds: 1, ..Budget::default() }, latency: false };
    check(|trace, table| run::run(NAME, trace, table, IndexKind::Btree, options).unwrap().row.columns);
    // With pools, addresses differ; the causes are counted as the answers are.
    check(|trace, table| {
        let row = run_space::run(NAME, trace, table, Policy::Standard, nodes_of(trace)).unwrap().row;
        assert_eq!(row.why.sum(), row.columns.differ(), "RP2");
        row.columns
    });
}

#[test]
fn purges_and_flushes_of_a_space_are_those_of_the_counted_events() {
    let row = |trace: &Trace, table: &Table| {
        let row = run_space::run(NAME, trace, table, Policy::Linux69, nodes_of(trace)).unwrap().row;
        [row.purges, row.flushes]
    };
    let (trace, table) = whole();
    let want = row(&trace, &table);
    for parts in divisions() {
        let rows = parts.iter().map(part).map(|(trace, table)| row(&trace, &table));
        let sum = rows.fold([0; 2], |sum, row| [sum[0] + row[0], sum[1] + row[1]]);
        assert_eq!(sum, want, "{parts:?}");
    }
    assert!(want[0] > 1, "{want:?}");
}

#[test]
fn the_parts_of_a_diff_add_up_with_their_causes() {
    let shipped = TRACES.iter().find(|shipped| shipped.name == NAME).unwrap();
    let report = |selection: &Selection| {
        let recording = Recording::read_part(decompress(shipped.trace).unwrap(), selection);
        let options = Options { resync: true, cpus: 4, differences_max: 1 << 20, kernel: Policy::Linux69 };
        let report = diff::run(&recording, Policy::Standard, options).unwrap();
        assert_eq!(report.allocs, recording.allocs());
        report
    };
    let want = report(&Selection::default());
    assert!(want.columns.differ() > 10 && want.offsets.as_ref().unwrap().allocs > 1000);
    for parts in divisions() {
        let (mut sum, mut causes, mut listed, mut offsets) = (Columns::default(), 0, Vec::new(), 0);
        for selection in &parts {
            let report = report(selection);
            add(&mut sum, &report.columns);
            causes += report.causes.values().sum::<u64>();
            listed.extend(report.divergences.iter().map(|one| one.line));
            offsets += report.offsets.map_or(0, |offsets| offsets.allocs);
        }
        listed.sort_unstable();
        let lines: Vec<u64> = want.divergences.iter().map(|one| one.line).collect();
        assert_eq!((sum, listed), (want.columns, lines));
        assert_eq!(causes, want.causes.values().sum::<u64>());
        // Some tasks have events in percpu chunks alone.
        let by_task = parts[0].task.is_some();
        let all = want.offsets.as_ref().unwrap().allocs;
        assert!(if by_task { offsets > 0 && offsets < all } else { offsets == all }, "{offsets} of {all}");
    }
}

#[test]
fn the_peaks_of_a_policy_are_those_of_the_selected_time() {
    let row = |(trace, table): &(Trace, Table)| {
        whatif::run(trace, table, Policy::Linux69, nodes_of(trace)).unwrap()
    };
    let want = row(&whole());
    for parts in divisions() {
        let rows: Vec<_> = parts.iter().map(|selection| row(&part(selection))).collect();
        let most = |of: fn(&whatif::Row) -> u64| rows.iter().map(of).max().unwrap();
        let sum = |of: fn(&whatif::Row) -> u64| rows.iter().map(of).sum::<u64>();
        assert_eq!(most(|row| row.span_bytes), want.span_bytes);
        assert_eq!(most(|row| row.kept_bytes), want.kept_bytes);
        assert_eq!(most(|row| row.longest_stall_ns), want.longest_stall_ns);
        assert_eq!(sum(|row| row.requests), want.requests);
        assert_eq!(sum(|row| row.stall_ns), want.stall_ns);
        assert_eq!(sum(|row| row.purged), want.purged);
    }
    // Of two halves, one does not have the peak.
    let halves: Vec<_> = divisions()[2].iter().map(|selection| row(&part(selection))).collect();
    assert!(halves[0].span_bytes != halves[1].span_bytes && halves.iter().all(|row| row.span_bytes > 0));
}
