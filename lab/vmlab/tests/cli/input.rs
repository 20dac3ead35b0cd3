//! Invalid input, and pipes that close.

use super::*;

#[test]
fn unusable_input_is_one_line_on_stderr_and_a_failure() {
    let dir = TempDir::new().unwrap();
    let garbage: Vec<u8> = (0..40_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut flipped = gzip(SMALL.repeat(500).as_bytes());
    flipped.truncate(40);
    for (name, bytes, expected) in [
        ("garbage", &garbage[..], "no vmalloc event"),
        ("empty", b"", "it is empty"),
        ("empty.gz", &gzip(b""), "it is empty"),
        ("other", b"a-1 [000] 1.0: sched_switch: prev_comm=a\n", "1 line read, and none is one"),
        (
            "percpu",
            b"a-1 [000] 1.0: percpu_free_percpu: base_addr=ff off=1 ptr=2\n",
            "1 line read, and none is one",
        ),
        ("broken", b"alloc_vmap_area: va_start: x\n", "1 line read, 1 line of one that cannot be understood"),
        ("cut.gz", &flipped, "reading ended after line"),
        ("head.gz", &[0x1f, 0x8b], "reading ended after line 0"),
        ("head.zst", &[0x28, 0xb5, 0x2f, 0xfd], "cannot read"),
        ("not.zst", &[0x28, 0xb5, 0x2f, 0xfd, 0xff, 0xff, 0xff, 0xff, 0xff], "cannot read"),
    ] {
        let assert = replayed(&dir, name, bytes, &[]).failure().code(1);
        let stderr = stderr_of(&assert);
        assert_eq!(stderr.lines().count(), 1, "{name}: {stderr}");
        assert!(stderr.starts_with("vmlab: ") && stderr.contains(expected), "{name}: {stderr}");
        assert!(stderr.contains(name), "{stderr}");
        assert_eq!(stdout_of(&assert), "", "{name}");
    }
    for (path, expected) in
        [(dir.path().join("missing"), "No such file"), (dir.path().to_path_buf(), "directory")]
    {
        let assert = vmlab().arg("replay").arg(&path).assert().failure().code(1);
        let stderr = stderr_of(&assert);
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(stderr.contains(expected) && stderr.contains(&*path.to_string_lossy()), "{stderr}");
    }
}

#[test]
fn an_input_that_ends_early_is_replayed_shown_and_a_failure() {
    let dir = TempDir::new().unwrap();
    let whole = text_of("fork-netns-smp1");
    for (name, bytes) in [("cut.gz", gzip(whole.as_bytes())), ("cut.zst", zstd(whole.as_bytes()))] {
        let assert = replayed(&dir, name, &bytes[..bytes.len() * 3 / 4], &[]).failure().code(1);
        let row = &rows(&stdout_of(&assert))[0];
        let (events, equal) = (number(row, "events"), number(row, "equal"));
        assert!(events > 100 && events < 750 && equal == number(row, "allocs"), "{row}");
        let stderr = stderr_of(&assert);
        let lines: Vec<&str> = stderr.lines().filter(|line| line.contains("ends early")).collect();
        assert_eq!(lines.len(), 1, "{stderr}");
        assert!(lines[0].starts_with("vmlab: cut: the input ends early, after line "), "{stderr}");
    }
    let cut = dir.path().join("cut.jsonl.gz");
    let whole = std::fs::read(shipped("latency-smp4.jsonl.gz")).unwrap();
    std::fs::write(&cut, &whole[..whole.len() * 3 / 4]).unwrap();
    for args in [&["top", "--once"][..], &["flame", "--by", "lock-time"], &["latency"]] {
        let assert = vmlab().args(args).arg(&cut).assert().failure().code(1);
        assert!(stderr_of(&assert).contains("the input ends early, after line "), "{args:?}");
        assert!(!stdout_of(&assert).is_empty(), "{args:?}");
    }
}

#[test]
fn lines_that_cannot_be_read_are_counted_and_named_by_number() {
    let dir = TempDir::new().unwrap();
    let text = format!(
        "# head\n{SMALL}a-1 [000] 1.2: alloc_vmap_area: va_start: many\nnoise\n{SMALL}free_vmap_area_noflush: x\n"
    );
    let assert = replayed(&dir, "t", text.as_bytes(), &[]).success();
    let stderr = stderr_of(&assert);
    for expected in
        ["2 event lines cannot be read", "line 4: a-1 [000] 1.2: alloc_vmap_area: va_start: many", "line 8: "]
    {
        assert!(stderr.contains(expected), "{stderr}");
    }
    assert_eq!(number(&rows(&stdout_of(&assert))[0], "events"), 4);
}

#[test]
fn lost_events_are_reported() {
    let dir = TempDir::new().unwrap();
    let text = format!("# entries-in-buffer/entries-written: 2/5   #P:1\n{SMALL}CPU:0 [LOST 4 EVENTS]\n");
    replayed(&dir, "t", text.as_bytes(), &[]).success().stderr(contains("the recorder lost 7 events"));
}

#[test]
fn an_unknown_index_names_the_known_ones() {
    let stderr = contains("'avl'").and(contains("rb-linux, rb-exact, btree, list"));
    vmlab().args(["replay", "x", "--index", "avl"]).assert().failure().code(2).stderr(stderr);
}

#[test]
fn an_index_named_twice_runs_once() {
    let dir = TempDir::new().unwrap();
    let more = ["--index", "rb-exact,rb-linux,rb-exact"];
    let assert = replayed(&dir, "t", SMALL.as_bytes(), &more).success();
    let names: Vec<Value> = rows(&stdout_of(&assert)).iter().map(|row| row["index"].clone()).collect();
    assert_eq!(names, ["rb-linux", "rb-exact"]);
}

#[test]
fn numbers_at_the_ends_of_the_space_do_no_harm() {
    let dir = TempDir::new().unwrap();
    let event = |size: u64, align: u64, vstart: u64, vend: u64| {
        format!(
            "alloc_vmap_area: va_start: {vstart} size={size} align={align} vstart={vstart:#x} vend={vend:#x} failed=0\n"
        )
    };
    let mut text = String::new();
    for size in [0, 1, 4096, 1 << 40, 1 << 63, u64::MAX - 4095, u64::MAX] {
        for align in [0, 1, 3, 4096, 1 << 40, 1 << 63] {
            for (vstart, vend) in [(0, u64::MAX), (1, 1), (4096, 0), (u64::MAX - 8192, u64::MAX), (0, 1)] {
                text += &event(size, align, vstart, vend);
            }
        }
    }
    text += "percpu_create_chunk: base_addr=ffffffffffffffff\npercpu_create_chunk: base_addr=0\n";
    text += "free_vmap_area_noflush: va_start=0xffffffffffffffff nr_lazy=1 nr_lazy_max=1\n";
    text += "purge_vmap_area_lazy: start=0x0 end=0x0 num_purged=9\n";
    let file = dir.path().join("t");
    let report = dir.path().join("t.html");
    std::fs::write(&file, text).unwrap();
    let assert = vmlab().args(["replay", "--json", "--report"]).args([&report, &file]).assert().success();
    for row in rows(&stdout_of(&assert)) {
        let sum: u64 = ["equal", "lower", "higher", "failed_both", "failed_differs"]
            .map(|key| number(&row, key))
            .iter()
            .sum();
        assert_eq!((number(&row, "allocs"), sum), (7 * 6 * 5, 7 * 6 * 5), "{row}");
    }
    assert!(stderr_of(&assert).contains("numbers that no allocator accepts"));
    assert!(!std::fs::read_to_string(report).unwrap().contains("NaN"));
}

#[test]
fn an_answer_that_differs_is_named_with_its_line() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("t");
    let odd = "alloc_vmap_area: va_start: 1048576 size=5 align=3 vstart=0x100000 vend=0xffffff failed=0\n";
    std::fs::write(&file, format!("# head\n\n{odd}")).unwrap();
    let assert = vmlab().args(["replay", "--index", "btree"]).arg(file).assert().success();
    let want = contains("t on btree: 1 answer differs from the kernel's, the first:\n")
        .and(contains("allocation 1, line 3: size 5 align 3: kernel 0x100000, btree nothing\n"));
    assert.stdout(want);
}

