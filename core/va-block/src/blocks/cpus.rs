//! The state of each CPU, in groups that are allocated when a CPU first needs them.
//!
//! A kernel has up to 4,096 CPU ids, most of which never come online. So the blocks have room for a few groups, each of
//! which is a table of references. The machine allocates groups and CPU states; they remain until the blocks are
//! dropped.
//!
//! A request that finds no room on its own CPU has to know which other CPUs have some. To lock the queue of each would
//! disturb them all. So a group has a byte for each CPU, in which the CPU shows the largest request that its queue may
//! meet. For example, 4,096 CPUs show it in 64 cache lines, and a request for 5 pages locks only queues that show 5 or
//! more.
//!
//! # Locking
//! None: a reference is set once. Of two callers that race to set one, one returns its table to the machine. A byte is
//! written under the lock of its CPU's queue, before that is unlocked.

use super::CPUS_MAX;
use crate::lookup::ensure;
use crate::queue::{Cpu, Queue};
use core::ops::{Deref, DerefMut};
use va_base::sync::atomic::{AtomicU8, Ordering};
use va_base::sync::{MutexGuard, OnceRef, RawMutex};
use va_base::{Machine, Meta, Table};

/// CPUs in a group.
const GROUP: usize = if CPUS_MAX < 256 { CPUS_MAX } else { 256 };
/// Groups of all blocks.
const GROUPS: usize = CPUS_MAX / GROUP;

/// Consecutive CPUs.
struct Group<L: 'static> {
    cpus: [OnceRef<'static, Cpu<L>>; GROUP],
    /// The largest request that the queue of each CPU may meet, in pages. Protocol PR-SHOW.
    shown: [AtomicU8; GROUP],
}

impl<L: RawMutex + Send + Sync + 'static> Table for Group<L> {
    va_base::empty_table! {
        Self {
            cpus: [const { OnceRef::new() }; GROUP],
            shown: va_base::array_of![AtomicU8::new(0); GROUP],
        }
    }
}

/// The queue of a CPU, locked. Dropped, it shows what the queue may meet, and then unlocks it.
pub(super) struct Locked<'b, L: RawMutex + Send + Sync + 'static> {
    cpus: &'b Cpus<L>,
    cpu: u32,
    queue: MutexGuard<'static, L, Queue>,
}

impl<L: RawMutex + Send + Sync + 'static> Deref for Locked<'_, L> {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        &self.queue
    }
}

impl<L: RawMutex + Send + Sync + 'static> DerefMut for Locked<'_, L> {
    fn deref_mut(&mut self) -> &mut Queue {
        &mut self.queue
    }
}

impl<L: RawMutex + Send + Sync + 'static> Drop for Locked<'_, L> {
    fn drop(&mut self) {
        self.cpus.show(self.cpu, self.queue.largest());
    }
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
            return self.near.get()?.cpus[cpu as usize].get();
        }
        self.get_far(cpu)
    }

    #[inline]
    fn get_far(&self, cpu: u32) -> Option<&'static Cpu<L>> {
        self.far.get(cpu as usize / GROUP)?.get()?.cpus[cpu as usize % GROUP].get()
    }

    fn group(&self, cpu: u32) -> Option<&'static Group<L>> {
        let group = match cpu as usize / GROUP {
            0 => &self.near,
            at => self.far.get(at)?,
        };
        group.get()
    }

    /// Returns the locked queue of a CPU as one that shows its room when it is unlocked.
    pub(super) fn locked(&self, cpu: u32, queue: MutexGuard<'static, L, Queue>) -> Locked<'_, L> {
        Locked { cpus: self, cpu, queue }
    }

    /// Shows the largest request that the queue of a CPU may meet. Queue lock.
    pub(super) fn show(&self, cpu: u32, pages: u32) {
        let Some(group) = self.group(cpu) else { return };
        let (shown, pages) = (&group.shown[cpu as usize % GROUP], pages as u8);
        // Requests of other CPUs read it: so it is written only where it changes.
        if shown.load(Ordering::Relaxed) != pages {
            shown.store(pages, Ordering::Relaxed);
        }
    }

    /// Returns what a CPU shows.
    pub(super) fn shown(&self, cpu: u32) -> u32 {
        let group = self.group(cpu);
        group.map_or(0, |group| u32::from(group.shown[cpu as usize % GROUP].load(Ordering::Relaxed)))
    }

    /// Returns those of `cpus` CPUs other than `own` that may meet a request for `pages` pages: those above it, then those
    /// below.
    pub(super) fn with_room(&self, own: u32, cpus: u32, pages: u32) -> impl Iterator<Item = u32> + '_ {
        self.between(own + 1, cpus, pages).chain(self.between(0, own, pages))
    }

    /// Returns the CPUs from `low` to below `high` that may meet a request for `pages` pages.
    fn between(&self, low: u32, high: u32, pages: u32) -> impl Iterator<Item = u32> + '_ {
        self.groups().flat_map(move |(first, group)| {
            let at = |cpu: u32| (cpu.saturating_sub(first) as usize).min(GROUP);
            let shown = group.shown.iter().zip(first..).take(at(high)).skip(at(low));
            let fits = move |shown: &AtomicU8| u32::from(shown.load(Ordering::Relaxed)) >= pages;
            shown.filter_map(move |(shown, cpu)| fits(shown).then_some(cpu))
        })
    }

    /// Returns the state of a CPU, creating it if there is none; `None` if the machine has no memory.
    pub(super) fn ensure(&self, cpu: u32, machine: &impl Machine) -> Option<&'static Cpu<L>> {
        let group = match cpu as usize / GROUP {
            0 => &self.near,
            at => self.far.get(at)?,
        };
        let group = ensure(group, machine, |_| ())?;
        ensure(&group.cpus[cpu as usize % GROUP], machine, |_| ())
    }

    fn groups(&self) -> impl Iterator<Item = (u32, &'static Group<L>)> + '_ {
        let all = core::iter::once(&self.near).chain(&self.far[1..]);
        all.zip(0..).filter_map(|(group, at)| Some((at * GROUP as u32, group.get()?)))
    }

    /// Returns every CPU state that was created, with its id, in the order of the ids.
    pub(super) fn each(&self) -> impl Iterator<Item = (u32, &'static Cpu<L>)> + '_ {
        self.groups().flat_map(|(first, group)| {
            let cpus = group.cpus.iter().zip(first..);
            cpus.filter_map(|(cpu, id)| Some((id, cpu.get()?)))
        })
    }

    /// Returns all tables to the machine; the value must not be used afterwards.
    pub(super) fn release_meta(&self, machine: &impl Machine) {
        for (_, group) in self.groups() {
            for cpu in group.cpus.iter().filter_map(OnceRef::get) {
                machine.free_table(Meta::new(cpu));
            }
            machine.free_table(Meta::new(group));
        }
    }
}
