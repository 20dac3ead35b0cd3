//! The places that allocate, and their growth.

use super::*;

/// The file of a kernel with CONFIG_MEM_ALLOC_PROFILING, in part.
pub(crate) const TEXT: &str = "allocinfo - version: 1.0\n\
    #     <size>  <calls> <tag info>\n\
    \x20    81920        5 kernel/fork.c:314 func:alloc_thread_stack_node \n\
    \x20     4096        1 mm/percpu-vm.c:95 func:pcpu_alloc_pages \n\
    \x20      512       64 kernel/sched/fair.c:9 func:alloc_fair_sched_group \n\
    \x20   900000      700 mm/slub.c:2425 func:alloc_slab_page \n";
/// A dump of that kernel, in part.
pub(crate) const DUMP: &str = "{\"vmlab\":{\"version\":1,\"kernel\":\"6.12\",\"dump\":\"drgn 1\"}}\n\
    {\"area\":{\"when\":\"begin\",\"start\":\"0xffffc90000000000\",\"end\":\"0xffffc90000005000\",\"bytes\":20480,\"text\":\"kernel_clone+0xc2/0x430 pages=4 vmalloc\"}}\n\
    {\"site\":{\"memory\":\"vmalloc\",\"file\":\"kernel/fork.c\",\"line\":314,\"function\":\"alloc_thread_stack_node\",\"bytes\":81920,\"calls\":5}}\n\
    {\"site\":{\"memory\":\"percpu\",\"file\":\"kernel/sched/fair.c\",\"line\":9,\"function\":\"alloc_fair_sched_group\",\"bytes\":512,\"calls\":64}}\n";

fn written(dir: &Path) -> (PathBuf, PathBuf) {
    let (text, dump) = (dir.join("a.allocinfo"), dir.join("dump.jsonl"));
    std::fs::write(&text, TEXT).unwrap();
    std::fs::write(&dump, DUMP).unwrap();
    (text, dump)
}

#[test]
fn places_are_listed_by_the_memory_that_a_dump_knows() {
    let dir = TempDir::new().unwrap();
    let (text, dump) = written(dir.path());
    let said = |args: &[&str]| stdout_of(&vmlab().arg("sites").arg(&text).args(args).assert().success());
    let plain = said(&[]);
    assert!(plain.contains("4 places, 963 KiB live"), "{plain}");
    assert!(plain.contains("pcpu_alloc_pages") && plain.contains("own:"), "{plain}");
    assert!(!plain.contains("alloc_slab_page") && !plain.contains("alloc_fair"), "{plain}");
    assert!(said(&["--all"]).contains("mm/slub.c:2425 alloc_slab_page"));
    let json = said(&["--json", "--dump", dump.to_str().unwrap()]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let rows: Vec<_> =
        json["sites"].as_array().unwrap().iter().map(|row| (&row["memory"], &row["bytes"])).collect();
    let want = [("vmalloc", 81920), ("own", 4096), ("percpu", 512)];
    assert_eq!(rows.len(), 3);
    for ((memory, bytes), (name, count)) in rows.into_iter().zip(want) {
        assert_eq!((memory, bytes), (&serde_json::json!(name), &serde_json::json!(count)));
    }
    assert_eq!((&json["version"], &json["places"]), (&serde_json::json!(1), &serde_json::json!(4)));
}

#[test]
fn the_growth_of_a_place_is_compared_and_a_limit_is_a_condition() {
    let dir = TempDir::new().unwrap();
    let (before, _) = written(dir.path());
    let after = dir.path().join("b.allocinfo");
    std::fs::write(&after, TEXT.replace("81920        5", "98304        6")).unwrap();
    let compare = |condition: &str| {
        vmlab().arg("compare").args([&before, &after]).args(["--fail-if", condition]).assert()
    };
    let text = stdout_of(&compare("live.growth>64K").success());
    let row = text.lines().find(|line| line.contains("alloc_thread_stack_node")).unwrap();
    assert!(row.contains("kernel/fork.c:314") && row.contains("+16 KiB") && row.contains("+1"), "{text}");
    assert!(
        text.contains("calls") && !text.contains("alloc_slab_page") && !text.contains("leaked"),
        "{text}"
    );
    compare("live.growth>8K").code(3);
    compare("busy>8K").failure().stderr(contains("does not have busy"));
}

/// Runs a command that must fail with one line.
fn one_line_error(args: &[&str], why: &str) {
    let failed = vmlab().args(args).assert().code(1).stdout("");
    let text = stderr_of(&failed);
    assert!(text.lines().count() == 1 && text.contains(why), "{text}");
}

#[test]
fn what_is_no_allocinfo_is_an_error_of_one_line() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("x");
    let fails = |text: &str, why: &str| {
        std::fs::write(&path, text).unwrap();
        one_line_error(&["sites", path.to_str().unwrap()], why);
    };
    fails("0x1000-0x3000 8192 f vmalloc\n", "not in the format of /proc/allocinfo");
    fails("", "not in the format of /proc/allocinfo");
    fails("allocinfo - version: 1.0\n", "no place in it");
    let (text, _) = written(dir.path());
    one_line_error(&["report", text.to_str().unwrap()], "vmlab sites");
    one_line_error(
        &["sites", text.to_str().unwrap(), "--dump", text.to_str().unwrap()],
        "no dump of a kernel",
    );
}
