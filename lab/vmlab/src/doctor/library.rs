//! The code paths that the library uses on this system.

use super::{Fact, Verdict};
use Verdict::{Good, Less, Missing};
use vmalloc::{Answer, Errno, Machine};
use vmlab_base::text::{counted, grouped};

pub(super) const GROUP: &str = "library";

/// Returns one fact for each code path.
pub(super) fn facts(machine: Result<Machine, Errno>) -> Vec<Fact> {
    let fact = |name, verdict, found: String, means: String| Fact::new(GROUP, name, verdict, found, means);
    let machine = match machine {
        Ok(machine) => machine,
        Err(errno) => {
            let means = "no allocator can be made: look at the limits above".to_string();
            return vec![fact("reserve", Missing, error_text(errno), means)];
        }
    };
    let way = |name, answer: Answer, good: &str, less: &str| match answer {
        Ok(()) => fact(name, Good, "works".to_string(), good.to_string()),
        Err(errno) => fact(name, Less, error_text(errno), less.to_string()),
    };
    let mut facts = vec![match machine.commit {
        Ok(()) => fact(
            "reserve, commit",
            Good,
            "works".to_string(),
            "one arena, used from below as far as needed".to_string(),
        ),
        Err(errno) => {
            fact("reserve, commit", Missing, error_text(errno), "no allocator can be made".to_string())
        }
    }];
    facts.push(match (machine.rseq, machine.concurrency_ids) {
        (true, true) => fact(
            "rseq",
            Good,
            "registered by libc, with mm_cid".to_string(),
            "the CPU is read without a call; per-CPU data by restartable sections, a unit for each CPU in use".to_string(),
        ),
        (true, false) => fact(
            "rseq",
            Less,
            "registered by libc, without mm_cid".to_string(),
            "the CPU is read without a call; per-CPU data by restartable sections, a unit for each CPU that there can be"
                .to_string(),
        ),
        (false, _) => fact(
            "rseq",
            Less,
            "not registered".to_string(),
            "the CPU is asked for by sched_getcpu; per-CPU data by atomic operations".to_string(),
        ),
    });
    facts.push(if machine.ends_sections {
        let means = "a reference that dies counts per CPU until then".to_string();
        fact("membarrier", Good, "works".to_string(), means)
    } else {
        fact(
            "membarrier",
            Less,
            "denied".to_string(),
            "references count in one word from the start".to_string(),
        )
    });
    facts.push(way(
        "UFFDIO_MOVE",
        machine.move_pages,
        "areas grow by moving pages: no copy, no further mapping",
        match machine.remap {
            Ok(()) => "areas grow by mremap, at the price of two mappings each, or by a copy",
            Err(_) => "areas grow by a copy",
        },
    ));
    facts.push(way(
        "mremap",
        machine.remap,
        "the second way to move pages",
        "no second way to move pages: areas are copied where the first is denied",
    ));
    facts.push(way(
        "MADV_GUARD_INSTALL",
        machine.guard,
        "guard pages are marks: a million of them are no mapping",
        &format!(
            "guard pages are mappings without access: {} at most, areas beyond have none",
            grouped(machine.mappings_max / 8)
        ),
    ));
    facts.push(way(
        "MADV_HUGEPAGE",
        machine.advise,
        "huge pages are asked for behind large areas",
        "huge pages come as the system decides",
    ));
    facts.push(match (machine.discard, machine.discard_batch) {
        (Ok(()), 2..) => fact(
            "process_madvise",
            Good,
            "works".to_string(),
            format!("{} released by one call", counted(machine.discard_batch as u64, "run")),
        ),
        (Ok(()), _) => fact(
            "process_madvise",
            Less,
            "denied".to_string(),
            "each run is released by a call of its own".to_string(),
        ),
        (Err(errno), _) => fact(
            "madvise",
            Missing,
            error_text(errno),
            "cached pages cannot be released: they stay resident until they are used again".to_string(),
        ),
    });
    facts
}

/// Formats an error of the system with the text that programs print.
fn error_text(errno: Errno) -> String {
    format!("denied: {}", std::io::Error::from_raw_os_error(errno.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<'a>(facts: &'a [Fact], name: &str) -> &'a Fact {
        facts.iter().find(|fact| fact.name == name).unwrap_or_else(|| panic!("no {name}: {facts:?}"))
    }

    #[test]
    fn each_failure_is_one_line_that_names_the_alternative() {
        let all = vmalloc::machine().unwrap();
        let mut cases = Vec::new();
        let mut case = |name, verdict, means, change: fn(&mut Machine)| {
            let mut machine = all;
            change(&mut machine);
            cases.push((name, verdict, means, machine));
        };
        case("rseq", Less, "sched_getcpu", |machine| {
            (machine.rseq, machine.concurrency_ids) = (false, false);
        });
        case("rseq", Less, "there can be", |machine| (machine.rseq, machine.concurrency_ids) = (true, false));
        case("rseq", Good, "in use", |machine| (machine.rseq, machine.concurrency_ids) = (true, true));
        case("membarrier", Less, "one word", |machine| machine.ends_sections = false);
        case("UFFDIO_MOVE", Less, "mremap", |machine| {
            (machine.move_pages, machine.remap) = (Err(Errno(1)), Ok(()));
        });
        case("UFFDIO_MOVE", Less, "by a copy", |machine| {
            (machine.move_pages, machine.remap) = (Err(Errno(1)), Err(Errno(1)));
        });
        case("mremap", Less, "copied", |machine| machine.remap = Err(Errno(1)));
        case("MADV_GUARD_INSTALL", Less, "1,250 at most", |machine| {
            (machine.guard, machine.mappings_max) = (Err(Errno(22)), 10_000);
        });
        case("MADV_HUGEPAGE", Less, "system decides", |machine| machine.advise = Err(Errno(22)));
        case("process_madvise", Less, "call of its own", |machine| {
            (machine.discard, machine.discard_batch) = (Ok(()), 1);
        });
        case("madvise", Missing, "stay resident", |machine| machine.discard = Err(Errno(1)));
        case("reserve, commit", Missing, "no allocator", |machine| machine.commit = Err(Errno(12)));
        for (name, verdict, means, machine) in cases {
            let facts = facts(Ok(machine));
            let fact = of(&facts, name);
            assert!(fact.verdict == verdict && fact.means.contains(means), "{fact:?}");
            assert_eq!(facts.len(), 8);
        }
        let none = facts(Err(Errno(12)));
        assert!(
            none.len() == 1 && none[0].verdict == Missing && none[0].found.contains("memory"),
            "{none:?}"
        );
    }
}
