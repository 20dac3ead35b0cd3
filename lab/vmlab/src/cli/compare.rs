//! `vmlab compare`: two recordings, or two tables of areas, side by side.

mod spread;

use super::input::{Input, NO_ADDRESS, Tables, stem};
use super::report::{Kind, opened};
use super::table::{align, plain};
use super::{map, out, print_note, sites};
use anyhow::{Context, Result, bail};
use comfy_table::Cell;
use serde::Serialize;
use spread::{PERCENTILES, Spreads};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use vmlab_base::text::{bytes, counted, duration, grouped, printable};
use vmlab_replay::state::State;
use vmlab_trace::allocinfo::Sites;
use vmlab_trace::{Event, Trace};
use vmlab_view::map::measure::Numbers;
use vmlab_view::map::read::Text;
use vmlab_view::map::replayed::{Ask, replay};

/// The version of the object that `--json` prints.
const VERSION: u32 = 1;
/// The exit status if a condition of `--fail-if` holds.
const CONDITION_HOLDS: i32 = 3;

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Before: a recording, a trace, a dump of vmlab.kernel, or text of /proc/vmallocinfo or
    /// /proc/allocinfo
    #[arg(value_name = "A")]
    before: PathBuf,
    /// After
    #[arg(value_name = "B")]
    after: PathBuf,
    /// End with status 3 if a condition holds: MEASURE OP NUMBER, joined by ||. A measure of B is equal (percent), busy,
    /// lazy, pooled, largest, leaked, live (bytes), holes, or p50, p99, p999 of an allocation (such as 50us). With
    /// .growth it is B less A
    #[arg(long, value_name = "CONDITIONS")]
    fail_if: Option<Conditions>,
    /// Callers in each table
    #[arg(long, value_name = "N", default_value = "10", conflicts_with = "json")]
    top: usize,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

/// The measures of one side.
#[derive(Clone, Debug, Default, Serialize)]
struct Side {
    name: String,
    /// Measures by name, in bytes, percent, counts or nanoseconds; those that a side does not have are left out.
    measures: BTreeMap<&'static str, f64>,
    /// Bytes and areas of each caller.
    callers: BTreeMap<String, (u64, u64)>,
    /// Areas that were allocated in the recording and stand at its end.
    leaks: BTreeMap<String, Leak>,
    /// The durations of each kind of call.
    durations: Spreads,
    /// True of a pipe, whose durations cannot be read.
    #[serde(skip)]
    once: bool,
}

/// Areas of a caller that were allocated in the recording and stand at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Leak {
    areas: u64,
    bytes: u64,
    /// Nanoseconds since the oldest was allocated.
    oldest_ns: u64,
}

/// The object that `--json` prints.
#[derive(Serialize)]
struct Compared<'a> {
    version: u32,
    before: &'a Side,
    after: &'a Side,
    holds: Vec<String>,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let (before, after) = (side(&args.before)?, side(&args.after)?);
    let conditions = args.fail_if.as_ref().map_or(&[][..], |conditions| &conditions.0);
    let mut holds = Vec::new();
    for condition in conditions {
        if let Some(value) = condition.holds(&before, &after)? {
            holds.push(format!("{condition} holds: {} is {value}", condition.name()));
        }
    }
    if args.json {
        let compared = Compared { version: VERSION, before: &before, after: &after, holds: holds.clone() };
        out(&serde_json::to_string(&compared)?)?;
    } else {
        print(&before, &after, args.top)?;
    }
    for line in &holds {
        print_note(line);
    }
    if holds.is_empty() { Ok(()) } else { std::process::exit(CONDITION_HOLDS) }
}

