//! The page and the table of the measurements.

use super::ratio::{Ratio, Verdict, median};
use super::table::CLIENTS;
use super::trial::{Answer, Trial};
use anyhow::{Context, Result, bail};
use std::fmt::Write;

/// An application's trials under every column; all columns have the same number.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) what: String,
    pub(crate) version: String,
    /// The plain column first.
    pub(crate) columns: Vec<(String, Vec<Trial>)>,
    /// Large allocations that the preload served in one run.
    pub(crate) served: u64,
    /// Applications whose answer differs from that of the first trial.
    pub(crate) unequal: Vec<String>,
}

/// The comparison of one column with the plain one.
#[derive(Debug)]
pub(crate) struct Beside {
    pub(crate) column: String,
    pub(crate) pairs: usize,
    pub(crate) cpu: Option<Ratio>,
    pub(crate) wall: Option<Ratio>,
    /// Medians of seconds of CPU, and of peak memory in bytes: plain, and this column.
    pub(crate) cpu_seconds: [f64; 2],
    pub(crate) peak_bytes: [f64; 2],
}

impl Beside {
    pub(crate) fn verdict(&self) -> Verdict {
        self.cpu.map_or(Verdict::TooFew, |ratio| ratio.verdict(self.pairs))
    }

    /// Returns the peak memory relative to the plain one's.
    pub(crate) fn peak_ratio(&self) -> f64 {
        self.peak_bytes[1] / self.peak_bytes[0].max(1.0)
    }
}

impl Row {
    /// Returns the answer of the plain column's first trial.
    pub(crate) fn answer(&self) -> Option<Answer> {
        self.columns.first().and_then(|(_, trials)| trials.first()).map(|trial| trial.answer)
    }

    /// Returns the comparisons of all other columns with the first.
    pub(crate) fn beside(&self) -> Vec<Beside> {
        let Some(((_, base), others)) = self.columns.split_first() else { return Vec::new() };
        others.iter().map(|(column, trials)| compare(column, base, trials)).collect()
    }
}

/// Returns NumPy's gain with the preload and with tuned glibc, each with its peak, and their ratio.
fn beside_tuned(rows: &[Row]) -> Option<String> {
    let row = rows.iter().find(|row| row.name == "numpy")?;
    let trials = |name: &str| row.columns.iter().find(|(column, _)| column == name).map(|(_, trials)| trials);
    let (plain, ours, tuned) = (trials("plain")?, trials(super::OURS)?, trials(super::TUNED)?);
    let gain = |name: &str, trials: &[Trial]| {
        let beside = compare(name, plain, trials);
        let peak_mb = beside.peak_bytes[1] / 1e6;
        format!("{name} {} with a peak of {peak_mb:.1} MB", interval(beside.cpu))
    };
    Some(format!(
        "{}, {}; vmalloc against tuned {}",
        gain(super::OURS, ours),
        gain(super::TUNED, tuned),
        interval(compare(super::OURS, tuned, ours).cpu)
    ))
}

fn compare(column: &str, base: &[Trial], trials: &[Trial]) -> Beside {
    let pick = |trials: &[Trial], of: fn(&Trial) -> f64| trials.iter().map(of).collect::<Vec<_>>();
    let both = |of: fn(&Trial) -> f64| (pick(base, of), pick(trials, of));
    let (cpu, wall, peak) =
        (both(|trial| trial.cpu_seconds), both(|trial| trial.wall_seconds), both(|trial| trial.peak_bytes));
    Beside {
        column: column.to_string(),
        pairs: base.len().min(trials.len()),
        cpu: Ratio::of(&cpu.0, &cpu.1),
        wall: Ratio::of(&wall.0, &wall.1),
        cpu_seconds: [median(&cpu.0), median(&cpu.1)],
        peak_bytes: [median(&peak.0), median(&peak.1)],
    }
}

fn interval(ratio: Option<Ratio>) -> String {
    ratio.map_or("-".to_string(), |Ratio { middle, low, high }| format!("{middle:.3} ({low:.3}..{high:.3})"))
}

/// Returns the table, in Markdown.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "| client | under | CPU s plain | CPU s | speed by CPU (95 %) | speed by wall (95 %) | peak MB plain | peak | served | answers | verdict |\n\
         |---|---|---:|---:|---:|---:|---:|---:|---:|---|---|\n",
    );
    for row in rows {
        let answers = if row.unequal.is_empty() { "equal" } else { "UNEQUAL" };
        for beside in row.beside() {
            let Beside { column, cpu_seconds, peak_bytes, .. } = &beside;
            let served = if column == super::OURS { row.served.to_string() } else { String::new() };
            let _to_a_string = writeln!(
                text,
                "| {} | {column} | {:.3} | {:.3} | {} | {} | {:.1} | {:+.1} % | {served} | {answers} | {} |",
                row.name,
                cpu_seconds[0],
                cpu_seconds[1],
                interval(beside.cpu),
                interval(beside.wall),
                peak_bytes[0] / 1e6,
                (beside.peak_ratio() - 1.0) * 100.0,
                beside.verdict().word(),
            );
        }
    }
    text
}

