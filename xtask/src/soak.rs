//! Long runs: random operations on every structure while memory fails for a time, then fuzz targets and property tests.
//! A page in `results/` has the outcome.

use crate::cargo::{counted, full};
use crate::count::Tests;
use crate::fuzz;
use crate::machine::{commit, duration, machine};
use crate::parallel;
use crate::sh::{Cmd, Show};
use anyhow::{Result, bail};
use std::fmt::Write;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

/// Cases of each property test, unless it fixes its own number.
const CASES: u64 = 1024;

/// Operations of one seed of `va_sim::soak`. The tests themselves count their operations.
const SEED_OPERATIONS: u64 = 50_000;
/// Its operations from one walk to the next, unless the command says another number.
const WALK_EVERY: u64 = 997;

/// The tests inside a package.
const LIB: &str = "";
/// The tests of random operations while memory fails for a time: package, program of tests, test.
const STRUCTURES: [(&str, &str, &str); 18] = [
    ("va-tree", "memory", "memory_that_fails_for_a_while_leaves_btree_as_its_model"),
    ("va-tree", "memory", "memory_that_fails_for_a_while_leaves_btree32_as_its_model"),
    ("va-tree", "memory", "memory_that_fails_for_a_while_leaves_rb_exact_as_its_model"),
    ("va-tree", "memory", "memory_that_fails_for_a_while_leaves_rb_linux_as_it_is_with_memory"),
    ("va-space", "space", "faults::memory_that_fails_for_a_while_leaves_ours_whole"),
    ("va-space", "space", "faults::memory_that_fails_for_a_while_leaves_ours_with_trees_whole"),
    ("va-space", "space", "faults::memory_that_fails_for_a_while_leaves_nodes_whole"),
    ("va-space", "space", "faults::memory_that_fails_for_a_while_leaves_one_lock_whole"),
    ("va-block", "blocks", "faults::memory_that_fails_for_a_while_leaves_reused_blocks_whole"),
    ("va-block", "blocks", "faults::memory_that_fails_for_a_while_leaves_dying_blocks_whole"),
    ("va-block", "blocks", "faults::memory_that_fails_for_a_while_leaves_blocks_of_one_map_whole"),
    ("va-map", "map", "model::sp4_random_calls_while_memory_fails_for_a_while"),
    ("va-map", "map", "model::sp4_random_calls_while_memory_fails_for_a_while_under_policies_of_linux"),
    ("va-percpu", "percpu", "failure::ours_serves_afterwards_what_failed_for_a_while"),
    ("va-percpu", "percpu", "failure::runs_serve_afterwards_what_failed_for_a_while"),
    ("va-percpu", "percpu", "failure::a_scan_serves_afterwards_what_failed_for_a_while"),
    ("va-percpu", "percpu", "failure::linux_serves_afterwards_what_failed_for_a_while"),
    ("vmalloc", LIB, "heap::tests::soak::sp4_calls_that_fail_for_a_while_leave_the_heap_whole"),
];

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Minutes, approximately: half of them fuzzing, half of them property tests; 0 omits both
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// Random operations on each structure while memory fails for a time; 0 omits them
    #[arg(long, default_value_t = 10_000_000)]
    operations: u64,
    /// Operations of a seed from one walk of all invariants to the next; a seed has 50,000, and a walk at its end
    #[arg(long, default_value_t = WALK_EVERY)]
    walk_every: u64,
    /// Only the structures whose test has this in its name, or the other, if it is given more than once
    #[arg(long)]
    only: Vec<String>,
    /// The first seed: others than those of a run before, or on another machine
    #[arg(long, default_value_t = 0)]
    first_seed: u64,
    /// Processes at a time, by default one for each core; with fewer structures, they divide the seeds of each
    #[arg(long)]
    jobs: Option<usize>,
}