/// Reads a recording or a table.
fn side(path: &Path) -> Result<Side> {
    let shown = path.display();
    let (kind, whole) = opened(path)?;
    let mut side = Side { name: stem(path), ..Side::default() };
    match kind {
        Kind::Listing => {
            let text = Text::read(whole, None);
            if text.lines == 0 && text.cut_short.is_none() {
                bail!("{shown}: {NO_ADDRESS}");
            }
            map::complain(&text, &shown.to_string());
            if let Some(why) = &text.cut_short {
                bail!("{shown}: the input ends early, {why}");
            }
            side.count(&Numbers::of(&text.listing));
        }
        Kind::Trace => {
            let input = Input::of(path, Trace::read(whole), &Tables::default())?;
            if let Some(why) = &input.trace.cut_short {
                bail!("{shown}: the input ends early, {why}");
            }
            side.recording(path, &input)?;
            // Durations are among the others.
            if input.trace.others > 0 {
                spread::read(path, &mut side)?;
            }
        }
        Kind::Sites => {
            let found = sites::checked(path, Sites::read(whole))?;
            side.measures.insert("live", sites::total(&found.sites) as f64);
            for site in &found.sites {
                let caller = side.callers.entry(printable(&site.name()).into_owned()).or_default();
                let bytes = u64::try_from(site.bytes).unwrap_or(0);
                *caller = (caller.0.saturating_add(bytes), caller.1.saturating_add(site.calls));
            }
        }
        Kind::Csv | Kind::Json => {
            bail!("{shown}: neither a recording nor in the format of /proc/vmallocinfo or /proc/allocinfo")
        }
    }
    Ok(side)
}

impl Side {
    fn count(&mut self, numbers: &Numbers) {
        let Numbers { busy, lazy, pooled, holes, largest_holes, .. } = numbers;
        let measures = [
            ("busy", busy.bytes),
            ("lazy", lazy.bytes),
            ("pooled", pooled.bytes),
            ("holes", holes.areas),
            ("largest", largest_holes[0]),
        ];
        self.measures.extend(measures.map(|(name, value)| (name, value as f64)));
        for row in numbers.callers.iter().filter(|row| !row.name.starts_with('(')) {
            let caller = self.callers.entry(row.name.clone()).or_default();
            *caller = (caller.0 + row.bytes, caller.1 + row.areas);
        }
    }

    /// Counts what stands at the end of a recording, and since when.
    fn recording(&mut self, path: &Path, input: &Input) -> Result<()> {
        let trace = &input.trace;
        let text = map::end_text(&Tables::default(), path, trace)?;
        let ask = Ask::at_end(trace, &input.table, &text);
        let done = replay(ask)?;
        self.count(&Numbers::of(&done.listing));
        let answers = done.columns.same() + done.columns.differ();
        self.measures.insert("equal", 100.0 * done.columns.same() as f64 / answers.max(1) as f64);
        let mut born = HashMap::new();
        for (event, &ns) in trace.events.iter().zip(&trace.times_ns) {
            match *event {
                Event::Alloc { addr, failed: false, .. } => _ = born.insert(addr, ns),
                Event::ChunkCreate { base } => _ = born.insert(base, ns),
                Event::Free { addr } => _ = born.remove(&addr),
                _ => {}
            }
        }
        let end = trace.times_ns.iter().copied().max().unwrap_or(0);
        for area in done.listing.areas.iter().filter(|area| area.state == State::Busy) {
            let Some(&ns) = born.get(&area.part.start) else { continue };
            let leak = self.leaks.entry(done.listing.caller(area).to_string()).or_default();
            leak.areas += 1;
            leak.bytes += area.part.bytes();
            leak.oldest_ns = leak.oldest_ns.max(end.saturating_sub(ns));
        }
        let leaked: u64 = self.leaks.values().map(|leak| leak.bytes).sum();
        self.measures.insert("leaked", leaked as f64);
        Ok(())
    }
}

/// Formats the value of a measure.
fn shown(name: &str, value: f64) -> String {
    match name {
        "equal" => format!("{value:.2} %"),
        "holes" => grouped(value as u64),
        name if is_time(name) => duration(value as u64),
        _ => bytes(value as u64),
    }
}

/// Formats a growth with its sign.
fn signed(growth: f64, text: impl Fn(f64) -> String) -> String {
    match growth {
        0.0 => "0".to_string(),
        growth if growth < 0.0 => format!("-{}", text(-growth)),
        growth => format!("+{}", text(growth)),
    }
}

