//! The numbered allocations.
//!
//! # Theory
//! A slot is in use, or in a list of free ones that links them. The memory grows with the largest number of allocations
//! so far, up to the maximum that the owner enforces.

/// The offset of a slot that is not in use. No allocation has it: one of size 0 is at the start of a hole, and any other
/// ends at the largest number at most.
const FREE: u32 = u32::MAX;

/// One allocation; in a free slot, `size` is the number of the next one.
#[derive(Clone, Copy)]
struct Slot {
    offset: u32,
    size: u32,
}

/// A list of slots.
#[derive(Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    /// The first free one; the length of the list if there is none.
    next: u32,
    used: u32,
}

impl Slots {
    /// Returns the number of slots in use.
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// Stores an allocation, and returns its number.
    pub(crate) fn add(&mut self, offset: u32, size: u32) -> u32 {
        let id = self.next;
        let slot = Slot { offset, size };
        match self.slots.get_mut(id as usize) {
            Some(free) => {
                self.next = free.size;
                *free = slot;
            }
            None => {
                self.slots.push(slot);
                self.next += 1;
            }
        }
        self.used += 1;
        id
    }

    /// Returns the offset and the size of allocation `id`.
    pub(crate) fn get(&self, id: usize) -> Option<(u32, u32)> {
        self.slots.get(id).filter(|slot| slot.offset != FREE).map(|slot| (slot.offset, slot.size))
    }

    /// Removes allocation `id`.
    pub(crate) fn remove(&mut self, id: usize) {
        if let Some(slot) = self.slots.get_mut(id).filter(|slot| slot.offset != FREE) {
            *slot = Slot { offset: FREE, size: self.next };
            self.next = id as u32;
            self.used -= 1;
        }
    }
}
