//! The policies of blocks, bundled: each difference between Linux and this crate is a type or a number here.
//!
//! | | [`OneMap63`] | [`Linux64`] | [`Standard`] |
//! |---|---|---|---|
//! | stands for | Linux up to 6.3: one lookup | Linux 6.4 to 6.12: lookup hashed over CPUs | ours |
//! | space | [`OneLock52`] | [`Linux69`] | [`va_space::config::Standard`] |
//! | pages consumed | rounded up to a power of two | the same | exactly those requested |
//! | which block | the first of the CPU that has room | the same | the one used last, then the first that has room |
//! | dead pages | never reused; the block is released with its last | the same | reused after a flush |
//! | before a request fails | nothing more | the same | pages of other CPUs' blocks |
//! | a flush for blocks | by `unmap_aliases` | the same | and when as many pages are dead as may be lazy |

use core::marker::PhantomData;
use va_base::Pages;
use va_space::config::{Linux69, OneLock52};
use va_space::lazy::lazy_max_pages;

/// Largest request that a block meets, in pages: the bits of a word in Linux.
pub const ALLOC_PAGES_MAX: u64 = 64;
/// Requests that may sleep and take pages of other CPUs at once, after one found the space full. The next one asks the
/// space again.
pub const SHARED_MOST: u32 = 256;

/// Returns the pages of a block of Linux on a machine built for `nr_cpus` CPUs (64 bits, pages of 4 KiB).
///
/// A sixteenth of each CPU's share of 128 GiB, so that blocks of all CPUs together stay a small
/// part of the space. At least two of the largest requests, at most 4 MiB. Always a power of two.
#[must_use]
pub const fn bbmap_bits(nr_cpus: u32) -> u64 {
    const VMALLOC_PAGES: u64 = (128 << 30) >> va_base::PAGE_SHIFT;
    // 2^31 CPUs and more: `next_power_of_two` of a u64 cannot overflow.
    let share = VMALLOC_PAGES / (nr_cpus as u64).next_power_of_two() / 16;
    if share < 2 * ALLOC_PAGES_MAX {
        2 * ALLOC_PAGES_MAX
    } else if share > 1024 {
        1024
    } else {
        share
    }
}

/// The distribution of blocks over the locks of the lookup by address.
pub trait Spread: 'static {
    /// Returns the CPU whose lock guards the entry of block `index`, below `cpus`.
    fn bucket(index: u32, cpus: u32) -> u32;
}

/// A lock for each possible CPU, chosen by address, since a caller that frees has only the address.
///
/// CPUs are numbered densely here, so every bucket exists (Linux has to skip ids of CPUs that are not possible).
#[derive(Clone, Copy, Debug)]
pub struct Hashed;

impl Spread for Hashed {
    #[inline]
    fn bucket(index: u32, cpus: u32) -> u32 {
        index % cpus.max(1)
    }
}

/// One lock for all.
#[derive(Clone, Copy, Debug)]
pub struct OneMap;

impl Spread for OneMap {
    #[inline]
    fn bucket(_index: u32, _cpus: u32) -> u32 {
        0
    }
}

/// A bundle of policies, constant for a set of blocks, without cost at run time.
///
/// A policy states what it changes, and has every other number from its [`Base`](Config::Base).
pub trait Config: 'static {
    /// The policy whose numbers this one has where it states none. One that is its own base states them all.
    type Base: Config;
    /// The policies of the space below.
    type Space: va_space::Config;
    /// The locks of the lookup.
    type Spread: Spread;

    /// True if dead pages are used again once flushed. If not, a block is released to the space with its last mapping.
    const REUSE: bool = Self::Base::REUSE;
    /// True if a request uses the next power of two of pages; otherwise it uses the requested pages.
    const ROUND_UP: bool = Self::Base::ROUND_UP;
    /// True if each request searches from the oldest block that has room.
    const FIRST_FIT: bool = Self::Base::FIRST_FIT;
    /// Blocks that one slice of a collection handles, at least 1.
    const SLICE_BLOCKS: u32 = Self::Base::SLICE_BLOCKS;
    /// Pages that one CPU frees before it adds them to the count of all CPUs.
    const REPORT_PAGES: u64 = Self::Base::REPORT_PAGES;

    /// Returns the pages of a block: a power of two from 64 to 1024, with `cpus` CPUs possible.
    #[must_use]
    fn block_pages(cpus: u32) -> u64 {
        Self::Base::block_pages(cpus)
    }

    /// Returns the pages that a request for `pages` uses up in a block.
    #[inline(always)]
    #[must_use]
    fn consumed(pages: u32) -> u32 {
        if Self::ROUND_UP { pages.next_power_of_two() } else { pages }
    }

    /// Returns the dead pages that begin a collection, with `cpus` CPUs online.
    #[must_use]
    fn dead_max(cpus: u32) -> Pages {
        Self::Base::dead_max(cpus)
    }

    /// Returns true if an unforced purge releases a block without live pages, of whose `pages` `free` were never used.
    #[must_use]
    fn is_fragmented(free: u64, pages: u64) -> bool {
        free < pages / 4
    }
}

