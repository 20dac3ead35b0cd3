//! The kernel, its huge pages and its limits.

use super::{Fact, Verdict};
use Verdict::{Good, Less, Missing};
use rustix::process::{Resource, getrlimit};
use std::fs;
use std::path::{Path, PathBuf};
use vmlab_base::text::grouped;

/// The oldest kernel that the library supports.
const OLDEST: (u32, u32) = (5, 10);
/// Limit of mappings below which guards without marks, and mappings of frames, run out early: the kernel's default.
const MAPPINGS: u64 = 65_530;

/// The system that is examined; its files are below `root`.
pub(super) struct System {
    root: PathBuf,
    release: String,
    machine: String,
    page_bytes: u64,
    /// `RLIMIT_AS`.
    address_limit: Option<u64>,
}

impl Default for System {
    fn default() -> Self {
        let name = rustix::system::uname();
        Self {
            root: PathBuf::from("/"),
            release: name.release().to_string_lossy().into_owned(),
            machine: name.machine().to_string_lossy().into_owned(),
            page_bytes: rustix::param::page_size() as u64,
            address_limit: getrlimit(Resource::As).current,
        }
    }
}

impl System {
    fn text(&self, path: &str) -> Option<String> {
        Some(fs::read_to_string(self.root.join(path)).ok()?.trim().to_string())
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.root.join(path)) else { return Vec::new() };
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }
}

/// Returns one fact for each feature.
pub(super) fn facts(system: &System) -> Vec<Fact> {
    vec![
        kernel(system),
        cpus(system),
        pages(system),
        huge(system),
        several_sizes(system),
        hugetlb(system),
        overcommit(system),
        mappings(system),
        addresses(system),
        group(system),
    ]
}

/// Parses `6.18` of `6.18.44-fc`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn kernel(system: &System) -> Fact {
    let found = format!("{} {}", system.release, system.machine);
    let (verdict, means) = match version(&system.release) {
        Some(version) if version >= OLDEST => (Good, "Linux 5.10 or later, as the library asks".to_string()),
        Some(_) => {
            (Missing, "the library is made for Linux 5.10 and later, and was not tried on this".to_string())
        }
        None => (Less, "a version that is not understood; what matters is tried below".to_string()),
    };
    Fact::new("system", "kernel", verdict, found, means)
}

fn cpus(system: &System) -> Fact {
    let [possible, online] =
        ["possible", "online"].map(|which| system.text(&format!("sys/devices/system/cpu/{which}")));
    match (possible, online) {
        (Some(possible), Some(online)) => {
            let count = vmlab_trace::record::count_listed(&possible);
            let means = format!("per-CPU data have {} at most", vmlab_base::text::counted(count, "unit"));
            Fact::new("system", "CPUs", Good, format!("possible {possible}, online {online}"), means)
        }
        _ => Fact::new("system", "CPUs", Less, "not reported", "as many as libc says"),
    }
}

fn pages(system: &System) -> Fact {
    let (here, built) = (system.page_bytes, va_base::PAGE_SIZE);
    let found = format!("{} bytes", grouped(here));
    if here == built {
        Fact::new("system", "page", Good, found, "as this program was built")
    } else {
        let means = format!("built for {built}, as vmlab, vmalloc and per-CPU memory always are");
        Fact::new("system", "page", Missing, found, means)
    }
}

/// The folder with the settings of transparent huge pages.
const HUGE: &str = "sys/kernel/mm/transparent_hugepage";

/// Parses the sizes, in KiB, in the names of a folder. Returns them in ascending order, each with its name.
fn sizes(system: &System, dir: &str) -> Vec<(u64, String)> {
    let size = |name: &str| name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok();
    let mut sizes: Vec<_> =
        system.names(dir).into_iter().filter_map(|name| Some((size(&name)?, name))).collect();
    sizes.sort_unstable();
    sizes
}

