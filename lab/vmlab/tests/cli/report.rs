//! The demo and its report, the commands of the README, reports of other inputs, help and completions.

use super::*;

#[test]
fn without_arguments_the_demo_runs() {
    let dir = TempDir::new().unwrap();
    let assert = vmlab().current_dir(&dir).assert().success();
    let stdout = stdout_of(&assert);
    for word in TRACES.iter().chain(&INDEXES).chain(&["67181", "515", "ns/op", "report: "]) {
        assert!(stdout.contains(word), "{word}\n{stdout}");
    }
    assert_eq!(stdout.matches("smp1: no request fails under linux69; ").count(), 3, "the verdicts\n{stdout}");
    assert!(!stdout.contains('\u{1b}'), "no colours where no terminal is");
    assert_eq!(stderr_of(&assert), "", "no progress where no terminal is");
    let html = std::fs::read_to_string(dir.path().join("vmlab-report.html")).unwrap();
    // A section for each trace and one for all, and a tab for each.
    let sections = TRACES.len() + 1;
    assert_eq!(
        (html.matches("<section ").count(), html.matches("role=\"tab\"").count()),
        (sections, sections)
    );
    let first = html.split("<section ").nth(1).unwrap();
    assert_eq!(
        first.matches("no request fails under linux69; ").count(),
        4,
        "the first screen says what one gains"
    );
}

#[test]
fn the_report_is_one_file_that_loads_nothing() {
    let html = &all().html;
    for never in ["http:", "https:", "<link", "<iframe", "@import", "url(", "file:", "src=\"/"] {
        assert!(!html.contains(never), "{never}");
    }
    assert_eq!(html.matches("src=\"").count(), html.matches("src=\"data:image/png;base64,").count());
    // A film's data for each trace, and the script of the page.
    assert_eq!(html.matches("<script").count(), TRACES.len() + 1);
    assert_eq!(html.matches("<script type=\"application/json\">").count(), TRACES.len());
    assert_eq!(html.matches("</script>").count(), TRACES.len() + 1);
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";
    assert!(html.contains(&format!("http-equiv=\"Content-Security-Policy\" content=\"{policy}\"")));
    assert!(html.len() < 5 << 20, "{} bytes", html.len());
    assert!(html.starts_with("<!doctype html>") && html.trim_end().ends_with("</html>"));
}

#[test]
fn the_report_has_every_figure_with_title_axes_and_a_sentence() {
    let html = &all().html;
    for tag in ["section", "figure", "figcaption", "svg", "table", "div", "span", "p", "tr", "td", "th"] {
        let opened = html.matches(&format!("<{tag}>")).count() + html.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, html.matches(&format!("</{tag}>")).count(), "{tag}");
    }
    // Five figures for each trace: the space, and four charts, each with a title.
    assert_eq!(html.matches("<figure>").count(), 5 * TRACES.len());
    assert_eq!(html.matches("<figcaption>").count(), 5 * TRACES.len());
    let titles = ["Pages in use", "Holes", "Lost from the largest hole", "Time of a call"];
    for title in titles {
        assert_eq!(html.matches(&format!("<title>{title}</title>")).count(), TRACES.len(), "{title}");
    }
    for axis in ["events since the trace began", "pages of 4 KiB", "holes in the whole space", "ns a call"] {
        assert!(html.matches(axis).count() >= TRACES.len(), "{axis}");
    }
    for (trace, equal) in [("boot-smp1", ">103<"), ("test_vmalloc-mask127-smp1", ">67,181<")] {
        assert!(html.contains(&format!(">{trace}</h2>")) && html.contains(equal), "{trace}");
    }
    assert!(!html.contains("NaN") && !html.contains("inf,"));
}

#[test]
fn the_report_of_a_recording_has_the_areas_that_stood_before_it() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("out.html");
    vmlab().args(["report", "-o"]).arg(&out).arg(shipped("held-out.jsonl.zst")).assert().success();
    let html = std::fs::read_to_string(&out).unwrap();
    assert!(html.contains("3,525 areas stood before, 3,143 of them lazy."), "the census");
    assert!(html.contains("In the end 25.1 MiB are busy and 60.9 MiB lazy."), "the picture");
    // Held from before the recording to its end, and so in no event.
    assert!(html.contains("acpi_os_map_iomem"), "the film");
    for args in [&["--kernel", "6.18"][..], &["--before", "x"]] {
        let table = shipped("boot-smp1.vmallocinfo");
        let assert = vmlab().args(["report", "-o"]).arg(&out).args(args).arg(table).assert().failure();
        assert!(stderr_of(&assert).contains("no input is one"), "{}", stderr_of(&assert));
    }
}

#[test]
fn the_help_of_every_command_has_examples() {
    let commands: [&[&str]; 8] = [
        &[],
        &["demo"],
        &["replay"],
        &["report"],
        &["map"],
        &["bench"],
        &["bench", "index"],
        &["completions"],
    ];
    // `cargo test -p vmlab` has no `bench`: that is a command of the feature `measure`.
    let here = |command: &&&[&str]| cfg!(feature = "measure") || command.first() != Some(&"bench");
    for command in commands.iter().filter(here) {
        vmlab().args(*command).arg("--help").assert().success().stdout(contains("Example"));
    }
}

