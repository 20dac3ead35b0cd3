//! One self-contained HTML file to look at: no network, no font of its own, and one script, which moves the films.
//!
//! Per trace: the table, the address space as a film and over time as a heat map, holes, pages and the largest hole over
//! time, how long calls take on each index; under each figure a sentence that says what one sees in it. Both pictures of
//! the space are drawn from the kernel's own addresses. Per vmallocinfo: its picture. Per file of measurements: ratios,
//! growth, contention, latencies, as far as it holds them.

pub(crate) mod bars;
pub mod chart;
mod dots;
mod figures;
pub mod film;
mod heat;
mod measures;
mod page;
pub mod sheet;

pub use heat::Picture;
pub use page::{Chapter, Map, Part, page};
