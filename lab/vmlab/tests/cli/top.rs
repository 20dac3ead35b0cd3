//! `vmlab top`: recordings at a time, and the running kernel, as text and on a terminal.

use super::record::{can_record, lines};
use super::*;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use std::fs::File;
use std::process::{Child, Command as Process};
use std::time::{Duration, Instant};

fn shown(args: &[&str]) -> String {
    stdout_of(&vmlab().arg("top").args(args).assert().success())
}

/// Returns the value of a fact on a screen.
fn fact(screen: &str, name: &str) -> String {
    let line = screen.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{name}: {screen}"));
    let value = &line[line.find(name).unwrap() + name.len()..];
    value.trim_start().split("  ").next().unwrap().to_string()
}

#[test]
fn a_recording_is_shown_at_a_time_and_agrees_with_the_kernel_and_the_map() {
    let trace = shipped("fork-netns-smp4.ftrace.gz").to_str().unwrap().to_string();
    let end = shown(&[&trace]);
    // The kernel's own count, in pages, of what the state has in bytes.
    assert_eq!(fact(&end, "lazy, by kernel"), "2,075 of 24,576 pages");
    assert_eq!(fact(&end, "lazy  "), "8.1 MiB, 415 areas");
    assert!(end.lines().all(|line| line.chars().count() <= 80), "{end}");
    // The map replays the same events by another way: its policy also has pools.
    let args = ["map", "--trace", &trace, "--at", "20", "--json"];
    let map: Value = serde_json::from_str(&stdout_of(&vmlab().args(args).assert().success())).unwrap();
    let at = shown(&[&trace, "--at", "20"]);
    let amount = |state: &str| {
        let of = &map[state];
        let (bytes, areas) = (of["bytes"].as_u64().unwrap(), of["areas"].as_u64().unwrap());
        format!("{}, {}", vmlab_base::text::bytes(bytes), vmlab_base::text::counted(areas, "area"))
    };
    for state in ["busy", "lazy"] {
        assert_eq!(fact(&at, &format!("{state}  ")), amount(state), "{state}");
    }
    let filtered = shown(&[&trace, "--caller", "net", "--sort", "bytes", "--width", "200"]);
    let rows: Vec<&str> = filtered.lines().skip_while(|line| !line.starts_with("caller")).skip(1).collect();
    assert!(
        rows.len() > 3 && rows.iter().all(|row| row.contains("net") || row.starts_with("and ")),
        "{rows:?}"
    );
}

#[test]
fn a_recording_has_its_table_and_its_stacks() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("r.jsonl");
    let text = r#"{"vmlab":{"version":1,"kernel":"6.18.44"}}
{"area":{"when":"begin","start":"0x1000","end":"0x3000","bytes":8192,"text":"kernel_clone+0x1/0x2 pages=1 vmalloc"}}
{"event":"tracing_mark_write","ns":1000000000,"cpu":0,"task":"vmlab","pid":9,"text":"vmlab vmallocinfo begin opens"}
{"event":"tracing_mark_write","ns":1100000000,"cpu":0,"task":"vmlab","pid":9,"text":"vmlab vmallocinfo begin closes"}
{"event":"alloc_vmap_area","ns":1500000000,"cpu":0,"task":"sh","pid":7,"va_start":"0x5000","size":8192,"align":1,"vstart":"0x1000","vend":"0xffff000","failed":0}
{"stack":{"cpu":0,"pid":7,"ns":1500001000,"frames":["alloc_vmap_area","__vmalloc_noprof","e\u001b[31mvil"]}}
{"lost":{"events":42,"cpu":1}}
{"summary":{"events":3,"lost":42,"left_out":0,"ended":"signal","took_ns":1}}
"#;
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap();
    let end = shown(&[path]);
    assert_eq!(fact(&end, "busy"), "16 KiB, 2 areas");
    assert_eq!((fact(&end, "lost events").as_str(), fact(&end, "allocs/s").as_str()), ("42", "1.0"));
    assert!(
        end.contains("e\u{241b}[31mvil") && end.contains("kernel_clone") && !end.contains('\x1b'),
        "{end}"
    );
    assert_eq!(fact(&shown(&[path, "--at", "1.2"]), "busy"), "8 KiB, 1 area");
}

#[test]
fn what_cannot_be_shown_is_one_line() {
    let dir = TempDir::new().unwrap();
    let empty = dir.path().join("empty");
    std::fs::write(&empty, "nothing\n").unwrap();
    for (args, why) in [
        (vec![empty.to_str().unwrap()], "no event of vmalloc"),
        (vec!["-"], "only a file can be"),
        (vec!["/dev/null"], "only a file can be"),
        (vec!["-o", "-"], "standard output has the screen"),
        (vec!["/no/such/file"], "cannot read"),
        (vec!["--interval", "0"], "rates need some time"),
    ] {
        let stderr = stderr_of(&vmlab().arg("top").args(&args).assert().code(1));
        assert!(stderr.contains(why) && stderr.lines().count() == 1, "{args:?}: {stderr}");
    }
    if !rustix::process::geteuid().is_root() {
        let stderr = stderr_of(&vmlab().args(["top", "--once"]).assert().code(1));
        assert!(stderr.contains("root") && stderr.lines().count() == 1, "{stderr}");
    }
}

