//! The features of this system that a recording of the kernel needs.

use super::{Fact, Verdict};
use Verdict::{Good, Less, Missing};
use anyhow::Result;
use std::fs;
use vmlab_trace::record::tracefs::{self, Found};
use vmlab_trace::record::{probes, snapshot};

pub(super) const GROUP: &str = "recording";

/// The findings. Errors are those that a recording would report.
pub(super) struct Probe {
    /// Path of tracefs, or the error if no instance can be created in it.
    tracefs: Result<String>,
    /// Groups of events that tracefs has.
    vmalloc: bool,
    percpu: bool,
    /// The outcome of reading `percpu_stats`.
    stats: Result<()>,
    /// True if the table's addresses are hashes when it is read with the current settings.
    table: Result<bool>,
    restrict: Option<String>,
    root: bool,
    /// The kind of probes of functions that the kernel offers.
    probes: Option<&'static str>,
    /// Instances and probes left by recorders that have exited.
    left: Vec<String>,
}

impl Probe {
    pub(super) fn new() -> Self {
        let found = Found::find("tracefs");
        let has =
            |group: &str| found.as_ref().is_ok_and(|found| found.path.join("events").join(group).is_dir());
        let (vmalloc, percpu) = (has("vmalloc"), has("percpu"));
        let left = found.as_ref().map_or_else(
            |_| Vec::new(),
            |found| {
                let instances = tracefs::left(&found.path.join("instances"));
                instances.into_iter().chain(probes::groups_left(&found.path)).collect()
            },
        );
        let probes = found.as_ref().ok().and_then(|found| probes::kind_offered(&found.path));
        let tracefs = found.and_then(|found| {
            // Listing needs the same permission as creating an instance.
            fs::read_dir(found.path.join("instances"))
                .map(|_| found.how())
                .map_err(|error| anyhow::anyhow!("{}: {error}", found.how()))
        });
        Self {
            tracefs,
            vmalloc,
            percpu,
            stats: snapshot::percpu_stats().map(|_| ()),
            table: fs::read_to_string("/proc/vmallocinfo")
                .map(|text| snapshot::hashed(&text))
                .map_err(Into::into),
            restrict: fs::read_to_string("/proc/sys/kernel/kptr_restrict")
                .ok()
                .map(|text| text.trim().to_string()),
            root: rustix::process::geteuid().is_root(),
            probes,
            left,
        }
    }
}

/// Returns one fact for each finding.
pub(super) fn facts(probe: &Probe) -> Vec<Fact> {
    let fact = |name, verdict, found: String, means: &str| Fact::new(GROUP, name, verdict, found, means);
    vec![
        if probe.root {
            fact("permission", Good, "root".to_string(), "may record, if nothing below forbids it")
        } else {
            fact("permission", Missing, "not root".to_string(), "run vmlab record by sudo")
        },
        match &probe.tracefs {
            Ok(how) => {
                fact("tracefs", Good, how.clone(), "an instance of our own is made in it, and removed again")
            }
            Err(why) => fact("tracefs", Missing, format!("{why:#}"), "the kernel cannot be recorded here"),
        },
        match (probe.vmalloc, probe.percpu) {
            (true, true) => fact("events", Good, "vmalloc, percpu".to_string(), "both are recorded"),
            (true, false) => fact("events", Less, "vmalloc".to_string(), "per-CPU memory is not recorded"),
            (false, _) if probe.tracefs.is_err() => {
                fact("events", Missing, "not seen".to_string(), "they are known once tracefs is")
            }
            (false, _) => fact("events", Missing, "none of vmalloc".to_string(), "they came with Linux 6.2"),
        },
        match (&probe.table, &probe.restrict) {
            (Ok(false), _) => {
                fact("vmallocinfo", Good, "addresses as they are".to_string(), "areas are known at both ends")
            }
            (Ok(true), Some(restrict)) if probe.root => fact(
                "vmallocinfo",
                Good,
                format!("hashed addresses, kernel.kptr_restrict {restrict}"),
                "kernel.kptr_restrict is 1 while a recording reads it, and put back",
            ),
            (Ok(true), _) => fact(
                "vmallocinfo",
                Less,
                "hashed addresses".to_string(),
                "areas that are there before are not known",
            ),
            (Err(why), _) => {
                fact("vmallocinfo", Missing, format!("{why:#}"), "areas that are there before are not known")
            }
        },
        match &probe.stats {
            Ok(()) => fact("percpu_stats", Good, "readable".to_string(), "chunks are known at both ends"),
            Err(why) => fact("percpu_stats", Less, format!("{why:#}"), "a recording goes without"),
        },
        match probe.probes {
            Some(kind) => fact("probes", Good, kind.to_string(), "record --latency measures the allocators"),
            None => fact(
                "probes",
                Less,
                "none of functions".to_string(),
                "no durations: they take CONFIG_FPROBE_EVENTS or CONFIG_KPROBE_EVENTS",
            ),
        },
        match &probe.left[..] {
            [] => {
                fact("left behind", Good, "nothing".to_string(), "every recorder that ended has cleaned up")
            }
            names => fact(
                "left behind",
                Less,
                names.join(", "),
                "of recorders that were killed; the next recording removes it",
            ),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    fn good() -> Probe {
        Probe {
            tracefs: Ok("at /t".to_string()),
            vmalloc: true,
            percpu: true,
            stats: Ok(()),
            table: Ok(false),
            restrict: Some("0".to_string()),
            root: true,
            probes: Some("fprobe"),
            left: Vec::new(),
        }
    }

    fn verdicts(probe: &Probe) -> Vec<Verdict> {
        facts(probe).iter().map(|fact| fact.verdict).collect()
    }

    #[test]
    fn each_line_is_judged_by_what_was_found() {
        assert_eq!(verdicts(&good()), [Good; 7]);
        let hashed = Probe { table: Ok(true), ..good() };
        assert_eq!(verdicts(&hashed), [Good; 7]);
        let cases: [(Probe, usize, Verdict, &str); 10] = [
            (Probe { probes: None, ..good() }, 5, Less, "CONFIG_KPROBE_EVENTS"),
            (Probe { left: vec!["vmlab-1-2".to_string()], ..good() }, 6, Less, "next recording"),
            (Probe { root: false, ..good() }, 0, Missing, "sudo"),
            (Probe { tracefs: Err(anyhow!("not mounted")), ..good() }, 1, Missing, "cannot be recorded"),
            (Probe { percpu: false, ..good() }, 2, Less, "not recorded"),
            (Probe { vmalloc: false, ..good() }, 2, Missing, "6.2"),
            (Probe { vmalloc: false, tracefs: Err(anyhow!("x")), ..good() }, 2, Missing, "once tracefs is"),
            (Probe { table: Ok(true), restrict: None, ..good() }, 3, Less, "not known"),
            (Probe { table: Err(anyhow!("denied")), ..good() }, 3, Missing, "not known"),
            (Probe { stats: Err(anyhow!("none")), ..good() }, 4, Less, "without"),
        ];
        for (probe, at, verdict, means) in cases {
            let fact = &facts(&probe)[at];
            assert!(fact.verdict == verdict && fact.means.contains(means), "{fact:?}");
        }
    }

    #[test]
    fn this_machine_has_every_line() {
        assert_eq!(facts(&Probe::new()).len(), 7);
    }
}
