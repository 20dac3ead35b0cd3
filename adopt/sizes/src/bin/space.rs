//! A space.
#![no_std]
#![no_main]

sizes::program!(sizes::space::ROWS);
