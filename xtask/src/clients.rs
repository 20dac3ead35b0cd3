//! Real programs with the preload and without, in turns: equal answers, time, peak memory.
//!
//! # Theory
//! In each trial every column runs once: the C library's own allocator ("plain"), the preload, glibc's allocator with
//! two tunables ("tuned"), and each allocator of `--peer`. The order rotates from trial to trial. The page compares CPU
//! time, which a busy machine disturbs less than wall time, and the ratio within a trial (see [`ratio`]). `--control`
//! runs the plain program twice in each trial: the distance of that ratio from 1 is the noise of the machine.
//!
//! The tuned column shows the share of a gain that two settings of glibc reach, and its memory. `--quick` omits it,
//! since it measures nothing.
//!
//! | module | contents |
//! |---|---|
//! | [`table`] | the applications, and their work |
//! | [`suites`] | upstream test suites |
//! | [`place`], [`input`] | their sources and their input |
//! | [`trial`] | one run |
//! | [`ratio`] | a ratio and its interval |
//! | [`page`], [`notes`] | `results/clients.md` and `.csv`, in figures and in words |

mod input;
mod notes;
mod page;
mod place;
mod ratio;
mod suites;
mod table;
mod trial;

use crate::count::Tests;
use crate::install;
use crate::machine;
use anyhow::{Context, Result, bail};
use input::Scale;
use notes::Notes;
use page::Row;
use place::Place;
use std::fs;
use std::path::{Path, PathBuf};
use suites::SUITES;
use table::{CLIENTS, Client};
use trial::{Column, Trial};

/// The name of the preload's column.
const OURS: &str = "vmalloc";

/// The name of the column of glibc's allocator with [`TUNABLES`].
const TUNED: &str = "tuned";

/// Large allocations come from the heap instead of `mmap`, and up to 8 GiB of free memory stay at its end.
const TUNABLES: &str = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=8589934592";

/// The text before the settings on a page of `--conf`.
const CONF_MARK: &str = "`VMALLOC_CONF=";

#[derive(clap::Args, Debug, Default)]
pub(crate) struct Args {
    /// Only these applications, and only their upstream test suites
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(names()))]
    only: Vec<String>,
    /// Trials that count, after one that does not; at least 15 for a verdict
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: u32,
    /// One trial, on small input, of the applications that need no Python and are installed: nothing is installed
    #[arg(long, conflicts_with_all = ["pairs", "suites", "control", "out"])]
    quick: bool,
    /// Install nothing: applications that lack something are skipped
    #[arg(long)]
    no_install: bool,
    /// Run the plain program twice in each trial
    #[arg(long)]
    control: bool,
    /// Another allocator's library as a column of its own
    #[arg(long, value_name = "NAME=PATH", value_parser = peer)]
    peer: Vec<Column>,
    /// A preload other than the one that is built here
    #[arg(long, value_name = "PATH")]
    preload: Option<PathBuf>,
    /// Settings of the preload for our column, as in VMALLOC_CONF; without, its defaults
    #[arg(long, value_name = "TEXT", conflicts_with = "keep")]
    conf: Option<String>,
    /// Run the upstream test suites, too, with the preload and without
    #[arg(long)]
    suites: bool,
    /// Run the upstream test suites and nothing else
    #[arg(long, conflicts_with_all = ["quick", "pairs", "control", "suites"])]
    suites_only: bool,
    /// Write clients.md and clients.csv there
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Keep the rows of clients.csv there of applications that are not run now; the page names them
    #[arg(long, requires = "out")]
    keep: bool,
    /// Make the input files of applications, and end
    #[arg(long, hide = true)]
    make_input: Option<Scale>,
}

/// Returns the names that `--only` accepts: applications, and suites of no application.
fn names() -> Vec<&'static str> {
    let mut names: Vec<&str> = CLIENTS.iter().map(|client| client.name).collect();
    let others = SUITES.iter().map(|suite| suite.client).filter(|name| !names.contains(name));
    let others: Vec<&str> = others.collect();
    names.extend(others);
    names
}

