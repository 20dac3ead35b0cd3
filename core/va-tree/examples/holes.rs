//! The lowest fit, by two structures that must agree: a B+tree of holes, and a red-black tree with an exact search.
//!
//! `cargo run -p va-tree --example holes` cuts a space into areas, frees every third, and fills the holes again.

use va_base::{Heap, NoSlabs, Request, Va, VaRange};
use va_tree::rb::Exact;
use va_tree::{BTreeIndex, FreeIndex, RbIndex};

/// Calls an index and returns the addresses of the last requests.
fn work(index: &mut impl FreeIndex) -> Result<Vec<Va>, Box<dyn std::error::Error>> {
    let mut pieces = Vec::new();
    for number in 0..3000 {
        let request = Request::pages(1 + number % 7)?;
        let at = index.alloc(&request)?;
        let bytes = request.size().checked_bytes().ok_or("too many pages")?;
        pieces.push(VaRange::from_size(at, bytes).ok_or("past the last address")?);
    }
    for piece in pieces.iter().step_by(3) {
        index.free(*piece)?;
    }
    println!("{} holes, the largest of {} pages", index.hole_count(), index.largest_hole().get());
    // The lowest hole that holds each, whatever the alignment.
    let mut found = Vec::new();
    for (pages, align_bytes) in [(1, 4096), (3, 4096), (3, 32 << 10), (7, 64 << 10), (16, 2 << 20)] {
        found.push(index.alloc(&Request::new(pages * 4096, align_bytes)?)?);
    }
    // A range that was not taken cannot be freed, and nothing changes.
    if index.free(VaRange::from_pages(0xff_0000, 0xff_0001).ok_or("no range")?).is_ok() {
        return Err("a page was freed that was not allocated".into());
    }
    index.validate()?;
    Ok(found)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let space = VaRange::from_pages(0x100, 0x100_0000).ok_or("no range")?;
    let tree = work(&mut BTreeIndex::new(space, space, Heap)?)?;
    let other = work(&mut RbIndex::<Exact, _>::new(space, space, Heap)?)?;
    println!("{tree:?}");
    if tree != other {
        return Err(format!("the red-black tree returns {other:?}").into());
    }
    // Without memory for records an index has room for some holes inside itself, and then fails: nothing has changed.
    let mut small = BTreeIndex::new(space, space, NoSlabs)?;
    let mut every_other =
        (0x100..0x100_0000).step_by(2).filter_map(|page| VaRange::from_pages(page + 1, page + 2));
    let error =
        every_other.find_map(|page| small.take(page).err()).ok_or("holes without end in no memory")?;
    println!("{} holes without memory to borrow, then: {error}", small.hole_count());
    small.validate()?;
    Ok(())
}