/// Reports the sizes below that of a huge page (mTHP). Pages that are registered to be moved cannot have these sizes,
/// so the length of the registration matters.
fn several_sizes(system: &System) -> Fact {
    let mode = |size: &str| {
        let text = system.text(&format!("{HUGE}/{size}/enabled"))?;
        Some(text.split(['[', ']']).nth(1)?.to_string())
    };
    let whole_kib = system.number(&format!("{HUGE}/hpage_pmd_size")).map(|bytes| bytes >> 10);
    let all = sizes(system, HUGE);
    let smaller: Vec<_> = all.into_iter().filter(|(kib, _)| Some(*kib) != whole_kib).collect();
    let on = |(kib, name): &(u64, String)| {
        let mode = mode(name).filter(|mode| mode != "never")?;
        Some(format!("{} KiB {mode}", grouped(*kib)))
    };
    let enabled: Vec<String> = smaller.iter().filter_map(on).collect();
    let (found, means) = if smaller.is_empty() {
        ("none".to_string(), "this kernel has one size alone (others from Linux 6.8 on)")
    } else if enabled.is_empty() {
        ("none enabled".to_string(), "a fault brings one page, or a huge one")
    } else {
        let means = "a fault in what is large brings as many; pages are moved as well, since they are registered for that time alone";
        (enabled.join(", "), means)
    };
    Fact::new("memory", "multi-size pages", Good, found, means)
}

fn huge(system: &System) -> Fact {
    let dir = HUGE;
    let chosen = |file: &str| {
        let text = system.text(&format!("{dir}/{file}"))?;
        Some(text.split(['[', ']']).nth(1)?.to_string())
    };
    let bytes = system.number(&format!("{dir}/hpage_pmd_size"));
    let size = bytes.map_or(String::new(), |bytes| format!(", {} KiB", grouped(bytes >> 10)));
    let defrag = chosen("defrag").map_or(String::new(), |defrag| format!(", defrag {defrag}"));
    match chosen("enabled").as_deref() {
        Some("always") => {
            let means =
                "huge behind what is large; HugePages::Never keeps them away from what is touched little";
            Fact::new("memory", "huge pages", Good, format!("always{size}{defrag}"), means)
        }
        Some("madvise") => {
            let means = "huge where the library asks for them, behind large areas";
            Fact::new("memory", "huge pages", Good, format!("madvise{size}{defrag}"), means)
        }
        Some(other) => {
            let means = "none: more faults, and more misses of the TLB; /sys/kernel/mm/transparent_hugepage/enabled allows them";
            Fact::new("memory", "huge pages", Less, format!("{other}{size}"), means)
        }
        None => Fact::new("memory", "huge pages", Less, "none", "this kernel has none, or hides its setting"),
    }
}

fn hugetlb(system: &System) -> Fact {
    let dir = "sys/kernel/mm/hugepages";
    let count = |name: &str| system.number(&format!("{dir}/{name}/nr_hugepages")).unwrap_or(0);
    let show = |(kib, name): &(u64, String)| format!("{} KiB: {}", grouped(*kib), grouped(count(name)));
    let shown: Vec<String> = sizes(system, dir).iter().map(show).collect();
    let found = if shown.is_empty() { "none".to_string() } else { shown.join(", ") };
    Fact::new(
        "memory",
        "hugetlb pages",
        Good,
        found,
        "not used by the library: they cannot be released in parts",
    )
}

fn overcommit(system: &System) -> Fact {
    let fact = |verdict, found: &str, means: &str| Fact::new("memory", "overcommit", verdict, found, means);
    match system.number("proc/sys/vm/overcommit_memory") {
        Some(0) => {
            fact(Good, "0, heuristic", "the arena is reserved at once and charged where it is touched")
        }
        Some(1) => fact(Good, "1, always", "the arena is reserved at once and charged where it is touched"),
        Some(2) => fact(
            Less,
            "2, never",
            "what is below the frontier is charged, touched or not, in steps of 2 MiB or more",
        ),
        _ => fact(Less, "not reported", "taken as heuristic"),
    }
}

