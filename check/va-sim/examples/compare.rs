//! An index of holes beside its reference model: the same random operations on both, and every result compared.
//!
//! `cargo run -p va-sim --example compare` runs some thousand, including mistakes, then shows that a difference is
//! found and named.

use va_base::VaRange;
use va_sim::model::ModelIndex;
use va_sim::op::{Op, Space};
use va_sim::platform::HeapPlatform;
use va_sim::run::{Walk, compare};
use va_tree::rb::Linux;
use va_tree::{BTreeIndex, RbIndex};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let space = Space::whole(VaRange::from_pages(5, 5000).ok_or("no range")?);
    let (extent, window) = (space.extent, space.default_window);
    for seed in 1..=4 {
        let ops = Op::from_seed(&space, seed).take(4000);
        let tree = BTreeIndex::new(extent, window, HeapPlatform::default())?;
        compare(tree, ModelIndex::new(extent, window)?, ops, Walk::Every(100))
            .map_err(|difference| difference.to_string())?;
    }
    println!("16000 operations, every answer of the B+tree is the model's");
    // Linux's search is not always the lowest fit for an alignment above a page. The difference is found, and printed
    // so that it can be run again.
    let ops = (1..100).flat_map(|seed| Op::from_seed(&space, seed).take(1000).collect::<Vec<_>>());
    let tree = RbIndex::<Linux, _>::new(extent, window, HeapPlatform::default())?;
    match compare(tree, ModelIndex::new(extent, window)?, ops, Walk::Every(1000)) {
        Ok(()) => Err("Linux's search found the lowest fit a hundred thousand times".into()),
        Err(difference) => {
            let text = difference.to_string();
            println!("Linux's search: {}", text.lines().next().unwrap_or_default());
            Ok(())
        }
    }
}
