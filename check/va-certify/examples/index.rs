//! An index whose every answer is checked, and an answer with a wrong reason.
//!
//! `cargo run -p va-certify --example index`

use va_base::{Heap, Request, VaRange};
use va_certify::{Bound, Certified, Checker, Fit};
use va_tree::{BTreeIndex, FreeIndex};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let space = VaRange::from_pages(16, 1 << 20).ok_or("no range")?;
    let mut index = Certified::new(BTreeIndex::new(space, space, Heap)?);
    let mut areas = Vec::new();
    for n in 0..20_000u64 {
        areas.push((index.alloc(&Request::new((1 + n % 7) * 4096, 4096 << (n % 5))?)?, (1 + n % 7) * 4096));
        if n % 3 > 0 {
            let (at, size) = areas.swap_remove((n * n) as usize % areas.len());
            index.free(VaRange::from_size(at, size).ok_or("no range")?)?;
        }
    }
    println!(
        "20000 allocations and 13333 frees, {} holes: every certificate is accepted",
        index.hole_count()
    );
    // Units 0 to 2 and 5 to 9 are free. An index that missed the lower hole would have to say so.
    let mut checker = Checker::new(0, 10);
    checker.take((3, 5), (0, 10), [Some((0, 3)), Some((5, 10))])?;
    let request = va_certify::Request { size: 2, align_log2: 0, low: 0, high: 10, fit: Fit::Lowest };
    let bound = Bound::AtMost { low: 0, high: 6, longest: 1, align_log2: 0 };
    match checker.fits(&request, 5, (5, 10), &[bound]) {
        Ok(()) => Err("a wrong answer is accepted".into()),
        Err(lie) => {
            println!("not accepted: {lie}");
            Ok(())
        }
    }
}
