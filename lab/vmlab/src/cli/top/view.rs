//! The screen of `vmlab top` as lines of text.

use std::time::Duration;
use vmlab_base::choice::Choice;
use vmlab_base::text::{bytes, counted, grouped, printable};
use vmlab_replay::state::State;
use vmlab_trace::live::{Caller, Live, Totals};
use vmlab_view::map::fold::Part;
use vmlab_view::map::listing::Builder;
use vmlab_view::map::measure::{Amount, Numbers};

/// Columns of two facts side by side, the left of which is the longer, and of their names.
const FACTS: [usize; 2] = [42, 38];
const FACT_NAME: usize = 16;
/// The width from which on the table has the counts since the beginning.
const WIDE: usize = 120;

/// The order of the callers: the most first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    /// Allocations a second
    #[default]
    Allocs,
    /// Frees a second
    Frees,
    /// Bytes allocated a second
    Rate,
    /// Areas or objects in use
    Live,
    /// Bytes in use
    Bytes,
}

impl Choice for Sort {
    const CHOICES: &'static [Self] = &[Self::Allocs, Self::Frees, Self::Rate, Self::Live, Self::Bytes];

    fn choice(self) -> &'static str {
        match self {
            Self::Allocs => "allocs",
            Self::Frees => "frees",
            Self::Rate => "rate",
            Self::Live => "live",
            Self::Bytes => "bytes",
        }
    }

    fn about(self) -> &'static str {
        match self {
            Self::Allocs => "Allocations a second",
            Self::Frees => "Frees a second",
            Self::Rate => "Bytes allocated a second",
            Self::Live => "Areas or objects in use",
            Self::Bytes => "Bytes in use",
        }
    }
}

impl Sort {
    /// Returns the next order, the first after the last.
    pub(super) fn next(self) -> Self {
        let at = Self::CHOICES.iter().position(|&sort| sort == self).map_or(0, |at| at + 1);
        Self::CHOICES[at % Self::CHOICES.len()]
    }
}

/// The counts at a time, from which rates begin.
#[derive(Clone, Debug, Default)]
pub(super) struct Moment {
    totals: Totals,
    /// Allocations, frees and allocated bytes of each caller.
    callers: Vec<[u64; 3]>,
}

impl Moment {
    pub(super) fn of(live: &Live) -> Self {
        let counts = |caller: &Caller| [caller.allocs, caller.frees, caller.alloc_bytes];
        Self { totals: live.totals(), callers: live.callers().iter().map(counts).collect() }
    }
}

/// The counts of a caller, and their rates.
#[derive(Clone, Debug)]
struct Row {
    caller: Caller,
    /// Allocations, frees and allocated bytes a second.
    rates: [f64; 3],
}

/// All that a screen shows.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    title: String,
    facts: Vec<(&'static str, String)>,
    rows: Vec<Row>,
}

/// The choices of the reader.
#[derive(Clone, Debug, Default)]
pub(super) struct Look {
    pub(super) width: usize,
    /// Lines of the screen; none if it has as many as it needs.
    pub(super) height: Option<usize>,
    /// The most callers.
    pub(super) rows: usize,
    pub(super) sort: Sort,
    /// Callers whose name has this text.
    pub(super) caller: String,
}

