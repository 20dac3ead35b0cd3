//! The functions of the kernel whose durations are recorded, and the names of their events.
//!
//! # Theory
//! A probe writes one event when a function begins and one when it returns. The events have names of ours, since the
//! kernel's functions have other names in other versions, and suffixes of the compiler.
//!
//! Source: `mm/vmalloc.c` and `mm/percpu.c` of Linux 6.12 and 6.18.

/// A kind of function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Call {
    /// Allocates an address range.
    Alloc,
    /// Makes an area lazy.
    Free,
    /// Removes an area: finds it, unmaps its pages and frees it.
    Unmap,
    /// Flushes the TLBs, and returns all lazy areas to the free space.
    Purge,
    /// The worker that purges.
    Drain,
    /// Allocates per-CPU memory.
    PercpuAlloc,
    /// Frees per-CPU memory.
    PercpuFree,
}

/// An end of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// The function begins.
    Enter,
    /// It returns.
    Leave,
}

/// A kind: its name, its two events, and the functions that are of it, in the order in which they are tried.
struct Names(&'static str, [&'static str; 2], &'static [&'static str]);

impl Call {
    /// All kinds, in the order of tables.
    pub const ALL: [Self; 7] =
        [Self::Alloc, Self::Free, Self::Unmap, Self::Purge, Self::Drain, Self::PercpuAlloc, Self::PercpuFree];

    fn names(self) -> Names {
        match self {
            Self::Alloc => Names("alloc", ["vmlab_enter_alloc", "vmlab_leave_alloc"], &["alloc_vmap_area"]),
            Self::Free => {
                Names("free", ["vmlab_enter_free", "vmlab_leave_free"], &["free_vmap_area_noflush"])
            }
            Self::Unmap => Names("unmap", ["vmlab_enter_unmap", "vmlab_leave_unmap"], &["remove_vm_area"]),
            Self::Purge => {
                Names("purge", ["vmlab_enter_purge", "vmlab_leave_purge"], &["__purge_vmap_area_lazy"])
            }
            Self::Drain => {
                Names("drain", ["vmlab_enter_drain", "vmlab_leave_drain"], &["drain_vmap_area_work"])
            }
            // Without the suffix before Linux 6.10.
            Self::PercpuAlloc => Names(
                "percpu alloc",
                ["vmlab_enter_percpu_alloc", "vmlab_leave_percpu_alloc"],
                &["pcpu_alloc_noprof", "pcpu_alloc"],
            ),
            Self::PercpuFree => {
                Names("percpu free", ["vmlab_enter_percpu_free", "vmlab_leave_percpu_free"], &["free_percpu"])
            }
        }
    }

    /// The name in tables.
    pub fn name(self) -> &'static str {
        self.names().0
    }

    /// The names that the kernel's function may have, without suffixes of the compiler.
    pub fn functions(self) -> &'static [&'static str] {
        self.names().2
    }

    /// The name of an event.
    pub fn event(self, edge: Edge) -> &'static str {
        let [enter, leave] = self.names().1;
        match edge {
            Edge::Enter => enter,
            Edge::Leave => leave,
        }
    }

    /// Returns the kind and the end of an event; none if the event is another.
    pub fn of_event(name: &str) -> Option<(Self, Edge)> {
        // Most events are others.
        let edge = match name.strip_prefix("vmlab_")? {
            rest if rest.starts_with("enter_") => Edge::Enter,
            rest if rest.starts_with("leave_") => Edge::Leave,
            _ => return None,
        };
        Self::ALL.into_iter().find(|call| call.event(edge) == name).map(|call| (call, edge))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_names_its_kind_and_its_end() {
        for call in Call::ALL {
            for edge in [Edge::Enter, Edge::Leave] {
                assert_eq!(Call::of_event(call.event(edge)), Some((call, edge)));
            }
            assert!(!call.functions().is_empty());
        }
        for other in
            ["alloc_vmap_area", "vmlab_", "vmlab_enter_", "vmlab_left_alloc", "vmlab_enter_alloc2", ""]
        {
            assert_eq!(Call::of_event(other), None, "{other}");
        }
    }
}
