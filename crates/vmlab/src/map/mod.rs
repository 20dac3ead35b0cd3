//! The address space as a picture.

pub mod fold;