impl Frame {
    /// Measures a state. Rates are those since a moment, which is so long ago.
    pub(super) fn of(title: String, live: &Live, since: &Moment, elapsed: Duration) -> Self {
        let rate = |now: u64, before: u64| {
            // A stack moves an allocation to another caller, so that a count may become less.
            now.saturating_sub(before) as f64 / elapsed.as_secs_f64().max(1e-3)
        };
        let row = |(at, caller): (usize, &Caller)| {
            let before = since.callers.get(at).copied().unwrap_or_default();
            let now = [caller.allocs, caller.frees, caller.alloc_bytes];
            Row { caller: caller.clone(), rates: [0, 1, 2].map(|at| rate(now[at], before[at])) }
        };
        let rows = live.callers().iter().enumerate().map(row).collect();
        let mut builder = Builder::default();
        let mut chunks = 0;
        for (start, area) in live.areas() {
            let state = if area.lazy.is_some() { State::Lazy } else { State::Busy };
            chunks += u64::from(area.chunk && area.lazy.is_none());
            builder.add(Part { start, end: start + area.bytes }, state, "");
        }
        let numbers = Numbers::of(&builder.finish(None));
        let (totals, before) = (live.totals(), since.totals);
        let amount = |of: Amount| format!("{}, {}", bytes(of.bytes), counted(of.areas, "area"));
        let [largest, next] = numbers.largest_holes;
        let pages = |(pages, most): (u64, u64)| format!("{} of {} pages", grouped(pages), grouped(most));
        let facts = vec![
            ("busy", amount(numbers.busy)),
            ("allocs/s", speed(rate(totals.allocs, before.allocs))),
            ("lazy", amount(numbers.lazy)),
            ("frees/s", speed(rate(totals.frees, before.frees))),
            ("lazy, by kernel", live.nr_lazy().map_or("not known since purge".to_string(), pages)),
            ("purges", format!("{} of {}", grouped(totals.purges), counted(totals.purged, "area"))),
            ("holes", grouped(numbers.holes.areas)),
            ("failed", grouped(totals.failed)),
            ("largest hole", bytes(largest)),
            ("percpu allocs/s", speed(rate(totals.percpu_allocs, before.percpu_allocs))),
            ("next largest", bytes(next)),
            ("percpu frees/s", speed(rate(totals.percpu_frees, before.percpu_frees))),
            ("percpu chunks", format!("{chunks} (+{} -{})", totals.chunks_created, totals.chunks_destroyed)),
            ("lost events", grouped(totals.lost)),
        ];
        Self { title, facts, rows }
    }

    /// Returns true if it shows nothing yet.
    pub(super) fn is_empty(&self) -> bool {
        self.title.is_empty()
    }

    /// Returns the lines of a screen, none wider than the screen. Control characters of names are shown as pictures.
    pub(super) fn lines(&self, look: &Look) -> Vec<String> {
        let mut lines = vec![cut(&self.title, look.width)];
        let fact = |(at, (name, value)): (usize, &(&str, String))| {
            let width = FACTS[at % 2] - FACT_NAME - 1;
            format!("{name:<FACT_NAME$}{value:<width$} ")
        };
        // Of an odd number of columns, a left one would stand below a right one.
        let columns = (look.width / FACTS.iter().sum::<usize>() * 2).max(1);
        let facts: Vec<String> = self.facts.iter().enumerate().map(fact).collect();
        lines.extend(facts.chunks(columns).map(|facts| cut(facts.concat().trim_end(), look.width)));
        lines.push(String::new());
        let wide = look.width >= WIDE;
        let totals = if wide { 22 } else { 0 };
        let name = look.width.saturating_sub(57 + totals).clamp(12, 80);
        let head =
            |text: &str, sort: Sort| if look.sort == sort { format!("{text}*") } else { text.to_string() };
        let mut line = format!(
            "{:<name$} {:<6} {:>9} {:>9} {:>10} {:>8} {:>9}",
            "caller",
            "memory",
            head("allocs/s", Sort::Allocs),
            head("frees/s", Sort::Frees),
            head("bytes/s", Sort::Rate),
            head("live", Sort::Live),
            head("bytes", Sort::Bytes),
        );
        if wide {
            line += &format!(" {:>10} {:>10}", "allocs", "frees");
        }
        lines.push(cut(&line, look.width));
        let room =
            look.height.map_or(look.rows, |height| height.saturating_sub(lines.len() + 2).min(look.rows));
        let mut rows: Vec<&Row> =
            self.rows.iter().filter(|row| row.caller.name.contains(&look.caller)).collect();
        rows.retain(|row| row.caller.live > 0 || row.caller.allocs > 0);
        rows.sort_by(|a, b| {
            b.key(look.sort)
                .total_cmp(&a.key(look.sort))
                .then_with(|| b.caller.live_bytes.cmp(&a.caller.live_bytes))
                .then_with(|| a.caller.name.cmp(&b.caller.name))
        });
        for row in rows.iter().take(room) {
            let Row { caller, rates: [allocs, frees, rate] } = row;
            let mut line = format!(
                "{:<name$} {:<6} {:>9} {:>9} {:>10} {:>8} {:>9}",
                cut(&caller.name, name),
                caller.kind.choice(),
                speed(*allocs),
                speed(*frees),
                bytes(*rate as u64),
                grouped(caller.live),
                bytes(caller.live_bytes),
            );
            if wide {
                line += &format!(" {:>10} {:>10}", grouped(caller.allocs), grouped(caller.frees));
            }
            lines.push(cut(&line, look.width));
        }
        let more = rows.len() - room.min(rows.len());
        if more > 0 {
            lines.push(cut(&format!("and {} more", grouped(more as u64)), look.width));
        }
        lines
    }
}

