//! The pictures of `vmlab map` for tables, traces and processes, and its errors.

use super::*;

fn map(args: &[&str]) -> assert_cmd::assert::Assert {
    vmlab().env_remove("NO_COLOR").arg("map").args(args).assert()
}

fn json(args: &[&str]) -> Value {
    let assert = map(&[args, &["--json"]].concat()).success();
    serde_json::from_str(&stdout_of(&assert)).unwrap()
}

fn path(name: &str) -> String {
    shipped(name).to_str().unwrap().to_string()
}

fn file(dir: &TempDir, name: &str, text: &str) -> String {
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_string()
}

/// Returns areas and bytes of the lines of a table that `chosen` selects, computed directly from its columns.
fn counted(name: &str, chosen: impl Fn(&str) -> bool) -> (u64, u64) {
    let text = std::fs::read_to_string(shipped(name)).unwrap();
    let lines = text.lines().filter(|line| chosen(line));
    let sizes = lines.map(|line| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap());
    sizes.fold((0, 0), |(count, sum), size| (count + 1, sum + size))
}

#[test]
fn a_shipped_table_has_the_areas_that_its_lines_say() {
    for trace in TRACES {
        let name = format!("{trace}.vmallocinfo");
        let value = json(&[&path(&name)]);
        let counts = |key: &str| (number(&value[key], "areas"), number(&value[key], "bytes"));
        assert_eq!(counts("busy"), counted(&name, |line| !line.contains("unpurged")), "{trace}");
        assert_eq!(counts("lazy"), counted(&name, |line| line.contains("unpurged")), "{trace}");
        for row in value["callers"].as_array().unwrap() {
            let caller = row["name"].as_str().unwrap();
            if !caller.starts_with('(') {
                let ours = counted(&name, |line| line.contains(&format!(" {caller}+")));
                assert_eq!((number(row, "areas"), number(row, "bytes")), ours, "{trace}: {caller}");
            }
        }
    }
}

/// Returns the kernel's table at the end of the recording, and the time when it was read.
fn at_the_end() -> (String, f64) {
    let mut text = String::new();
    vmlab_trace::open(&shipped("held-out.jsonl.zst")).unwrap().read_to_string(&mut text).unwrap();
    let (mut table, mut at) = (String::new(), 0.0);
    for line in text.lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        if row["area"]["when"] == "end" {
            let part = |key: &str| row["area"][key].as_str().unwrap().to_string();
            let bytes = row["area"]["bytes"].as_u64().unwrap();
            table += &format!("{}-{} {bytes} {}\n", part("start"), part("end"), part("text"));
        } else if row["text"] == "vmlab vmallocinfo end opens" {
            at = row["ns"].as_f64().unwrap() / 1e9;
        }
    }
    (table, at)
}

#[test]
fn a_recording_at_its_end_has_the_areas_of_the_kernels_own_table() {
    let dir = TempDir::new().unwrap();
    let (table, at) = at_the_end();
    let listed = json(&[&file(&dir, "end", &table)]);
    let recording = path("held-out.jsonl.zst");
    let replayed = json(&["--trace", &recording, "--at", &format!("{at:.9}")]);
    // Also those that no event names, since they stood before.
    assert_eq!((number(&replayed["busy"], "areas"), number(&replayed["lazy"], "areas")), (394, 3386));
    assert_eq!((&replayed["busy"], &replayed["lazy"]), (&listed["busy"], &listed["lazy"]));
    let bytes = |value: &Value, caller: &str| {
        let rows = value["callers"].as_array().unwrap();
        rows.iter().find(|row| row["name"] == caller).map(|row| (number(row, "areas"), number(row, "bytes")))
    };
    for caller in ["kernel_clone", "bpf_prog_alloc_no_stats", "htab_map_alloc", "pcpu_get_vm_areas"] {
        assert!(bytes(&listed, caller).is_some(), "{caller}");
        assert_eq!(bytes(&replayed, caller), bytes(&listed, caller), "{caller}");
    }
    // The policy changes the pools, and no address.
    let ours = json(&["--trace", &recording, "--at", &format!("{at:.9}"), "--policy", "standard"]);
    assert_eq!((&ours["busy"], &ours["lazy"]), (&listed["busy"], &listed["lazy"]));
}

#[test]
fn pictures_are_written_and_the_same_each_time() {
    let dir = TempDir::new().unwrap();
    let table = path("fork-netns-smp4.vmallocinfo");
    let mut pictures = Vec::new();
    for n in 0..2 {
        let [svg, html] =
            ["svg", "html"].map(|end| dir.path().join(format!("{n}.{end}")).to_str().unwrap().to_string());
        let assert = map(&[&table, "--svg", &svg, "--html", &html]).success();
        assert!(stdout_of(&assert).contains("picture: ") && stdout_of(&assert).contains("kernel_clone"));
        pictures.push((std::fs::read_to_string(svg).unwrap(), std::fs::read_to_string(html).unwrap()));
    }
    assert_eq!(pictures[0], pictures[1]);
    let (svg, html) = &pictures[0];
    assert!(svg.starts_with("<svg xmlns") && svg.ends_with("</svg>\n") && !svg.contains("NaN"));
    assert!(svg.contains("12.5 PiB free, not drawn") && svg.contains("up to the next window, not drawn"));
    assert!(html.contains("<title>kernel_clone\n20 KiB at 0x") && html.contains("By holes kept apart"));
    // The page has a title, and the picture has one in each shape.
    assert_eq!(html.matches("<title>").count(), 3 + html.matches("</title></path>").count());
}

