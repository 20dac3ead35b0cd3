//! The functions in which a pair spends its instructions, on both kernels.
//!
//! # Theory
//! A plugin of QEMU (`check/qemu-count`) counts the instructions of each block of code. `va_bench` calls
//! `va_bench_mark` before and after a pattern, so every second set of counts is that of a pattern. The symbols of the
//! kernel give the function of each block.
//!
//! The goals of `adopt/linux` are for the code that the core replaces, and a pair is more: objects of `kmalloc`, the
//! caller, the clock of the bench. So the functions that are replaced or replace are added up apart. With them are the
//! functions of the kernel that only they call in this load: red-black trees, locks, the cache of `vmap_area`, pages
//! for tables and records.
//!
//! Flushes are counted by the function that each CPU runs for one.

use super::build::{self, Kind};
use super::{COUNTED, Pairs, Run, boot_built, in_turn, lists, page, row};
use crate::sh::{Cmd, Show};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// Functions of the kernel that the replaced code and its replacement call, and nothing else in this load.
const CALLED: [&str; 29] = [
    "rb_insert_color",
    "rb_erase",
    "__rb_insert_augmented",
    "__rb_erase_color",
    "rb_next",
    "rb_prev",
    "_raw_spin_lock",
    "_raw_spin_unlock",
    "queued_spin_lock_slowpath",
    "kmem_cache_alloc_node_noprof",
    "kmem_cache_alloc_noprof",
    "kmem_cache_free",
    "alloc_pages_exact_noprof",
    "free_pages_exact",
    "make_alloc_exact",
    "clear_page_orig",
    "clear_page_rep",
    "clear_page_erms",
    "flush_tlb_kernel_range",
    "list_sort",
    "memset",
    "queue_work_on",
    // The blocks of stock are inlined into the first two, and looked up by the others.
    "vm_map_ram",
    "vm_unmap_ram",
    "xa_load",
    "xas_load",
    "xas_start",
    "__bitmap_set",
    "__bitmap_clear",
];
/// Begins the name of a function of the core.
const CORE: &str = "core ";
/// Functions that a profile shows of each kernel and pattern.
const SHOWN: usize = 12;

/// The functions that a CPU runs for a flush of kernel addresses: of a range, of all.
const FLUSHES: [&str; 2] = ["do_kernel_range_flush", "do_flush_tlb_all"];

/// The counts of a pattern.
#[derive(Clone, Debug, Default)]
struct Counts {
    /// Instructions of each function.
    of: BTreeMap<String, u64>,
    /// Calls of [`FLUSHES`], on all CPUs.
    flushes: u64,
}

/// Patterns in their order, each with the counts of a kernel.
type Profile = Vec<(String, Counts)>;

/// Runs the bench of both kernels in turn under the plugin, and prints the profiles, or writes them.
pub(super) fn main(root: &Path, &Pairs { loops, rounds, out }: &Pairs) -> Result<()> {
    Cmd::cargo(root).args(["build", "--quiet", "--release", "--package", "qemu-count"]).run(Show::Failure)?;
    let measured = |how: &str| in_turn(rounds, |kind| of_kernel(root, kind, loops, how));
    let (four, one) = (measured(COUNTED)?, measured(&format!("{COUNTED} -smp 1"))?);
    let text = format!(
        "{HEAD}\n\n{}\n**With one CPU** in the same way.\n\n{}\n{}\n## By function\n\n{}",
        table(loops, &four),
        table(loops, &one),
        flushes(loops, &four),
        by_function(loops, &four)
    );
    println!("{text}");
    if out {
        let command = format!("profile --loops {loops} --rounds {rounds}");
        let page = page(root, "Instructions by function inside Linux 6.12", &command, &text);
        fs::write(root.join("results/linux-profile.md"), page)?;
    }
    Ok(())
}

fn of_kernel(root: &Path, kind: Kind, loops: u32, how: &str) -> Result<Profile> {
    let kernel = build::kernel(root, kind)?;
    let symbols = fs::read_to_string(&kernel.symbols)?;
    let symbols = functions(&symbols);
    let find = |wanted: &str| {
        let found = symbols.iter().find(|(_, name)| **name == wanted);
        found.map(|(at, _)| at).with_context(|| format!("no {wanted}"))
    };
    for flush in FLUSHES {
        find(flush)?;
    }
    let mark = find("va_bench_mark")?;
    let counts = build::work(root).join(format!("{}.counts", kind.name()));
    let plugin = root.join("target/release/libqemu_count.so");
    let how = format!("{how} -plugin {},out={},mark={mark:x}", plugin.display(), counts.display());
    let lines = boot_built(root, kind, &kernel, &Run::of("bench", loops), &how)?;
    let patterns = lines.iter().filter_map(|line| row(line)).map(|row| row.pattern).collect();
    let core = if kind.ours { core_functions(root)? } else { BTreeMap::new() };
    profile(patterns, &fs::read_to_string(&counts)?, &symbols, &core)
}

