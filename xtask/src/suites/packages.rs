//! Packages of crates.io with sources in C or C++, and the tests among these.
//!
//! # Theory
//! A test of an allocator that calls the standard functions tests ours as well. Small headers of ours replace the
//! allocator's own and call the C library. Tests of its private functions or size classes do not apply. A library's
//! tests apply unchanged: they allocate the memory that the library requests.

use super::build::{Build, sources, stem};
use super::{Program, Test};
use crate::peers;
use crate::sh::Cmd;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// Builds a package's tests into the first folder, from the second.
type Builder = fn(&Path, &Path) -> Result<Vec<Test>>;

/// A package, and the applicable tests in it.
struct Package {
    name: &'static str,
    version: &'static str,
    /// Description of its tests, and of those that are not run.
    has: &'static str,
    build: Option<Builder>,
}

const PACKAGES: [Package; 12] = [
    Package {
        name: "tikv-jemalloc-sys",
        version: "0.7.1+5.3.1-0-g81034ce1f1373e37dc865038e1bc8eeecf559ce8",
        has: "jemalloc's whole `test`. Five integration tests call the standard functions. The others call `mallocx` and \
              its relatives, and the unit tests look into jemalloc. `jemalloc-sys` has an older copy of the same.",
        build: Some(jemalloc),
    },
    Package {
        name: "snmalloc-sys",
        version: "0.7.6",
        has: "snmalloc's whole `test`. Eight programs only allocate and free. The others ask snmalloc which memory it owns, \
              expect its size classes, or look into it.",
        build: Some(snmalloc),
    },
    Package {
        name: "rpmalloc-sys",
        version: "0.2.3+b097fd0",
        has: "two programs. Five tests of the first apply. Its others expect rpmalloc's size classes, a report of leaks or \
              heaps, and so does the second.",
        build: Some(rpmalloc),
    },
    Package { name: "libmimalloc-sys", version: "0.1.49", has: "no tests.", build: None },
    Package {
        name: "tcmalloc-sys",
        version: "0.3.0",
        has: "no C source: it links with the system's library.",
        build: None,
    },
    Package {
        name: "lz4-sys",
        version: "1.11.1+lz4-1.10.0",
        has: "lz4's `tests`. Five programs apply. The others are benchmarks, data generators and scripts around the \
              command.",
        build: Some(lz4),
    },
    Package {
        name: "liblzma-sys",
        version: "0.4.9",
        has: "xz's `tests`, without the files that they read, so some cases are skipped. `lzma-sys` has older ones.",
        build: Some(lzma),
    },
    Package {
        name: "bzip2-sys",
        version: "0.1.13+1.0.8",
        has: "three samples, which the program packs and unpacks.",
        build: Some(bzip2),
    },
    Package {
        name: "zstd-sys",
        version: "2.1.3+zstd.1.5.7",
        has: "no tests: the library alone.",
        build: None,
    },
    Package {
        name: "libz-sys",
        version: "1.1.31",
        has: "no tests of zlib: `smoke.c` asks whether the system has one.",
        build: None,
    },
    Package {
        name: "libsqlite3-sys",
        version: "0.40.0",
        has: "no tests: SQLite's source in one file.",
        build: None,
    },
    Package { name: "brotli-sys", version: "0.3.2", has: "no tests: the library alone.", build: None },
];

/// A fetched package, and the number of its test sources.
pub(crate) struct Fetched {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    pub(crate) has: &'static str,
    pub(crate) sources: usize,
    folder: PathBuf,
}

/// Lets cargo fetch all packages, in a separate workspace without any build.
pub(crate) fn fetch(target: &Path) -> Result<Vec<Fetched>> {
    let workspace = target.join("workspace");
    let wanted: Vec<(&str, &str)> = PACKAGES.iter().map(|package| (package.name, package.version)).collect();
    peers::write_workspace(&workspace, "suites", &wanted)?;
    let metadata = Cmd::cargo(&workspace)
        .args(["metadata", "--format-version", "1", "--quiet"])
        .read()
        .context("cannot fetch the packages of crates.io")?;
    let fetched = PACKAGES.iter().map(|Package { name, version, has, .. }| {
        let folder = peers::folder(&metadata, name, version)?;
        let sources = test_sources(&folder, false)?;
        Ok(Fetched { name, version, has, sources, folder })
    });
    fetched.collect()
}

/// Counts C and C++ files in folders named after tests.
fn test_sources(folder: &Path, inside: bool) -> Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            count += test_sources(&path, inside || name == "test" || name == "tests")?;
        } else if inside && [".c", ".cc", ".cpp"].iter().any(|end| name.ends_with(end)) {
            count += 1;
        }
    }
    Ok(count)
}

