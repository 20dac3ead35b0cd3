//! One self-contained HTML file to look at: no script, no network, no font of its own.
//!
//! Per trace: the address space over time as a heat map, holes and the largest hole over time, how long calls take on each
//! index, and the table. The picture of the space is drawn from the kernel's own addresses.

pub mod chart;
mod heat;
mod page;

pub use heat::Picture;
pub use page::{Chapter, page};