#[test]
fn the_running_kernel_is_shown_as_text() {
    let Some(_lock) = can_record() else { return };
    let screen = shown(&["--interval", "0.3", "--for", "0.7"]);
    assert!(screen.starts_with("vmlab top: Linux "), "{screen}");
    let busy = fact(&screen, "busy");
    let areas: u64 = busy.split_whitespace().rev().nth(1).unwrap().replace(',', "").parse().unwrap();
    assert!(areas > 10, "{busy}");
    assert!(screen.contains("percpu_stats_show") || screen.contains("pcpu_"), "{screen}");
}

/// A program on a terminal of its own.
struct Terminal {
    ours: File,
    theirs: File,
    child: Child,
    before: LocalModes,
}

impl Terminal {
    fn start(args: &[&str]) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap();
        let theirs = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&theirs, size).unwrap();
        rustix::fs::fcntl_setfl(&ours, rustix::fs::OFlags::NONBLOCK).unwrap();
        let before = tcgetattr(&theirs).unwrap().local_modes;
        let end = || theirs.try_clone().unwrap();
        let child = Process::new(env!("CARGO_BIN_EXE_vmlab"))
            .arg("top")
            .args(args)
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        Self { ours: File::from(ours), theirs, child, before }
    }

    /// Reads until the text is shown.
    fn until(&mut self, text: &str) -> String {
        let (mut shown, begun) = (String::new(), Instant::now());
        while !shown.contains(text) {
            assert!(begun.elapsed() < Duration::from_secs(60), "no {text:?} in {shown:?}");
            let mut bytes = [0; 4096];
            match self.ours.read(&mut bytes) {
                Ok(count) => shown += &String::from_utf8_lossy(&bytes[..count]),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        shown
    }

    fn key(&mut self, keys: &str) {
        self.ours.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for the end, after which the terminal is as it was.
    fn ends(mut self) {
        let shown = self.until("\x1b[?25h\x1b[?1049l");
        assert!(self.child.wait().unwrap().success(), "{shown}");
        assert_eq!(tcgetattr(&self.theirs).unwrap().local_modes, self.before);
    }
}

#[test]
fn keys_work_on_a_terminal_and_it_is_restored() {
    let Some(_lock) = can_record() else { return };
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("top.jsonl.gz");
    let args = ["--interval", "0.1", "-o", path.to_str().unwrap()];
    let mut terminal = Terminal::start(&args);
    terminal.until("allocs/s*");
    assert!(!tcgetattr(&terminal.theirs).unwrap().local_modes.contains(LocalModes::ECHO));
    terminal.key("s");
    terminal.until("frees/s*");
    terminal.key("/kernel\n");
    terminal.until("filter: kernel |");
    terminal.key(" ");
    terminal.until("FROZEN");
    terminal.key("w");
    terminal.until("RECORDING");
    assert!(Process::new("true").status().unwrap().success());
    terminal.key("w");
    terminal.until("events in ");
    // A second one does not replace the first; it ends with the program.
    terminal.key("w");
    terminal.until("RECORDING");
    terminal.key("q");
    terminal.ends();
    for name in ["top.jsonl.gz", "top-2.jsonl.gz"] {
        let lines = lines(&dir.path().join(name));
        let summary = &lines.last().unwrap()["summary"];
        let events = lines.iter().filter(|line| line["event"].is_string()).count() as u64;
        assert_eq!((&summary["ended"], summary["events"].as_u64()), (&Value::from("key"), Some(events)));
        for when in ["begin", "end"] {
            assert!(lines.iter().filter(|line| line["area"]["when"] == when).count() > 10, "{name}: {when}");
        }
    }
    // As the other commands read it.
    shown(&[path.to_str().unwrap()]);
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut terminal = Terminal::start(&["--interval", "0.1"]);
        terminal.until("allocs/s*");
        if signal == Signal::INT {
            // The terminal is not this test's, so that ^C sends no signal.
            terminal.key("\x1a");
        }
        kill_process(Pid::from_child(&terminal.child), signal).unwrap();
        terminal.ends();
    }
}

#[test]
fn a_table_and_a_dump_are_shown_and_a_time_that_none_has_is_an_error() {
    let dir = TempDir::new().unwrap();
    let dump = dir.path().join("dump.jsonl");
    let text = r#"{"vmlab":{"version":1,"dump":"drgn 1","kernel":"6.12"}}
{"area":{"when":"end","start":"0x20000","end":"0x22000","bytes":8192,"text":"f+0x1/0x2 vmalloc"}}
"#;
    std::fs::write(&dump, text).unwrap();
    for (path, busy) in
        [(dump.clone(), "8 KiB, 1 area"), (shipped("boot-smp1.vmallocinfo"), "9.4 MiB, 74 areas")]
    {
        let screen = stdout_of(&vmlab().args(["top", "--once"]).arg(path).assert().success());
        assert!(screen.contains("a table without events") && screen.contains(busy), "{screen}");
    }
    let held = shipped("held-out.jsonl.zst");
    for (path, wanted) in [(dump, "leave --at out"), (held, "--at 3 is before its first event, at 51939.")] {
        let assert = vmlab().args(["top", "--once", "--at", "3"]).arg(path).assert().failure().code(1);
        assert!(stderr_of(&assert).contains(wanted), "{}", stderr_of(&assert));
    }
}
