//! `vmlab top`: what the running kernel does to its address space, live; or a recording at a time.

mod screen;
mod view;

use super::input::{Tables as Beside, note_bad, read_table, stem};
use super::selected::seconds;
use super::{choice, lacks, out, print_note};
use crate::reading::open;
use anyhow::{Context, Result, bail};
use screen::Screen;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use view::{Frame, Look, Moment, Sort};
use vmlab_base::text::{counted, grouped, printable};
use vmlab_trace::jsonl::{Item, When};
use vmlab_trace::live::Live;
use vmlab_trace::record::{BEGIN, Recorder, Settings, Source, Tables};
use vmlab_trace::vmallocinfo::Table;
use vmlab_trace::{Happening, Next, TABLE_BYTES_MAX, items};

/// Columns of a screen that is not on a terminal.
const WIDTH: usize = 80;
/// The longest wait for a key, between two reads of the kernel's buffers.
const WAIT: Duration = Duration::from_millis(50);
/// The least time between two reads of the kernel's table after losses.
const TABLES_APART: Duration = Duration::from_secs(5);
/// The name of the marks around a table.
const TABLE: &str = "top";

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Show a recording or a trace instead of the running kernel
    #[arg(value_name = "RECORDING")]
    recording: Option<PathBuf>,
    /// Show the recording at this time of its clock, seconds (default: its end)
    // The parser does not ask for a recording where one of these is given, which a recording conflicts with.
    #[arg(long, value_name = "TIME", requires = "recording", value_parser = seconds,
        conflicts_with_all = ["length", "output", "buffer_kib", "no_stacks"])]
    at: Option<u64>,
    /// Print one screen as text, after the time of --for; as without a terminal
    #[arg(long)]
    once: bool,
    /// Seconds between two screens, over which rates are computed
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: u64,
    /// End after so many seconds (default: at q; as text, after one interval)
    #[arg(long = "for", value_name = "SECONDS", value_parser = seconds, conflicts_with = "recording")]
    length: Option<u64>,
    /// Order of the callers
    #[arg(long, value_parser = choice::<Sort>(), value_name = "NAME", default_value = "allocs")]
    sort: Sort,
    /// Show the callers alone whose name has this text
    #[arg(long, value_name = "TEXT", default_value = "")]
    caller: String,
    /// The most callers that are shown
    #[arg(long, value_name = "N", default_value = "20")]
    top: usize,
    /// Columns of the text (default: 80)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(40..=1000))]
    width: Option<u16>,
    /// File of a recording that begins here; a number is added if it exists
    #[arg(short, long, value_name = "FILE", default_value = "vmlab.jsonl.gz", conflicts_with = "recording")]
    output: PathBuf,
    /// KiB of the kernel's buffer for each CPU
    #[arg(long, value_name = "KIB", default_value = "8192", value_parser = clap::value_parser!(u32).range(4..=4 << 20),
        conflicts_with = "recording")]
    buffer_kib: u32,
    /// Do not have the kernel write call stacks; the callers of areas are then the tasks that ran
    #[arg(long, conflicts_with = "recording")]
    no_stacks: bool,
}

/// Shows a recording, or the running kernel until a key, a signal or the time ends it.
///
/// # Errors
/// If the kernel cannot be recorded here, or the input cannot be read.
pub(super) fn run(args: &Args) -> Result<()> {
    if args.interval == 0 {
        bail!("--interval is 0: rates need some time");
    }
    if let Some(path) = &args.recording {
        let (frame, cut_short) = of_recording(args, path)?;
        text(&frame, args)?;
        return cut_short.map_or(Ok(()), |why| bail!("{}: the input ends early, {why}", path.display()));
    }
    if args.output == Path::new("-") {
        bail!("--output names a file: standard output has the screen");
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot take signals")?;
    }
    let mut session = Session::begin(args)?;
    // Only now: errors before this are lines on the terminal as it was.
    let screen = if args.once { None } else { Screen::enter(std::io::stdin(), std::io::stdout())? };
    let shown = match screen {
        Some(screen) => session.on_screen(screen, &stop),
        None => session.as_text(&stop),
    };
    // A recording must end well although the terminal is gone.
    session.end_recording()?;
    session.notes.iter().for_each(|note| print_note(note));
    shown
}

