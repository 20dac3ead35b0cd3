//! The node of an address, and the owner of an area.
//!
//! # Theory
//! Busy and lazy areas are spread over `N` nodes by the *start* of an area, in zones that repeat:
//!
//! ```text
//!   page    0......15 16.....31 32.....47 48.....63 64.....79       N = 4, zone = 16 pages
//!   node    |   0    |    1    |    2    |    3    |    0    |
//!   area         |=============================|                    [8, 40) is in node 0, and only there
//! ```
//!
//! So an address inside an area may be in another node's zone than its area. A lookup visits the nodes in turn. The
//! owner's zone is at or *below* the address, so going down ([`Walk::Down`]) finds it sooner than going up, as Linux
//! did at first.
//!
//! Zones that repeat have a resonance: areas aligned to `zone * N` pages all start in node 0 (2 MiB-aligned ones with
//! any power of two of nodes up to 32). [`HashedZones`] takes the node from a multiplicative hash of the zone instead.
//!
//! # Source
//! Linux `mm/vmalloc.c` (6.12: `addr_to_node_id`, `encode_vn_id`, `decode_vn_id`, `find_vmap_area`; later releases walk
//! down).

use va_base::{PAGE_SIZE, Pages, Va};

/// Low byte of an area's flags: the kind of the area. The owner is above.
const KIND_BITS: u32 = 8;

/// The nodes of one space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeMap {
    nodes: u32,
    zone: Pages,
}

/// A rule for the node that gets a freed area without an owner.
pub trait Zone: 'static {
    /// Returns the node of address `at`.
    fn node_of(map: &NodeMap, at: Va) -> u32;
}

/// Zones in turn, as Linux has them.
#[derive(Clone, Copy, Debug)]
pub struct RoundRobinZones;

impl Zone for RoundRobinZones {
    fn node_of(map: &NodeMap, at: Va) -> u32 {
        map.node_of(at)
    }
}

/// Zones by a multiplicative hash of their number, with which no alignment resonates.
#[derive(Clone, Copy, Debug)]
pub struct HashedZones;

impl Zone for HashedZones {
    fn node_of(map: &NodeMap, at: Va) -> u32 {
        // The golden ratio times 2^64, odd; the upper half of the product is mixed best.
        let hash = (at.page_floor() / map.zone.get()).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        ((hash * u64::from(map.nodes)) >> 32) as u32
    }
}

/// The order in which a lookup visits the nodes after the first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Walk {
    /// The order of Linux 6.12.
    Up,
    /// The order of later releases.
    Down,
}

/// The reason why flags name no owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoOwner {
    /// The area has none: no node allocated it.
    Untagged,
    /// The tag is no node of this space: the flags are corrupt.
    Corrupt {
        /// The node that the flags name.
        node: u32,
        /// The number of nodes.
        nodes: u32,
    },
}

impl NodeMap {
    /// One node, to which every address belongs.
    pub(crate) const ONE: Self = Self { nodes: 1, zone: Pages::new(16) };

    /// Creates the map of `nodes` nodes with zones of `zone` pages; `None` if either is zero, or a tag or a zone's
    /// bytes would not fit.
    #[must_use]
    pub const fn new(nodes: u32, zone: Pages) -> Option<Self> {
        if nodes == 0
            || nodes >= 1 << (u32::BITS - KIND_BITS)
            || zone.get() == 0
            || zone.get() > u64::MAX / PAGE_SIZE
        {
            return None;
        }
        Some(Self { nodes, zone })
    }

    /// Returns the number of nodes.
    #[must_use]
    pub const fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Returns the node of address `at`.
    #[must_use]
    pub const fn node_of(&self, at: Va) -> u32 {
        (at.page_floor() / self.zone.get() % self.nodes as u64) as u32
    }

    /// Returns `flags` with `node` as the owner.
    #[must_use]
    pub const fn encode(&self, node: u32, flags: u32) -> u32 {
        (node % self.nodes + 1) << KIND_BITS | flags & ((1 << KIND_BITS) - 1)
    }

    /// Returns the owner in `flags`.
    ///
    /// # Errors
    /// [`NoOwner::Untagged`] if there is none, [`NoOwner::Corrupt`] if it is no node.
    pub const fn decode(&self, flags: u32) -> Result<u32, NoOwner> {
        match (flags >> KIND_BITS).checked_sub(1) {
            None => Err(NoOwner::Untagged),
            Some(node) if node < self.nodes => Ok(node),
            Some(node) => Err(NoOwner::Corrupt { node, nodes: self.nodes }),
        }
    }

