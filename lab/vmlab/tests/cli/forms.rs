//! The same trace in other forms, and with a table beside it.

use super::*;

#[test]
fn plain_gzip_and_zstd_answer_alike_from_a_file_and_from_stdin() {
    let dir = TempDir::new().unwrap();
    let text = text_of("fork-netns-smp1");
    let (a, b) = text.split_at(text.len() / 2);
    let want = columns(&row("fork-netns-smp1", "rb-linux"));
    for (name, bytes) in [
        ("t.ftrace", text.clone().into_bytes()),
        ("t.ftrace.gz", gzip(text.as_bytes())),
        ("t.ftrace.zst", zstd(text.as_bytes())),
        // The output of a parallel compressor or `cat`, and a name without an extension.
        ("t", [zstd(a.as_bytes()), zstd(b.as_bytes())].concat()),
        ("t.txt", [gzip(a.as_bytes()), gzip(b.as_bytes())].concat()),
    ] {
        let assert = replayed(&dir, name, &bytes, &[]).success();
        let row = &rows(&stdout_of(&assert))[0];
        assert_eq!((row["trace"].as_str(), columns(row)), (Some("t"), want.clone()), "{name}");
    }
    let assert = vmlab()
        .args(["replay", "-", "--json", "--index", "rb-linux"])
        .write_stdin(gzip(text.as_bytes()))
        .assert()
        .success();
    let row = &rows(&stdout_of(&assert))[0];
    assert_eq!((row["trace"].as_str(), columns(row)), (Some("stdin"), want));
}

/// Splits a line of tracefs into task, pid, cpu, time, event and its fields.
fn parts(line: &str) -> [&str; 6] {
    let (task, rest) = line.split_once(" [").unwrap();
    let (name, pid) = task.trim().rsplit_once('-').unwrap();
    let (cpu, rest) = rest.split_once("] ").unwrap();
    let (_flags, rest) = rest.trim_start().split_once(' ').unwrap();
    let (time, rest) = rest.trim_start().split_once(": ").unwrap();
    let (event, fields) = rest.split_once(": ").unwrap();
    [name, pid, cpu, time, event, fields]
}

#[test]
fn trace_cmd_and_perf_print_the_same_events() {
    let dir = TempDir::new().unwrap();
    let text = text_of("fork-netns-smp1");
    let (mut trace_cmd, mut perf) = (String::from("cpus=1\n"), String::new());
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let [task, pid, cpu, time, event, fields] = parts(line);
        let pointers = fields.replace("base_addr=", "base_addr=0x");
        let system = if event.starts_with("percpu") { "percpu" } else { "vmalloc" };
        trace_cmd += &format!("{task:>16}-{pid:<5} [{cpu}] {time}: {:<22}{pointers}\n", format!("{event}:"));
        perf += &format!("{task:<16} {pid:>5} [{cpu}] {time}: {system}:{event}: {pointers}\n");
        // perf may append the stack of an event.
        perf += "\tffffffff81234567 alloc_vmap_area+0x1a7 ([kernel.kallsyms])\n\n";
    }
    let want = columns(&row("fork-netns-smp1", "rb-linux"));
    for (name, text) in [("cmd", trace_cmd), ("perf", perf)] {
        let assert = replayed(&dir, name, text.as_bytes(), &[]).success();
        assert_eq!(columns(&rows(&stdout_of(&assert))[0]), want, "{name}");
        assert!(!stderr_of(&assert).contains("cannot be read"), "{name}");
    }
}

