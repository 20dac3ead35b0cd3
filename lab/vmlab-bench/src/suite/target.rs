//! The targets of the suite, by name.
//!
//! To add a target, implement [`Target`] and [`Worker`], and add an [`Entry`] to [`targets`].

use super::{linux, process};
use anyhow::Result;
use vmlab_targets::Era;
pub use vmlab_targets::{Ask, Ram, Setup, Target, Unsettled, Worker};

/// A target by name.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Name of the target.
    pub name: &'static str,
    /// Its description, in one line.
    pub about: &'static str,
    /// Creates an empty target. An error names what is missing.
    pub make: fn(&Setup) -> Result<Box<dyn Target>>,
}

/// All targets, in the order of the tables.
pub fn targets() -> Vec<Entry> {
    vec![
        Entry {
            name: "space",
            about: "our address space: addresses only",
            make: |setup| Era::Standard.make(setup),
        },
        Entry {
            name: "process",
            about: "our memory of a process: every page written to",
            make: process::make,
        },
        Entry {
            name: "list",
            about: "as Linux up to 5.1: busy areas are walked",
            make: |setup| Era::List.make(setup),
        },
        Entry {
            name: "one-lock",
            about: "as Linux 5.2 to 6.3: a tree of holes, one lock",
            make: |setup| Era::OneLock.make(setup),
        },
        Entry {
            name: "hashed",
            about: "as Linux 6.4 to 6.8: lookups of blocks by CPU",
            make: |setup| Era::Hashed.make(setup),
        },
        Entry {
            name: "nodes",
            about: "as Linux 6.9 to 6.12: nodes and pools",
            make: |setup| Era::Nodes.make(setup),
        },
        Entry {
            name: "linux",
            about: "Linux's own code from a C library (--kern): addresses only",
            make: linux::make,
        },
    ]
}
