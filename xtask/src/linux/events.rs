//! Traces of kernels that others built, each replayed under the policies of each version of Linux.
//!
//! # Theory
//! A kernel's image, such as `/boot/vmlinuz-*` of a package of Debian, boots in QEMU with four CPUs. Its command line
//! has the events of areas on, so that the trace begins with the first area of the boot, and nothing is to be guessed.
//! Linux before 6.2 has no such events: there probes of the same functions write the same lines, and a table has the
//! areas that stand before. The policy of a version is right if it returns every address of such a trace, and the trace
//! tells versions apart if another policy does not.

use super::{Kernel, MEMORY, Run, build, console, page, speed};
use crate::sh::{Cmd, Show};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Images of kernels (bzImage), each with its number of CPUs, if that is not 4
    #[arg(required = true, value_name = "IMAGE[:CPUS]")]
    images: Vec<String>,
    /// Rounds of the load
    #[arg(long, default_value_t = 12)]
    load: u32,
    /// Write the traces to data/, and results/policies.md
    #[arg(long)]
    out: bool,
}

/// A trace of a kernel.
struct Traced {
    /// Its release, such as `6.18.15+deb13-cloud-amd64`.
    release: String,
    /// The name of the trace, such as `debian-6.18`.
    name: String,
    trace: PathBuf,
    /// The table before the first event, where the events do not begin with the boot.
    before: Option<PathBuf>,
}

/// Policies of `vmlab replay`, and the releases whose they are.
const POLICIES: [(&str, &str); 4] = [
    ("onelock52", "Linux 5.2 to 6.8"),
    ("linux69", "Linux 6.9 to 6.15"),
    ("linux616", "Linux since 6.16"),
    ("standard", "ours"),
];

pub(super) fn main(root: &Path, args: &Args) -> Result<()> {
    let initrd = build::plain_initrd(root)?;
    let vmlab = super::dump::vmlab(root)?;
    let mut text = format!("{HEAD}\n\n| kernel | CPUs | allocations |");
    for (policy, releases) in POLICIES {
        write!(text, " {policy}: {releases} |")?;
    }
    text.push_str("\n|---|---:|---:|---:|---:|---:|---:|\n");
    for image in &args.images {
        let (image, cpus) = image_and_cpus(image);
        let traced = traced(root, image, cpus, &initrd, args.load)?;
        let (mut allocs, mut cells) = (0, String::new());
        for (policy, _) in POLICIES {
            let [all, equal, unknowable] = compared(root, &vmlab, &traced, policy)?;
            allocs = all;
            write!(cells, " {equal} ({unknowable}) |")?;
        }
        writeln!(text, "| {} | {cpus} | {allocs} |{cells}", traced.release)?;
        if args.out {
            keep(root, &traced)?;
        }
    }
    println!("{text}");
    if args.out {
        let command = format!("events --load {} IMAGE...", args.load);
        fs::write(
            root.join("results/policies.md"),
            page(root, "Policies and the kernels whose they are", &command, &text),
        )?;
    }
    Ok(())
}

/// The text above the table.
const HEAD: &str = "Each kernel is an image of a package of Debian, booted in QEMU. The load of `adopt/linux/load.sh` has forks, namespaces\n\
of networks and mounts, and filters. A column has the addresses that a policy shares with the kernel (`vmlab replay\n\
--diff`, which corrects the policy after each difference). In parentheses are those of the others that no trace decides,\n\
such as the order of two CPUs. Linux 6.1 has no events of areas: its trace is by probes of the same functions, and\n\
begins after the boot. The traces are in `data/`.";

/// Returns the image and the CPUs of an argument.
fn image_and_cpus(text: &str) -> (&Path, u32) {
    let found = text.rsplit_once(':').and_then(|(image, cpus)| Some((image, cpus.parse().ok()?)));
    let (image, cpus) = found.unwrap_or((text, 4));
    (Path::new(image), cpus)
}

