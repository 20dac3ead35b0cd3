//! Tests of the durations: against calls that are known, and against texts written by hand.

use super::*;
use crate::{Next, items};
use proptest::prelude::*;
use std::fmt::Write;

fn read(text: &str, selection: Selection) -> Latencies {
    let mut latencies = Latencies::within(selection);
    let taken = items(text.as_bytes(), |item| {
        latencies.take(&item);
        Ok(Next::Go)
    });
    assert_eq!(taken.unwrap().bad, 0, "{text}");
    latencies.finish();
    latencies
}

fn all(text: &str) -> Latencies {
    read(text, Selection::default())
}

/// Returns each group: its function, its caller or task, and the durations of its figures.
fn rows(latencies: &Latencies, of: Of) -> Vec<(String, String, u64, u64, u64)> {
    let row = |mut row: CallRow| {
        let Figures { count, max, total, .. } = row.durations.figures();
        (row.function, row.origin.unwrap_or_default(), count, max, total)
    };
    latencies.call_rows(of).into_iter().map(row).collect()
}

fn line(task: &str, pid: u32, cpu: u16, ns: u64, event: &str) -> String {
    format!(
        "{task:>16}-{pid:<7} [{cpu:03}] ..... {}.{:09}: {event}\n",
        ns / 1_000_000_000,
        ns % 1_000_000_000
    )
}

const ENTER: &str = "vmlab_enter_alloc: (alloc_vmap_area+0x0/0x9a0)";
const LEAVE: &str = "vmlab_leave_alloc: (__get_vm_area_node+0xd0/0x170 <- alloc_vmap_area)";

proptest! {
    /// Calls that are known, of threads that nest them and change their CPU, are found with their durations.
    #[test]
    fn known_calls_are_found(steps in proptest::collection::vec((0..4u32, 0..7usize, any::<bool>(), 1..5000u64), 0..200)) {
        let mut open: [Vec<(Call, u64)>; 4] = Default::default();
        let mut truth: BTreeMap<Call, Vec<u64>> = BTreeMap::new();
        let (mut text, mut ns, mut unended) = (String::new(), 1_000_000, 0);
        for (thread, call, enter, step) in steps {
            ns += step;
            let call = Call::ALL[call];
            let cpu = (ns % 3) as u16;
            let stack = &mut open[thread as usize];
            if enter {
                stack.push((call, ns));
                text += &line("t", thread + 5, cpu, ns, &format!("{}: ({})", call.event(crate::call::Edge::Enter), call.functions()[0]));
            } else if let Some((call, since)) = stack.pop() {
                truth.entry(call).or_default().push(ns - since);
                text += &line("t", thread + 5, cpu, ns, &format!("{}: (x <- {})", call.event(crate::call::Edge::Leave), call.functions()[0]));
            }
        }
        unended += open.iter().map(Vec::len).sum::<usize>() as u64;
        let latencies = all(&text);
        let expected = Unpaired { open: unended, ..Unpaired::default() };
        prop_assert_eq!(latencies.unpaired(), expected);
        let found = latencies.call_rows(Of::Function);
        prop_assert_eq!(found.iter().map(|row| row.call).collect::<Vec<_>>(), truth.keys().copied().collect::<Vec<_>>());
        for mut row in found {
            let known = &truth[&row.call];
            let figures = row.durations.figures();
            prop_assert_eq!((figures.count, figures.total), (known.len() as u64, known.iter().sum::<u64>()));
            // The median by counting: as many are above it as below, and it occurred.
            let below = known.iter().filter(|&&one| one <= figures.median).count();
            prop_assert!(known.contains(&figures.median) && below * 2 >= known.len());
            let least = known.iter().filter(|&&one| one < figures.median).count();
            prop_assert!(least * 2 < known.len());
        }
    }

    #[test]
    fn any_order_of_events_is_taken(events in proptest::collection::vec((0..3u32, 0..2u16, 0..12usize, 0..50u64), 0..100)) {
        let mut text = String::new();
        for (pid, cpu, event, ns) in events {
            let event = match event {
                0..3 => ENTER,
                3..6 => LEAVE,
                6 => "vmlab_enter_purge: (__purge_vmap_area_lazy)",
                7 => "contention_begin: 00000000000000aa (flags=SPIN)",
                8 => "contention_end: 00000000000000aa (ret=0)",
                9 => "<stack trace>",
                10 => "contention_begin: 00000000000000bb (flags=MUTEX)",
                _ => "free_vmap_area_noflush: va_start=0x1000",
            };
            text += &line("t", pid, cpu, ns, event);
            if event == "<stack trace>" {
                text += " => _raw_spin_lock\n => alloc_vmap_area\n";
            }
            if ns == 49 {
                let _ = writeln!(text, "CPU:{cpu} [LOST 4 EVENTS]");
            }
        }
        let enters = text.matches(": (alloc_vmap_area+").count() + text.matches("vmlab_enter_purge").count();
        let latencies = all(&text);
        let unpaired = latencies.unpaired();
        // Each beginning is of a whole call, open, lost, or ends before it begins.
        prop_assert_eq!(latencies.calls() + unpaired.calls + unpaired.open + unpaired.untimed, enters as u64);
    }
}