/// A section of the page: one part of the run, with its command and its commit. It is written again after each row, and
/// leaves the other section unchanged.
struct Section<'a> {
    root: &'a Path,
    title: &'static str,
    command: String,
    started: Instant,
    commit: String,
    machine: String,
    rows: String,
}

impl<'a> Section<'a> {
    fn new(root: &'a Path, title: &'static str, command: String) -> Self {
        let (commit, machine) = (commit(root), machine(root));
        Self { root, title, command, started: Instant::now(), commit, machine, rows: String::new() }
    }

    fn text(&self) -> String {
        let Self { title, command, commit, machine, rows, .. } = self;
        let time = duration(self.started.elapsed().as_secs_f64());
        format!(
            "## {title}\n\n- command: `{command}`\n- commit: {commit}\n- machine: {machine}\n- time: {time}\n\n\
             | what | how much | time | outcome |\n|---|---|---|---|\n{rows}"
        )
    }

    fn add(&mut self, row: &str) -> Result<()> {
        self.rows.push_str(row);
        let path = self.root.join(PAGE);
        let page = with_section(&fs::read_to_string(&path).unwrap_or_default(), self.title, &self.text());
        fs::create_dir_all(self.root.join("results"))?;
        Ok(fs::write(path, page)?)
    }
}

const PAGE: &str = "results/soak.md";
const RANDOM: &str = "Random operations while memory fails for a time, in release builds without `validate`";
/// With `--only`.
const SOME: &str = "Random operations on some structures";
const FUZZED: &str = "Fuzz targets and property tests";

/// Returns a page whose section of that title is `text`. The sections are in the order of the program.
fn with_section(page: &str, title: &str, text: &str) -> String {
    let mut result = "# Long runs\n".to_string();
    for name in [RANDOM, SOME, FUZZED] {
        let old = page.split("\n## ").skip(1).find(|section| section.lines().next() == Some(name));
        match (name == title, old) {
            (true, _) => _ = write!(result, "\n{text}"),
            (false, Some(old)) => _ = writeln!(result, "\n## {}", old.trim_end()),
            (false, None) => {}
        }
    }
    result
}

/// The outcome of one of those tests, from its output, or of several processes of one.
#[derive(PartialEq, Eq, Debug, Default)]
struct Soaked {
    structure: String,
    /// Each with the name of what is counted: the operations first.
    counts: Vec<(u64, String)>,
}

impl Soaked {
    /// Reads `soak: STRUCTURE: N operations, ...`, which may follow other output on the line.
    fn read(line: &str) -> Option<Self> {
        let (_, said) = line.split_once("soak: ")?;
        let (structure, counts) = said.split_once(": ")?;
        let count =
            |text: &str| text.split_once(' ').and_then(|(n, what)| Some((n.parse().ok()?, what.to_string())));
        let counts = counts.split(", ").map(count).collect::<Option<_>>()?;
        Some(Self { structure: structure.to_string(), counts })
    }

    fn add(&mut self, other: Self) {
        if self.counts.is_empty() {
            *self = other;
        } else {
            self.counts.iter_mut().zip(other.counts).for_each(|((sum, _), (more, _))| *sum += more);
        }
    }

    fn operations(&self) -> u64 {
        self.counts.first().map_or(0, |(count, _)| *count)
    }

    fn text(&self) -> String {
        self.counts.iter().map(|(count, what)| format!("{count} {what}")).collect::<Vec<_>>().join(", ")
    }
}

/// The seeds of a structure that one process runs.
#[derive(PartialEq, Eq, Debug)]
struct Part {
    structure: usize,
    seeds: Range<u64>,
}

/// Divides the seeds of each structure among the jobs if there are fewer structures.
fn parts(structures: usize, seeds: Range<u64>, jobs: usize) -> Vec<Part> {
    let count = seeds.end - seeds.start;
    let parts = if structures < jobs { (jobs as u64).min(count) } else { 1 };
    let begin = |nth: u64| seeds.start + count * nth / parts;
    let of = |structure| (0..parts).map(move |nth| Part { structure, seeds: begin(nth)..begin(nth + 1) });
    (0..structures).flat_map(of).collect()
}