/// Linux up to 6.3: one lock over all of the lookup.
#[derive(Clone, Copy, Debug)]
pub struct OneMap63;

/// Linux 6.4 to 6.12.
#[derive(Clone, Copy, Debug)]
pub struct Linux64;

macro_rules! linux {
    ($name:ident, $space:ty, $spread:ty) => {
        impl Config for $name {
            type Base = Self;
            type Space = $space;
            type Spread = $spread;
            const REUSE: bool = false;
            const ROUND_UP: bool = true;
            const FIRST_FIT: bool = true;
            const SLICE_BLOCKS: u32 = u32::MAX;
            const REPORT_PAGES: u64 = 256;

            /// As in a kernel built for 256 CPUs.
            fn block_pages(_cpus: u32) -> u64 {
                bbmap_bits(256)
            }

            fn dead_max(cpus: u32) -> Pages {
                lazy_max_pages(cpus)
            }
        }
    };
}

linux!(OneMap63, OneLock52, OneMap);
linux!(Linux64, Linux69, Hashed);

/// The policies of this project: dead pages are reused after a flush, and requests are not rounded up.
#[derive(Clone, Copy, Debug)]
pub struct Standard;

impl Config for Standard {
    type Base = Self;
    type Space = va_space::config::Standard;
    type Spread = Hashed;
    const REUSE: bool = true;
    const ROUND_UP: bool = false;
    const FIRST_FIT: bool = false;
    const SLICE_BLOCKS: u32 = 64;
    const REPORT_PAGES: u64 = 256;

    fn block_pages(cpus: u32) -> u64 {
        bbmap_bits(cpus)
    }

    fn dead_max(cpus: u32) -> Pages {
        lazy_max_pages(cpus)
    }
}

/// The policies `C`, except that the blocks are areas of a space with the policies `S`.
///
/// ```
/// use va_base::{HeapMachine, VaRange};
/// use va_block::Blocks;
/// use va_block::config::{Standard, WithSpace};
/// use va_space::VmapSpace;
/// use va_space::config::WithAmple;
///
/// type Policies = WithSpace<Standard, WithAmple<va_space::config::Standard>>;
/// let window = VaRange::from_pages(0x100, 0x10_0000).unwrap();
/// let machine = HeapMachine::<parking_lot::RawMutex>::new(1);
/// let space = VmapSpace::<_, WithAmple<va_space::config::Standard>>::new(window, window, &machine)?;
/// let blocks = Blocks::<_, Policies>::new(space, &machine)?;
/// let at = blocks.alloc(0, 3)?;
/// blocks.free(0, at, 3)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct WithSpace<C, S>(PhantomData<fn() -> (C, S)>);

impl<C: Config, S: va_space::Config> Config for WithSpace<C, S> {
    type Base = C;
    type Space = S;
    type Spread = C::Spread;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn o7_pages_of_a_block_by_cpus() {
        for (nr_cpus, bits) in
            [(0, 1024), (1, 1024), (2, 1024), (3, 1024), (2048, 1024), (2049, 512), (4096, 512)]
        {
            assert_eq!(bbmap_bits(nr_cpus), bits, "{nr_cpus} CPUs");
        }
        assert_eq!([8192, 16384, 1 << 20, u32::MAX].map(bbmap_bits), [256, 128, 128, 128]);
    }

    #[test]
    fn o7_linux_rounds_up_to_a_power_of_two_and_we_do_not() {
        assert_eq!([1, 2, 3, 5, 33, 64].map(Linux64::consumed), [1, 2, 4, 8, 64, 64]);
        assert_eq!([1, 2, 3, 5, 33, 64].map(Standard::consumed), [1, 2, 3, 5, 33, 64]);
    }

    #[test]
    fn o7_a_quarter_unused_saves_a_block_from_an_unforced_purge() {
        assert!(Linux64::is_fragmented(255, 1024) && !Linux64::is_fragmented(256, 1024));
    }
}
