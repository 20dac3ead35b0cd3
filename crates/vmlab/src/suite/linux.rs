//! Linux's own code as a target, from C libraries that the user names.
//!
//! # Theory
//! The libraries export the C functions that [`crate::bench::space::kern`] and [`crate::bench::percpu::kern`] state; what they were
//! built from is the user's affair. There are addresses only. An area is asked for with its guard page, and grows by another area, as
//! in a kernel. A library has one space, so there is one such target at a time.

use super::case::Case;
use super::space::request;
use super::target::{Ask, Ram, Setup, Target, Unsettled, Worker};
use crate::bench::percpu::kern::Kern as PercpuKern;
use crate::bench::percpu::subject::{Subject as _, USUAL};
use crate::bench::space::kern::{Kern, KernHand};
use crate::bench::space::subject::{Hand as _, Setup as SpaceSetup, Subject as _};
use anyhow::{Result, bail};
use std::sync::atomic::{AtomicU64, Ordering};
use va_base::{PAGE_SIZE, Va};
use va_space::Config as _;

/// The most workers: a library may have room for so many threads and no more.
const WORKERS_MAX: u32 = 1000;

/// The target.
struct Linux {
    space: Kern,
    percpu: Option<PercpuKern>,
    /// Areas and per-CPU objects that are out.
    out: AtomicU64,
}

/// The target `linux`.
pub(super) fn make(setup: &Setup) -> Result<Box<dyn Target>> {
    let Some(path) = &setup.kern else {
        bail!("the target linux needs a library: --kern FILE");
    };
    let cpus = setup.cpus.clamp(1, va_space::config::Linux69::NODES_MAX);
    let space = Kern::load(path)?.begin(&SpaceSetup::alone(cpus))?;
    let percpu = match &setup.kern_percpu {
        Some(path) => Some(PercpuKern::load(path)?.begin(USUAL, cpus)?),
        None => None,
    };
    Ok(Box::new(Linux { space, percpu, out: AtomicU64::new(0) }))
}

impl Target for Linux {
    fn worker(&self, cpu: u32) -> Box<dyn Worker + '_> {
        if let Some(percpu) = &self.percpu {
            percpu.stand_for(cpu);
        }
        Box::new(LinuxWorker { target: self, hand: self.space.hand(cpu), out: 0 })
    }

    fn supports(&self, case: Case) -> bool {
        match case {
            Case::Pcpu => self.percpu.is_some(),
            Case::VmMapRam => self.space.has_ram(),
            _ => true,
        }
    }

    fn workers_max(&self) -> u32 {
        WORKERS_MAX
    }

    fn settle(&self) -> Result<(), Unsettled> {
        match self.out.load(Ordering::Relaxed) {
            0 => Ok(()),
            out => Err(Unsettled::Left(out)),
        }
    }
}

/// A thread's way to it.
struct LinuxWorker<'t> {
    target: &'t Linux,
    hand: KernHand<'t>,
    /// Objects that it has allocated and not freed.
    out: u64,
}

impl Drop for LinuxWorker<'_> {
    fn drop(&mut self) {
        if let Some(percpu) = &self.target.percpu {
            percpu.leave();
        }
        self.target.out.fetch_add(self.out, Ordering::Relaxed);
    }
}

impl Worker for LinuxWorker<'_> {
    #[inline]
    fn vmalloc(&mut self, ask: &Ask) -> Option<u64> {
        let at = self.hand.alloc(&request(ask)?)?.get();
        self.out += 1;
        Some(at)
    }

    #[inline]
    fn vfree(&mut self, at: u64) {
        self.hand.free(Va::new(at));
        self.out -= 1;
    }

    #[inline(always)]
    fn write(&mut self, _: u64, _: u8) {}

    #[inline(always)]
    fn holds(&mut self, _: u64, _: u8) -> bool {
        true
    }

    fn vrealloc(&mut self, at: u64, had: u64, bytes: u64) -> Option<u64> {
        if bytes.div_ceil(PAGE_SIZE) <= had.div_ceil(PAGE_SIZE) {
            return Some(at);
        }
        let moved = self.vmalloc(&Ask::bytes(bytes))?;
        self.vfree(at);
        Some(moved)
    }

    fn pages(&mut self, count: u64) -> Option<Box<dyn Ram + '_>> {
        let count = u32::try_from(count).ok()?;
        Some(Box::new(LinuxRam { hand: &mut self.hand, count }))
    }

    fn pcpu_alloc(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let percpu = self.target.percpu.as_ref()?;
        let at = percpu.alloc(u32::try_from(bytes).ok()?, u32::try_from(align).ok()?);
        self.out += u64::from(at != 0);
        (at != 0).then_some(at)
    }

    fn pcpu_free(&mut self, at: u64) {
        if let Some(percpu) = &self.target.percpu {
            percpu.free(at);
            self.out -= 1;
        }
    }
}

/// Pages that have no contents, so only their number counts.
struct LinuxRam<'w, 't> {
    hand: &'w mut KernHand<'t>,
    count: u32,
}

impl Ram for LinuxRam<'_, '_> {
    #[inline]
    fn map_write_unmap(&mut self, _: u8) -> bool {
        let Some(at) = self.hand.map_ram(self.count) else { return false };
        self.hand.unmap_ram(at, self.count);
        true
    }
}
