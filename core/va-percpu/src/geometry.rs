//! Sizes: units, the sections of the first chunk, lists of chunks.
//!
//! # Theory
//! A unit is one CPU's copy of a chunk. The first chunk begins with the static data of the program, then the reserved
//! section, then the dynamic one:
//!
//! ```text
//!   first chunk   | static | reserved | dynamic |  unused to the end of the unit
//!                 base     a bitmap   a bitmap     (each bitmap begins and ends at whole pages: other bytes are hidden)
//!   others        | dynamic ...................................................|
//! ```
//!
//! Chunks are in lists by the longest run that the engine reports, one list for each power of two. After these are the
//! list of sidelined chunks, that of wholly free ones, and that of those about to be depopulated.
//!
//! # Source
//! Linux `mm/percpu.c` (6.12: `pcpu_setup_first_chunk`, `pcpu_size_to_slot`).

use crate::bitmap::{BIT_BYTES, PAGE_BITS};
use core::fmt;
use va_base::{PAGE_SIZE, Va};

/// Smallest unit, and largest object.
pub const UNIT_BYTES_MIN: u32 = 32 << 10;
/// Largest unit.
pub const UNIT_BYTES_MAX: u32 = 1 << 30;
/// Smallest dynamic section of the first chunk, as in Linux: it serves the allocations before there is a heap.
pub const DYNAMIC_BYTES_MIN: u32 = 20 << 10;
/// The reserved section of a kernel with modules, as in Linux (`PERCPU_MODULE_RESERVE`).
pub const RESERVED_BYTES: u32 = 8 << 10;
/// The dynamic section of the first chunk that a 64-bit machine wishes, as in Linux (`PERCPU_DYNAMIC_RESERVE`).
pub const DYNAMIC_BYTES: u32 = 28 << 10;
/// Most lists that a space can have.
pub(crate) const SLOTS_MAX: usize = 34;

/// The sizes of a geometry, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// A unit: whole pages, at least [`UNIT_BYTES_MIN`].
    pub unit: u32,
    /// Static data at the beginning of the first chunk.
    pub fixed: u32,
    /// The reserved section, a multiple of 4.
    pub reserved: u32,
    /// The dynamic section of the first chunk, at least [`DYNAMIC_BYTES_MIN`].
    pub dynamic: u32,
    /// The unit of allocation for the address space of a chunk: a power of two of at least a page.
    pub atom: u32,
    /// The allocation of address space for each group of CPUs; reported in statistics.
    pub alloc: u32,
    /// Units of a chunk, including padding.
    pub units: u32,
}

/// The reason why sizes are inconsistent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum GeometryError {
    /// The unit is not whole pages, or too small or large.
    BadUnit {
        /// Its bytes.
        unit: u32,
    },
    /// The sections of the first chunk do not fit a unit.
    TooLarge {
        /// Their bytes.
        parts: u64,
        /// The unit's.
        unit: u32,
    },
    /// The dynamic section is smaller than [`DYNAMIC_BYTES_MIN`].
    SmallDynamic {
        /// Its bytes.
        dynamic: u32,
    },
    /// The reserved section is not a multiple of 4.
    BadReserved {
        /// Its bytes.
        reserved: u32,
    },
    /// The atom is not a power of two of at least a page.
    BadAtom {
        /// Its bytes.
        atom: u32,
    },
    /// There are no units.
    NoUnits,
    /// The first chunk does not begin at a page, or it extends past the last address.
    BadBase {
        /// The address that it begins at.
        base: Va,
    },
}

impl fmt::Display for GeometryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadUnit { unit } => write!(
                f,
                "a unit of {unit} bytes is not whole pages from {UNIT_BYTES_MIN} to {UNIT_BYTES_MAX} bytes"
            ),
            Self::TooLarge { parts, unit } => {
                write!(f, "{parts} bytes of the first chunk do not fit a unit of {unit}")
            }
            Self::SmallDynamic { dynamic } => {
                write!(f, "a dynamic part of {dynamic} bytes is less than {DYNAMIC_BYTES_MIN}")
            }
            Self::BadReserved { reserved } => {
                write!(f, "a reserved part of {reserved} bytes is no multiple of {BIT_BYTES}")
            }
            Self::BadAtom { atom } => {
                write!(f, "an atom of {atom} bytes is no power of two of at least a page")
            }
            Self::NoUnits => f.write_str("a chunk of no units"),
            Self::BadBase { base } => write!(f, "the first chunk cannot begin at {base}"),
        }
    }
}

impl core::error::Error for GeometryError {}

/// Consistent sizes, and values derived from them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    sizes: Sizes,
    base: Va,
}

/// A section of the first chunk that has a bitmap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    /// The address that the bitmap begins at.
    pub(crate) base: Va,
    pub(crate) pages: u32,
    /// Bits before the section.
    pub(crate) hidden_before: u32,
    /// Bits after it.
    pub(crate) hidden_after: u32,
}

