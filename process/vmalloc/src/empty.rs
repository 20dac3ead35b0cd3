//! Empty values, which are written to memory without a copy on the stack.

/// Defines the empty value of a type, inside its `impl`. It is a constant, which is written to memory without a copy on
/// the stack. Under loom, whose atomics have no constants, it is a function.
macro_rules! empty_value {
    ($value:expr) => {
        #[cfg(not(loom))]
        #[expect(
            clippy::declare_interior_mutable_const,
            reason = "it is written to the place where it stays, once"
        )]
        pub(crate) const EMPTY: Self = $value;
        #[cfg(loom)]
        pub(crate) fn empty() -> Self {
            $value
        }
    };
}
pub(crate) use empty_value;

/// Writes the empty value of a type to memory.
macro_rules! write_empty {
    ($type:ty, $place:expr) => {{
        #[cfg(not(loom))]
        // SAFETY: the caller allocated the memory for the value, and owns it exclusively.
        unsafe {
            $place.write(<$type>::EMPTY);
        };
        #[cfg(loom)]
        // SAFETY: as before.
        unsafe {
            $place.write(<$type>::empty());
        };
    }};
}
pub(crate) use write_empty;
