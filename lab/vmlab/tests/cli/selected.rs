//! `--from`, `--to`, `--cpu` and `--task`: what is counted and shown, and what is replayed all the same.

use super::*;

const TRACE: &str = "fork-netns-smp4.ftrace.gz";

fn trace() -> String {
    shipped(TRACE).display().to_string()
}

/// The time of the event in the middle of the trace, in microseconds, as the trace has it.
fn middle() -> u64 {
    let trace = vmlab_trace::Trace::read(text_of("fork-netns-smp4").as_bytes());
    trace.times_ns[trace.times_ns.len() / 2] / 1000
}

fn seconds(us: u64) -> String {
    format!("{}.{:06}", us / 1_000_000, us % 1_000_000)
}

#[test]
fn counts_of_parts_add_up_to_the_whole() {
    let counts = |more: &[&str]| {
        let assert =
            vmlab().args(["replay", "--index", "btree", "--json"]).args(more).arg(trace()).assert().success();
        let row = rows(&stdout_of(&assert)).remove(0);
        (["events", "allocs", "equal"].map(|key| number(&row, key)), stderr_of(&assert))
    };
    let (whole, _) = counts(&[]);
    let parts = |parts: &[&[&str]]| {
        parts.iter().fold([0; 3], |sum, part| {
            let (row, notes) = counts(part);
            assert!(
                notes.contains(&format!("counted: {} of ", vmlab_base::text::grouped(row[0]))),
                "{notes}"
            );
            [0, 1, 2].map(|at| sum[at] + row[at])
        })
    };
    let cpus = ["0", "1", "2", "3"].map(|cpu| ["--cpu", cpu]);
    assert_eq!(parts(&cpus.each_ref().map(|one| &one[..])), whole);
    let (to, from) = (seconds(middle()), seconds(middle() + 1));
    assert_eq!(parts(&[&["--to", &to], &["--from", &from]]), whole);
}

#[test]
fn every_replay_takes_the_same_part() {
    let begin = middle();
    let (from, to) = (seconds(begin), seconds(begin + 900_000));
    let trace_of = vmlab_trace::Trace::read(text_of("fork-netns-smp4").as_bytes());
    let want = (0..trace_of.events.len()).filter(|&at| {
        let inside = (begin..=begin + 900_000).contains(&(trace_of.times_ns[at] / 1000));
        let is_alloc = matches!(trace_of.events[at], vmlab_trace::Event::Alloc { .. });
        inside && is_alloc && trace_of.cpus[at] == 2
    });
    let want = want.count() as u64;
    assert!(want > 3);
    for more in [&["--space"][..], &["--diff", "--policy", "linux69"], &["--index", "list"]] {
        let args = ["replay", "--json", "--from", &from, "--to", &to, "--cpu", "2"];
        let assert = vmlab().args(args).args(more).arg(trace()).assert().success();
        let allocs = number(&rows(&stdout_of(&assert))[0], "allocs");
        assert_eq!(allocs, want, "{more:?}");
    }
}

#[test]
fn a_map_names_the_callers_of_what_is_selected_and_leaves_the_rest_in_its_place() {
    let map = |more: &[&str]| {
        let assert = vmlab().args(["map", "--trace", &trace(), "--json"]).args(more).assert().success();
        serde_json::from_str::<Value>(&stdout_of(&assert)).unwrap()
    };
    let at = seconds(middle());
    let whole = map(&["--at", &at]);
    assert_eq!(map(&["--to", &at])["callers"], whole["callers"]);
    let bytes = |value: &Value, name: &str| {
        let rows = value["callers"].as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).map_or(0, |row| row["bytes"].as_u64().unwrap())
    };
    let busy = whole["busy"]["bytes"].as_u64().unwrap();
    let mut selected = 0;
    for cpu in ["0", "1", "2", "3"] {
        let part = map(&["--to", &at, "--cpu", cpu]);
        // Nothing else changes.
        for key in ["busy", "lazy", "pooled", "holes", "windows", "aligned"] {
            assert_eq!(part[key], whole[key], "{key}");
        }
        let others = bytes(&part, "(not selected)");
        assert!(others > 0 && others < busy);
        selected += busy - others;
    }
    assert_eq!(selected, busy, "each area is of one CPU");
    // What was allocated before is there, and not selected.
    let part = map(&["--from", &at]);
    let before = bytes(&part, "(not selected)");
    assert!(before > 0 && before < part["busy"]["bytes"].as_u64().unwrap());
    assert!(
        part["notes"].to_string().contains("Callers are shown of areas allocated from "),
        "{}",
        part["notes"]
    );
}

#[test]
fn a_report_shows_the_selected_time_and_says_so() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("out.html");
    let (from, to) = (seconds(middle()), seconds(middle() + 2_000_000));
    vmlab().args(["report", "--from", &from, "--to", &to, "-o"]).arg(&out).arg(trace()).assert().success();
    let html = std::fs::read_to_string(&out).unwrap();
    assert!(html.contains("; the others are replayed. Times are of all calls."));
    assert_eq!(html.matches("events after the first ").count(), 4, "the axes");
    assert!(!html.contains("events since the trace began") && !html.contains("NaN"));
    // The film begins with the areas of before, which no caller has.
    assert!(html.contains("(not selected)"));
}

