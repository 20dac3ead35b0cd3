//! A program that makes no call: what every other one has too.
#![no_std]
#![no_main]

sizes::program!(&[]);
