//! Instructions, locked operations and cache lines of hot paths, counted by callgrind and compared with
//! `results/counts.csv`.
//!
//! # Theory
//! A timing on a shared machine varies by more than the effect of a change. Counts do not: the same program does the
//! same. So each hot path is counted under valgrind, by the program `counted` of `vmlab-bench`, and a change that
//! costs moves a committed figure.
//!
//! | column | count per pair or call |
//! |---|---|
//! | `instructions` | over many in a row, so that it includes work done every thousandth time |
//! | `locked` | read-modify-writes that lock, over the same |
//! | `lines` | lines of data that one touches: misses of a simulated cache that begins empty and is larger than all of them |
//!
//! The counts are of one compiler. With another one they are shown, and nothing fails.

mod code;
mod profile;

use crate::count::Tests;
use crate::machine::commit;
use crate::sh::{Cmd, Show, on_path};
use crate::{install, not_run};
use anyhow::{Context, Result, anyhow, bail};
use profile::{Codes, Part};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Write results/counts.csv instead of comparing with it
    #[arg(long)]
    update: bool,
    /// Only rows whose name begins with one of these
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    only: Vec<String>,
    /// Take the program and the libraries from here instead of building them
    #[arg(long, value_name = "DIR")]
    built: Option<PathBuf>,
}

/// The committed table, and the folder that callgrind writes to.
const FILE: &str = "results/counts.csv";
const SCRATCH: &str = "target/counts";

/// The largest difference from the committed count: a share of it, or a number if that is more.
const SHARE: f64 = 0.02;
const LEAST: [f64; 3] = [0.25, 0.02, 0.5];
const COLUMNS: [&str; 3] = ["instructions", "locked", "lines"];

/// The simulated data cache: larger than the data of any row. The second level must not be smaller.
const CACHE: [&str; 3] = ["--cache-sim=yes", "--D1=67108864,16,64", "--LL=134217728,16,64"];

/// A row: its name, and the values of its columns.
#[derive(Clone, PartialEq, Debug)]
struct Row {
    name: String,
    counts: [f64; 3],
}

/// The table, and the compiler of its counts.
#[derive(PartialEq, Debug)]
struct Table {
    compiler: String,
    rows: Vec<Row>,
}

/// The rows of the step of CI: each path of the code that rows count has one. The others count the same paths with
/// other data.
const SHORT: [&str; 23] = [
    "index/btree/rand-1k",
    "index/btree32/aligns-1k",
    "index/rb-linux/rand-1k",
    "index/rb-exact/aligns-1k",
    "pair/magazine",
    "pair/pool",
    "pair/index",
    "pair/unpooled",
    "space/random_size",
    "space/churn_mix",
    "blocks/lane",
    "blocks/block",
    "free-slice",
    "aligned/step",
    "find/inside",
    "percpu/16",
    "percpu/2048-aligned",
    "percpu/magazine",
    "percpu/section",
    "process/64K",
    "process/64M",
    "preload/100",
    "preload/1M",
];

/// Runs the step of CI: the rows of [`SHORT`]. Without valgrind it is skipped, except in CI itself.
pub(crate) fn step(root: &Path, _: &mut Tests) -> Result<()> {
    compared(root, &SHORT)
}

/// Runs the step in full: every row.
pub(crate) fn full(root: &Path, _: &mut Tests) -> Result<()> {
    compared(root, &[])
}

fn compared(root: &Path, only: &[&str]) -> Result<()> {
    if !on_path("valgrind") && !not_run::must_run() {
        not_run::add(root, "the counts of hot paths: there is no valgrind");
        return Ok(());
    }
    main(root, &Args { update: false, only: only.iter().map(ToString::to_string).collect(), built: None })
}

/// Runs `cargo xtask counts`.
pub(crate) fn main(root: &Path, args: &Args) -> Result<()> {
    if !on_path("valgrind") {
        bail!("valgrind is not installed: .ci/run --install");
    }
    let built = match &args.built {
        Some(built) => built.canonicalize().with_context(|| format!("no folder {}", built.display()))?,
        None => {
            install::preload(root)?;
            install::counted(root)?
        }
    };
    let compiler = Cmd::new(root, "rustc").arg("--version").read()?.trim().to_string();
    let now = Table { compiler, rows: count(root, &built, &args.only)? };
    let path = root.join(FILE);
    let before = fs::read_to_string(&path).ok().map(|text| parse(&text)).transpose()?;
    if args.update {
        let mut table = now;
        if let (false, Some(before)) = (args.only.is_empty(), before) {
            table.rows = merge(before.rows, table.rows);
        }
        fs::write(&path, print(&table, &commit(root)))?;
        println!("written to {FILE}");
        return Ok(());
    }
    let before = before.with_context(|| format!("there is no {FILE}: cargo xtask counts --update"))?;
    let differences = compare(&before, &now, args.only.is_empty());
    differences.iter().for_each(|line| println!("{line}"));
    if differences.is_empty() {
        println!("counts: {} rows as in {FILE}", now.rows.len());
        return Ok(());
    }
    if before.compiler != now.compiler {
        let (was, is) = (&before.compiler, &now.compiler);
        not_run::add(root, &format!("the comparison of counts: they were made with {was}, and this is {is}"));
        return Ok(());
    }
    bail!(
        "{} counts are not those of {FILE}: a change that costs says so in its commit, and moves them by \
         cargo xtask counts --update",
        differences.len()
    );
}