#[test]
fn interrupts_nest_idle_threads_are_apart_and_losses_pair_nothing() {
    let text = [
        // A thread, and an interrupt of it that frees.
        line("sh", 7, 0, 1000, ENTER),
        line("sh", 7, 0, 1100, "vmlab_enter_percpu_free: (free_percpu+0x0/0x10)"),
        line("sh", 7, 0, 1150, "vmlab_leave_percpu_free: (rcu_do_batch+0x1/0x2 <- free_percpu)"),
        // It goes on elsewhere.
        line("sh", 7, 1, 1900, LEAVE),
        // The idle threads of two CPUs.
        line("<idle>", 0, 0, 2000, "vmlab_enter_percpu_free: (free_percpu+0x0/0x10)"),
        line("<idle>", 0, 1, 2010, "vmlab_enter_percpu_free: (free_percpu+0x0/0x10)"),
        line("<idle>", 0, 0, 2030, "vmlab_leave_percpu_free: (a <- free_percpu)"),
        line("<idle>", 0, 1, 2110, "vmlab_leave_percpu_free: (b <- free_percpu)"),
        // The return of the first and the beginning of the second are lost: no call of 6,000 ns.
        line("sh", 7, 0, 3000, ENTER),
        "CPU:0 [LOST 2 EVENTS]\n".to_string(),
        line("sh", 7, 0, 9000, LEAVE),
        // The kernel did not write the return of the inner call.
        line("sh", 7, 0, 9100, "vmlab_enter_drain: (drain_vmap_area_work)"),
        line("sh", 7, 0, 9200, "vmlab_enter_purge: (__purge_vmap_area_lazy)"),
        line("sh", 7, 0, 9900, "vmlab_leave_drain: (process_one_work <- drain_vmap_area_work)"),
        // The clock went back, and the end of the trace.
        line("sh", 7, 0, 9950, ENTER),
        line("sh", 7, 0, 9940, LEAVE),
        line("sh", 7, 0, 9960, ENTER),
    ]
    .concat();
    let latencies = all(&text);
    assert_eq!(latencies.unpaired(), Unpaired { returns: 1, calls: 2, open: 1, untimed: 1 });
    assert_eq!((latencies.lost(), latencies.calls(), latencies.span_ns()), (2, 5, 8960));
    let row = |function: &str, origin: &str, count, max, total| {
        (function.to_string(), origin.to_string(), count, max, total)
    };
    assert_eq!(
        rows(&latencies, Of::Function),
        [
            row("alloc_vmap_area", "", 1, 900, 900),
            row("drain_vmap_area_work", "", 1, 800, 800),
            row("free_percpu", "", 3, 100, 180)
        ]
    );
    let callers = rows(&latencies, Of::Caller);
    assert_eq!(callers[0], row("alloc_vmap_area", "__get_vm_area_node", 1, 900, 900));
    assert_eq!(callers[2], row("free_percpu", "b", 1, 100, 100), "the longest first");
    assert_eq!(
        rows(&latencies, Of::Task)[2..],
        [row("free_percpu", "<idle>", 2, 100, 130), row("free_percpu", "sh", 1, 50, 50)]
    );

    // A call counts where it begins.
    let part = |selection| rows(&read(&text, selection), Of::Function);
    assert_eq!(
        part(Selection { from_ns: Some(1050), to_ns: Some(2005), ..Selection::default() }),
        [row("free_percpu", "", 2, 50, 80)]
    );
    let cpu_0 =
        Selection { cpu: Some(0), task: Some("sh".to_string()), to_ns: Some(2000), ..Selection::default() };
    let within = Selection { from_ns: Some(1900), to_ns: Some(2100), ..Selection::default() };
    assert_eq!(read(&text, within).span_ns(), 130);
    assert_eq!(part(cpu_0), [row("alloc_vmap_area", "", 1, 900, 900), row("free_percpu", "", 1, 50, 50)]);
}

