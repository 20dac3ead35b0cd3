//! Builds the core as an object, and a kernel with it or without.

use super::cut::Source;
use super::lists;
use crate::files::write_changed;
use crate::sh::{Cmd, Show};
use anyhow::{Context, Result, bail};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Debian's package of the source, which installs this.
const TARBALL: &str = "/usr/src/linux-source-6.12.tar.xz";
const SOURCE: &str = "linux-source-6.12";
/// The target of a program without a system.
pub(super) const TARGET: &str = "x86_64-unknown-none";
/// Compiled for the kernel: its code model, no tables that a jump reads, calls without a table of addresses.
const FLAGS: &str =
    "-Crelocation-model=static -Ccode-model=kernel -Cjump-tables=no -Cforce-frame-pointers=yes";
/// More flags, for a kernel that is linked. The compiler calls these unstable, and so `core` is compiled with them.
const KERNEL_FLAGS: &str = "-Zplt=yes -Zdirect-access-external-data=yes";
/// And for a kernel in use. A panic is an invalid instruction, which the kernel reports with its function: the texts and
/// places of all panics are 8 KB. The functions of usual calls are inlined by their attributes, and of the others those
/// alone that are short: 18 KB. Functions and loops begin anywhere, and few loops are unrolled: 7 KB. Pairs take fewer
/// instructions, too, since what fills a gap before a loop is executed.
const USED_FLAGS: &str = "-Zunstable-options -Cpanic=immediate-abort -Cllvm-args=-inline-threshold=50 \
                          -Cllvm-args=-inlinehint-threshold=200 -Cllvm-args=-unroll-threshold=100 \
                          -Cllvm-args=-align-all-functions=1 -Cllvm-args=-align-loops=1";
/// And for a kernel with KASAN: each access of the core calls its check.
const KASAN_FLAGS: &str = "-Zsanitizer=kernel-address -Cllvm-args=-asan-mapping-offset=0xdffffc0000000000 \
                           -Cllvm-args=-asan-instrumentation-with-call-threshold=0 -Cllvm-args=-asan-globals=0 \
                           -Cllvm-args=-asan-stack=0";
/// The files of ours that go to `mm`, besides the object.
const GLUE: [&str; 10] = [
    "va_linux.h",
    "va_record.h",
    "va_glue.h",
    "va_tail.h",
    "va_percpu.h",
    "va_percpu_areas.h",
    "va_percpu_both.h",
    "va_os.c",
    "va_record.c",
    "va_bench.c",
];
/// Added to `mm/Makefile` of a kernel that records the calls of the core.
const RECORD: &str = "obj-y += va_record.o\nCFLAGS_vmalloc.o += -DVA_RECORD\nCFLAGS_va_os.o += -DVA_RECORD\n\
                      CFLAGS_va_record.o += -DVA_RECORD\n";

/// The options of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Config {
    /// Those of production.
    Plain,
    /// With KASAN and lockdep.
    Debug,
    /// With probes of functions, namespaces, networks and BPF.
    Trace,
    /// With types for a debugger, and the bytes of each call site.
    Dump,
    /// Those of production, and every call of the core is recorded.
    Record,
}

/// The code that decides per-CPU offsets in a kernel with the core.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Percpu {
    /// Linux's own
    Linux,
    /// The core
    Core,
    /// Linux's own, and the core on a copy: every result and hint is compared
    Both,
}

/// A kernel: with the core, or as it comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Kind {
    pub(super) ours: bool,
    pub(super) config: Config,
    pub(super) percpu: Percpu,
}

impl Kind {
    /// A kernel with the core in all its parts, or with none.
    pub(super) fn new(ours: bool, config: Config) -> Self {
        Self { ours, config, percpu: Percpu::Core }
    }

    pub(super) fn name(self) -> String {
        format!("{}{}", if self.ours { "ours" } else { "stock" }, self.suffix())
    }

    /// The end of the names of what is built with these options.
    fn suffix(self) -> &'static str {
        match self.config {
            Config::Plain => "",
            Config::Debug => "-debug",
            Config::Trace => "-trace",
            Config::Dump => "-dump",
            Config::Record => "-record",
        }
    }
}

