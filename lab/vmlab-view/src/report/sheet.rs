//! Measurements as benchmarks write them: CSV after comments, or one JSON object a line.
//!
//! # Theory
//! The benchmarks differ in what they measure, but not in form: a contender ran a workload, perhaps with a number of
//! nodes or threads, and the results are numbers. So the name of a column determines its role, and no benchmark has a
//! reader of its own:
//!
//! | role | columns |
//! |---|---|
//! | contender | `contender`, `allocator`, `target`, `index`, `policy`; and a `setting` |
//! | workload | `workload`, `name`, `test`, `trace`, `of`, of one `kind` or `scenario` |
//! | counts | `nodes`, `threads` |
//! | numbers | every other column of numbers |
//!
//! A file may also have one number a line, its name in `figure` and its value in `value`. Lines that agree in all else
//! then form one row. Numbers of a single worker (`worker3_seconds`) are omitted.
//!
//! # Invariants
//! - **SH1 all-rows** every line is a row, a number of one, or counted as unreadable.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::HashMap;
use std::io::Read;

/// Names of the column of contenders.
const CONTENDER: [&str; 5] = ["contender", "allocator", "target", "index", "policy"];
/// Names of the column of workloads.
const NAME: [&str; 5] = ["workload", "name", "test", "trace", "of"];
/// The most rows that are read, and the most numbers of each. Our largest file has some 500 rows of 20.
const ROWS_MAX: usize = 10_000;
const COLUMNS_MAX: usize = 64;
/// The most characters stored of a name, and of a comment.
const TEXT_MAX: usize = 120;
/// The most comments that are stored.
const FACTS_MAX: usize = 12;
/// The most bytes that are read.
const BYTES_MAX: u64 = 64 << 20;

/// A file of measurements.
#[derive(Clone, Debug, Default)]
pub struct Sheet {
    /// The file's name.
    pub name: String,
    /// The facts in its head: command, commit, machine.
    pub facts: Vec<String>,
    /// Names of the numbers.
    pub columns: Vec<String>,
    /// The measurements, in the order of the lines.
    pub rows: Vec<Row>,
    /// Lines that could not be read.
    pub bad: u64,
}

/// One measurement.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// The kind of workload; empty if there is only one.
    pub kind: String,
    /// The workload.
    pub name: String,
    /// The contender.
    pub contender: String,
    /// The number of nodes.
    pub nodes: Option<f64>,
    /// The number of threads.
    pub threads: Option<f64>,
    /// The numbers, one for each column.
    pub values: Vec<Option<f64>>,
}

/// The role of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Contender,
    Setting,
    Name,
    Kind,
    Nodes,
    Threads,
    Number,
}

fn role(column: &str) -> Role {
    match column {
        _ if CONTENDER.contains(&column) => Role::Contender,
        _ if NAME.contains(&column) => Role::Name,
        "setting" => Role::Setting,
        "kind" | "scenario" => Role::Kind,
        "nodes" => Role::Nodes,
        "threads" | "workers" => Role::Threads,
        _ => Role::Number,
    }
}

fn cut(text: &str) -> String {
    text.trim().chars().take(TEXT_MAX).collect()
}

/// Parses a number that can be drawn.
fn number(text: &str) -> Option<f64> {
    text.trim().parse::<f64>().ok().filter(|number| number.is_finite())
}

impl Sheet {
    /// Returns true if a line is the head of a CSV file of measurements.
    pub fn is_csv_head(line: &str) -> bool {
        let columns: Vec<&str> = line.split(',').map(str::trim).collect();
        Self::is_measurement(&columns) && columns.iter().any(|column| role(column) == Role::Number)
    }

    /// Returns true if a line is a measurement as JSON.
    pub fn is_json_row(line: &str) -> bool {
        let Ok(Value::Object(object)) = serde_json::from_str(line) else { return false };
        Self::is_measurement(&object.keys().map(String::as_str).collect::<Vec<_>>())
    }

    fn is_measurement(columns: &[&str]) -> bool {
        let has = |wanted: Role| columns.iter().any(|column| role(column) == wanted);
        has(Role::Contender) && has(Role::Name)
    }

