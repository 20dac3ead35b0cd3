//! The chapters of the book whose Rust is compiled and run with the examples of documentation, and nothing else.

macro_rules! chapters {
    ($($name:ident $path:literal)*) => {
        $(#[doc = include_str!(concat!("../../../docs/book/src/", $path))]
        mod $name {})*
    };
}

chapters! {
    walk "walk.md"
    holes "holes.md"
    blocks "blocks.md"
    using "using.md"
    porting "porting.md"
}