fn print(before: &Side, after: &Side, top: usize) -> Result<()> {
    out(&format!("A: {}\nB: {}", before.name, after.name))?;
    let mut table = plain();
    table.set_header(["", "A", "B", "growth"]);
    let has = |name: &&str| [before, after].iter().any(|side| side.measures.contains_key(name));
    for name in MEASURES.into_iter().filter(has) {
        let of = |side: &Side| side.measures.get(name).copied();
        let cell = |value: Option<f64>| Cell::new(value.map_or("-".to_string(), |value| shown(name, value)));
        let (a, b) = (of(before), of(after));
        let growth = a.zip(b).map_or("-".to_string(), |(a, b)| signed(b - a, |value| shown(name, value)));
        table.add_row([Cell::new(name), cell(a), cell(b), Cell::new(growth)]);
    }
    align(&mut table, 1);
    out(&table.to_string())?;
    spread::print(&before.durations, &after.durations)?;
    let names = before.callers.keys().chain(after.callers.keys());
    let of = |side: &Side, name: &String| side.callers.get(name).copied().unwrap_or_default();
    let rows: BTreeMap<&String, _> = names.map(|name| (name, (of(before, name), of(after, name)))).collect();
    let mut rows: Vec<_> = rows.into_iter().filter(|(_, (a, b))| a != b).collect();
    rows.sort_by_key(|(_, (a, b))| std::cmp::Reverse(b.0.abs_diff(a.0)));
    let mut table = plain();
    let counts = if after.measures.contains_key("live") { "calls" } else { "areas" };
    table.set_header(["caller", "bytes", "growth", counts, "growth"]);
    let areas = |value: f64| grouped(value as u64);
    for (name, (a, b)) in rows.iter().take(top) {
        table.add_row([
            Cell::new(name),
            Cell::new(bytes(b.0)),
            Cell::new(signed(b.0 as f64 - a.0 as f64, |value| bytes(value as u64))),
            Cell::new(grouped(b.1)),
            Cell::new(signed(b.1 as f64 - a.1 as f64, areas)),
        ]);
    }
    align(&mut table, 1);
    if rows.is_empty() {
        out("every caller has as much on both sides")?;
    } else {
        out(&table.to_string())?;
    }
    if rows.len() > top {
        out(&format!("and {} that changed", counted((rows.len() - top) as u64, "other caller")))?;
    }
    let mut leaks: Vec<_> = after.leaks.iter().collect();
    leaks.sort_by_key(|(_, leak)| std::cmp::Reverse(leak.oldest_ns));
    if !leaks.is_empty() {
        let mut table = plain();
        table.set_header(["allocated and not freed in B", "areas", "bytes", "oldest, seconds"]);
        for (name, leak) in leaks.iter().take(top) {
            table.add_row([
                Cell::new(name),
                Cell::new(grouped(leak.areas)),
                Cell::new(bytes(leak.bytes)),
                Cell::new(format!("{:.3}", leak.oldest_ns as f64 / 1e9)),
            ]);
        }
        align(&mut table, 1);
        out(&table.to_string())?;
    }
    Ok(())
}

/// The names of measures, in the order of the table.
const MEASURES: [&str; 11] =
    ["equal", "busy", "lazy", "pooled", "holes", "largest", "leaked", "live", "p50", "p99", "p999"];
