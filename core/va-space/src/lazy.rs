//! The number of freed pages that may wait before a purge.
//!
//! # Theory
//! An address may be used again only after every CPU has dropped its old translation. A flush interrupts all CPUs, so
//! freed areas wait, and one flush serves many. More CPUs make a flush more expensive and free more areas meanwhile.
//! But areas that wait occupy addresses and memory, so the threshold grows with the logarithm of the number of CPUs.
//!
//! # Source
//! Linux `mm/vmalloc.c` (6.12: `lazy_max_pages`).

use va_base::{PAGE_SIZE, Pages};

/// Bytes that may wait, for each bit of the number of CPUs.
const BYTES_A_BIT: u64 = 32 << 20;

/// Returns the most pages that may wait in a system with `cpus` CPUs online.
///
/// ```
/// assert_eq!(va_space::lazy::lazy_max_pages(16).get(), 40_960);
/// ```
#[must_use]
pub const fn lazy_max_pages(cpus: u32) -> Pages {
    let bits = u32::BITS - cpus.leading_zeros();
    Pages::new(bits as u64 * (BYTES_A_BIT / PAGE_SIZE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_answers_for_1_to_256_cpus() {
        let cpus = [1, 2, 3, 4, 7, 8, 16, 64, 128, 256];
        let pages = [8192, 16384, 16384, 24576, 24576, 32768, 40960, 57344, 65536, 73728];
        assert_eq!(cpus.map(|cpus| lazy_max_pages(cpus).get()), pages);
        assert_eq!(lazy_max_pages(0).get(), 0);
        assert_eq!(lazy_max_pages(u32::MAX).get(), 32 * 8192);
    }
}
