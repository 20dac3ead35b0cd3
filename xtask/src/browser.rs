//! Opens a report in a real browser, without a window. The page loads nothing and reports no error. The slider, the
//! keys, the button and the pointer work, by the pixels.
//!
//! The same page is then broken in several ways, and each must be detected: a check that cannot fail checks nothing.

mod check;
mod pipe;

use crate::cargo::tested_programs;
use crate::count::Tests;
use crate::not_run;
use crate::sh::{Cmd, Show, on_path};
use anyhow::{Context, Result, bail};
use pipe::Browser;
use std::fs;
use std::path::{Path, PathBuf};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// A report to open, instead of one made of the data in the tree
    #[arg(value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write pictures of the page here: light, dark, and as a PDF
    #[arg(long, value_name = "DIR")]
    shots: Option<PathBuf>,
}

/// Browsers that take commands through a pipe, the smallest first.
const BROWSERS: [&str; 6] = [
    "chromium-headless-shell",
    "chrome-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
];

/// Inputs of the page: a trace of several CPUs, a listing, measurements.
const INPUTS: [&str; 3] =
    ["data/fork-netns-smp4.ftrace.gz", "data/boot-smp1.vmallocinfo", "results/space-baseline.csv"];

/// Faults to plant in a page: a description, the replaced text, its replacement, and a text in the expected error.
const BREAKS: [(&str, &str, &str, &str); 7] = [
    (
        "the slider does nothing",
        "slider.addEventListener(\"input\"",
        "slider.addEventListener(\"inputs\"",
        "slider",
    ),
    ("the keys do nothing", "canvas.addEventListener(\"keydown\"", "canvas.addEventListener(\"keys\"", "key"),
    ("the film opens at its beginning", "go(film.opens);", "go(0);", "opens"),
    ("a click lights nothing", "lit = lit === who ? null : who;", "lit = null;", "lights"),
    ("the console complains", "\"use strict\";", "console.error(\"broken\");", "broken"),
    (
        "something is fetched",
        "\"use strict\";",
        "fetch(\"https://example.invalid/x\").catch(() => {});",
        "example.invalid",
    ),
    ("the script ends early", "\"use strict\";", "null.broken;", "broken"),
];

/// Runs `cargo xtask browser`.
pub(crate) fn main(root: &Path, args: &Args) -> Result<()> {
    let Some(program) = find() else { bail!("no browser of these is installed: {}", BROWSERS.join(", ")) };
    let dir = root.join("target/browser");
    fs::create_dir_all(&dir)?;
    let report = match &args.report {
        Some(report) => report.canonicalize().with_context(|| format!("cannot open {}", report.display()))?,
        None => make(root, &dir)?,
    };
    let mut browser = Browser::start(&program, &dir.join("profile"))?;
    let message = check::page(&mut browser, &report)?;
    println!("{}: {message}", report.display());
    broken(&mut browser, &report, &dir)?;
    if let Some(shots) = &args.shots {
        fs::create_dir_all(shots)?;
        check::shots(&mut browser, &report, shots)?;
    }
    Ok(())
}

/// Runs the step of CI. Where no browser is installed it is skipped, except in CI itself.
pub(crate) fn step(root: &Path, _: &mut Tests) -> Result<()> {
    let Some(program) = find() else {
        let names = BROWSERS.join(", ");
        if not_run::must_run() {
            bail!("no browser of these is installed: {names}");
        }
        not_run::add(root, &format!("reports in a browser: none of these is installed: {names}"));
        return Ok(());
    };
    let dir = root.join("target/browser");
    fs::create_dir_all(&dir)?;
    let report = make(root, &dir)?;
    let mut browser = Browser::start(&program, &dir.join("profile"))?;
    println!("{program}: {}", check::page(&mut browser, &report)?);
    broken(&mut browser, &report, &dir)
}

/// Plants each of [`BREAKS`] in a good page, and checks that it is detected.
fn broken(browser: &mut Browser, report: &Path, dir: &Path) -> Result<()> {
    let page = fs::read_to_string(report)?;
    for (what, find, replace, wanted) in BREAKS {
        if !page.contains(find) {
            bail!("cannot break the page so that {what}: it does not contain {find}");
        }
        let broken = dir.join("broken.html");
        fs::write(&broken, page.replace(find, replace))?;
        match check::page(browser, &broken) {
            Ok(_) => bail!("a page on which {what} passed the checks"),
            Err(error) => {
                let message = format!("{error:#}");
                if !message.contains(wanted) {
                    bail!("a page on which {what} failed for another reason: {message}");
                }
                println!("broken on purpose, {what}: {message}");
            }
        }
    }
    Ok(())
}

fn find() -> Option<String> {
    BROWSERS.iter().find(|name| on_path(name)).map(ToString::to_string)
}

/// Makes the report to open.
fn make(root: &Path, dir: &Path) -> Result<PathBuf> {
    let report = dir.join("report.html");
    let program = tested_programs(root)?.join("vmlab");
    Cmd::new(root, program).arg("report").args(INPUTS).arg("-o").arg(&report).run(Show::All)?;
    Ok(report)
}
