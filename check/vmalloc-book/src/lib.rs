//! The Rust of the README and of the book's chapters, compiled and run as examples of documentation, and nothing else.
//!
//! A crate of its own, which is not published: these pages lie outside of every crate's folder, so a package cannot
//! hold them.

macro_rules! pages {
    ($($name:ident $path:literal)*) => {
        $(#[cfg(doctest)]
        #[doc = include_str!(concat!("../../../", $path))]
        mod $name {})*
    };
}

pages! {
    readme "README.md"
    walk "docs/book/src/walk.md"
    holes "docs/book/src/holes.md"
    blocks "docs/book/src/blocks.md"
    using "docs/book/src/using.md"
    porting "docs/book/src/porting.md"
}
