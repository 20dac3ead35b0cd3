//! The output of `vmlab replay --calls` for two recordings of a kernel with the core inside, and its errors.
//!
//! The addresses are those of the core as it was when the kernel recorded. A change of the core that changes where areas
//! go makes these tests fail, and rightly: `cargo xtask linux replay --keep` records `data/linux-calls-*` anew.

use super::*;

fn replay(file: &Path, more: &[&str]) -> Command {
    let mut vmlab = vmlab();
    vmlab.args(["replay", "--calls"]).args(more).arg(file);
    vmlab
}

fn row(file: &Path) -> (Value, bool) {
    let output = replay(file, &["--json"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    (serde_json::from_slice(&output.stdout).expect(&said), output.status.success())
}

/// Returns the text of a recording.
fn recorded(name: &str) -> String {
    let mut text = String::new();
    let file = std::fs::File::open(shipped(name)).unwrap();
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
    text
}

/// Replays a recording with one line changed, `nth` of those that begin so.
fn changed(text: &str, begins: &str, nth: usize, change: impl Fn(&str) -> String) -> (Value, bool) {
    let mut lines: Vec<_> = text.lines().map(str::to_string).collect();
    let at = (0..lines.len()).filter(|&at| lines[at].starts_with(begins)).nth(nth).unwrap();
    lines[at] = change(&lines[at]);
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("changed");
    std::fs::write(&file, lines.join("\n") + "\n").unwrap();
    let (row, ok) = row(&file);
    if !ok {
        // A line of the head is the first of the file.
        assert!(row["first"][0]["line"].as_u64().unwrap() > at as u64, "{row}");
    }
    (row, ok)
}

#[test]
fn every_address_of_a_kernel_with_one_cpu_and_of_one_with_four_is_decided_again() {
    for cpus in [1, 4] {
        let file = shipped(&format!("linux-calls-smp{cpus}.gz"));
        let (row, ok) = row(&file);
        let [calls, addresses, equal] = ["calls", "addresses", "equal"].map(|key| number(&row, key));
        assert!(ok && row["complete"] == true && number(&row, "cpus") == cpus, "{row}");
        assert!(calls > 10_000 && addresses > 3000 && equal == addresses, "{row}");
        assert_eq!((number(&row, "differences"), row["first"].as_array().unwrap().len()), (0, 0), "{row}");
        // Every CPU called, and the kernel came to each kind of call but the one that tests alone make.
        assert!(row["by_cpu"].as_array().unwrap().iter().all(|count| count.as_u64() > Some(50)), "{row}");
        for call in ["alloc", "alloc_small", "congruent", "drain", "free_small", "shrink", "unmap_aliases"] {
            assert!(row["by_call"][call].as_u64() > Some(0), "{call} in {row}");
        }
        assert_eq!(row["by_call"]["drain_cpu"].as_u64().unwrap_or(0), cpus - 1, "{row}");
        let stdout = stdout_of(&replay(&file, &[]).assert().success());
        assert!(stdout.contains(" addresses, all equal; ") && stdout.lines().count() == 1, "{stdout}");
    }
}

#[test]
fn memory_that_the_kernel_did_not_have_fails_here_too() {
    let text = recorded("linux-calls-smp1.gz");
    let failed =
        |word: &str| text.lines().filter(|line| line.starts_with(word) && line.ends_with(" 0")).count();
    assert!(failed("+pages ") > 0 && failed("+table ") > 0, "{} {}", failed("+pages "), failed("+table "));
    // Supplied here, it changes what the core decides next.
    let given = |line: &str| format!("{}1", line.strip_suffix('0').unwrap());
    let nth =
        text.lines().filter(|line| line.starts_with("+table ")).take_while(|line| !line.ends_with(" 0"));
    let (row, ok) = changed(&text, "+table ", nth.count(), given);
    assert!(!ok && number(&row, "differences") > 0, "{row}");
}

#[test]
fn one_line_that_is_another_is_a_difference_at_that_line() {
    let text = recorded("linux-calls-smp4.gz");
    let (row, ok) = changed(&text, "= ffff", 1000, |_| "= ffffc90000000000".to_string());
    assert!(!ok && number(&row, "differences") == 1, "{row}");
    assert_eq!(number(&row, "equal") + 1, number(&row, "addresses"), "{row}");
    assert_eq!(row["first"][0]["kernel"], "= ffffc90000000000", "{row}");
    // A free that is lost, a call on another CPU, a flush of another range, and another end.
    let (row, ok) = changed(&text, "release ", 100, |_| "detach 1000".to_string());
    assert!(!ok && number(&row, "equal") < number(&row, "addresses"), "{row}");
    // One that takes an area: where CPU 0 has none, CPU 1 may have none either.
    let lines: Vec<&str> = text.lines().collect();
    let takes = lines.windows(2).filter(|two| two[0].starts_with("take 0"));
    let mut takes = takes.skip(400);
    let nth = takes.position(|two| two[1].starts_with("= ffff")).unwrap() + 400;
    let (row, ok) = changed(&text, "take 0", nth, |line| line.replace("take 0", "take 1"));
    assert!(!ok && number(&row, "differences") > 0, "{row}");
    let (row, ok) = changed(&text, "+flush ", 0, |line| line.replace("+flush f", "+flush e"));
    assert!(!ok && number(&row, "differences") == 1, "{row}");
    let (row, ok) = changed(&text, "end ", 0, |line| line.replace("end ", "end 1"));
    assert!(!ok && number(&row, "differences") == 1 && row["first"][0]["call"] == "the end", "{row}");
}

#[test]
fn the_first_differences_are_printed_and_the_exit_status_is_1() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("calls");
    let text = recorded("linux-calls-smp1.gz").replace("+wake", "+wake\n+wake");
    std::fs::write(&file, text).unwrap();
    let assert = replay(&file, &["--wide"]).assert().failure().code(1);
    let (stdout, stderr) = (stdout_of(&assert), stderr_of(&assert));
    assert!(
        stdout.contains("kernel \"+wake\", here \"nothing\"") && stdout.contains(": release: "),
        "{stdout}"
    );
    assert!(
        stderr.contains(" between the kernel's core and this one") && stderr.lines().count() == 1,
        "{stderr}"
    );
}

#[test]
fn what_is_no_recording_of_calls_is_one_line() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("calls");
    let head = "calls 1\npossible 1\nonline 1\nwindow 100000 900000000\n";
    for (text, expected) in [
        ("", "no line"),
        ("# tracer: nop\n", "no recording of calls"),
        ("calls 1\ninit\n= 1\n", "0 CPUs"),
        ("calls 1\npossible 201\ninit\n= 1\n", "513 CPUs: 1 to 512"),
        ("calls 1\npossible 1\ninit\n= 1\n", "no window"),
        ("calls 1\ndrain\n= 0\n", "line 2: the space is not created yet"),
        (&format!("{head}init\ndrain\n= 0\n"), "line 6 is within a call"),
        (&format!("{head}init\n= 1\n= 1\n"), "line 7: no call has begun"),
        (&format!("{head}init\n= 1\ninit\n= 1\n"), "line 7: the space is created twice"),
        (&format!("{head}init\n= 1\nx\n"), "line 7 is none of a recording"),
        (&format!("{head}init\n= 1\ndrain\n= 0\n"), "difference"),
    ] {
        std::fs::write(&file, text).unwrap();
        let stderr = stderr_of(&replay(&file, &[]).assert().failure().code(1));
        assert!(stderr.contains(expected) && stderr.lines().count() == 1, "{text:?}: {stderr}");
    }
    // Cut after a whole line, or in the middle of the compressed bytes.
    let whole = recorded("linux-calls-smp1.gz");
    let end = whole.trim_end().rfind('\n').unwrap();
    std::fs::write(&file, &whole[..=end]).unwrap();
    let stderr = stderr_of(&replay(&file, &[]).assert().failure().code(1));
    assert!(stderr.contains("the recording has no end"), "{stderr}");
    let bytes = std::fs::read(shipped("linux-calls-smp1.gz")).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    let stderr = stderr_of(&replay(&file, &[]).assert().failure().code(1));
    assert!(stderr.contains("the input ends early"), "{stderr}");
    for (args, expected) in
        [(&["--space"][..], "cannot be used with"), (&["--from", "1"], "--calls replays all")]
    {
        let stderr = stderr_of(&replay(&file, args).assert().failure());
        assert!(stderr.contains(expected), "{args:?}: {stderr}");
    }
}
