//! Each package of `adopt/faces`, and its original, behind one trait.
//!
//! A [`Load`] brings an allocator to a number of live areas with holes between them, and then frees a random area and
//! allocates another, again and again. The same seed means the same calls for both.

#[path = "../../draws.rs"]
mod draws;

use draws::Draws;

/// An allocator of units, with the calls that all have.
pub trait Contender {
    /// An allocated area.
    type Area;

    /// Creates an allocator of `units`, all free.
    fn new(units: u64) -> Self;

    /// Allocates `len` units by the policy of the crate.
    fn alloc(&mut self, len: u64) -> Option<Self::Area>;

    /// Allocates `len` units at `start`, above all areas, in the fastest way that the crate has.
    fn place(&mut self, start: u64, len: u64) -> Option<Self::Area> {
        let _ = start;
        self.alloc(len)
    }

    /// Frees an area.
    fn free(&mut self, area: Self::Area);
}

/// The longest area, in units.
const LEN_MAX: u64 = 16;

/// An allocator with live areas, and the calls to come.
pub struct Load<C: Contender> {
    contender: C,
    areas: Vec<C::Area>,
    draws: Draws,
}

impl<C: Contender> Load<C> {
    /// Allocates `2 * live` areas side by side and frees a random half of them. `None` if a call fails.
    pub fn new(live: usize) -> Option<Self> {
        let mut draws = Draws::new(live as u64);
        let mut contender = C::new(live as u64 * LEN_MAX * 4);
        let mut start = 0;
        let mut areas = Vec::with_capacity(2 * live);
        for _ in 0..2 * live {
            let len = 1 + draws.below(LEN_MAX);
            areas.push(contender.place(start, len)?);
            start += len;
        }
        while areas.len() > live {
            contender.free(areas.swap_remove(draws.below(areas.len() as u64) as usize));
        }
        Some(Self { contender, areas, draws })
    }

    /// Frees an area and allocates another, `count` times. Returns false if a call fails.
    #[inline(never)]
    pub fn pairs(&mut self, count: usize) -> bool {
        for _ in 0..count {
            let at = self.draws.below(self.areas.len() as u64) as usize;
            self.contender.free(self.areas.swap_remove(at));
            let Some(area) = self.contender.alloc(1 + self.draws.below(LEN_MAX)) else { return false };
            self.areas.push(area);
        }
        true
    }
}

/// Implements [`Contender`] for the two crates of an interface.
macro_rules! contenders {
    ($($module:ident)*) => {$(
        impl Contender for free_list_of::$module::FreeList<16> {
            type Area = free_list_of::$module::PageRange;

            fn new(units: u64) -> Self {
                let mut list = Self::new();
                let all = Self::Area::new(0, units as usize * PAGE);
                // SAFETY: no memory is behind the pages.
                _ = all.map(|all| unsafe { list.deallocate(all) });
                list
            }

            fn alloc(&mut self, len: u64) -> Option<Self::Area> {
                let layout = free_list_of::$module::PageLayout::from_size(len as usize * PAGE).ok()?;
                self.allocate(layout).ok()
            }

            fn free(&mut self, area: Self::Area) {
                // SAFETY: no memory is behind the pages.
                _ = unsafe { self.deallocate(area) };
            }
        }

        impl Contender for offset_allocator_of::$module::Allocator {
            type Area = offset_allocator_of::$module::Allocation;

            fn new(units: u64) -> Self {
                // For 100,000 live areas and the free regions between them.
                Self::with_max_allocs(units as u32, 1 << 19)
            }

            fn alloc(&mut self, len: u64) -> Option<Self::Area> {
                self.allocate(len as u32)
            }

            fn free(&mut self, area: Self::Area) {
                self.free(area);
            }
        }

        impl Contender for range_alloc_of::$module::RangeAllocator<u64> {
            type Area = std::ops::Range<u64>;

            fn new(units: u64) -> Self {
                Self::new(0..units)
            }

            fn alloc(&mut self, len: u64) -> Option<Self::Area> {
                self.allocate_range(len).ok()
            }

            fn free(&mut self, area: Self::Area) {
                self.free_range(area);
            }
        }

        impl Contender for vm_allocator_of::$module::AddressAllocator {
            type Area = vm_allocator_of::$module::RangeInclusive;

            fn new(units: u64) -> Self {
                // Two addresses a unit: the original does not merge single ones.
                Self::new(0x1000, 2 * units).expect("a range of addresses")
            }

            fn alloc(&mut self, len: u64) -> Option<Self::Area> {
                self.allocate(2 * len, 2, vm_allocator_of::$module::AllocPolicy::FirstMatch).ok()
            }

            fn place(&mut self, start: u64, len: u64) -> Option<Self::Area> {
                let policy = vm_allocator_of::$module::AllocPolicy::ExactMatch(0x1000 + 2 * start);
                self.allocate(2 * len, 2, policy).ok()
            }

            fn free(&mut self, area: Self::Area) {
                _ = self.free(&area);
            }
        }
    )*};
}

const PAGE: usize = 4096;

/// `free-list`.
pub mod free_list_of {
    pub use free_list as ours;
    pub use free_list_original as theirs;
}

/// `offset-allocator`.
pub mod offset_allocator_of {
    pub use offset_allocator as ours;
    pub use offset_allocator_original as theirs;
}

/// `range-alloc`.
pub mod range_alloc_of {
    pub use range_alloc as ours;
    pub use range_alloc_original as theirs;
}

/// `vm-allocator`.
pub mod vm_allocator_of {
    pub use vm_allocator as ours;
    pub use vm_allocator_original as theirs;
}

contenders!(ours theirs);

/// The numbers of live areas.
pub const LIVE: [usize; 5] = [16, 250, 1_000, 2_500, 100_000];

/// Calls a generic function for each interface: with its name, and with our type and the original's.
#[macro_export]
macro_rules! for_each_face {
    ($function:ident $(, $arg:expr)*) => {
        $function::<
            $crate::free_list_of::ours::FreeList<16>,
            $crate::free_list_of::theirs::FreeList<16>,
        >("free-list" $(, $arg)*);
        $function::<
            $crate::offset_allocator_of::ours::Allocator,
            $crate::offset_allocator_of::theirs::Allocator,
        >("offset-allocator" $(, $arg)*);
        $function::<
            $crate::range_alloc_of::ours::RangeAllocator<u64>,
            $crate::range_alloc_of::theirs::RangeAllocator<u64>,
        >("range-alloc" $(, $arg)*);
        $function::<
            $crate::vm_allocator_of::ours::AddressAllocator,
            $crate::vm_allocator_of::theirs::AddressAllocator,
        >("vm-allocator" $(, $arg)*);
    };
}
