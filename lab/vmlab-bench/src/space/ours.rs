//! Spaces of the library as subjects, with a magazine and without.

use super::subject::{Driver, Setup, Subject};
use crate::indexes::Drained;
use std::time::Duration;
use va_base::{Request, Va, VaRange};
use va_space::config::Config;
use va_space::{Magazine, Purge, SpaceError, VmapSpace};
use va_tree::Congruent;
use vmlab_machine::{LabMachine, LockStats, Watch, Work, take_lock_stats};

/// Range of areas, as in Linux on x86-64, without its last byte.
const WINDOW: (u64, u64) = (0xffff_c900_0000_0000, 0xffff_e8ff_ffff_ffff);
/// Interval at which a helper checks for work without being woken.
const NAP: Duration = Duration::from_millis(5);

type Space<L, C> = VmapSpace<LabMachine<L>, C>;

/// Returns the default window.
pub(crate) fn window() -> VaRange {
    VaRange::new(Va::new(WINDOW.0), Va::new(WINDOW.1)).unwrap_or(VaRange::ALL)
}

fn space<L: Watch, C: Config>(setup: &Setup) -> Result<(Space<L, C>, LabMachine<L>), SpaceError> {
    let work = if setup.helper { Work::Elsewhere } else { Work::Here };
    let machine = LabMachine::new(setup.nodes, setup.cpus, work);
    let space = VmapSpace::new(vmlab_machine::kernel_extent(), window(), machine.clone())?;
    Ok((space, machine))
}

/// A space whose callers have no magazine.
pub(crate) struct Bare<L: Watch, C: Config> {
    space: Space<L, C>,
    machine: LabMachine<L>,
}

/// A space whose callers have a magazine each.
pub(crate) struct Magazines<L: Watch, C: Config>(Bare<L, C>);

impl<L: Watch, C: Config> Bare<L, C> {
    pub(crate) fn new(setup: &Setup) -> Result<Self, SpaceError> {
        let (space, machine) = space(setup)?;
        Ok(Self { space, machine })
    }
}

impl<L: Watch, C: Config> Magazines<L, C> {
    pub(crate) fn new(setup: &Setup) -> Result<Self, SpaceError> {
        Bare::new(setup).map(Self)
    }
}

pub(crate) struct BareDriver<'a, L: Watch, C: Config> {
    space: &'a Space<L, C>,
    cpu: u32,
}

impl<L: Watch, C: Config> Subject for Bare<L, C> {
    type Driver<'a> = BareDriver<'a, L, C>;

    fn driver(&self, cpu: u32) -> Self::Driver<'_> {
        BareDriver { space: &self.space, cpu }
    }

    fn drained(&self) -> Drained {
        let stats = self.space.stats();
        Drained { purges: stats.purges, flushes: stats.flushes }
    }

    fn help(&self, done: &dyn Fn() -> bool) -> LockStats {
        self.machine.set_helper(std::thread::current());
        take_lock_stats();
        while !done() {
            if self.machine.take_due() {
                self.space.purge(Purge::Drain);
            } else {
                std::thread::park_timeout(NAP);
            }
        }
        take_lock_stats()
    }
}

impl<L: Watch, C: Config> Driver for BareDriver<'_, L, C> {
    fn move_to(&mut self, cpu: u32) {
        self.cpu = cpu;
    }

    #[inline(always)]
    fn alloc(&mut self, request: &Request) -> Option<Va> {
        self.space.alloc(self.cpu, request).ok().map(|area| area.start())
    }

    #[inline(always)]
    fn free(&mut self, at: Va) {
        let freed = self.space.free_at(at);
        debug_assert!(freed.is_ok(), "{freed:?}");
    }

    fn purge(&mut self) {
        self.space.purge(Purge::Full);
    }

    #[inline(always)]
    fn find(&self, at: Va) -> Option<Va> {
        self.space.find_enclosing(at).map(|seen| seen.range.start())
    }

    fn congruent(&mut self, areas: &Congruent<'_>) -> Option<Va> {
        self.space.alloc_congruent(areas).ok()
    }
}

/// A thread's magazine, and those of the other CPUs for which it has run.
pub(crate) struct MagazineDriver<'a, L: Watch, C: Config> {
    space: &'a Space<L, C>,
    /// `None` if all magazines that a space can have are in use.
    own: Option<Magazine<'a, LabMachine<L>, C>>,
    cpu: u32,
    parked: Vec<(u32, Magazine<'a, LabMachine<L>, C>)>,
}

impl<L: Watch, C: Config> Subject for Magazines<L, C> {
    type Driver<'a> = MagazineDriver<'a, L, C>;

    fn driver(&self, cpu: u32) -> Self::Driver<'_> {
        let space = &self.0.space;
        MagazineDriver { space, own: space.magazine(cpu).ok(), cpu, parked: Vec::new() }
    }

    fn drained(&self) -> Drained {
        self.0.drained()
    }

    fn help(&self, done: &dyn Fn() -> bool) -> LockStats {
        self.0.help(done)
    }
}

impl<L: Watch, C: Config> Driver for MagazineDriver<'_, L, C> {
    fn move_to(&mut self, cpu: u32) {
        if cpu == self.cpu {
            return;
        }
        let next = match self.parked.iter().position(|&(parked, _)| parked == cpu) {
            Some(at) => Some(self.parked.swap_remove(at).1),
            None => self.space.magazine(cpu).ok(),
        };
        if let Some(before) = std::mem::replace(&mut self.own, next) {
            self.parked.push((self.cpu, before));
        }
        self.cpu = cpu;
    }

    #[inline(always)]
    fn alloc(&mut self, request: &Request) -> Option<Va> {
        let got = match &mut self.own {
            Some(own) => own.alloc(request),
            None => self.space.alloc(self.cpu, request),
        };
        got.ok().map(|area| area.start())
    }

    #[inline(always)]
    fn free(&mut self, at: Va) {
        let freed = match &mut self.own {
            Some(own) => own.free_at(at),
            None => self.space.free_at(at),
        };
        debug_assert!(freed.is_ok(), "{freed:?}");
    }

    fn purge(&mut self) {
        for magazine in self.parked.iter_mut().map(|(_, magazine)| magazine).chain(&mut self.own) {
            magazine.drain();
        }
        self.space.purge(Purge::Full);
    }

    #[inline(always)]
    fn find(&self, at: Va) -> Option<Va> {
        self.space.find_enclosing(at).map(|seen| seen.range.start())
    }

    fn congruent(&mut self, areas: &Congruent<'_>) -> Option<Va> {
        self.space.alloc_congruent(areas).ok()
    }
}
