//! The distance between units, and the reason why it is a constant.
//!
//! A section finds its unit by a shift that is part of the instruction. That saves a cycle and a register compared with
//! a multiplication, on a path of a few cycles. The unused rest of a unit costs only addresses: pages become resident
//! at the first access.

/// log2 of [`STRIDE`].
pub(super) const STRIDE_SHIFT: usize = 18;
/// Bytes from one unit to the next.
pub(super) const STRIDE: usize = 1 << STRIDE_SHIFT;
/// The most units of a space, so that a chunk is at most 2 GiB of addresses.
pub(super) const UNITS_MAX: u32 = 8193;

const _: () = assert!(STRIDE.is_multiple_of(crate::PAGE_BYTES), "a unit is whole pages");
