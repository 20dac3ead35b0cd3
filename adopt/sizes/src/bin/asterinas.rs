//! The port to Asterinas.
#![no_std]
#![no_main]

sizes::program!(sizes::ports::ASTERINAS);
