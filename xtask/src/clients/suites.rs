//! Upstream test suites of the applications, run without the preload and with it.
//!
//! # Theory
//! Some upstream tests fail for reasons of the machine: another locale, another user, a missing package. So a suite
//! runs plain first, and only tests that pass there can fail under the preload. A test without a result has failed: the
//! program that should have run it has died.

use super::place::Place;
use super::table::as_postgres;
use super::trial::{Column, last_lines};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs;

/// One suite.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Suite {
    pub(crate) client: &'static str,
    /// Description of the tests that are run, for the page.
    pub(crate) what: &'static str,
    pub(crate) modules: &'static [&'static str],
    pub(crate) programs: &'static [(&'static str, &'static str)],
    /// A program whose source package has the tests; scripts find it unpacked in `PACKAGE`.
    pub(crate) source: Option<&'static str>,
    /// Run once, without the preload.
    pub(crate) set_up: &'static str,
    /// Prints a line "PASS name" or "FAIL name" for each test.
    pub(crate) run: &'static str,
}

impl Suite {
    /// A suite whose fields are all empty.
    pub(crate) const EMPTY: Self =
        Self { client: "", what: "", modules: &[], programs: &[], source: None, set_up: "", run: "" };
}

/// The suites that are available.
pub(crate) const SUITES: [Suite; 10] = [
    Suite {
        client: "numpy",
        what: "NumPy's tests of arrays, elementwise functions, numbers and memory",
        modules: &["numpy", "pytest", "hypothesis"],
        run: "python3 -m pytest -q -rpfE -p no:cacheprovider -k 'not huge and not large_' --pyargs numpy._core.tests.test_multiarray \
              numpy._core.tests.test_ufunc numpy._core.tests.test_umath numpy._core.tests.test_numeric numpy._core.tests.test_mem_overlap \
              numpy._core.tests.test_mem_policy numpy.linalg numpy.fft >log.txt || true\n\
              sed -n 's/^PASSED /PASS /p; s/^FAILED \\([^ ]*\\).*/FAIL \\1/p; s/^ERROR \\([^ ]*\\).*/FAIL \\1/p' log.txt",
        ..Suite::EMPTY
    },
    Suite {
        client: "scipy",
        what: "SciPy's tests of Fourier transforms, sparse systems and decompositions",
        modules: &["scipy", "pytest", "hypothesis"],
        run: "python3 -m pytest -q -rpfE -p no:cacheprovider --pyargs scipy.fft scipy.sparse.linalg._dsolve \
              scipy.linalg.tests.test_decomp >log.txt || true\n\
              sed -n 's/^PASSED /PASS /p; s/^FAILED \\([^ ]*\\).*/FAIL \\1/p; s/^ERROR \\([^ ]*\\).*/FAIL \\1/p' log.txt",
        ..Suite::EMPTY
    },
    Suite {
        client: "python",
        what: "CPython's tests of lists, bytes, maps, arrays, threads, fork, SQLite, compression and its own allocators, by file",
        modules: &["numpy"],
        run: "for test in test_list test_bytes test_dict test_set test_array test_struct test_threading test_thread test_fork1 test_subprocess \
              test_multiprocessing_fork test_sqlite3 test_zlib test_bz2 test_lzma test_mmap test_memoryview test_bigmem test_ctypes test_gc \
              test_pickle test_json test_re test_io test_capi test_itertools; do\n\
              if timeout 200 python3 -m test -q $test >$test.txt 2>&1; then echo PASS $test; else echo FAIL $test; fi; done",
        ..Suite::EMPTY
    },
    Suite {
        client: "git",
        what: "git's tests of packs, diffs, fetches, repacks and imports",
        programs: &[("git", "git"), ("gcc", "gcc"), ("make", "make")],
        source: Some("git"),
        set_up: "cd \"$PACKAGE\"\n\
                 make -s -j2 CFLAGS=-O0 NO_OPENSSL=1 NO_CURL=1 NO_EXPAT=1 NO_TCLTK=1 NO_GETTEXT=1 t/helper/test-tool GIT-BUILD-OPTIONS >/dev/null 2>&1\n\
                 make -s -C templates SHELL_PATH=/bin/sh PERL_PATH=/usr/bin/perl >/dev/null",
        run: "root=$PWD/trash; rm -rf \"$root\"; cd \"$PACKAGE/t\"; export GIT_TEST_INSTALLED=/usr/bin\n\
              for test in t5300-pack-object t5302-pack-index t5303-pack-corruption-resilience t5306-pack-nobase t5310-pack-bitmaps t5500-fetch-pack \
              t7700-repack t1006-cat-file t4000-diff-format t4001-diff-rename t4013-diff-various t4015-diff-whitespace t4034-diff-words \
              t4211-line-log t6300-for-each-ref t9300-fast-import; do\n\
              sh ./$test.sh --root=\"$root\" 2>&1 | sed -n -e '/# TODO known breakage/d' -e '/# skip/d' \
              -e \"s/^ok \\([0-9]*\\) .*/PASS $test \\1/p\" -e \"s/^not ok \\([0-9]*\\) .*/FAIL $test \\1/p\"; done",
        ..Suite::EMPTY
    },
    Suite {
        client: "redis",
        what: "Redis's tests of its types, of expiry, scripts, dumps, append files and snapshots",
        programs: &[
            ("redis-server", "redis-server"),
            ("redis-benchmark", "redis-tools"),
            ("redis-cli", "redis-tools"),
            ("tclsh", "tcl"),
        ],
        source: Some("redis-server"),
        set_up: "for name in server cli benchmark check-rdb check-aof; do\n\
                 ln -sf \"$(command -v redis-$name)\" \"$PACKAGE/src/redis-$name\"; done",
        run: "cd \"$PACKAGE\"; set --; for unit in unit/type/string unit/type/incr unit/type/list unit/type/list-2 unit/type/set unit/type/hash \
              unit/type/zset unit/type/stream unit/sort unit/scan unit/expire unit/dump unit/multi unit/pubsub unit/bitops unit/hyperloglog \
              unit/geo unit/lazyfree unit/scripting unit/aofrw unit/protocol integration/rdb integration/aof; do\n\
              set -- \"$@\" --single $unit; done\n\
              ./runtest --clients 3 \"$@\" 2>&1 | sed -e 's/\\x1b\\[[0-9;]*m//g' -n \
              -e 's/^\\[ok\\]: \\(.*\\) ([0-9]* ms)$/PASS \\1/p' -e 's/^\\[ok\\]: \\([^(]*\\)$/PASS \\1/p' -e 's/^\\[err\\]: \\(.*\\) in tests.*/FAIL \\1/p'",
        ..Suite::EMPTY
    },
    Suite {
        client: "postgres",
        what: "PostgreSQL's regression tests, in parallel as its makers run them",
        programs: &[("postgres", "postgresql"), ("psql", "postgresql-client"), ("make", "make")],
        source: Some("postgres"),
        run: as_postgres!(
            "test -z \"$AS\" || chown postgres .\n\
             bin=$(dirname \"$(command -v postgres)\"); lib=$(dirname \"$bin\")/lib; rm -rf instance out testtablespace\n\
             $AS mkdir -p out/expected out/sql\n\
             $AS \"$lib/pgxs/src/test/regress/pg_regress\" --temp-instance=instance --inputdir=\"$PACKAGE/src/test/regress\" --outputdir=out \
             --bindir=\"$bin\" --dlpath=\"$lib\" --no-locale --encoding=UTF8 --max-concurrent-tests=20 --max-connections=8 \
             --schedule=\"$PACKAGE/src/test/regress/parallel_schedule\" >log.txt 2>&1 || true\n\
             sed -n -e 's/^\\(test\\)\\? *\\([a-z0-9_]*\\) *\\.\\.\\. ok.*/PASS \\2/p' \
             -e 's/^\\(test\\)\\? *\\([a-z0-9_]*\\) *\\.\\.\\. \\(FAILED\\|failed\\).*/FAIL \\2/p' log.txt"
        ),
        ..Suite::EMPTY
    },
    Suite {
        client: "xz",
        what: "xz's tests, with the installed program where they call one",
        programs: &[("xz", "xz-utils"), ("gcc", "gcc"), ("make", "make")],
        source: Some("xz"),
        set_up: "cd \"$PACKAGE\"\n\
                 ./configure -q --disable-nls --disable-doc --disable-shared CFLAGS=-O1 >/dev/null\n\
                 make -s -j2 >/dev/null && make -s -C tests check TESTS= >/dev/null\n\
                 for name in xz xzdec; do if command -v $name >/dev/null; then\n\
                 rm -f src/$name/$name; ln -s \"$(command -v $name)\" src/$name/$name; fi; done",
        run: "make -C \"$PACKAGE/tests\" check 2>&1 | sed -n -e 's/^PASS: /PASS /p' -e 's/^FAIL: /FAIL /p' -e 's/^ERROR: /FAIL /p'",
        ..Suite::EMPTY
    },
    Suite {
        client: "zstd",
        what: "zstd's tests of its program, and three fuzzers of its library for 300 rounds",
        programs: &[("zstd", "zstd"), ("gcc", "gcc"), ("make", "make"), ("python3", "python3")],
        source: Some("zstd"),
        set_up: "make -s -j2 -C \"$PACKAGE/tests\" CFLAGS=-O1 datagen fuzzer zstreamtest >/dev/null 2>&1",
        run: "cd \"$PACKAGE/tests\"\n\
              for test in 'fuzzer -s7 -i300' 'zstreamtest -s7 -i300' 'zstreamtest --newapi -s7 -t1 -i300'; do\n\
              if ./$test >log.txt 2>&1; then echo \"PASS $test\"; else echo \"FAIL $test\"; fi; done\n\
              python3 cli-tests/run.py --zstd \"$(command -v zstd)\" --zstdgrep \"$(command -v zstdgrep)\" --zstdless \"$(command -v zstdless)\" \
              --datagen ./datagen 2>&1 | sed -n -e 's/^PASS: /PASS /p' -e 's/^FAIL: /FAIL /p'",
        ..Suite::EMPTY
    },
    Suite {
        client: "sqlite",
        what: "SQLite's tests of queries, joins, indexes, blobs, sorting, transactions and windows, in a library built from its source",
        programs: &[("sqlite3", "sqlite3"), ("gcc", "gcc"), ("make", "make"), ("tclsh", "tcl-dev")],
        source: Some("sqlite3"),
        set_up: "cd \"$PACKAGE\"\n\
                 for tcl in $(find /usr/lib -name tclConfig.sh); do break; done\n\
                 test -n \"${tcl-}\" || { echo \"needs the headers of Tcl: tcl-dev\" >&2; exit 1; }\n\
                 ./configure -q --enable-shared=no --with-tcl=\"$(dirname \"$tcl\")\" CFLAGS=-O1 >/dev/null 2>&1\n\
                 make -s -j2 testfixture >/dev/null 2>&1",
        run: "rm -rf work; mkdir work; cd work\n\
              for test in select1 select2 select3 select4 select5 join join2 blob sort sort2 incrblob incrblob2 index where where2 in trans trans2 \
              vacuum temptable window1 window2 memdb cache func collate1 tableapi bigrow zeroblob insert update delete subquery trigger1 view \
              autovac pager1 wal malloc5 thread001; do\n\
              timeout 100 \"$PACKAGE/testfixture\" \"$PACKAGE/test/$test.test\" 2>&1 | sed -n -e \"s/^\\([^ ]*\\)\\.\\.\\. Ok$/PASS $test \\1/p\" \
              -e \"s/^! \\([^ ]*\\) expected: .*/FAIL $test \\1/p\"; done",
        ..Suite::EMPTY
    },
    Suite {
        client: "stress-ng",
        what: "its verifying stressors of heap and address space",
        programs: &[("stress-ng", "stress-ng")],
        run: "stress() { name=$1; shift\n\
              if stress-ng --quiet --verify --seed 7 --timeout 60 --$name \"$@\" >$name.txt 2>&1; then echo PASS $name; else echo FAIL $name; fi; }\n\
              stress malloc 1 --malloc-ops 5000; stress bigheap 1 --bigheap-ops 500 --bigheap-bytes 64M; stress brk 1 --brk-ops 2000\n\
              stress fork 1 --fork-ops 500; stress mremap 1 --mremap-ops 50; stress mmap 1 --mmap-ops 5 --mmap-bytes 32M\n\
              stress vm 1 --vm-ops 5000 --vm-bytes 32M; stress qsort 1 --qsort-ops 5; stress matrix 1 --matrix-ops 100; stress zlib 1 --zlib-ops 50",
        ..Suite::EMPTY
    },
];

