//! One self-contained HTML file: no network, no embedded fonts, and one script, for films, zoom and tabs.
//!
//! Each input has a tab. A trace has the address space as a film and over time as a heat map, and holes, pages and the
//! largest hole over time. It also has the same requests under other policies, and the duration of calls on each index.
//! Under each figure a sentence explains it. Both pictures of the space are drawn from the kernel's own addresses. A
//! vmallocinfo has its picture. A file of measurements has ratios, growth, contention and latencies, as far as it has
//! the data. Without the script all tabs are there, one below the other.

mod dots;
pub mod facts;
mod figures;
pub mod film;
mod heat;
pub mod latency;
mod measures;
mod page;
mod section;
pub mod sheet;

pub use heat::Picture;
pub use page::{Chapter, Gain, Map, Part, page};
