//! Draws the mappings of this process as letters.

use std::fs::File;
use vmlab_view::map::Picture;
use vmlab_view::map::blocks::{Look, Style, draw};
use vmlab_view::map::process::Mappings;

fn main() -> std::io::Result<()> {
    let mappings = Mappings::read(File::open("/proc/self/maps")?, None);
    let picture = Picture::of("this process", mappings.listing, Vec::new());
    println!("{}", draw(&picture, Look { style: Style::Ascii, width: 80, rows: 20 }).trim_end());
    println!("{}", picture.summary());
    Ok(())
}