#[test]
fn a_reader_that_goes_away_is_no_panic_and_the_report_is_written() {
    let dir = TempDir::new().unwrap();
    let trace = shipped("boot-smp1.ftrace.gz");
    let trace = trace.to_str().unwrap();
    for args in [
        &["replay", trace][..],
        &["replay", trace, "--json", "--report", "r.html"],
        &["completions", "bash"],
        &["--help"],
    ] {
        let output = unread(dir.path(), args);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.success() && !stderr.contains("panicked"),
            "{args:?}: {:?} {stderr}",
            output.status
        );
    }
    assert!(dir.path().join("r.html").exists());
}

#[test]
fn a_closed_stderr_is_no_panic() {
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_vmlab"))
        .args(["replay", "/nowhere/at/all"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    // A panic would exit with 101.
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(1));
}

#[test]
fn a_writer_that_goes_away_is_the_end_of_the_input() {
    let assert = vmlab().args(["replay", "-"]).write_stdin("").assert().failure().code(1);
    assert_eq!(stderr_of(&assert), "vmlab: -: no vmalloc event: it is empty\n");
    let cut = &text_of("boot-smp1")[..60_000];
    let assert =
        vmlab().args(["replay", "-", "--json", "--index", "btree"]).write_stdin(cut).assert().success();
    let row = &rows(&stdout_of(&assert))[0];
    assert!(number(row, "allocs") > 10 && row["equal"] == row["allocs"], "{row}");
}

#[test]
fn a_report_that_cannot_be_written_is_one_line() {
    let trace = shipped("boot-smp1.ftrace.gz");
    let assert =
        vmlab().args(["replay", "--index", "btree", "--report", "/nowhere/r.html"]).arg(trace).assert();
    let assert = assert.failure().code(1);
    assert!(
        stderr_of(&assert).starts_with("vmlab: cannot write /nowhere/r.html: "),
        "{}",
        stderr_of(&assert)
    );
    assert_eq!(stdout_of(&assert), "", "it is said before the work, not after");
    let dir = TempDir::new().unwrap();
    let assert = vmlab().args(["demo", "--report", "no/r.html"]).current_dir(&dir).assert().failure().code(1);
    assert!(stderr_of(&assert).starts_with("vmlab: cannot write no/r.html: "), "{}", stderr_of(&assert));
    assert_eq!(stdout_of(&assert), "");
}

#[test]
fn a_damaged_file_is_not_reported_as_one_that_lacks_something() {
    let dir = TempDir::new().unwrap();
    // A trace without stacks, durations and tables, and the magic bytes of gzip alone.
    let noise: String = (0..9000_u32).map(|n| format!("noise {}\n", n.wrapping_mul(2_654_435_761))).collect();
    let (cut, magic) = (dir.path().join("cut.gz"), dir.path().join("magic.gz"));
    let whole = gzip(format!("{SMALL}{noise}").as_bytes());
    std::fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    std::fs::write(&magic, [0x1f, 0x8b]).unwrap();
    let (out, table) = (dir.path().join("out"), shipped("boot-smp1.vmallocinfo"));
    let [cut, magic, out, table] = [&cut, &magic, &out, &table].map(|path| path.to_str().unwrap());
    for (args, file) in [
        (&["flame", cut][..], cut),
        (&["flame", cut, "--by", "lock-time"], cut),
        (&["latency", cut], cut),
        (&["convert", cut, "--as", "vmallocinfo"], cut),
        (&["replay", cut, "--percpu"], cut),
        (&["sites", cut], cut),
        (&["flame", magic], magic),
        (&["latency", magic], magic),
        (&["convert", magic, "--as", "vmallocinfo"], magic),
        (&["top", "--once", magic], magic),
        (&["replay", magic], magic),
        (&["replay", magic, "--diff"], magic),
        (&["replay", magic, "--percpu"], magic),
        (&["replay", magic, "--calls"], magic),
        (&["sites", magic], magic),
        (&["compare", magic, table], magic),
        (&["report", magic, "-o", out], magic),
        (&["whatif", magic], magic),
        (&["map", "--trace", magic], magic),
        (&["map", magic], magic),
    ] {
        let assert = vmlab().args(args).assert().failure().code(1);
        let stderr = stderr_of(&assert);
        assert_eq!(stdout_of(&assert), "", "{args:?}");
        assert!(stderr.contains(file) && stderr.lines().count() == 1, "{args:?}: {stderr}");
        let reason = ["incomplete deflate stream", "unexpected end of file", "corrupt deflate stream"];
        assert!(reason.iter().any(|reason| stderr.contains(reason)), "{args:?}: {stderr}");
    }
}

#[test]
fn a_recording_of_a_later_version_is_an_error_that_names_both() {
    let dir = TempDir::new().unwrap();
    let (later, out) = (dir.path().join("later.jsonl.gz"), dir.path().join("out"));
    std::fs::write(&later, gzip(format!("{{\"vmlab\":{{\"version\":7}}}}\n{SMALL}").as_bytes())).unwrap();
    let (later, out) = (later.to_str().unwrap(), out.to_str().unwrap());
    let table = shipped("boot-smp1.vmallocinfo");
    for args in [
        &["replay", later][..],
        &["replay", later, "--diff"],
        &["replay", later, "--percpu"],
        &["convert", later, "--as", "csv"],
        &["compare", later, table.to_str().unwrap()],
        &["report", later, "-o", out],
        &["whatif", later],
        &["flame", later],
        &["latency", later],
        &["map", later],
        &["map", "--trace", later],
        &["top", later],
        &["sites", later],
    ] {
        let assert = vmlab().args(args).assert().failure().code(1);
        let stderr = stderr_of(&assert);
        assert_eq!(stdout_of(&assert), "", "{args:?}");
        assert!(
            stderr.contains("version 7 of its form, and this vmlab reads version 1"),
            "{args:?}: {stderr}"
        );
        assert!(stderr.contains(later) && stderr.lines().count() == 1, "{args:?}: {stderr}");
    }
}
