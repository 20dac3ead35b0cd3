//! The model of a recording in another language, and the package that reads what `--json` prints.

use super::*;
use std::process::{Command as Process, Output};

/// Traces that the model reads in a second or two, of one CPU and of four, as text and as a recording.
const MODELLED: [&str; 5] = [
    "boot-smp1.ftrace.gz",
    "fork-netns-smp1.ftrace.gz",
    "fork-netns-smp4.ftrace.gz",
    "nodes-smp4.ftrace.gz",
    "held-out.jsonl.zst",
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../python")
}

/// Runs Python in the package's folder; `None` if there is none, which is reported.
fn python(args: &[&str], paths: &[PathBuf]) -> Option<Output> {
    let mut process = Process::new("python3");
    // Its caches would stay in the tree.
    process.args(args).args(paths).current_dir(folder()).env("PYTHONDONTWRITEBYTECODE", "1");
    match process.output() {
        Ok(output) => Some(output),
        Err(_) => {
            not_run("the model in another language, which needs python3");
            None
        }
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

#[test]
fn a_model_in_another_language_has_the_same_figures() {
    let args = ["model.py", "--vmlab", env!("CARGO_BIN_EXE_vmlab")];
    let Some(output) = python(&args, &MODELLED.map(shipped)) else { return };
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    for name in MODELLED {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        let figures = line.split(' ').nth(1).and_then(|figures| figures.parse::<u64>().ok());
        assert!(figures > Some(40) && line.ends_with(" figures, 0 differ"), "{line}");
    }
}

#[test]
fn the_model_names_a_figure_that_differs() {
    let dir = TempDir::new().unwrap();
    // A vmlab that has one lazy area too many, and no purge at all.
    let script = format!(
        "#!/bin/sh\n{} \"$@\" | sed 's/\"lazy\":{{\"areas\":1,/\"lazy\":{{\"areas\":2,/; s/\"purge_vmap_area_lazy\":17/\"other\":17/'\n",
        env!("CARGO_BIN_EXE_vmlab")
    );
    let path = dir.path().join("vmlab");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let args = ["model.py", "--vmlab", path.to_str().unwrap()];
    let Some(output) = python(&args, &[shipped("boot-smp1.ftrace.gz")]) else { return };
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for line in [
        "end/lazy/areas: model 1, vmlab 2",
        "events/purge_vmap_area_lazy: model 17, vmlab None",
        "events/other: model None, vmlab 17",
        " figures, 3 differ",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn the_package_reads_the_objects_of_every_command() {
    let dir = TempDir::new().unwrap();
    let trace = shipped("fork-netns-smp4.ftrace.gz").display().to_string();
    let mut lines = String::new();
    for args in [
        &["report", "--json"][..],
        &["replay", "--json", "--index", "btree"],
        &["replay", "--json", "--space"],
        &["whatif", "--json", "--cpu", "1"],
        &["map", "--json", "--trace"],
    ] {
        lines += &stdout_of(&vmlab().args(args).arg(&trace).assert().success());
    }
    let objects = dir.path().join("objects.jsonl");
    std::fs::write(&objects, &lines).unwrap();
    let (allocinfo, recording) = (dir.path().join("a.allocinfo"), shipped("latency-smp4.jsonl.gz"));
    std::fs::write(&allocinfo, sites::TEXT).unwrap();
    let diff = ["replay", "--json", "--diff", "--policy", "onelock52", &trace];
    let percpu = ["replay", "--json", "--percpu", &trace];
    let calls = shipped("linux-calls-smp1.gz").display().to_string();
    let calls = ["replay", "--json", "--calls", &calls];
    let boot = shipped("boot-smp1.ftrace.gz").display().to_string();
    let mut lines: String = [&diff[..], &percpu, &calls, &["compare", "--json", &boot, &trace]]
        .map(|args| stdout_of(&vmlab().args(args).assert().success()))
        .concat();
    lines += &stdout_of(&vmlab().args(["latency", "--json"]).arg(&recording).assert().success());
    lines += &stdout_of(&vmlab().args(["sites", "--json", "--all"]).arg(&allocinfo).assert().success());
    for by in ["caller", "task"] {
        let by = ["latency", "--json", "--by", by];
        lines += &stdout_of(&vmlab().args(by).arg(&recording).assert().success());
    }
    let others = dir.path().join("others.jsonl");
    std::fs::write(&others, &lines).unwrap();
    let program = "import dataclasses, json, sys, vmlab\n\
        figures, replay, space, whatif, at = records = list(vmlab.read(open(sys.argv[1])))\n\
        assert figures.events['alloc_vmap_area'] == replay.allocs == space.allocs == 810, figures\n\
        assert replay.equal + replay.lower + replay.higher + replay.failed_both + replay.failed_differs == 810\n\
        assert at.busy == figures.end.busy and at.callers[0].bytes > 1 << 20 and at.windows[0].start >> 40 == 0xffa000\n\
        assert len(whatif.policies) == 3 and 'of CPU 1' in whatif.part and whatif.verdict.endswith('.')\n\
        for line in (line for path in sys.argv[1:] for line in open(path)):\n\
        \x20   kind = type(vmlab.record(json.loads(line)))\n\
        \x20   lacks = set(json.loads(line)) - {'version'} - {one.name for one in dataclasses.fields(kind)}\n\
        \x20   assert kind is vmlab.Diff or not lacks, f'lab/python/vmlab/__init__.py: {kind.__name__} lacks {lacks}'\n\
        rows = list(vmlab.rows(records))\n\
        assert len(rows) == 7 and rows[0]['end.busy.bytes'] == at.busy.bytes and 'callers' not in rows[0]\n\
        assert [row['name'] for row in vmlab.rows(figures.callers)][0] == figures.callers[0].name\n\
        for wrong, error in (({'version': 2}, vmlab.UnknownVersion), ({}, vmlab.UnknownVersion), ({'version': 1}, vmlab.UnknownObject)):\n\
        \x20   try: vmlab.record(wrong)\n\
        \x20   except error: continue\n\
        \x20   raise SystemExit(f'{wrong} was read')\n\
        *records, by_caller, by_task = vmlab.read(open(sys.argv[2]))\n\
        diff, percpu, scan, runs, calls, sides, latency, sites = records\n\
        assert latency.probes.kind == 'fprobe' and latency.calls[0].caller is None and latency.elsewhere['other_locks'] == 23, latency\n\
        assert by_caller.calls[0].caller == '__get_vm_area_node' and by_task.calls[0].task, by_caller.calls[0]\n\
        assert sum(diff.causes.values()) == diff.differ == 46 and diff.divergences[0].policy == 0xffa000000023c000, diff\n\
        assert [percpu.policy, scan.policy, runs.policy] == ['linux612', 'scan', 'runs'] and percpu.allocs > percpu.equal > percpu.first, percpu\n\
        assert calls.equal == calls.addresses > 1000 and calls.by_call['init'] == 1 and calls.first == [], calls\n\
        assert sides.after.callers['kernel_clone'][0] == sides.after.leaks['kernel_clone'].bytes > 1 << 20, sides\n\
        assert sum(count for _, count in latency.calls[0].histogram) == latency.calls[0].count == 1745, latency\n\
        assert latency.locks[0].lock == 'pcpu_alloc_mutex' and sites.places == 4 and sites.sites[0].bytes == 900000, sites\n\
        rows = list(vmlab.rows(records))\n\
        callers = len({*sides.before.callers, *sides.after.callers})\n\
        assert len(rows) == 5 + callers + len(latency.calls) + len(sites.sites), rows\n\
        assert rows[-1]['name'] == sites.name and {'caller', 'after.bytes'} < rows[5].keys(), rows[-1]\n\
        records = list(vmlab.read(open(sys.argv[1])))\n\
        try: import pandas\n\
        except ImportError: raise SystemExit(print('no pandas'))\n\
        table = vmlab.frame(records)\n\
        assert table.shape[0] == 7 and table['end.busy.bytes'][0] == at.busy.bytes, table\n\
        assert table['allocs'].dropna().tolist() == [810, 810] and table['policy'].count() == 4, table\n\
        print('read')\n";
    let Some(output) = python(&["-c", program], &[objects, others]) else { return };
    let read = text(&output);
    assert!(output.status.success() && ["read\n", "no pandas\n"].contains(&&*read), "{read}");
    if read == "no pandas\n" {
        not_run("a table of pandas, which is not installed");
    }
    let example = ["example.py", env!("CARGO_BIN_EXE_vmlab")];
    let Some(output) = python(&example, &[shipped("boot-smp1.ftrace.gz")]) else { return };
    let text = text(&output);
    assert!(
        output.status.success() && text.contains("boot-smp1: busy_bytes 10,444,800 at event 106"),
        "{text}"
    );
    assert!(text.contains("boot-smp1: onelock52: span "), "{text}");
}

#[test]
fn the_code_of_its_readme_works() {
    let page = std::fs::read_to_string(folder().join("README.md")).unwrap();
    let (_, rest) = page.split_once("```python\n").unwrap();
    let (code, _) = rest.split_once("```").unwrap();
    let dir = TempDir::new().unwrap();
    let bin = Path::new(env!("CARGO_BIN_EXE_vmlab")).parent().unwrap().display().to_string();
    let rows =
        stdout_of(&vmlab().args(["replay", "--json"]).arg(shipped("boot-smp1.ftrace.gz")).assert().success());
    std::fs::write(dir.path().join("rows.jsonl"), rows).unwrap();
    std::os::unix::fs::symlink(shipped(""), dir.path().join("data")).unwrap();
    // The names are those of the page, so it runs in a folder that has the files.
    let program = format!(
        "import os, sys\nsys.path.insert(0, os.getcwd())\nos.environ['PATH'] = '{bin}:' + os.environ['PATH']\n\
         os.chdir(sys.argv[1])\n{code}\nassert len(rows) == {}, rows\n",
        INDEXES.len()
    );
    let Some(output) = python(&["-c", &program], &[dir.path().into()]) else { return };
    let text = text(&output);
    assert!(output.status.success() && text.starts_with("boot-smp1 10444800 "), "{text}");
}

#[test]
fn what_the_package_computes_of_a_dump_is_right() {
    let Some(output) = python(&["-m", "unittest", "-v", "test_dump"], &[]) else { return };
    let text = text(&output);
    assert!(output.status.success() && text.contains("Ran 12 tests"), "{text}");
    if text.contains("skipped") {
        not_run("what vmlab.kernel says of a file that is no dump, since drgn is not installed");
    }
}

/// Writes the dump of the package's tests.
fn dump(dir: &Path) -> Option<PathBuf> {
    let path = dir.join("dump.jsonl");
    let program = "import sys, test_dump\n\
        open(sys.argv[1], 'w').writelines(line + '\\n' for line in test_dump.dump.lines(test_dump.small()))\n";
    let output = python(&["-c", program], std::slice::from_ref(&path))?;
    assert!(output.status.success(), "{}", text(&output));
    Some(path)
}

#[test]
fn a_dump_is_drawn_with_its_pools_and_windows_and_compared() {
    let dir = TempDir::new().unwrap();
    let Some(path) = dump(dir.path()) else { return };
    let map = stdout_of(&vmlab().args(["map", "--json"]).arg(&path).assert().success());
    let map: serde_json::Value = serde_json::from_str(&map).unwrap();
    assert_eq!(map["busy"], serde_json::json!({"areas": 3, "bytes": 0x10000}));
    assert_eq!(map["lazy"], serde_json::json!({"areas": 2, "bytes": 0x3000}));
    assert_eq!(map["pooled"], serde_json::json!({"areas": 2, "bytes": 0x3000}));
    // The window is the kernel's, and not from the first area to the last.
    assert_eq!(map["windows"][0]["end"], "0xffffc90000100000");
    assert_eq!(map["holes"], serde_json::json!({"areas": 3, "bytes": 0x100_000 - 0x16000}));
    assert!(map["title"].as_str().unwrap().starts_with("Linux 6.12.117: "), "{map}");
    assert_eq!(map["notes"], serde_json::json!([]));
    let text = stdout_of(&vmlab().arg("compare").arg(&path).arg(&path).assert().success());
    assert!(text.contains("pooled") && text.contains("every caller has as much"), "{text}");
    let page = dir.path().join("page.html");
    vmlab().arg("report").arg(&path).arg("-o").arg(&page).assert().success();
    assert!(std::fs::read_to_string(page).unwrap().contains("7 areas listed"), "7 areas, pools among them");
    vmlab().arg("replay").arg(&path).assert().failure().stderr(contains("no vmalloc event"));
    // Before a trace it is a table.
    let trace = shipped("boot-smp1.ftrace.gz");
    let json =
        stdout_of(&vmlab().args(["report", "--json", "--before"]).args([&path, &trace]).assert().success());
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["standing"], 5);
}
