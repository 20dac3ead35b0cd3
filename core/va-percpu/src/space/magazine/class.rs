//! The sizes of cached objects.

use crate::bitmap::{BIT_BYTES, PAGE_BITS};
use crate::engine::Want;

/// Bytes of the objects of each class. An object is aligned to the largest power of two that divides its size.
pub(crate) const SIZES: [u32; 10] = [8, 16, 24, 32, 48, 64, 96, 128, 192, 256];
/// The number of classes.
pub(crate) const CLASSES: usize = SIZES.len();
/// The largest size.
const LARGEST: usize = SIZES[CLASSES - 1] as usize;
/// The smallest step between two sizes.
const STEP: usize = 8;

/// The smallest class for each number of steps.
const BY_STEPS: [u8; LARGEST / STEP + 1] = {
    let mut of = [0; LARGEST / STEP + 1];
    let (mut steps, mut class) = (0, 0);
    while steps < of.len() {
        if steps * STEP > SIZES[class] as usize {
            class += 1;
        }
        of[steps] = class as u8;
        steps += 1;
    }
    of
};

/// Returns the smallest class for an object of a size and an alignment, if there is one.
#[inline(always)]
pub(super) fn of(size: usize, align: usize) -> Option<usize> {
    if size.wrapping_sub(1) >= LARGEST {
        return None;
    }
    let mut class = usize::from(BY_STEPS[size.div_ceil(STEP)]);
    if align > STEP {
        if !align.is_power_of_two() {
            return None;
        }
        while class < CLASSES && !(SIZES[class] as usize).is_multiple_of(align) {
            class += 1;
        }
    } else if align & align.wrapping_sub(1) != 0 {
        return None;
    }
    (class < CLASSES).then_some(class)
}

/// Returns the request of an object of a class to the store.
pub(super) fn want(class: usize) -> Want {
    let bits = SIZES[class] / BIT_BYTES;
    Want { bits, align: 1 << bits.trailing_zeros() }
}

const _: () = assert!(SIZES[CLASSES - 1] / BIT_BYTES <= PAGE_BITS);

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_class_that_fits_is_chosen() {
        for size in 0..=300usize {
            for align in [0, 1, 2, 3, 4, 8, 12, 16, 32, 64, 128, 256, 512, 4096] {
                let legal = align == 0 || usize::is_power_of_two(align);
                let fits =
                    |bytes: u32| bytes as usize >= size && (bytes as usize).is_multiple_of(align.max(1));
                let want = SIZES.iter().position(|&bytes| size > 0 && legal && fits(bytes));
                assert_eq!(of(size, align), want, "{size} at {align}");
            }
        }
        assert_eq!(of(usize::MAX, 1), None);
    }

    #[test]
    fn an_object_is_aligned_as_its_class_says() {
        let wants = [0, 2, 4, 9].map(want);
        assert_eq!(wants.map(|want| (want.bits, want.align)), [(2, 2), (6, 2), (12, 4), (64, 64)]);
    }
}
