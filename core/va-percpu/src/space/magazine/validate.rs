//! Checks of magazines: MC1 to MC4.

use super::super::PercpuSpace;
use super::cell::{Cell, MOST};
use super::class::SIZES;
use super::state::Span;
use crate::backend::Backend;
use crate::config::Config;
use va_base::{InvariantViolation, Machine, Va};

/// Calls `each` with the objects of a cell: address, class, whether it is clean. Returns false if its lock cannot be
/// had: its owner is in a call, or the machine cannot take an owner's lock at all (a denied `membarrier`).
fn each_object<R: va_base::sync::RawMutex>(
    cell: &'static Cell<R>,
    each: &mut dyn FnMut(u64, usize, bool) -> Result<(), InvariantViolation>,
) -> Result<bool, InvariantViolation> {
    let Some(contents) = cell.try_lock() else { return Ok(false) };
    for (class, stack) in contents.stacks.iter().enumerate() {
        let sides = [(&stack.clean, stack.clean_len, true), (&stack.dirty, stack.dirty_len, false)];
        for (objects, len, clean) in sides {
            objects[..usize::from(len).min(MOST)].iter().try_for_each(|&at| each(at, class, clean))?;
        }
    }
    Ok(true)
}

impl<P: Machine, B: Backend, C: Config> PercpuSpace<P, B, C> {
    /// Checks MC1 to MC4. No owner is in a call. The totals are compared only if every magazine could be read.
    pub(crate) fn validate_magazines(&self) -> Result<(), InvariantViolation> {
        let checked = self.validate_cells();
        // The marks of the walk are removed, whatever it found.
        for cell in self.cells.each() {
            each_object(cell, &mut |at, class, _| {
                self.states.see(at, class, true);
                Ok(())
            })?;
        }
        checked
    }

    fn validate_cells(&self) -> Result<(), InvariantViolation> {
        let (mut cached, mut moved, mut whole) = (0u64, 0u64, true);
        for cell in self.cells.each() {
            whole &= each_object(cell, &mut |at, class, clean| {
                cached += 1;
                let place = Va::new(at);
                let once = self.states.see(at, class, false);
                InvariantViolation::check(once, "MC1", place, class as u64, 0)?;
                let held = self.lock().is_allocated(at, SIZES[class]);
                InvariantViolation::check(held, "MC1", place, SIZES[class].into(), 0)?;
                let base = self.states.span(at, None).map_or(place, Span::base);
                let off = (at - base.get()) as u32;
                let dirty =
                    clean && self.backend.is_zero(&self.geometry, base, off, SIZES[class]) == Some(false);
                InvariantViolation::check(!dirty, "MC2", place, 0, 1)
            })?;
            if let Some(contents) = cell.try_lock() {
                let (bytes, counted) = (contents.bytes, contents.counted_bytes());
                let at = self.geometry.base();
                InvariantViolation::check(bytes == counted, "MC3", at, counted.into(), bytes.into())?;
                let most = self.magazine_bytes();
                InvariantViolation::check(bytes <= most, "MC3", at, most.into(), bytes.into())?;
            }
            let stats = cell.stats();
            moved = moved.wrapping_add(stats.frees).wrapping_sub(stats.allocs);
        }
        if !whole {
            return Ok(());
        }
        let at = self.geometry.base();
        let states = self.states.count_cached();
        InvariantViolation::check(states == cached, "MC1", at, cached, states)?;
        // What left the chunks, and what callers took and freed.
        let counted = self.lock().totals.to_magazines.wrapping_add(moved);
        InvariantViolation::check(counted == cached, "MC4", at, cached, counted)
    }
}