/// A kernel that boots.
pub(super) struct Kernel {
    pub(super) image: PathBuf,
    pub(super) initrd: PathBuf,
    /// The addresses of its functions, as `nm` prints them.
    pub(super) symbols: PathBuf,
}

/// Returns the tools and packages that are missing.
pub(super) fn missing() -> Vec<&'static str> {
    let tools = [
        ("qemu-system-x86_64", "qemu-system-x86"),
        ("flex", "flex"),
        ("bison", "bison"),
        ("bc", "bc"),
        ("cpio", "cpio"),
        ("make", "make"),
        ("xz", "xz-utils"),
    ];
    let mut missing: Vec<_> =
        tools.into_iter().filter(|(tool, _)| !crate::sh::on_path(tool)).map(|(_, package)| package).collect();
    for (file, package) in [
        (TARBALL, "linux-source-6.12"),
        ("/usr/include/gelf.h", "libelf-dev"),
        ("/usr/include/openssl/ssl.h", "libssl-dev"),
        ("/bin/busybox", "busybox-static"),
    ] {
        if !Path::new(file).exists() {
            missing.push(package);
        }
    }
    missing
}

/// The folder of everything that is built: a gigabyte and a half, which git ignores.
pub(super) fn work(root: &Path) -> PathBuf {
    root.join("target/linux")
}

/// The core's object in the kernel's source.
pub(super) fn shipped(root: &Path) -> PathBuf {
    work(root).join(SOURCE).join("mm/va_core.o_shipped")
}

/// Builds the core as one relocatable object for the inside of a kernel.
pub(super) fn object(root: &Path, debug: bool) -> Result<PathBuf> {
    let (features, more) = if debug { ("kasan,validate", KASAN_FLAGS) } else { ("validate", USED_FLAGS) };
    let archive = archive(
        root,
        &format!("{FLAGS} {KERNEL_FLAGS} {more}"),
        features,
        &["-Zbuild-std=core,compiler_builtins"],
    )
    .context(
        "the core does not build for the kernel: `rustup component add rust-src` and `rustup target add \
                  x86_64-unknown-none` add what it needs",
    )?;
    relocatable(root, &archive)
}

/// Builds the core with the compiler of the workspace, and links it to an object that needs nothing but the kernel's
/// functions. For CI: a kernel is not built, and nothing beyond the target is needed.
pub(super) fn links(root: &Path) -> Result<()> {
    let object = relocatable(root, &archive(root, FLAGS, "kasan,validate", &[])?)?;
    let names =
        Cmd::new(root, "nm").args(["--undefined-only", "--format=just-symbols"]).arg(&object).read()?;
    let header = fs::read_to_string(root.join("adopt/linux/glue/va_linux.h"))?;
    let memory = ["memcmp", "memcpy", "memmove", "memset"];
    let unknown: Vec<_> = names
        .lines()
        .filter(|name| !memory.contains(name) && !header.contains(&format!("{name}(")))
        .filter(|name| *name != "_GLOBAL_OFFSET_TABLE_")
        .collect();
    if !unknown.is_empty() {
        bail!(
            "the core in a kernel needs functions that va_linux.h does not declare: {}",
            unknown.join(", ")
        );
    }
    println!("linux: the core links, and needs {} functions of the kernel", names.lines().count());
    Ok(())
}

fn archive(root: &Path, flags: &str, features: &str, more: &[&str]) -> Result<PathBuf> {
    let target = work(root).join(if more.is_empty() { "rs-plain" } else { "rs" });
    Cmd::cargo(&root.join("adopt/linux"))
        .args(["build", "--quiet", "--locked", "--release", "--target", TARGET, "--features", features])
        .args(more)
        .arg("--target-dir")
        .arg(&target)
        .env("RUSTFLAGS", flags)
        .env("RUSTC_BOOTSTRAP", if more.is_empty() { "0" } else { "1" })
        .run(Show::All)?;
    Ok(target.join(TARGET).join("release/libva_linux.a"))
}

