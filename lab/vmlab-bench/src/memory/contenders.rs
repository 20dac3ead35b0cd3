//! The measured allocators, and the search for their libraries.

use super::child::IDENTIFY;
use super::task::{How, Scope, Spec, Touch, Ways, Work};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// An allocator at one setting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Contender {
    /// The name, with the setting if it is not the default.
    pub name: String,
    /// The name without the setting: that of a line in a chart.
    pub family: &'static str,
    pub how: How,
    pub library: Option<PathBuf>,
    pub env: Vec<(&'static str, String)>,
    pub version: String,
    pub is_default: bool,
}

/// Name of ours, called directly and as a global allocator.
pub const OURS: &str = "ours";
pub const KV: &str = "ours-kv";
pub const MMAP: &str = "mmap";
pub const GLIBC: &str = "glibc";

/// Glibc with the two tunables that make it cache large memory.
pub const TUNED: &str = "glibc trim-8G";

/// Ours with a guard after each area.
pub const GUARDS: &str = "ours-guards";

/// Cache budgets of ours, in MiB.
pub const BUDGETS_MIB: [usize; 8] = [0, 2, 8, 16, 32, 64, 128, 256];

impl Contender {
    /// Returns true if it is ours, at any setting.
    pub fn is_ours(&self) -> bool {
        [OURS, KV, GUARDS].contains(&self.family)
    }

    /// Returns true if it runs a workload.
    pub fn runs(&self, spec: &Spec) -> bool {
        if self.family == GUARDS {
            // Compared with ours on areas that are reused.
            let reuses = matches!(spec.work, Work::Pair { .. }) && spec.touch == Touch::Byte;
            return reuses || spec.scope == Scope::Guarded;
        }
        match spec.scope {
            Scope::Defaults => self.is_default && self.family != MMAP,
            Scope::WithMmap => self.is_default,
            Scope::WithTuned => (self.is_default && self.family != MMAP) || self.name == TUNED,
            Scope::WithKnobs => self.family != MMAP,
            Scope::OursAndMmap => self.is_default && (self.is_ours() || self.family == MMAP),
            Scope::OursAndGlibc => self.is_default && (self.is_ours() || self.family == GLIBC),
            Scope::Guarded => false,
            Scope::Baseline => self.is_default && self.family == GLIBC,
        }
    }

