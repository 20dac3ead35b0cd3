//! `vmlab test`: the kernel's test suite, on targets.

use super::{Terminal, choice, out, print_note, ranged};
use anyhow::{Context as _, Result, bail};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use vmlab_base::output::Output;
use vmlab_bench::compare::{self, Wanted};
use vmlab_bench::harness::{Header, Report, check_names, prepare};
use vmlab_bench::suite::case::Suite;
use vmlab_bench::suite::cold;
use vmlab_bench::suite::driver::{self, Ran};
use vmlab_bench::suite::params::Params;
use vmlab_bench::suite::print::{lines, table};
use vmlab_bench::suite::target::{Entry, Setup, Target};

/// Options of `vmlab test`.
#[derive(clap::Args, Debug, Clone)]
pub(super) struct Args {
    /// performance, stress or smoke; or key=value: nr_threads, sequential_test_order, test_repeat_count,
    /// test_loop_count, nr_pages, use_huge, run_test_mask, nr_pcpu_objects
    #[arg(value_name = "MODE|KEY=VALUE")]
    arguments: Vec<String>,
    /// Targets to test; `all` is every target that can be made
    #[arg(long, value_delimiter = ',', value_name = "NAME", default_value = "space")]
    target: Vec<String>,
    /// Which version of the suite
    #[arg(long, value_parser = choice::<Suite>(), value_name = "VERSION", default_value = "7.1")]
    suite: Suite,
    /// Seed of random sizes and orders
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
    /// Measure cold starts: one execution of each test at loop counts from 1 to 10,000, from the construction of a
    /// target on
    #[arg(long, group = "page")]
    cold: bool,
    #[command(flatten)]
    compare: CompareArgs,
    /// Write the table to test-suite.md in this directory, or to cold.md, or what --compare found to test-compare.md,
    /// .csv and .svg
    #[arg(long, value_name = "DIR", requires = "page")]
    out: Option<PathBuf>,
}

/// The options that `--compare` conflicts with. An option that requires `--compare` names them too: the parser does not
/// ask for a required option that conflicts with a given one.
const NOT_COMPARE: [&str; 3] = ["target", "table", "cold"];

/// Options of `vmlab test --compare`.
#[derive(clap::Args, Debug, Clone)]
#[group(id = "comparison")]
struct CompareArgs {
    /// Compare targets side by side, ratios to the first; the figures of the patches beside them (default: list,
    /// one-lock, hashed, nodes, space). With parameters that select tests or workers, on these alone
    #[arg(long, value_name = "NAME", value_delimiter = ',', num_args = 0..=1, group = "page",
        conflicts_with_all = NOT_COMPARE)]
    compare: Option<Vec<String>>,
    /// Rounds of each target, of which the fastest counts, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 3, requires = "compare", conflicts_with_all = NOT_COMPARE,
        value_parser = ranged::<u64>(1..=1000))]
    rounds: u64,
    /// Seconds after which a run is stopped, and its time a lower bound
    #[arg(long, value_name = "SECONDS", default_value_t = 60, requires = "compare", conflicts_with_all = NOT_COMPARE,
        value_parser = ranged::<u64>(1..=86_400))]
    limit: u64,
}

impl CompareArgs {
    /// Returns the names and the parameters among the arguments, if targets are to be compared.
    fn wanted(&self) -> Option<(Vec<String>, Vec<String>)> {
        let given = self.compare.as_ref()?;
        // An optional value also consumes an argument that is a parameter.
        let is_parameter =
            |text: &String| text.contains('=') || ["performance", "stress", "smoke"].contains(&text.as_str());
        Some(given.iter().filter(|text| !text.is_empty()).cloned().partition(|text| !is_parameter(text)))
    }
}

/// The names of the pages with the table, and with cold starts.
const SUITE: &str = "test-suite";
const COLD: &str = "cold";

/// Runs the suite on the selected targets of `entries`, one after the other, until ^C.
///
/// # Errors
/// An error in the arguments, or the first target with a failure.
pub(super) fn run(args: &Args, entries: &[Entry]) -> Result<()> {
    if let Some((names, more)) = args.compare.wanted() {
        let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32);
        let params = Params::parse(args.suite, cpus, &[&args.arguments[..], &more[..]].concat())?;
        let (setup, dir) = (setup(args, cpus), args.out.as_deref());
        let CompareArgs { rounds, limit: limit_s, .. } = args.compare;
        let wanted = Wanted { names: &names, params, rounds, limit_s, seed: args.seed, setup, entries, dir };
        return compare::run(&wanted, &mut Terminal);
    }
    if args.cold {
        return run_cold(args, entries);
    }
    let stop = Arc::new(AtomicBool::new(false));
    // The second signal ends the process, in case the first has no effect.
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    run_until(&stop, args, entries, &out)
}

