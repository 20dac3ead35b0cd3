//! Locks in the format of `lock_stat`: a line for each class, then the locations that waited, then those that held the
//! lock.

use super::{Compared, Measured, Part};
use crate::harness::us;
use va_base::LockClass;
use vmlab_machine::{ContendedAt, LockStat, LockStats};

/// The classes, in the order of [`LockClass`].
pub const CLASSES: [LockClass; LockClass::COUNT] = [
    LockClass::Pool,
    LockClass::Lazy,
    LockClass::Free,
    LockClass::Purge,
    LockClass::Queue,
    LockClass::Lookup,
    LockClass::Collect,
    LockClass::Busy,
    LockClass::Batched,
    LockClass::Owner,
    LockClass::Closing,
    LockClass::Records,
    LockClass::Grow,
    LockClass::Chunks,
];

/// Returns the kernel's name of the guarded structure in a target's version; for ours, the name in 6.12.
pub fn name(target: &str, class: LockClass) -> &'static str {
    let (one_lock, one_lookup) = match target {
        "list" | "one-lock" => (true, true),
        "hashed" => (true, false),
        _ => (false, false),
    };
    match class {
        LockClass::Free if target == "list" => "vmap_area_lock (list)",
        LockClass::Busy if target == "list" => "vmap_area_lock (tree)",
        LockClass::Free => "free_vmap_area_lock",
        LockClass::Busy if one_lock => "vmap_area_lock",
        LockClass::Busy => "&vn->busy.lock",
        LockClass::Lazy if one_lock => "purge_vmap_area_lock",
        LockClass::Lazy => "&vn->lazy.lock",
        LockClass::Pool => "&vn->pool_lock",
        LockClass::Purge => "vmap_purge_lock",
        LockClass::Queue => "&vbq->lock",
        LockClass::Lookup if one_lookup => "vmap_blocks.xa_lock",
        LockClass::Lookup => "&xa->xa_lock#1",
        LockClass::Collect => "collect",
        LockClass::Batched => "in flight",
        LockClass::Owner => "magazine or lane",
        LockClass::Closing => "closing",
        LockClass::Records => "records",
        LockClass::Grow => "pcpu_alloc_mutex",
        LockClass::Chunks => "pcpu_lock",
    }
}

/// Returns the acquired classes by the kernel's names, the most contended first as `lock_stat` sorts.
pub(super) fn named(target: &str, locks: &LockStats) -> Vec<(&'static str, LockStat)> {
    by_contentions(locks).into_iter().map(|(class, seen)| (name(target, class), seen)).collect()
}

fn by_contentions(locks: &LockStats) -> Vec<(LockClass, LockStat)> {
    let mut taken: Vec<(LockClass, LockStat)> =
        CLASSES.into_iter().zip(locks.iter().copied()).filter(|(_, seen)| seen.acquisitions > 0).collect();
    taken.sort_by_key(|(_, seen)| std::cmp::Reverse(seen.contentions));
    taken
}

/// Returns the contentions of a class of a target; `None` if its locks were not counted.
pub(super) fn contentions(measured: &Measured, class: LockClass) -> Option<u64> {
    Some(measured.counted.as_ref()?.locks[class as usize].contentions)
}

/// Returns a text for each target in each scenario whose locks were counted.
pub(super) fn all(compared: &Compared) -> Vec<String> {
    let each = compared.parts.iter().flat_map(|part| part.measured.iter().map(move |one| (part, one)));
    each.filter_map(|(part, measured)| text(part, measured)).collect()
}

fn text(part: &Part, measured: &Measured) -> Option<String> {
    let seen = measured.counted.as_ref()?;
    let title =
        format!("{}, {} workers, {}", part.scenario.name, part.scenario.params.nr_threads, measured.target);
    Some(format!("{title}\n{}", table(&measured.target, &seen.locks, &seen.contended)))
}

/// Locations that `lock_stat` prints for a class.
const PLACES: usize = 4;

pub fn table(target: &str, locks: &LockStats, contended: &[ContendedAt]) -> String {
    let head = [
        "con-bounces",
        "contentions",
        "waittime-min",
        "waittime-max",
        "waittime-total",
        "waittime-avg",
        "acq-bounces",
        "acquisitions",
        "holdtime-max",
        "holdtime-total",
    ];
    let row = |name: &str, cells: [String; 10]| {
        let cells: Vec<String> = cells.iter().map(|cell| format!("{cell:>14}")).collect();
        format!("{name:>24}{}\n", cells.join(" "))
    };
    let first = row("class name ", head.map(str::to_string));
    let rule = format!("{}\n", "-".repeat(first.trim_end().len()));
    let mut text = format!("{rule}{first}{rule}");
    for (class, seen) in by_contentions(locks) {
        let name = name(target, class);
        let average = seen.wait_total_ns / seen.contentions.max(1);
        text.push_str(&row(
            &format!("{name}:"),
            [
                seen.con_bounces.to_string(),
                seen.contentions.to_string(),
                us(seen.wait_min_ns),
                us(seen.wait_max_ns),
                us(seen.wait_total_ns),
                us(average),
                seen.acq_bounces.to_string(),
                seen.acquisitions.to_string(),
                us(seen.hold_max_ns),
                us(seen.hold_total_ns),
            ],
        ));
        let columns: [fn(&ContendedAt) -> u64; 2] = [|at| at.waited, |at| at.held];
        for count in columns {
            text.push_str(&places(name, class, contended, count));
        }
        if seen.contentions > 0 {
            text.push('\n');
        }
    }
    text
}

/// Returns the locations of a class by one of their counts, the largest first; empty if there are none.
fn places(name: &str, class: LockClass, all: &[ContendedAt], count: fn(&ContendedAt) -> u64) -> String {
    let of_class = |at: &&ContendedAt| at.class == class as usize && count(at) > 0;
    let mut places: Vec<&ContendedAt> = all.iter().filter(of_class).collect();
    places.sort_by_key(|at| std::cmp::Reverse(count(at)));
    let mut text = String::new();
    if !places.is_empty() {
        text.push_str(&format!("{:>24}\n", "-".repeat(name.len())));
    }
    for at in places.iter().take(PLACES) {
        text.push_str(&format!("{name:>24}{:>14}  {}:{}\n", count(at), at.place.file(), at.place.line()));
    }
    text
}
