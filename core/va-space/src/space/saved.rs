//! A state that is saved, and taken up by another space.
//!
//! # Theory
//! What callers hold are the busy areas and their notes. Free, lazy and cached addresses are the rest: a space that
//! takes the busy areas by their addresses has all others to allocate. So a state is the areas that
//! [`VmapSpace::find_above`] returns one after the other, and the policies of the two spaces may differ.

use super::VmapSpace;
use crate::{Config, SpaceError};
use va_base::{Machine, VaRange};

impl<P: Machine + Clone, C: Config> VmapSpace<P, C> {
    /// Allocates the areas of another space, with their notes: all of them or none. Their handles stay with the space:
    /// the areas are freed by their addresses ([`free_at`](Self::free_at)). The caller may sleep.
    ///
    /// ```
    /// use va_base::{HeapMachine, Request, VaRange};
    /// use va_space::{VmapSpace, config::Standard};
    ///
    /// let all = VaRange::from_pages(0x100, 0x10_0000).unwrap();
    /// let machine = HeapMachine::<parking_lot::RawMutex>::new(4);
    /// let before = VmapSpace::<_, Standard>::new(all, all, &machine)?;
    /// let area = before.alloc(0, &Request::pages(3)?)?;
    /// before.note(area.start(), 7)?;
    ///
    /// // The machine stops, and no other thread changes the space.
    /// let busy = std::iter::successors(before.find_above(all.start()), |area| before.find_above(area.range.end()));
    /// let saved: Vec<(VaRange, Option<u64>)> = busy.map(|area| (area.range, area.note)).collect();
    ///
    /// let after = VmapSpace::<_, Standard>::new(all, all, &machine)?;
    /// after.restore(&saved)?;
    /// assert_eq!(after.find(area.start()).and_then(|area| area.note), Some(7));
    /// assert_eq!(after.free_at(area.start())?, area.range());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`alloc_at`](Self::alloc_at) for the first area that is not allocated. Those before it are freed then,
    /// and their addresses wait for a flush.
    /// # Locks
    /// Those of `alloc_at`, one area after the other. Cost: that of `alloc_at` for each.
    pub fn restore(&self, areas: &[(VaRange, Option<u64>)]) -> Result<(), SpaceError> {
        for (done, &(range, note)) in areas.iter().enumerate() {
            let begun = self.alloc_at(range);
            if let Err(error) = begun {
                for (range, _) in &areas[..done] {
                    // It was allocated above. One that another caller has freed since is no longer ours.
                    let _freed = self.free_at(range.start());
                }
                return Err(error);
            }
            if let Some(note) = note {
                // It was allocated above, and another caller that frees it takes its note along.
                let _noted = self.note(range.start(), note);
            }
        }
        Ok(())
    }
}
