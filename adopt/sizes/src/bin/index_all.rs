//! Every change of an index.
#![no_std]
#![no_main]

sizes::program!(sizes::index::ALL);
