//! Stack of a pair, the deepest of many: a random area is freed, and another is allocated. Prints tab-separated rows:
//! interface, live areas, bytes of ours, bytes of the original. Calls of the system's heap are in both.

#[expect(dead_code, reason = "the threads of another program have a stack of a chosen size")]
#[path = "../../../../../check/va-sim/tests/footprint/stack.rs"]
mod stack;

use faces_bench::{Contender, LIVE, Load, for_each_face};

fn main() {
    for live in LIVE {
        for_each_face!(measure, live);
    }
}

fn measure<Ours: Contender, Theirs: Contender>(name: &str, live: usize) {
    match (depth::<Ours>(live), depth::<Theirs>(live)) {
        (Some(ours), Some(theirs)) => println!("{name}\t{live}\t{ours}\t{theirs}"),
        _ => println!("{name}\t{live}\tfails"),
    }
}

/// Returns the bytes of the deepest of so many pairs as there are areas, without those of the thread.
fn depth<C: Contender>(live: usize) -> Option<usize> {
    let mut load = Load::<C>::new(live)?;
    // Thousands of pairs meet each shape of a split and a merge; of many areas the original may take long for each.
    let count = if live > 2_500 { 500 } else { 5_000 };
    let mut done = false;
    let with = stack::raw_depth(&mut || done = load.pairs(count));
    let without = stack::raw_depth(&mut || ());
    done.then_some(with.saturating_sub(without))
}