fn peer(text: &str) -> Result<Column, String> {
    let (name, path) = text.split_once('=').ok_or("not of the form NAME=PATH")?;
    let library = fs::canonicalize(path).map_err(|error| format!("{path}: {error}"))?;
    if name.is_empty() || ["plain", OURS, TUNED, "plain again"].contains(&name) || name.contains([',', '|']) {
        return Err(format!("\"{name}\" is no name for a peer"));
    }
    Ok(Column { name: name.to_string(), library: Some(library), conf: None, tunables: None })
}

/// Runs `cargo xtask clients`.
pub(crate) fn main(root: &Path, args: &Args) -> Result<()> {
    if let Some(scale) = args.make_input {
        return input::make(&scale.dir(&root.join("target/clients")), scale);
    }
    let scale = if args.quick { Scale::Quick } else { Scale::Full };
    let place = Place::new(root, !args.no_install && !args.quick, scale)?;
    let columns = columns(root, args)?;
    let pairs = if args.quick { 1 } else { args.pairs };
    let (mut skipped, mut failed) = (Vec::new(), Vec::new());
    let (mut rows, mut notes) = read_earlier(root, args)?;
    let before = rows.len();
    for client in CLIENTS.iter().filter(|client| chosen(client, args)) {
        let (scene, version) = match place.set_up(client) {
            Ok(there) => there,
            Err(error) => {
                crate::not_run::add(root, &format!("{} under the preload: {error:#}", client.name));
                notes.absent(client.name, &format!("{error:#}"));
                skipped.push(format!("{}: {error:#}", client.name));
                continue;
            }
        };
        println!("{}: {version}", client.name);
        let measured = measure(client, &scene, &columns, pairs, version);
        match measured {
            Ok(row) => {
                print!(
                    "{}",
                    page::table(std::slice::from_ref(&row))
                        .lines()
                        .skip(2)
                        .map(|line| line.to_string() + "\n")
                        .collect::<String>()
                );
                failed.extend(row.unequal.iter().map(|what| format!("{}: {what}", row.name)));
                notes.ran(&row.name);
                rows.push(row);
                // Results are written at once, in case a later application takes the machine down.
                if let Some(dir) = &args.out {
                    write(root, args, dir, &mut rows, &notes)?;
                }
            }
            Err(error) => {
                println!("{}: FAILED: {error:#}", client.name);
                notes.absent(client.name, &format!("FAILED: {error:#}"));
                failed.push(format!("{}: {error:#}", client.name));
            }
        }
    }
    let mut tested = 0;
    if args.suites || args.suites_only {
        let column = |name: &str| columns.iter().find(|column| column.name == name).context("no such column");
        let (plain, ours) = (column("plain")?, column(OURS)?);
        for suite in SUITES.iter().filter(|suite| wanted(suite.client, args)) {
            let ended = suites::run(&place, suite, plain, ours);
            let outcome = ended.as_deref().map_or_else(|error| format!("FAILED: {error:#}"), str::to_string);
            println!("{}: {}: {outcome}", suite.client, suite.what);
            failed.extend(ended.err().map(|error| format!("tests of {}: {error:#}", suite.client)));
            notes.suite(suite.client, suite.what, &outcome);
            tested += 1;
        }
    }
    let ran = rows.len() - before;
    if ran == 0 && failed.is_empty() && notes.no_suites() {
        println!("clients: nothing was run: {}", skipped.join("; "));
        return Ok(());
    }
    if !args.quick {
        println!("\n{}\n{}", page::goals(&rows), floor());
    }
    if let Some(dir) = &args.out {
        write(root, args, dir, &mut rows, &notes)?;
    }
    if !failed.is_empty() {
        bail!("{}", failed.join("; "));
    }
    let suites = if tested == 0 { String::new() } else { format!("{tested} suites reported, ") };
    println!("clients: {ran} ran, answers equal, {suites}{} skipped", skipped.len());
    Ok(())
}

