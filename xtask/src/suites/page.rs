//! The page `results/suites.md`.

use super::packages::Fetched;
use super::run::{End, Outcome, Runner, WAYS};
use super::{Test, causes, glibc};
use crate::machine::{commit, machine};
use anyhow::Result;
use std::fmt::Write;
use std::path::Path;

/// Runs of a test whose first run differs from plain.
const RUNS: usize = 3;

/// The runs of a test in one configuration. More than one if the first differed from plain.
pub(crate) struct Cell {
    runs: Vec<Outcome>,
}

impl Cell {
    fn differing(&self, plain: &Outcome) -> usize {
        self.runs.iter().filter(|run| !run.like(plain)).count()
    }
}

/// A test with its runs.
pub(crate) struct Line {
    suite: &'static str,
    name: String,
    cells: Result<Vec<Cell>, String>,
}

impl Line {
    /// Runs a test in all configurations.
    pub(crate) fn of(runner: &Runner, test: Test) -> Result<Self> {
        let Test { suite, name, program } = test;
        let program = match program {
            Ok(program) => program,
            Err(why) => return Ok(Self { suite, name, cells: Err(why) }),
        };
        let mut cells: Vec<Cell> = Vec::new();
        for way in &WAYS {
            let mut runs = vec![runner.run(&program, way)?];
            // A difference that occurs once may be chance: of the machine, or of a randomized test.
            if let Some(plain) = cells.first().and_then(|cell| cell.runs.first()) {
                let again = |run: &Outcome| !run.like(plain) && run.end != End::Late;
                while runs.len() < RUNS && runs.first().is_some_and(again) {
                    runs.push(runner.run(&program, way)?);
                }
            }
            cells.push(Cell { runs });
        }
        Ok(Self { suite, name, cells: Ok(cells) })
    }

    pub(crate) fn ran(&self) -> bool {
        self.cells.is_ok()
    }

    /// Returns the indices of the configurations that differ from plain.
    fn differing(&self) -> Vec<usize> {
        let Ok(cells) = &self.cells else { return Vec::new() };
        let Some(plain) = cells.first().and_then(|cell| cell.runs.first()) else { return Vec::new() };
        (1..cells.len()).filter(|at| cells.get(*at).is_some_and(|cell| cell.differing(plain) > 0)).collect()
    }

    /// Returns the differences without a known cause, by name.
    pub(crate) fn unexplained(&self) -> Vec<String> {
        let unknown =
            self.differing().into_iter().filter(|way| causes::of(self.suite, &self.name, *way).is_none());
        unknown
            .filter_map(|way| Some(format!("{} {} ({})", self.suite, self.name, WAYS.get(way)?.name)))
            .collect()
    }

    /// Returns the row of the table.
    pub(crate) fn row(&self) -> String {
        let mut row = format!("| {} | {} |", self.suite, self.name);
        let cells = match &self.cells {
            Ok(cells) => cells,
            Err(why) => return row + &format!(" not built: {why} |{}", " |".repeat(WAYS.len())),
        };
        let plain = cells.first().and_then(|cell| cell.runs.first());
        for cell in cells {
            let (Some(first), Some(plain)) = (cell.runs.first(), plain) else { continue };
            let differing = cell.differing(plain);
            let times = if differing > 0 && differing < cell.runs.len() {
                format!(", {differing} of {} runs", cell.runs.len())
            } else {
                String::new()
            };
            let mark = if differing > 0 { "**" } else { "" };
            // Writing to a text cannot fail.
            let _ok = write!(row, " {mark}{first}{times}{mark} |");
        }
        let served =
            cells.iter().filter_map(|cell| cell.runs.first()).map(|run| run.served).max().unwrap_or(0);
        row + &format!(" {served} |")
    }
}

/// Returns how many tests end alike, by suite.
pub(crate) fn alike(lines: &[Line]) -> String {
    let mut suites: Vec<&str> = lines.iter().map(|line| line.suite).collect();
    suites.dedup();
    let counts = suites.iter().map(|suite| {
        let ran: Vec<&Line> = lines.iter().filter(|line| line.suite == *suite && line.ran()).collect();
        let same = ran.iter().filter(|line| line.differing().is_empty()).count();
        format!("{suite} {same} of {}", ran.len())
    });
    format!("alike in all: {}", counts.collect::<Vec<_>>().join(", "))
}

