//! `vmlab replay --space`: traces through a whole space.

use super::input::{Input, inferred};
use super::table::{Columns, Shown, answers, differences};
use super::{Form, out, print_note};
use anyhow::Result;
use comfy_table::Cell;
use vmlab_base::text::counted;
use vmlab_replay::run_space::{Policy, SpaceOutcome, nodes_of, run};
use vmlab_replay::space::Reasons;

/// Replays every trace, and prints a row for each: addresses, and why some differ from the kernel's.
pub(super) fn replay(inputs: &[Input], policy: Option<Policy>, nodes: Option<u32>, form: Form) -> Result<()> {
    let replay = |input: &Input| {
        let nodes = nodes.unwrap_or_else(|| nodes_of(&input.trace));
        let policy = policy.unwrap_or_else(|| Policy::of(&input.trace));
        run(&input.name, &input.trace, &input.table, policy, nodes)
    };
    let outcomes = inputs.iter().map(replay).collect::<Result<Vec<_>>>()?;
    if form == Form::Json {
        for outcome in &outcomes {
            out(&serde_json::to_string(&outcome.row)?)?;
        }
    } else {
        table(&outcomes, form == Form::Wide)?;
        for SpaceOutcome { row, tally } in &outcomes {
            differences(&row.trace, row.policy, tally)?;
            for line in why(&row.why) {
                out(&format!("{}: {line}", row.trace))?;
            }
        }
    }
    for (input, outcome) in inputs.iter().zip(&outcomes) {
        for note in inferred(&outcome.tally) {
            let note = format!("{}: {note}", input.name);
            // With --json, stdout has the objects only.
            if form == Form::Json { print_note(&note) } else { out(&note)? }
        }
    }
    Ok(())
}

fn table(outcomes: &[SpaceOutcome], wide: bool) -> Result<()> {
    let head = [
        ("trace", Shown::Always),
        ("policy", Shown::Always),
        ("nodes", Shown::Always),
        ("events", Shown::Wide),
        ("allocs", Shown::Always),
        ("equal", Shown::Always),
        ("lower", Shown::Always),
        ("higher", Shown::Always),
        ("failed\nboth", Shown::Wide),
        ("failed\nalone", Shown::Always),
        ("inferred", Shown::Wide),
        ("purges", Shown::Always),
        ("flushes", Shown::Wide),
        ("pooled\nat end", Shown::Wide),
        ("holes\nat end", Shown::Wide),
    ];
    let mut table = Columns::new(wide, 2, head);
    for SpaceOutcome { row, .. } in outcomes {
        let [equal, lower, higher, failed_both, failed_alone] = answers(row.allocs, &row.columns);
        table.row([
            Cell::new(&row.trace),
            Cell::new(row.policy),
            Cell::new(row.nodes),
            Cell::new(row.events),
            Cell::new(row.allocs),
            equal,
            lower,
            higher,
            failed_both,
            failed_alone,
            Cell::new(row.inferred),
            Cell::new(row.purges),
            Cell::new(row.flushes),
            Cell::new(row.pooled),
            Cell::new(row.holes),
        ]);
    }
    table.print()
}

/// Returns the reasons why answers differ, the most frequent first.
fn why(reasons: &Reasons) -> Vec<String> {
    let Reasons { pool, other_cpu, purge_time, aligned, earlier, owner_unknown, holes } = *reasons;
    let mut why = [
        (pool, "one side took an area from a pool, the other took another or none"),
        (other_cpu, "the kernel's range is in the pool of another CPU's node"),
        (purge_time, "the range of one is still lazy on the other side: purged at another time"),
        (aligned, "aligned to more than a page, where searches differ"),
        (earlier, "the range of one is another area's on the other side, from an earlier difference"),
        (
            owner_unknown,
            "an area that stood before the trace was freed there, and whose pool has it is not known",
        ),
        (holes, "none of these: the holes differ"),
    ];
    why.sort_by_key(|&(count, _)| std::cmp::Reverse(count));
    let line = |(count, text): (u64, &str)| format!("{}: {text}", counted(count, "difference"));
    why.into_iter().filter(|&(count, _)| count > 0).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_listed_by_weight_and_those_that_are_none_are_not() {
        let lines = why(&Reasons { pool: 1, earlier: 1200, ..Reasons::default() });
        assert_eq!(lines.len(), 2);
        assert!(lines[0].starts_with("1,200 differences: the range of one is another area's"), "{lines:?}");
        assert!(lines[1].starts_with("1 difference: one side took"), "{lines:?}");
    }
}
