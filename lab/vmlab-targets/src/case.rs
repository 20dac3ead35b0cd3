//! The tests of the suite: their bits, their names, and the versions of the suite that have them.
//!
//! # Source
//! Linux `lib/test_vmalloc.c`: 6.12, and the version since 7.1 (`xfail`, `no_block_alloc_test`, `vrealloc_test`).

use vmlab_base::choice::Choice;

/// A test, in the order of its bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Case {
    /// `nr_pages` pages, repeatedly.
    FixSize,
    /// A page, beside thousands of lazy holes of two pages.
    FullFit,
    /// A hundred pages and one, beside 15,000 busy areas.
    LongBusyList,
    /// 1 to 100 pages.
    RandomSize,
    /// Five pages, aligned to two stacks of a thread.
    FixAlign,
    /// 1 to 10 pages at up to 4 MiB.
    RandomSizeAlign,
    /// A page at every power of two.
    AlignShift,
    /// Per-CPU objects.
    Pcpu,
    /// A page, freed after a grace period by a caller that may sleep.
    KvfreeRcu1,
    /// The same, by a caller that may not sleep.
    KvfreeRcu2,
    /// `nr_pages` pages mapped for a short time.
    VmMapRam,
    /// `nr_pages` pages for a caller that may not sleep.
    NoBlock,
    /// A page that grows and shrinks.
    Vrealloc,
}

/// A version of the suite.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Suite {
    /// The newest that is known: that of Linux 7.1
    #[default]
    V7_1,
    /// That of Linux 6.12
    V6_12,
}

impl Choice for Suite {
    const CHOICES: &'static [Self] = &[Self::V7_1, Self::V6_12];

    fn choice(self) -> &'static str {
        self.name()
    }

    fn about(self) -> &'static str {
        match self {
            Self::V7_1 => "The newest that is known: that of Linux 7.1",
            Self::V6_12 => "That of Linux 6.12",
        }
    }

    fn aliases(self) -> &'static [&'static str] {
        match self {
            Self::V7_1 => &["newest"],
            Self::V6_12 => &[],
        }
    }
}

impl Case {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::FixSize,
        Self::FullFit,
        Self::LongBusyList,
        Self::RandomSize,
        Self::FixAlign,
        Self::RandomSizeAlign,
        Self::AlignShift,
        Self::Pcpu,
        Self::KvfreeRcu1,
        Self::KvfreeRcu2,
        Self::VmMapRam,
        Self::NoBlock,
        Self::Vrealloc,
    ];

    /// Returns its index, from 0.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns its bit in `run_test_mask`.
    pub const fn bit(self) -> u32 {
        1 << self as u32
    }

    /// Returns the kernel's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FixSize => "fix_size_alloc_test",
            Self::FullFit => "full_fit_alloc_test",
            Self::LongBusyList => "long_busy_list_alloc_test",
            Self::RandomSize => "random_size_alloc_test",
            Self::FixAlign => "fix_align_alloc_test",
            Self::RandomSizeAlign => "random_size_align_alloc_test",
            Self::AlignShift => "align_shift_alloc_test",
            Self::Pcpu => "pcpu_alloc_test",
            Self::KvfreeRcu1 => "kvfree_rcu_1_arg_vmalloc_test",
            Self::KvfreeRcu2 => "kvfree_rcu_2_arg_vmalloc_test",
            Self::VmMapRam => "vm_map_ram_test",
            Self::NoBlock => "no_block_alloc_test",
            Self::Vrealloc => "vrealloc_test",
        }
    }

    /// Returns true if a suite that has expected failures does not count its failure.
    pub const fn may_fail(self) -> bool {
        matches!(self, Self::AlignShift | Self::NoBlock)
    }
}

impl Suite {
    /// Returns its tests, in the order of their bits.
    pub fn cases(self) -> &'static [Case] {
        match self {
            Self::V7_1 => &Case::ALL,
            Self::V6_12 => &Case::ALL[..=Case::VmMapRam.index()],
        }
    }

    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::V7_1 => "7.1",
            Self::V6_12 => "6.12",
        }
    }

    /// Returns the default of `run_test_mask`.
    pub const fn mask(self) -> u32 {
        match self {
            Self::V7_1 => 7,
            Self::V6_12 => i32::MAX as u32,
        }
    }

    /// Returns true if expected failures are counted separately.
    pub const fn xfails(self) -> bool {
        matches!(self, Self::V7_1)
    }
}
