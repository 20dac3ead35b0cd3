//! Linux's own code as a target, from C libraries that the user provides.
//!
//! # Theory
//! The libraries export the C functions that [`crate::space::kernel_lib`] and
//! [`crate::percpu::kernel_lib`] document; the user decides what they were built from. There are addresses only.
//! A request for an area includes its guard page, and an area grows by moving to another, as in a kernel. A library has
//! one space, so only one such target exists at a time.

use super::case::Case;
use super::target::{Ask, Ram, Setup, Target, Unsettled, Worker};
use crate::percpu::kernel_lib::KernelLib as PercpuKernelLib;
use crate::percpu::subject::{Subject as _, USUAL};
use crate::space::kernel_lib::{KernelDriver, KernelLib};
use crate::space::subject::{Driver as _, Setup as SpaceSetup, Subject as _};
use anyhow::{Result, bail};
use std::sync::atomic::{AtomicU64, Ordering};
use va_base::{PAGE_SIZE, Va};
use va_space::Config as _;
use vmlab_targets::request;

/// The most workers: a library may support a fixed number of threads.
const WORKERS_MAX: u32 = 1000;

/// The target.
struct Linux {
    space: KernelLib,
    percpu: Option<PercpuKernelLib>,
    /// Areas and per-CPU objects that are allocated.
    out: AtomicU64,
}

/// Creates the target `linux`.
pub(super) fn make(setup: &Setup) -> Result<Box<dyn Target>> {
    let Some(path) = &setup.kernel_lib else {
        bail!("the target linux needs a library: --kern FILE");
    };
    let cpus = setup.cpus.clamp(1, va_space::config::Linux69::NODES_MAX);
    let space = KernelLib::load(path)?.begin(&SpaceSetup::alone(cpus))?;
    let percpu = match &setup.kernel_lib_percpu {
        Some(path) => Some(PercpuKernelLib::load(path)?.begin(USUAL, cpus)?),
        None => None,
    };
    Ok(Box::new(Linux { space, percpu, out: AtomicU64::new(0) }))
}

impl Target for Linux {
    fn worker(&self, cpu: u32) -> Box<dyn Worker + '_> {
        if let Some(percpu) = &self.percpu {
            percpu.stand_for(cpu);
        }
        Box::new(LinuxWorker { target: self, driver: self.space.driver(cpu), out: 0 })
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

/// One thread's handle to the target.
struct LinuxWorker<'t> {
    target: &'t Linux,
    driver: KernelDriver<'t>,
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
        let at = self.driver.alloc(&request(ask)?)?.get();
        self.out += 1;
        Some(at)
    }

    #[inline]
    fn vfree(&mut self, at: u64) {
        self.driver.free(Va::new(at));
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
        Some(Box::new(LinuxRam { driver: &mut self.driver, count }))
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

/// Pages without contents: only their number matters.
struct LinuxRam<'w, 't> {
    driver: &'w mut KernelDriver<'t>,
    count: u32,
}

impl Ram for LinuxRam<'_, '_> {
    #[inline]
    fn map_write_unmap(&mut self, _: u8) -> bool {
        let Some(at) = self.driver.map_ram(self.count) else { return false };
        self.driver.unmap_ram(at, self.count);
        true
    }
}
