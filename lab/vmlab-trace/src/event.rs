//! The events of a trace, and the meaning of a line.

use serde::{Deserialize, Serialize};

/// An event that changes the address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// An attempt to allocate (`alloc_vmap_area`).
    Alloc {
        /// The allocated address, or the end of the window if it failed.
        addr: u64,
        /// Bytes, guard page included.
        size: u64,
        /// Bytes; 1 is legal.
        align: u64,
        /// First address of the window.
        vstart: u64,
        /// Address after its last; need not be page-aligned.
        vend: u64,
        /// True if the attempt failed.
        failed: bool,
    },
    /// An area became lazy (`free_vmap_area_noflush`).
    Free {
        /// Its first address.
        addr: u64,
    },
    /// The kernel freed every lazy area (`purge_vmap_area_lazy`).
    Purge {
        /// Number of areas.
        purged: u64,
    },
    /// A percpu chunk was created; its areas were allocated top-down (`percpu_create_chunk`).
    ChunkCreate {
        /// Its first address.
        base: u64,
    },
    /// A percpu chunk was destroyed; its areas become lazy by events of their own (`percpu_destroy_chunk`).
    ChunkDestroy {
        /// Its first address.
        base: u64,
    },
}

/// The end of a recording to which a line belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum When {
    /// After recording began.
    Begin,
    /// Before it ended.
    End,
}

impl When {
    /// The name in a recording.
    pub fn name(self) -> &'static str {
        match self {
            Self::Begin => "begin",
            Self::End => "end",
        }
    }
}

/// A mark that the recorder wrote among the events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// The kernel's pools were just emptied.
    Drained,
    /// The recorder begins to read a table.
    Opens(When),
    /// The recorder has read the table.
    Closes(When),
}

impl Mark {
    /// Returns the meaning of a mark's text; `None` if it is not ours.
    pub fn from_text(text: &str) -> Option<Self> {
        let mut words = text.strip_prefix("vmlab")?.split_whitespace();
        match (words.next()?, words.next()?, words.next()) {
            ("pools", "drained", None) => Some(Self::Drained),
            ("vmallocinfo", when, Some(side)) => {
                let when = [When::Begin, When::End].into_iter().find(|known| known.name() == when)?;
                match side {
                    "opens" => Some(Self::Opens(when)),
                    "closes" => Some(Self::Closes(when)),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

/// The meaning of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Line {
    /// One of our events.
    Event(Event),
    /// A `percpu` event that does not change the address space.
    Percpu,
    /// A comment or an empty line.
    Comment,
    /// The recorder reports that it lost this many events.
    Lost(u64),
    /// A mark of the recorder.
    Mark(Mark),
    /// Something else: another event, or text.
    Other,
    /// One of our events, but not understood.
    Bad,
}

/// An event of percpu memory. Addresses are those of the first unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PercpuEvent {
    /// `percpu_alloc_percpu`.
    Alloc {
        /// Start of the bitmap of the chunk.
        base: u64,
        /// Offset from there, in bytes.
        off: u64,
        /// The caller's result: the distance of the object from the beginning of the first chunk.
        ptr: u64,
        /// Bytes.
        size: u64,
        /// Bytes.
        align: u64,
        /// True if it came from the reserved region.
        reserved: bool,
        /// True if the caller could not sleep.
        atomic: bool,
    },
    /// `percpu_free_percpu`.
    Free {
        /// Start of the bitmap of the chunk.
        base: u64,
        /// Offset from there, in bytes.
        off: u64,
    },
    /// `percpu_create_chunk`.
    Create {
        /// Start of its first unit.
        base: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_others_are_none() {
        let of = Mark::from_text;
        assert_eq!(of("vmlab pools drained"), Some(Mark::Drained));
        assert_eq!(of("vmlab vmallocinfo end closes"), Some(Mark::Closes(When::End)));
        for text in
            ["", "vmlab", "vmlab pools", "vmlab pools drained twice", "vmlab vmallocinfo now opens", "x y z"]
        {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
