//! The address space of four earlier versions of Linux, as targets.
//!
//! # Theory
//! | target | Linux | search | areas | mappings of a few pages |
//! |---|---|---|---|---|
//! | `list` | up to 5.1 | walks the busy areas from a cached one | one lock | one lookup of blocks |
//! | `one-lock` | 5.2 to 6.3 | red-black tree of holes | one lock | one lookup of blocks |
//! | `hashed` | 6.4 to 6.8 | the same | one lock | a lookup for each CPU |
//! | `nodes` | 6.9 to 6.12 | the same, behind pools | a node for each CPU | a lookup for each CPU |
//!
//! They are policies of our own space, blocks and per-CPU memory. So two rows differ only in the columns of the table,
//! and in no other code. All free lazily, and purge everything when as many pages are lazy as in Linux.
//!
//! Differences from those versions: until 5.4 one lock guarded both the search and the tree of busy areas; here they
//! are two, as since 5.5. So `list`, and `one-lock` for 5.2 to 5.4, wait less than those versions did. Our space takes
//! the lock of the search twice for an area, once to find it and once to enter it; those versions took it once. Per-CPU
//! memory is that of Linux 6.12.
//!
//! Each target spends its time where its kernel did, which `tests/work.rs` checks by counts. `list` walks its areas.
//! With `one-lock` each area takes the lock that all CPUs share, and with `nodes` one of its CPU. The lookup of blocks
//! has one lock until `hashed`.

use crate::space::{Manner, SpaceTarget};
use crate::target::{Setup, Target};
use anyhow::Result;
use va_base::{Machine, Platform};
use va_block::config::{Hashed, Linux64, OneMap63};
use va_percpu::config::Linux612;
use va_space::config::OneLock52;
use vmlab_machine::list::ListIndex;
use vmlab_machine::{PlainLock, Watch, WatchedSpin};

/// Linux up to 5.1: a walk of the list of busy areas.
struct List51;

impl va_space::Config for List51 {
    type Base = OneLock52;
    type Index<P: Platform + Clone + Send> = ListIndex;
    type Zone = <OneLock52 as va_space::Config>::Zone;
    type Decay = <OneLock52 as va_space::Config>::Decay;
    type Lookup<P: Machine> = <OneLock52 as va_space::Config>::Lookup<P>;
}

/// Blocks of Linux up to 6.3, on a space of policies `S`, with a lookup of policies `W`.
struct Blocks<S, W>(std::marker::PhantomData<fn() -> (S, W)>);

impl<S: va_space::Config, W: va_block::config::Spread> va_block::Config for Blocks<S, W> {
    type Base = OneMap63;
    type Space = S;
    type Spread = W;
}

/// A range of Linux versions, or ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Era {
    /// Up to 5.1.
    List,
    /// 5.2 to 6.3.
    OneLock,
    /// 6.4 to 6.8.
    Hashed,
    /// 6.9 to 6.12.
    Nodes,
    /// Our standard policies.
    Standard,
}

impl Era {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::List, Self::OneLock, Self::Hashed, Self::Nodes, Self::Standard];

    /// The name of the target.
    pub const fn name(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::OneLock => "one-lock",
            Self::Hashed => "hashed",
            Self::Nodes => "nodes",
            Self::Standard => "space",
        }
    }

    /// Creates an empty target.
    ///
    /// # Errors
    /// If there is no memory for records.
    pub fn make(self, setup: &Setup) -> Result<Box<dyn Target>> {
        self.with_locks::<PlainLock>(setup)
    }

    /// Creates an empty target whose locks spin and count.
    ///
    /// # Errors
    /// If there is no memory for records.
    pub fn make_watched(self, setup: &Setup) -> Result<Box<dyn Target>> {
        self.with_locks::<WatchedSpin>(setup)
    }

    fn with_locks<L: Watch>(self, setup: &Setup) -> Result<Box<dyn Target>> {
        use va_block::config::{OneMap, Standard as OurBlocks};
        use va_percpu::config::Standard as OurPercpu;
        type Linux<L, B> = SpaceTarget<L, B, Linux612>;
        Ok(match self {
            Self::List => Box::new(Linux::<L, Blocks<List51, OneMap>>::new(setup, Manner::Linux)?),
            Self::OneLock => Box::new(Linux::<L, OneMap63>::new(setup, Manner::Linux)?),
            Self::Hashed => Box::new(Linux::<L, Blocks<OneLock52, Hashed>>::new(setup, Manner::Linux)?),
            Self::Nodes => Box::new(Linux::<L, Linux64>::new(setup, Manner::Linux)?),
            Self::Standard => Box::new(SpaceTarget::<L, OurBlocks, OurPercpu>::new(setup, Manner::Standard)?),
        })
    }
}
