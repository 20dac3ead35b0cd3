//! One self-contained HTML file to look at: no script, no network, no font of its own.
//!
//! Per trace: the table, the address space over time as a heat map, holes, pages and the largest hole over time, how long
//! calls take on each index; under each figure a sentence that says what one sees in it. The picture of the space is drawn from the kernel's own addresses.

pub(crate) mod bars;
pub mod chart;
mod figures;
mod heat;
mod page;

pub use heat::Picture;
pub use page::{Chapter, page};