#[test]
fn text_has_no_colour_outside_of_a_terminal_and_fits_its_width() {
    let table = path("boot-smp1.vmallocinfo");
    for args in [&[&table[..], "--width", "80"][..], &[&table, "--width", "80", "--ascii"]] {
        let text = stdout_of(&map(args).success());
        assert!(!text.contains('\u{1b}'));
        let picture = text.lines().take_while(|line| !line.contains("It is free only"));
        assert!(picture.skip(2).all(|line| line.chars().count() <= 80), "{text}");
        assert!(!text.is_ascii(), "the tables have lines of their own");
    }
    let text = stdout_of(&map(&[&table, "--ascii", "--width", "80"]).success());
    let picture: String = text.lines().take_while(|line| !line.contains("It is free only")).collect();
    assert!(picture.is_ascii());
}

#[test]
fn numbers_come_as_csv_too() {
    let table = path("fork-netns-smp4.vmallocinfo");
    let value = json(&[&table]);
    let csv = stdout_of(&map(&[&table, "--csv"]).success());
    assert_eq!(csv.lines().next(), Some("section,name,measure,value"));
    assert!(csv.lines().all(|line| line.split(',').count() == 4));
    for row in value["callers"].as_array().unwrap() {
        for (key, measure) in [("bytes", "bytes"), ("areas", "count"), ("keeps_apart", "keeps_apart")] {
            let line = format!("caller,{},{measure},{}", row["name"].as_str().unwrap(), row[key]);
            assert!(csv.lines().any(|known| known == line), "{line}");
        }
    }
}

#[test]
fn a_trace_at_its_end_has_the_areas_of_its_table_and_in_the_middle_others() {
    let trace = path("fork-netns-smp4.ftrace.gz");
    let table = json(&[&path("fork-netns-smp4.vmallocinfo")]);
    let end = json(&["--trace", &trace]);
    assert_eq!(
        end["notes"][0],
        "1,690 of 1,690 events replayed, policy linux69 on 4 nodes: 810 of 810 answers are the kernel's."
    );
    // The kernel's table was read at the end of the trace: same areas, same callers.
    for (key, count) in [("busy", "areas"), ("busy", "bytes")] {
        assert_eq!(end[key][count], table[key][count], "{key} {count}");
    }
    let bytes_of = |value: &Value, name: &str| {
        let rows = value["callers"].as_array().unwrap().clone();
        rows.into_iter().find(|row| row["name"] == name).map(|row| row["bytes"].as_u64().unwrap())
    };
    for name in ["load_module", "pcpu_get_vm_areas", "irq_init_percpu_irqstack"] {
        assert_eq!(bytes_of(&end, name), bytes_of(&table, name), "{name}");
    }
    let early = json(&["--trace", &trace, "--at", "3"]);
    assert!(number(&early["busy"], "areas") < number(&end["busy"], "areas"));
    let pooled = |policy: &str| {
        let value = json(&["--trace", &trace, "--at", "12", "--policy", policy]);
        number(&value["pooled"], "areas")
    };
    assert_eq!(["linux69", "onelock52"].map(pooled), [16, 0]);
    assert_eq!(end["windows"].as_array().unwrap().len(), 2);
}

#[test]
fn this_process_is_drawn_by_its_mappings() {
    let pid = std::process::id().to_string();
    let value = json(&["--pid", &pid]);
    let rows = value["callers"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["name"] == "[stack]"));
    assert!(value["notes"][0].as_str().unwrap().contains("without access"));
}

