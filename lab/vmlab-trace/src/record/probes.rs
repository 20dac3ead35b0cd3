//! Probes of the kernel's functions, in tracefs.
//!
//! # Theory
//! A probe is an event that the kernel adds to a function, by a line in `dynamic_events`: one for its beginning, one
//! for its return. The events belong to the whole system and not to an instance, and do not go by themselves. So their
//! group has the recorder's name, as an instance has. An instance must be gone before the probes that it has switched
//! on can be removed.
//!
//! # Invariants
//! - **TF3 own-probes**  only probes of a group with such a name are removed. Those of this process go when the
//!   recording is dropped, on every path, and those of one that has exited by the next recording.
//!
//! Source: `Documentation/trace/fprobetrace.rst`, `kprobetrace.rst` of Linux 6.12.

use super::tracefs::is_of_a_gone_recorder;
use crate::call::{Call, Edge};
use anyhow::{Context, Result, bail};
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// The file that adds and removes probes.
const FILE: &str = "dynamic_events";
/// Prefix of the names of recorders' groups.
const PREFIX: &str = "vmlab_";
/// Returns of one function that may be outstanding: as many threads may wait in it.
const ACTIVE_MAX: u32 = 512;
/// The file of the kernel's symbols.
const SYMBOLS: &str = "/proc/kallsyms";

/// The kinds of probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// By the function tracer.
    Fprobe,
    /// By a breakpoint, or a jump in its place.
    Kprobe,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Fprobe => "fprobe",
            Self::Kprobe => "kprobe",
        }
    }

    /// Returns the line that adds an event; `active` as the kernel's default if it is none.
    fn line(self, group: &str, event: &str, function: &str, edge: Edge, active: Option<u32>) -> String {
        let active = active.map(|active| active.to_string()).unwrap_or_default();
        match (self, edge) {
            (Self::Fprobe, Edge::Enter) => format!("f:{group}/{event} {function}"),
            (Self::Fprobe, Edge::Leave) => format!("f{active}:{group}/{event} {function}%return"),
            (Self::Kprobe, Edge::Enter) => format!("p:{group}/{event} {function}"),
            (Self::Kprobe, Edge::Leave) => format!("r{active}:{group}/{event} {function}"),
        }
    }
}

/// Returns the kind that a kernel offers, by the text of tracefs's `README`. Its format of `p:` is also that of probes
/// of programs.
fn offered(readme: &str) -> Option<Kind> {
    let has = |text: &str| readme.contains(text);
    [(Kind::Fprobe, has("f[:[<group>/]")), (Kind::Kprobe, has("kprobe_events\t"))]
        .into_iter()
        .find_map(|(kind, has)| has.then_some(kind))
}

/// Returns the kind of probes that a kernel offers, by the root of tracefs.
pub fn kind_offered(tracefs: &Path) -> Option<&'static str> {
    kind(tracefs).map(Kind::name)
}

fn kind(tracefs: &Path) -> Option<Kind> {
    let readme = fs::read_to_string(tracefs.join("README")).unwrap_or_default();
    offered(&readme).filter(|_| tracefs.join(FILE).exists())
}

/// Returns the groups of probes of recorders that have exited, each once.
pub fn groups_left(tracefs: &Path) -> Vec<String> {
    let list = fs::read_to_string(tracefs.join(FILE)).unwrap_or_default();
    let mut groups: Vec<String> = left(&list).into_iter().map(|(group, _)| group.to_string()).collect();
    groups.dedup();
    groups
}

/// Returns the group of a recorder: `vmlab_PID_START`.
fn group_of(name: &str) -> String {
    format!("{PREFIX}{}", name.replace('-', "_"))
}

/// Returns the group and the event of a line of `dynamic_events`, `f512:GROUP/EVENT FUNCTION`.
fn event_of(line: &str) -> Option<(&str, &str)> {
    line.split_once(':')?.1.split_whitespace().next()?.split_once('/')
}

/// Returns the function among the kernel's symbols: by its name, or else with a suffix of the compiler.
pub(super) fn find<'a>(symbols: &'a str, names: &[&str]) -> Option<&'a str> {
    let functions = symbols.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (kind, name, module) = (words.next()?, words.next()?, words.next());
        (matches!(kind, "t" | "T") && module.is_none()).then_some(name)
    });
    let suffixed = |name: &str, base: &str| {
        name.strip_prefix(base)
            .is_some_and(|rest| rest.starts_with(".constprop.") || rest.starts_with(".isra."))
    };
    let mut found = None;
    for name in functions {
        if names.contains(&name) {
            return Some(name);
        }
        if found.is_none() && names.iter().any(|base| suffixed(name, base)) {
            found = Some(name);
        }
    }
    found
}