/// Boots an image, and returns what it recorded.
fn traced(root: &Path, image: &Path, cpus: u32, initrd: &Path, load: u32) -> Result<Traced> {
    let folder = build::work(root).join("events");
    fs::create_dir_all(&folder)?;
    let port = folder.join("files.tar");
    let kernel = Kernel { image: image.to_path_buf(), initrd: initrd.to_path_buf(), symbols: PathBuf::new() };
    let run = Run { port: Some(&port), ..Run::of("events", load) };
    let how = format!("{} -m {MEMORY}", speed(cpus, false));
    let name = image.file_name().context("an image has a name")?.to_string_lossy();
    let events = "no_timer_check trace_event=vmalloc:*,percpu:* trace_buf_size=32M";
    let lines = console(root, &name, &kernel, &run, &how, events)?;
    let release = lines.iter().find_map(|line| release(line)).context("the kernel says no release")?;
    let name = format!("debian-{}", short(&release).context("a release has two numbers")?);
    let before = folder.join("vmallocinfo.before");
    if before.exists() {
        fs::remove_file(&before)?;
    }
    Cmd::new(&folder, "tar").args(["--extract", "--file", "files.tar"]).run(Show::Failure)?;
    let named = |from: &str, end: &str| -> Result<PathBuf> {
        let path = folder.join(format!("{name}.{end}"));
        fs::rename(folder.join(from), &path)?;
        Ok(path)
    };
    let trace = named("trace.gz", "ftrace.gz")?;
    named("vmallocinfo", "vmallocinfo")?;
    let before = before.exists().then(|| named("vmallocinfo.before", "before.vmallocinfo")).transpose()?;
    Ok(Traced { release, name, trace, before })
}

/// Reads `begin events on 4 CPUs, 6.18.15+deb13-cloud-amd64`.
fn release(line: &str) -> Option<String> {
    Some(line.strip_prefix("begin ")?.split_once(" CPUs, ")?.1.trim().to_string())
}

/// Returns `6.18` of `6.18.15+deb13-cloud-amd64`.
fn short(release: &str) -> Option<String> {
    let mut numbers = release.split(['.', '-', '+']).map(str::parse::<u32>);
    Some(format!("{}.{}", numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Returns the allocations of a trace, how many of them have the same address under a policy, and how many of the
/// others no trace decides.
fn compared(root: &Path, vmlab: &Path, traced: &Traced, policy: &str) -> Result<[u64; 3]> {
    let mut cmd = Cmd::new(root, vmlab);
    cmd = cmd.args(["replay", "--diff=0", "--json", "--policy", policy, "--kernel", &traced.release]);
    if let Some(before) = &traced.before {
        cmd = cmd.arg("--before").arg(before);
    }
    let text = cmd.arg(&traced.trace).read()?;
    let row: Value = serde_json::from_str(text.lines().next().unwrap_or_default())
        .with_context(|| format!("vmlab replay of {}", traced.name))?;
    let number = |key: &str| row[key].as_u64();
    match (number("allocs"), number("equal"), number("unknowable")) {
        (Some(allocs), Some(equal), Some(unknowable)) if allocs > 0 => Ok([allocs, equal, unknowable]),
        _ => bail!("no allocation in the trace of {}", traced.release),
    }
}

/// Copies a trace and its tables to `data`.
fn keep(root: &Path, traced: &Traced) -> Result<()> {
    let table = traced.trace.with_file_name(format!("{}.vmallocinfo", traced.name));
    for from in [&traced.trace, &table].into_iter().chain(&traced.before) {
        let name = from.file_name().context("a file has a name")?;
        fs::copy(from, root.join("data").join(name))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_read_and_shortened() {
        let said = "begin events on 4 CPUs, 6.18.15+deb13-cloud-amd64";
        assert_eq!(release(said).as_deref(), Some("6.18.15+deb13-cloud-amd64"));
        assert_eq!(release("took none 3"), None);
        assert_eq!(image_and_cpus("a/vmlinuz-6.1:1"), (Path::new("a/vmlinuz-6.1"), 1));
        assert_eq!(image_and_cpus("a:b/vmlinuz"), (Path::new("a:b/vmlinuz"), 4));
        for (release, wanted) in [
            ("6.18.15+deb13-cloud-amd64", Some("6.18")),
            ("7.3-rc1", Some("7.3")),
            ("6.1.0-50-cloud-amd64", Some("6.1")),
            ("x", None),
        ] {
            assert_eq!(short(release).as_deref(), wanted);
        }
    }
}