impl Geometry {
    /// No units: the geometry of a store before `init`.
    pub(crate) const NONE: Self = Self {
        sizes: Sizes { unit: 0, fixed: 0, reserved: 0, dynamic: 0, atom: 0, alloc: 0, units: 0 },
        base: Va::ZERO,
    };

    /// Checks sizes; the first unit of the first chunk begins at `base`.
    ///
    /// # Errors
    /// The first inconsistency.
    pub fn new(sizes: Sizes, base: Va) -> Result<Self, GeometryError> {
        let page = PAGE_SIZE as u32;
        let parts = u64::from(sizes.fixed) + u64::from(sizes.reserved) + u64::from(sizes.dynamic);
        if !sizes.unit.is_multiple_of(page) || !(UNIT_BYTES_MIN..=UNIT_BYTES_MAX).contains(&sizes.unit) {
            return Err(GeometryError::BadUnit { unit: sizes.unit });
        }
        if parts > u64::from(sizes.unit) {
            return Err(GeometryError::TooLarge { parts, unit: sizes.unit });
        }
        // Bytes lost by rounding up the static section to a multiple of 4 are taken from the dynamic one.
        if sizes.dynamic < DYNAMIC_BYTES_MIN {
            return Err(GeometryError::SmallDynamic { dynamic: sizes.dynamic });
        }
        if !sizes.reserved.is_multiple_of(BIT_BYTES) {
            return Err(GeometryError::BadReserved { reserved: sizes.reserved });
        }
        if !sizes.atom.is_power_of_two() || sizes.atom < page {
            return Err(GeometryError::BadAtom { atom: sizes.atom });
        }
        if sizes.units == 0 {
            return Err(GeometryError::NoUnits);
        }
        let end = base.get().checked_add(u64::from(sizes.unit));
        if !base.get().is_multiple_of(PAGE_SIZE) || end.is_none() {
            return Err(GeometryError::BadBase { base });
        }
        Ok(Self { sizes, base })
    }

    /// Returns the sizes that it was created from.
    #[must_use]
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Returns the address that the first unit of the first chunk begins at.
    #[must_use]
    pub fn base(&self) -> Va {
        self.base
    }

    /// Returns the bytes of a unit.
    #[inline]
    #[must_use]
    pub fn unit_bytes(&self) -> u32 {
        self.sizes.unit
    }

    /// Returns the pages of a unit.
    #[inline]
    #[must_use]
    pub fn unit_pages(&self) -> u32 {
        self.sizes.unit / PAGE_SIZE as u32
    }

    /// Returns the bits of a unit.
    #[inline]
    pub(crate) fn unit_bits(&self) -> u32 {
        self.sizes.unit / BIT_BYTES
    }

    fn part(&self, from: u32, bytes: u32) -> Part {
        let before = from % PAGE_SIZE as u32;
        let pages = (before + bytes).div_ceil(PAGE_SIZE as u32);
        Part {
            base: Va::new(self.base.get() + u64::from(from - before)),
            pages,
            hidden_before: before / BIT_BYTES,
            hidden_after: pages * PAGE_BITS - (before + bytes).div_ceil(BIT_BYTES),
        }
    }

    /// Returns the static bytes, rounded up to a multiple of 4.
    fn fixed(&self) -> u32 {
        self.sizes.fixed.next_multiple_of(BIT_BYTES)
    }

    /// Returns the reserved section, if there is one.
    pub(crate) fn reserved(&self) -> Option<Part> {
        (self.sizes.reserved > 0).then(|| self.part(self.fixed(), self.sizes.reserved))
    }

    /// Returns the dynamic section of the first chunk.
    pub(crate) fn dynamic(&self) -> Part {
        let bytes = self.sizes.dynamic - (self.fixed() - self.sizes.fixed);
        // A section ends at a whole number of bits.
        self.part(self.fixed() + self.sizes.reserved, bytes / BIT_BYTES * BIT_BYTES)
    }

    /// Returns the binary logarithm of the grain. The first units of all chunks begin at multiples of it, so the lookup
    /// by address uses it. The first chunk begins at a page, which need not be a multiple of the atom.
    pub(crate) fn grain_shift(&self) -> u32 {
        let Sizes { unit, atom, .. } = self.sizes;
        unit.trailing_zeros().min(atom.trailing_zeros()).min(self.base.get().trailing_zeros())
    }

    pub(crate) fn slots(&self) -> Slots {
        Slots::new(self.sizes.unit)
    }
}

/// The numbers of the lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slots {
    unit: u32,
    /// Sidelined chunks: tried before a wholly free one is used.
    pub(crate) sidelined: u8,
    /// Wholly free chunks.
    pub(crate) free: u8,
    /// Chunks about to be depopulated.
    pub(crate) to_depopulate: u8,
}