/// Links the objects of the archive, but the compiler's own, into one with the kernel's sections.
fn relocatable(root: &Path, archive: &Path) -> Result<PathBuf> {
    let parts = archive.with_extension("parts");
    if parts.exists() {
        fs::remove_dir_all(&parts)?;
    }
    fs::create_dir_all(&parts)?;
    Cmd::new(&parts, "ar").arg("x").arg(archive).run(Show::Failure)?;
    let mut objects = Vec::new();
    for entry in fs::read_dir(&parts)? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("va_linux-")) {
            objects.push(path);
        }
    }
    let object = archive.with_file_name("va_core.o");
    Cmd::new(root, "ld")
        .args(["-r", "-T", "adopt/linux/glue/merge.ld", "-o"])
        .arg(&object)
        .args(&objects)
        .run(Show::Failure)?;
    Ok(object)
}

/// Builds a kernel and its initial files. Repeated, it builds what changed: both kernels have one tree and one folder,
/// so that the second takes seconds.
pub(super) fn kernel(root: &Path, kind: Kind) -> Result<Kernel> {
    fs::create_dir_all(work(root))?;
    let source = tree(root, kind)?;
    let build = folder(root, kind);
    configure(root, &source, &build, kind)?;
    make(&source, &build, &[])?;
    let image = work(root).join(format!("{}.bzImage", kind.name()));
    fs::copy(build.join("arch/x86/boot/bzImage"), &image)?;
    let symbols = work(root).join(format!("{}.map", kind.name()));
    fs::copy(build.join("System.map"), &symbols)?;
    let initrd = initrd(root, &build, kind)?;
    Ok(Kernel { image, initrd, symbols })
}

/// The folder of a kernel's objects. A kernel that records differs in three files alone.
pub(super) fn folder(root: &Path, kind: Kind) -> PathBuf {
    let suffix = if kind.config == Config::Record { "" } else { kind.suffix() };
    work(root).join(format!("build{suffix}"))
}

/// Unpacks the kernel's source, and puts the core in or takes it out.
fn tree(root: &Path, kind: Kind) -> Result<PathBuf> {
    let tree = work(root).join(SOURCE);
    if !tree.join("Makefile").exists() {
        Cmd::new(&work(root), "tar").args(["--extract", "--file", TARBALL]).run(Show::All)?;
    }
    let stock = |name: &str| -> Result<String> {
        let (path, saved) = (tree.join("mm").join(name), tree.join("mm").join(format!("{name}.stock")));
        if !saved.exists() {
            fs::copy(path, &saved)?;
        }
        Ok(fs::read_to_string(saved)?)
    };
    let (mut text, mut percpu, mut makefile) = (stock("vmalloc.c")?, stock("percpu.c")?, stock("Makefile")?);
    makefile.push_str("\nobj-y += va_bench.o\n");
    if kind.ours {
        let said = |name: &str, (text, lines): (String, usize)| {
            println!("linux: {lines} lines of mm/{name} are replaced");
            text
        };
        text = said("vmalloc.c", cut(&text)?);
        percpu = said("percpu.c", cut_percpu(&percpu, kind.percpu)?);
        makefile.push_str("obj-y += va_os.o va_core.o\n");
        if kind.config == Config::Record {
            makefile.push_str(RECORD);
        }
        write_changed(&shipped(root), &fs::read(object(root, kind.config == Config::Debug)?)?)?;
    }
    for file in GLUE {
        write_changed(&tree.join("mm").join(file), &fs::read(root.join("adopt/linux/glue").join(file))?)?;
    }
    write_changed(&tree.join("mm/vmalloc.c"), text.as_bytes())?;
    write_changed(&tree.join("mm/percpu.c"), percpu.as_bytes())?;
    write_changed(&tree.join("mm/Makefile"), makefile.as_bytes())?;
    Ok(tree)
}

/// Returns `mm/vmalloc.c` with the core in place of its own functions, and the lines that went.
fn cut(text: &str) -> Result<(String, usize)> {
    let names: Vec<_> = lists::FUNCTIONS.iter().chain(lists::VARIABLES).copied().collect();
    let (mut text, lines) = Source::read(text)?.without(&names, lists::INCLUDES, lists::EDITS)?;
    text.push_str("\n#include \"va_tail.h\"\n");
    Ok((text, lines))
}