#[test]
fn what_an_allocator_of_ours_writes_is_a_table_too() {
    use vmalloc::{Options, Vmalloc};
    let memory = Vmalloc::new(Options::default().caller_tags(true)).unwrap();
    let (mut buffers, at): (Vec<_>, u32) =
        ((1..=20).map(|pages| memory.buffer(pages * 4096).unwrap()).collect(), line!());
    buffers.truncate(15);
    let dir = TempDir::new().unwrap();
    let text = memory.vmallocinfo().to_string();
    let value = json(&[&file(&dir, "ours", &text)]);
    let name = format!("map.rs:{at}:");
    let rows = value["callers"].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"].as_str().unwrap().contains(&name)).unwrap();
    assert_eq!((number(row, "areas"), number(row, "bytes")), (15, 4096 * 15 * 16 / 2));
    // Areas that were carved and not yet allocated are cached, too.
    let unpurged = text.lines().filter(|line| line.ends_with("unpurged vm_area"));
    let bytes: u64 =
        unpurged.map(|line| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(number(&value["lazy"], "bytes"), bytes);
    assert!(bytes >= 4096 * (16 + 17 + 18 + 19 + 20));
}

#[test]
fn a_window_shows_its_holes() {
    let dir = TempDir::new().unwrap();
    let table = file(&dir, "t", "0x10000-0x12000 8192 f+0x1/0x2 pages=1 vmalloc\n");
    let value = json(&[&table, "--window", "0x0-0x100000", "--window", "40000000-80000000"]);
    assert_eq!(value["aligned"][6]["at"], "0x40000000");
    assert_eq!(number(&value["holes"], "bytes"), 0x10_0000 - 8192 + (1 << 30));
}

#[test]
fn control_characters_in_names_and_lines_do_not_reach_the_terminal() {
    let dir = TempDir::new().unwrap();
    let text = "0x10000-0x12000 8192 ev\u{1b}[31mil+0x1/0x2 pages=1 vmalloc\nba\u{1b}]0;title\u{7}d\n";
    let table = file(&dir, "some", text);
    for more in [&[][..], &["--csv"], &["--json"]] {
        let assert = map(&[&[table.as_str()], more].concat()).success();
        let shown = stdout_of(&assert) + &stderr_of(&assert);
        assert!(shown.contains("ev\u{241b}[31mil"), "{shown}");
        assert!(!shown.contains(|byte: char| byte.is_control() && byte != '\n'), "{shown}");
    }
}

#[test]
fn unreadable_lines_are_counted_and_hidden_addresses_explained() {
    let dir = TempDir::new().unwrap();
    let good = "0x10000-0x12000 8192 f+0x1/0x2 pages=1 vmalloc\n";
    let hashed = "0x00000000a3eb8df1-0x0000000040ab02d3   20480 f+0xca/0x100 vmap\n";
    let table = file(&dir, "some", &format!("{good}hello\n{hashed}\u{0}\n"));
    let assert = map(&[&table]).success();
    assert!(stdout_of(&assert).contains("3 of 4 lines could not be read."));
    let stderr = stderr_of(&assert);
    assert!(stderr.contains("2 lines cannot be read, the first: line 2: hello"), "{stderr}");
    assert!(stderr.contains("hid the addresses of 1 area: set kernel.kptr_restrict=1"), "{stderr}");
    for (text, why) in [
        (
            hashed.repeat(3),
            "the kernel hid the addresses of 3 areas (hashed pointers, or zeros): set kernel.kptr_restrict=1",
        ),
        (
            "0x(____ptrval____)-0x(____ptrval____) 8192 f vmap\n".to_string(),
            "the kernel hid the addresses of 1 area",
        ),
        (String::new(), "no area in 0 lines"),
        ("hello\n".to_string(), "no area in 1 line"),
    ] {
        let table = file(&dir, "bad", &text);
        let assert = map(&[&table, "--svg", dir.path().join("no.svg").to_str().unwrap()]).failure();
        let stderr = stderr_of(&assert);
        let last = stderr.lines().last().unwrap();
        assert!(last.starts_with("vmlab: ") && last.contains(why), "{stderr}");
        assert!(stdout_of(&assert).is_empty() && !dir.path().join("no.svg").exists());
    }
}

#[test]
fn wrong_arguments_are_reported_in_a_line() {
    let dir = TempDir::new().unwrap();
    let silent = file(
        &dir,
        "silent",
        "alloc_vmap_area: va_start: 1048576 size=8192 align=4096 vstart=0x100000 vend=0xffffff failed=0\n",
    );
    let boot = path("boot-smp1.ftrace.gz");
    for (args, why) in [
        (&["/nowhere/at/all"][..], "cannot read /nowhere/at/all: No such file"),
        (&["--pid", "4294967295"], "cannot read /proc/4294967295/maps: No such"),
        (&["--trace", &silent, "--at", "1"], "names no times, so --from, --to and --at can name no moment"),
        (&["--trace", &boot, "--at", "0"], "nothing happened up to then: its events are from "),
        (&["--trace", "/nowhere/at/all"], "cannot read /nowhere/at/all"),
        (&["--svg", "/nowhere/at/all.svg", &boot], "cannot write /nowhere/at/all.svg"),
        (&[&boot], "no area in "),
    ] {
        let stderr = stderr_of(&map(args).failure());
        let last = stderr.lines().last().unwrap();
        assert!(last.starts_with("vmlab: ") && last.contains(why), "{args:?}: {stderr}");
    }
    for args in [
        &["--at", "1"][..],
        &["x", "--pid", "1"],
        &["x", "--trace", "y"],
        &["--json", "--csv"],
        &["--window", "5-4"],
        &["--trace", "x", "--at", "soon"],
        &["--width", "5"],
    ] {
        map(args).failure().code(2);
    }
}

#[test]
fn options_of_a_trace_are_not_ignored_beside_a_table() {
    let table = shipped("boot-smp1.vmallocinfo");
    for args in [["--at", "1"], ["--policy", "linux69"], ["--nodes", "2"]] {
        let assert = vmlab().arg("map").arg(&table).args(args).assert().failure().code(1);
        assert_eq!(
            stderr_of(&assert),
            "vmlab: --at, --policy and --nodes are of a trace: name it by --trace\n"
        );
    }
}
