//! The state of each CPU, in groups that are allocated when a CPU first needs them.
//!
//! A kernel has up to 4,096 CPU ids, most of which never come online. So the blocks have room for a few groups, each of
//! which is a table of references. The machine allocates groups and CPU states; they remain until the blocks are
//! dropped.
//!
//! # Locking
//! None: a reference is set once. Of two callers that race to set one, one returns its table to the machine.

use super::CPUS_MAX;
use crate::lookup::ensure;
use crate::queue::Cpu;
use va_base::sync::{OnceRef, RawMutex};
use va_base::{Machine, Meta, Table};

/// CPUs in a group.
const GROUP: usize = if CPUS_MAX < 256 { CPUS_MAX } else { 256 };
/// Groups of all blocks.
const GROUPS: usize = CPUS_MAX / GROUP;

/// References to the states of consecutive CPUs.
struct Group<L: 'static>([OnceRef<'static, Cpu<L>>; GROUP]);

impl<L: RawMutex + Send + Sync + 'static> Table for Group<L> {
    va_base::empty_table!(Self([const { OnceRef::new() }; GROUP]));
}

/// The states of the CPUs that called so far.
pub(super) struct Cpus<L: 'static> {
    /// The lowest CPUs, which every machine has.
    near: OnceRef<'static, Group<L>>,
    /// The others, group by group; the first is not used.
    far: [OnceRef<'static, Group<L>>; GROUPS],
}

impl<L: RawMutex + Send + Sync + 'static> Cpus<L> {
    pub(super) const fn new() -> Self {
        Self { near: OnceRef::new(), far: [const { OnceRef::new() }; GROUPS] }
    }

    /// Returns the state of a CPU, if it was created.
    #[inline(always)]
    pub(super) fn get(&self, cpu: u32) -> Option<&'static Cpu<L>> {
        if (cpu as usize) < GROUP {
            return self.near.get()?.0[cpu as usize].get();
        }
        self.get_far(cpu)
    }

    #[inline]
    fn get_far(&self, cpu: u32) -> Option<&'static Cpu<L>> {
        self.far.get(cpu as usize / GROUP)?.get()?.0[cpu as usize % GROUP].get()
    }

    /// Returns the state of a CPU, creating it if there is none; `None` if the machine has no memory.
    pub(super) fn ensure(&self, cpu: u32, machine: &impl Machine) -> Option<&'static Cpu<L>> {
        let group = match cpu as usize / GROUP {
            0 => &self.near,
            at => self.far.get(at)?,
        };
        let group = ensure(group, machine, |_| ())?;
        ensure(&group.0[cpu as usize % GROUP], machine, |_| ())
    }

    fn groups(&self) -> impl Iterator<Item = (u32, &'static Group<L>)> + '_ {
        let all = core::iter::once(&self.near).chain(&self.far[1..]);
        all.zip(0..).filter_map(|(group, at)| Some((at * GROUP as u32, group.get()?)))
    }

    /// Returns every CPU state that was created, with its id, in the order of the ids.
    pub(super) fn each(&self) -> impl Iterator<Item = (u32, &'static Cpu<L>)> + '_ {
        self.groups().flat_map(|(first, group)| {
            let cpus = group.0.iter().zip(first..);
            cpus.filter_map(|(cpu, id)| Some((id, cpu.get()?)))
        })
    }

    /// Returns all tables to the machine; the value must not be used afterwards.
    pub(super) fn release_meta(&self, machine: &impl Machine) {
        for (_, group) in self.groups() {
            for cpu in group.0.iter().filter_map(OnceRef::get) {
                machine.free_table(Meta::new(cpu));
            }
            machine.free_table(Meta::new(group));
        }
    }
}
