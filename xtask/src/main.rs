//! Everything that is run on the tree.
fn main() {}