/// Prints a screen.
fn text(frame: &Frame, args: &Args) -> Result<()> {
    let look = Look {
        width: args.width.map_or(WIDTH, usize::from),
        height: None,
        rows: args.top,
        sort: args.sort,
        caller: args.caller.clone(),
    };
    frame.lines(&look).iter().try_for_each(|line| out(line.trim_end()))
}

/// The running kernel, and what is known of it.
struct Session<'a> {
    args: &'a Args,
    source: Source,
    live: Live,
    recording: Option<(PathBuf, Recorder)>,
    started: Instant,
    /// The counts at the last screen, and its time.
    since: (Moment, Instant),
    frame: Frame,
    /// The events lost when a table was last read, and the time then.
    table: (u64, Instant),
    /// Printed after the screen.
    notes: Vec<String>,
}

impl<'a> Session<'a> {
    fn begin(args: &'a Args) -> Result<Self> {
        let source = Source::open(Settings {
            buffer_kib: args.buffer_kib,
            stacks: !args.no_stacks,
            latency: false,
            locks: false,
        })?;
        let mut notes = Vec::new();
        if !args.no_stacks && !source.stacks() {
            notes.push("this kernel writes no call stacks: callers of areas are tasks".to_string());
        }
        let live = Live::new(source.stacks());
        let now = Instant::now();
        let frame = Frame::of(String::new(), &live, &Moment::default(), Duration::from_secs(1));
        let since = (Moment::default(), now);
        let (recording, table) = (None, (0, now));
        let mut session = Self { args, source, live, recording, started: now, since, frame, table, notes };
        session.read_table()?;
        Ok(session)
    }

    /// Reads the kernel's table of areas, from which the state goes on.
    fn read_table(&mut self) -> Result<()> {
        let tables = Tables::read(&self.source, TABLE)?;
        match tables.areas() {
            Some(text) => self.live.expect(Table::read(text.as_bytes()), TABLE),
            None => self
                .notes
                .push("/proc/vmallocinfo shows hashes here: only areas of events are known".to_string()),
        }
        self.table = (self.source.lost()?, Instant::now());
        Ok(())
    }

    /// Takes what the kernel has written, for some time at most; returns true if there may be more.
    fn drain(&mut self) -> Result<bool> {
        let begun = Instant::now();
        let Self { source, live, recording, .. } = self;
        let mut more = true;
        while more && begun.elapsed() < WAIT {
            more = source.step(&mut |item| {
                live.take(item);
                recording.as_mut().map_or(Ok(()), |(_, recorder)| recorder.take(item))
            })?;
        }
        if let Some((_, recorder)) = recording {
            recorder.flush();
        }
        Ok(more)
    }

    /// Computes the next screen, if it is time.
    fn tick(&mut self) -> Result<bool> {
        let (since, then) = &self.since;
        let elapsed = then.elapsed();
        if elapsed < Duration::from_nanos(self.args.interval) {
            return Ok(false);
        }
        self.frame = Frame::of(self.title(), &self.live, since, elapsed);
        self.since = (Moment::of(&self.live), Instant::now());
        // After a loss, areas are missing until the table is read again.
        let (lost, read) = self.table;
        if !self.live.is_reading() && read.elapsed() >= TABLES_APART && self.source.lost()? > lost {
            self.read_table()?;
        }
        Ok(true)
    }

    fn title(&self) -> String {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        format!("vmlab top: Linux {release}, {:.1} s", self.started.elapsed().as_secs_f64())
    }

    fn is_over(&self, stop: &AtomicBool, length: Option<u64>) -> bool {
        stop.load(Ordering::Relaxed)
            || length.is_some_and(|length| self.started.elapsed() >= Duration::from_nanos(length))
    }

