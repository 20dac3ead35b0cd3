//! `results/faces.md`: the tests, the time, the memory, the stack and the code of each package beside its original.

use super::Row;
use super::text::{self, Text};
use crate::machine::machine;
use crate::sh::{Cmd, Show};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// Runs of the measurement of time, each a process of its own.
const RUNS: usize = 3;

/// The times of one interface with so many live areas, in nanoseconds: of each run.
type Times = BTreeMap<(String, usize), Vec<Time>>;

/// One row of the program: minimum and median of ours and of the original, and the median ratio of a round.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Time {
    ours: [f64; 2],
    original: [f64; 2],
    ratio: f64,
}

/// Measures, and writes the page.
pub(super) fn write(root: &Path, rows: &[Row]) -> Result<()> {
    Cmd::cargo(root)
        .args(["build", "--quiet", "--locked", "--release", "--manifest-path", super::MANIFEST])
        .args(["--package", "faces-bench", "--target-dir", "target/faces/bench"])
        .run(Show::Failure)?;
    let program = |name: &str| {
        Cmd::new(root, root.join("target/faces/bench/release").join(name)).read().context(name.to_string())
    };
    let mut times = Times::new();
    for _ in 0..RUNS {
        for (key, time) in program("faces-bench")?.lines().filter_map(time) {
            times.entry(key).or_default().push(time);
        }
    }
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("unknown").to_string();
    let (bytes, stack) = (program("bytes")?, program("stack")?);
    let commit = Cmd::new(root, "git").args(["rev-parse", "--short=12", "HEAD"]).read()?;
    let machine = format!("{}, load average {load} after the runs", machine(root));
    let page = page(commit.trim(), &machine, rows, &times, [&bytes, &stack], &text::measure(root)?);
    fs::write(root.join("results/faces.md"), page)?;
    println!("faces: results/faces.md");
    Ok(())
}

/// Returns the contents of a row of the program of times.
fn time(line: &str) -> Option<((String, usize), Time)> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [name, live, rest @ ..] = &fields[..] else { return None };
    let numbers: Vec<f64> = rest.iter().map_while(|field| field.parse().ok()).collect();
    let [a, b, c, d, ratio] = numbers[..] else { return None };
    Some(((name.to_string(), live.parse().ok()?), Time { ours: [a, b], original: [c, d], ratio }))
}

