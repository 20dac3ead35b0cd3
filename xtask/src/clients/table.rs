//! The clients: what each needs, what it does, and what is compared.
//!
//! Every script is run by `sh -eu` in the client's folder with the variables `SCRIPTS` (the folder of the Python, SQL and other
//! sources), `INPUT` (files made by [`super::input`]), `SCALE` ("full" or "quick"), `SOURCES` (crates fetched for their source) and, for servers, `PORT`.

/// A program as it is, and what it is made to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client {
    pub(crate) name: &'static str,
    /// What it does, for the page.
    pub(crate) what: &'static str,
    /// Programs, and the Debian packages that bring them.
    pub(crate) programs: &'static [(&'static str, &'static str)],
    /// Modules of Python, by the name of their package.
    pub(crate) modules: &'static [&'static str],
    /// Run once, before all turns.
    pub(crate) set_up: &'static str,
    /// What is measured. Its output is compared, unless there is `beside`.
    pub(crate) run: &'static str,
    /// For servers: what drives it, and ends it. Its output is compared.
    pub(crate) beside: Option<&'static str>,
    /// Prints the version.
    pub(crate) version: &'static str,
    /// Part of `--quick`: takes a second, and needs no Python.
    pub(crate) quick: bool,
}

impl Client {
    /// Nothing of everything.
    pub(crate) const EMPTY: Self = Self {
        name: "",
        what: "",
        programs: &[],
        modules: &[],
        set_up: "",
        run: "",
        beside: None,
        version: "",
        quick: false,
    };
}

/// Runs PostgreSQL's programs as their own user if we are root, as whom they refuse to run.
macro_rules! as_postgres {
    ($rest:literal) => {
        concat!(
            "AS=; if [ \"$(id -u)\" = 0 ]; then AS='setpriv --reuid=postgres --regid=postgres --clear-groups'; fi; ",
            $rest
        )
    };
}
pub(crate) use as_postgres;