#[test]
fn only_waits_for_the_allocators_locks_are_counted() {
    let stack = |pid, cpu, ns, frames: &str| line("sh", pid, cpu, ns, "<stack trace>") + frames;
    let spin = " => trace_event_raw_event_contention_begin\n => native_queued_spin_lock_slowpath\n => _raw_spin_lock\n";
    let header = "{\"vmlab\":{\"locks\":[{\"name\":\"vmap_purge_lock\",\"at\":\"0xaa\"},{\"name\":\"mine\",\"at\":\"0xcc\"}]}}\n";
    let begin = |lock| format!("contention_begin: {lock:016x} (flags=SPIN)");
    let end = |lock| format!("contention_end: {lock:016x} (ret=0)");
    let text = [
        header.to_string(),
        // A node's lock, without a name; an event of an interrupt comes in between.
        line("sh", 7, 0, 1000, &begin(0x11)),
        line("sh", 7, 0, 1005, "free_vmap_area_noflush: va_start=0x1000"),
        stack(7, 0, 1005, " => free_vmap_area_noflush\n => x\n"),
        stack(7, 0, 1006, &format!("{spin} => find_unlink_vmap_area\n => remove_vm_area\n => root\n")),
        line("sh", 7, 1, 1250, &end(0x11)),
        // The lock of a slab, within the allocator.
        line("sh", 7, 0, 2000, &begin(0x22)),
        stack(
            7,
            0,
            2000,
            &format!("{spin} => ___slab_alloc\n => kmem_cache_alloc_node_noprof\n => alloc_vmap_area\n"),
        ),
        line("sh", 7, 0, 2900, &end(0x22)),
        // A mutex with a name: it spins, and then it sleeps.
        line("sh", 8, 0, 3000, &begin(0xaa)),
        stack(8, 0, 3000, " => __mutex_lock.constprop.0\n => mutex_lock\n => drain_vmap_area_work\n"),
        line("sh", 8, 0, 3400, &begin(0xaa)),
        stack(8, 0, 3400, " => __mutex_lock.constprop.0\n => mutex_lock\n => drain_vmap_area_work\n"),
        line("sh", 8, 2, 4000, &end(0xaa)),
        // Without a stack: the name tells, or nothing.
        line("sh", 8, 0, 5000, &begin(0xaa)),
        line("sh", 8, 0, 5020, &end(0xaa)),
        line("sh", 8, 0, 5100, &begin(0x33)),
        line("sh", 8, 0, 5200, &end(0x33)),
        // Without an end, and without a beginning.
        line("sh", 8, 0, 6000, &begin(0x11)),
        "CPU:0 [LOST 9 EVENTS]\n".to_string(),
        line("sh", 8, 0, 9000, &end(0x11)),
    ]
    .concat();
    let latencies = all(&text);
    let seen: Vec<_> = latencies
        .lock_rows()
        .into_iter()
        .map(|row| (row.lock.unwrap_or_default(), row.site, row.durations.total()))
        .collect();
    let row = |lock: &str, site: &str, total| (lock.to_string(), site.to_string(), total);
    assert_eq!(
        seen,
        [
            row("vmap_purge_lock", "drain_vmap_area_work", 1000),
            row("", "find_unlink_vmap_area", 250),
            row("vmap_purge_lock", "(stack not recorded)", 20)
        ]
    );
    assert_eq!(latencies.elsewhere(), Elsewhere { other_locks: 1, unknown: 1, unpaired: 2 });
    assert!(latencies.has_locks() && !latencies.has_calls() && latencies.waits() == 3);
    let stacks = latencies.lock_stacks();
    let path = "root;remove_vm_area;find_unlink_vmap_area;_raw_spin_lock;native_queued_spin_lock_slowpath";
    assert_eq!(stacks[path], (250, 1));
    assert_eq!(stacks.values().map(|(ns, _)| ns).sum::<u64>(), 1270);
}

#[test]
fn names_are_bounded() {
    let mut names = Names::default();
    for n in 0..NAMES_MAX as u32 + 9 {
        names.number(&n.to_string());
    }
    assert!(names.all.len() <= NAMES_MAX + 1);
    let other = names.number(&"\u{e9}".repeat(NAME_BYTES));
    let mut long = Names::default();
    let number = long.number(&"\u{20ac}".repeat(NAME_BYTES));
    assert_eq!(long.name(number).len(), NAME_BYTES - 1, "cut before the character that does not fit");
    assert_eq!((names.name(other), names.name(0), names.name(u32::MAX)), (OTHER, "", ""));
}