impl Slots {
    /// The lists of a store without a geometry.
    pub(crate) const NONE: Self = Self { unit: 0, sidelined: 0, free: 0, to_depopulate: 0 };

    fn new(unit: u32) -> Self {
        let sidelined = Self::by_size(unit) + 1;
        Self { unit, sidelined, free: sidelined + 1, to_depopulate: sidelined + 2 }
    }

    fn by_size(bytes: u32) -> u8 {
        let high = u32::BITS - bytes.leading_zeros();
        high.saturating_sub(3).max(1) as u8
    }

    /// Returns the list of chunks whose longest run has so many bytes; 0 for none, the list of chunks in which nothing
    /// fits.
    #[inline]
    pub(crate) fn of(&self, bytes: u32) -> u8 {
        match bytes {
            0 => 0,
            unit if unit == self.unit => self.free,
            _ => Self::by_size(bytes),
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn sizes(unit: u32) -> Sizes {
        Sizes {
            unit,
            fixed: 221_184,
            reserved: 8192,
            dynamic: 28_672,
            atom: 2 << 20,
            alloc: 2 << 20,
            units: 4,
        }
    }

    #[test]
    fn lists_are_those_of_linux() {
        let slots = Slots::new(256 << 10);
        let all: &[(u32, u8)] = &[
            (4, 1),
            (8, 1),
            (15, 1),
            (16, 2),
            (31, 2),
            (32, 3),
            (63, 3),
            (64, 4),
            (128, 5),
            (256, 6),
            (1 << 10, 8),
            (4 << 10, 10),
            (16 << 10, 12),
            (32 << 10, 13),
            (64 << 10, 14),
        ];
        for &(bytes, slot) in all {
            assert_eq!(slots.of(bytes), slot, "{bytes}");
        }
        assert_eq!(slots.of(0), 0);
        for (unit, sidelined) in [(32, 14), (64, 15), (256, 17), (512, 18)] {
            let slots = Slots::new(unit << 10);
            let found = (slots.sidelined, slots.free, slots.to_depopulate);
            assert_eq!(found, (sidelined, sidelined + 1, sidelined + 2));
            assert_eq!(slots.of(unit << 10), slots.free);
        }
        assert!((Slots::new(UNIT_BYTES_MAX).to_depopulate as usize) < SLOTS_MAX);
    }

    #[test]
    fn the_parts_of_the_first_chunk_begin_and_end_within_pages() {
        let geometry = Geometry::new(sizes(256 << 10), Va::new(1 << 30)).unwrap();
        let reserved = geometry.reserved().unwrap();
        assert_eq!((reserved.pages, reserved.hidden_before, reserved.hidden_after), (2, 0, 0));
        let geometry =
            Geometry::new(Sizes { fixed: 5002, reserved: 20, ..sizes(256 << 10) }, Va::new(1 << 30)).unwrap();
        let reserved = geometry.reserved().unwrap();
        // 5004 = 4096 + 908: 227 bits, then 5 of the section.
        assert_eq!((reserved.hidden_before, reserved.pages, reserved.hidden_after), (227, 1, 1024 - 232));
        let dynamic = geometry.dynamic();
        assert_eq!(dynamic.base, Va::new((1 << 30) + 4096));
        assert_eq!((dynamic.hidden_before, dynamic.pages), (232, 8));
        // 28670 bytes are left, of which 2 are no whole bit.
        assert_eq!(dynamic.hidden_after, 8 * 1024 - 232 - 28_668 / 4);
    }

    #[test]
    fn sizes_that_do_not_go_together_are_errors() {
        let good = sizes(256 << 10);
        let base = Va::new(1 << 30);
        let error = |sizes: Sizes| Geometry::new(sizes, base).unwrap_err();
        assert_eq!(error(Sizes { unit: 4096, ..good }), GeometryError::BadUnit { unit: 4096 });
        assert_eq!(error(Sizes { unit: 40_000, ..good }), GeometryError::BadUnit { unit: 40_000 });
        let large = Sizes { fixed: 250_000, ..good };
        assert_eq!(error(large), GeometryError::TooLarge { parts: 286_864, unit: 262_144 });
        assert_eq!(error(Sizes { dynamic: 4096, ..good }), GeometryError::SmallDynamic { dynamic: 4096 });
        assert_eq!(error(Sizes { reserved: 6, ..good }), GeometryError::BadReserved { reserved: 6 });
        assert_eq!(error(Sizes { atom: 12288, ..good }), GeometryError::BadAtom { atom: 12288 });
        assert_eq!(error(Sizes { units: 0, ..good }), GeometryError::NoUnits);
        for base in [Va::new(12), Va::new(u64::MAX - 4095)] {
            assert_eq!(Geometry::new(good, base).unwrap_err(), GeometryError::BadBase { base });
        }
    }
}
