//! Tests of `Send`, `Sync` and the variance of public types, as the table in ARCHITECTURE.md lists them.

use vmalloc_vmap::{Frame, Frames, Mapping, Mappings};

fn both<T: Send + Sync>() {}

#[test]
fn types_go_to_other_threads_as_far_as_what_they_hold_does() {
    both::<Mappings>();
    both::<Frames<'_>>();
    both::<Frame<'_>>();
    both::<Mapping<'_>>();
}

/// Lifetimes of owners are covariant: a longer one serves as a shorter one.
#[expect(dead_code, reason = "it is enough that they compile")]
mod shortened {
    use super::{Frame, Frames, Mapping};

    macro_rules! shortened {
        ($($name:ident: $type:ident $(<$value:ty>)?),+ $(,)?) => {$(
            fn $name<'short>(long: $type<'static $(, $value)?>) -> $type<'short $(, $value)?> {
                long
            }
        )+};
    }
    shortened!(frames: Frames, frame: Frame, mapping: Mapping);
}
