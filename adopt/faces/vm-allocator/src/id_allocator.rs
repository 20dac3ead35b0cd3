//! Numbers for devices, interrupts and slots.

use crate::{Error, Result};
use va_compat::{AddError, Ids};

/// An allocator of the ids of one range: the lowest freed one, or the next that was never allocated.
///
/// Every call takes O(log n) for n runs of freed ids.
///
/// ```
/// use vm_allocator::{Error, IdAllocator};
/// let mut ids = IdAllocator::new(5, 23)?;
/// assert_eq!((ids.allocate_id()?, ids.allocate_id()?), (5, 6));
/// ids.free_id(5)?;
/// assert_eq!(ids.free_id(5), Err(Error::AlreadyReleased(5)));
/// assert_eq!(ids.allocate_id()?, 5);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(into = "crate::saved::Ids", try_from = "crate::saved::Ids"))]
pub struct IdAllocator {
    pub(crate) range_base: u32,
    /// The lowest id that was never allocated; `None` past the largest number.
    pub(crate) next_id: Option<u32>,
    pub(crate) range_end: u32,
    pub(crate) freed_ids: IdSet,
}

impl IdAllocator {
    /// Creates an allocator of the ids from `range_base` to `range_end`.
    ///
    /// # Errors
    /// [`Error::InvalidRange`] if the end is below the base.
    pub fn new(range_base: u32, range_end: u32) -> Result<Self> {
        if range_end < range_base {
            return Err(Error::InvalidRange(range_base.into(), range_end.into()));
        }
        Ok(Self { range_base, next_id: Some(range_base), range_end, freed_ids: IdSet::EMPTY })
    }

    fn id_in_range(&self, id: u32) -> bool {
        (self.range_base..=self.range_end).contains(&id)
    }

    /// Allocates the lowest id that is free.
    ///
    /// # Errors
    /// [`Error::ResourceNotAvailable`] if none is, or [`Error::Overflow`] in a range up to the largest number.
    pub fn allocate_id(&mut self) -> Result<u32> {
        if let Some(id) = self.freed_ids.take_lowest() {
            return Ok(id);
        }
        let id = self.next_id.ok_or(Error::Overflow)?;
        if id > self.range_end {
            return Err(Error::ResourceNotAvailable);
        }
        self.next_id = id.checked_add(1);
        Ok(id)
    }

    /// Returns true if `id` is allocated.
    pub fn is_allocated(&self, id: u32) -> bool {
        self.id_in_range(id) && self.next_id.is_none_or(|next| id < next) && !self.freed_ids.contains(&id)
    }

    /// Frees an id, and returns it.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::NeverAllocated`], [`Error::AlreadyReleased`]. [`Error::ResourceNotAvailable`] if
    /// the global allocator fails.
    pub fn free_id(&mut self, id: u32) -> Result<u32> {
        if !self.id_in_range(id) {
            return Err(Error::OutOfRange(id));
        }
        if self.next_id.is_some_and(|next| next <= id) {
            return Err(Error::NeverAllocated(id));
        }
        self.freed_ids.insert(id).map(|()| id).map_err(|error| match error {
            AddError::Overlap => Error::AlreadyReleased(id),
            AddError::BadRange | AddError::NoMemory => Error::ResourceNotAvailable,
        })
    }
}

/// A set of ids: none at first, and no memory for them.
#[derive(Debug, Clone)]
pub(crate) struct IdSet(Ids);

impl IdSet {
    pub(crate) const EMPTY: Self = Self(Ids::new());

    pub(crate) fn insert(&mut self, id: u32) -> core::result::Result<(), AddError> {
        self.0.add(u64::from(id), u64::from(id) + 1)
    }

    fn take_lowest(&mut self) -> Option<u32> {
        self.0.take_lowest(1, 0, 0, u64::MAX).map(|id| id as u32)
    }

    fn contains(&self, id: &u32) -> bool {
        self.0.contains(u64::from(*id))
    }

    /// Iterates over the ids in order.
    #[cfg(feature = "serde")]
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().flat_map(|(start, end)| start..end).map(|id| id as u32)
    }
}
