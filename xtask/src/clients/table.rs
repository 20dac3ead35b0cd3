//! The applications: their packages, their work, and the compared output.
//!
//! Every script is run by `sh -eu` in the application's folder, with variables. They are `SCRIPTS` (the folder of the
//! Python, SQL and other sources), `INPUT` (files made by [`super::input`]), `SCALE` ("full" or "quick"), `SOURCES`
//! (crates fetched for their source). Servers also have `PORT`.

/// An unmodified program, and its work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client {
    pub(crate) name: &'static str,
    /// Description of its work, for the page.
    pub(crate) what: &'static str,
    /// Programs, and the Debian packages that have them.
    pub(crate) programs: &'static [(&'static str, &'static str)],
    /// Modules of Python, by the names of their packages.
    pub(crate) modules: &'static [&'static str],
    /// Run once, before all trials.
    pub(crate) set_up: &'static str,
    /// The measured command. Its output is compared, unless there is `beside`.
    pub(crate) run: &'static str,
    /// For servers: the script that drives it and stops it. Its output is compared.
    pub(crate) beside: Option<&'static str>,
    /// Prints the version.
    pub(crate) version: &'static str,
    /// Part of `--quick`: takes a second, and needs no Python.
    pub(crate) quick: bool,
}

impl Client {
    /// An application whose fields are all empty.
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

/// Runs PostgreSQL's programs as their own user if this process is root, since they do not run as root.
macro_rules! as_postgres {
    ($rest:literal) => {
        concat!(
            "AS=; if [ \"$(id -u)\" = 0 ]; then AS='setpriv --reuid=postgres --regid=postgres --clear-groups'; fi; ",
            $rest
        )
    };
}
pub(crate) use as_postgres;

/// All applications, those that others need first.
pub(crate) const CLIENTS: [Client; 20] = [
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
        what: "joins, groups, sorts and windows over 2.4 million rows, two threads",
        modules: &["duckdb"],
        run: "exec python3 \"$SCRIPTS/duckdb_queries.py\"",
        version: "python3 -c 'import duckdb; print(\"DuckDB\", duckdb.__version__)'",
        ..Client::EMPTY
    },
    Client {
        name: "redis",
        what: "server with 70 MB of values under redis-benchmark over loopback: small values, values of 256 KiB and 1 MiB, pipelines; Debian's is \
               linked with jemalloc, so that plain is jemalloc here",
        programs: &[
            ("redis-server", "redis-server"),
            ("redis-benchmark", "redis-tools"),
            ("redis-cli", "redis-tools"),
        ],
        run: "exec redis-server --bind 127.0.0.1 --port \"$PORT\" --save '' --appendonly no --enable-debug-command local",
        beside: Some(
            "for i in $(seq 200); do redis-cli -p \"$PORT\" ping 2>/dev/null | grep -q PONG && break; sleep 0.05; done\n\
             b() { redis-benchmark -p \"$PORT\" -q \"$@\" >&2; }\n\
             redis-cli -p \"$PORT\" debug populate 60000 key 500 >&2\n\
             redis-cli -p \"$PORT\" debug populate 120 big 262144 >&2\n\
             b -n 60000 -t set,get,incr,lpush,hset,zadd -P 16 -c 10\n\
             b -n 3000 -d 262144 -t set,get -c 4\n\
             b -n 800 -d 1048576 -t set,get -c 4\n\
             redis-cli -p \"$PORT\" debug digest\n\
             redis-cli -p \"$PORT\" dbsize\n\
             redis-cli -p \"$PORT\" shutdown nosave",
        ),
        version: "redis-server --version | cut -d' ' -f1-3",
        ..Client::EMPTY
    },
    Client {
        name: "postgres",
        what: "server of 400000 accounts under pgbench (read only) and reports: sorts, hash joins, aggregates, long strings",
        programs: &[
            ("postgres", "postgresql"),
            ("pgbench", "postgresql-contrib"),
            ("psql", "postgresql-client"),
        ],
        set_up: as_postgres!(
            "rm -rf data && mkdir -p data && if [ -n \"$AS\" ]; then chown postgres data; fi\n\
             $AS initdb -D data -U postgres -A trust --locale=C -E UTF8 >/dev/null\n\
             printf \"fsync = off\\nlisten_addresses = ''\\nunix_socket_directories = '$PWD/data'\\nautovacuum = off\\nshared_buffers = 256MB\\n\" >>data/postgresql.conf\n\
             $AS pg_ctl -w -D data -l data/log start >/dev/null\n\
             pgbench -h \"$PWD/data\" -U postgres -q -i -s 4 postgres >/dev/null 2>&1\n\
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
        what: "SQLite's amalgamation of 9 MB, -Og, to assembly",
        programs: &[("gcc", "gcc"), ("cargo", "cargo")],
        set_up: "test -f \"$SOURCES/libsqlite3-sys/sqlite3/sqlite3.c\"",
        run: "exec gcc -Og -S -o - \"$SOURCES/libsqlite3-sys/sqlite3/sqlite3.c\"",
        version: "gcc --version | head -1",
        ..Client::EMPTY
    },
    Client {
        name: "rustc",
        what: "the crate regex-syntax of 2.3 MB, unoptimized, to assembly; the compiler has jemalloc built in, so next to nothing comes from us",
        programs: &[("rustc", "rustc"), ("cargo", "cargo")],
        // Not a replacement on the path, which may choose among compilers.
        set_up: "test -f \"$SOURCES/regex-syntax/src/lib.rs\"; rustc --print sysroot >sysroot",
        run: "exec \"$(cat sysroot)/bin/rustc\" --edition 2021 --crate-type lib --cap-lints allow --cfg 'feature=\"std\"' --cfg 'feature=\"unicode\"' \
              -C codegen-units=1 --emit=asm -o - \"$SOURCES/regex-syntax/src/lib.rs\"",
        version: "rustc --version",
        ..Client::EMPTY
    },
    Client {
        name: "git",
        what: "a repository of 300 commits and 240 files: clone, repack with new deltas, log with patches, diff of a file of 16 MB",
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
        what: "20 MB of text packed in blocks of 8 MiB by two threads, with dictionaries of 16 MiB, and unpacked",
        programs: &[("xz", "xz-utils")],
        run: "head -c 20000000 \"$INPUT/text.txt\" >part\n\
              xz --lzma2=preset=1,dict=16MiB -T2 --block-size=8MiB -c part >packed.xz; cat packed.xz; exec xz -dc packed.xz",
        version: "xz --version | head -1",
        quick: true,
        ..Client::EMPTY
    },
    Client {
        name: "sqlite",
        what: "after SQLite's speed test: inserts, indexes, joins, updates, group_concat, blobs of 400 KB to 1 MB",
        programs: &[("sqlite3", "sqlite3")],
        run: "rows=400000 blobs=120; case $SCALE in quick) rows=60000 blobs=40;; esac\n\
              exec sqlite3 -batch -bail -init /dev/null :memory: \"pragma temp_store = memory\" \".parameter set :rows $rows\" \".parameter set :blobs $blobs\" \
              \".read $SCRIPTS/sqlite_speed.sql\"",
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
        name: "scipy",
        what: "Fourier transforms, filters of pictures, a sparse and a dense system",
        modules: &["scipy", "numpy"],
        run: "exec python3 \"$SCRIPTS/scipy_numbers.py\"",
        version: "python3 -c 'import scipy; print(\"SciPy\", scipy.__version__)'",
        ..Client::EMPTY
    },
    Client {
        name: "zstd",
        what: "64 MB of text packed at level 3 and unpacked, 32 MB at level 9 and 1 MB at level 19, both with a window of 128 MB",
        programs: &[("zstd", "zstd")],
        run: "zstd -q -3 -T1 -c \"$INPUT/text.txt\" >packed.zst; cat packed.zst; zstd -q -dc packed.zst\n\
              head -c 32000000 \"$INPUT/text.txt\" | zstd -q -9 --long=27 -T1 -c\n\
              head -c 1000000 \"$INPUT/text.txt\" | zstd -q -19 --long=27 -T1 -c",
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
        name: "ffmpeg",
        what: "60 generated frames of 1920 by 1080 scaled, blurred and encoded as H.264 by two threads",
        programs: &[("ffmpeg", "ffmpeg")],
        run: "exec ffmpeg -nostdin -v error -f lavfi -i testsrc2=size=1920x1080:rate=25 -frames:v 60 -vf scale=1600:900,boxblur=2 -pix_fmt yuv420p \
              -c:v libx264 -preset veryfast -threads 2 -bitexact -f h264 -",
        version: "ffmpeg -version | head -1 | cut -d' ' -f1-3",
        ..Client::EMPTY
    },
    Client {
        name: "nginx",
        what: "server of a text of 64 MB under ab over loopback: as it is, packed, and by way of itself as a proxy",
        programs: &[("nginx", "nginx"), ("ab", "apache2-utils"), ("curl", "curl")],
        run: "sed -e \"s/PORT/$PORT/g\" -e \"s|INPUT|$INPUT|g\" -e \"s/USER_GROUP/$(id -gn)/; s/user USER/user $(id -un)/\" \
              \"$SCRIPTS/nginx.conf\" >nginx.conf\n\
              exec nginx -p \"$PWD/\" -c \"$PWD/nginx.conf\" -e stderr",
        beside: Some(
            "at=http://127.0.0.1:$PORT\n\
             for i in $(seq 200); do curl -sf -o /dev/null -r 0-9 $at/plain/text.txt && break; sleep 0.05; done\n\
             for path in plain proxied; do curl -sf $at/$path/text.txt | md5sum; done\n\
             curl -sf -H 'Accept-Encoding: gzip' $at/packed/text.txt | md5sum\n\
             load() { ab -q \"$@\" >ab.txt 2>&1; grep -E '^(Complete|Failed|Non-2xx)' ab.txt; }\n\
             load -n 24 -c 4 $at/plain/text.txt\n\
             load -n 12 -c 4 $at/proxied/text.txt\n\
             load -n 3 -c 3 -H 'Accept-Encoding: gzip' $at/packed/text.txt\n\
             kill -QUIT $(cat nginx.pid)",
        ),
        version: "nginx -v 2>&1",
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
        what: "its malloc stressor with verification, which touches little of what it takes, mmap and vm stressors; the answer is that all verified; its \
               processes end without saying what was served",
        programs: &[("stress-ng", "stress-ng")],
        run: "stress-ng --quiet --malloc 1 --malloc-bytes 64M --malloc-max 512 --malloc-ops 5000 --verify --seed 7\n\
              stress-ng --quiet --vm 1 --vm-bytes 32M --vm-ops 10000 --verify --seed 7\n\
              stress-ng --quiet --mmap 1 --mmap-bytes 32M --mmap-ops 5 --verify --seed 7\n\
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
    fn names_are_unique_and_every_row_of_a_page_exists() {
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