/// The probes of this process.
pub(super) struct Probes {
    file: PathBuf,
    group: String,
    kind: Kind,
    events: Vec<String>,
    functions: Vec<String>,
}

impl Probes {
    /// Finds out which kind the kernel offers.
    ///
    /// # Errors
    /// If it offers none: the message has a remedy.
    pub(super) fn offered(tracefs: &Path, name: &str) -> Result<Self> {
        let Some(kind) = kind(tracefs) else {
            bail!(
                "this kernel has no probes of functions, so there are no durations: they take \
                 CONFIG_FPROBE_EVENTS=y, or CONFIG_KPROBE_EVENTS=y (cargo xtask linux trace boots one)"
            );
        };
        let file = tracefs.join(FILE);
        Ok(Self { file, group: group_of(name), kind, events: Vec::new(), functions: Vec::new() })
    }

    /// Adds the probes of each kind of function that the kernel has. Returns those that it lacks.
    ///
    /// # Errors
    /// If the kernel has none of them, or rejects a probe.
    pub(super) fn add_all(&mut self, symbols: &str) -> Result<Vec<Call>> {
        let mut lacks = Vec::new();
        for call in Call::ALL {
            match find(symbols, call.functions()) {
                Some(function) => self.add(call.event(Edge::Enter), call.event(Edge::Leave), function)?,
                None => lacks.push(call),
            }
        }
        if self.events.is_empty() {
            bail!("{SYMBOLS} shows no function of vmalloc: run this command by sudo");
        }
        Ok(lacks)
    }

    /// Adds both probes of a function.
    pub(super) fn add(&mut self, enter: &str, leave: &str, function: &str) -> Result<()> {
        for (event, edge) in [(enter, Edge::Enter), (leave, Edge::Leave)] {
            let line = |active| self.kind.line(&self.group, event, function, edge, active);
            let wanted = line(Some(ACTIVE_MAX));
            // A kernel may know no such number.
            append(&self.file, &wanted)
                .or_else(|_| append(&self.file, &line(None)))
                .with_context(|| format!("tracefs rejects the probe {wanted:?}"))?;
            self.events.push(event.to_string());
        }
        self.functions.push(function.to_string());
        Ok(())
    }

    /// Removes the probes.
    ///
    /// # Errors
    /// If one stays, since an instance has it switched on.
    pub(super) fn remove(&mut self) -> Result<()> {
        while let Some(event) = self.events.last() {
            remove(&self.file, &self.group, event)
                .with_context(|| format!("tracefs does not remove the probe {}/{event}", self.group))?;
            self.events.pop();
        }
        self.functions.clear();
        Ok(())
    }