/// Builds the tests of all packages.
pub(crate) fn tests(target: &Path, fetched: &[Fetched]) -> Result<Vec<Test>> {
    let mut tests = Vec::new();
    for (package, fetched) in PACKAGES.iter().zip(fetched) {
        if let Some(build) = package.build {
            tests.extend(build(&target.join(package.name), &fetched.folder).with_context(|| package.name)?);
        }
    }
    Ok(tests)
}

fn jemalloc(target: &Path, folder: &Path) -> Result<Vec<Test>> {
    let test = folder.join("jemalloc/test");
    let make = |compiler, at: &str, kind| -> Result<Build> {
        let dir = target.join(at);
        let shims = dir.join("shims");
        let build = Build::new(dir, compiler, &["-D_GNU_SOURCE", kind])?;
        build.write("shims/test/jemalloc_test.h", include_str!("shims/jemalloc_test.h"))?;
        Ok(build.include(&shims).include(&test.join("include")))
    };
    let c = make("cc", "c", "-DJEMALLOC_INTEGRATION_TEST")?;
    let driver = c.archive("driver", &[test.join("src/test.c")])?;
    let names = ["malloc", "aligned_alloc", "posix_memalign", "overflow"].map(str::to_string);
    let integration = test.join("integration");
    let mut tests = each("jemalloc", &names, |name| {
        c.program(name, &[integration.join(format!("{name}.c")), driver.clone()], &[])
    });
    let plus = make("c++", "c++", "-DJEMALLOC_INTEGRATION_CPP_TEST")?;
    tests.extend(each("jemalloc", &["basic".to_string()], |name| {
        plus.program(name, &[integration.join(format!("cpp/{name}.cpp")), driver.clone()], &[])
    }));
    Ok(tests)
}

fn snmalloc(target: &Path, folder: &Path) -> Result<Vec<Test>> {
    let source = folder.join("upstream/src");
    let build = Build::new(target.to_path_buf(), "c++", &["-std=c++20", "-mcx16"])?.include(&source);
    let shim = build.write("shim.cc", include_str!("shims/snmalloc.cc"))?;
    let shim = build.archive("shim", &[shim])?;
    let names = [
        "func/first_operation/first_operation",
        "func/teardown/teardown",
        "func/statistics/stats",
        "perf/contention/contention",
        "perf/large_alloc/large_alloc",
        "perf/lotsofthreads/lotsofthread",
        "perf/singlethread/singlethread",
        "perf/startup/startup",
    ];
    let mut tests = Vec::new();
    for path in names {
        let from = source.join("test").join(format!("{path}.cc"));
        let mut test =
            each("snmalloc", &[stem(&from)], |name| build.program(name, &[from.clone(), shim.clone()], &[]));
        // Rounds for measurements would take longer.
        with_args(&mut test, if path.starts_with("perf") { &["--smoke"] } else { &[] });
        tests.extend(test);
    }
    Ok(tests)
}

fn rpmalloc(target: &Path, folder: &Path) -> Result<Vec<Test>> {
    let test = folder.join("rpmalloc/test");
    let build = Build::new(target.to_path_buf(), "cc", &["-std=gnu11", "-D_GNU_SOURCE"])?;
    build.write("rpmalloc.h", include_str!("shims/rpmalloc.h"))?;
    let main = build.write("one.c", include_str!("shims/rpmalloc.c"))?;
    let here = build.dir.clone();
    let build = build.include(&here).include(&test);
    let built = build.program("main", &[main, test.join("thread.c")], &["-lm"]);
    let mut tests = Vec::new();
    for name in ["realloc", "superalign", "crossthread", "threaded", "threadspam"] {
        let mut test = each("rpmalloc", &[name.to_string()], |_| built.clone());
        with_args(&mut test, &[name]);
        tests.extend(test);
    }
    Ok(tests)
}

fn lz4(target: &Path, folder: &Path) -> Result<Vec<Test>> {
    let source = folder.join("liblz4");
    let build = Build::new(target.to_path_buf(), "cc", &[])?;
    let build = build.include(&source.join("lib")).include(&source.join("programs"));
    let library = build.archive("lz4", &sources(&source.join("lib"))?)?;
    // The same inputs each time, and rounds for some seconds.
    let programs: [(&str, &[&str]); 5] = [
        ("fuzzer", &["-s7", "-i300"]),
        ("frametest", &["-s7", "-i300"]),
        ("decompress-partial", &[]),
        ("decompress-partial-usingDict", &[]),
        ("roundTripTest", &["COPYING"]),
    ];
    let mut tests = Vec::new();
    for (name, args) in programs {
        let mut test = each("lz4", &[name.to_string()], |name| {
            build.program(name, &[source.join(format!("tests/{name}.c")), library.clone()], &[])
        });
        let args: Vec<String> = args
            .iter()
            .map(|arg| {
                if *arg == "COPYING" {
                    source.join("tests/COPYING").display().to_string()
                } else {
                    arg.to_string()
                }
            })
            .collect();
        with_args(&mut test, &args.iter().map(String::as_str).collect::<Vec<_>>());
        tests.extend(test);
    }
    Ok(tests)
}