fn mappings(system: &System) -> Fact {
    match system.number("proc/sys/vm/max_map_count") {
        Some(count) if count >= MAPPINGS => {
            let means =
                format!("{} for moved areas, {} for mapped frames", grouped(count / 8), grouped(count / 4));
            Fact::new("memory", "vm.max_map_count", Good, grouped(count), means)
        }
        Some(count) => {
            let means = format!(
                "few: {} for moved areas, {} for mapped frames",
                grouped(count / 8),
                grouped(count / 4)
            );
            Fact::new("memory", "vm.max_map_count", Less, grouped(count), means)
        }
        None => Fact::new(
            "memory",
            "vm.max_map_count",
            Less,
            "not reported",
            format!("taken as {}", grouped(MAPPINGS)),
        ),
    }
}

fn addresses(system: &System) -> Fact {
    match system.address_limit {
        None => Fact::new("memory", "RLIMIT_AS", Good, "unlimited", "an arena as large as is asked for"),
        Some(bytes) => {
            let means = format!("an arena of {} at most, half of it", mib(bytes / 2));
            Fact::new("memory", "RLIMIT_AS", Less, mib(bytes), means)
        }
    }
}

fn group(system: &System) -> Fact {
    let fact =
        |verdict, found: String, means: &str| Fact::new("memory", "control group", verdict, found, means);
    let Some(groups) = system.text("proc/self/cgroup") else {
        return fact(Good, "none".to_string(), "memory of the whole machine");
    };
    match group_limit(system, &groups) {
        Some(bytes) => fact(
            Less,
            format!("limit {}", mib(bytes)),
            "charged for live memory and what is kept: Options::cache_bytes_max belongs well below the limit",
        ),
        None => fact(Good, "no limit".to_string(), "memory of the whole machine"),
    }
}