/// Does the work of [`run`], until `stop` is set, and prints lines with `show`.
fn run_until(
    stop: &AtomicBool,
    args: &Args,
    entries: &[Entry],
    show: &dyn Fn(&str) -> Result<()>,
) -> Result<()> {
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32);
    let params = Params::parse(args.suite, cpus, &args.arguments)?;
    let chosen = choose(args, entries)?;
    let header = args.out.as_ref().map(|_| Header::read(&Terminal.command()));
    if let Some(dir) = &args.out {
        prepare(dir, &format!("{SUITE}.md"))?;
    }
    if !driver::has_cycles() {
        print_note("this processor has no time stamp counter: a cycle is a nanosecond");
    }
    let setup = setup(args, cpus);
    let mut runs: Vec<(&str, Ran)> = Vec::new();
    for entry in &chosen {
        let target = (entry.make)(&setup)?;
        let Some(params) = supported(entry.name, &*target, params) else {
            let mask = params.run_test_mask;
            bail!("{} can do none of the tests that run_test_mask={mask} selects", entry.name);
        };
        if args.table {
            print_note(&format!("{} ...", entry.name));
        } else {
            if chosen.len() > 1 {
                show(&format!("Target: {}", entry.name))?;
            }
            show(&format!("Run the test with following parameters: {params}"))?;
        }
        let ran = driver::run(&*target, &params, setup.cpus, args.seed, stop)
            .with_context(|| entry.name.to_string())?;
        if !args.table {
            lines(&ran).iter().try_for_each(|line| show(line))?;
            show("Done.")?;
        }
        let interrupted = ran.interrupted;
        runs.push((entry.name, ran));
        if interrupted {
            break;
        }
    }
    if args.table {
        table(&runs).show(&mut Terminal)?;
    }
    judge(&runs)?;
    match (&args.out, header) {
        (Some(dir), Some(header)) => report(args, &runs, &header).write(dir, &mut Terminal),
        _ => Ok(()),
    }
}

/// Measures cold starts, and prints or writes their table. Runs all tests, unless the arguments have a mask.
fn run_cold(args: &Args, entries: &[Entry]) -> Result<()> {
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32);
    let all = vec![format!("run_test_mask={}", (1 << args.suite.cases().len()) - 1)];
    let arguments = if args.arguments.is_empty() { &all } else { &args.arguments };
    let params = Params::parse(args.suite, cpus, arguments)?;
    if let Some(dir) = &args.out {
        prepare(dir, &format!("{COLD}.md"))?;
    }
    let header = Header::read(&Terminal.command())
        .with(&format!("rounds: {}, targets in turn, not pinned", cold::ROUNDS));
    let table = cold::measure(entries, &setup(args, cpus), &params, args.seed)?;
    match &args.out {
        Some(dir) => Report::new(COLD, "Cold starts", header, vec![table]).write(dir, &mut Terminal),
        None => table.show(&mut Terminal),
    }
}

/// Returns the set-up of targets.
fn setup(args: &Args, cpus: u32) -> Setup {
    Setup {
        cpus: cpus.min(va_space::NODES_LIMIT),
        kernel_lib: args.kern.clone(),
        kernel_lib_percpu: args.kern_percpu.clone(),
    }
}

/// Returns the selected entries, in the order of the arguments, each once.
fn choose(args: &Args, entries: &[Entry]) -> Result<Vec<Entry>> {
    let known: Vec<_> = entries.iter().map(|entry| entry.name).chain(["all"]).collect();
    check_names("target", &args.target, &known)?;
    let all = args.target.iter().any(|name| name == "all");
    let named = |entry: &&Entry| args.target.iter().any(|name| name == entry.name);
    let makeable = |entry: &&Entry| entry.name != "linux" || args.kern.is_some();
    Ok(entries.iter().filter(|entry| named(entry) || all && makeable(entry)).copied().collect())
}

/// Returns the parameters without the tests that a target cannot run, which it prints; `None` if no test is left.
fn supported(name: &str, target: &dyn Target, params: Params) -> Option<Params> {
    let mut mask = 0;
    for case in params.cases() {
        if target.supports(case) {
            mask |= case.bit();
        } else {
            print_note(&format!("{name} has nothing for {}, which is left out", case.name()));
        }
    }
    match mask {
        0 => None,
        _ if mask.count_ones() as usize == params.cases().count() => Some(params),
        _ => Some(Params { run_test_mask: mask, ..params }),
    }
}

