//! The tables: whole runs, tests, latencies, time waited.

use super::observe::Call;
use super::{Compared, Measured, Part, origins};
use crate::harness::{Table, dash, number};
use crate::suite::case::Case;
use std::time::Duration;

/// Returns all tables, in order.
pub(super) fn all(compared: &Compared) -> Vec<Table> {
    let mut tables = origins::table(compared).into_iter().collect::<Vec<_>>();
    tables.extend([runs(compared), tests(compared), latencies(compared), waits(compared)]);
    tables
}

/// Formats seconds with three decimals.
pub(super) fn seconds(time: Duration) -> String {
    format!("{:.3}", time.as_secs_f64())
}

/// Returns the ratio of two targets' times, with `<` or `>` if a stopped run makes it a bound; `-` if both were stopped.
pub(super) fn ratio(of: &Measured, by: &Measured) -> String {
    of.ratio(by, [&of.seconds(), &by.seconds()]).text(decimals)
}

/// Formats a ratio.
fn decimals(times: f64) -> String {
    // Three decimals of a smaller ratio would be zeros.
    if times < 0.001 { format!("{times:.1e}") } else { format!("{times:.3}") }
}

fn labels(part: &Part, measured: &Measured) -> [String; 3] {
    [part.scenario.name.to_string(), part.scenario.params.nr_threads.to_string(), measured.target.clone()]
}

fn each(compared: &Compared) -> impl Iterator<Item = (&Part, &Measured)> {
    compared.parts.iter().flat_map(|part| part.measured.iter().map(move |measured| (part, measured)))
}

fn runs(compared: &Compared) -> Table {
    let parameters: Vec<String> = compared
        .parts
        .iter()
        .map(|part| format!("`{}`: `{}`", part.scenario.name, part.scenario.params))
        .collect();
    let caption = format!(
        "Whole runs, the longest of the workers' own times: the fastest round; spread is the slowest round by the fastest. A ratio \
         that lies within the spread is not printed: a round of one target is as fast as a round of the other. Met are the workers \
         that had begun when the first one ended, the least of all rounds: if that is not all, they ran one after the other, and \
         there is no ratio. {}.",
        parameters.join("; ")
    );
    let head =
        ["scenario", "workers", "met", "target", "seconds", "spread", "ratio to the first", "throughput"];
    let mut table = Table::new(caption, 4, head);
    for part in &compared.parts {
        let Some(first) = part.measured.first() else { continue };
        for (at, measured) in part.measured.iter().enumerate() {
            let seconds_of = measured.seconds();
            let bound = measured.is_bound();
            let mut row = labels(part, measured).to_vec();
            row.insert(2, measured.met().to_string());
            row.push(format!("{}{}", if bound { "> " } else { "" }, seconds(measured.wall())));
            row.push(match measured.rounds.len() {
                _ if bound => "stopped".to_string(),
                1 => "one round".to_string(),
                _ => format!("{:.2}", seconds_of.most / seconds_of.least.max(1e-9)),
            });
            row.push(if at == 0 && !bound { decimals(1.0) } else { ratio(measured, first) });
            let sooner = [&first.seconds(), &seconds_of];
            row.push(match bound {
                true => "-".to_string(),
                false if at == 0 => "1.00x".to_string(),
                false => first.ratio(measured, sooner).text(|times| format!("{times:.2}x")),
            });
            table.push(row);
        }
    }
    table
}

fn tests(compared: &Compared) -> Table {
    let caption = "Each test: nanoseconds of a loop in the mean of workers, its setup among it (full_fit and long_busy_list fill a space \
                   first); of per-CPU memory an object; - where the run was stopped before all workers had ended the test. A ratio is not \
                   printed where it lies within the spread of the rounds.";
    let head = ["scenario", "workers", "test", "target", "ns a loop", "ratio to the first"];
    let mut table = Table::new(caption, 4, head);
    for part in &compared.parts {
        for case in part.scenario.params.cases() {
            let Some(first) = part.measured.first() else { continue };
            for (at, measured) in part.measured.iter().enumerate() {
                let [scenario, workers, target] = labels(part, measured);
                let ns = measured.loop_ns(case);
                let ratio = ns.zip(first.loop_ns(case)).map(|(ns, by)| match at {
                    0 => decimals(1.0),
                    _ => measured.ratio(first, [&ns, &by]).text(decimals),
                });
                let ns = ns.map(|ns| number(ns.shown));
                table.row(&[&scenario, &workers, &case.name(), &target, &dash(ns), &dash(ratio)]);
            }
        }
    }
    table
}

