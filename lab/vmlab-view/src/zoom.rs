//! The script that zooms pictures: drawings with `data-zoom`, and films.

/// The script, which begins no mode of its own: a page says `"use strict"` before it.
pub(crate) const SCRIPT: &str = include_str!("zoom.js");