#[test]
fn the_size_of_a_chunk_is_from_vmallocinfo_or_2_mib_with_a_note() {
    let dir = TempDir::new().unwrap();
    let alloc = |at: u64, size: u64| {
        format!(
            "alloc_vmap_area: va_start: {at} size={size} align=1 vstart=0x100000 vend=0xffffff failed=0\n"
        )
    };
    // A chunk of 1 MiB is after the first area, and the second area after the chunk.
    let text =
        alloc(0x10_0000, 0x70_0000) + "percpu_create_chunk: base_addr=800000\n" + &alloc(0x90_0000, 0x1000);
    let line = |size: u64| {
        format!("{:#x}-{:#x} {size} pcpu_get_vm_areas+0x0/0x1040 vmalloc\n", 0x80_0000, 0x80_0000 + size)
    };
    let answers = |assert: &assert_cmd::assert::Assert| {
        let row = &rows(&stdout_of(assert))[0];
        ["equal", "higher", "inferred"].map(|key| number(row, key))
    };
    // Assumed as 2 MiB, the chunk covers the second area's address, and the kernel's answer then frees what we hold
    // there.
    let (known, guessed) = ([2, 0, 1], [1, 1, 2]);

    let assert = replayed(&dir, "t.ftrace", text.as_bytes(), &[]).success();
    assert_eq!(answers(&assert), guessed);
    assert!(stderr_of(&assert).contains("size unknown and taken as 2 MiB"), "{}", stderr_of(&assert));

    let info = dir.path().join("info");
    std::fs::write(&info, line(1 << 20)).unwrap();
    let more = ["--vmallocinfo", info.to_str().unwrap()];
    let assert = replayed(&dir, "t.ftrace", text.as_bytes(), &more).success();
    assert_eq!(answers(&assert), known);
    assert!(stderr_of(&assert).contains("size from vmallocinfo"));

    // A table beside the trace is read by default, but a named one takes precedence.
    std::fs::write(dir.path().join("t.vmallocinfo"), line(1 << 20)).unwrap();
    assert_eq!(answers(&replayed(&dir, "t.ftrace", text.as_bytes(), &[]).success()), known);
    std::fs::write(dir.path().join("t.vmallocinfo"), line(2 << 20)).unwrap();
    assert_eq!(answers(&replayed(&dir, "t.ftrace", text.as_bytes(), &more).success()), known);

    // A table that hides addresses is reported, and not used.
    std::fs::write(&info, "(____ptrval____)-(____ptrval____) 4096 x\n").unwrap();
    let assert = replayed(&dir, "t.ftrace", text.as_bytes(), &more).success();
    let stderr = contains("not of vmallocinfo, or without addresses: 1 line").and(contains("taken as 2 MiB"));
    assert.stderr(stderr);
    let missing = ["--vmallocinfo", "/nowhere/at/all"];
    replayed(&dir, "t.ftrace", text.as_bytes(), &missing).failure().stderr(contains("/nowhere/at/all"));
}

/// The widest line of the tables in an output, which stand between rules.
fn widest(text: &str) -> usize {
    let (mut widest, mut rules) = (0, 0);
    for line in text.lines() {
        let is_rule = line.starts_with(['─', '═']);
        rules += usize::from(is_rule);
        if is_rule || rules % 3 != 0 {
            widest = widest.max(line.trim_end().chars().count());
        }
    }
    assert!(rules > 0 && rules % 3 == 0, "{text}");
    widest
}

#[test]
fn tables_fit_80_columns_and_wide_shows_the_rest() {
    let [long, other] = ["test_vmalloc-mask127-smp1.ftrace.gz", "nodes-smp4.ftrace.gz"].map(shipped);
    let print =
        |args: &[&str], files: &[&Path]| stdout_of(&vmlab().args(args).args(files).assert().success());
    for (args, column) in [
        (&["replay", "--index", "btree"][..], "median"),
        (&["replay", "--space"], "purges"),
        (&["replay", "--percpu"], "chunk"),
        (&["replay", "--diff"], "knowable"),
        (&["whatif"], "onelock52"),
    ] {
        let text = print(args, &[&other]);
        assert!(widest(&text) <= 80 && text.contains(column), "{args:?}: {} columns\n{text}", widest(&text));
    }
    let text = print(&["compare"], &[&other, &long]);
    assert!(widest(&text) <= 80, "{} columns\n{text}", widest(&text));
    for (args, column) in [
        (&["replay", "--index", "btree", "--wide"][..], "inferred"),
        (&["replay", "--space", "--wide"], "flushes"),
        (&["replay", "--percpu", "--wide"], "unknown"),
    ] {
        let text = print(args, &[&other]);
        let narrow = print(&args[..args.len() - 1], &[&other]);
        let has = |text: &str| text.lines().take(3).any(|line| line.contains(column));
        assert!(widest(&text) > 80 && has(&text) && !has(&narrow), "{args:?}: {text}");
    }
    // A long name wraps at its parts.
    let text = print(&["replay", "--index", "btree"], &[&long]);
    assert!(widest(&text) <= 80 && text.contains("mask127-") && !text.contains("-mask127-smp1  "), "{text}");
}
