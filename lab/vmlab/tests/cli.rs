//! Runs the binary as a user does: on the shipped traces, and on invalid input.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[cfg(feature = "measure")]
#[path = "cli/bench.rs"]
mod bench;
#[cfg(feature = "measure")]
#[path = "cli/bench_memory.rs"]
mod bench_memory;
#[cfg(feature = "measure")]
#[path = "cli/bench_space.rs"]
mod bench_space;
#[path = "cli/calls.rs"]
mod calls;
#[cfg(feature = "measure")]
#[path = "cli/compare.rs"]
mod compare;
#[path = "cli/convert.rs"]
mod convert;
#[path = "cli/diff.rs"]
mod diff;
#[cfg(feature = "measure")]
#[path = "cli/examples.rs"]
mod examples;
#[path = "cli/flame.rs"]
mod flame;
#[path = "cli/forms.rs"]
mod forms;
#[path = "cli/input.rs"]
mod input;
#[path = "cli/latency.rs"]
mod latency;
#[path = "cli/map.rs"]
mod map;
#[path = "cli/oracles.rs"]
mod oracles;
#[path = "cli/percpu.rs"]
mod percpu;
#[path = "cli/python.rs"]
mod python;
#[path = "cli/record.rs"]
mod record;
#[path = "cli/report.rs"]
mod report;
#[path = "cli/selected.rs"]
mod selected;
#[path = "cli/sides.rs"]
mod sides;
#[path = "cli/sites.rs"]
mod sites;
#[path = "cli/space.rs"]
mod space;
#[cfg(feature = "measure")]
#[path = "cli/suite.rs"]
mod suite;
#[path = "cli/top.rs"]
mod top;
#[path = "cli/whatif.rs"]
mod whatif;
#[path = "cli/whole.rs"]
mod whole;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;
use tempfile::TempDir;

const TRACES: [&str; 5] =
    ["boot-smp1", "fork-netns-smp1", "fork-netns-smp4", "tc-flower-smp1", "test_vmalloc-mask127-smp1"];
const INDEXES: [&str; 4] = ["rb-linux", "rb-exact", "btree", "list"];
/// Fields of `--json`, in this order.
const FIELDS: [&str; 15] = [
    "version",
    "trace",
    "index",
    "events",
    "allocs",
    "equal",
    "lower",
    "higher",
    "failed_both",
    "failed_differs",
    "inferred",
    "ns_median",
    "ns_min",
    "holes",
    "largest_hole",
];

/// Reports a check that this machine cannot run. It goes to stderr, past the harness, which hides the output of tests,
/// and to the file that the environment names. `cargo xtask ci` makes a list of that file.
fn not_run(what: &str) {
    let line = format!("NOT RUN: {what}\n");
    let _shown = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os("XTASK_NOT_RUN") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        let _listed = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

fn vmlab() -> Command {
    Command::new(env!("CARGO_BIN_EXE_vmlab"))
}

/// Runs the binary in a folder, into a pipe whose reader closes it at once.
fn unread(dir: &Path, args: &[&str]) -> std::process::Output {
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_vmlab"))
        .args(args)
        .current_dir(dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    child.wait_with_output().unwrap()
}

fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data").join(name)
}

fn text_of(name: &str) -> String {
    let mut text = String::new();
    let file = std::fs::File::open(shipped(&format!("{name}.ftrace.gz"))).unwrap();
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
    text
}

/// The output of one replay of everything, shared by the tests that only read it.
struct All {
    stdout: String,
    stderr: String,
    html: String,
}

fn all() -> &'static All {
    static ALL: OnceLock<All> = OnceLock::new();
    ALL.get_or_init(|| {
        let dir = TempDir::new().unwrap();
        let report = dir.path().join("out.html");
        let output = vmlab()
            .args(["replay", "--json", "--report"])
            .arg(&report)
            .args(TRACES.map(|name| shipped(&format!("{name}.ftrace.gz"))))
            .output()
            .unwrap();
        assert!(output.status.success());
        All {
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
            html: std::fs::read_to_string(report).unwrap(),
        }
    })
}

fn rows(json: &str) -> Vec<Value> {
    json.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap_or_else(|| panic!("{key} of {row}"))
}

/// Returns the results of an index, without the times.
fn columns(row: &Value) -> Vec<u64> {
    FIELDS
        .iter()
        .filter(|field| !["version", "trace", "index", "ns_median", "ns_min"].contains(field))
        .map(|field| number(row, field))
        .collect()
}

/// Returns the row of one trace on one index.
fn row(trace: &str, index: &str) -> Value {
    let found = rows(&all().stdout).into_iter().find(|row| row["trace"] == trace && row["index"] == index);
    found.unwrap_or_else(|| panic!("no {trace} on {index}"))
}

/// Replays a text on `rb-linux`, under the given file name.
fn replayed(dir: &TempDir, name: &str, bytes: &[u8], more: &[&str]) -> assert_cmd::assert::Assert {
    let file = dir.path().join(name);
    std::fs::write(&file, bytes).unwrap();
    vmlab().args(["replay", "--index", "rb-linux", "--json"]).args(more).arg(file).assert()
}

fn stdout_of(assert: &assert_cmd::assert::Assert) -> String {
    String::from_utf8(assert.get_output().stdout.clone()).unwrap()
}

fn stderr_of(assert: &assert_cmd::assert::Assert) -> String {
    String::from_utf8(assert.get_output().stderr.clone()).unwrap()
}

const SMALL: &str = "x-1 [000] ..... 1.0: alloc_vmap_area: va_start: 1048576 size=8192 align=4096 vstart=0x100000 vend=0xffffff failed=0\n\
                     x-1 [000] ..... 1.1: free_vmap_area_noflush: va_start=0x100000 nr_lazy=2 nr_lazy_max=9\n";

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(bytes).unwrap();
    gz.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}