#[test]
fn the_replays_of_the_readme_work() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("README.md")).unwrap();
    let lines: Vec<&str> = page.lines().filter(|line| line.starts_with("vmlab replay ")).collect();
    assert!(lines.len() > 1, "{lines:?}");
    for line in lines {
        // A remark is behind a sign.
        let (command, _) = line.split_once('#').unwrap_or((line, ""));
        let mut command = command.split_whitespace();
        command.next();
        vmlab().current_dir(&root).args(command).assert().success().stdout(contains("equal"));
    }
}

#[test]
fn completions_know_the_commands_and_the_indexes() {
    for shell in ["bash", "zsh", "fish"] {
        let assert = vmlab().args(["completions", shell]).assert().success();
        let script = stdout_of(&assert);
        for word in ["vmlab", "replay", "completions", "rb-linux", "vmallocinfo"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    vmlab().args(["completions", "tcsh"]).assert().failure();
}

/// Creates a report of some files, and reads it.
fn report_of(dir: &TempDir, inputs: &[PathBuf]) -> String {
    let file = dir.path().join("out.html");
    let assert = vmlab().arg("report").args(inputs).arg("-o").arg(&file).assert().success();
    assert!(stdout_of(&assert).starts_with("report: ") && stderr_of(&assert).is_empty());
    let html = std::fs::read_to_string(&file).unwrap();
    assert!(!html.contains("NaN") && html.ends_with("</html>\n"));
    html
}

#[test]
fn a_report_has_a_section_for_each_input_in_their_order() {
    let dir = TempDir::new().unwrap();
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results");
    let rows = dir.path().join("rows.json");
    std::fs::write(&rows, &all().stdout).unwrap();
    let trace = dir.path().join("small");
    std::fs::write(&trace, SMALL).unwrap();
    let inputs = [
        results.join("space-baseline.csv"),
        trace,
        shipped("boot-smp1.vmallocinfo"),
        rows,
        results.join("memory.csv"),
    ];
    let html = report_of(&dir, &inputs);
    let titles: Vec<&str> =
        html.split("<h2>").skip(1).map(|rest| &rest[..rest.find("</h2>").unwrap()]).collect();
    assert_eq!(titles, ["space-baseline.csv", "small", "boot-smp1.vmallocinfo", "rows.json", "memory.csv"]);
    // Ratios, contention and growth of the benchmarks; a film, and a picture without a slider.
    for title in [
        "Time of an operation, beside ours",
        "fix_size: locks taken, a pair",
        "Growth: pair-N-pages-1t",
        "Slowest of a hundred, beside ours",
        "Time of an operation, beside btree",
    ] {
        assert!(html.contains(&format!("<title>{title}</title>")), "{title}");
    }
    assert_eq!((html.matches("data-film>").count(), html.matches("type=\"range\"").count()), (2, 1));
    assert!(html.contains("<summary>Who holds the most</summary>") && html.contains("</i>kernel_clone</th>"));
}

#[test]
fn names_of_a_hostile_trace_stay_text() {
    let dir = TempDir::new().unwrap();
    let name = "</script><script>alert(1)</script><img/src=x>";
    let trace = dir.path().join("t&<b>");
    std::fs::write(&trace, SMALL.replace("x-1", &format!("{name}-1"))).unwrap();
    std::fs::write(
        dir.path().join("t&<b>.vmallocinfo"),
        format!("0x100000-0x102000 8192 {name}+0x1/0x2 vmalloc\n"),
    )
    .unwrap();
    let csv = dir.path().join("c.csv");
    std::fs::write(&csv, format!("# {name}\nworkload,contender,ns_min\n{name},{name},5\n{name},ours,2\n"))
        .unwrap();
    let html = report_of(&dir, &[trace, csv]);
    assert_eq!((html.matches("<script").count(), html.matches("</script").count()), (2, 2));
    assert!(!html.contains("<img/") && !html.contains("t&<b>") && html.contains("t&amp;&lt;b&gt;"));
}

#[test]
fn a_report_of_nothing_or_of_what_cannot_be_read_is_one_line() {
    let dir = TempDir::new().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let csv = file("empty.csv", "workload,contender,ns_min\n");
    let hidden = file("hidden", "0x(____ptrval____)-0x(____ptrval____)    8192 f+0x1/0x2 vmalloc\n");
    let other = file("other", "a,b\n1,2\n");
    let out = dir.path().join("r.html");
    for (inputs, expected) in [
        (&[][..], "nothing to draw"),
        (&["/nowhere/at/all".to_string()], "cannot read /nowhere/at/all: "),
        (&[dir.path().display().to_string()], "directory"),
        (&[csv], "empty.csv: no measurement"),
        (&[hidden], "hidden: no area with an address"),
        (&[other], "other: no vmalloc event"),
    ] {
        let assert = vmlab().arg("report").args(inputs).arg("-o").arg(&out).assert().failure().code(1);
        let stderr = stderr_of(&assert);
        assert_eq!((stderr.lines().count(), stdout_of(&assert).as_str()), (1, ""), "{stderr}");
        assert!(stderr.starts_with("vmlab: ") && stderr.contains(expected), "{stderr}");
        assert!(!out.exists(), "nothing is left behind");
    }
    let assert = vmlab().args(["report", "x", "-o", "/nowhere/r.html"]).assert().failure().code(1);
    assert!(stderr_of(&assert).starts_with("vmlab: cannot write /nowhere/r.html: "));
}