/// The units of a number, and their values.
const UNITS: [(&str, f64); 8] = [
    ("K", 1024.0),
    ("M", 1048576.0),
    ("G", 1073741824.0),
    ("T", 1099511627776.0),
    ("ns", 1.0),
    ("us", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
];

/// Returns true if a measure is a duration.
fn is_time(measure: &str) -> bool {
    PERCENTILES.iter().any(|&(name, _)| name == measure)
}

/// The conditions of `--fail-if`.
#[derive(Clone, Debug)]
struct Conditions(Vec<Condition>);

/// A measure beside a number.
#[derive(Clone, Debug, PartialEq)]
struct Condition {
    measure: &'static str,
    growth: bool,
    comparison: &'static str,
    number: f64,
}

impl FromStr for Conditions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.split("||").map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // Those of two characters are tried first.
        let comparisons = ["<=", ">=", "==", "!=", "<", ">"];
        let split = comparisons.iter().find_map(|&one| Some((text.split_once(one)?, one)));
        let ((name, number), comparison) =
            split.ok_or_else(|| format!("{:?} has none of < <= > >= == !=", text.trim()))?;
        let name = name.trim();
        let (name, growth) = name.strip_suffix(".growth").map_or((name, false), |name| (name, true));
        let measure = MEASURES.into_iter().find(|&known| known == name);
        let measure = measure.ok_or_else(|| format!("{name:?} is none of {}", MEASURES.join(", ")))?;
        let number = number.trim();
        // A time has a unit of time, and no other measure has.
        let units = UNITS.iter().filter(|(unit, _)| unit.ends_with('s') == is_time(measure));
        let found = units.clone().find_map(|&(unit, value)| Some((number.strip_suffix(unit)?, value)));
        let (digits, unit) = found.unwrap_or((number, 1.0));
        let value = digits.parse::<f64>().ok().filter(|value| value.is_finite());
        let number = value.ok_or_else(|| format!("{number:?} is no number such as 100, 64M or 50us"))? * unit;
        Ok(Self { measure, growth, comparison, number })
    }
}

impl Condition {
    fn name(&self) -> String {
        format!("{}{}", self.measure, if self.growth { ".growth" } else { "" })
    }

    /// Returns the value of the measure if the condition holds.
    ///
    /// # Errors
    /// If a side does not have the measure.
    fn holds(&self, before: &Side, after: &Side) -> Result<Option<f64>> {
        let of = |side: &Side| {
            let value = side.measures.get(self.measure).copied();
            value.with_context(|| {
                let of = if is_time(self.measure) { "a recording of --latency" } else { "a recording" };
                if side.once && is_time(self.measure) {
                    format!("{}: {} is not read of a pipe: name a file", side.name, self.measure)
                } else {
                    format!("{}: it does not have {}, {of} does", side.name, self.measure)
                }
            })
        };
        let value = of(after)? - if self.growth { of(before)? } else { 0.0 };
        let number = self.number;
        let holds = match self.comparison {
            "<" => value < number,
            "<=" => value <= number,
            ">" => value > number,
            ">=" => value >= number,
            "==" => value == number,
            _ => value != number,
        };
        Ok(holds.then_some(value))
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.name(), self.comparison, self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_read_or_reported() {
        let read: Conditions = "equal<100 || lazy.growth >= 1.5M||holes!=3".parse().unwrap();
        let brief: Vec<String> = read.0.iter().map(ToString::to_string).collect();
        assert_eq!(brief, ["equal<100", "lazy.growth>=1572864", "holes!=3"]);
        let times: Conditions = "p99>50us||p999.growth>1ms||p50<7||p50<7ns".parse().unwrap();
        assert_eq!(times.0.iter().map(|one| one.number).collect::<Vec<_>>(), [5e4, 1e6, 7.0, 7.0]);
        for (bad, why) in [
            ("", "has none of"),
            ("equal=3", "has none of"),
            ("speed>3", "is none of equal, busy"),
            ("busy.shrink>3", "is none of equal, busy"),
            ("busy>x", "is no number"),
            ("busy>nan", "is no number"),
            ("busy>3us", "is no number"),
            ("p99>3M", "is no number"),
            ("busy>3||", "has none of"),
        ] {
            let error = bad.parse::<Conditions>().unwrap_err();
            assert!(error.contains(why), "{bad}: {error}");
        }
    }

    #[test]
    fn a_condition_is_of_b_or_of_its_growth() {
        let side = |busy| Side { measures: [("busy", busy)].into(), ..Side::default() };
        let holds = |text: &str| text.parse::<Condition>().unwrap().holds(&side(10.0), &side(4.0)).unwrap();
        assert_eq!(
            ["busy<4", "busy<=4", "busy.growth<0", "busy.growth==-6"].map(holds),
            [None, Some(4.0), Some(-6.0), Some(-6.0)]
        );
        assert!("equal<3".parse::<Condition>().unwrap().holds(&side(1.0), &side(1.0)).is_err());
    }
}
