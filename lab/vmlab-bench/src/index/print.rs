//! Tables, CSV and growth plots of the indexes.

use super::workloads;
use crate::Cell;
use crate::print::{Captioned, build, comments, find, names, page, right, times, write_chart, write_file};
use anyhow::Result;
use comfy_table::Table;
use std::fmt::Write;
use std::path::Path;
use vmlab_base::chart::{Chart, Scale};
use vmlab_base::output::Output;

/// Returns all tables, in order.
pub(super) fn tables(cells: &[Cell]) -> [Captioned; 3] {
    [times(cells), ratios(cells), memory(cells)]
}

/// Returns the ratios of the default indexes to the others, from minima.
fn ratios(cells: &[Cell]) -> Captioned {
    let pairs = [
        ("rb-linux", "btree"),
        ("rb-linux", "btree32"),
        ("kern", "rb-linux"),
        ("kern", "btree"),
        ("list", "rb-linux"),
    ];
    let mut table = Table::new();
    table.set_header(std::iter::once("workload".to_string()).chain(pairs.map(|(a, b)| format!("{a} / {b}"))));
    for workload in names(cells, |cell| &cell.workload) {
        let mut row = vec![workload.to_string()];
        for (slow, fast) in pairs {
            let ratio =
                find(cells, workload, slow).zip(find(cells, workload, fast)).map(|(a, b)| a.min / b.min);
            row.push(ratio.map_or("-".to_string(), |ratio| format!("{ratio:.2}")));
        }
        table.add_row(row);
    }
    right(&mut table, 1);
    let caption = "How many times the time of the second the first takes (minima).".to_string();
    Captioned { caption, table }
}

/// Returns the bytes for each hole.
fn memory(cells: &[Cell]) -> Captioned {
    let mut table = Table::new();
    table.set_header([
        "workload",
        "index",
        "holes",
        "bytes a hole",
        "rows, bytes a hole",
        "allocated, bytes a hole",
    ]);
    let shown = ["rand-", "aligns-", "rows-"];
    for cell in cells.iter().filter(|cell| shown.iter().any(|prefix| cell.workload.starts_with(prefix))) {
        let Some((memory, holes)) = cell.memory else { continue };
        let per_hole = |bytes: usize| format!("{:.1}", bytes as f64 / holes.max(1) as f64);
        table.add_row([
            cell.workload.clone(),
            cell.contender.to_string(),
            holes.to_string(),
            per_hole(memory.used_bytes),
            per_hole(memory.row_bytes),
            per_hole(memory.allocated_bytes),
        ]);
    }
    right(&mut table, 2);
    let caption = "Memory: records in use, alignment rows in use, and all slabs with what is reserved for returns and spare.".to_string();
    Captioned { caption, table }
}

pub(super) fn csv_name() -> String {
    format!("index-{}.csv", build())
}

/// Writes CSV, tables and SVG.
pub(super) fn files(cells: &[Cell], dir: &Path, header: &str, out: &mut dyn Output) -> Result<()> {
    let mut csv = comments(header);
    csv.push_str("workload,contender,ns_min,ns_median,ns_mean,raw_min,harness_min,rounds,holes,used_bytes,row_bytes,allocated_bytes\n");
    for cell in cells {
        let memory = cell.memory.map_or(",,,".to_string(), |(memory, holes)| {
            format!("{holes},{},{},{}", memory.used_bytes, memory.row_bytes, memory.allocated_bytes)
        });
        let Cell { workload, contender, min, median, mean, raw_min, harness, rounds, .. } = cell;
        let _ = writeln!(
            csv,
            "{workload},{contender},{min:.2},{median:.2},{mean:.2},{raw_min:.2},{harness:.2},{rounds},{memory}"
        );
    }
    write_file(dir, &csv_name(), &csv, out)?;
    let page = page("The index of holes", tables(cells), header);
    write_file(dir, &format!("index-{}.md", build()), &page, out)?;
    for (prefix, title, x) in [
        ("rand-", "Random sizes, replaced at random", "areas out"),
        ("adversary-", "Misaligned holes, an aligned request", "holes"),
        ("aligns-", "Random sizes and alignments, replaced at random", "areas out"),
    ] {
        let lines: Vec<_> = names(cells, |cell| cell.contender)
            .into_iter()
            .filter_map(|contender| {
                let points: Vec<_> = workloads::ALL
                    .iter()
                    .filter(|spec| spec.name.starts_with(prefix) && !spec.name.ends_with("rows"))
                    .filter_map(|spec| Some((spec.n as f64, find(cells, spec.name, contender)?.min)))
                    .collect();
                (points.len() > 1).then(|| (contender.to_string(), points))
            })
            .collect();
        if lines.is_empty() {
            continue;
        }
        let chart = Chart {
            title,
            x,
            y: "ns a pair (minimum)",
            x_scale: Scale::Log,
            y_scale: Scale::Log,
            lines,
            about: &["btree", "btree32", "rb-linux", "kern"],
            size: (820.0, 470.0),
        };
        write_chart(dir, &format!("index-{}{}.svg", prefix, build()), &chart, out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_shown_wherever_holes_are_many() {
        let used = va_tree::IndexMemory { used_bytes: 300, row_bytes: 120, ..Default::default() };
        let cell = |workload: &str| Cell {
            workload: workload.to_string(),
            contender: "btree",
            mean: 1.0,
            median: 1.0,
            min: 1.0,
            raw_min: 1.0,
            harness: 0.0,
            rounds: 1,
            memory: Some((used, 10)),
            drained: None,
        };
        let table = memory(&["rand-1k", "rows-1M", "aligns-1k", "empty"].map(cell)).table;
        let rows: Vec<String> =
            table.row_iter().map(|row| row.cell_iter().map(comfy_table::Cell::content).collect()).collect();
        assert_eq!(rows.len(), 3);
        assert_eq!(rows[1], "rows-1Mbtree1030.012.00.0");
        let rows = workloads::ALL.iter().filter(|spec| spec.name.starts_with("rows-"));
        assert_eq!(rows.map(|spec| spec.n).max(), Some(1_000_000));
    }
}