/// Reads the earlier measurements and results of applications that are not run now.
fn read_earlier(root: &Path, args: &Args) -> Result<(Vec<Row>, Notes)> {
    let (Some(dir), true) = (&args.out, args.keep) else { return Ok((Vec::new(), Notes::default())) };
    let path = root.join(dir).join("clients.csv");
    let text = fs::read_to_string(&path).with_context(|| format!("nothing to keep: {}", path.display()))?;
    let mut rows = page::read_csv(&text).with_context(|| path.display().to_string())?;
    rows.retain(|row| !CLIENTS.iter().any(|client| client.name == row.name && chosen(client, args)));
    let page = fs::read_to_string(root.join(dir).join("clients.md")).unwrap_or_default();
    if page.contains(CONF_MARK) {
        bail!("{} was measured under other settings", path.display());
    }
    Ok((rows, Notes::read(&page)))
}

fn chosen(client: &Client, args: &Args) -> bool {
    wanted(client.name, args) && (client.quick || !args.quick) && !args.suites_only
}

fn wanted(name: &str, args: &Args) -> bool {
    args.only.is_empty() || args.only.iter().any(|only| only == name)
}

/// Returns the columns: plain, ours, glibc with tunables, the control, peers.
fn columns(root: &Path, args: &Args) -> Result<Vec<Column>> {
    let library = match &args.preload {
        Some(path) => path.clone(),
        None => install::preload(root)?,
    };
    let library =
        fs::canonicalize(&library).with_context(|| format!("no preload at {}", library.display()))?;
    let mut columns = vec![
        Column::plain("plain"),
        Column { name: OURS.to_string(), library: Some(library), conf: args.conf.clone(), tunables: None },
    ];
    if !args.quick {
        columns.push(Column { tunables: Some(TUNABLES), ..Column::plain(TUNED) });
    }
    if args.control {
        columns.push(Column::plain("plain again"));
    }
    columns.extend(args.peer.iter().cloned());
    Ok(columns)
}

/// Runs an application's trials.
fn measure(
    client: &Client,
    scene: &trial::Scene,
    columns: &[Column],
    pairs: u32,
    version: String,
) -> Result<Row> {
    let mut trials: Vec<Vec<Trial>> = vec![Vec::new(); columns.len()];
    let mut unequal = Vec::new();
    // The first trial fills the caches of the system. It does not count, except in a run of one trial.
    let first = u32::from(pairs == 1);
    for trial in first..=pairs {
        for at in trial::order(trial as usize, columns.len()) {
            let (Some(column), Some(list)) = (columns.get(at), trials.get_mut(at)) else { continue };
            let ran = trial::run_trial(client, scene, column).with_context(|| format!("turn {trial}"))?;
            if trial > 0 {
                list.push(ran);
            }
        }
    }
    let expected =
        trials.first().and_then(|list| list.first()).map(|trial| trial.answer).context("no turn")?;
    for (column, list) in columns.iter().zip(&trials) {
        for (at, trial) in list.iter().enumerate().filter(|(_, trial)| trial.answer != expected) {
            unequal.push(format!(
                "{} answered {:?} in turn {}, not {expected:?}",
                column.name,
                trial.answer,
                at + 1
            ));
        }
    }
    if expected.bytes == 0 {
        unequal.push("no answer".to_string());
    }
    let ours = columns.iter().find(|column| column.name == OURS).context("no preload")?;
    let served = trial::served(client, scene, ours).context("the run that counts")?;
    if client.quick && served == 0 {
        bail!("the preload served nothing");
    }
    Ok(Row {
        name: client.name.to_string(),
        what: client.what.to_string(),
        version,
        columns: columns.iter().map(|column| column.name.clone()).zip(trials).collect(),
        served,
        unequal,
    })
}