fn latencies(compared: &Compared) -> Table {
    let caption = format!(
        "Latency of a call in nanoseconds, from a run of its own in which each call is clocked (absent where that run or the timed \
         one was stopped); {} ns of each are the clock's. Where workers are more than CPUs ({}), the worst are those during which the \
         system ran another process.",
        compared.clock_ns, compared.cpus
    );
    let head = ["scenario", "workers", "target", "call", "calls", "p50", "p99", "p99.9", "worst"];
    let mut table = Table::new(caption, 4, head);
    for (part, measured) in each(compared) {
        let Some(seen) = &measured.clocked else { continue };
        for call in Call::ALL {
            let latency = &seen.latency[call as usize];
            if latency.calls() == 0 {
                continue;
            }
            let mut row = labels(part, measured).to_vec();
            row.extend([call.name().to_string(), latency.calls().to_string()]);
            row.extend([50.0, 99.0, 99.9].map(|of_100| latency.percentile(of_100).to_string()));
            row.push(latency.worst().to_string());
            table.push(row);
        }
    }
    table
}

/// Returns the share of its CPU time that a target's workers spent waiting for locks; `None` if locks were not counted.
pub(super) fn waiting(measured: &Measured) -> Option<f64> {
    let seen = measured.counted.as_ref()?;
    let waited: u64 = seen.locks.iter().map(|lock| lock.wait_cpu_ns).sum();
    (seen.cpu_ns > 0).then(|| waited as f64 / seen.cpu_ns as f64)
}

fn waits(compared: &Compared) -> Table {
    let caption = "What a profile would show of spin locks: the share of the workers' CPU time spent waiting for them, in a run of its own \
                   with spin locks that count (they let others run after 256 looks, as no kernel does: here a holder can lose its CPU); \
                   absent where that run or the timed one was stopped, or the target's locks do not count. The lock of per-CPU memory is not \
                   among them: what waiting for it takes counts as work.";
    let head =
        ["scenario", "workers", "target", "CPU seconds", "waiting for locks", "takings", "contentions"];
    let mut table = Table::new(caption, 3, head);
    for (part, measured) in each(compared) {
        let Some((seen, share)) = measured.counted.as_ref().zip(waiting(measured)) else { continue };
        let [scenario, workers, target] = labels(part, measured);
        table.row(&[
            &scenario,
            &workers,
            &target,
            &seconds(Duration::from_nanos(seen.cpu_ns)),
            &format!("{:.2} %", 100.0 * share),
            &seen.locks.iter().map(|lock| lock.acquisitions).sum::<u64>(),
            &seen.locks.iter().map(|lock| lock.contentions).sum::<u64>(),
        ]);
    }
    table
}

/// Returns one line of CSV for each figure: its subject, its name, its value.
pub(super) fn csv(compared: &Compared) -> Vec<String> {
    let mut lines = vec!["scenario,workers,target,of,figure,value".to_string()];
    for (part, measured) in each(compared) {
        let labels = labels(part, measured).join(",");
        let mut line = |of: &str, figure: &str, value: String| {
            lines.push(format!("{labels},{of},{figure},{value}"));
        };
        line("run", "seconds", format!("{:.6}", measured.wall().as_secs_f64()));
        line("run", "stopped", u8::from(measured.is_bound()).to_string());
        line("run", "met", measured.met().to_string());
        for case in part.scenario.params.cases() {
            if let Some(ns) = measured.loop_ns(case) {
                line(case.name(), "loop_ns", format!("{:.2}", ns.shown));
            }
            for (number, worker) in measured.ran.workers.iter().enumerate() {
                let time = worker.counts[Case::index(case)].time.as_secs_f64();
                line(case.name(), &format!("worker{number}_seconds"), format!("{time:.6}"));
            }
        }
        if let Some(seen) = &measured.clocked {
            for call in Call::ALL {
                let latency = &seen.latency[call as usize];
                line(call.name(), "calls", latency.calls().to_string());
                for (name, of_100) in [("p50_ns", 50.0), ("p99_ns", 99.0), ("p999_ns", 99.9)] {
                    line(call.name(), name, latency.percentile(of_100).to_string());
                }
                line(call.name(), "worst_ns", latency.worst().to_string());
            }
        }
        if let Some(seen) = &measured.counted {
            line("run", "cpu_ns", seen.cpu_ns.to_string());
            for (name, lock) in super::locks::named(&measured.target, &seen.locks) {
                for (figure, value) in [
                    ("con_bounces", lock.con_bounces),
                    ("contentions", lock.contentions),
                    ("wait_min_ns", lock.wait_min_ns),
                    ("wait_max_ns", lock.wait_max_ns),
                    ("wait_total_ns", lock.wait_total_ns),
                    ("wait_cpu_ns", lock.wait_cpu_ns),
                    ("acquisitions", lock.acquisitions),
                ] {
                    line(name, figure, value.to_string());
                }
            }
        }
    }
    lines
}