/// Returns the whole page.
pub(crate) fn page(root: &Path, limit: u32, lines: &[Line], fetched: &[Fetched]) -> String {
    let ways: Vec<&str> = WAYS.iter().map(|way| way.name).collect();
    let mut text = format!(
        "# Test suites of others\n\nEach test is a program that runs plain, with the preload, and with the preload and a configuration. A result in\n\
         bold differs from plain; such a test has run {RUNS} times, unless it did not end. Nothing differs without a cause that the last section\n\
         names: the command fails otherwise. \"no end\" is a run that took longer than {limit} s. \"2 of 3\" are cases of a test that\n\
         passed. The last column counts the allocations that the preload served at `threshold:4K`.\n\nThe tests are those of {} as \
         released, and those that packages of crates.io carry. They were built\nagainst the C library of this system.\n\n\
         `cargo xtask suites --out` at {} on {}.\n\nTests that end {}.\n\n| suite | test | {} | served |\n|---|---|{}---:|\n",
        glibc::version(),
        commit(root),
        machine(root),
        alike(lines),
        ways.join(" | "),
        "---|".repeat(ways.len()),
    );
    for line in lines {
        text += &line.row();
        text += "\n";
    }
    text += "\n## Packages\n\n| package | C and C++ sources of tests | what it has |\n|---|---:|---|\n";
    for Fetched { name, version, has, sources, .. } in fetched {
        // The rest of a version is that of the package's contents, and a commit.
        let version = version.split('+').next().unwrap_or_default();
        text += &format!("| {name} {version} | {sources} | {has} |\n");
    }
    text += "\n## Causes\n\n";
    for line in lines {
        let mut reported = Vec::new();
        for way in line.differing() {
            match causes::of(line.suite, &line.name, way) {
                Some(cause) if reported.contains(&cause.why) => {}
                Some(cause) => {
                    reported.push(cause.why);
                    text +=
                        &wrapped(&format!("- **{}** ({}): {}", line.name, cause.ways.join("; "), cause.why));
                }
                None => text += &format!("- **{}**: unexplained.\n", line.name),
            }
        }
    }
    text + include_str!("plain.md")
}

/// Columns of a page.
const COLUMNS: usize = 120;

/// Breaks an item of a list into lines.
fn wrapped(item: &str) -> String {
    let (mut text, mut column) = (String::new(), 0);
    for word in item.split(' ') {
        let width = word.chars().count();
        if column > 0 && column + 1 + width > COLUMNS {
            text.push_str("\n  ");
            column = 2;
        } else if column > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += width;
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(end: End, served: u64) -> Outcome {
        Outcome { end, cases_passed: 0, cases_failed: 0, seconds: 0.1, served }
    }

    fn line(ends: [&[End]; 5]) -> Line {
        let cell = |ends: &[End]| Cell { runs: ends.iter().map(|end| run(*end, 3)).collect() };
        Line { suite: "s", name: "t".to_string(), cells: Ok(ends.map(cell).into_iter().collect()) }
    }

    #[test]
    fn what_differs_from_plain_is_bold_and_needs_a_cause() {
        let (ok, bad): (&[End], &[End]) = (&[End::Passed], &[End::Code(1), End::Passed, End::Code(1)]);
        let one = line([ok, ok, ok, bad, ok]);
        assert_eq!(one.row(), "| s | t | ok | ok | ok | **exit 1, 2 of 3 runs** | ok | 3 |");
        assert_eq!(one.unexplained(), ["s t (hardened)"]);
        let same = line([&[End::Code(1)]; 5]);
        assert!(same.unexplained().is_empty() && !same.row().contains('*'));
        let none = Line { suite: "s", name: "n".to_string(), cells: Err("why".to_string()) };
        assert_eq!(none.row(), "| s | n | not built: why | | | | | |");
        assert_eq!(alike(&[one, same, none]), "alike in all: s 1 of 2");
    }

    #[test]
    fn an_item_is_broken_at_spaces() {
        let text = wrapped(&format!("- {}", "word ".repeat(40).trim_end()));
        assert!(text.lines().all(|line| line.len() <= COLUMNS) && text.lines().count() == 2);
        assert!(text.lines().nth(1).unwrap().starts_with("  word"));
    }
}
