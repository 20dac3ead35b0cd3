//! An alloc and a free of a red-black tree.
#![no_std]
#![no_main]

sizes::program!(sizes::index::PAIR_RB);