fn page(
    commit: &str,
    machine: &str,
    rows: &[Row],
    times: &Times,
    [bytes, stack]: [&str; 2],
    texts: &[Text],
) -> String {
    let mut page = format!(
        "# The packages with the names of others\n\n`cargo xtask faces --large --out` at commit {commit}, on {machine}. \
         The chapter `docs/book/src/faces.md` states what is the same and what differs.\n\n\
         ## Tests of the originals, and dependents\n\n\
         Each original's unit tests and examples of documentation run over our package, which has its name. A dependent \
         is a package of the registry, built unmodified with `[patch.crates-io]`.\n\n\
         | package | tests of the original | its examples | do not apply | dependents |\n|---|---:|---:|---|---|\n"
    );
    for Row { face, upstream, dependents } in rows {
        let of = |tests: crate::count::Tests| format!("{} of {}", tests.passed, tests.passed + tests.failed);
        let left_out = upstream.left_out.map_or("-".to_string(), |(count, why)| format!("{count} {why}"));
        let dependents: Vec<String> = dependents.iter().map(ToString::to_string).collect();
        let dependents = if dependents.is_empty() { "none known".to_string() } else { dependents.join("; ") };
        let (unit, examples) = (of(upstream.unit), of(upstream.examples));
        _ = writeln!(
            page,
            "| `{} {}` | {unit} | {examples} | {left_out} | {dependents} |",
            face.name, face.version
        );
    }
    _ = write!(
        page,
        "\n## Time\n\nA pair frees a random area and allocates another of 1 to 16 units. Half of the areas that were \
         allocated first are free, so there are about half as many holes as live areas. In a round ours and the original \
         run in turn; {RUNS} runs of 15 rounds. Times are the minimum and the median of all, in nanoseconds of a pair. \
         A ratio is the time of the original divided by ours: the median of the rounds, and its range over the runs. \
         Below 1 the original is faster.\n\n\
         | package | live areas | ours | original | times faster | of the minima |\n|---|---:|---:|---:|---:|---:|\n"
    );
    for ((name, live), runs) in times {
        let least = |of: fn(&Time) -> f64| runs.iter().map(of).fold(f64::INFINITY, f64::min);
        let most = |of: fn(&Time) -> f64| runs.iter().map(of).fold(0.0, f64::max);
        let middle = |of: fn(&Time) -> f64| {
            let mut values: Vec<f64> = runs.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let (ours, original) = (least(|time| time.ours[0]), least(|time| time.original[0]));
        _ = writeln!(
            page,
            "| `{name}` | {live} | {ours:.0}, {:.0} | {original:.0}, {:.0} | {:.2} to {:.2} | {:.2} |",
            middle(|time| time.ours[1]),
            middle(|time| time.original[1]),
            least(|time| time.ratio),
            most(|time| time.ratio),
            original / ours
        );
    }
    page += "\n## Memory\n\nBytes of the heap with so many live areas, after up to 500 pairs, and bytes of the value itself. \
             `offset-allocator` allocates at the start, here for 524,288 areas and holes.\n\n\
             | package | live areas | ours | original |\n|---|---:|---:|---:|\n";
    rows_by_interface(&mut page, bytes);
    page += "\n## Stack\n\nBytes of stack of the deepest pair of 5,000, or of 500 with 100,000 live areas. The calls of \
             the system's heap are in both.\n\n\
             | package | live areas | ours | original |\n|---|---:|---:|---:|\n";
    rows_by_interface(&mut page, stack);
    page += "\n## Code\n\nBytes of `.text` of a program that allocates and frees, optimised as one, beyond those of a program \
             that does neither.\n\n| package | ours | original |\n|---|---:|---:|\n";
    for Text { name, ours, original } in texts {
        _ = writeln!(page, "| `{name}` | {ours} | {original} |");
    }
    page
}

/// Appends the rows of a program (interface, live areas, ours, original), which has them by the number of live areas.
fn rows_by_interface(page: &mut String, rows: &str) {
    let mut lines: Vec<&str> = rows.lines().collect();
    lines.sort_by_key(|line| line.split('\t').next());
    for line in lines {
        if let [name, live, ours, original] = line.split('\t').collect::<Vec<_>>()[..] {
            let live = if live == "0" { "the value" } else { live };
            _ = writeln!(page, "| `{name}` | {live} | {ours} | {original} |");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_the_program_are_read() {
        let line = "free-list\t16\t1.0\t2.0\t3.0\t4.0\t2.500";
        let read = Time { ours: [1.0, 2.0], original: [3.0, 4.0], ratio: 2.5 };
        assert_eq!(time(line), Some((("free-list".to_string(), 16), read)));
        assert_eq!(time("free-list\t16\tfails"), None);
    }

    #[test]
    fn the_page_has_each_table() {
        let times = Times::from([(
            ("a".to_string(), 16),
            vec![Time { ours: [2.0, 3.0], original: [4.0, 9.0], ratio: 3.0 }],
        )]);
        let texts = [Text { name: "a", ours: 5, original: 6 }];
        let page = page("c", "a machine", &[], &times, ["a\t0\t7\t8\n", "a\t16\t9\t10\n"], &texts);
        for row in [
            "| `a` | 16 | 2, 3 | 4, 9 | 3.00 to 3.00 | 2.00 |",
            "| `a` | the value | 7 | 8 |",
            "| `a` | 16 | 9 | 10 |",
            "| `a` | 5 | 6 |",
        ] {
            assert!(page.contains(row), "{page}");
        }
    }
}
