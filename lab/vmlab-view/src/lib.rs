//! Pictures of address spaces, and reports of replays and measurements.
//!
//! | module | content |
//! |---|---|
//! | [`flame`] | call stacks and their weights as a flame graph |
//! | [`map`] | the address space at one time as a picture |
//! | [`report`] | one self-contained HTML file |
//! | [`shape`] | the two shapes of a picture: for a page, and for a telephone |

#![deny(clippy::print_stdout, clippy::print_stderr)]
#![warn(missing_debug_implementations)]

pub mod flame;
pub mod map;
pub mod report;
pub mod shape;
mod zoom;

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The body of the fuzz target `vmallocinfo_text`. Any bytes are read, measured and drawn, and the sums agree. The
/// readers of mappings, of places that allocate, and of measurements in both forms, terminate.
pub fn fuzz(data: &[u8]) {
    let text = map::read::Text::read(data, None);
    let listing = &text.listing;
    let areas = listing.areas.len() as u64 + listing.overlapping + listing.beyond;
    assert!(areas <= text.lines, "{areas} areas of {} lines", text.lines);
    assert!(listing.areas.windows(2).all(|pair| pair[0].part.end <= pair[1].part.start), "ML1");
    map::fuzz_draw(listing);
    let mappings = map::process::Mappings::read(data, None);
    assert!(mappings.listing.areas.len() as u64 <= mappings.lines, "an area without a line");
    let sites = vmlab_trace::allocinfo::Sites::read(data);
    let lines = data.split(|&byte| byte == b'\n').count();
    assert!(sites.sites.len() as u64 + sites.beyond + sites.bad <= lines as u64, "a place without a line");
    // Input without a measurement is an error; SH1 is checked where rows are read.
    for sheet in [report::sheet::Sheet::of_csv("fuzz", data), report::sheet::Sheet::of_json("fuzz", data)]
        .into_iter()
        .flatten()
    {
        assert!(!sheet.rows.is_empty(), "a sheet of nothing");
    }
}