/// Returns the functions in the text of `nm`: addresses and names.
fn functions(symbols: &str) -> BTreeMap<u64, &str> {
    let of_line = |line: &'_ str| -> Option<(u64, usize)> {
        let (at, rest) = line.split_once(' ')?;
        let (kind, _) = rest.split_once(' ')?;
        matches!(kind, "t" | "T" | "w" | "W").then_some((u64::from_str_radix(at, 16).ok()?, at.len() + 3))
    };
    symbols.lines().filter_map(|line| of_line(line).map(|(at, name)| (at, &line[name..]))).collect()
}

/// Returns the functions of the core's object: each symbol with its short name.
fn core_functions(root: &Path) -> Result<BTreeMap<String, String>> {
    let names = |more: &[&str]| {
        let args = ["--defined-only", "--format=just-symbols", "--no-sort"];
        Cmd::new(root, "nm").args(args).args(more).arg(build::shipped(root)).read()
    };
    let (symbols, plain) = (names(&[])?, names(&["--demangle"])?);
    Ok(symbols.lines().map(ToString::to_string).zip(plain.lines().map(short)).collect())
}

/// Returns the crate and the last word of a function's name, after [`CORE`]. The types in between are of one space.
fn short(name: &str) -> String {
    let named = name.rsplit("::").find(|word| !is_hash(word)).unwrap_or(name);
    let of = name
        .split(|letter: char| !letter.is_alphanumeric() && letter != '_')
        .find(|word| word.starts_with("va_"));
    match of.filter(|of| *of != named) {
        Some(of) => format!("{CORE}{of}::{named}"),
        None => format!("{CORE}{named}"),
    }
}

