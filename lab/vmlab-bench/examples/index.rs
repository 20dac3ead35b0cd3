//! Measures two indexes on the workloads that begin with an empty space.

use vmlab_base::output::Output;
use vmlab_bench::index::{Options, run};

/// Standard output for results, and stderr for notes.
struct Terminal;

impl Output for Terminal {
    fn line(&mut self, line: &str) -> anyhow::Result<()> {
        println!("{line}");
        Ok(())
    }

    fn note(&mut self, line: &str) {
        eprintln!("{line}");
    }
}

fn main() -> anyhow::Result<()> {
    let indexes = vec!["btree".to_string(), "rb-linux".to_string()];
    let filter = Some("empty".to_string());
    run(&Options { filter, indexes, rounds: 3, quick: true, out: None, kern: None }, &mut Terminal)
}