/// The parts of a structure that have ended, as a row of the page.
struct Row {
    started: Instant,
    parts_left: usize,
    soaked: Soaked,
    has_passed: bool,
}

impl Row {
    fn new(parts: usize) -> Self {
        Self { started: Instant::now(), parts_left: parts, soaked: Soaked::default(), has_passed: true }
    }

    fn add(&mut self, soaked: Option<Soaked>, has_passed: bool) {
        self.parts_left -= 1;
        self.has_passed &= has_passed && soaked.is_some();
        self.soaked.add(soaked.unwrap_or_default());
    }

    fn is_clean(&self, wanted: u64) -> bool {
        self.has_passed && self.soaked.operations() >= wanted
    }

    fn text(&self, test: &str, seeds: &Range<u64>, wanted: u64) -> String {
        let outcome = if self.is_clean(wanted) { "nothing found" } else { "**FAILED**" };
        let what = if self.soaked.structure.is_empty() { test } else { &self.soaked.structure };
        let (counts, time) = (self.soaked.text(), duration(self.started.elapsed().as_secs_f64()));
        format!("| {what} | seeds {} to {}: {counts} | {time} | {outcome} |\n", seeds.start, seeds.end - 1)
    }
}

/// Returns the arguments of cargo for the tests of some packages.
fn release_tests<'a>(packages: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<&'a str> {
    let these = packages.flat_map(|(package, program)| match program {
        LIB => vec!["-p", package, "--lib"],
        _ => vec!["-p", package, "--test", program],
    });
    ["test", "--quiet", "--locked", "--release"].into_iter().chain(these).collect()
}

/// Runs each test of [`STRUCTURES`] for the number of operations. Returns true if all of them passed.
fn structures(root: &Path, args: &Args) -> Result<bool> {
    let wanted = args.operations;
    let mut command = format!("cargo xtask soak --operations {wanted} --minutes 0");
    if args.walk_every != WALK_EVERY {
        _ = write!(command, " --walk-every {}", args.walk_every);
    }
    if args.first_seed > 0 {
        _ = write!(command, " --first-seed {}", args.first_seed);
    }
    for only in &args.only {
        _ = write!(command, " --only {only}");
    }
    let mut section = Section::new(root, if args.only.is_empty() { RANDOM } else { SOME }, command);
    let seeds = args.first_seed..args.first_seed + wanted.div_ceil(SEED_OPERATIONS);
    let is_wanted = |test: &str| args.only.is_empty() || args.only.iter().any(|only| test.contains(only));
    let structures: Vec<_> = STRUCTURES.into_iter().filter(|&(_, _, test)| is_wanted(test)).collect();
    if structures.is_empty() {
        bail!("no structure's test has that in its name");
    }
    let mut programs: Vec<_> = structures.iter().map(|&(package, program, _)| (package, program)).collect();
    programs.dedup();
    let build = release_tests(programs.into_iter());
    Cmd::cargo(root).args(build).arg("--no-run").run(Show::All)?;
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = args.jobs.unwrap_or_else(cores).max(1);
    let parts = parts(structures.len(), seeds.clone(), jobs);
    let mut rows: Vec<Option<Row>> = structures.iter().map(|_| None).collect();
    let run = |part: &Part| {
        let (started, (package, program, test)) = (Instant::now(), structures[part.structure]);
        let cmd = full(Cmd::cargo(root))
            .env("VMALLOC_SOAK_FIRST_SEED", part.seeds.start.to_string())
            .env("VMALLOC_SOAK_SEEDS", (part.seeds.end - part.seeds.start).to_string())
            .env("VMALLOC_SOAK_WALK_EVERY", args.walk_every.to_string())
            .args(release_tests([(package, program)].into_iter()))
            .args(["--", "--exact", "--nocapture", test]);
        let mut soaked = None;
        let ended = cmd.lines(Show::All, |line| soaked = Soaked::read(line).or(soaked.take()))?;
        Ok((started, soaked, ended.code == Some(0)))
    };
    parallel::each(jobs, &parts, run, |part, (started, soaked, has_passed)| {
        let row = rows[part.structure].get_or_insert_with(|| Row::new(parts.len() / structures.len()));
        row.started = row.started.min(started);
        row.add(soaked, has_passed);
        if row.parts_left == 0 {
            section.add(&row.text(structures[part.structure].2, &seeds, wanted))?;
        }
        Ok(())
    })?;
    Ok(rows.iter().flatten().all(|row| row.is_clean(wanted)))
}

