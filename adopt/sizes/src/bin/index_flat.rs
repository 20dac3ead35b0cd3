//! An alloc and a free of a sorted array.
#![no_std]
#![no_main]

sizes::program!(sizes::index::PAIR_FLAT);