fn lzma(target: &Path, folder: &Path) -> Result<Vec<Test>> {
    let source = folder.join("xz/src");
    let flags = [
        "-std=gnu99",
        "-DHAVE_CONFIG_H=1",
        "-DLZMA_SYS_ENABLE_THREADS=1",
        "-DHAVE_ENCODERS=1",
        "-DHAVE_INTTYPES_H=1",
        "-DHAVE_DECODERS=1",
    ];
    let mut build =
        Build::new(target.to_path_buf(), "cc", &flags)?.include(folder).include(&source.join("common"));
    build = build.include(&source.join("liblzma"));
    let mut from = vec![source.join("common/tuklib_cpucores.c"), source.join("common/tuklib_physmem.c")];
    for part in ["api", "lzma", "lz", "check", "simple", "delta", "common", "rangecoder"] {
        let part = source.join("liblzma").join(part);
        from.extend(sources(&part)?);
        build = build.include(&part);
    }
    // Smaller tables of checksums replace the usual ones, and the programs that make them are left out.
    from.retain(|path| {
        !["_small", "tablegen", "_gen", "_encoder.tab"].iter().any(|end| stem(path).ends_with(end))
    });
    let library = build.archive("lzma", &from)?;
    let tests = sources(&folder.join("xz/tests"))?.into_iter().filter(|path| stem(path).starts_with("test_"));
    Ok(tests
        .flat_map(|path| {
            each("xz", &[stem(&path)], |name| build.program(name, &[path.clone(), library.clone()], &[]))
        })
        .collect())
}

/// Packs a sample with the program and compares, and unpacks it and compares.
fn bzip2(target: &Path, folder: &Path) -> Result<Vec<Test>> {
    let source = folder.join("bzip2-1.0.8");
    let build = Build::new(target.to_path_buf(), "cc", &["-D_FILE_OFFSET_BITS=64"])?;
    let parts = ["blocksort", "huffman", "crctable", "randtable", "compress", "decompress", "bzlib", "bzip2"];
    let parts = parts.map(|name| source.join(format!("{name}.c")));
    let built = build.program("bzip2", &parts, &[]);
    let mut tests = Vec::new();
    for (at, options) in ["", "", "s"].into_iter().enumerate() {
        let level = at + 1;
        let mut test =
            each("bzip2", &[format!("sample{level}")], |_| built.clone().map(|_| PathBuf::from("/bin/sh")));
        let (bzip2, sample) = (build.dir.join("bzip2"), source.join(format!("sample{level}")));
        let (bzip2, sample) = (bzip2.display(), sample.display());
        let script = format!(
            "'{bzip2}' -{level} <'{sample}.ref' | cmp - '{sample}.bz2' && '{bzip2}' -d{options} <'{sample}.bz2' | cmp - '{sample}.ref'"
        );
        with_args(&mut test, &["-c", &script]);
        tests.extend(test);
    }
    Ok(tests)
}

fn each(suite: &'static str, names: &[String], build: impl Fn(&str) -> Result<PathBuf, String>) -> Vec<Test> {
    let test = |name: &String| Test { suite, name: name.clone(), program: build(name).map(Program::new) };
    names.iter().map(test).collect()
}

fn with_args(tests: &mut [Test], args: &[&str]) {
    for program in tests.iter_mut().filter_map(|test| test.program.as_mut().ok()) {
        program.args = args.iter().map(ToString::to_string).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_lists_its_tests() {
        for Package { name, has, build, .. } in PACKAGES {
            assert!(has.ends_with('.') && !has.contains('|'), "{name}");
            assert_eq!(build.is_none(), has.starts_with("no "), "{name}");
        }
    }

    #[test]
    fn sources_count_in_folders_of_tests_alone() {
        let dir = tempfile::tempdir().unwrap();
        for (path, folder) in
            [("src/test/a.c", "src/test"), ("tests/b/c.cpp", "tests/b"), ("tests/d.h", "tests"), ("e.c", "")]
        {
            fs::create_dir_all(dir.path().join(folder)).unwrap();
            fs::write(dir.path().join(path), "").unwrap();
        }
        assert_eq!(test_sources(dir.path(), false).unwrap(), 2);
    }
}
