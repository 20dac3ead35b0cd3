//! The size of an allocator for one object.

use crate::small_float;

/// Returns the size of an allocator in which the original can allocate `needed_object_size` units: that size rounded up
/// to the size of a bin. For this crate the size itself is enough.
///
/// ```
/// use offset_allocator::ext::min_allocator_size;
/// assert_eq!([7, 17, 1000].map(min_allocator_size), [7, 18, 1024]);
/// ```
pub fn min_allocator_size(needed_object_size: u32) -> u32 {
    small_float::float_to_uint(small_float::uint_to_float_round_up(needed_object_size))
}