    /// Returns the child that runs a task with it. The settings of this process are not inherited.
    pub fn command(&self, text: &str) -> Result<Command> {
        let program = std::env::current_exe().context("this program's own file is not known")?;
        let mut command = Command::new(program);
        command.args(["bench", "memory-child", text]);
        for (name, _) in std::env::vars_os() {
            let variable = name.to_string_lossy();
            let prefixes = ["LD_", "MALLOC_", "GLIBC_", "MIMALLOC_", "TCMALLOC_", "TBB_", "JE_"];
            if prefixes.iter().any(|prefix| variable.starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        if let Some(library) = &self.library {
            command.env("LD_PRELOAD", library);
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command)
    }
}

/// A peer that may be installed as a library.
struct PeerLibrary {
    family: &'static str,
    files: &'static [&'static str],
    /// The variables that enable transparent huge pages.
    huge: &'static [(&'static str, &'static str)],
    /// The name of each setting, and its variables.
    knobs: &'static [(&'static str, &'static [(&'static str, &'static str)])],
}

/// Glibc, which is always available.
const LIBC: PeerLibrary = PeerLibrary {
    family: GLIBC,
    files: &[],
    huge: &[("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")],
    knobs: &[
        ("mmap-64K", &[("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=65536")]),
        ("trim-32M", &[("GLIBC_TUNABLES", "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=33554432")]),
        ("trim-8G", &[("GLIBC_TUNABLES", "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=8589934592")]),
    ],
};

/// One variable under the names of several versions of mimalloc.
const MIMALLOC_HUGE: &[(&str, &str)] =
    &[("MIMALLOC_ALLOW_LARGE_OS_PAGES", "1"), ("MIMALLOC_LARGE_OS_PAGES", "1"), ("MIMALLOC_ALLOW_THP", "1")];

/// Debian's packages, and those that `cargo xtask peers` builds.
const LIBRARIES: [PeerLibrary; 7] = [
    PeerLibrary {
        family: "jemalloc",
        files: &["libjemalloc.so.2", "libjemalloc.so"],
        huge: &[("MALLOC_CONF", "thp:always")],
        knobs: &[
            ("decay-0", &[("MALLOC_CONF", "dirty_decay_ms:0")]),
            ("decay-100", &[("MALLOC_CONF", "dirty_decay_ms:100")]),
            ("decay-1000", &[("MALLOC_CONF", "dirty_decay_ms:1000")]),
            ("decay-off", &[("MALLOC_CONF", "dirty_decay_ms:-1")]),
        ],
    },
    PeerLibrary {
        family: "mimalloc",
        files: &["libmimalloc.so.2", "libmimalloc.so.2.0", "libmimalloc.so"],
        huge: MIMALLOC_HUGE,
        knobs: &[
            ("purge-0", &[("MIMALLOC_PURGE_DELAY", "0"), ("MIMALLOC_DECOMMIT_DELAY", "0")]),
            ("purge-10", &[("MIMALLOC_PURGE_DELAY", "10"), ("MIMALLOC_DECOMMIT_DELAY", "10")]),
            ("purge-1000", &[("MIMALLOC_PURGE_DELAY", "1000"), ("MIMALLOC_DECOMMIT_DELAY", "1000")]),
        ],
    },
    PeerLibrary {
        family: "tcmalloc",
        files: &["libtcmalloc_minimal.so.4", "libtcmalloc.so.4", "libtcmalloc_minimal.so"],
        huge: &[],
        knobs: &[("release-10", &[("TCMALLOC_RELEASE_RATE", "10")])],
    },
    PeerLibrary {
        family: "tbbmalloc",
        files: &["libtbbmalloc_proxy.so.2", "libtbbmalloc_proxy.so"],
        huge: &[("TBB_MALLOC_USE_HUGE_PAGES", "1")],
        knobs: &[],
    },
    PeerLibrary { family: "snmalloc", files: &["libpeer_snmalloc.so"], huge: &[], knobs: &[] },
    PeerLibrary { family: "rpmalloc", files: &["libpeer_rpmalloc.so"], huge: &[], knobs: &[] },
    PeerLibrary {
        family: "mimalloc3",
        files: &["libpeer_mimalloc3.so"],
        huge: MIMALLOC_HUGE,
        knobs: &[
            ("purge-0", &[("MIMALLOC_PURGE_DELAY", "0")]),
            ("purge-10", &[("MIMALLOC_PURGE_DELAY", "10")]),
        ],
    },
];

/// Returns the folders of libraries, and that of `cargo xtask peers`.
fn folders() -> Vec<PathBuf> {
    let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
    let mut folders = vec![
        Path::new("target/peers").to_path_buf(),
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/peers"),
    ];
    for root in ["/usr/local/lib", "/usr/lib", "/lib"] {
        folders.push(Path::new(root).join(&triple));
        folders.push(Path::new(root).to_path_buf());
    }
    folders.push(Path::new("/usr/lib64").to_path_buf());
    folders
}

fn find(files: &[&str]) -> Option<PathBuf> {
    let folders = folders();
    let all = files.iter().flat_map(|file| folders.iter().map(move |folder| folder.join(file)));
    all.filter(|path| path.is_file()).find_map(|path| path.canonicalize().ok())
}

/// A peer that the user named.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Named {
    /// The name.
    pub name: String,
    /// The library, if it is not one that is looked for.
    pub path: Option<PathBuf>,
}

impl std::str::FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, path) = match text.split_once('=') {
            Some((name, path)) => (name, Some(PathBuf::from(path))),
            None => (text, None),
        };
        if name.is_empty() || path.as_ref().is_some_and(|path| path.as_os_str().is_empty()) {
            return Err("it is NAME or NAME=PATH".to_string());
        }
        Ok(Self { name: name.to_string(), path })
    }
}