/// The first line of the table of trials.
const CSV_HEAD: &str =
    "client,under,turn,cpu_seconds,wall_seconds,peak_bytes,answer_bytes,answer_crc32,served,version";

/// Returns every trial, for a spreadsheet and for [`read_csv`].
pub(crate) fn csv(rows: &[Row]) -> String {
    let mut text = format!("{CSV_HEAD}\n");
    for row in rows {
        for (column, trials) in &row.columns {
            for (at, trial) in trials.iter().enumerate() {
                let Trial { cpu_seconds, wall_seconds, peak_bytes, answer } = trial;
                let _to_a_string = writeln!(
                    text,
                    "{},{column},{at},{cpu_seconds:.6},{wall_seconds:.6},{peak_bytes:.0},{},{:08x},{},{}",
                    row.name, answer.bytes, answer.crc, row.served, row.version
                );
            }
        }
    }
    text
}

/// Reads the text that [`csv`] wrote. Answers are compared again. The error names an invalid line.
pub(crate) fn read_csv(text: &str) -> Result<Vec<Row>> {
    let mut lines = text.lines();
    if lines.next() != Some(CSV_HEAD) {
        bail!("not a table of turns, or one of another version: measure all clients anew");
    }
    let mut rows: Vec<Row> = Vec::new();
    for (at, line) in lines.enumerate() {
        add_line(&mut rows, line).with_context(|| format!("line {}: {line}", at + 2))?;
    }
    Ok(rows)
}

fn add_line(rows: &mut Vec<Row>, line: &str) -> Result<()> {
    let parts: Vec<&str> = line.splitn(10, ',').collect();
    let [name, column, at, cpu, wall, peak, bytes, crc, served, version] = parts[..] else {
        bail!("not ten values")
    };
    let seconds = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    let number = |text: &str| seconds(text).with_context(|| format!("{text} is no number"));
    let answer = Answer { bytes: bytes.parse()?, crc: u32::from_str_radix(crc, 16)? };
    let trial =
        Trial { cpu_seconds: number(cpu)?, wall_seconds: number(wall)?, peak_bytes: number(peak)?, answer };
    if rows.last().is_none_or(|row| row.name != name) {
        let client = CLIENTS.iter().find(|client| client.name == name).context("no such client")?;
        rows.push(Row {
            name: name.to_string(),
            what: client.what.to_string(),
            version: version.to_string(),
            columns: Vec::new(),
            served: served.parse()?,
            unequal: Vec::new(),
        });
    }
    let row = rows.last_mut().context("no row")?;
    if row.answer().is_some_and(|expected| expected != answer) {
        row.unequal.push(format!("{column} answered {answer:?} in turn {at}"));
    }
    match row.columns.last_mut() {
        Some((last, trials)) if last == column => trials.push(trial),
        _ => row.columns.push((column.to_string(), vec![trial])),
    }
    Ok(())
}

/// Returns the description of each application.
pub(crate) fn legend(rows: &[Row]) -> String {
    rows.iter().fold(
        String::from("| client | version | what it does | answer |\n|---|---|---|---|\n"),
        |mut text, row| {
            let answer = row
                .answer()
                .map_or("-".to_string(), |Answer { bytes, crc }| format!("{bytes} bytes, CRC-32 {crc:08x}"));
            let _to_a_string = writeln!(text, "| {} | {} | {} | {answer} |", row.name, row.version, row.what);
            text
        },
    )
}

