//! `vmlab flame`: graphs and stacks of a recording, and of the running kernel.

use super::record::can_record;
use super::*;

pub(crate) const TEXT: &str = "sh-7 [000] ..... 1.000000: alloc_vmap_area: va_start: 4096 size=8192 align=1 vstart=0x1000 vend=0xffff000 failed=0\n\
    sh-7 [000] ..... 1.000000: <stack trace>\n => alloc_vmap_area\n => inner\n => root\n\
    sh-7 [000] ..... 1.000000: percpu_alloc_percpu: call_site=f+0x1/0x2 reserved=0 is_atomic=0 size=16 align=8 base_addr=ff00 off=8 ptr=000a bytes_alloc=64 gfp_flags=X\n\
    sh-7 [000] ..... 1.000000: <stack trace>\n => pcpu_alloc_noprof\n => other\n => root\n\
    sh-7 [000] ..... 1.000030: free_vmap_area_noflush: va_start=0x1000 nr_lazy=2 nr_lazy_max=99\n";

fn flame(path: &Path, args: &[&str]) -> String {
    stdout_of(&vmlab().arg("flame").arg(path).args(args).assert().success())
}

#[test]
fn stacks_are_folded_and_drawn() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("t.ftrace");
    std::fs::write(&path, TEXT).unwrap();
    for (by, area, percpu) in [("bytes", 8192, 64), ("count", 1, 1), ("time-live", 30, 30)] {
        let want = format!("root;inner;alloc_vmap_area {area}\nroot;other;pcpu_alloc_noprof {percpu}\n");
        assert_eq!(flame(&path, &["--by", by, "--format", "folded"]), want, "{by}");
    }
    let area = flame(&path, &["--memory", "area", "--format", "folded", "--by", "count"]);
    assert_eq!(area, "root;inner;alloc_vmap_area 1\n");
    let svg = flame(&path, &[]);
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"), "{svg}");
    assert!(
        svg.contains("<title>inner: 8 KiB, 99.22 %</title>") && svg.contains("8.1 KiB in 2 stacks"),
        "{svg}"
    );
    let file = dir.path().join("x.svg");
    vmlab().arg("flame").arg(&path).arg("-o").arg(&file).assert().success().stdout(contains("svg: "));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), svg);
}

#[test]
fn a_hole_counts_for_the_area_above_it() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("t.ftrace");
    let area = |at: u64, pages: u64, caller: &str| {
        format!(
            "sh-7 [000] ..... 1.0: alloc_vmap_area: va_start: {} size={} align=1 vstart=0x1000 vend=0xffff000 failed=0\n\
             sh-7 [000] ..... 1.0: <stack trace>\n => alloc_vmap_area\n => {caller}\n",
            at << 12,
            pages << 12
        )
    };
    let free = |at: u64| {
        format!(
            "sh-7 [000] ..... 1.1: free_vmap_area_noflush: va_start={:#x} nr_lazy=2 nr_lazy_max=99\n",
            at << 12
        )
    };
    // Pages 1 to 3, 10, 11 to 12 and 20 live at the end: holes of 6 and of 7 pages, below 10 and below 20.
    let text =
        [area(1, 3, "a"), area(10, 1, "b"), area(11, 2, "c"), area(14, 2, "d"), area(20, 1, "c"), free(14)];
    std::fs::write(&path, text.concat()).unwrap();
    let folded = ["--by", "fragmentation", "--format", "folded"];
    let want = format!("b;alloc_vmap_area {}\nc;alloc_vmap_area {}\n", 6 << 12, 7 << 12);
    assert_eq!(flame(&path, &folded), want);
    // Nothing lives at the end.
    std::fs::write(&path, [area(1, 3, "a"), free(1)].concat()).unwrap();
    assert_eq!(flame(&path, &folded), "\n");
    std::fs::write(&path, text.concat()).unwrap();
    // An area that is not selected ends holes, and counts for none.
    let of_one = flame(&path, &[&folded[..], &["--memory", "area"]].concat());
    assert_eq!(of_one, want);
    let svg = flame(&path, &["--by", "fragmentation"]);
    assert!(
        svg.contains("holes below live areas by call stack") && svg.contains("52 KiB in 2 stacks"),
        "{svg}"
    );
    let assert =
        vmlab().args(["flame", "--by", "fragmentation", "--memory", "percpu"]).arg(&path).assert().code(1);
    assert!(stderr_of(&assert).lines().count() == 1);
}

#[test]
fn a_trace_without_stacks_is_one_line() {
    let assert = vmlab().arg("flame").arg(shipped("boot-smp1.ftrace.gz")).assert().code(1);
    let stderr = stderr_of(&assert);
    assert!(stderr.contains("vmlab record --stacks") && stderr.lines().count() == 1, "{stderr}");
}

#[test]
fn a_report_of_a_recording_with_stacks_has_its_graph() {
    let dir = TempDir::new().unwrap();
    for (name, text, graphs) in [("with", TEXT.to_string(), 2), ("without", TEXT.replace("=>", "->"), 0)] {
        let (path, report) = (dir.path().join(name), dir.path().join("report.html"));
        std::fs::write(&path, text.replace("<stack trace>", if graphs == 2 { "<stack trace>" } else { "x" }))
            .unwrap();
        vmlab().arg("report").arg(&path).arg("-o").arg(&report).assert().success();
        let html = std::fs::read_to_string(&report).unwrap();
        assert_eq!(
            html.matches("<title>inner: 8 KiB, 99.22 %</title>").count(),
            graphs,
            "{name}: one in each shape"
        );
    }
}

#[test]
fn the_running_kernels_stacks_are_those_of_its_calls() {
    let Some(_lock) = can_record() else { return };
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("r.jsonl.gz");
    let load = "for i in 1 2 3 4 5 6 7 8; do (true); done";
    let args = ["record", "--stacks", "-o", path.to_str().unwrap(), "--", "sh", "-c", load];
    if !vmlab().args(args).assert().get_output().status.success() {
        super::not_run("flame graphs of this kernel: it has no call stacks");
        return;
    }
    let folded = flame(&path, &["--by", "count", "--format", "folded"]);
    let counts = folded.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap());
    let recorded = super::record::lines(&path);
    let allocs = |line: &&Value| {
        line["event"] == "percpu_alloc_percpu" || (line["event"] == "alloc_vmap_area" && line["failed"] == 0)
    };
    assert_eq!(counts.sum::<u64>(), recorded.iter().filter(allocs).count() as u64);
    assert!(!folded.contains("stack not recorded") && !folded.contains("trace_event_"), "{folded}");
}