/// Does the same with `mm/percpu.c`.
fn cut_percpu(text: &str, percpu: Percpu) -> Result<(String, usize)> {
    let source = Source::read(text)?;
    match percpu {
        Percpu::Linux => source.without(&[], &[], &[]),
        Percpu::Core => source.without(lists::PERCPU, lists::PERCPU_INCLUDES, &[]),
        Percpu::Both => source.without(&[], lists::BOTH_INCLUDES, lists::BOTH_EDITS),
    }
}

fn configure(root: &Path, source: &Path, build: &Path, kind: Kind) -> Result<()> {
    let mut parts = vec!["kernel.config"];
    match kind.config {
        Config::Plain | Config::Record => {}
        Config::Debug => parts.push("debug.config"),
        Config::Trace => parts.push("trace.config"),
        Config::Dump => parts.push("dump.config"),
    }
    let parts: Vec<_> = parts.into_iter().map(|part| root.join("adopt/linux").join(part)).collect();
    let mut wanted = String::new();
    for part in &parts {
        wanted.push_str(&fs::read_to_string(part)?);
    }
    let stamp = build.join("va.config");
    if fs::read_to_string(&stamp).is_ok_and(|old| old == wanted) {
        return Ok(());
    }
    fs::create_dir_all(build)?;
    make(source, build, &["tinyconfig"])?;
    Cmd::new(build, source.join("scripts/kconfig/merge_config.sh"))
        .args(["-O", ".", "-m", ".config"])
        .args(&parts)
        .run(Show::Failure)?;
    make(source, build, &["olddefconfig"])?;
    Ok(fs::write(stamp, wanted)?)
}

fn make(source: &Path, build: &Path, goals: &[&str]) -> Result<()> {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    Cmd::new(source, "make")
        .arg(format!("O={}", build.display()))
        .arg(format!("-j{jobs}"))
        .arg("--silent")
        .args(goals)
        .run(Show::Failure)
}

/// Packs the first program, busybox and the test module.
fn initrd(root: &Path, build: &Path, kind: Kind) -> Result<PathBuf> {
    let files = work(root).join(format!("{}.root", kind.name()));
    base(root, &files)?;
    fs::copy(build.join("lib/test_vmalloc.ko"), files.join("lib/test_vmalloc.ko"))?;
    if matches!(kind.config, Config::Trace | Config::Dump) {
        load_programs(root, &files.join("bin"))?;
    }
    if kind.config == Config::Trace {
        recorder(root, &files.join("bin"))?;
    }
    pack(&files, &work(root).join(format!("{}.initrd.gz", kind.name())))
}

/// Packs the initial files of a kernel.
pub(super) fn pack(files: &Path, archive: &Path) -> Result<PathBuf> {
    let script = format!("find . | cpio -o -H newc --quiet | gzip -1 > {}", archive.display());
    Cmd::new(files, "sh").args(["-c", &script]).run(Show::Failure)?;
    Ok(archive.to_path_buf())
}

/// Returns the laboratory as a program that needs no library.
pub(super) fn vmlab(root: &Path) -> PathBuf {
    root.join("target").join(MUSL).join("release/vmlab")
}

/// The target of a program that needs no library.
const MUSL: &str = "x86_64-unknown-linux-musl";

/// Builds the program that records.
fn recorder(root: &Path, bin: &Path) -> Result<()> {
    Cmd::cargo(root)
        .args(["build", "--quiet", "--locked", "--release", "--package", "vmlab", "--target", MUSL])
        .run(Show::All)
        .with_context(|| format!("`rustup target add {MUSL}` adds what vmlab needs"))?;
    Cmd::new(root, "strip").arg("-o").arg(bin.join("vmlab")).arg(vmlab(root)).run(Show::Failure)
}

