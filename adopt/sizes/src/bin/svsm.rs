//! The port to COCONUT-SVSM.
#![no_std]
#![no_main]

sizes::program!(sizes::ports::SVSM);