#[test]
fn a_policy_is_asked_by_the_whole_trace_and_measured_in_a_part() {
    let row = |more: &[&str]| {
        let args = ["whatif", "--json", "--policy", "linux69"];
        let assert = vmlab().args(args).args(more).arg(trace()).assert().success();
        rows(&stdout_of(&assert)).remove(0)
    };
    let (whole, part) = (row(&[]), row(&["--cpu", "1"]));
    assert_eq!(whole["part"], Value::Null);
    assert!(part["part"].as_str().unwrap().contains("of CPU 1; the others are replayed"), "{part}");
    let of = |value: &Value, key: &str| value["policies"][0][key].as_u64().unwrap();
    assert_eq!(of(&part, "span_bytes"), of(&whole, "span_bytes"), "a span is the space's");
    assert!(of(&part, "requests") < of(&whole, "requests") && of(&part, "requests") > 0);
}

#[test]
fn an_option_that_would_do_nothing_is_an_error() {
    let dir = TempDir::new().unwrap();
    let table = shipped("boot-smp1.vmallocinfo").display().to_string();
    let stacks = dir.path().join("stacks");
    std::fs::write(&stacks, super::flame::TEXT).unwrap();
    let (trace, stacks) = (trace(), stacks.display().to_string());
    for (args, why) in [
        (&["replay", "--percpu", "--cpu", "0", &trace][..], "--percpu replays the whole life of each chunk"),
        (&["report", "--task", "x", &table, "-o", "out.html"], "and no input is one"),
        (&["map", &table, "--from", "1"], "which --trace names"),
        (&["replay", &trace, "--task", "absent"], "no event of task absent: there are "),
        (&["replay", &trace, "--diff", "--task", "absent"], "no allocation of task absent"),
        (&["report", &trace, "--from", "1e6", "-o", "out.html"], "no event from 1000000 s: there are "),
        (&["whatif", &trace, "--from", "3", "--to", "2"], "--from 3 is after --to 2"),
        (&["convert", &trace, "--as", "csv", "--from", "3", "--to", "2"], "--from 3 is after --to 2"),
        (
            &["convert", &trace, "--as", "csv", "--from", "9999", "-o", "o"],
            "no event from 9999 s: there are ",
        ),
        (&["convert", &trace, "--as", "perfetto", "--cpu", "77", "-o", "o"], ", of CPUs 0 to 3, of tasks "),
        (&["convert", &trace, "--as", "jsonl", "--task", "absent", "-o", "o"], "no event of task absent: "),
        (&["flame", &stacks, "--cpu", "77"], "no allocation of CPU 77"),
    ] {
        let assert = vmlab().current_dir(&dir).args(args).assert().failure().code(1);
        let (stdout, stderr) = (stdout_of(&assert), stderr_of(&assert));
        assert!(stdout.is_empty() && stderr.contains(why), "{args:?}: {stdout}{stderr}");
    }
    for args in [
        &["map", "--trace", &trace, "--at", "1", "--to", "2"][..],
        &["top", &trace, "--no-stacks"],
        &["top", &trace, "--buffer-kib", "64"],
        &["top", &trace, "-o", "x"],
    ] {
        vmlab().args(args).assert().failure().code(2);
    }
    assert!(!dir.path().join("out.html").exists());
}

#[test]
fn a_table_is_converted_whatever_the_time_and_a_screen_after_the_end_has_a_note() {
    let held_out = shipped("held-out.jsonl.zst").display().to_string();
    // A table has no events to select.
    let table = |more: &[&str]| {
        let args = ["convert", &held_out, "--as", "vmallocinfo"];
        stdout_of(&vmlab().args(args).args(more).assert().success())
    };
    assert_eq!(table(&["--cpu", "77"]), table(&[]));
    let screen = |more: &[&str]| {
        let assert = vmlab().args(["top", &trace()]).args(more).assert().success();
        (stdout_of(&assert), stderr_of(&assert))
    };
    let ((end, none), (after, note)) = (screen(&[]), screen(&["--at", "99999"]));
    assert!(none.is_empty() && note.contains("--at 99999 is after its last event, at "), "{none}{note}");
    assert_eq!(end.lines().count(), after.lines().count());
}

#[test]
fn an_option_of_another_mode_is_an_error() {
    let dir = TempDir::new().unwrap();
    let trace = trace();
    let replay = &["replay", &trace][..];
    let modes =
        [&[][..], &["--index", "btree"], &["--percpu"], &["--report", "r.html"], &["--calls"], &["--space"]];
    let others = [&[][..], &["--for", "1"], &["--output", "x"], &["--buffer-kib", "64"], &["--no-stacks"]];
    let fails = |command: &[&str], option: &[&str], mode: &[&str]| {
        let assert = vmlab().current_dir(&dir).args(command).args(option).args(mode).assert().failure();
        assert_eq!(stdout_of(&assert), "", "{command:?} {option:?} {mode:?}");
    };
    for mode in modes {
        fails(replay, &["--out", "d"], mode);
        fails(replay, &["--no-resync"], mode);
        if mode != ["--space"] {
            fails(replay, &["--policy", "linux69"], mode);
            fails(replay, &["--nodes", "2"], mode);
        }
    }
    for mode in others {
        fails(&["top"], &["--at", "1"], mode);
    }
    let table = shipped("boot-smp1.vmallocinfo").display().to_string();
    for mode in [&[&*table][..], &["--pid", "1"]] {
        for option in [["--at", "1"], ["--policy", "linux69"], ["--nodes", "2"]] {
            fails(&["map"], &option, mode);
        }
    }
    #[cfg(feature = "measure")]
    for mode in [&[][..], &["--table"], &["--cold"], &["--target", "space"]] {
        let test = &["test", "smoke", "test_loop_count=1"];
        fails(test, &["--rounds", "3"], mode);
        fails(test, &["--limit", "1"], mode);
        fails(test, &["--kern-percpu", "x.so"], mode);
        if mode.is_empty() || mode[0] == "--target" {
            fails(test, &["--out", "d"], mode);
        }
    }
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
}