    /// Reads CSV. Comments begin with `#`.
    ///
    /// # Errors
    /// If it cannot be read, has no columns of contenders and workloads, or has no row.
    pub fn of_csv(name: &str, input: impl Read) -> Result<Self> {
        let text = whole(input)?;
        let mut sheet = Self { name: cut(name), ..Self::default() };
        for line in text.lines().take_while(|line| line.starts_with('#')).take(FACTS_MAX) {
            sheet.facts.push(cut(line.trim_start_matches('#')));
        }
        let mut reader =
            csv::ReaderBuilder::new().comment(Some(b'#')).flexible(true).from_reader(text.as_bytes());
        let columns: Vec<String> = reader.headers()?.iter().map(cut).collect();
        let at = |name: &str| columns.iter().position(|column| column == name);
        let long = at("figure").zip(at("value"));
        let (mut lines, mut joined) = (0, 0);
        let mut begun: HashMap<Vec<String>, usize> = HashMap::new();
        for record in reader.records() {
            lines += 1;
            let record = match record {
                Ok(record) if record.len() == columns.len() => record,
                Ok(_) | Err(_) => {
                    sheet.bad += 1;
                    continue;
                }
            };
            let Some((figure, value)) = long else {
                sheet.add(columns.iter().map(String::as_str).zip(record.iter().map(String::from)));
                continue;
            };
            if record[figure].starts_with("worker") {
                joined += 1;
                continue;
            }
            let others = || (0..columns.len()).filter(|&place| place != figure && place != value);
            let key: Vec<String> = others().map(|place| record[place].to_string()).collect();
            if let Some(&row) = begun.get(&key) {
                sheet.number(row, &record[figure], number(&record[value]));
                joined += 1;
                continue;
            }
            let cells = others().map(|place| (columns[place].as_str(), record[place].to_string()));
            let before = sheet.rows.len();
            sheet.add(cells.chain([(&record[figure], record[value].to_string())]));
            if sheet.rows.len() > before {
                begun.insert(key, before);
            }
        }
        debug_assert_eq!(sheet.rows.len() as u64 + sheet.bad + joined, lines, "SH1");
        sheet.checked()
    }

    /// Reads one object a line, as `--json` prints them. Nested objects are ignored.
    ///
    /// # Errors
    /// If it cannot be read, or no line is a measurement.
    pub fn of_json(name: &str, input: impl Read) -> Result<Self> {
        let text = whole(input)?;
        let mut sheet = Self { name: cut(name), ..Self::default() };
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let Ok(Value::Object(object)) = serde_json::from_str(line) else {
                sheet.bad += 1;
                continue;
            };
            let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
            sheet.add(object.iter().map(|(key, value)| (key.as_str(), text(value))));
        }
        sheet.checked()
    }

    fn add<'a>(&mut self, cells: impl Iterator<Item = (&'a str, String)>) {
        if self.rows.len() >= ROWS_MAX {
            self.bad += 1;
            return;
        }
        let (mut row, mut setting, mut numbers) = (Row::default(), String::new(), Vec::new());
        for (column, cell) in cells {
            match role(column) {
                Role::Contender => row.contender = cut(&cell),
                Role::Setting => setting = cut(&cell),
                Role::Name => row.name = cut(&cell),
                Role::Kind => row.kind = cut(&cell),
                Role::Nodes => row.nodes = number(&cell),
                Role::Threads => row.threads = number(&cell),
                Role::Number => numbers.extend(number(&cell).map(|value| (column, value))),
            }
        }
        if row.contender.is_empty() || row.name.is_empty() {
            self.bad += 1;
            return;
        }
        if !setting.is_empty() {
            row.contender = format!("{} {setting}", row.contender);
        }
        self.rows.push(row);
        for (column, value) in numbers {
            self.number(self.rows.len() - 1, column, Some(value));
        }
    }

    /// Adds a number to a row, and its column if it is new.
    fn number(&mut self, row: usize, column: &str, value: Option<f64>) {
        let Some(value) = value else { return };
        let column = cut(column);
        let at = match self.columns.iter().position(|known| *known == column) {
            Some(at) => at,
            None if self.columns.len() == COLUMNS_MAX => return,
            None => {
                self.columns.push(column);
                self.columns.len() - 1
            }
        };
        let values = &mut self.rows[row].values;
        values.resize(values.len().max(at + 1), None);
        values[at] = Some(value);
    }

    fn checked(mut self) -> Result<Self> {
        if self.rows.is_empty() {
            bail!("no measurement: {} lines that say neither who was measured nor on what", self.bad);
        }
        for row in &mut self.rows {
            row.values.resize(self.columns.len(), None);
        }
        Ok(self)
    }

    /// Returns the index of the first of these columns that exists.
    pub fn column(&self, names: &[&str]) -> Option<usize> {
        names.iter().find_map(|name| self.columns.iter().position(|known| known == name))
    }
}

