//! An alloc and a free of an index.
#![no_std]
#![no_main]

sizes::program!(sizes::index::PAIR);