/// Returns the lowest limit of this process's control group and of its ancestors.
fn group_limit(system: &System, groups: &str) -> Option<u64> {
    let limit = |line: &str| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let (base, file) = match controllers {
            "" => ("sys/fs/cgroup", "memory.max"),
            list if list.split(',').any(|name| name == "memory") => {
                ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let path = Path::new(path.trim_start_matches('/'));
        // A path that leads above the root belongs to another mount, and is not visible here.
        let inside = path.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        let path = if inside { path } else { Path::new("") };
        let limits = path
            .ancestors()
            .filter_map(|path| system.number(Path::new(base).join(path).join(file).to_str()?));
        // Version 1 reports "no limit" as a number larger than any memory.
        limits.filter(|&bytes| bytes < 1 << 60).min()
    };
    groups.lines().filter_map(limit).min()
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", grouped(bytes >> 20))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    fn system(files: &[(&str, &str)]) -> (TempDir, System) {
        let dir = TempDir::new().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let system = System {
            root: dir.path().to_path_buf(),
            release: "6.18.44-fc".to_string(),
            machine: "x86_64".to_string(),
            page_bytes: va_base::PAGE_SIZE,
            address_limit: None,
        };
        (dir, system)
    }

    fn is(fact: &Fact, verdict: Verdict, found: &str, means: &str) {
        assert!(
            fact.verdict == verdict && fact.found.contains(found) && fact.means.contains(means),
            "{fact:?}"
        );
    }

    #[test]
    fn without_any_file_every_line_reports_it() {
        let (_dir, system) = system(&[]);
        let facts = facts(&system);
        assert_eq!(facts.len(), 10);
        for (at, found) in [
            (1, "not reported"),
            (3, "none"),
            (4, "none"),
            (5, "none"),
            (6, "not reported"),
            (7, "not reported"),
            (9, "none"),
        ] {
            is(&facts[at], facts[at].verdict, found, "");
        }
    }

    #[test]
    fn the_kernel_and_its_pages_are_judged() {
        let (_dir, mut system) = system(&[
            ("sys/devices/system/cpu/possible", "0-3\n"),
            ("sys/devices/system/cpu/online", "0-1\n"),
        ]);
        is(&kernel(&system), Good, "6.18.44-fc x86_64", "5.10 or later");
        is(&cpus(&system), Good, "possible 0-3, online 0-1", "4 units");
        is(&pages(&system), Good, "bytes", "as this program");
        system.release = "4.19.0".to_string();
        system.page_bytes = 65536;
        is(&kernel(&system), Missing, "4.19", "was not tried");
        is(&pages(&system), Missing, "65,536", "built for 4096");
        system.release = "unknown".to_string();
        is(&kernel(&system), Less, "unknown", "not understood");
    }

    #[test]
    fn each_setting_of_huge_pages_is_reported() {
        let dir = "sys/kernel/mm/transparent_hugepage";
        for (text, verdict, found) in [
            ("[always] madvise never", Good, "always, 2,048 KiB"),
            ("always [madvise] never", Good, "madvise, 2,048 KiB"),
            ("always madvise [never]", Less, "never"),
            ("nonsense", Less, "none"),
        ] {
            let (enabled, size) = (format!("{dir}/enabled"), format!("{dir}/hpage_pmd_size"));
            let (_dir, system) = system(&[(&enabled, text), (&size, "2097152\n")]);
            is(&huge(&system), verdict, found, "");
        }
        let several = |small: &str| {
            let file = |size| format!("{dir}/hugepages-{size}kB/enabled");
            let (small_file, middle, whole) = (file(16), file(64), file(2048));
            let size = format!("{dir}/hpage_pmd_size");
            let never = "always inherit madvise [never]";
            let (_dir, system) = system(&[
                (&small_file, small),
                (&middle, never),
                (&whole, "always [inherit] madvise never"),
                (&size, "2097152\n"),
            ]);
            several_sizes(&system)
        };
        is(&several("[always] inherit madvise never"), Good, "16 KiB always", "are moved as well");
        is(&several("always inherit madvise [never]"), Good, "none enabled", "one page, or a huge one");
        let (_dir, system) = system(&[
            ("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "7\n"),
        ]);
        is(&hugetlb(&system), Good, "2,048 KiB: 7, 1,048,576 KiB: 0", "not used");
    }

    #[test]
    fn each_limit_is_reported() {
        for (mode, verdict, found) in [
            ("0", Good, "heuristic"),
            ("1", Good, "always"),
            ("2", Less, "never"),
            ("9", Less, "not reported"),
        ] {
            let (_dir, system) = system(&[("proc/sys/vm/overcommit_memory", mode)]);
            is(&overcommit(&system), verdict, found, "");
        }
        for (count, verdict, means) in [("65530", Good, "8,191"), ("1000", Less, "few: 125")] {
            let (_dir, system) = system(&[("proc/sys/vm/max_map_count", count)]);
            is(&mappings(&system), verdict, "", means);
        }
        let (_dir, mut system) = system(&[]);
        is(&addresses(&system), Good, "unlimited", "");
        system.address_limit = Some(1 << 30);
        is(&addresses(&system), Less, "1,024 MiB", "512 MiB");
    }

    #[test]
    fn the_lowest_limit_of_all_groups_around_counts() {
        let (_dir, two) = system(&[
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/memory.max", "1073741824\n"),
        ]);
        is(&group(&two), Less, "limit 1,024 MiB", "cache_bytes_max");
        let (_dir, one) = system(&[
            ("proc/self/cgroup", "5:cpu,memory:/x\n1:name=systemd:/\n"),
            ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "2097152\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ]);
        is(&group(&one), Less, "limit 2 MiB", "");
        let (_dir, out) = system(&[("proc/self/cgroup", "0::/../..\nnonsense\n")]);
        is(&group(&out), Good, "no limit", "");
    }

    #[test]
    fn this_machine_has_every_line() {
        assert_eq!(facts(&System::default()).len(), 10);
    }
}