    pub(super) fn group(&self) -> &str {
        &self.group
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    pub(super) fn functions(&self) -> &[String] {
        &self.functions
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        // Checks TF3.
        if let Err(error) = self.remove() {
            #[expect(clippy::print_stderr, reason = "a drop cannot report to a caller")]
            {
                eprintln!("vmlab: {error:#}; the next recording with --latency removes it");
            }
        }
    }
}

/// Returns the kernel's symbols.
pub(super) fn symbols() -> Result<String> {
    fs::read_to_string(SYMBOLS).with_context(|| format!("cannot read {SYMBOLS}"))
}

/// Adds a line. To open the file otherwise removes all probes of the system.
fn append(file: &Path, line: &str) -> io::Result<()> {
    OpenOptions::new().append(true).open(file)?.write_all(line.as_bytes())
}

fn remove(file: &Path, group: &str, event: &str) -> io::Result<()> {
    match append(file, &format!("-:{group}/{event}")) {
        // Another recorder removed it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Returns the groups and events of recorders that have exited.
fn left(list: &str) -> Vec<(&str, &str)> {
    let gone = |group: &str| {
        let name = group.strip_prefix(PREFIX).map(|name| name.replace('_', "-"));
        name.is_some_and(|name| is_of_a_gone_recorder(&name))
    };
    list.lines().filter_map(event_of).filter(|(group, _)| gone(group)).collect()
}

/// Removes the probes of recorders that have exited.
pub(super) fn remove_left(tracefs: &Path) {
    let file = &tracefs.join(FILE);
    let list = fs::read_to_string(file).unwrap_or_default();
    for (group, event) in left(&list) {
        // One that is switched on by an instance of another PID namespace stays.
        let _ = remove(file, group, event);
    }
}

/// Returns the functions in words, for a message.
pub(super) fn names(calls: &[Call]) -> String {
    let mut text = String::new();
    for call in calls {
        let comma = if text.is_empty() { "" } else { ", " };
        // Writing to a String cannot fail.
        let _ = write!(text, "{comma}{}", call.functions().join(" or "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYMBOL_TEXT: &str = "0000000000000000 t alloc_vmap_area.cold\n\
        0000000000000000 t alloc_vmap_area.constprop.0\n\
        0000000000000000 d pcpu_alloc\n\
        0000000000000000 T pcpu_alloc_noprof\n\
        0000000000000000 T free_percpu\t[m]\nx\n";

    #[test]
    fn a_function_is_found_with_a_suffix_of_the_compiler_but_not_its_cold_part() {
        let of = |names: &[&str]| find(SYMBOL_TEXT, names);
        assert_eq!(of(&["alloc_vmap_area"]), Some("alloc_vmap_area.constprop.0"));
        assert_eq!(of(&["pcpu_alloc_noprof", "pcpu_alloc"]), Some("pcpu_alloc_noprof"));
        assert_eq!(of(&["pcpu_alloc"]), None, "it is data");
        assert_eq!(of(&["alloc_vmap"]), None);
        assert_eq!(of(&["free_percpu"]), None, "it is a module's");
        let both = format!("{SYMBOL_TEXT}0 t alloc_vmap_area\n");
        assert_eq!(find(&both, &["alloc_vmap_area"]), Some("alloc_vmap_area"));
    }

    #[test]
    fn the_kernels_text_says_which_probes_it_has() {
        let fprobe = "\t           f[:[<group>/][<event>]] <func-name>[%return] [<args>]\n";
        let kprobe = "  kprobe_events\t\t- Create/append/remove/show the kernel dynamic events\n";
        // Of programs alone.
        let uprobe = "\t   Format: p[:[<group>/][<event>]] <place> [<args>]\n";
        assert_eq!(offered(&format!("{kprobe}{uprobe}{fprobe}")), Some(Kind::Fprobe));
        assert_eq!(offered(&format!("{kprobe}{uprobe}")), Some(Kind::Kprobe));
        assert_eq!(offered(uprobe), None);
    }

    #[test]
    fn lines_are_those_of_the_kernels_manual() {
        let line = |kind: Kind, edge, active| kind.line("g", "e", "f.isra.0", edge, active);
        assert_eq!(line(Kind::Fprobe, Edge::Enter, Some(9)), "f:g/e f.isra.0");
        assert_eq!(line(Kind::Fprobe, Edge::Leave, Some(9)), "f9:g/e f.isra.0%return");
        assert_eq!(line(Kind::Kprobe, Edge::Enter, None), "p:g/e f.isra.0");
        assert_eq!(line(Kind::Kprobe, Edge::Leave, None), "r:g/e f.isra.0");
    }

    #[test]
    fn tf3_only_probes_of_recorders_that_are_gone_are_removed() {
        let list = "f:vmlab_4194305_1/vmlab_enter_alloc alloc_vmap_area\n\
            f512:vmlab_4194305_1/vmlab_leave_alloc alloc_vmap_area%return\n\
            p:kprobes/mine do_exit\nf:vmlab_x_1/e f\nf:vmlab_/e f\ns:synthetic/x int y\n-\n";
        let events = ["vmlab_enter_alloc", "vmlab_leave_alloc"];
        assert_eq!(left(list), events.map(|event| ("vmlab_4194305_1", event)));
        let own = format!("f:{}/e f\n", group_of(&super::super::tracefs::own_name().unwrap()));
        assert_eq!(left(&own), []);
    }

    #[test]
    fn functions_that_a_kernel_lacks_are_named() {
        assert_eq!(
            names(&[Call::Alloc, Call::PercpuAlloc]),
            "alloc_vmap_area, pcpu_alloc_noprof or pcpu_alloc"
        );
    }
}