/// Packs the first program, the load and busybox, for a kernel that was not built here.
pub(super) fn plain_initrd(root: &Path) -> Result<PathBuf> {
    let files = work(root).join("plain.root");
    base(root, &files)?;
    load_programs(root, &files.join("bin"))?;
    pack(&files, &work(root).join("plain.initrd.gz"))
}

/// Makes the folders of initial files, with the first program and busybox.
fn base(root: &Path, files: &Path) -> Result<()> {
    for dir in ["bin", "lib", "proc", "sys", "dev", "tmp"] {
        fs::create_dir_all(files.join(dir))?;
    }
    fs::copy("/bin/busybox", files.join("bin/busybox"))?;
    fs::copy(root.join("adopt/linux/init.sh"), files.join("init"))?;
    Ok(fs::set_permissions(files.join("init"), fs::Permissions::from_mode(0o755))?)
}

/// Builds the programs of a load.
fn load_programs(root: &Path, bin: &Path) -> Result<()> {
    Cmd::new(root, "cc")
        .args(["-static", "-O2", "-Wall", "adopt/linux/filters.c", "-o"])
        .arg(bin.join("filters"))
        .run(Show::Failure)?;
    fs::copy(root.join("adopt/linux/load.sh"), bin.join("load.sh"))?;
    Ok(fs::set_permissions(bin.join("load.sh"), fs::Permissions::from_mode(0o755))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text with every function that goes, the one after which the glue is included, and two callers.
    fn percpu() -> String {
        let functions =
            lists::PERCPU.iter().map(|name| format!("static int {name}(int x)\n{{\n\treturn x;\n}}\n"));
        let callers = "static void pcpu_alloc_first_chunk(void)\n{\n\tpcpu_init_md_blocks(1);\n\
                       \tpcpu_block_update_hint_alloc(2);\n}\n\
                       void caller(void)\n{\n\tpcpu_alloc_area(pcpu_find_block_fit(3));\n\tpcpu_free_area(4);\n}\n";
        format!(
            "#include <x.h>\nstatic inline void pcpu_update_empty_pages(int x)\n{{\n}}\n{}{callers}",
            functions.collect::<String>()
        )
    }

    #[test]
    fn the_core_takes_the_place_of_every_function_of_percpu_c_and_their_callers_stay() {
        let text = percpu();
        assert_eq!(cut_percpu(&text, Percpu::Linux).unwrap(), (text.clone(), 0));
        let (cut, lines) = cut_percpu(&text, Percpu::Core).unwrap();
        assert_eq!(lines, 4 * lists::PERCPU.len());
        assert!(lists::PERCPU.iter().all(|name| !cut.contains(&format!("{name}(int x)"))), "{cut}");
        let (include, caller) =
            (cut.find("#include \"va_percpu_areas.h\""), cut.find("pcpu_alloc_first_chunk"));
        assert!(cut.find("pcpu_update_empty_pages") < include && include < caller, "{cut}");
        assert!(cut.contains("pcpu_alloc_area(pcpu_find_block_fit(3))"), "{cut}");
        let moved = text.replace("pcpu_find_zero_area", "pcpu_find_area");
        let error = cut_percpu(&moved, Percpu::Core).unwrap_err().to_string();
        assert!(error.contains("nothing defines pcpu_find_zero_area"), "{error}");
    }

    #[test]
    fn to_compare_linux_s_functions_get_other_names_and_what_calls_them_is_compared() {
        let (both, lines) = cut_percpu(&percpu(), Percpu::Both).unwrap();
        assert_eq!(lines, 0);
        for name in ["find_block_fit", "alloc_area", "free_area", "init_md_blocks"] {
            assert!(both.contains(&format!("linux_{name}(int x)")), "{name} in {both}");
        }
        assert!(both.contains("pcpu_alloc_area(pcpu_find_block_fit(3));\n\tpcpu_free_area(4)"), "{both}");
        assert!(both.contains("pcpu_init_md_blocks(1);\n\tva_percpu_hide(2)"), "{both}");
        let include = both.find("#include \"va_percpu_both.h\"");
        assert!(both.find("linux_free_area") < include && include < both.find("va_percpu_hide"), "{both}");
    }
}
