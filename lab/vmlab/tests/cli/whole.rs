//! Inputs that are not whole, or are outputs too, and names that a terminal or a page must not obey.

use super::*;

const ROW: &str = "0x1000-0x3000 8192 f+0x1/0x2 pages=1 vmalloc\n";

fn table() -> String {
    let row = |at: u64| {
        let at = 0xffff_c900_0000_0000 + (at << 13);
        format!("{at:#x}-{:#x} 8192 f{}+0x1/0x2 pages=1 vmalloc\n", at + 0x2000, at % 7919)
    };
    (0..4000).map(row).collect()
}

fn cut(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len() * 3 / 4]
}

#[test]
fn a_table_or_a_trace_that_ends_early_is_shown_or_compared_as_a_failure() {
    let dir = TempDir::new().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
    write("t.gz", cut(&gzip(table().as_bytes())));
    write("whole.gz", &gzip(table().as_bytes()));
    write("s.gz", cut(&gzip(text_of("boot-smp1").as_bytes())));
    write("x.gz", &gzip(SMALL.as_bytes()));
    write("x.vmallocinfo.gz", cut(&gzip(table().as_bytes())));
    for (args, shown) in [
        (&["top", "t.gz"][..], "a table without events"),
        (&["report", "t.gz"], "report: "),
        (&["compare", "t.gz", "whole.gz"], ""),
        (&["map", "--trace", "s.gz"], "keeps apart"),
        (&["replay", "x.gz", "--index", "btree"], "equal"),
        (&["replay", "x.gz", "--diff"], "equal"),
        (&["top", "x.gz"], "vmlab top"),
    ] {
        let assert = vmlab().args(args).current_dir(&dir).assert().failure().code(1);
        let stderr = stderr_of(&assert);
        assert!(
            stderr.contains("the input ends early") && stderr.contains("after line "),
            "{args:?}: {stderr}"
        );
        assert!(stdout_of(&assert).contains(shown), "{args:?}: {}", stdout_of(&assert));
    }
    write(
        "hidden",
        format!("{ROW}0x0000000000000000-0x0000000000000000 8192 f+0x1/0x2 vmalloc\n").as_bytes(),
    );
    for args in [&["compare", "hidden", "hidden"][..], &["top", "hidden"]] {
        let assert = vmlab().args(args).current_dir(&dir).assert().success();
        assert!(stderr_of(&assert).contains("addresses"), "{args:?}: {}", stderr_of(&assert));
    }
}

#[test]
fn an_output_is_no_input() {
    let dir = TempDir::new().unwrap();
    let before = std::fs::read(shipped("boot-smp1.ftrace.gz")).unwrap();
    std::fs::write(dir.path().join("s.gz"), &before).unwrap();
    std::fs::write(dir.path().join("s.vmallocinfo"), ROW).unwrap();
    std::fs::hard_link(dir.path().join("s.gz"), dir.path().join("same.gz")).unwrap();
    for args in [
        &["flame", "s.gz", "-o", "same.gz"][..],
        &["report", "s.gz", "-o", "./s.gz"],
        &["report", "s.gz", "-o", "s.vmallocinfo"],
        &["replay", "s.gz", "--report", "s.gz"],
        &["whatif", "s.gz", "--films", "s.gz"],
        &["map", "--trace", "s.gz", "--html", "s.gz"],
        &["map", "s.vmallocinfo", "--svg", "s.vmallocinfo"],
        &["convert", "s.gz", "--as", "csv", "-o", "same.gz"],
        &["map", "s.vmallocinfo", "--svg", "new", "--html", "new"],
    ] {
        let assert = vmlab().args(args).current_dir(&dir).assert().failure().code(1);
        let stderr = stderr_of(&assert);
        assert!(stderr.contains("read and written at once") || stderr.contains("name one file"), "{stderr}");
    }
    assert_eq!(std::fs::read(dir.path().join("s.gz")).unwrap(), before);
    assert_eq!(std::fs::read_to_string(dir.path().join("s.vmallocinfo")).unwrap(), ROW);
}

#[test]
fn a_map_shows_the_control_characters_of_its_input() {
    let dir = TempDir::new().unwrap();
    let head = "{\"vmlab\":{\"version\":1,\"kernel\":\"6\\u001b[31m\",\"dump\":\"drgn\"}}";
    let area = "{\"area\":{\"when\":\"begin\",\"start\":\"0x1000\",\"end\":\"0x3000\",\"bytes\":8192,\"text\":\"f vmalloc\"}}";
    std::fs::write(dir.path().join("dump"), format!("{head}\n{area}\n")).unwrap();
    let assert = vmlab().args(["map", "dump", "--svg", "s"]).current_dir(&dir).assert().success();
    let text = stdout_of(&assert) + &std::fs::read_to_string(dir.path().join("s")).unwrap();
    assert!(text.contains("6\u{241b}[31m") && !text.contains('\u{1b}'), "{text}");
}

#[test]
fn a_pipe_is_read_once_and_the_command_says_what_is_missing() {
    let slow = shipped("latency-smp4.jsonl.gz");
    let (bytes, slow) = (std::fs::read(&slow).unwrap(), slow.to_str().unwrap());
    let dir = TempDir::new().unwrap();
    for (args, status) in [
        (&["compare", "-", slow][..], 0),
        (&["compare", slow, "-", "--fail-if", "p99>1ns"], 1),
        (&["report", "-"], 0),
    ] {
        let assert = vmlab().args(args).current_dir(&dir).write_stdin(bytes.clone()).assert().code(status);
        let stderr = stderr_of(&assert);
        assert!(stderr.contains("standard input and pipes are read once"), "{args:?}: {stderr}");
        assert!(status == 0 || stderr.contains("p99 is not read of a pipe: name a file"), "{stderr}");
    }
}
