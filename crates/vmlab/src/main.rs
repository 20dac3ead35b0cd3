//! The laboratory of `vmalloc`.
fn main() {}
