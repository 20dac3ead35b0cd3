//! The options of a space.

/// The number by which a thread finds its unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Index {
    /// The concurrency id (`mm_cid`, Linux 6.3 and later). The running threads of the process have small numbers, so a
    /// process of two threads uses two units on a machine of any size. The CPU is used if the kernel has none.
    #[default]
    ConcurrencyId,
    /// The CPU.
    Cpu,
}

/// The options of a space. Each field has a setter of the same name.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// The number by which a thread finds its unit.
    pub index: Index,
    /// The number of units, from 1 to 8192; by default, that of possible CPUs. Threads with a larger number share one
    /// more unit.
    pub units: Option<u32>,
    /// Uses atomic operations even if restartable sequences are available.
    pub atomics_only: bool,
}

impl Options {
    vmalloc_os::setters! {
        index: Index,
        units: Option<u32>,
        atomics_only: bool,
    }
}