/// Runs a suite twice, and returns the outcome as one line.
///
/// # Errors
/// If a test fails that passes without the preload.
pub(crate) fn run(place: &Place, suite: &Suite, plain: &Column, ours: &Column) -> Result<String> {
    let scene = match place.set_up_suite(suite) {
        Ok(scene) => scene,
        Err(error) => return Ok(format!("not run: {error:#}").replace('\n', " ")),
    };
    let outcome = |column: &Column| -> Result<BTreeMap<String, bool>> {
        let mut command = scene.shell(suite.run);
        column.dress(&mut command);
        let output = command.output().context("cannot run sh")?;
        fs::write(scene.dir.join(format!("{}-stdout.txt", column.name)), &output.stdout)?;
        fs::write(scene.dir.join(format!("{}-stderr.txt", column.name)), &output.stderr)?;
        let outcomes = outcomes(&String::from_utf8_lossy(&output.stdout));
        if outcomes.is_empty() || !output.status.success() {
            let printed = last_lines(&String::from_utf8_lossy(&output.stderr));
            bail!("{}: {} tests ran, then {printed} ({})", column.name, outcomes.len(), output.status);
        }
        Ok(outcomes)
    };
    let before = match outcome(plain) {
        Ok(before) if before.values().any(|passed| *passed) => before,
        Ok(_) => return Ok("not run: none of its tests passes without us".to_string()),
        Err(error) => return Ok(format!("not run: {error:#}").replace('\n', " ")),
    };
    compare(&before, &outcome(ours)?).with_context(|| format!("see {}", scene.dir.display()))
}