/// All of them; those that must run first.
pub(crate) const CLIENTS: [Client; 16] = [
    Client {
        name: "numpy",
        what: "elementwise expressions on arrays of 24, 32, 48 and 64 MB, a temporary for each operation",
        modules: &["numpy"],
        run: "exec python3 \"$SCRIPTS/numpy_loop.py\"",
        version: "python3 -c 'import numpy, sys; print(\"NumPy\", numpy.__version__, \"Python\", sys.version.split()[0])'",
        ..Client::EMPTY
    },
    Client {
        name: "duckdb",
        what: "joins, groups, sorts and windows over 600000 rows, two threads",
        modules: &["duckdb"],
        run: "exec python3 \"$SCRIPTS/duckdb_queries.py\"",
        version: "python3 -c 'import duckdb; print(\"DuckDB\", duckdb.__version__)'",
        ..Client::EMPTY
    },
    Client {
        name: "redis",
        what: "server under redis-benchmark over loopback: small values, values of 256 KiB and 1 MiB, pipelines",
        programs: &[
            ("redis-server", "redis-server"),
            ("redis-benchmark", "redis-tools"),
            ("redis-cli", "redis-tools"),
        ],
        run: "exec redis-server --bind 127.0.0.1 --port \"$PORT\" --save '' --appendonly no --enable-debug-command local",
        beside: Some(
            "for i in $(seq 200); do redis-cli -p \"$PORT\" ping 2>/dev/null | grep -q PONG && break; sleep 0.05; done\n\
             b() { redis-benchmark -p \"$PORT\" -q \"$@\" >&2; }\n\
             b -n 20000 -t set,get,incr,lpush,hset -P 16 -c 10\n\
             b -n 2000 -d 262144 -t set,get -c 4\n\
             b -n 500 -d 1048576 -t set,get -c 4\n\
             redis-cli -p \"$PORT\" debug digest\n\
             redis-cli -p \"$PORT\" dbsize\n\
             redis-cli -p \"$PORT\" shutdown nosave",
        ),
        version: "redis-server --version | cut -d' ' -f1-3",
        ..Client::EMPTY
    },
    Client {
        name: "postgres",
        what: "server under pgbench (read only) and reports: sorts, hash joins, aggregates, long strings",
        programs: &[
            ("postgres", "postgresql"),
            ("pgbench", "postgresql-contrib"),
            ("psql", "postgresql-client"),
        ],
        set_up: as_postgres!(
            "rm -rf data && mkdir -p data && if [ -n \"$AS\" ]; then chown postgres data; fi\n\
             $AS initdb -D data -U postgres -A trust --locale=C -E UTF8 >/dev/null\n\
             printf \"fsync = off\\nlisten_addresses = ''\\nunix_socket_directories = '$PWD/data'\\nautovacuum = off\\n\" >>data/postgresql.conf\n\
             $AS pg_ctl -w -D data -l data/log start >/dev/null\n\
             pgbench -h \"$PWD/data\" -U postgres -q -i -s 2 postgres >/dev/null 2>&1\n\
             $AS pg_ctl -w -D data -m fast stop >/dev/null"
        ),
        run: as_postgres!("exec $AS postgres -D data"),
        beside: Some(as_postgres!(
            "for i in $(seq 400); do psql -h \"$PWD/data\" -U postgres -c 'select 1' >/dev/null 2>&1 && break; sleep 0.05; done\n\
             pgbench -h \"$PWD/data\" -U postgres -n -S -c 4 -t 1000 --random-seed=7 postgres >&2\n\
             psql -h \"$PWD/data\" -U postgres -At -v ON_ERROR_STOP=1 -f \"$SCRIPTS/postgres_queries.sql\"\n\
             $AS pg_ctl -w -D data -m fast stop >/dev/null"
        )),
        version: "postgres --version",
        ..Client::EMPTY
    },
    Client {
        name: "gcc",
        what: "SQLite's amalgamation of 9 MB, -O0, to assembly",
        programs: &[("gcc", "gcc"), ("cargo", "cargo")],
        set_up: "test -f \"$SOURCES/libsqlite3-sys/sqlite3/sqlite3.c\"",
        run: "exec gcc -O0 -S -o - \"$SOURCES/libsqlite3-sys/sqlite3/sqlite3.c\"",
        version: "gcc --version | head -1",
        ..Client::EMPTY
    },
    Client {
        name: "git",
        what: "a repository of 200 commits: clone, repack with new deltas, log with patches, diff of a file of 4 MB",
        programs: &[("git", "git")],
        set_up: "rm -rf repo && git init -q --bare repo && git -C repo fast-import --quiet <\"$INPUT/history.txt\"",
        run: "rm -rf copy && git clone -q --no-local --bare repo copy\n\
              git -C copy pack-objects --revs --all --stdout --no-reuse-delta --threads=1 -q </dev/null\n\
              git -C copy log -p --stat main\n\
              git -C copy diff main~1 main -- large.txt",
        version: "git --version",
        quick: true,
        ..Client::EMPTY
    },
    Client {
        name: "xz",
        what: "6 MB of text packed by two threads and unpacked",
        programs: &[("xz", "xz-utils")],
        run: "xz -1 -T2 --block-size=1MiB -c \"$INPUT/text.txt\" >packed.xz; cat packed.xz; exec xz -dc packed.xz",
        version: "xz --version | head -1",
        quick: true,
        ..Client::EMPTY
    },
    Client {
        name: "sqlite",
        what: "after SQLite's speed test: inserts, indexes, joins, updates, group_concat, blobs of 400 KB to 1 MB",
        programs: &[("sqlite3", "sqlite3")],
        run: "exec sqlite3 -batch -bail -init /dev/null :memory: \".read $SCRIPTS/sqlite_speed.sql\"",
        version: "echo SQLite $(sqlite3 --version | cut -d' ' -f1)",
        quick: true,
        ..Client::EMPTY
    },
    Client {
        name: "pandas",
        what: "columns, groups, joins and sorts of a frame of 2 million rows",
        modules: &["pandas", "numpy"],
        run: "exec python3 \"$SCRIPTS/pandas_frames.py\"",
        version: "python3 -c 'import pandas; print(\"pandas\", pandas.__version__)'",
        ..Client::EMPTY
    },
    Client {
        name: "polars",
        what: "groups, joins and sorts of a frame of 2 million rows; it has an allocator of its own inside",
        modules: &["polars"],
        run: "exec python3 \"$SCRIPTS/polars_frames.py\"",
        version: "python3 -c 'import polars; print(\"polars\", polars.__version__)'",
        ..Client::EMPTY
    },
    Client {
        name: "sklearn",
        what: "components, clusters and a regression of 100000 samples",
        modules: &["scikit-learn", "numpy"],
        run: "exec python3 \"$SCRIPTS/sklearn_fit.py\"",
        version: "python3 -c 'import sklearn; print(\"scikit-learn\", sklearn.__version__)'",
        ..Client::EMPTY
    },
    Client {
        name: "zstd",
        what: "6 MB of text packed at levels 3 and 9 and unpacked",
        programs: &[("zstd", "zstd")],
        run: "zstd -q -3 -T1 -c \"$INPUT/text.txt\"; zstd -q -9 -T1 -c \"$INPUT/text.txt\" >packed.zst; exec zstd -q -dc packed.zst",
        version: "echo zstd $(zstd --version | grep -o 'v[0-9.]*')",
        quick: true,
        ..Client::EMPTY
    },
    Client {
        name: "imagemagick",
        what: "a picture of 9 million pixels: resize, blur, rotate, level, compose",
        programs: &[("convert-im6.q16", "imagemagick")],
        run: "exec convert-im6.q16 -limit thread 2 -size 3000x2000 gradient:red-blue -resize 120% -rotate 90 -blur 0x1 \
              \\( +clone -flop -level 10%,90% \\) -compose multiply -composite -resize 60% -depth 8 rgb:-",
        version: "convert-im6.q16 -version | head -1 | cut -d' ' -f2-3",
        ..Client::EMPTY
    },
    Client {
        name: "node",
        what: "buffers of 4 MB, deflate, typed arrays, JSON",
        programs: &[("node", "nodejs")],
        run: "exec node \"$SCRIPTS/node_buffers.js\"",
        version: "echo Node.js $(node --version)",
        ..Client::EMPTY
    },
    Client {
        name: "java",
        what: "maps in its own heap, direct buffers of 4 MB",
        programs: &[("java", "default-jdk-headless"), ("javac", "default-jdk-headless")],
        set_up: "javac -d . \"$SCRIPTS/Churn.java\"",
        run: "exec java -XX:+UseSerialGC -Xmx256m -cp . Churn",
        version: "java -version 2>&1 | head -1",
        ..Client::EMPTY
    },
    Client {
        name: "stress-ng",
        what: "its malloc stressor with verification, mmap and vm stressors; the answer is that all verified",
        programs: &[("stress-ng", "stress-ng")],
        run: "stress-ng --quiet --malloc 1 --malloc-bytes 64M --malloc-max 512 --malloc-ops 20000 --verify --seed 7\n\
              stress-ng --quiet --vm 1 --vm-bytes 32M --vm-ops 20000 --verify --seed 7\n\
              stress-ng --quiet --mmap 1 --mmap-bytes 32M --mmap-ops 20 --verify --seed 7\n\
              echo verified",
        version: "stress-ng --version | cut -d' ' -f1-3",
        ..Client::EMPTY
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_differ_and_everything_that_a_page_says_is_there() {
        let names: BTreeSet<&str> = CLIENTS.iter().map(|client| client.name).collect();
        assert_eq!(names.len(), CLIENTS.len());
        for Client { name, what, programs, modules, run, version, .. } in CLIENTS {
            assert!(!name.is_empty() && !what.is_empty() && !run.is_empty() && !version.is_empty(), "{name}");
            assert!(!programs.is_empty() || !modules.is_empty(), "{name} needs nothing");
        }
        for must in ["numpy", "duckdb", "redis", "postgres", "gcc", "git", "xz", "sqlite"] {
            assert!(names.contains(must), "{must}");
        }
    }

    #[test]
    fn the_quick_ones_need_no_python_and_no_server() {
        let quick: Vec<&Client> = CLIENTS.iter().filter(|client| client.quick).collect();
        assert!(quick.len() >= 3);
        assert!(quick.iter().all(|client| client.modules.is_empty() && client.beside.is_none()));
    }
}
