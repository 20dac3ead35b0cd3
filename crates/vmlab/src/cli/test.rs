//! `vmlab test`: the kernel's test suite, on targets.

use super::{out, say};
use crate::bench::print::{header, page, prepare, tables_to_terminal};
use crate::suite::case::Suite;
use crate::suite::driver::{self, Ran};
use crate::suite::params::Params;
use crate::suite::print::{lines, table};
use crate::suite::target::{Entry, Setup, Target};
use anyhow::{Context as _, Result, bail};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Options of `vmlab test`.
#[derive(clap::Args, Debug, Clone)]
pub struct Args {
    /// performance, stress or smoke; or key=value: nr_threads, sequential_test_order, test_repeat_count, test_loop_count, nr_pages,
    /// use_huge, run_test_mask, nr_pcpu_objects
    #[arg(value_name = "MODE|KEY=VALUE")]
    arguments: Vec<String>,
    /// What to test; `all` is every target that can be made
    #[arg(long, value_delimiter = ',', value_name = "NAME", default_value = "space")]
    target: Vec<String>,
    /// Which version of the suite
    #[arg(long, value_enum, value_name = "VERSION", default_value = "7.1")]
    suite: Suite,
    /// Where random sizes and orders begin
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// A shared library with the C functions kv_init, kv_alloc, kv_free and so on: the target `linux`
    #[arg(long, value_name = "FILE")]
    kern: Option<PathBuf>,
    /// One with kp_init, kp_alloc_fast, kp_free and so on: its per-CPU memory
    #[arg(long, value_name = "FILE", requires = "kern")]
    kern_percpu: Option<PathBuf>,
    /// Print a table of all targets instead of the kernel's lines
    #[arg(long, group = "page")]
    table: bool,
    #[command(flatten)]
    compare: crate::compare::Args,
    /// Write the table to test-suite.md in this directory, or what --compare found to test-compare.md, .csv and .svg
    #[arg(long, value_name = "DIR", requires = "page")]
    out: Option<PathBuf>,
}

/// Where the table goes.
const PAGE: &str = "test-suite.md";

/// Runs the suite on those of `entries` that are asked for, one after the other.
///
/// # Errors
/// What is wrong with the arguments, or the first target with a failure.
pub fn run(args: &Args, entries: &[Entry]) -> Result<()> {
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32);
    if let Some((names, more)) = args.compare.wanted() {
        let params = Params::parse(args.suite, cpus, &[&args.arguments[..], &more[..]].concat())?;
        return crate::compare::run(
            &args.compare,
            &names,
            params,
            &setup(args, cpus),
            entries,
            args.out.as_deref(),
        );
    }
    let params = Params::parse(args.suite, cpus, &args.arguments)?;
    let chosen = choose(args, entries)?;
    let header = header(params.test_repeat_count as usize);
    if let Some(dir) = &args.out {
        prepare(dir, PAGE)?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    // The second one ends the process, should the first be of no use.
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    if !driver::has_cycles() {
        say("this processor has no time stamp counter: a cycle is a nanosecond");
    }
    let setup = setup(args, cpus);
    let mut runs: Vec<(&str, Ran)> = Vec::new();
    for entry in &chosen {
        let target = (entry.make)(&setup)?;
        let Some(params) = supported(entry.name, &*target, params) else {
            bail!(
                "{} can do none of the tests that run_test_mask={} selects",
                entry.name,
                params.run_test_mask
            );
        };
        if chosen.len() > 1 {
            // With several targets the lines of each begin with its name.
            if args.table {
                say(&format!("{} ...", entry.name))
            } else {
                out(&format!("Target: {}", entry.name))?
            }
        }
        if !args.table {
            out(&format!("Run the test with following parameters: {params}"))?;
        }
        let ran = driver::run(&*target, &params, setup.cpus, args.seed, &stop)?;
        if !args.table {
            for line in lines(&ran) {
                out(&line)?;
            }
            out("Done.")?;
        }
        let interrupted = ran.interrupted;
        runs.push((entry.name, ran));
        if interrupted {
            break;
        }
    }
    if args.table {
        tables_to_terminal([table(&runs)])?;
    }
    judge(&runs)?;
    match &args.out {
        Some(dir) => write(args, dir, &runs, &header),
        None => Ok(()),
    }
}

/// What targets are made for.
fn setup(args: &Args, cpus: u32) -> Setup {
    Setup {
        cpus: cpus.min(va_space::NODES_LIMIT),
        kern: args.kern.clone(),
        kern_percpu: args.kern_percpu.clone(),
    }
}

/// The entries that are asked for, in their order, each once.
fn choose(args: &Args, entries: &[Entry]) -> Result<Vec<Entry>> {
    if let Some(unknown) = args
        .target
        .iter()
        .find(|name| name.as_str() != "all" && entries.iter().all(|entry| entry.name != name.as_str()))
    {
        let names: Vec<_> = entries.iter().map(|entry| entry.name).collect();
        bail!("no target is called {unknown} (there are {}, and all)", names.join(", "));
    }
    let all = args.target.iter().any(|name| name == "all");
    let named = |entry: &&Entry| args.target.iter().any(|name| name == entry.name);
    let makeable = |entry: &&Entry| entry.name != "linux" || args.kern.is_some();
    Ok(entries.iter().filter(|entry| named(entry) || all && makeable(entry)).copied().collect())
}

/// The parameters without the tests that a target cannot run, which are named; `None` if none is left.
fn supported(name: &str, target: &dyn Target, params: Params) -> Option<Params> {
    let mut mask = 0;
    for case in params.cases() {
        if target.supports(case) {
            mask |= case.bit();
        } else {
            say(&format!("{name} has nothing for {}, which is left out", case.name()));
        }
    }
    match mask {
        0 => None,
        _ if mask.count_ones() as usize == params.cases().count() => Some(params),
        _ => Some(Params { run_test_mask: mask, ..params }),
    }
}

/// What is wrong with the runs.
fn judge(runs: &[(&str, Ran)]) -> Result<()> {
    for (name, ran) in runs {
        match ran.failures() {
            0 => {}
            failures => bail!("{name}: {failures} of the tests failed that should not"),
        }
        if let Err(why) = &ran.settled {
            bail!("{name}: {why}");
        }
    }
    match runs.iter().find(|(_, ran)| ran.interrupted) {
        Some((name, _)) => bail!("{name}: interrupted; what is shown is of what ran until then"),
        None => Ok(()),
    }
}

fn write(args: &Args, dir: &std::path::Path, runs: &[(&str, Ran)], header: &str) -> Result<()> {
    let about = format!(
        "{header}suite    {}, {}\n",
        args.suite.name(),
        runs.first().map(|(_, ran)| ran.params.to_string()).unwrap_or_default()
    );
    let text = page("The kernel's test suite", [table(runs)], &about);
    let path = dir.join(PAGE);
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}