/// Returns the tests by name, and whether each passed every time that it ran.
fn outcomes(printed: &str) -> BTreeMap<String, bool> {
    let mut outcomes = BTreeMap::new();
    for line in printed.lines() {
        let (name, passed) = match line.split_once(' ') {
            Some(("PASS", name)) => (name.trim(), true),
            Some(("FAIL", name)) => (name.trim(), false),
            _ => continue,
        };
        *outcomes.entry(name.to_string()).or_insert(true) &= passed;
    }
    outcomes
}

/// The most names of failed tests in a message.
const NAMES_MAX: usize = 8;

/// Returns the results of the tests that pass without the preload.
fn compare(plain: &BTreeMap<String, bool>, ours: &BTreeMap<String, bool>) -> Result<String> {
    let mut bad: Vec<String> = Vec::new();
    for (name, _) in plain.iter().filter(|(_, passed)| **passed) {
        match ours.get(name) {
            Some(true) => {}
            Some(false) => bad.push(name.clone()),
            None => bad.push(format!("{name} (did not end)")),
        }
    }
    // A failed test that ran only under the preload is ours as well. One that failed plain and passes now is chance.
    bad.extend(
        ours.iter()
            .filter(|(name, passed)| !**passed && !plain.contains_key(*name))
            .map(|(name, _)| name.clone()),
    );
    let passed = ours.values().filter(|passed| **passed).count();
    if !bad.is_empty() {
        let shown = bad.iter().take(NAMES_MAX).cloned().collect::<Vec<_>>().join(", ");
        let more = bad.len().saturating_sub(NAMES_MAX);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        bail!("{passed} passed, {} failed that pass without us: {shown}{more}", bad.len());
    }
    let same = plain.iter().filter(|(name, passed)| !**passed && ours.get(*name) == Some(&false)).count();
    Ok(format!("{passed} passed, {same} failed the same without us"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_suite_has_a_name_and_prints_outcomes() {
        let names: BTreeSet<&str> = SUITES.iter().map(|suite| suite.client).collect();
        assert_eq!(names.len(), SUITES.len());
        for Suite { client, what, run, modules, programs, .. } in SUITES {
            assert!(!what.is_empty() && !what.contains('|') && run.contains("PASS"), "{client}");
            assert!(!modules.is_empty() || !programs.is_empty(), "{client} needs nothing");
        }
        assert!(["numpy", "git", "redis", "postgres"].iter().all(|must| names.contains(must)));
    }

    #[test]
    fn a_test_fails_once_and_for_all() {
        let outcomes = outcomes("PASS a b\nnoise\nFAIL c\nPASS c\nPASSED d\nFAIL e\n");
        let expected =
            [("a b", true), ("c", false), ("e", false)].map(|(name, passed)| (name.to_string(), passed));
        assert_eq!(outcomes, BTreeMap::from(expected));
    }

    #[test]
    fn only_what_passes_without_us_can_fail_with_us() {
        let plain = outcomes("PASS a\nPASS b\nFAIL c\nFAIL d\n");
        let good = compare(&plain, &outcomes("PASS a\nPASS b\nFAIL c\nPASS d\n")).unwrap();
        assert_eq!(good, "3 passed, 1 failed the same without us");
        for (printed, named) in [
            ("PASS a\nFAIL b\nFAIL c\n", "1 failed that pass without us: b"),
            ("PASS a\nFAIL c\nFAIL d\n", "b (did not end)"),
            ("PASS a\nPASS b\nFAIL new\n", "new"),
        ] {
            let error = compare(&plain, &outcomes(printed)).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