    /// Prints one screen at the end.
    fn as_text(&mut self, stop: &AtomicBool) -> Result<()> {
        let length = self.args.length.unwrap_or(self.args.interval);
        while !self.is_over(stop, Some(length)) {
            let more = self.drain()?;
            self.tick()?;
            if !more {
                std::thread::sleep(WAIT.min(Duration::from_nanos(self.args.interval)));
            }
        }
        self.drain()?;
        let (since, then) = &self.since;
        // The last interval, if it has just ended.
        if self.frame.is_empty() || then.elapsed() * 2 >= Duration::from_nanos(self.args.interval) {
            self.frame = Frame::of(self.title(), &self.live, since, then.elapsed());
        }
        text(&self.frame, self.args)
    }

    /// Shows screens until a key or a signal.
    fn on_screen(&mut self, mut screen: Screen, stop: &AtomicBool) -> Result<()> {
        let mut reader =
            Reader { sort: self.args.sort, caller: self.args.caller.clone(), ..Reader::default() };
        self.drain()?;
        self.frame = Frame::of(self.title(), &self.live, &self.since.0, Duration::from_secs(1));
        self.since = (Moment::of(&self.live), Instant::now());
        let (mut size, mut redraw) = (screen.size(), true);
        while !self.is_over(stop, self.args.length) {
            let more = self.drain()?;
            if !reader.frozen {
                redraw |= self.tick()?;
            }
            if std::mem::replace(&mut size, screen.size()) != size {
                redraw = true;
            }
            if std::mem::take(&mut redraw) {
                let (width, height) = size;
                let look = Look {
                    width,
                    height: Some(height),
                    rows: usize::MAX,
                    sort: reader.sort,
                    caller: reader.caller.clone(),
                };
                screen.draw(&self.frame.lines(&look), &self.status(&reader))?;
            }
            for key in screen.keys(if more { Duration::ZERO } else { WAIT })? {
                redraw = true;
                match reader.key(key) {
                    Asked::Nothing => {}
                    Asked::Quit => return Ok(()),
                    Asked::Record if self.recording.is_some() => self.end_recording()?,
                    Asked::Record => self.begin_recording(&mut reader),
                }
            }
        }
        Ok(())
    }

    /// Returns the last line of a screen.
    fn status(&self, reader: &Reader) -> String {
        let mut parts = Vec::new();
        if reader.typing {
            return format!("filter: {}_   Enter keeps it, Esc clears it", reader.caller);
        }
        if let Some((path, recorder)) = &self.recording {
            let lost = self.live.totals().lost;
            parts.push(format!(
                "RECORDING {}: {}, {} lost",
                path.display(),
                counted(recorder.events(), "event"),
                grouped(lost)
            ));
        } else if let Some(note) = reader.error.as_ref().or(self.notes.last()) {
            parts.push(note.clone());
        }
        if reader.frozen {
            parts.push("FROZEN".to_string());
        }
        if !reader.caller.is_empty() {
            parts.push(format!("filter: {}", reader.caller));
        }
        parts.push("q quit  s sort  / filter  space freeze  w record".to_string());
        parts.join(" | ")
    }

    /// Begins a recording; a failure is shown.
    fn begin_recording(&mut self, reader: &mut Reader) {
        reader.error = None;
        let path = free_name(&self.args.output);
        match Recorder::begin(&path, &self.source, &[], Instant::now(), &mut |_| {}) {
            Ok(recorder) => self.recording = Some((path, recorder)),
            Err(error) => reader.error = Some(printable(&format!("{error:#}")).into_owned()),
        }
    }

    fn end_recording(&mut self) -> Result<()> {
        let Some((path, recorder)) = self.recording.take() else { return Ok(()) };
        let events = recorder.events();
        let live = &mut self.live;
        let summary = recorder.end(&mut self.source, &mut |item| {
            live.take(item);
            Ok(())
        })?;
        let seconds = Duration::from_nanos(summary.took_ns.0).as_secs_f64();
        let events = summary.events.0.max(events);
        self.notes.push(format!("{} in {seconds:.1} s: {}", counted(events, "event"), path.display()));
        Ok(())
    }
}

