//! Opens a report in a real browser, without a window. The page loads nothing and reports no error. The tabs, the
//! slider, the keys, the button, the pointer and zoom work, by the pixels. No tab has more than five screens, and no
//! picture is cut, in a wide window and in a narrow one.
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
    /// Write pictures of the page here: each tab at 1,400 and 420 pixels, light and dark, and a PDF
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

/// Inputs of the page: a trace of several CPUs, a listing, a recording of durations, measurements.
const INPUTS: [&str; 4] = [
    "data/fork-netns-smp4.ftrace.gz",
    "data/boot-smp1.vmallocinfo",
    "data/latency-smp4.jsonl.gz",
    "results/space-baseline.csv",
];

/// A trace of two areas with many free rows between them.
const HOLES: &str = "\
x-1 [000] ..... 1.000000: alloc_vmap_area: va_start: 1048576 size=8192 align=1 vstart=0x100000 vend=0x3fffff failed=0
x-1 [000] ..... 1.000001: alloc_vmap_area: va_start: 1966080 size=8192 align=1 vstart=0x100000 vend=0x3fffff failed=0
";

/// Faults to plant in a page: a description, the replaced text, its replacement, and a text in the expected error.
const BREAKS: [(&str, &str, &str, &str); 20] = [
    (
        "the slider does nothing",
        "slider.addEventListener(\"input\"",
        "slider.addEventListener(\"inputs\"",
        "slider",
    ),
    ("the keys do nothing", "canvas.addEventListener(\"keydown\"", "canvas.addEventListener(\"keys\"", "key"),
    ("the film opens at its beginning", "go(film.opens);", "go(0);", "opens"),
    ("a click lights nothing", "lit = lit === who || who < 0 ? null : who;", "lit = null;", "lights"),
    ("an area is deaf", "canvas.addEventListener(\"click\", click);", "", "an area that is clicked"),
    (
        "a tab shows all sections",
        "panels[nth].classList.toggle(\"shown\", nth === at);",
        "panels[nth].classList.add(\"shown\");",
        "the tab of",
    ),
    (
        "the keys of the tabs do nothing",
        "bar.addEventListener(\"keydown\"",
        "bar.addEventListener(\"keys\"",
        "on the tabs",
    ),
    (
        "the pictures of narrow windows are cut",
        "viewBox=\"0 0 366 ",
        "viewBox=\"0 0 200 ",
        "is cut in a window of 420: label",
    ),
    (
        "a table is too wide",
        "table{font-size:12px}",
        "table{font-size:24px}",
        "is cut in a window of 420: table",
    ),
    ("labels are too large", "font-size=\"10.5\"", "font-size=\"20\"", "in a window of 420"),
    ("a tab is too long", "h3{margin-top:1.1rem}", "h3{margin-top:100rem}", "screens in a window of 420"),
    ("the contents scroll away", ".tabs,.toc{position:sticky", ".tabs,.toc{position:static", "stay in view"),
    ("the keys do not zoom", "event.key === \"+\"", "event.key === \"?\"", "zoom by the key +"),
    (
        "the wheel does not zoom",
        "if (!event.ctrlKey && !event.metaKey) return;",
        "return;",
        "zoom by the wheel",
    ),
    ("a drag does nothing", "scroll(top - pages);", "", "a drag changes"),
    ("reset keeps the zoom", "zoom = 1;\n    scroll(0);", "scroll(0);", "reset"),
    (FREE_ROWS_DRAWN, "if (empty > 1) {", "if (false) {", "free rows"),
    ("the console complains", "\"use strict\";", "console.error(\"broken\");", "broken"),
    (
        "something is fetched",
        "\"use strict\";",
        "fetch(\"https://example.invalid/x\").catch(() => {});",
        "example.invalid",
    ),
    ("the script ends early", "\"use strict\";", "null.broken;", "broken"),
];

/// A fault that only a page with free rows has.
const FREE_ROWS_DRAWN: &str = "free rows are drawn";

/// Runs `cargo xtask browser`.
pub(crate) fn main(root: &Path, args: &Args) -> Result<()> {
    let Some(program) = find() else { bail!("no browser of these is installed: {}", BROWSERS.join(", ")) };
    let dir = root.join("target/browser");
    fs::create_dir_all(&dir)?;
    let (report, folds) = match &args.report {
        Some(report) => {
            let report =
                report.canonicalize().with_context(|| format!("cannot open {}", report.display()))?;
            (report, false)
        }
        None => (make(root, &dir)?, true),
    };
    let mut browser = Browser::start(&program, &dir.join("profile"))?;
    let message = check::page(&mut browser, &report, folds)?;
    println!("{}: {message}", report.display());
    broken(&mut browser, &report, &dir, folds)?;
    if let Some(shots) = &args.shots {
        fs::create_dir_all(shots)?;
        for line in check::shots(&mut browser, &report, shots)? {
            println!("{line}");
        }
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
    println!("{program}: {}", check::page(&mut browser, &report, true)?);
    broken(&mut browser, &report, &dir, true)
}

/// Plants each of [`BREAKS`] in a good page, and checks that it is detected.
fn broken(browser: &mut Browser, report: &Path, dir: &Path, folds: bool) -> Result<()> {
    let page = fs::read_to_string(report)?;
    for (what, find, replace, wanted) in BREAKS {
        if what == FREE_ROWS_DRAWN && !folds {
            continue;
        }
        if !page.contains(find) {
            bail!("cannot break the page so that {what}: it does not contain {find}");
        }
        let broken = dir.join("broken.html");
        fs::write(&broken, page.replace(find, replace))?;
        match check::page(browser, &broken, folds) {
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
    let holes = dir.join("holes.ftrace");
    fs::write(&holes, HOLES)?;
    Cmd::new(root, program).arg("report").args(INPUTS).arg(&holes).arg("-o").arg(&report).run(Show::All)?;
    Ok(report)
}