impl Row {
    fn key(&self, sort: Sort) -> f64 {
        match sort {
            Sort::Allocs => self.rates[0],
            Sort::Frees => self.rates[1],
            Sort::Rate => self.rates[2],
            Sort::Live => self.caller.live as f64,
            Sort::Bytes => self.caller.live_bytes as f64,
        }
    }
}

/// Formats a rate.
fn speed(rate: f64) -> String {
    match rate {
        0.0 => "0".to_string(),
        rate if rate < 9.95 => format!("{rate:.1}"),
        rate => grouped(rate.round() as u64),
    }
}

/// Cuts a line to a width in columns; its last character is then `~`. Control characters are shown as pictures.
pub(super) fn cut(line: &str, width: usize) -> String {
    console::truncate_str(&printable(line), width, "~").into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmlab_trace::{Next, items};

    const TEXT: &str = "a\x1b[31mb-7 [000] ..... 1.0: alloc_vmap_area: va_start: 65536 size=20480 align=1 vstart=0x1000 vend=0xffff000 failed=0\n\
        sh-8 [000] ..... 1.5: alloc_vmap_area: va_start: 131072 size=8192 align=1 vstart=0x1000 vend=0xffff000 failed=0\n\
        sh-8 [000] ..... 1.6: alloc_vmap_area: va_start: 262144 size=8192 align=1 vstart=0x1000 vend=0xffff000 failed=0\n\
        sh-8 [000] ..... 1.7: free_vmap_area_noflush: va_start=0x20000 nr_lazy=2 nr_lazy_max=99\n";

    fn frame() -> Frame {
        let mut live = Live::new(false);
        let taken = items(TEXT.as_bytes(), |item| {
            live.take(&item);
            Ok(Next::Go)
        });
        assert_eq!(taken.map(|census| census.items).ok(), Some(4));
        Frame::of("title".to_string(), &live, &Moment::default(), Duration::from_secs(2))
    }

    fn look(width: usize) -> Look {
        Look { width, rows: 20, ..Look::default() }
    }

    #[test]
    fn a_screen_fits_its_width_and_height_and_obeys_no_name() {
        for width in [40, 80, 200] {
            let lines = frame().lines(&look(width));
            assert!(lines.iter().all(|line| console::measure_text_width(line) <= width), "{lines:#?}");
            assert!(lines.iter().all(|line| !line.contains('\x1b')), "{lines:#?}");
        }
        let text = frame().lines(&look(80)).join("\n");
        for shown in [
            "busy            28 KiB, 2 areas",
            "lazy            8 KiB, 1 area",
            "lazy, by kernel 2 of 99 pages",
            "allocs/s        1.5",
            "holes           2 ",
            "largest hole    120 KiB",
            "a\u{241b}[31mb",
        ] {
            assert!(text.contains(shown), "{shown}: {text}");
        }
        assert!(frame().lines(&look(200)).iter().any(|line| line.ends_with("allocs      frees")));
        let short = Look { height: Some(14), ..look(80) };
        assert!(frame().lines(&short).len() <= 14);
    }

    #[test]
    fn facts_stay_apart_however_large() {
        let (name, value) = ("lazy", "1023 MiB, 1,048,576 areas".to_string());
        let facts = vec![(name, value.clone()), ("frees/s", "1,234,567".to_string())];
        let frame = Frame { title: String::new(), facts, rows: Vec::new() };
        assert!(
            frame.lines(&look(80))[1].contains(&format!("{value} frees/s")),
            "{:?}",
            frame.lines(&look(80))
        );
        assert_eq!(frame.lines(&look(60))[2], "frees/s         1,234,567");
    }

    #[test]
    fn callers_are_sorted_and_filtered() {
        let first = |look: &Look| {
            let lines = frame().lines(look);
            let head = lines.iter().position(|line| line.starts_with("caller")).unwrap_or(0);
            lines[head + 1].split_whitespace().take(2).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(first(&look(80)), "task sh");
        assert_eq!(first(&Look { sort: Sort::Bytes, ..look(80) }), "task a\u{241b}[31mb");
        assert_eq!(first(&Look { caller: "[31".to_string(), ..look(80) }), "task a\u{241b}[31mb");
        let mut sort = Sort::default();
        for _ in Sort::CHOICES {
            sort = sort.next();
        }
        assert_eq!(sort, Sort::default());
    }
}