/// Returns the goals, computed from the rows.
pub(crate) fn goals(rows: &[Row]) -> String {
    let ours: Vec<(&Row, Beside)> = rows
        .iter()
        .filter_map(|row| {
            row.beside().into_iter().find(|beside| beside.column == super::OURS).map(|beside| (row, beside))
        })
        .collect();
    let named = |wanted: fn(&Beside) -> bool| {
        let names: Vec<&str> =
            ours.iter().filter(|(_, beside)| wanted(beside)).map(|(row, _)| row.name.as_str()).collect();
        if names.is_empty() { "none".to_string() } else { names.join(", ") }
    };
    let unequal: Vec<&str> =
        rows.iter().filter(|row| !row.unequal.is_empty()).map(|row| row.name.as_str()).collect();
    let numpy =
        ours.iter().find(|(row, _)| row.name == "numpy").map_or("not run".to_string(), |(_, beside)| {
            let (low, high) = beside.cpu.map_or((0.0, 0.0), |ratio| (ratio.low, ratio.high));
            let word = match (low >= 1.4, high < 1.4) {
                (true, _) => "reached",
                (_, true) => "MISSED",
                _ => "unclear",
            };
            format!("{word}: {}", interval(beside.cpu))
        });
    format!(
        "- NumPy 1.4 times as fast: {numpy}\n- NumPy beside tuned glibc: {}\n- faster by 5 % or more: {}\n\
         - slower by more than 3 %: {}\n- unclear, the interval holds a limit: {}\n- peak memory more than 5 % higher: {}\n- answers unequal: {}\n",
        beside_tuned(rows).unwrap_or_else(|| "not run".to_string()),
        named(|beside| beside.verdict() == Verdict::Faster),
        named(|beside| beside.verdict() == Verdict::Slower),
        named(|beside| matches!(beside.verdict(), Verdict::Unclear | Verdict::TooFew)),
        named(|beside| beside.peak_ratio() > 1.05),
        if unequal.is_empty() { "none".to_string() } else { unequal.join(", ") },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, times: f64, peak: f64) -> Row {
        let trial = |cpu_seconds, peak_bytes| Trial {
            cpu_seconds,
            wall_seconds: cpu_seconds,
            peak_bytes,
            answer: Answer { bytes: 1, crc: 7 },
        };
        let wobble = |at: usize| 1.0 + at as f64 / 10_000.0;
        let plain = (0..15).map(|at| trial(2.0 * wobble(at), 1e6)).collect();
        let ours = (0..15).map(|at| trial(2.0 / times * wobble(15 - at), peak)).collect();
        Row {
            name: name.to_string(),
            what: "works".to_string(),
            version: "1".to_string(),
            columns: vec![("plain".to_string(), plain), (super::super::OURS.to_string(), ours)],
            served: 5,
            unequal: Vec::new(),
        }
    }

    #[test]
    fn goals_are_computed_from_the_rows() {
        let rows = [row("numpy", 1.5, 1e6), row("a", 1.2, 1.1e6), row("b", 0.9, 1e6), row("c", 1.0, 1e6)];
        let goals = goals(&rows);
        assert!(goals.contains("NumPy 1.4 times as fast: reached: 1.5"), "{goals}");
        assert!(goals.contains("faster by 5 % or more: numpy, a\n"), "{goals}");
        assert!(goals.contains("slower by more than 3 %: b\n"), "{goals}");
        assert!(goals.contains("peak memory more than 5 % higher: a\n"), "{goals}");
        assert!(goals.contains("answers unequal: none\n"), "{goals}");
        let missed = super::goals(&[row("numpy", 1.3, 1e6)]);
        assert!(missed.contains("MISSED: 1.3"), "{missed}");
    }

    #[test]
    fn the_gain_of_numpy_stands_beside_that_of_tuned_glibc_with_both_peaks() {
        let mut numpy = row("numpy", 1.5, 2e6);
        assert!(goals(std::slice::from_ref(&numpy)).contains("NumPy beside tuned glibc: not run\n"));
        let (_, tuned) = row("numpy", 1.25, 8e6).columns.pop().unwrap();
        numpy.columns.push((super::super::TUNED.to_string(), tuned));
        let goals = goals(&[row("a", 1.0, 1e6), numpy]);
        let line = goals.lines().find(|line| line.contains("beside tuned glibc")).unwrap();
        for part in [
            "vmalloc 1.500 (1.4",
            ") with a peak of 2.0 MB, tuned 1.250 (1.2",
            ") with a peak of 8.0 MB; vmalloc against tuned 1.200 (1.200",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }

    #[test]
    fn a_row_of_the_table_has_the_measurement() {
        let mut slow = row("b", 0.9, 1.1e6);
        slow.unequal.push("turn 3".to_string());
        let table = table(&[slow]);
        let line = table.lines().last().unwrap();
        assert!(line.starts_with("| b | vmalloc | 2.001 | 2.224 | 0.900 (0."), "{line}");
        assert!(line.ends_with("| 1.0 | +10.0 % | 5 | UNEQUAL | SLOWER |"), "{line}");
    }

    #[test]
    fn what_is_written_is_read_again_and_its_answers_compared() {
        let rows = [row("numpy", 1.5, 1e6), row("xz", 1.0, 1e6)];
        let text = csv(&rows);
        assert_eq!(text.lines().count(), 61);
        let again = read_csv(&text).unwrap();
        assert_eq!((csv(&again), table(&again)), (text.clone(), table(&rows)));
        assert!(again.iter().all(|row| row.unequal.is_empty()));
        let other = read_csv(&text.replacen("00000007", "00000008", 1)).unwrap();
        assert!(!other[0].unequal.is_empty() && other[1].unequal.is_empty());
        for (good, bad) in
            [("client,", "c,"), ("numpy,", "nump,"), ("vmalloc,0,", "vmalloc,0,-"), (",00000007,", ",x,")]
        {
            assert!(read_csv(&text.replacen(good, bad, 1)).is_err(), "{bad}");
        }
    }
}
