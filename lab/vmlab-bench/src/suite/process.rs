//! Our memory of a process as a target: `vmalloc` serves this process as a kernel's `vmalloc` serves the kernel.
//!
//! # Theory
//! A kernel's `vmalloc` returns with a page of memory behind every page of addresses. So here every page of an
//! allocation is written before it is returned: the system supplies the memory within the call, as in the kernel.
//!
//! Pages of `vm_map_ram` are frames of a memory file, and per-CPU objects are those of the crate's `percpu`. Both are
//! freed by their `Drop`. A worker stores them, and its allocations, in tables indexed by their numbers, so that this
//! module needs no pointers.

use super::case::Case;
use super::target::{Ask, Ram, Setup, Target, Unsettled, Worker};
use crate::memory::driver::{Held, Make};
use anyhow::{Context as _, Result};
use std::alloc::Layout;
use std::sync::atomic::{AtomicU64, Ordering};
use va_base::PAGE_SIZE;
use vmalloc::percpu::{PerCpuBox, Space};
use vmalloc::{Frames, Mappings, Options, Protection, Vmalloc};

/// The target.
struct Process {
    memory: Vmalloc,
    mappings: Mappings,
    percpu: Space,
    /// Memory that workers had not freed when they ended.
    left: AtomicU64,
}

/// Creates the target `process`.
pub(super) fn make(_: &Setup) -> Result<Box<dyn Target>> {
    Ok(Box::new(Process {
        memory: Vmalloc::new(Options::default()).context("vmalloc")?,
        mappings: Mappings::new(usize::MAX).context("vmap")?,
        percpu: Space::new(vmalloc::percpu::Options::default()).context("per-CPU memory")?,
        left: AtomicU64::new(0),
    }))
}

impl Target for Process {
    fn worker(&self, _: u32) -> Box<dyn Worker + '_> {
        Box::new(ProcessWorker { target: self, held: Numbered::default(), objects: Numbered::default() })
    }

    fn supports(&self, _: Case) -> bool {
        true
    }

    fn settle(&self) -> Result<(), Unsettled> {
        self.mappings.flush();
        self.percpu.validate().map_err(Unsettled::InvariantViolation)?;
        let mapped = self.mappings.stats().frames;
        match self.left.load(Ordering::Relaxed)
            + (self.memory.stats().live_bytes as u64).div_ceil(PAGE_SIZE)
            + mapped
        {
            0 => Ok(()),
            left => Err(Unsettled::Left(left)),
        }
    }
}

/// Values by numbers, which begin at 1 and are reused.
pub struct Numbered<T> {
    places: Vec<Option<T>>,
    vacant: Vec<usize>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self { places: Vec::new(), vacant: Vec::new() }
    }
}

impl<T> Numbered<T> {
    #[inline]
    pub fn put(&mut self, value: T) -> u64 {
        let place = self.vacant.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.places[place] = Some(value);
        place as u64 + 1
    }

    #[inline]
    pub fn get(&mut self, number: u64) -> Option<&mut T> {
        self.places.get_mut((number as usize).wrapping_sub(1))?.as_mut()
    }

    #[inline]
    pub fn take(&mut self, number: u64) -> Option<T> {
        let place = (number as usize).wrapping_sub(1);
        let taken = self.places.get_mut(place)?.take()?;
        self.vacant.push(place);
        Some(taken)
    }

    /// Returns the number of values.
    pub fn count(&self) -> usize {
        self.places.len() - self.vacant.len()
    }
}

/// One thread's handle to the target.
struct ProcessWorker<'t> {
    target: &'t Process,
    held: Numbered<Held<Vmalloc>>,
    objects: Numbered<PerCpuBox<'t>>,
}

impl Drop for ProcessWorker<'_> {
    fn drop(&mut self) {
        self.target.left.fetch_add(self.objects.count() as u64, Ordering::Relaxed);
    }
}

impl Worker for ProcessWorker<'_> {
    #[inline]
    fn vmalloc(&mut self, ask: &Ask) -> Option<u64> {
        let (bytes, align) = (usize::try_from(ask.bytes).ok()?, usize::try_from(ask.align).ok()?);
        let make = match ask {
            Ask { huge: true, .. } => Make::Huge,
            Ask { zero: true, .. } => Make::Zeros,
            _ => Make::Any,
        };
        let held = Held::make(&self.target.memory, bytes, align, make)?;
        Some(self.held.put(held))
    }

    #[inline]
    fn vfree(&mut self, at: u64) {
        let held = self.held.take(at);
        debug_assert!(held.is_some(), "{at} is not held");
        if let Some(held) = held {
            held.end(&self.target.memory);
        }
    }

    #[inline]
    fn write(&mut self, at: u64, byte: u8) {
        if let Some(held) = self.held.get(at) {
            held.put(0, byte);
        }
    }

    #[inline]
    fn holds(&mut self, at: u64, byte: u8) -> bool {
        self.held.get(at).is_some_and(|held| held.first() == byte)
    }

    fn vrealloc(&mut self, at: u64, _: u64, bytes: u64) -> Option<u64> {
        let bytes = usize::try_from(bytes).ok()?;
        match self.held.take(at)?.resized(&self.target.memory, bytes) {
            Ok(held) => Some(self.held.put(held)),
            Err(held) => {
                let again = self.held.put(held);
                debug_assert_eq!(again, at, "the place that was vacated last is taken first");
                None
            }
        }
    }

    fn pages(&mut self, count: u64) -> Option<Box<dyn Ram + '_>> {
        let frames = self.target.mappings.frames(usize::try_from(count).ok()?).ok()?;
        frames.populate().ok()?;
        Some(Box::new(ProcessRam { mappings: &self.target.mappings, frames }))
    }

    fn pcpu_alloc(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let layout = Layout::from_size_align(usize::try_from(bytes).ok()?, usize::try_from(align).ok()?);
        let object = self.target.percpu.alloc(layout.ok()?).ok()?;
        Some(self.objects.put(object))
    }

    fn pcpu_free(&mut self, at: u64) {
        let object = self.objects.take(at);
        debug_assert!(object.is_some(), "{at} is not held");
    }
}

/// Frames that are mapped repeatedly.
struct ProcessRam<'t> {
    mappings: &'t Mappings,
    frames: Frames<'t>,
}

impl Ram for ProcessRam<'_> {
    fn map_write_unmap(&mut self, byte: u8) -> bool {
        let map = || {
            let one;
            let many;
            // The usual case, one page, needs no allocated list.
            let frames = if self.frames.len() == 1 {
                one = [self.frames.frame(0)?];
                &one[..]
            } else {
                many =
                    (0..self.frames.len()).map(|nth| self.frames.frame(nth)).collect::<Option<Vec<_>>>()?;
                &many[..]
            };
            let mapping = self.mappings.vm_map_ram(frames, Protection::ReadWrite).ok()?;
            mapping.write(0, &[byte]).ok()?;
            self.mappings.vm_unmap_ram(mapping);
            Some(())
        };
        map().is_some()
    }
}
