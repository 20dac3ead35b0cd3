//! The figures of the original documents, each beside the one measured here, with the differences.
//!
//! # Source
//! The patch "keep track of free blocks for vmap allocation" (5.2) and the talk "Reworking of KVA allocator in Linux
//! kernel". The series "Mitigate a vmap lock contention" (6.9). The patch "remove a global vmap_blocks xarray" (6.4).
//! The series of per-CPU hints (5.2).

use super::ratio::{Figure, WITHIN};
use super::tables::{ratio, waiting};
use super::{Compared, locks};
use crate::harness::Table;
use crate::percpu::seed;
use crate::suite::params::Params;
use anyhow::Result;
use va_base::LockClass;

/// Nanoseconds for each action of the three engines of the per-CPU series: before it, with the alignment put back, with
/// it.
pub struct Hints {
    pub ns: [Figure; 3],
    pub actions: usize,
}

/// Actions of the series for each loop of the suite.
const ACTIONS_PER_LOOP: usize = 100;
/// Actions that the series measured.
const ACTIONS_MAX: usize = 1_000_000;

impl Hints {
    /// Measures them; fewer loops mean fewer actions.
    ///
    /// # Errors
    /// If there is no memory for records.
    pub(super) fn measure(params: &Params, rounds: usize) -> Result<Self> {
        let actions = (params.test_loop_count as usize).saturating_mul(ACTIONS_PER_LOOP);
        // The number is a multiple of a thousand.
        let actions = actions.clamp(1000, ACTIONS_MAX) / 1000 * 1000;
        let ns = seed::three(actions, rounds)?.map(|ns| Figure::new(ns.min, [ns.max]));
        Ok(Self { ns, actions })
    }

    /// Returns the figures in seconds, scaled so that the first is 69.
    pub fn as_seconds(&self) -> [f64; 3] {
        self.ns.map(|ns| 69.0 * ns.shown / self.ns[0].shown)
    }

    /// Formats the figures, unless one of them lies within the spread of the one before.
    pub fn text(&self) -> String {
        if self.ns.windows(2).any(|pair| pair[0].meets(&pair[1])) {
            return WITHIN.to_string();
        }
        let [before, reverted, with] = self.as_seconds();
        format!("{before:.0} : {reverted:.0} : {with:.1} (of 69)")
    }
}

/// A figure of a document, and ours.
struct Row {
    what: &'static str,
    there: &'static str,
    here: String,
    differs: String,
}

/// Returns the table; `None` if it has no measured figure.
pub(super) fn table(compared: &Compared) -> Option<Table> {
    let caption = format!(
        "The figures of the patches and the talk. Here are {} CPUs and addresses only: no pages, no page tables, no flush of other CPUs, \
         which are most of what a kernel's allocation takes beside its search; each target is a policy of one library, so the rest is equal.",
        compared.cpus
    );
    let mut table = Table::new(caption, 4, ["what", "there", "here", "what differs"]);
    for Row { what, there, here, differs } in rows(compared) {
        table.row(&[&what, &there, &here, &differs]);
    }
    (!table.rows().is_empty()).then_some(table)
}

fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

