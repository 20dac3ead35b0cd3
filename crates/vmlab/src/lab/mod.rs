//! Indexes that serve comparison only: where the field came from, and what it thought of next.
//!
//! | index | what it is |
//! |---|---|
//! | [`list`] | what Linux did before 5.2: walk the busy areas from a cached one |
//! | [`treap`] | one balanced tree of holes in three variants: maxima set right at once, lazily, and with the last hole cached |
//! | [`splay`] | a splay tree of holes |
//! | [`first_fit`] | a `BTreeMap` of holes searched from the front: what one writes in an afternoon |
//!
//! The three middle ones are the to-do list of the talk that presented Linux's tree; `results/` says what they bring.

pub mod first_fit;
pub mod list;
pub mod splay;
pub mod treap;
