//! Makes requests for whole pages at an alignment, and prints the errors of invalid ones.
//!
//! `cargo run -p va-base --example request` prints a line for each.

use va_base::{Align, Request, Va, VaRange};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let window = VaRange::from_pages(0x100, 0x1_0000).ok_or("a window from its end to its begin")?;
    for (size_bytes, align_bytes) in
        [(4096, 1), (12 << 10, 64), (16 << 10, 2 << 20), (5000, 64), (0, 4096), (4096, 3)]
    {
        match Request::new(size_bytes, align_bytes) {
            Ok(request) => {
                // The lowest place that a hole over the whole window has for it.
                let at = window.start().align_up(request.align()).ok_or("past the last address")?;
                let bytes = request.size().checked_bytes().ok_or("too many pages")?;
                let range = VaRange::from_size(at, bytes).ok_or("past the last address")?;
                println!(
                    "{size_bytes} bytes, aligned to {align_bytes}: {} pages, at {range}",
                    request.size().get()
                );
                if !window.encloses(range) || !at.is_aligned(request.align()) {
                    return Err(format!("{range} is not in {window}, or not aligned").into());
                }
            }
            Err(error) => println!("{size_bytes} bytes, aligned to {align_bytes}: {error}"),
        }
    }
    // An address is a number: it is compared and rounded, and never read.
    let at = Va::new(0x1234_5678);
    let huge = Align::new(2 << 20).ok_or("no power of two")?;
    println!("{at} lies in page {:#x}, above {}", at.page_floor(), at.align_down(huge));
    Ok(())
}