/// Returns a name that no file has: `vmlab.jsonl.gz`, or else `vmlab-2.jsonl.gz` and so on.
fn free_name(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let dot = name.char_indices().skip(1).find(|&(_, c)| c == '.').map_or(name.len(), |(at, _)| at);
    let (before, after) = name.split_at(dot);
    let numbered = (2..u32::MAX).map(|number| path.with_file_name(format!("{before}-{number}{after}")));
    let mut names = std::iter::once(path.to_path_buf()).chain(numbered);
    names.find(|path| !path.exists()).unwrap_or_else(|| path.to_path_buf())
}

/// The choices made by keys.
#[derive(Debug, Default)]
struct Reader {
    sort: Sort,
    caller: String,
    typing: bool,
    frozen: bool,
    error: Option<String>,
}

/// The request of a key.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Nothing,
    Quit,
    Record,
}

impl Reader {
    /// Takes a byte of the terminal. Bytes beyond ASCII are ignored: no caller has them.
    fn key(&mut self, byte: u8) -> Asked {
        match (self.typing, byte) {
            (true, b'\r' | b'\n') => self.typing = false,
            (true, 0x1b) => (self.typing, self.caller) = (false, String::new()),
            (true, 0x7f | 8) => _ = self.caller.pop(),
            (true, b' '..=b'~') if self.caller.len() < 60 => self.caller.push(byte.into()),
            (false, b'q') => return Asked::Quit,
            (false, b'w') => return Asked::Record,
            (false, b's') => self.sort = self.sort.next(),
            (false, b'/') => (self.typing, self.caller) = (true, String::new()),
            (false, b' ') => self.frozen = !self.frozen,
            _ => {}
        }
        Asked::Nothing
    }
}

/// The facts that decide how a recording is read.
#[derive(Default)]
struct First {
    begin: String,
    /// True if lines are missing there.
    cut: bool,
    marks: bool,
    stacks: bool,
    events: u64,
    /// The times of the first event and of the last.
    first: Option<u64>,
    last: u64,
}

/// Returns the screen of a recording at a time, and why the input ended early, if it did.
fn of_recording(args: &Args, path: &Path) -> Result<(Frame, Option<String>)> {
    let shown = path.display();
    // A pipe cannot be read twice.
    if path == Path::new("-") || std::fs::metadata(path).is_ok_and(|file| !file.is_file()) {
        bail!("{shown}: a recording is read twice, and only a file can be");
    }
    let again = || open(path).with_context(|| format!("cannot read {shown}"));
    let mut first = First::default();
    let opens = format!("vmlab {BEGIN} opens");
    items(again()?, |item| {
        match item {
            Item::Area(area) if area.when == When::Begin && first.begin.len() < TABLE_BYTES_MAX => {
                first.begin += &format!("{area}\n");
            }
            Item::Area(area) if area.when == When::Begin => first.cut = true,
            Item::Stack(_) => first.stacks = true,
            Item::Event(entry) => {
                first.events += 1;
                first.first = first.first.or(entry.ns);
                first.last = first.last.max(entry.ns.unwrap_or(0));
                first.marks |= matches!(&entry.happening, Happening::Mark { text } if *text == opens);
            }
            _ => {}
        }
        Ok(Next::Go)
    })?;
    if first.events == 0 {
        return of_table(args, path);
    }
    if args.at.is_some() && first.last == 0 {
        bail!("{shown}: names no times, so --at can name no moment; leave it out");
    }
    if let (Some(at), Some(begins)) = (args.at, first.first.filter(|&begins| args.at < Some(begins))) {
        let [at, begins] = [at, begins].map(|ns| ns as f64 / 1e9);
        bail!("{shown}: --at {at} is before its first event, at {begins:.6} s");
    }
    if let Some(at) = args.at.filter(|&at| at > first.last) {
        let [at, last] = [at, first.last].map(|ns| ns as f64 / 1e9);
        print_note(&format!(
            "{shown}: --at {at} is after its last event, at {last:.6} s: the state then is shown"
        ));
    }
    let beside = Beside::default();
    let mut cut_short = first.cut.then(|| "lines are missing in the table of its begin".to_string());
    let table = match beside.before(path) {
        Some(path) => Some(read_table(&path, &mut cut_short)?),
        None => (!first.begin.is_empty()).then(|| Table::read(first.begin.as_bytes())),
    };
    let mut live = Live::new(first.stacks);
    match table {
        Some(table) if first.marks => live.expect(table, BEGIN),
        Some(table) => live.stand_on(table),
        None => {}
    }
    if let Some(path) = beside.after(path) {
        live.set_chunk_bytes(read_table(&path, &mut cut_short)?.chunk_bytes(0));
    }
    let at = args.at.unwrap_or(first.last);
    let since = at.saturating_sub(args.interval);
    let mut before = None;
    let census = items(again()?, |item| {
        if let Item::Event(entry) = &item {
            // Events of several CPUs may be slightly out of order.
            let ns = entry.ns.unwrap_or(0);
            if ns > at {
                return Ok(Next::Go);
            }
            if ns > since && before.is_none() {
                before = Some(Moment::of(&live));
            }
        }
        live.take(&item);
        Ok(Next::Go)
    })?;
    let before = before.unwrap_or_else(|| Moment::of(&live));
    let title = format!("vmlab top: {} at {:.6} s", stem(path), at as f64 / 1e9);
    Ok((
        Frame::of(title, &live, &before, Duration::from_nanos(args.interval)),
        census.cut_short.or(cut_short),
    ))
}

