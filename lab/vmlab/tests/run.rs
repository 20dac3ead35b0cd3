//! `vmlab run`: its one-line rejections, and its exit status. `cargo xtask ci --only install` tests the reports with
//! the preload itself.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn vmlab(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vmlab")).arg("run").args(args).output().unwrap()
}

/// Returns a library that every program has loaded, so that preloading it has no effect.
fn harmless() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.contains("/libc.so.6"))?;
    Some(Path::new(&line[line.find('/')?..]).to_path_buf())
}

fn fails_with(args: &[&str], status: i32, why: &str) {
    let output = vmlab(args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{args:?}: {stderr}");
    assert!(stderr.starts_with("vmlab: ") && stderr.contains(why), "{args:?}: {stderr}");
    assert_eq!((stderr.lines().count(), output.stdout.len()), (1, 0), "{args:?}: {stderr}");
}

#[test]
fn what_cannot_be_preloaded_is_one_line_before_anything_runs() {
    fails_with(&["--lib", "/nowhere/lib.so", "--", "true"], 125, "there is no /nowhere/lib.so");
    let Some(lib) = harmless() else { return eprintln!("SKIPPED: no libc.so.6 here") };
    let lib = lib.to_str().unwrap();
    fails_with(
        &["--lib", lib, "--", "no-such-program-here"],
        127,
        "there is no program no-such-program-here in PATH",
    );
    fails_with(&["--lib", lib, "--", "/nowhere/program"], 127, "cannot read /nowhere/program");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("program");
    let name = path.to_str().unwrap();
    std::fs::write(&path, "text").unwrap();
    fails_with(&["--lib", lib, "--", name], 126, "is no program of 64 bits");
    // The head of a program without a dynamic linker.
    let mut head = b"\x7fELF\x02\x01".to_vec();
    head.resize(120, 0);
    (head[32], head[54], head[56], head[64]) = (64, 56, 1, 1);
    std::fs::write(&path, &head).unwrap();
    fails_with(&["--lib", lib, "--", name], 126, "is linked statically");
    let script = dir.path().join("script");
    std::fs::write(&script, format!("#!{name} -x\n")).unwrap();
    fails_with(&["--lib", lib, "--", script.to_str().unwrap()], 126, "is linked statically");
    head[64] = 3;
    std::fs::write(&path, &head).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o4755)).unwrap();
    fails_with(&["--lib", lib, "--", name], 126, "set-user-ID");
    let colon = dir.path().join("a:b.so");
    std::fs::write(&colon, "").unwrap();
    fails_with(&["--lib", colon.to_str().unwrap(), "--", "true"], 125, "no name with a colon");
}

#[test]
fn the_status_and_the_output_are_the_programs() {
    let Some(lib) = harmless() else { return eprintln!("SKIPPED: no libc.so.6 here") };
    let lib = lib.to_str().unwrap();
    for (script, code) in [("echo out; exit 0", 0), ("echo out; exit 37", 37), ("echo out; kill -9 $$", 137)]
    {
        let output = vmlab(&["--lib", lib, "--conf", "stats:true", "--", "sh", "-c", script]);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert_eq!(output.stdout, b"out\n");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(
            stderr.starts_with("vmlab: no process reported anything") && stderr.lines().count() == 1,
            "{stderr}"
        );
    }
    let output = vmlab(&["--lib", lib, "--conf", "a:b", "--", "sh", "-c", "echo $VMALLOC_CONF $LD_PRELOAD"]);
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.starts_with("a:b ") && stdout.contains("libc.so.6"), "{stdout}");
}
