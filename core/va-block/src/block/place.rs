//! The place of a block (a list or a lane), the progress of its flush, and its list of the collection.

/// The list or the lane that a block is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Place {
    /// In none: the space has the addresses.
    Absent,
    /// In the list of its CPU.
    Open,
    /// In no list: no page is free.
    Full,
    /// In a lane.
    Laned,
}

/// The progress of a flush for a block. Changed under the queue lock; a lane resets `Completed` to
/// `None`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum FlushState {
    /// No flush, or one whose end needs no action of a lane.
    None,
    /// The flush has begun: the block is in the collection's list of those in flight.
    Begun,
    /// The flush has ended. The lane that has the block recycles the pages.
    Completed,
}

/// The list of the collection that a block is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum List {
    /// None.
    None,
    /// Blocks with dead pages that the next flush is to cover.
    Pending,
    /// Blocks that the flush in progress covers.
    InFlight,
}
