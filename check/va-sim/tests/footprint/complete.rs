//! The entry points that have no row.

use crate::depths::Row;
use std::collections::BTreeSet;
use std::path::Path;

/// The types whose public functions are the entry points.
const TYPES: [&str; 10] = [
    "EarlySpace",
    "VmapSpace",
    "Magazine",
    "EarlyBlocks",
    "Blocks",
    "Lane",
    "EarlyMap",
    "MapSpace",
    "EarlyPercpu",
    "PercpuSpace",
];

/// Functions without a row: they read a field, or are a constant.
const WITHOUT: [&str; 21] = [
    "EarlySpace::new",
    "VmapSpace::empty",
    "VmapSpace::extent",
    "VmapSpace::default_window",
    "VmapSpace::nodes",
    "VmapSpace::lazy_pages",
    "VmapSpace::lazy_max",
    "EarlyBlocks::new",
    "Blocks::empty",
    "Blocks::space",
    "Blocks::block_pages",
    "Blocks::present",
    "EarlyMap::new",
    "EarlyMap::get",
    "MapSpace::empty",
    "MapSpace::table",
    "MapSpace::extent",
    "EarlyPercpu::new",
    "PercpuSpace::geometry",
    "PercpuSpace::machine",
    "PercpuSpace::backend",
];

/// Collects the public functions of the types from the source below `dir`.
fn functions(dir: &Path, found: &mut BTreeSet<String>) {
    let entries = std::fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            if !path.ends_with("loom") {
                functions(&path, found);
            }
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let mut of = None;
        for line in text.lines() {
            if line.starts_with("impl") {
                let implements = |name: &&str| line.contains(&format!(" {name}<"));
                of = TYPES.into_iter().find(implements).filter(|_| !line.contains(" for "));
            } else if line.starts_with('}') {
                of = None;
            }
            let name =
                line.trim_start().strip_prefix("pub fn ").and_then(|rest| rest.split(['(', '<']).next());
            if let (Some(of), Some(name)) = (of, name) {
                found.insert(format!("{of}::{name}"));
            }
        }
    }
}

/// Returns entry points without a row, and names that are none.
pub(crate) fn missing(rows: &[Row]) -> Vec<String> {
    let mut found = BTreeSet::new();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../core");
    ["va-space", "va-block", "va-map", "va-percpu"]
        .iter()
        .for_each(|name| functions(&crates.join(name).join("src"), &mut found));
    let named = rows.iter().filter_map(|row| row.name.split(',').next()).chain(WITHOUT);
    let named: BTreeSet<String> = named.map(str::to_string).collect();
    found.symmetric_difference(&named).filter(|name| !name.ends_with("::drop")).cloned().collect()
}