/// Returns the screen of a table, or of a dump, which is a recording without events; and why it ended early.
fn of_table(args: &Args, path: &Path) -> Result<(Frame, Option<String>)> {
    let shown = path.display();
    let table = Table::read(open(path).with_context(|| format!("cannot read {shown}"))?);
    if table.areas == 0 {
        let what = "no event of vmalloc or of per-CPU memory, and no area";
        return Err(lacks(shown, what, table.cut_short.as_deref()));
    }
    if args.at.is_some() {
        bail!("{shown}: has areas at one time, and no events: leave --at out");
    }
    note_bad(path, &table);
    let (mut live, cut_short) = (Live::new(false), table.cut_short.clone());
    live.stand_on(table);
    let title = format!("vmlab top: {}, a table without events", stem(path));
    Ok((Frame::of(title, &live, &Moment::of(&live), Duration::from_nanos(args.interval)), cut_short))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_filter_freeze_record_and_quit() {
        let mut reader = Reader::default();
        let mut keys = |text: &str| text.bytes().map(|key| reader.key(key)).last();
        assert_eq!(keys("s "), Some(Asked::Nothing));
        assert_eq!(keys("/clx\x7fq\u{e9}\r"), Some(Asked::Nothing));
        assert_eq!((keys("w"), keys("q")), (Some(Asked::Record), Some(Asked::Quit)));
        assert_eq!((reader.sort, reader.caller.as_str()), (Sort::Frees, "clq"));
        assert!(reader.frozen && !reader.typing);
        assert_eq!(reader.key(b'/'), Asked::Nothing);
        assert_eq!(reader.key(0x1b), Asked::Nothing);
        assert!(reader.caller.is_empty());
    }

    #[test]
    fn a_recording_has_a_name_of_its_own() {
        let dir = tempfile::TempDir::new().unwrap_or_else(|error| panic!("{error}"));
        let path = dir.path().join("a.jsonl.gz");
        let name = |path: &Path| free_name(path).file_name().map(|name| name.to_string_lossy().into_owned());
        for want in ["a.jsonl.gz", "a-2.jsonl.gz", "a-3.jsonl.gz"] {
            assert_eq!(name(&path).as_deref(), Some(want));
            assert!(std::fs::write(dir.path().join(want), "x").is_ok());
        }
    }
}