/// Returns true for the last part of a symbol, which tells instances of a generic function apart.
fn is_hash(word: &str) -> bool {
    word.len() == 17 && word.starts_with('h') && word[1..].bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Adds up the counts of each pattern by function.
fn profile(
    patterns: Vec<String>,
    counts: &str,
    symbols: &BTreeMap<u64, &str>,
    core: &BTreeMap<String, String>,
) -> Result<Profile> {
    let mut sets: Vec<Counts> = Vec::new();
    for line in counts.lines() {
        if line == "mark" {
            sets.push(Counts::default());
            continue;
        }
        let [at, runs, instructions] = line.split(' ').collect::<Vec<_>>()[..] else {
            bail!("no line of counts: {line}");
        };
        let at = u64::from_str_radix(at, 16)?;
        let runs: u64 = runs.parse()?;
        let name = symbols.range(..=at).next_back().map_or("?", |(_, name)| *name);
        let name = core.get(name).map_or_else(|| plain(name), String::as_str);
        let set = sets.last_mut().context("counts before a mark")?;
        *set.of.entry(name.to_string()).or_default() += runs * instructions.parse::<u64>()?;
        // A call runs the block at the function's address once: no loop of these goes back to it.
        if symbols.get(&at).is_some_and(|name| FLUSHES.contains(name)) {
            set.flushes += runs;
        }
    }
    // Before the first pattern, the first pattern, between the first and the second, and so on.
    let sets: Vec<Counts> = sets.into_iter().skip(1).step_by(2).collect();
    if sets.len() != patterns.len() || sets.is_empty() {
        bail!("{} patterns were counted, and {} run", sets.len(), patterns.len());
    }
    Ok(patterns.into_iter().zip(sets).collect())
}

/// Returns a name without what the compiler appends to parts and copies of a function.
fn plain(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

/// Returns true if a function is replaced, replaces, or is called by those alone.
fn is_replaced(name: &str) -> bool {
    name.starts_with(CORE)
        || name.starts_with("va_os_")
        || ["va_find_room", "va_no_area", "va_put", "va_record_of"].contains(&name)
        || lists::FUNCTIONS.contains(&name)
        || lists::PERCPU.contains(&name)
        || CALLED.contains(&name)
}

/// The text above the tables.
const HEAD: &str = "Boots of both kernels in turn under a plugin of QEMU that counts (`check/qemu-count`): median (least \
to most). *Replaced* are\nthe functions that the core replaces, or the core with its glue, and the functions of the \
kernel that only these call here:\ntrees, locks, the cache of `vmap_area`, pages for tables. Filling a set of live areas \
is in the counts, as is the purge.";

/// Returns the table of all runs of both kernels.
fn table(loops: u32, [stock, ours]: &[Vec<Profile>; 2]) -> String {
    let loops = f64::from(loops);
    // Of each run, sorted.
    let sums = |runs: &[Profile], nth: usize, counts: fn(&str) -> bool| {
        let sum = |run: &Profile| {
            let counted = run[nth].1.of.iter().filter(|(name, _)| counts(name));
            counted.map(|(_, count)| count).sum::<u64>() as f64 / loops
        };
        let mut sums: Vec<f64> = runs.iter().map(sum).collect();
        sums.sort_by(f64::total_cmp);
        sums
    };
    let mut text = String::from(
        "| pattern | stock, replaced, a pair | ours | ratio | stock, all, a pair | ours |\n\
         |---|---:|---:|---:|---:|---:|\n",
    );
    for (nth, (pattern, _)) in stock.first().into_iter().flatten().enumerate() {
        let [of_stock, of_ours] = [stock, ours].map(|runs| sums(runs, nth, is_replaced));
        let [all_stock, all_ours] = [stock, ours].map(|runs| sums(runs, nth, |_| true));
        _ = writeln!(
            text,
            "| {pattern} | {} | {} | {:.2} | {} | {} |",
            cell(&of_stock),
            cell(&of_ours),
            median(&of_ours) / median(&of_stock),
            cell(&all_stock),
            cell(&all_ours)
        );
    }
    text
}

/// Returns the median of sorted counts.
fn median(counts: &[f64]) -> f64 {
    counts.get(counts.len() / 2).copied().unwrap_or_default()
}

/// Returns the median of sorted counts, and the least and the most.
fn cell(counts: &[f64]) -> String {
    match counts {
        [least, .., most] => format!("{:.0} ({least:.0} to {most:.0})", median(counts)),
        _ => format!("{:.0}", median(counts)),
    }
}

/// Returns the table of flushes in all runs of both kernels.
fn flushes(loops: u32, [stock, ours]: &[Vec<Profile>; 2]) -> String {
    let mut text = format!(
        "**Flushes of kernel addresses** by {loops} pairs, counted on each of the four CPUs that runs one: the median (least \
         to\nmost) of the boots.\n\n| pattern | stock | ours |\n|---|---:|---:|\n"
    );
    for (nth, (pattern, _)) in stock.first().into_iter().flatten().enumerate() {
        let [of_stock, of_ours] = [stock, ours].map(|runs| {
            let mut counts: Vec<f64> = runs.iter().map(|run| run[nth].1.flushes as f64).collect();
            counts.sort_by(f64::total_cmp);
            cell(&counts)
        });
        _ = writeln!(text, "| {pattern} | {of_stock} | {of_ours} |");
    }
    text
}

/// Returns the functions with most in the last run of each kernel, by pattern.
fn by_function(loops: u32, [stock, ours]: &[Vec<Profile>; 2]) -> String {
    let mut text = String::from(
        "Instructions a pair of the functions with most, in the last boot; `*` marks the replaced.\n\n",
    );
    for (nth, (pattern, _)) in stock.first().into_iter().flatten().enumerate() {
        _ = writeln!(text, "- **{pattern}**");
        for (kernel, runs) in [("stock", stock), ("ours", ours)] {
            let Some(profile) = runs.last() else { continue };
            let mut rows: Vec<(&String, &u64)> = profile[nth].1.of.iter().collect();
            rows.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
            let shown = rows.iter().take(SHOWN).map(|(name, count)| {
                let mark = if is_replaced(name) { "*" } else { "" };
                format!("{name}{mark} {:.0}", **count as f64 / f64::from(loops))
            });
            _ = writeln!(text, "  - {kernel}: {}", shown.collect::<Vec<_>>().join(", "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYMBOLS: &str = "ffff0010 T alloc_vmap_area\nffff0020 t _RNv_core\nffff0030 t get_vm_area.part.0\n\
                           ffff0040 d data\nffff0050 t do_flush_tlb_all\n";

    #[test]
    fn a_function_of_the_core_has_its_crate_and_its_last_word() {
        let of_impl =
            "va_space::space::purge::<impl va_space::space::VmapSpace<P,C>>::slice::h0123456789abcdef";
        assert_eq!(short(of_impl), "core va_space::slice");
        assert_eq!(short("va_try_alloc"), "core va_try_alloc");
    }

    #[test]
    fn counts_are_added_up_by_function_of_every_second_set() {
        let symbols = functions(SYMBOLS);
        assert_eq!(symbols.len(), 4);
        let mut counts = String::from("mark\nffff0010 1 1000\n");
        for _ in 0..2 {
            counts += "mark\nffff0010 1 2\nffff0014 3 1\nffff0028 5 1\nffff0039 1 7\nffff0050 6 3\nffff0053 9 1\nmark\nffff0010 1 9\n";
        }
        let core = BTreeMap::from([(
            "_RNv_core".to_string(),
            short("<va_tree::b::Tree<K> as va_tree::f::Free>::alloc"),
        )]);
        let patterns = || vec!["one".to_string(), "aligned".to_string()];
        let profile = profile(patterns(), &counts, &symbols, &core).unwrap();
        let of = |name: &str| profile[1].1.of.get(name).copied();
        assert_eq!(
            (of("alloc_vmap_area"), of("core va_tree::alloc"), of("get_vm_area")),
            (Some(5), Some(5), Some(7))
        );
        let runs = [vec![profile.clone()], vec![profile.clone(), profile]];
        let text = table(1, &runs) + &by_function(1, &runs) + &flushes(1, &runs);
        assert!(text.contains("| aligned | 10 | 10 (10 to 10) | 1.00 | 44 | 44 (44 to 44) |"), "{text}");
        // Six runs of the first block: those of the other are no calls.
        assert!(text.contains("| aligned | 6 | 6 (6 to 6) |"), "{text}");
        assert!(super::profile(patterns(), "mark\n", &symbols, &core).is_err());
        assert!(super::profile(patterns(), "1 1 1\n", &symbols, &core).is_err());
    }
}
