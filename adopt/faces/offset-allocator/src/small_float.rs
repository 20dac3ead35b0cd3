//! The sizes of bins, which reports have: numbers with a mantissa of three bits.
//!
//! Bin 8 e + m has sizes from (8 + m) 2^(e - 1) on, and bin m, below 8, has size m.

const MANTISSA_BITS: u32 = 3;
const MANTISSA: u32 = 1 << MANTISSA_BITS;

/// Returns the bin with the largest size that is at most `size`.
pub(crate) fn uint_to_float_round_down(size: u32) -> u32 {
    match size.checked_ilog2() {
        Some(log2) if log2 >= MANTISSA_BITS => {
            let shift = log2 - MANTISSA_BITS;
            // The highest bit is not stored; it raises the exponent by one.
            (shift << MANTISSA_BITS) + (size >> shift)
        }
        _ => size,
    }
}

/// Returns the bin with the smallest size that is at least `size`.
pub(crate) fn uint_to_float_round_up(size: u32) -> u32 {
    let below = uint_to_float_round_down(size);
    below + u32::from(float_to_uint(below) < size)
}

/// Returns the size of a bin. Those above the largest number wrap, as in the original.
pub(crate) fn float_to_uint(bin: u32) -> u32 {
    let (exponent, mantissa) = (bin / MANTISSA, bin % MANTISSA);
    match exponent.checked_sub(1) {
        None => mantissa,
        Some(shift) => (mantissa + MANTISSA) << shift,
    }
}