/// The contenders to measure.
pub(super) struct Wanted<'a> {
    /// If not empty, the only peers.
    pub(super) peers: &'a [Named],
    /// True to enable transparent huge pages.
    pub(super) huge: bool,
    /// True to measure only the default setting of peers, and few budgets.
    pub(super) quick: bool,
}

/// Returns all contenders, and the names of peers that are not installed.
///
/// # Errors
/// If a named peer is not found, or an installed one does not run.
pub(super) fn all(wanted: &Wanted<'_>) -> Result<(Vec<Contender>, Vec<&'static str>)> {
    let mut all = ours(wanted.quick);
    let mut missing = Vec::new();
    let families = LIBRARIES.iter().map(|peer| peer.family).chain([GLIBC, MMAP]);
    let families: Vec<_> = families.collect();
    for Named { name, path } in wanted.peers {
        if !families.contains(&name.as_str()) && path.is_none() {
            bail!(
                "no peer is called {name}: NAME=PATH names a library, else it is one of {}",
                families.join(", ")
            );
        }
    }
    let is_wanted =
        |family: &str| wanted.peers.is_empty() || wanted.peers.iter().any(|named| named.name == family);
    if is_wanted(MMAP) {
        all.push(plain(MMAP, How::Mmap));
    }
    if is_wanted(GLIBC) {
        add(&mut all, &LIBC, None, wanted)?;
    }
    for peer in &LIBRARIES {
        let named = wanted.peers.iter().find(|named| named.name == peer.family);
        if !is_wanted(peer.family) || named.is_some_and(|named| named.path.is_some()) {
            continue;
        }
        match find(peer.files) {
            Some(library) => add(&mut all, peer, Some(library), wanted)?,
            None if named.is_some() => {
                bail!("{} is not installed here: {}=PATH names a library", peer.family, peer.family)
            }
            None => missing.push(peer.family),
        }
    }
    for Named { name, path } in wanted.peers {
        let Some(path) = path else { continue };
        let library = path.canonicalize().with_context(|| format!("no library {}", path.display()))?;
        let peer = LIBRARIES.iter().find(|peer| peer.family == name);
        // Contenders live as long as the program, so an unknown name may be leaked.
        let unknown = || PeerLibrary {
            family: Box::leak(name.clone().into_boxed_str()),
            files: &[],
            huge: &[],
            knobs: &[],
        };
        match peer {
            Some(peer) => add(&mut all, peer, Some(library), wanted)?,
            None => add(&mut all, &unknown(), Some(library), wanted)?,
        }
    }
    Ok((all, missing))
}

impl Contender {
    /// Returns the line of a chart that has this point: settings other than a budget have their own.
    pub fn line(&self) -> &str {
        let small = matches!(self.how, How::Vmalloc { ways: Ways::SmallPages, .. });
        if small { "ours, small pages" } else { self.family }
    }
}

fn plain(family: &'static str, how: How) -> Contender {
    let version = format!("vmlab {}", env!("CARGO_PKG_VERSION"));
    let version = if family == MMAP { String::new() } else { version };
    Contender {
        name: family.to_string(),
        family,
        how,
        library: None,
        env: Vec::new(),
        version,
        is_default: true,
    }
}

pub fn ours(quick: bool) -> Vec<Contender> {
    let default = vmalloc::Options::default().cache_bytes_max;
    let of = |cache_bytes_max, ways| How::Vmalloc { cache_bytes_max, ways };
    let mut all = vec![
        plain(OURS, of(None, Ways::Default)),
        plain(KV, How::LargeAlloc),
        plain(GUARDS, of(None, Ways::Guards)),
    ];
    let mut point = |name: String, how| {
        all.push(Contender { name, is_default: false, ..plain(OURS, how) });
    };
    for mib in BUDGETS_MIB {
        let budget = mib << 20;
        if budget != default && (!quick || mib == 32) {
            point(format!("{OURS} {mib}M"), of(Some(budget), Ways::Default));
        }
        if [32, 128].contains(&mib) && !quick {
            point(format!("{OURS} {mib}M small pages"), of(Some(budget), Ways::SmallPages));
        }
    }
    all
}