/// Runs `cargo xtask soak`.
pub(crate) fn main(root: &Path, args: &Args) -> Result<()> {
    let mut is_clean = args.operations == 0 || structures(root, args)?;
    if args.minutes > 0 {
        is_clean &= fuzz_and_test(root, args)?;
    }
    println!("\n{}\nwritten to {PAGE}", fs::read_to_string(root.join(PAGE)).unwrap_or_default());
    if !is_clean {
        bail!("something was found: see above");
    }
    Ok(())
}

/// Runs the fuzz targets and the tests of the core for the minutes. Returns true if nothing was found.
fn fuzz_and_test(root: &Path, args: &Args) -> Result<bool> {
    let command = format!("cargo xtask soak --operations 0 --minutes {}", args.minutes);
    let mut section = Section::new(root, FUZZED, command);
    let (targets, core) = (fuzz::targets(root)?, crate::core_crates(root)?);
    let seconds = (args.minutes * 30 / targets.len() as u64).max(1);
    fuzz::build(root)?;
    let mut clean = true;
    for target in &targets {
        let fuzzed = fuzz::run(root, target, seconds)?;
        clean &= fuzzed.clean;
        let outcome = if fuzzed.clean { "nothing found" } else { "**FAILED**" };
        let (executed, time) = (fuzzed.executed, duration(fuzzed.seconds));
        section.add(&format!("| fuzz target `{target}` | {executed} inputs | {time} | {outcome} |\n"))?;
    }
    // Property tests draw fresh cases each round; the long runs have numbered seeds, twice as many each round. So a
    // round takes at most about twice as long as the last: one that would end too late is not started.
    let tests_started = Instant::now();
    let (mut tests, mut rounds, mut seeds, mut last) = (Tests::default(), 0, 2, 0.0);
    while rounds == 0
        || (tests.failed == 0
            && tests_started.elapsed().as_secs_f64() + 2.0 * last < (args.minutes * 30) as f64)
    {
        let round_started = Instant::now();
        (rounds, seeds) = (rounds + 1, seeds * 2);
        let cmd = full(Cmd::cargo(root))
            .env("PROPTEST_CASES", CASES.to_string())
            .env("VMALLOC_SOAK_SEEDS", seeds.to_string())
            .args(["test", "--quiet", "--locked", "--no-fail-fast", "--lib", "--tests"])
            .args(core.iter().flat_map(|name| ["-p", name]))
            .args(["--features", "va-tree/validate"]);
        if let Err(error) = counted(cmd, &mut tests) {
            println!("{error:#}");
            tests.failed = tests.failed.max(1);
        }
        last = round_started.elapsed().as_secs_f64();
    }
    clean &= tests.failed == 0 && tests.passed > 0;
    let (time, outcome) = (
        duration(tests_started.elapsed().as_secs_f64()),
        if tests.failed == 0 { "all passed" } else { "**FAILED**" },
    );
    section.add(&format!(
        "| tests of the core, invariants walked | {} tests passed, {} failed (rounds: {rounds}), \
         {seeds} seeds in the last, {CASES} cases of each property | {time} | {outcome} |\n",
        tests.passed, tests.failed
    ))?;
    Ok(clean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_a_test_is_read_wherever_it_stands() {
        let counts = "200 operations, 3 shortages, 4 failed requests, 5 walks";
        let soaked = Soaked::read(&format!("test a ... soak: space, Linux69: {counts}")).unwrap();
        assert_eq!((soaked.structure.as_str(), soaked.operations()), ("space, Linux69", 200));
        assert_eq!(soaked.text(), counts);
        assert_eq!(Soaked::read("soak: nothing"), None);
        assert_eq!(Soaked::read("test result: ok. 12 passed"), None);
    }

    #[test]
    fn parts_divide_the_seeds_if_there_are_fewer_structures_than_jobs() {
        let part = |structure, seeds| Part { structure, seeds };
        assert_eq!(parts(2, 7..17, 2), [part(0, 7..17), part(1, 7..17)]);
        assert_eq!(parts(1, 7..17, 3), [part(0, 7..10), part(0, 10..13), part(0, 13..17)]);
        assert_eq!(parts(1, 7..9, 16), [part(0, 7..8), part(0, 8..9)]);
        let divided = parts(5, 0..20_000, 16);
        assert_eq!(divided.iter().map(|part| part.seeds.clone().count()).sum::<usize>(), 5 * 20_000);
        assert!(
            divided.windows(2).all(|two| two[0].seeds.end == two[1].seeds.start || two[1].seeds.start == 0)
        );
    }

    #[test]
    fn a_row_has_the_sum_of_its_parts_and_fails_if_one_fails() {
        let soaked =
            |operations, walks| Soaked::read(&format!("soak: index: {operations} operations, {walks} walks"));
        let of = |second, has_passed| {
            let mut row = Row::new(2);
            row.add(soaked(100, 7), true);
            row.add(second, has_passed);
            row
        };
        let both = of(soaked(50, 4), true);
        let text = both.text("test", &(3..6), 150);
        assert!(text.starts_with("| index | seeds 3 to 5: 150 operations, 11 walks | "), "{text}");
        assert!(text.ends_with(" | nothing found |\n") && both.parts_left == 0, "{text}");
        for (row, wanted) in [(both, 151), (of(soaked(50, 4), false), 150), (of(None, true), 100)] {
            assert!(!row.is_clean(wanted) && row.text("test", &(3..6), wanted).contains("**FAILED**"));
        }
    }

    #[test]
    fn a_section_is_replaced_and_the_other_stays() {
        let first = with_section("# Long runs\n\n| old | page |\n", FUZZED, "## fuzzed\n");
        assert_eq!(first, "# Long runs\n\n## fuzzed\n");
        let fuzzed = format!("## {FUZZED}\n\n| a |\n");
        let random = format!("## {RANDOM}\n\n| b |\n");
        let both = with_section(&with_section("", FUZZED, &fuzzed), RANDOM, &random);
        assert_eq!(both, format!("# Long runs\n\n{random}\n{fuzzed}"));
        assert_eq!(with_section(&both, FUZZED, &fuzzed), both);
    }

    #[test]
    fn each_test_of_a_structure_is_there() {
        for (package, program, test) in STRUCTURES {
            let (modules, name) = test.rsplit_once("::").unwrap_or(("", test));
            let dir = crate::crate_dir(&crate::root(), package).unwrap();
            let dir = if program == LIB { dir.join("src") } else { dir.join("tests").join(program) };
            let file =
                modules.split("::").filter(|it| !it.is_empty()).fold(dir, |dir, module| dir.join(module));
            let file = if file.is_dir() { file.join("main.rs") } else { file.with_extension("rs") };
            let text = fs::read_to_string(file).unwrap();
            assert!(text.contains(&format!("fn {name}()")), "{test} of {package}");
        }
    }
}
