//! The port to Hermit.
#![no_std]
#![no_main]

sizes::program!(sizes::ports::HERMIT);