    /// Returns every node once, in the order in which a lookup of `at` visits them.
    pub fn lookup_order(&self, at: Va, walk: Walk) -> impl Iterator<Item = u32> + use<> {
        let (first, nodes) = (self.node_of(at), self.nodes);
        (0..nodes).map(move |step| match walk {
            Walk::Up => (u64::from(first) + u64::from(step)) % u64::from(nodes),
            Walk::Down => (u64::from(first) + u64::from(nodes - step)) % u64::from(nodes),
        } as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn four() -> NodeMap {
        NodeMap::new(4, Pages::new(16)).unwrap()
    }

    /// Returns the nodes visited until `owner` is found.
    fn visits(page: u64, owner: u32, walk: Walk) -> Vec<u32> {
        let order = four().lookup_order(Va::from_page(page), walk);
        let mut seen = Vec::new();
        for node in order {
            seen.push(node);
            if node == owner {
                break;
            }
        }
        seen
    }

    #[test]
    fn zones_repeat_over_the_nodes() {
        let pages = [0, 15, 16, 31, 63, 64];
        assert_eq!(pages.map(|page| four().node_of(Va::from_page(page))), [0, 0, 1, 1, 3, 0]);
        assert_eq!(NodeMap::new(1, Pages::new(1)).unwrap().node_of(Va::new(u64::MAX)), 0);
    }

    #[test]
    fn areas_of_2_mib_in_turn_share_a_node_and_spread_do_not() {
        for nodes in [2u32, 4, 16, 24, 32, 64, 128] {
            let map = NodeMap::new(nodes, Pages::new(16)).unwrap();
            let most = |node_of: fn(&NodeMap, Va) -> u32| {
                let mut counts = std::vec![0; nodes as usize];
                for n in 0..4096 {
                    counts[node_of(&map, Va::from_page(0xf_ffc9_0000_0000 + n * 512)) as usize] += 1;
                }
                counts.into_iter().max().unwrap_or(0)
            };
            let fair = 4096 / nodes;
            assert!(most(HashedZones::node_of) <= 2 * fair, "{nodes} nodes: {}", most(HashedZones::node_of));
            assert!(
                nodes > 32 || most(RoundRobinZones::node_of) >= fair * (nodes / 3).max(2),
                "{nodes} nodes"
            );
        }
    }

    #[test]
    fn an_owner_survives_its_tag() {
        let map = four();
        assert_eq!((map.encode(0, 0), map.encode(3, 0), map.encode(3, 3)), (0x100, 0x400, 0x403));
        assert_eq!(map.decode(0x403), Ok(3));
        assert_eq!(map.decode(0), Err(NoOwner::Untagged));
        assert_eq!(map.decode(3), Err(NoOwner::Untagged));
        assert_eq!(map.decode(0x500), Err(NoOwner::Corrupt { node: 4, nodes: 4 }));
        for node in 0..4 {
            assert_eq!(map.decode(map.encode(node, 0xff)), Ok(node));
        }
    }

    #[test]
    fn a_lookup_inside_an_area_visits_the_nodes_that_linux_visits() {
        // Area [8, 40) is in node 0.
        assert_eq!(visits(35, 0, Walk::Up), [2, 3, 0]);
        assert_eq!(visits(35, 0, Walk::Down), [2, 1, 0]);
        assert_eq!(visits(17, 0, Walk::Up), [1, 2, 3, 0]);
        assert_eq!(visits(17, 0, Walk::Down), [1, 0]);
    }

    #[test]
    fn a_lookup_visits_each_node_once() {
        for walk in [Walk::Up, Walk::Down] {
            let mut order: Vec<_> = four().lookup_order(Va::from_page(50), walk).collect();
            order.sort_unstable();
            assert_eq!(order, [0, 1, 2, 3]);
        }
    }

    #[test]
    fn maps_that_make_no_sense_are_errors() {
        assert_eq!(NodeMap::new(0, Pages::new(1)), None);
        assert_eq!(NodeMap::new(1, Pages::new(0)), None);
        assert_eq!(NodeMap::new(1 << 24, Pages::new(1)), None);
        assert_eq!(NodeMap::new(1, Pages::new(1 << 53)), None);
    }
}
