//! A state that is saved, and taken up by another space.
//!
//! # Theory
//! What callers hold are the busy areas and their notes. Free, lazy and cached addresses are the rest: a space that
//! takes the busy areas by their addresses has all others to allocate. So a state is the areas that
//! [`VmapSpace::find_above`] returns one after the other, and the policies of the two spaces may differ.

use super::VmapSpace;
use crate::list::{AreaList, Flushed, UnlinkedArea};
use crate::map::State;
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
    /// Those of [`alloc_at`](Self::alloc_at) for the first area that is not allocated. Those before it return to the
    /// index. No other caller can have freed one of them: an area is busy, and shows in lookups, when all are allocated.
    /// Where the policy finds areas by trees, a lookup may show one for a moment before. A free of it fails.
    /// # Locks
    /// Those of `alloc_at`, one area after the other. Cost: that of `alloc_at` for each.
    pub fn restore(&self, areas: &[(VaRange, Option<u64>)]) -> Result<(), SpaceError> {
        let mut begun = AreaList::<Flushed>::new();
        for &(range, _) in areas {
            let area = match self.alloc_at_as(range, State::Idle) {
                Ok(area) => area,
                Err(error) => {
                    self.to_index_by_slices(begun, false);
                    self.note_return();
                    return Err(error);
                }
            };
            match self.map.idle_slot(area.page) {
                Some((slot, word)) => {
                    begun.push_back(&self.map, UnlinkedArea::won(area.page, area.pages, word, slot));
                }
                None => self.machine.bug(format_args!("{range} began, and is not there"), None),
            }
        }
        for &(_, note) in areas {
            let Some(area) = begun.pop_any(&self.map) else { break };
            // Its handle stays with the space.
            let _freed_by_address = match note {
                Some(note) => self.publish_noted(area, None, note),
                None => self.publish(area, None),
            };
        }
        self.stop_if_lost();
        Ok(())
    }
}
