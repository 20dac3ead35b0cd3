//! Measures two indexes on the workloads that begin with an empty space.

mod terminal;

use terminal::Terminal;
use vmlab_bench::index::{Options, run};

fn main() -> anyhow::Result<()> {
    let indexes = vec!["btree".to_string(), "rb-linux".to_string()];
    let filter = Some("empty".to_string());
    run(&Options { filter, indexes, rounds: 3, quick: true, out: None, kern: None }, &mut Terminal)
}