fn whole(input: impl Read) -> Result<String> {
    let mut bytes = Vec::new();
    input.take(BYTES_MAX + 1).read_to_end(&mut bytes).context("reading ended early")?;
    if bytes.len() as u64 > BYTES_MAX {
        bail!("more than {} MiB of measurements", BYTES_MAX >> 20);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sh1_every_line_is_a_row_or_counted() {
        let text = "# command: x\n# machine: y\nkind,name,nodes,threads,contender,ns_min,note\n\
                    pattern,fix,1,2,ours,10.5,\npattern,fix,,1,kern,nan,text\nshort,line\n,,1,1,,3,\n";
        let sheet = Sheet::of_csv("s", text.as_bytes()).unwrap();
        assert_eq!((sheet.rows.len(), sheet.bad, sheet.facts.len()), (2, 2, 2), "SH1");
        let row = &sheet.rows[0];
        assert_eq!(
            (row.kind.as_str(), row.name.as_str(), row.contender.as_str()),
            ("pattern", "fix", "ours")
        );
        assert_eq!((row.nodes, row.threads, row.values[0]), (Some(1.0), Some(2.0), Some(10.5)));
        assert_eq!((sheet.rows[1].nodes, sheet.rows[1].values[0]), (None, None));
        assert_eq!(sheet.columns, ["ns_min"], "a column without a number is none");
        let json = "{\"trace\":\"t\",\"index\":\"btree\",\"ns_min\":3,\"why\":{\"a\":1}}\n[]\n\n{\"a\":1}\n";
        let sheet = Sheet::of_json("s", json.as_bytes()).unwrap();
        assert_eq!((sheet.rows.len(), sheet.bad), (1, 2), "SH1");
        assert_eq!(sheet.rows[0].values, [Some(3.0)]);
    }

    #[test]
    fn sh1_a_number_a_line_is_a_row_of_what_agrees() {
        let text = "scenario,workers,target,of,figure,value\none,2,list,fix,loop_ns,5\none,2,list,fix,worker0_seconds,1\n\
                    one,2,space,fix,loop_ns,3\none,2,list,fix,p99_ns,7\none,2,list,fix,why,text\none,2,,fix,loop_ns,1\nshort\n";
        assert!(Sheet::is_csv_head(text.lines().next().unwrap()));
        let sheet = Sheet::of_csv("s", text.as_bytes()).unwrap();
        assert_eq!((sheet.rows.len(), sheet.bad), (2, 2), "SH1");
        assert_eq!(sheet.columns, ["loop_ns", "p99_ns"]);
        let row = &sheet.rows[0];
        assert_eq!((row.kind.as_str(), row.name.as_str(), row.contender.as_str()), ("one", "fix", "list"));
        assert_eq!((row.threads, &row.values[..]), (Some(2.0), &[Some(5.0), Some(7.0)][..]));
        assert_eq!(sheet.rows[1].values, [Some(3.0), None]);
    }

    #[test]
    fn what_is_no_measurement_is_an_error() {
        for text in ["", "a,b\n1,2\n", "workload,contender,ns_min\n", "workload,contender,ns_min\n,,1\n"] {
            assert!(Sheet::of_csv("s", text.as_bytes()).is_err(), "{text}");
        }
        assert!(Sheet::of_json("s", &b"{}\n"[..]).is_err());
        let many: String =
            (0..200).map(|n| format!("{{\"trace\":\"t\",\"index\":\"i\",\"n{n}\":1}}\n")).collect();
        let sheet = Sheet::of_json("s", many.as_bytes()).unwrap();
        assert_eq!((sheet.rows.len(), sheet.columns.len()), (200, COLUMNS_MAX));
        assert!(!Sheet::is_csv_head("workload,contender") && !Sheet::is_json_row("{\"trace\":1"));
        let bytes: Vec<u8> = (0..=255).cycle().take(9000).collect();
        assert!(Sheet::of_csv("s", &bytes[..]).is_err() && Sheet::of_json("s", &bytes[..]).is_err());
    }

    #[test]
    fn a_setting_is_part_of_who() {
        let text = "workload,allocator,setting,p99_ns\nmix,ours,2M,5\nmix,ours,,6\n";
        let sheet = Sheet::of_csv("s", text.as_bytes()).unwrap();
        let contenders: Vec<&str> = sheet.rows.iter().map(|row| row.contender.as_str()).collect();
        assert_eq!(contenders, ["ours 2M", "ours"]);
    }
}