/// Runs the rows, as many at a time as there are cores.
fn count(root: &Path, built: &Path, only: &[String]) -> Result<Vec<Row>> {
    let scratch = root.join(SCRATCH);
    if scratch.exists() {
        fs::remove_dir_all(&scratch)?;
    }
    fs::create_dir_all(&scratch)?;
    let program = built.join(install::COUNTED);
    let names = Cmd::new(root, &program).read()?;
    let rows: Vec<(&str, &str)> = names.lines().filter_map(|line| line.split_once(' ')).collect();
    if let Some(none) = only.iter().find(|only| !rows.iter().any(|(name, _)| name.starts_with(only.as_str())))
    {
        bail!("no row begins with {none}; there are: {}", names.replace('\n', ", "));
    }
    let chosen = |name: &str| only.is_empty() || only.iter().any(|only| name.starts_with(only.as_str()));
    let rows: Vec<_> = rows.into_iter().filter(|(name, _)| chosen(name)).collect();
    // A relative path, as all that the program can see: the length of a path moves its stack.
    Cmd::new(root, "cc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"])
        .args(["xtask/src/counts/rseq.c", "-o", &format!("{SCRATCH}/rseq.so")])
        .run(Show::Failure)?;
    let (next, done) = (Mutex::new(rows.iter().enumerate()), Mutex::new(Vec::new()));
    let work = || -> Result<()> {
        let mut codes = Codes::default();
        loop {
            let Some((at, (name, needs))) = next.lock().ok().and_then(|mut next| next.next()) else {
                return Ok(());
            };
            let row = one(root, built, name, needs, &mut codes).with_context(|| name.to_string())?;
            println!("{}", line(&row));
            done.lock().map_err(|_| anyhow!("another row failed"))?.push((at, row));
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        running.into_iter().try_for_each(|one| one.join().map_err(|_| anyhow!("a thread failed"))?)
    })?;
    let mut done = done.into_inner().map_err(|_| anyhow!("a thread failed"))?;
    done.sort_by_key(|&(at, _)| at);
    Ok(done.into_iter().map(|(_, row)| row).collect())
}

/// Runs one row under callgrind, with an environment of its own.
fn one(root: &Path, built: &Path, name: &str, needs: &str, codes: &mut Codes) -> Result<Row> {
    let stem = format!("{SCRATCH}/{}", name.replace('/', "-"));
    let preload = match needs {
        "nothing" => String::new(),
        "sections" => format!("{SCRATCH}/rseq.so"),
        // First, since its malloc is the one to be called.
        "preload" => format!("{}:{SCRATCH}/rseq.so", built.join("libvmalloc_preload.so").display()),
        other => bail!("it needs {other}, which is not known here"),
    };
    // The C library chooses routines by the processor's features: only those common to all are enabled.
    let plain = "GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2,-ERMS,-AVX512F,-AVX512VL,-FSRM";
    Cmd::new(root, "timeout")
        .args(["120", "env", "-i", "LANG=C", plain, &format!("LD_PRELOAD={preload}")])
        .args(["valgrind", "--tool=callgrind", "--quiet", "--instr-atstart=no", "--dump-instr=yes"])
        .args(["--compress-strings=no", "--compress-pos=no"])
        .args(CACHE)
        .arg(format!("--callgrind-out-file={stem}.out"))
        .arg(built.join(install::COUNTED))
        .arg(name)
        .run(Show::Failure)?;
    let mut parts: Vec<(String, Part)> = Vec::new();
    for at in 1.. {
        let Ok(text) = fs::read_to_string(root.join(format!("{stem}.out.{at}"))) else { break };
        parts.extend(profile::read(&text, codes)?);
    }
    let part = |what: &str| parts.iter().find(|(known, _)| known == what).map(|&(_, part)| part);
    let alone = part("alone").context("callgrind wrote nothing")?;
    let run = part("run").unwrap_or(alone);
    let each = |sum: u64, part: Part| sum as f64 / part.calls.max(1) as f64;
    let counts = [each(run.instructions, run), each(run.locked, run), each(alone.lines, alone)];
    Ok(Row { name: name.to_string(), counts })
}

/// Returns a row as text.
fn line(Row { name, counts: [instructions, locked, lines] }: &Row) -> String {
    format!("{name},{instructions:.1},{locked:.3},{lines:.1}")
}

fn print(table: &Table, commit: &str) -> String {
    let mut text = format!(
        "# command: cargo xtask counts --update\n# commit: {commit}\n# compiler: {}\nrow,{}\n",
        table.compiler,
        COLUMNS.join(",")
    );
    for row in &table.rows {
        // Writing to a string cannot fail.
        let _written = writeln!(text, "{}", line(row));
    }
    text
}