fn write(root: &Path, args: &Args, dir: &Path, rows: &mut [Row], notes: &Notes) -> Result<()> {
    let dir = root.join(dir);
    rows.sort_by_key(|row| CLIENTS.iter().position(|client| client.name == row.name));
    let rows = &*rows;
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let mut text = format!(
        "# Real programs under the preload\n\n\
         `cargo xtask clients --out results` at commit {}{}, on {}. Programs as their makers built them, with `libvmalloc_preload.so` {} \
         and without, in turns, of which each has another order. Speed is how often the other one's time goes into the plain one's: above 1 is \
         faster. \"tuned\" is the C library's own allocator with `GLIBC_TUNABLES={TUNABLES}`: large allocations come from its heap \
         instead of `mmap`, and up to 8 GiB of free memory stay at the end of the heap. Ratios and their 95 % intervals \
         come from the logarithms of the ratios of each turn; CPU time is user and system time of all processes, peak \
         memory the largest resident set of one of them. \"served\" counts large allocations that came from us in one run. \
         \"faster\" means that the whole interval is above 1.05, \"same\" above 1/1.03. Every turn is in `clients.csv`.\n\n## Goals\n\n{}\n## \
         Turns\n\n{}\n## Clients\n\n{}",
        machine::commit(root),
        kept(rows, args),
        machine::machine(root),
        args.conf.as_ref().map_or("at its defaults".to_string(), |conf| format!("and {CONF_MARK}{conf}`")),
        page::goals(rows),
        page::table(rows),
        page::legend(rows),
    );
    // A line after a table, so that it is no row of it.
    text += "\n";
    text += &floor();
    text += &notes.page();
    fs::write(dir.join("clients.md"), text)?;
    fs::write(dir.join("clients.csv"), page::csv(rows))?;
    println!("written: {}", dir.join("clients.md").display());
    Ok(())
}

/// Names the applications with figures of an earlier run, which was on another commit.
fn kept(rows: &[Row], args: &Args) -> String {
    let chosen = |row: &&Row| CLIENTS.iter().any(|client| client.name == row.name && chosen(client, args));
    let names: Vec<&str> = rows.iter().filter(|row| !chosen(row)).map(|row| row.name.as_str()).collect();
    if names.is_empty() { String::new() } else { format!(" (kept from earlier runs: {})", names.join(", ")) }
}

/// Returns the lower bound of each peak of this run.
fn floor() -> String {
    trial::floor_bytes().map_or_else(
        || "How much of each peak is this program's own is not known here.\n".to_string(),
        |bytes| {
            format!(
                "A peak is at least {:.1} MB in this run: the system counts what this program had when it started them as theirs.\n",
                bytes as f64 / 1e6
            )
        },
    )
}

/// Runs the step of CI.
pub(crate) fn step(root: &Path, _: &mut Tests) -> Result<()> {
    main(root, &Args { pairs: 1, quick: true, no_install: true, ..Args::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_client_is_measured_with_tuned_glibc_but_not_in_a_quick_run() {
        let named = |args: &Args| -> Vec<(String, Option<&str>)> {
            let columns = columns(Path::new("."), args).unwrap();
            columns.into_iter().map(|column| (column.name, column.tunables)).collect()
        };
        let preload = std::env::current_exe().ok();
        let args = Args { preload, ..Args::default() };
        let bare = |name: &str| (name.to_string(), None);
        assert_eq!(named(&args), [bare("plain"), bare(OURS), (TUNED.to_string(), Some(TUNABLES))]);
        assert_eq!(named(&Args { quick: true, ..args }), [bare("plain"), bare(OURS)]);
        assert!(peer("tuned=/bin/sh").is_err() && peer("other=/bin/sh").is_ok());
    }

    #[test]
    fn a_page_names_the_clients_that_an_earlier_run_measured() {
        let row = |name: &str| Row {
            name: name.to_string(),
            what: String::new(),
            version: String::new(),
            columns: Vec::new(),
            served: 0,
            unequal: Vec::new(),
        };
        let rows = [row("numpy"), row("xz"), row("git")];
        let args = Args { only: vec!["numpy".to_string()], keep: true, ..Args::default() };
        assert_eq!(kept(&rows, &args), " (kept from earlier runs: xz, git)");
        assert_eq!(kept(&rows, &Args::default()), "");
    }
}
