//! Tests of `Send`, `Sync` and the variance of public types, as the table in ARCHITECTURE.md lists them.
//!
//! Code that must not compile is in `compile_fail` examples of the types, and in `lacks!` here.

use std::cell::Cell;
use std::rc::Rc;
use vmalloc_percpu::{
    Local, PerCpu, PerCpuBox, PerCpuCounter, PerCpuList, PerCpuRef, Space, Static, View, Word,
};

fn both<T: Send + Sync>() {}

/// Checks that a type lacks a trait. If it had the trait, two implementations would apply, and the call would be
/// ambiguous.
macro_rules! lacks {
    ($trait:ident: $($type:ty),+) => {$({
        trait Either<A> {
            fn which() {}
        }
        impl<T: ?Sized> Either<()> for T {}
        struct Has;
        impl<T: ?Sized + $trait> Either<Has> for T {}
        <$type as Either<_>>::which();
    })+};
}

#[test]
fn types_go_to_other_threads_as_far_as_what_they_hold_does() {
    both::<Space>();
    both::<Word>();
    both::<Local<'_>>();
    both::<PerCpuBox<'_>>();
    both::<PerCpuCounter<'_>>();
    both::<Static<Word>>();
    both::<PerCpu<'_, String>>();
    both::<View<'_, String>>();
    // A list is `Sync` if its values are `Send`: no reference to a value in a list exists.
    both::<PerCpuList<'_, Cell<u8>>>();
    both::<PerCpuRef<'_, fn()>>();
    lacks!(Send: PerCpuList<'_, Rc<u8>>, PerCpu<'_, Rc<u8>>, PerCpu<'_, Cell<u8>>, View<'_, Cell<u8>>);
    lacks!(Sync: PerCpuList<'_, Rc<u8>>, PerCpu<'_, Rc<u8>>, PerCpu<'_, Cell<u8>>, View<'_, Cell<u8>>);
    // Any thread with a reference may call the release function.
    lacks!(Send: PerCpuRef<'_, Box<dyn Fn()>>);
    lacks!(Sync: PerCpuRef<'_, Box<dyn Fn()>>, PerCpuRef<'_, Box<dyn Fn() + Send>>);
}

/// Lifetimes of owners are covariant: a longer one serves as a shorter one.
#[expect(dead_code, reason = "it is enough that they compile")]
mod shortened {
    use super::{Local, PerCpu, PerCpuBox, PerCpuCounter, PerCpuList, View, Word};

    macro_rules! shortened {
        ($($name:ident: $type:ident $(<$value:ty>)?),+ $(,)?) => {$(
            fn $name<'short>(long: $type<'static $(, $value)?>) -> $type<'short $(, $value)?> {
                long
            }
        )+};
    }
    shortened!(
        local: Local,
        object: PerCpu<Word>,
        bytes: PerCpuBox,
        counter: PerCpuCounter,
        list: PerCpuList<u8>,
        view: View<Word>,
    );

    /// Values are only read through these, so their lifetime may be shortened, as through a shared reference.
    fn values<'short>(long: PerCpu<'static, &'static str>) -> PerCpu<'static, &'short str> {
        long
    }
}