fn parse(text: &str) -> Result<Table> {
    let compiler = text.lines().find_map(|line| line.strip_prefix("# compiler: ")).unwrap_or_default();
    let mut rows = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')).skip(1) {
        let mut words = line.split(',');
        let name = words.next().unwrap_or_default().to_string();
        let mut counts = [0.0; 3];
        for count in &mut counts {
            let word = words.next().with_context(|| format!("{line}: {} counts", COLUMNS.len()))?;
            *count = word.parse().with_context(|| line.to_string())?;
        }
        rows.push(Row { name, counts });
    }
    Ok(Table { compiler: compiler.to_string(), rows })
}

/// Returns the old rows, with new ones in place of those of the same name.
fn merge(mut before: Vec<Row>, now: Vec<Row>) -> Vec<Row> {
    for row in now {
        match before.iter_mut().find(|old| old.name == row.name) {
            Some(old) => *old = row,
            None => before.push(row),
        }
    }
    before
}

/// Returns a line for each count that differs by too much. Missing rows count only where `all` were counted.
fn compare(before: &Table, now: &Table, all: bool) -> Vec<String> {
    let mut lines = Vec::new();
    for row in &now.rows {
        let Some(old) = before.rows.iter().find(|old| old.name == row.name) else {
            lines.push(format!("{}: not in {FILE}", row.name));
            continue;
        };
        for (at, column) in COLUMNS.iter().enumerate() {
            let (was, is) = (old.counts[at], row.counts[at]);
            if (is - was).abs() > (SHARE * was).max(LEAST[at]) {
                let how = if is > was { "COSTS MORE" } else { "costs less" };
                let share =
                    if was > 0.0 { format!(" ({:+.1} %)", 100.0 * (is / was - 1.0)) } else { String::new() };
                lines.push(format!("{}: {column} {was} -> {is:.3}{share}: {how}", row.name));
            }
        }
    }
    if all {
        let gone = before.rows.iter().filter(|old| now.rows.iter().all(|row| row.name != old.name));
        lines.extend(gone.map(|old| format!("{}: in {FILE}, and not counted any more", old.name)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, counts: [f64; 3]) -> Row {
        Row { name: name.to_string(), counts }
    }

    fn table(rows: &[Row]) -> Table {
        Table { compiler: "rustc 1".to_string(), rows: rows.to_vec() }
    }

    #[test]
    fn a_table_is_read_as_it_is_written() {
        let table = table(&[row("a/b", [30.5, 1.0, 6.2]), row("c", [1e6, 0.0, 40.0])]);
        assert_eq!(parse(&print(&table, "c0ffee")).unwrap(), table);
        assert!(parse("row,instructions\na,1\n").is_err());
    }

    #[test]
    fn a_count_that_is_two_percent_off_is_reported_in_either_direction() {
        let before = table(&[row("a", [100.0, 2.0, 10.0])]);
        let of = |counts: [f64; 3]| compare(&before, &table(&[row("a", counts)]), true);
        assert!(of([101.9, 2.03, 10.4]).is_empty() && of([98.1, 1.97, 9.6]).is_empty());
        assert_eq!(of([102.1, 2.0, 10.0]), ["a: instructions 100 -> 102.100 (+2.1 %): COSTS MORE"]);
        assert!(of([97.0, 2.0, 10.0])[0].ends_with("costs less"));
        assert!(
            of([100.0, 3.0, 10.0])[0].starts_with("a: locked")
                && of([100.0, 2.0, 11.0])[0].starts_with("a: lines")
        );
    }

    #[test]
    fn the_rows_of_each_run_are_in_the_table_and_count_each_group() {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(FILE)).unwrap();
        let table = parse(&text).unwrap();
        let group = |name: &str| name.split('/').next().map(str::to_string);
        assert!(SHORT.iter().all(|name| table.rows.iter().any(|row| row.name == *name)));
        // A purge of everything is a thousand slices, and the name of the short one begins the other's.
        let missing =
            table.rows.iter().filter(|row| !SHORT.iter().any(|name| group(name) == group(&row.name)));
        assert!(missing.map(|row| row.name.as_str()).eq(["purge-1000", "purge-1"]));
    }

    #[test]
    fn rows_that_come_and_go_are_reported() {
        let (before, now) = (table(&[row("a", [1.0; 3])]), table(&[row("b", [1.0; 3])]));
        assert_eq!(compare(&before, &now, true).len(), 2);
        assert_eq!(compare(&before, &now, false), ["b: not in results/counts.csv"]);
    }

    #[test]
    fn a_part_of_the_rows_replaces_those() {
        let merged =
            merge(vec![row("a", [1.0; 3]), row("b", [2.0; 3])], vec![row("b", [3.0; 3]), row("c", [4.0; 3])]);
        assert_eq!(merged.iter().map(|row| row.counts[0]).collect::<Vec<_>>(), [1.0, 3.0, 4.0]);
    }
}
