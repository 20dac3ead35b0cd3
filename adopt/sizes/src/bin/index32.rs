//! An alloc and a free of an index with 32-bit keys.
#![no_std]
#![no_main]

sizes::program!(sizes::index::PAIR_32);