fn rows(compared: &Compared) -> Vec<Row> {
    let mut rows = Vec::new();
    let cpus = compared.cpus;
    let part = |name: &str| compared.parts.iter().find(|part| part.scenario.name == name);
    // Returns the factor by which the first of two targets of a scenario takes longer, and the loops.
    let times = |name: &str, before: &str, after: &str| -> Option<(String, u32)> {
        let part = part(name)?;
        let slower = ratio(part.of(before)?, part.of(after)?);
        let times = if slower.ends_with(|last: char| last.is_ascii_digit()) { " times" } else { "" };
        Some((format!("{slower}{times}, `{before}` by `{after}`"), part.scenario.params.test_loop_count))
    };
    if let Some((here, loops)) = times("one", "list", "one-lock") {
        rows.push(Row {
            what: "5.2, one worker, tests in order (patch)",
            there: "646.9 by 193.3 G cycles, 3.35 times (i5-3320M); 7.50 times (HiKey 960)",
            here,
            differs: format!("{loops} loops of 1,000,000: setups weigh more"),
        });
    }
    if let Some((here, loops)) = times("all", "list", "one-lock") {
        rows.push(Row {
            what: "5.2, all CPUs, random order (talk)",
            there: "\"39 times\": 116m58s by 3m38s, which are 32.2 times; the patch's own 101m23s by 56m48s are 1.8 (i5-3320M, 4 CPUs)",
            here,
            differs: format!("{cpus} workers of 4; {loops} loops of 1,000,000"),
        });
    }
    if let Some(share) = part("all").and_then(|part| waiting(part.of("one-lock")?)) {
        rows.push(Row {
            what: "5.2, share of spin locks in a profile (talk)",
            there: "82.58 % (W-2135, 12 CPUs)",
            here: format!("{} of `one-lock`", percent(share)),
            differs: format!("{cpus} workers of 12; random order"),
        });
    }
    if let Some((here, loops)) = times("crowd", "one-lock", "nodes") {
        rows.push(Row {
            what: "6.9, `run_test_mask=7 nr_threads=64` (series)",
            there: "\"12 times\": 10m51.3s by 51.3s, which are 12.7 (3970X, 64 CPUs)",
            here,
            differs: format!("64 workers on {cpus} CPUs: at most {cpus} run at a time; {loops} loops"),
        });
    }
    let share = |target: &str| part("crowd").and_then(|part| waiting(part.of(target)?));
    if let Some((before, after)) = share("one-lock").zip(share("nodes")) {
        let ours = share("space").map_or(String::new(), |share| format!("; {} of `space`", percent(share)));
        rows.push(Row {
            what: "6.9, share of spin locks in a profile (series)",
            there: "93.07 % before, 16.51 % after",
            here: format!("{} of `one-lock`, {} of `nodes`{ours}", percent(before), percent(after)),
            differs: format!("as above; {cpus} CPUs cannot queue up 64 deep"),
        });
    }
    if let Some(part) = part("ram") {
        if let Some((before, after)) = part.of("one-lock").zip(part.of("hashed")) {
            let more = |times: f64| format!("{:+.1} %", 100.0 * (times - 1.0));
            let more = before.ratio(after, [&before.seconds(), &after.seconds()]).text(more);
            let loops = part.scenario.params.test_loop_count;
            rows.push(Row {
                what: "6.4, throughput of `run_test_mask=1024 nr_threads=64 nr_pages=5` (patch)",
                there: "about +8 % (64 CPUs)",
                here: format!("{more}, `hashed` over `one-lock`"),
                differs: format!("64 workers on {cpus} CPUs; {loops} loops"),
            });
        }
        let contended = |target: &str| locks::contentions(part.of(target)?, LockClass::Lookup);
        if let Some((before, after)) = contended("one-lock").zip(contended("hashed")) {
            rows.push(Row {
                what: "6.4, contentions of the lookup of blocks (patch)",
                there: "862,698 of `vmap_blocks.xa_lock`, then 10,394",
                here: format!("{before} of `one-lock`, {after} of `hashed`"),
                differs:
                    "lookups are read without the lock in `vm_unmap_ram`, here and there; a run is shorter"
                        .to_string(),
            });
        }
    }
    if let Some(hints) = &compared.hints {
        rows.push(Row {
            what: "5.2, per-CPU hints, a million actions of traffic control (series)",
            there: "69 : 44 : 39 s",
            here: hints.text(),
            differs: format!(
                "{} actions; per-CPU memory alone, so the ratio is larger (results/percpu.md); 44 is asked for as 12 packed bytes, as \
                 5.0 has them; aligned to 8: results/percpu.md",
                hints.actions
            ),
        });
    }
    rows
}

/// Returns lines of CSV, in the format of the other figures.
pub fn csv(hints: Option<&Hints>) -> Vec<String> {
    let Some(hints) = hints else { return Vec::new() };
    let of = ["before", "packed-12", "hints"];
    of.iter().zip(hints.ns).map(|(of, ns)| format!("hints,1,{of},percpu,action_ns,{:.2}", ns.shown)).collect()
}
