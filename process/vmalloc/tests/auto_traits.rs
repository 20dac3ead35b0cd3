//! Tests of `Send`, `Sync` and the variance of public types, as the table in ARCHITECTURE.md lists them.

use vmalloc::{Buffer, LargeAlloc, Vmalloc};

fn both<T: Send + Sync>() {}

#[test]
fn types_go_to_other_threads_as_far_as_what_they_hold_does() {
    both::<Vmalloc>();
    both::<LargeAlloc<std::alloc::System>>();
    both::<Buffer<'_>>();
}

/// Its lifetime is covariant: a longer one serves as a shorter one.
#[expect(dead_code, reason = "it is enough that it compiles")]
fn shortened<'short>(long: Buffer<'static>) -> Buffer<'short> {
    long
}
