//! The states of an area of a space, as a replay and a picture show them.

/// The state of an area.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum State {
    /// Allocated.
    Busy,
    /// Freed, and not yet purged (for a process also: in quarantine).
    Lazy,
    /// Purged, and cached in a pool for the next request of its size.
    Pooled,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Busy, Self::Lazy, Self::Pooled];

    /// The name in pictures, JSON and CSV.
    pub fn name(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Lazy => "lazy",
            Self::Pooled => "pooled",
        }
    }
}