/// Adds a peer and its settings.
fn add(
    all: &mut Vec<Contender>,
    peer: &PeerLibrary,
    library: Option<PathBuf>,
    wanted: &Wanted<'_>,
) -> Result<()> {
    let set = |pairs: &[(&'static str, &str)]| -> Vec<(&'static str, String)> {
        pairs.iter().map(|&(name, value)| (name, value.to_string())).collect()
    };
    let huge = if wanted.huge { peer.huge } else { &[] };
    let mut default = Contender { library, env: set(huge), ..plain(peer.family, How::Malloc) };
    default.version = version(&default)?;
    let knobs = if wanted.quick { &[] } else { peer.knobs };
    let others = knobs.iter().map(|(setting, pairs)| {
        let mut env = set(huge);
        for (name, value) in set(pairs) {
            match env.iter_mut().find(|(key, _)| *key == name) {
                // One variable holds all settings: glibc separates by colons, jemalloc by commas.
                Some((_, all)) => {
                    *all = format!("{all}{}{value}", if name == "MALLOC_CONF" { ',' } else { ':' });
                }
                None => env.push((name, value)),
            }
        }
        Contender { name: format!("{} {setting}", peer.family), env, is_default: false, ..default.clone() }
    });
    let others: Vec<_> = others.collect();
    all.push(default);
    all.extend(others);
    Ok(())
}

/// Runs a child that reports its allocator, and fails if it is not the expected one.
fn version(contender: &Contender) -> Result<String> {
    let output =
        contender.command(IDENTIFY)?.output().with_context(|| format!("cannot run {}", contender.name))?;
    let name = &contender.name;
    if !output.status.success() {
        bail!("{name} does not run ({}){}", output.status, last_line(&output.stderr));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines = text.lines();
    let from = PathBuf::from(lines.next().unwrap_or_default());
    let Some(library) = &contender.library else {
        return Ok(lines.next().unwrap_or_default().to_string());
    };
    if from.canonicalize().ok().as_ref() != Some(library) {
        let why = last_line(&output.stderr);
        bail!("{name}: {} provides no malloc, it comes from {}{why}", library.display(), from.display());
    }
    let reported = lines.next().filter(|reported| !reported.is_empty() && !is_libc(reported));
    Ok(reported
        .map(str::to_string)
        .or_else(|| beside(library))
        .or_else(|| package(library))
        .unwrap_or("?".into()))
}

/// Returns true if a child reported the C library's version, since its allocator has no version function.
fn is_libc(version: &str) -> bool {
    super::sys::libc_version().is_some_and(|libc| libc == version)
}

/// Returns the last line of stderr.
pub(super) fn last_line(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    text.lines().rfind(|line| !line.trim().is_empty()).map_or(String::new(), |line| format!(": {line}"))
}

/// Reads the file that `cargo xtask peers` wrote beside a library.
fn beside(library: &Path) -> Option<String> {
    let text = std::fs::read_to_string(library.with_extension("version")).ok()?;
    Some(text.trim().to_string())
}

/// Returns the version of the package that owns a file.
fn package(library: &Path) -> Option<String> {
    let ask = |args: &[&str]| {
        let output = Command::new("dpkg-query").args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let owner = |path: &Path| ask(&["-S", path.to_str()?]);
    let owner = owner(library).or_else(|| {
        // Packages list files by their install path, which may differ from the real path.
        owner(&Path::new("/").join(library.strip_prefix("/usr").ok()?))
    })?;
    let (name, _) = owner.split_once(": ")?;
    let version = ask(&["-W", "-f", "${Version}", name])?;
    Some(version.trim().to_string())
}