/// Fails if a run has a failure.
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

/// Returns the page of the table.
fn report(args: &Args, runs: &[(&str, Ran)], header: &Header) -> Report {
    let params = runs.first().map(|(_, ran)| ran.params.to_string()).unwrap_or_default();
    // Workers run concurrently.
    let header = header.with(&format!(
        "suite: {}, {params}; workers not pinned, targets one after the other",
        args.suite.name()
    ));
    Report::new(SUITE, "The kernel's test suite", header, vec![table(runs)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::cell::RefCell;
    use std::sync::atomic::{AtomicU64, Ordering};
    use vmlab_bench::suite::case::Case;
    use vmlab_bench::suite::target::{Ask, Ram, Unsettled, Worker};

    /// A target that has addresses for a fixed number of allocations, each of at most a page, and never frees the last
    /// one.
    struct Poor(AtomicU64);

    impl Target for Poor {
        fn worker(&self, _: u32) -> Box<dyn Worker + '_> {
            Box::new(self)
        }
        fn supports(&self, case: Case) -> bool {
            case != Case::Pcpu
        }
        fn settle(&self) -> Result<(), Unsettled> {
            Err(Unsettled::Left(1))
        }
    }

    impl Worker for &Poor {
        fn vmalloc(&mut self, ask: &Ask) -> Option<u64> {
            let got = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            got.ok().filter(|_| ask.bytes <= 4096)
        }
        fn vfree(&mut self, _: u64) {}
        fn write(&mut self, _: u64, _: u8) {}
        fn holds(&mut self, _: u64, _: u8) -> bool {
            false
        }
        fn vrealloc(&mut self, at: u64, _: u64, _: u64) -> Option<u64> {
            Some(at)
        }
        fn pages(&mut self, _: u64) -> Option<Box<dyn Ram + '_>> {
            None
        }
        fn pcpu_alloc(&mut self, _: u64, _: u64) -> Option<u64> {
            None
        }
        fn pcpu_free(&mut self, _: u64) {}
    }

    const POOR: Entry =
        Entry { name: "poor", about: "fails", make: |_| Ok(Box::new(Poor(AtomicU64::new(150)))) };

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    /// Returns the printed lines, and the error.
    fn on_poor(line: &str) -> (Vec<String>, String) {
        let shown = RefCell::new(Vec::new());
        let words = ["vmlab", "--target=poor"].into_iter().chain(line.split_whitespace());
        let args = Line::try_parse_from(words).unwrap().args;
        let show = |line: &str| {
            shown.borrow_mut().push(line.to_string());
            Ok(())
        };
        let result = run_until(&AtomicBool::new(false), &args, &[POOR], &show);
        (shown.into_inner(), result.map_or_else(|error| format!("{error:#}"), |()| String::new()))
    }

    #[test]
    fn what_fails_is_counted_and_is_an_error() {
        let (shown, error) = on_poor("run_test_mask=8057 sequential_test_order=1 test_loop_count=100");
        let failed = |line: &&String| line.contains(" failed: 1 xfailed: 0 ");
        let names: Vec<_> = shown.iter().filter(failed).filter_map(|line| line.split(' ').nth(1)).collect();
        let expected = [
            "random_size_alloc_test",
            "fix_align_alloc_test",
            "random_size_align_alloc_test",
            "kvfree_rcu_1_arg_vmalloc_test",
            "kvfree_rcu_2_arg_vmalloc_test",
            "vm_map_ram_test",
            "vrealloc_test",
        ];
        assert_eq!(names, expected, "{shown:#?}");
        let of = |name: &str| shown.iter().find(|line| line.contains(name)).unwrap().as_str();
        assert!(of("fix_size").contains(" passed: 1 failed: 0 xfailed: 0 "));
        assert!(of("align_shift").contains(" passed: 0 failed: 0 xfailed: 1 "));
        assert!(of("no_block").contains(" passed: 0 failed: 0 xfailed: 1 "));
        assert_eq!(error, "poor: 7 of the tests failed that should not");
    }

    #[test]
    fn a_target_that_is_not_empty_at_the_end_is_an_error_and_so_is_one_that_can_do_nothing() {
        let (shown, error) = on_poor("run_test_mask=129 test_loop_count=1");
        assert_eq!(shown[0], "Run the test with following parameters: test_loop_count=1 run_test_mask=1");
        assert_eq!(error, "poor: 1 pages and per-CPU objects are out though all were freed");
        let (shown, error) = on_poor("run_test_mask=128");
        assert_eq!(
            (shown.len(), error.as_str()),
            (0, "poor can do none of the tests that run_test_mask=128 selects")
        );
    }
}
